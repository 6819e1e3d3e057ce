/* SPDX-License-Identifier: Apache-2.0 */
/* Who does what: pure functions of indices, rank and size. Samples and factors are dealt in turn, rows in whole tiles.
 */
#include "dpquant/shard.h"

#include "dpquant/model.h"

int64_t dpq_shard_sample_count(int64_t n, int rank, int size)
{
    DPQ_ASSERT(n >= 0 && rank >= 0 && rank < size);
    return n > rank ? (n - rank - 1) / size + 1 : 0;
}

int64_t dpq_shard_sample(int64_t i, int rank, int size)
{
    return rank + i * size;
}

void dpq_shard_rows(int64_t n, int64_t tile, int size, int64_t *row_start)
{
    DPQ_ASSERT(n >= 0 && tile > 0 && size > 0);
    int64_t tiles = n / tile + (n % tile != 0 ? 1 : 0);
    int64_t share = tiles / size;
    int64_t rest = tiles % size; /* the first `rest` ranks take one tile more */
    for (int r = 0; r <= size; r++) {
        int64_t first = share * r + (r < rest ? r : rest);
        row_start[r] = first < tiles ? first * tile : n;
    }
}

int dpq_shard_owner(int64_t layer, int stage, int size)
{
    DPQ_ASSERT(layer >= 0 && stage >= 0 && stage < DPQ_STAGE_COUNT && size > 0);
    return (int)((layer * DPQ_STAGE_COUNT + stage) % size);
}
