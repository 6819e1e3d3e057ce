/* SPDX-License-Identifier: Apache-2.0 */
/* A fast 64-bit fingerprint of memory, for finding differences between ranks; not for identities of files (SHA-256 in
 * io). */
#include "dpquant/hash.h"

#include <string.h>

#define LANES 4

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    return x;
}

uint64_t dpq_hash64(uint64_t seed, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;
    uint64_t lane[LANES], word, tail = 0;
    for (int l = 0; l < LANES; l++) {
        lane[l] = mix(seed + 0x9e3779b97f4a7c15u * (uint64_t)(l + 1));
    }
    size_t whole = n / (LANES * sizeof word) * (LANES * sizeof word);
    for (size_t i = 0; i < whole; i += LANES * sizeof word) {
        for (int l = 0; l < LANES; l++) {
            memcpy(&word, p + i + (size_t)l * sizeof word, sizeof word);
            lane[l] = (lane[l] ^ word) * 0x9fb21c651e98df25u;
            lane[l] ^= lane[l] >> 35;
        }
    }
    for (size_t i = whole; i < n; i++) {
        tail = (tail ^ p[i]) * 0x100000001b3u;
    }
    uint64_t hash = mix(tail ^ (uint64_t)n);
    for (int l = 0; l < LANES; l++) {
        hash = mix(hash ^ lane[l]);
    }
    return hash;
}
