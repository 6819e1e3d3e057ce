/* SPDX-License-Identifier: Apache-2.0 */
/* Counter-based random numbers: SplitMix64 finalisers over (seed, stream, counter). No state, so no order of calls can
 * matter. */
#include "dpquant/rng.h"

#define GOLDEN 0x9e3779b97f4a7c15u /* 2^64 / golden ratio, odd */

/* A bijection of 64 bits in which every input bit reaches every output bit. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t dpq_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter)
{
    /* Seed and stream are mixed one after the other, so that (1, 2) and (2, 1) are unrelated; the counter passes twice,
     * so that two streams are not the same sequence at different offsets. */
    uint64_t key = mix(mix(seed + GOLDEN) + stream * GOLDEN + 1);
    return mix(mix(key + counter * GOLDEN) ^ (key >> 32 | key << 32));
}

uint64_t dpq_rng_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)dpq_rng_u64(seed, stream, counter) * bound) >> 64);
}
