/* SPDX-License-Identifier: Apache-2.0 */
/* Backward operations for tuning whole blocks. Conventions, errors and repeatability as in backend.h. dX is the
 * gradient of the loss with respect to X, in X's activation type. Formulas: docs/algorithms/backward.md. */
#ifndef DPQUANT_BACKEND_GRAD_H
#define DPQUANT_BACKEND_GRAD_H

#include "dpquant/backend.h"

/* dx (T,K) = dy (T,N) w (N,K); with ACCUMULATE dx += that, rounded once. Product type as in dpq_op_linear. */
DPQ_MUST_USE dpq_status dpq_op_linear_backward(dpq_backend *be, const dpq_tensor *dy, const dpq_weight *weight,
                                               bool accumulate, dpq_tensor *dx);

/* Weight gradient of one sample, c = dy^T x (N,K), added exactly: sums[i] += rint(c[i] * 2^-exponent) for every entry,
 * rounded once from the fp32 product. *peak = max |c| of this sample (exact, for any tiling). When *peak * 2^-exponent
 * >= LIMIT (a power of two <= 2^30) the sums are unspecified and the caller repeats the step with a larger exponent. A
 * non-finite product is DPQ_E_NUMERIC. dy (T,N), x (T,K) act of one type; COMPUTE as in dpq_op_attention. */
DPQ_MUST_USE dpq_status dpq_op_weight_gradient(dpq_backend *be, const dpq_tensor *dy, const dpq_tensor *x,
                                               dpq_compute compute, int exponent, double limit, int32_t *sums,
                                               double *peak);

/* dx of dpq_op_rmsnorm at x: r = rsqrt(mean(x^2) + eps), t = gamma dy; dx = r t - x r^3 mean(t x); with ACCUMULATE
 * added to dx. */
DPQ_MUST_USE dpq_status dpq_op_rmsnorm_backward(dpq_backend *be, const dpq_tensor *x, const dpq_tensor *gamma,
                                                double eps, int64_t groups, const dpq_tensor *dy, bool accumulate,
                                                dpq_tensor *dx);
/* dq (T,HEADS*D), dk, dv (T,KV_HEADS*D) of dpq_op_attention; o is its output, d_o the gradient of it. The probabilities
 * are recomputed block by block, never stored whole. dk and dv add the query heads of a group in order. */
DPQ_MUST_USE dpq_status dpq_op_attention_backward(dpq_backend *be, const dpq_tensor *q, const dpq_tensor *k,
                                                  const dpq_tensor *v, const dpq_tensor *o, const dpq_tensor *d_o,
                                                  const dpq_attention_shape *shape, dpq_tensor *dq, dpq_tensor *dk,
                                                  dpq_tensor *dv);
/* y = silu(gate) up: dgate = dy up sig (1 + gate (1 - sig)), dup = dy silu(gate); dgate may be gate, dup may be up. */
DPQ_MUST_USE dpq_status dpq_op_silu_mul_backward(dpq_backend *be, const dpq_tensor *gate, const dpq_tensor *up,
                                                 const dpq_tensor *dy, dpq_tensor *dgate, dpq_tensor *dup);
/* Squared error of one sample: *loss = sum over rows t < ROWS of (y - target)^2, fp64 in a fixed order; dy (T,C) =
 * factor * 2 (y - target) there, zero in other rows. With SUPPRESS > 0 the SUPPRESS elements of largest |y - target|
 * among these rows (ties: lower index first) count neither in loss nor gradient. */
DPQ_MUST_USE dpq_status dpq_op_squared_error(dpq_backend *be, const dpq_tensor *y, const dpq_tensor *target,
                                             int64_t rows, int64_t suppress, double factor, dpq_tensor *dy,
                                             double *loss);

/* CALLBACK(context) runs on the thread that called the operation, now and then between tiles: lets communication
 * progress. NULL: none. */
void dpq_backend_set_idle(dpq_backend *be, void (*callback)(void *context), void *context);

#endif
