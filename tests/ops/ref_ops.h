/* SPDX-License-Identifier: Apache-2.0 */
/* Definition of every operation of include/dpquant/backend.h as a plain loop in fp64; never optimised. Matrices are
 * contiguous and row-major, with the letters of that header. MAGNITUDE, where there is one, has the shape of the
 * result: the size of the terms that cancel in it, so that a rounding error may be stated in steps of MAGNITUDE. */
#ifndef DPQUANT_REF_OPS_H
#define DPQUANT_REF_OPS_H

#include <stdbool.h>
#include <stdint.h>

/* y (T,N) = x (T,K) w (N,K)^T + bias (N, or NULL) + what y held when ACCUMULATE. */
void ref_linear(const double *x, const double *w, const double *bias, bool accumulate, int64_t t, int64_t k, int64_t n,
                double *y, double *magnitude);
/* y = x / sqrt(mean(x^2) + eps) * gamma for each of GROUPS vectors of a row of C. */
void ref_rmsnorm(const double *x, const double *gamma, double eps, int64_t groups, int64_t t, int64_t c, double *y);
/* In place on x (T, HEADS*D): pairs (i, i + half) of each head turned by the angle with cosine cos[t][i], sine
 * sin[t][i]. */
void ref_rope(double *x, int64_t t, int64_t heads, int64_t d, int64_t half, const double *cos, const double *sin,
              double *magnitude);
/* Causal, grouped-query, optionally windowed attention. */
void ref_attention(const double *q, const double *k, const double *v, int64_t t, int64_t heads, int64_t kv_heads,
                   int64_t d, double scale, int64_t window, double *o, double *magnitude);
/* y = gate / (1 + e^-gate) * up, N elements. */
void ref_silu_mul(const double *gate, const double *up, int64_t n, double *y);
void ref_gather_rows(const double *table, const int32_t *ids, int64_t t, int64_t c, double *y);
/* Tokens in order. */
void ref_column_sumsq(const double *x, int64_t t, int64_t k, double *sumsq);
/* h (K,K) += x^T x of one sample (T,K), not rounded. MAGNITUDE += |x|^T |x|. */
void ref_xtx(const double *x, int64_t t, int64_t k, double *h, double *magnitude);
/* Position of entry (i,j), j <= i, in the tiled lower triangle of the header. */
int64_t ref_xtx_index(int64_t i, int64_t j, int64_t tile);
/* u (N,N) upper with u^T u = inv(h): inverse by Gauss-Jordan elimination, then its Cholesky factor. false: not positive
 * definite. */
bool ref_inverse_factor(const double *h, int64_t n, double *u);
/* c (M,N) -= a (M,K) b (K,N). */
void ref_subtract_product(const double *a, const double *b, int64_t m, int64_t k, int64_t n, double *c,
                          double *magnitude);
/* One row of logits (V). */
double ref_nll(const double *row, int64_t v, int32_t target, int32_t *top, double *magnitude);
double ref_kl(const double *reference, const double *model, int64_t v, double *magnitude);

#endif
