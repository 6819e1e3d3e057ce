/* SPDX-License-Identifier: Apache-2.0 */
/* Pure index arithmetic: which samples and which rows belong to (rank, size). Nothing else may depend on the number of
 * ranks. */
#ifndef DPQUANT_SHARD_H
#define DPQUANT_SHARD_H

#include <stdint.h>

/* Samples of RANK among n: rank, rank + size, ... : their number, and the i-th. */
int64_t dpq_shard_sample_count(int64_t n, int rank, int size);
int64_t dpq_shard_sample(int64_t i, int rank, int size);
/* Rows [row_start[r], row_start[r+1]) of an N-row solve for each rank: whole tiles of TILE rows, as even as tiles
 * allow. row_start has size + 1 entries. */
void dpq_shard_rows(int64_t n, int64_t tile, int size, int64_t *row_start);
/* Rank that factors a stage. */
int dpq_shard_owner(int64_t layer, int stage, int size);

#endif
