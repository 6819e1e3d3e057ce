/* SPDX-License-Identifier: Apache-2.0 */
/* HDF5 datasets, read-only and distrustful: hard links only, no external or virtual storage, no plug-ins, locking off,
 * sizes checked against the file before allocation. The only module that includes hdf5.h. */
#ifndef DPQUANT_H5_H
#define DPQUANT_H5_H

#include <stdint.h>

#include "dpquant/status.h"
#include "dpquant/tensor.h"

typedef struct dpq_h5 dpq_h5;
/* "HDF5 1.10.8". */
const char *dpq_h5_library(void);
DPQ_MUST_USE dpq_status dpq_h5_open(const char *path, dpq_h5 **out);
void dpq_h5_close(dpq_h5 **file);
bool dpq_h5_has(const dpq_h5 *file, const char *dataset);
/* Shape of a dataset of rank 1..3 and whether its class is integer. Errors: DPQ_E_INPUT naming file and dataset. */
DPQ_MUST_USE dpq_status dpq_h5_shape(const dpq_h5 *file, const char *dataset, int *rank, int64_t dim[3],
                                     bool *is_integer);
/* Rows [begin, end) of a rank-2 integer dataset as int64 / of a float dataset (any rank, flattened rows) as f32. */
DPQ_MUST_USE dpq_status dpq_h5_read_rows_i64(const dpq_h5 *file, const char *dataset, int64_t begin, int64_t end,
                                             int64_t *dst);
DPQ_MUST_USE dpq_status dpq_h5_read_rows_f32(const dpq_h5 *file, const char *dataset, int64_t begin, int64_t end,
                                             float *dst);
/* A scalar float attribute of the root group. */
DPQ_MUST_USE dpq_status dpq_h5_attr_f64(const dpq_h5 *file, const char *name, double *out);

#endif
