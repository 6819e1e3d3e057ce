/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of src/quant share: rounding helpers for hot loops, the row-by-row RTN that GPTQ falls back to,
 * argument checks. */
#ifndef DPQUANT_QUANT_PRIV_H
#define DPQUANT_QUANT_PRIV_H

#include <string.h>

#include "dpquant/algo.h"

/* Hot loops are compiled for several instruction sets and chosen at load time. No contraction, no reassociation: the
 * results are the same on all of them. */
#ifndef DPQ_HOT
#if defined(DPQ_NO_CLONES) || !defined(__x86_64__)
#define DPQ_HOT
#else
#define DPQ_HOT __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif
#endif
#define QUANT_INLINE static inline __attribute__((always_inline))

/* Round to nearest, ties to even, for |x| <= 2^22: rintf() by adding and removing 1.5 * 2^23, which vectorises on every
 * instruction set (rintf is a library call below SSE4.1). */
QUANT_INLINE float quant_round(float x)
{
    const float shift = 12582912.0f;
    return (x + shift) - shift;
}

QUANT_INLINE float quant_clamp(float x, float low, float high)
{
    x = x < low ? low : x;
    return x > high ? high : x;
}

/* A finite fp32 value rounded to bf16, as fp32. */
QUANT_INLINE float quant_round_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Code of w as compressed-tensors computes it: rne(clamp(w / s + z)); the bounds are integers. */
QUANT_INLINE float quant_code(float w, float scale, float zero, float low, float high)
{
    return quant_round(quant_clamp(w / scale + zero, low, high));
}

static inline int quant_code_min(const dpq_scheme *scheme)
{
    return -(1 << (scheme->bits - 1));
}

static inline int quant_code_max(const dpq_scheme *scheme)
{
    return (1 << (scheme->bits - 1)) - 1;
}

extern const dpq_linear_algo_ops dpq_rtn_ops;  /* rtn.c */
extern const dpq_linear_algo_ops dpq_gptq_ops; /* gptq.c */

/* Shapes, types and row range of a solve. Errors: DPQ_E_SHAPE, DPQ_E_UNSUPPORTED (type of w). */
DPQ_MUST_USE dpq_status dpq_algo_check_solve(const dpq_solve_input *input, int64_t begin, int64_t end,
                                             const dpq_qweight *out);
/* Row ROW of w (K) as F32. Errors: DPQ_E_NUMERIC for a non-finite weight, naming module, row and column. */
DPQ_MUST_USE dpq_status dpq_algo_load_row(const dpq_solve_input *input, int64_t row, float *dst);

/* rtn.c: rows [begin, end) on contiguous groups; g_idx, if there is one, becomes column / group width. importance (K)
 * or NULL. */
DPQ_MUST_USE dpq_status dpq_rtn_solve_rows(dpq_backend *be, const dpq_search_options *search, const float *importance,
                                           const dpq_solve_input *input, int64_t begin, int64_t end, dpq_qweight *out);

/* gptq_factor.c */
DPQ_MUST_USE dpq_status dpq_gptq_prepare(const dpq_algo_options *options, dpq_backend *be, const dpq_stage_stats *stats,
                                         dpq_factor *factor);

#endif
