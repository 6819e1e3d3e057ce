/* SPDX-License-Identifier: Apache-2.0 */
/* Counter-based random numbers: a pure function of (seed, stream, counter), the same on any rank and thread count. */
#ifndef DPQUANT_RNG_H
#define DPQUANT_RNG_H

#include <stdint.h>

uint64_t dpq_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter);
/* Uniform in [0, bound), bound > 0, by rejection-free multiplication (bias below 2^-32 for bound < 2^32). */
uint64_t dpq_rng_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t bound);

#endif
