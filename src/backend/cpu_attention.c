/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention on the CPU: one tile is a head and a block of queries; its scores over the keys it sees, softmax in fp32,
 * and the product with the values. Keys no query of the block sees are never computed. */
#include <math.h>

#include "cpu_gemm.h"
#include "cpu_kernels.h"

#define QUERY_BLOCK 128
#define KEY_ALIGN 64 /* first key of a windowed block is rounded down to this: fewer distinct shapes */

typedef struct {
    dpq_backend *be;
    const dpq_attention_shape *shape;
    dpq_dtype dtype; /* of the products */
    const void *q, *k, *v;
    int64_t tokens, ldq, ldk, ldv, blocks;
    dpq_tensor *o;
} attention_job;

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

DPQ_HOT
static void scale_row(const float *restrict c, int64_t n, float factor, dpq_dtype dtype, void *restrict o)
{
    float row[1024];
    for (int64_t i = 0; i < n; i++) {
        row[i] = c[i] * factor;
    }
    dpq_row_store(row, n, dtype, o);
}

/* Scores of the block to probabilities (not yet divided by their sum), zero where a query does not see the key. */
static void softmax_block(const attention_job *job, int64_t first_query, int64_t rows, int64_t first_key, int64_t keys,
                          float *scores, uint16_t *narrow, float *inverse_sum)
{
    int64_t window = job->shape->window;
    for (int64_t r = 0; r < rows; r++) {
        float *s = scores + r * keys;
        int64_t query = first_query + r;
        int64_t low = window > 0 && query - window + 1 > first_key ? query - window + 1 - first_key : 0;
        int64_t end = query + 1 - first_key;
        memset(s, 0, (size_t)low * sizeof *s);
        memset(s + end, 0, (size_t)(keys - end) * sizeof *s);
        inverse_sum[r] = 1.0f / softmax_row(s + low, end - low, (float)job->shape->scale);
        if (narrow != NULL) {
            narrow_row(s, keys, narrow + r * keys);
        }
    }
}

static dpq_status attention_tile(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const attention_job *job = context;
    const dpq_attention_shape *shape = job->shape;
    size_t elem = dpq_dtype_bytes(job->dtype);
    int64_t head = i / job->blocks, d = shape->head_dim;
    int64_t kv_head = head / (shape->heads / shape->kv_heads);
    int64_t query = (job->blocks - 1 - i % job->blocks) * QUERY_BLOCK; /* longest first */
    int64_t rows = job->tokens - query < QUERY_BLOCK ? job->tokens - query : QUERY_BLOCK;
    int64_t key = shape->window > 0 && query >= shape->window ? (query - shape->window + 1) / KEY_ALIGN * KEY_ALIGN : 0;
    int64_t keys = query + rows - key;
    void *scores, *narrow = NULL, *out, *inverse_sum;
    DPQ_TRY(dpq_workspace_alloc(ws, rows * keys, sizeof(float), &scores));
    if (job->dtype == DPQ_DTYPE_BF16) {
        DPQ_TRY(dpq_workspace_alloc(ws, rows * keys, sizeof(uint16_t), &narrow));
    }
    DPQ_TRY(dpq_workspace_alloc(ws, rows * d, sizeof(float), &out));
    DPQ_TRY(dpq_workspace_alloc(ws, rows, sizeof(float), &inverse_sum));
    const char *q = (const char *)job->q + (size_t)(query * job->ldq + head * d) * elem;
    const char *k = (const char *)job->k + (size_t)(key * job->ldk + kv_head * d) * elem;
    const char *v = (const char *)job->v + (size_t)(key * job->ldv + kv_head * d) * elem;
    const dpq_gemm_shape qk = {.m = rows, .n = keys, .k = d, .lda = job->ldq, .ldb = job->ldk, .ldc = keys,
                               .b_transposed = true, .dtype = job->dtype};
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &qk, q, k, scores));
    softmax_block(job, query, rows, key, keys, scores, narrow, inverse_sum);
    const dpq_gemm_shape pv = {.m = rows, .n = d, .k = keys, .lda = keys, .ldb = job->ldv, .ldc = d, .dtype = job->dtype};
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &pv, narrow != NULL ? narrow : scores, v, out));
    size_t o_elem = dpq_dtype_bytes(job->o->dtype);
    for (int64_t r = 0; r < rows; r++) {
        scale_row((float *)out + r * d, d, ((float *)inverse_sum)[r], job->o->dtype,
                  (char *)dpq_row_at(job->o, query + r) + (size_t)(head * d) * o_elem);
    }
    return DPQ_OK;
}

/* Operand in the product's type: as it is, or widened. */
static dpq_status operand(dpq_backend *be, const dpq_tensor *x, dpq_dtype dtype, const void **data, int64_t *ld)
{
    *data = x->data;
    *ld = x->stride[0];
    if (x->dtype != dtype) {
        float *wide;
        DPQ_TRY(dpq_widen_cpu(be, x, &wide));
        *data = wide;
        *ld = x->dim[1];
    }
    return DPQ_OK;
}

dpq_status dpq_attention_cpu(dpq_backend *be, const dpq_tensor *q, const dpq_tensor *k, const dpq_tensor *v,
                             const dpq_attention_shape *shape, dpq_tensor *o)
{
    attention_job job = {.be = be, .shape = shape, .tokens = q->dim[0], .o = o};
    dpq_workspace_mark mark = dpq_workspace_get_mark(be->workspace[0]);
    dpq_status st = DPQ_OK;
    job.dtype = dpq_product_dtype(q->dtype, q->dtype, shape->compute);
    job.blocks = dpq_tile_count(job.tokens, QUERY_BLOCK);
    DPQ_TRY_GOTO(st, operand(be, q, job.dtype, &job.q, &job.ldq), done);
    DPQ_TRY_GOTO(st, operand(be, k, job.dtype, &job.k, &job.ldk), done);
    DPQ_TRY_GOTO(st, operand(be, v, job.dtype, &job.v, &job.ldv), done);
    st = dpq_backend_parallel(be, shape->heads * job.blocks, attention_tile, &job);
done:
    dpq_workspace_release(be->workspace[0], mark);
    return st;
}
