/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax of a block of attention scores (cpu_softmax.h). */
#include "cpu_softmax.h"

#include <math.h>

#include "cpu_kernels.h"

dpq_attention_block dpq_attention_block_at(int64_t index, int64_t tokens, int64_t window)
{
    int64_t query = index * DPQ_QUERY_BLOCK;
    int64_t rows = tokens - query < DPQ_QUERY_BLOCK ? tokens - query : DPQ_QUERY_BLOCK;
    int64_t key = window > 0 && query >= window ? (query - window + 1) / DPQ_KEY_ALIGN * DPQ_KEY_ALIGN : 0;
    return (dpq_attention_block){.query = query, .rows = rows, .key = key, .keys = query + rows - key};
}

/* p[0..n) = exp(scale (s - max)) in fp32; returns their sum, lanes in a fixed order. */
DPQ_HOT
static float softmax_row(float *restrict s, int64_t n, float scale)
{
    float peak[DPQ_LANES], total[DPQ_LANES];
    for (int l = 0; l < DPQ_LANES; l++) {
        peak[l] = -INFINITY;
        total[l] = 0.0f;
    }
    int64_t whole = n - n % DPQ_LANES;
    for (int64_t i = 0; i < whole; i += DPQ_LANES) {
        for (int l = 0; l < DPQ_LANES; l++) {
            peak[l] = s[i + l] > peak[l] ? s[i + l] : peak[l];
        }
    }
    for (int64_t i = whole; i < n; i++) {
        peak[i - whole] = s[i] > peak[i - whole] ? s[i] : peak[i - whole];
    }
    float max = peak[0];
    for (int l = 1; l < DPQ_LANES; l++) {
        max = peak[l] > max ? peak[l] : max;
    }
    for (int64_t i = 0; i < whole; i += DPQ_LANES) {
        for (int l = 0; l < DPQ_LANES; l++) {
            s[i + l] = dpq_exp_f32((s[i + l] - max) * scale);
            total[l] += s[i + l];
        }
    }
    for (int64_t i = whole; i < n; i++) {
        s[i] = dpq_exp_f32((s[i] - max) * scale);
        total[i - whole] += s[i];
    }
    for (int width = DPQ_LANES / 2; width > 0; width /= 2) {
        for (int l = 0; l < width; l++) {
            total[l] += total[l + width];
        }
    }
    return total[0];
}

DPQ_HOT
static void narrow_row(const float *restrict s, int64_t n, uint16_t *restrict p)
{
    for (int64_t i = 0; i < n; i++) {
        p[i] = dpq_f32_to_bf16(s[i]);
    }
}

void dpq_softmax_block(const dpq_attention_shape *shape, const dpq_attention_block *block, float *scores,
                       uint16_t *narrow, float *inverse_sum)
{
    int64_t window = shape->window, keys = block->keys;
    for (int64_t r = 0; r < block->rows; r++) {
        float *s = scores + r * keys;
        int64_t query = block->query + r;
        int64_t low = window > 0 && query - window + 1 > block->key ? query - window + 1 - block->key : 0;
        int64_t end = query + 1 - block->key;
        memset(s, 0, (size_t)low * sizeof *s);
        memset(s + end, 0, (size_t)(keys - end) * sizeof *s);
        inverse_sum[r] = 1.0f / softmax_row(s + low, end - low, (float)shape->scale);
        if (narrow != NULL) {
            narrow_row(s, keys, narrow + r * keys);
        }
    }
}
