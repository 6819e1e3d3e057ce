/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax of a block of attention scores, shared by the forward and the backward pass: both see the same probabilities.
 */
#ifndef DPQUANT_CPU_SOFTMAX_H
#define DPQUANT_CPU_SOFTMAX_H

#include <stdint.h>

#include "dpquant/backend.h"

#define DPQ_QUERY_BLOCK 128
#define DPQ_KEY_ALIGN   64 /* first key of a windowed block is rounded down to this: fewer distinct shapes */

/* Queries [query, query + rows) and the keys [key, key + keys) that any of them sees. */
typedef struct {
    int64_t query, rows, key, keys;
} dpq_attention_block;

dpq_attention_block dpq_attention_block_at(int64_t index, int64_t tokens, int64_t window);

/* scores (rows, keys), contiguous: each row becomes exp(scale (s - max)), zero where the query does not see the key;
 * its sum's reciprocal goes to inverse_sum. NARROW, unless NULL: the same values as bf16. */
void dpq_softmax_block(const dpq_attention_shape *shape, const dpq_attention_block *block, float *scores,
                       uint16_t *narrow, float *inverse_sum);

#endif
