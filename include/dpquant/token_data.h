/* SPDX-License-Identifier: Apache-2.0 */
/* Samples for all ranks from one reader: rank 0 reads and checks the file, everybody gets the tokens. */
#ifndef DPQUANT_TOKEN_DATA_H
#define DPQUANT_TOKEN_DATA_H

#include "dpquant/calibset.h"
#include "dpquant/comm.h"

/* Collective: over COMM. As dpq_calibset_read on rank 0; all ranks hold the same set. Errors: agreed. */
DPQ_MUST_USE dpq_status dpq_token_data_read(dpq_comm *comm, const dpq_calibset_options *options, int64_t vocab_size,
                                            dpq_calibset *out);

#endif
