/* SPDX-License-Identifier: Apache-2.0 */
/* A fast 64-bit fingerprint of memory: equal bytes give equal values on all ranks of one byte order. */
#ifndef DPQUANT_HASH_H
#define DPQUANT_HASH_H

#include <stddef.h>
#include <stdint.h>

/* SEED chains calls: pass the previous value to cover several pieces. */
uint64_t dpq_hash64(uint64_t seed, const void *bytes, size_t n);

#endif
