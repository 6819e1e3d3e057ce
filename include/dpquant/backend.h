/* SPDX-License-Identifier: Apache-2.0 */
/* Numerical operations behind one table (src/backend/backend_ops.h). Letters: T tokens, C width, K inputs, N outputs of
 * a linear, H heads, D head width, V vocabulary. Activations ("act") are BF16 or F32; weights are (N,K) row-major. All:
 * Collective: no.  Async: complete on return.  Repeatable: bit-identical for any number of threads, because tiles
 * follow from shapes only and each tile is computed by one thread.  Errors: DPQ_E_SHAPE naming the op when shapes or
 * types do not fit, DPQ_E_DEVICE when the library below fails, DPQ_E_MEMORY. */
#ifndef DPQUANT_BACKEND_H
#define DPQUANT_BACKEND_H

#include <stdint.h>

#include "dpquant/alloc.h"
#include "dpquant/status.h"
#include "dpquant/tensor.h"

typedef struct dpq_backend dpq_backend;

/* Type in which products of bf16 values are computed. AUTO: a table from processor features (bf16 with AMX, or AMD with
 * AVX512-BF16; else f32 on widened values); never a timing. */
typedef enum { DPQ_COMPUTE_AUTO, DPQ_COMPUTE_F32, DPQ_COMPUTE_BF16 } dpq_compute;

/* THREADS <= 0: the cores this process may use. Errors: DPQ_E_UNSUPPORTED for an unknown NAME ("cpu"). */
DPQ_MUST_USE dpq_status dpq_backend_create(const char *name, int threads, dpq_backend **out);
void dpq_backend_destroy(dpq_backend **backend);
int dpq_backend_threads(const dpq_backend *backend);
/* Cores the affinity mask of this process allows. */
int dpq_backend_allowed_cores(void);
/* WANTED when positive; else OMP_NUM_THREADS; else one a core this process may use, where ranks of a host that are not
 * bound apart share its cores: SHARING ranks have the same affinity mask (dpq_comm_count_equal of
 * dpq_backend_cores_key). */
int dpq_backend_choose_threads(int64_t wanted, int sharing);
/* Fingerprint of the affinity mask. */
uint64_t dpq_backend_cores_key(void);
const char *dpq_backend_isa(void);          /* "avx512_core_bf16", ... as the matrix library sees it */
const char *dpq_backend_libraries(void);    /* "oneDNN 2.6.3, OpenBLAS 0.3.21 (...)" */
dpq_compute dpq_backend_auto_compute(void); /* what AUTO means here: F32 or BF16 */

/* A weight ready for products: W in the product's type (BF16: bf16 products, x must be BF16; F32: f32 products, x
 * widened). */
typedef struct {
    dpq_tensor w;    /* (N,K) */
    dpq_tensor bias; /* (N) F32, or empty (data NULL) */
} dpq_weight;
/* Product type for a weight of SOURCE type under COMPUTE (never AUTO) and activation type ACT: BF16 only when all three
 * are bf16. */
dpq_dtype dpq_product_dtype(dpq_dtype source, dpq_dtype act, dpq_compute compute);
void dpq_weight_fini(dpq_weight *weight);

/* y (T,N) = x (T,K) w^T + bias; with ACCUMULATE y += that, rounded once to y's type. x act; y act or F32. */
DPQ_MUST_USE dpq_status dpq_op_linear(dpq_backend *be, const dpq_tensor *x, const dpq_weight *weight, bool accumulate,
                                      dpq_tensor *y);
/* y = x * rsqrt(mean(x^2) + eps) * gamma over the last dimension; x, y (T,C) act of one type, gamma (C) F32. In place
 * allowed. GROUPS: each row is GROUPS vectors of C = dim/GROUPS, each normalised alone (q/k norms). */
DPQ_MUST_USE dpq_status dpq_op_rmsnorm(dpq_backend *be, const dpq_tensor *x, const dpq_tensor *gamma, double eps,
                                       int64_t groups, dpq_tensor *y);
/* Rotate pairs (i, i + d/2) of the first d = 2 * cos.dim[1] elements of each of HEADS heads in x (T, HEADS*D), in
 * place. cos, sin (>= T, d/2) F32. */
DPQ_MUST_USE dpq_status dpq_op_rope(dpq_backend *be, dpq_tensor *x, int64_t heads, const dpq_tensor *cos,
                                    const dpq_tensor *sin);
/* Causal attention, softmax in fp32: o (T,HEADS*D) from q (T,HEADS*D), k, v (T,KV_HEADS*D), one act type. Query t sees
 * keys s <= t, and s > t - window when WINDOW > 0. HEADS is a multiple of KV_HEADS. COMPUTE F32 or BF16 (BF16 act
 * only). */
