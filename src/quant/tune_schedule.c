/* SPDX-License-Identifier: Apache-2.0 */
/* Which samples a step of tuning looks at: a pure function of seed, number of samples, batch and step. */
#include "dpquant/block_algo.h"
#include "dpquant/rng.h"

#define STREAM_SCHEDULE UINT64_C(0x7363686564) /* apart from other uses of the seed */

/* Where the element at POSITION of a shuffled list of COUNT came from. The shuffle swaps, for k = count - 1 down to 1,
 * elements k and below(k + 1); following one position back through the swaps needs no list. */
static int64_t shuffled(uint64_t seed, uint64_t stream, uint64_t first_counter, int64_t count, int64_t position)
{
    for (int64_t k = 1; k < count; k++) {
        int64_t other = (int64_t)dpq_rng_below(seed, stream, first_counter + (uint64_t)k, (uint64_t)k + 1);
        position = position == k ? other : position == other ? k : position;
    }
    return position;
}

void dpq_tune_schedule(int64_t seed, int64_t n, int64_t batch, int64_t step, int64_t *samples)
{
    DPQ_ASSERT(batch >= 1 && n >= batch && step >= 0);
    for (int64_t c = 0; c < batch; c++) {
        int64_t members = (n - c + batch - 1) / batch;
        int64_t pass = step / members;
        int64_t member = shuffled((uint64_t)seed, STREAM_SCHEDULE + (uint64_t)c, (uint64_t)(pass * members), members,
                                  step % members);
        samples[c] = c + batch * member;
    }
}
