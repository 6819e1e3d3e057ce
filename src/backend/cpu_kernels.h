/* SPDX-License-Identifier: Apache-2.0 */
/* What the loops of the CPU backend share: rows to and from fp32, an exponential that vectorises, sums in a fixed
 * order; and the operations of cpu_elementwise.c and cpu_loss.c. Everything inline is plain C, so that each clone of a
 * DPQ_HOT function compiles it for its own instruction set, with the same results on all of them. */
#ifndef DPQUANT_CPU_KERNELS_H
#define DPQUANT_CPU_KERNELS_H

#include <stdint.h>
#include <string.h>

#include "backend_ops.h"
#include "dpquant/half.h"

#define DPQ_INLINE static inline __attribute__((always_inline))

/* ---- operations (arguments are checked by dispatch.c) ---- */
dpq_status dpq_rmsnorm_cpu(dpq_backend *be, const dpq_tensor *x, const dpq_tensor *gamma, double eps, int64_t groups,
                           dpq_tensor *y);
dpq_status dpq_rope_cpu(dpq_backend *be, dpq_tensor *x, int64_t heads, const dpq_tensor *cos, const dpq_tensor *sin);
dpq_status dpq_silu_mul_cpu(dpq_backend *be, const dpq_tensor *gate, const dpq_tensor *up, dpq_tensor *y);
dpq_status dpq_gather_rows_cpu(dpq_backend *be, const dpq_tensor *table, const int32_t *ids, dpq_tensor *y);
dpq_status dpq_column_sumsq_cpu(dpq_backend *be, const dpq_tensor *x, double *sumsq);
dpq_status dpq_linear_cpu(dpq_backend *be, const dpq_tensor *x, const dpq_weight *weight, bool accumulate,
                          dpq_tensor *y);
dpq_status dpq_attention_cpu(dpq_backend *be, const dpq_tensor *q, const dpq_tensor *k, const dpq_tensor *v,
                             const dpq_attention_shape *shape, dpq_tensor *o);
dpq_status dpq_xtx_accumulate_cpu(dpq_backend *be, const dpq_tensor *x, int64_t n, const int32_t *exponent,
                                  dpq_compute compute, int64_t *sums);
dpq_status dpq_xtx_expand_cpu(dpq_backend *be, const int64_t *sums, const int32_t *exponent, double scale,
                              dpq_tensor *h);
dpq_status dpq_inverse_factor_cpu(dpq_backend *be, dpq_tensor *h, bool *positive);
dpq_status dpq_subtract_product_cpu(dpq_backend *be, int thread, const dpq_tensor *a, const dpq_tensor *b,
                                    dpq_tensor *c);
/* x (T,K) as F32 in the workspace of thread 0, which the caller marks and releases. */
dpq_status dpq_widen_cpu(dpq_backend *be, const dpq_tensor *x, float **out);
/* x as an operand of products of type DTYPE, with its row stride: as it is, or widened as above. */
dpq_status dpq_operand_cpu(dpq_backend *be, const dpq_tensor *x, dpq_dtype dtype, const void **data, int64_t *ld);
dpq_status dpq_nll_cpu(dpq_backend *be, const dpq_tensor *logits, const int32_t *target, double *nll, int32_t *top);
dpq_status dpq_kl_cpu(dpq_backend *be, const dpq_tensor *reference, const dpq_tensor *model, double *kl);
dpq_status dpq_linear_backward_cpu(dpq_backend *be, const dpq_tensor *dy, const dpq_weight *weight, bool accumulate,
                                   dpq_tensor *dx);
dpq_status dpq_weight_gradient_cpu(dpq_backend *be, const dpq_tensor *dy, const dpq_tensor *x, dpq_compute compute,
                                   int exponent, double limit, int32_t *sums, double *peak);
dpq_status dpq_rmsnorm_backward_cpu(dpq_backend *be, const dpq_tensor *x, const dpq_tensor *gamma, double eps,
                                    int64_t groups, const dpq_tensor *dy, bool accumulate, dpq_tensor *dx);
dpq_status dpq_attention_backward_cpu(dpq_backend *be, const dpq_attention_operands *in,
                                      const dpq_attention_shape *shape, dpq_tensor *dq, dpq_tensor *dk, dpq_tensor *dv);
dpq_status dpq_silu_mul_backward_cpu(dpq_backend *be, const dpq_tensor *gate, const dpq_tensor *up,
                                     const dpq_tensor *dy, dpq_tensor *dgate, dpq_tensor *dup);
dpq_status dpq_squared_error_cpu(dpq_backend *be, const dpq_tensor *y, const dpq_tensor *target, int64_t rows,
                                 int64_t suppress, double factor, dpq_tensor *dy, double *loss);

/* ---- rows ---- */

/* First byte of row I of a tensor of rank 2. */
DPQ_INLINE void *dpq_row_at(const dpq_tensor *t, int64_t i)
{
    return (char *)t->data + (size_t)(i * t->stride[0]) * dpq_dtype_bytes(t->dtype);
}

/* N values of a row of DTYPE (BF16, else F32) widened to f32. */
DPQ_INLINE void dpq_row_load(const void *row, dpq_dtype dtype, int64_t n, float *restrict dst)
{
    if (dtype == DPQ_DTYPE_BF16) {
        const uint16_t *restrict src = row;
        for (int64_t i = 0; i < n; i++) {
            dst[i] = dpq_bf16_to_f32(src[i]);
        }
    } else {
        memcpy(dst, row, (size_t)n * sizeof(float));
    }
}

/* N f32 values rounded once to a row of DTYPE (BF16, else F32). */
DPQ_INLINE void dpq_row_store(const float *restrict src, int64_t n, dpq_dtype dtype, void *row)
{
    if (dtype == DPQ_DTYPE_BF16) {
        uint16_t *restrict dst = row;
        for (int64_t i = 0; i < n; i++) {
            dst[i] = dpq_f32_to_bf16(src[i]);
        }
    } else {
        memcpy(row, src, (size_t)n * sizeof(float));
    }
}

/* ---- sums: DPQ_LANES partial sums, lane = index modulo DPQ_LANES, combined by halving; the order is part of the
 * result ---- */
#define DPQ_LANES 16

DPQ_INLINE double dpq_lanes_total_f64(const double *lanes)
{
    double eight[8], four[4];
    for (int l = 0; l < 8; l++) {
        eight[l] = lanes[l] + lanes[l + 8];
    }
    for (int l = 0; l < 4; l++) {
        four[l] = eight[l] + eight[l + 4];
    }
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* ---- exponential ---- */

/* e^x, within 2 units in the last place (measured: 1.0), subnormal results included; 0 below -104, infinite
 * above 88.73, NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 is split so that n * LN2_HIGH is exact; 2^n is
 * applied in two factors so that the first product never leaves the normal range. */
DPQ_INLINE float dpq_exp_f32(float x)
{
    const float shifter = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits of the sum */
    float z = x < -104.0f ? -104.0f : x;
    z = z > 89.0f ? 89.0f : z;
    float shifted = z * 0x1.715476p0f + shifter;
    float n = shifted - shifter;
    float r = (z - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = (p * (r * r) + r) + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    int32_t exponent = (int32_t)(bits - 0x4b400000u);
    int32_t low = exponent >> 1;
    uint32_t low_bits = (uint32_t)(low + 127) << 23;
    uint32_t high_bits = (uint32_t)(exponent - low + 127) << 23;
    float low_factor, high_factor;
    memcpy(&low_factor, &low_bits, sizeof low_factor);
    memcpy(&high_factor, &high_bits, sizeof high_factor);
    return p * low_factor * high_factor;
}

#endif