typedef struct {
    int64_t heads, kv_heads, head_dim;
    double scale;
    int64_t window;
    dpq_compute compute;
} dpq_attention_shape;
DPQ_MUST_USE dpq_status dpq_op_attention(dpq_backend *be, const dpq_tensor *q, const dpq_tensor *k, const dpq_tensor *v,
                                         const dpq_attention_shape *shape, dpq_tensor *o);
/* y = silu(gate) * up, elementwise, one act type; y may be gate or up. */
DPQ_MUST_USE dpq_status dpq_op_silu_mul(dpq_backend *be, const dpq_tensor *gate, const dpq_tensor *up, dpq_tensor *y);
/* y (T,C) act = rows IDS of table (V,C) F32/F16/BF16. IDS are checked against V. */
DPQ_MUST_USE dpq_status dpq_op_gather_rows(dpq_backend *be, const dpq_tensor *table, const int32_t *ids, dpq_tensor *y);

/* sumsq (K) F64 = sum over tokens of x^2 of one sample x (T,K) act, in a fixed order. Not finite when x is not. */
DPQ_MUST_USE dpq_status dpq_op_column_sumsq(dpq_backend *be, const dpq_tensor *x, double *sumsq);

/* Hessian sums in exact integers: lower triangle of (K,K) as square tiles of edge DPQ_XTX_TILE (the last row of tiles
 * is not narrower: K is rounded up), tile (i,j), j <= i, at index i(i+1)/2 + j, row-major inside. */
#define DPQ_XTX_TILE 128
int64_t dpq_xtx_tiles_per_edge(int64_t k);
int64_t dpq_xtx_count(int64_t k); /* int64 elements of the whole lower triangle */
/* sums += round(x_s^T x_s / 2^(e_i + e_j)) for each of N samples x_s (T_s,K) act, each rounded once from its fp32
 * product (product type: COMPUTE as in dpq_op_attention). After DPQ_E_NUMERIC (a product is not finite) the sums are
 * unspecified. */
DPQ_MUST_USE dpq_status dpq_op_xtx_accumulate(dpq_backend *be, const dpq_tensor *x, int64_t n, const int32_t *exponent,
                                              dpq_compute compute, int64_t *sums);
/* h (K,K) F64 or F32 full symmetric = scale * sums * 2^(e_i + e_j). */
DPQ_MUST_USE dpq_status dpq_op_xtx_expand(dpq_backend *be, const int64_t *sums, const int32_t *exponent, double scale,
                                          dpq_tensor *h);

/* In place on h (K,K) F32 or F64, symmetric positive definite: on return its upper triangle is U with U^T U = inv(h)
 * (lower triangle zero). Computed as U = P inv(L) P with P h P = L L^T and P the reversal of the order: one
 * factorisation and one triangular inverse. *positive = false when a pivot is not positive or not finite; h is then
 * destroyed.  */
DPQ_MUST_USE dpq_status dpq_op_inverse_factor(dpq_backend *be, dpq_tensor *h, bool *positive);

/* c (M,N) F32 -= a (M,K) F32 b (K,N) F32; row strides as in the tensors (stride[1] == 1). Runs on the calling thread
 * only: meant for use inside a tile of a parallel loop. THREAD is the caller's index in [0, dpq_backend_threads). */
DPQ_MUST_USE dpq_status dpq_op_subtract_product(dpq_backend *be, int thread, const dpq_tensor *a, const dpq_tensor *b,
                                                dpq_tensor *c);

/* Run BODY(context, i, thread, ws) for i in [0,n) over the backend's threads, dynamic dealing; WS is the thread's own
 * workspace (marked and released around each call). The first error by lowest i is returned; the record is this
 * thread's afterwards. */
typedef dpq_status (*dpq_parallel_body)(void *context, int64_t i, int thread, dpq_workspace *ws);
DPQ_MUST_USE dpq_status dpq_backend_parallel(dpq_backend *be, int64_t n, dpq_parallel_body body, void *context);

/* Per row t of logits (T,V) F32: nll[t] = log sum exp(row) - row[target[t]] in fp64 sums over fp32 exponentials;
 * *top[t] = index of the first maximum. */
DPQ_MUST_USE dpq_status dpq_op_nll(dpq_backend *be, const dpq_tensor *logits, const int32_t *target, double *nll,
                                   int32_t *top);
/* Per row: KL(softmax(reference) || softmax(model)) over the whole vocabulary, fp32 logits, fp64 sums; never negative.
 */
DPQ_MUST_USE dpq_status dpq_op_kl(dpq_backend *be, const dpq_tensor *reference, const dpq_tensor *model, double *kl);

/* Measured ceilings of this machine for plans and benchmarks: GFLOP/s of a large product on all threads in the given
 * type. */
DPQ_MUST_USE dpq_status dpq_backend_measure_gflops(dpq_backend *be, dpq_compute compute, double seconds,
                                                   double *gflops);

#endif
