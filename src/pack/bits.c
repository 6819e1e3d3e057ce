/* SPDX-License-Identifier: Apache-2.0 */
/* Dense bit stream of codes of 1 to 8 bits, least significant bit first, in 32-bit words. */
#include "dpquant/pack.h"

int64_t dpq_bits_words(int64_t n, int bits)
{
    return (n * bits + 31) / 32;
}

/* Code i occupies stream bits [i*b, (i+1)*b); stream bit t is bit t mod 32 of word t div 32. PENDING holds the FILL
 * lowest stream bits not yet written. Bits of a code above b are dropped, so that a wrong code cannot reach its
 * neighbours. */
void dpq_bits_pack(const uint8_t *codes, int64_t n, int bits, uint32_t *words)
{
    DPQ_ASSERT(bits >= 1 && bits <= 8);
    uint64_t mask = (1u << bits) - 1u;
    uint64_t pending = 0;
    int fill = 0;
    for (int64_t i = 0; i < n; i++) {
        pending |= ((uint64_t)codes[i] & mask) << fill;
        fill += bits;
        if (fill >= 32) {
            *words++ = (uint32_t)pending;
            pending >>= 32;
            fill -= 32;
        }
    }
    if (fill > 0) {
        *words = (uint32_t)pending;
    }
}

void dpq_bits_unpack(const uint32_t *words, int64_t n, int bits, uint8_t *codes)
{
    DPQ_ASSERT(bits >= 1 && bits <= 8);
    uint64_t mask = (1u << bits) - 1u;
    uint64_t pending = 0;
    int fill = 0;
    for (int64_t i = 0; i < n; i++) {
        if (fill < bits) {
            pending |= (uint64_t)*words++ << fill;
            fill += 32;
        }
        codes[i] = (uint8_t)(pending & mask);
        pending >>= bits;
        fill -= bits;
    }
}
