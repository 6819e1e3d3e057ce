/* SPDX-License-Identifier: Apache-2.0 */
/* Single-threaded matrix products through oneDNN, for use inside tiles of our own parallel loops. */
#ifndef DPQUANT_CPU_GEMM_H
#define DPQUANT_CPU_GEMM_H

#include "dpquant/status.h"
#include "dpquant/tensor.h"

typedef struct dpq_gemm_context dpq_gemm_context;

/* c (M,N) F32 = a (M,K) b (K,N), a and b both BF16 or both F32. Element (i,p) of a is a[i*lda + p], or a[p*lda + i]
 * when a_transposed; b alike. */
typedef struct {
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    bool a_transposed, b_transposed;
    dpq_dtype dtype;
} dpq_gemm_shape;

/* One context a thread; keeps the primitives it has made. */
DPQ_MUST_USE dpq_status dpq_gemm_context_create(dpq_gemm_context **out);
void dpq_gemm_context_destroy(dpq_gemm_context **context);
DPQ_MUST_USE dpq_status dpq_gemm_run(dpq_gemm_context *context, const dpq_gemm_shape *shape, const void *a,
                                     const void *b, float *c);

/* c = beta c + alpha a b, F32, row-major. On the calling thread. */
DPQ_MUST_USE dpq_status dpq_sgemm(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, float alpha,
                                  const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                                  int64_t ldc);

/* What the library is and which instruction set it uses. */
const char *dpq_gemm_library(void);
const char *dpq_gemm_isa(void);
/* bf16 products run natively and faster than f32 (table of processor features). */
bool dpq_gemm_prefers_bf16(void);

#endif
