/* SPDX-License-Identifier: Apache-2.0 */
/* Token windows from HDF5 (input_ids (samples, length) integer; optional attention_mask), in a fixed order. */
#ifndef DPQUANT_CALIBSET_H
#define DPQUANT_CALIBSET_H

#include <stdint.h>

#include "dpquant/option.h"
#include "dpquant/status.h"

typedef struct {
    char *data;      /* path */
    int64_t samples; /* first N rows of the (shuffled) order; 0 = all */
    int64_t seqlen;  /* longer rows are cut to this; 0 = as they are */
    bool shuffle;
    int64_t seed;
} dpq_calibset_options;
/* Options with keys "<prefix>.data" ... exist for "calibration" and "eval" (no shuffle, no seed there). */

/* Samples with padding removed: sample i is ids[start[i] .. start[i+1]). */
typedef struct {
    int64_t n;
    int64_t *start; /* n + 1 */
    int32_t *ids;
    int64_t max_length;
    int64_t rows_in_file, tokens_read, tokens_masked; /* read = used + masked + cut */
    int64_t tokens_cut;
    char digest[65]; /* SHA-256 over lengths and ids of the samples used */
} dpq_calibset;

/* Read the samples. Checks as docs/FORMATS.md says: integer class, rank 2, 0 <= id < VOCAB, mask of the same shape with
 * values 0/1 whose ones are one run (left or right padding, which is cut off: positions start at the first real token).
 * Asking for more samples than the file has: error naming both numbers. Rows with fewer than 2 tokens after masking:
 * error naming the row. Errors: DPQ_E_INPUT with file, dataset, row, expected, found. */
DPQ_MUST_USE dpq_status dpq_calibset_read(const dpq_calibset_options *options, int64_t vocab_size, dpq_calibset *out);
void dpq_calibset_fini(dpq_calibset *set);

#endif
