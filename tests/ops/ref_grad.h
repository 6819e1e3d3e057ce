/* SPDX-License-Identifier: Apache-2.0 */
/* Definitions of the backward operations in plain fp64 loops, as ref_ops.h has those of the forward ones. */
#ifndef DPQUANT_REF_GRAD_H
#define DPQUANT_REF_GRAD_H

#include <stdbool.h>
#include <stdint.h>

/* dx (T,K) = dy (T,N) w (N,K), plus what dx held when ACCUMULATE. */
void ref_linear_backward(const double *dy, const double *w, bool accumulate, int64_t t, int64_t n, int64_t k,
                         double *dx, double *magnitude);
/* c (N,K) = dy^T x. */
void ref_weight_gradient(const double *dy, const double *x, int64_t t, int64_t n, int64_t k, double *c,
                         double *magnitude);
/* dx of ref_rmsnorm, plus what dx held when ACCUMULATE. */
void ref_rmsnorm_backward(const double *x, const double *gamma, double eps, int64_t groups, int64_t t, int64_t c,
                          const double *dy, bool accumulate, double *dx, double *magnitude);

typedef struct {
    int64_t t, heads, kv_heads, d, window;
    double scale;
    const double *q, *k, *v, *o, *d_o;
    double *dq, *dk, *dv;                /* zeroed by the caller */
    double *dq_size, *dk_size, *dv_size; /* zeroed by the caller */
} ref_attention_gradients;
void ref_attention_backward(const ref_attention_gradients *a);
void ref_silu_mul_backward(const double *gate, const double *up, const double *dy, int64_t n, double *dgate,
                           double *dup, double *dgate_size, double *dup_size);
/* Differences are rounded to fp32; the SUPPRESS largest, found by sorting, do not count. dy is (T,C), T >= ROWS. */
double ref_squared_error(const double *y, const double *target, int64_t t, int64_t rows, int64_t c, int64_t suppress,
                         double factor, double *dy);

#endif
