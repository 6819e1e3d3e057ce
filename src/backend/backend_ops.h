/* SPDX-License-Identifier: Apache-2.0 */
/* The table a backend fills, and what its implementation files share. dispatch.c checks arguments once for all
 * backends. */
#ifndef DPQUANT_BACKEND_OPS_H
#define DPQUANT_BACKEND_OPS_H

#include "dpquant/backend.h"
#include "dpquant/backend_grad.h"

/* What the backward pass of attention reads: the inputs, the output, the gradient of the output. */
typedef struct {
    const dpq_tensor *q, *k, *v, *o, *d_o;
} dpq_attention_operands;

typedef struct {
    const char *name;
    dpq_status (*linear)(dpq_backend *be, const dpq_tensor *x, const dpq_weight *weight, bool accumulate,
                         dpq_tensor *y);
    dpq_status (*rmsnorm)(dpq_backend *be, const dpq_tensor *x, const dpq_tensor *gamma, double eps, int64_t groups,
                          dpq_tensor *y);
    dpq_status (*rope)(dpq_backend *be, dpq_tensor *x, int64_t heads, const dpq_tensor *cos, const dpq_tensor *sin);
    dpq_status (*attention)(dpq_backend *be, const dpq_tensor *q, const dpq_tensor *k, const dpq_tensor *v,
                            const dpq_attention_shape *shape, dpq_tensor *o);
    dpq_status (*silu_mul)(dpq_backend *be, const dpq_tensor *gate, const dpq_tensor *up, dpq_tensor *y);
    dpq_status (*gather_rows)(dpq_backend *be, const dpq_tensor *table, const int32_t *ids, dpq_tensor *y);
    dpq_status (*column_sumsq)(dpq_backend *be, const dpq_tensor *x, double *sumsq);
    dpq_status (*xtx_accumulate)(dpq_backend *be, const dpq_tensor *x, int64_t n, const int32_t *exponent,
                                 dpq_compute compute, int64_t *sums);
    dpq_status (*xtx_expand)(dpq_backend *be, const int64_t *sums, const int32_t *exponent, double scale,
                             dpq_tensor *h);
    dpq_status (*inverse_factor)(dpq_backend *be, dpq_tensor *h, bool *positive);
    dpq_status (*subtract_product)(dpq_backend *be, int thread, const dpq_tensor *a, const dpq_tensor *b,
                                   dpq_tensor *c);
    dpq_status (*nll)(dpq_backend *be, const dpq_tensor *logits, const int32_t *target, double *nll, int32_t *top);
    dpq_status (*kl)(dpq_backend *be, const dpq_tensor *reference, const dpq_tensor *model, double *kl);
    dpq_status (*linear_backward)(dpq_backend *be, const dpq_tensor *dy, const dpq_weight *weight, bool accumulate,
                                  dpq_tensor *dx);
    dpq_status (*weight_gradient)(dpq_backend *be, const dpq_tensor *dy, const dpq_tensor *x, dpq_compute compute,
                                  int exponent, double limit, int32_t *sums, double *peak);
    dpq_status (*rmsnorm_backward)(dpq_backend *be, const dpq_tensor *x, const dpq_tensor *gamma, double eps,
                                   int64_t groups, const dpq_tensor *dy, bool accumulate, dpq_tensor *dx);
    dpq_status (*attention_backward)(dpq_backend *be, const dpq_attention_operands *in,
                                     const dpq_attention_shape *shape, dpq_tensor *dq, dpq_tensor *dk, dpq_tensor *dv);
    dpq_status (*silu_mul_backward)(dpq_backend *be, const dpq_tensor *gate, const dpq_tensor *up, const dpq_tensor *dy,
                                    dpq_tensor *dgate, dpq_tensor *dup);
    dpq_status (*squared_error)(dpq_backend *be, const dpq_tensor *y, const dpq_tensor *target, int64_t rows,
                                int64_t suppress, double factor, dpq_tensor *dy, double *loss);
} dpq_backend_ops;

extern const dpq_backend_ops dpq_backend_cpu_ops; /* cpu_backend.c */

struct dpq_gemm_context; /* cpu_gemm.c: products prepared by one thread */

struct dpq_backend {
    const dpq_backend_ops *ops;
    int threads;
    struct dpq_gemm_context **gemm; /* one a thread */
    dpq_workspace **workspace;      /* one a thread */
    void (*idle)(void *context);    /* called between tiles, or NULL */
    void *idle_context;
};

/* Hot loops are compiled for several instruction sets and chosen at load time. No contraction, no reassociation: the
 * results are the same on all of them. */
#if defined(DPQ_NO_CLONES) || !defined(__x86_64__)
#define DPQ_HOT
#else
#define DPQ_HOT __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif

/* Rows [begin, end) cut into tiles of FIXED length so that threads never shape a result. */
static inline int64_t dpq_tile_count(int64_t n, int64_t tile)
{
    return (n + tile - 1) / tile;
}

/* Length of tiles that cut N into as few pieces of at most MAX as possible, of about the same length: a multiple of 16
 * (MAX is one). */
static inline int64_t dpq_tile_even(int64_t n, int64_t max)
{
    int64_t pieces = dpq_tile_count(n > 0 ? n : 1, max);
    return dpq_tile_count(dpq_tile_count(n, pieces), 16) * 16;
}

#endif
