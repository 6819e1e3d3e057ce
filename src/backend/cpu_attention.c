/* SPDX-License-Identifier: Apache-2.0 */
/* Causal attention on the CPU: one tile is a head and a block of queries; its scores over the keys it sees, softmax in
 * fp32, and the product with the values. Keys no query of the block sees are never computed. */
#include "cpu_gemm.h"
#include "cpu_kernels.h"
#include "cpu_softmax.h"

typedef struct {
    dpq_backend *be;
    const dpq_attention_shape *shape;
    dpq_dtype dtype; /* of the products */
    const void *q, *k, *v;
    int64_t tokens, ldq, ldk, ldv, blocks;
    dpq_tensor *o;
} attention_job;

DPQ_HOT
static void scale_row(const float *restrict c, int64_t n, float factor, dpq_dtype dtype, void *restrict o)
{
    float row[1024];
    for (int64_t i = 0; i < n; i++) {
        row[i] = c[i] * factor;
    }
    dpq_row_store(row, n, dtype, o);
}

static dpq_status attention_tile(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const attention_job *job = context;
    const dpq_attention_shape *shape = job->shape;
    size_t elem = dpq_dtype_bytes(job->dtype);
    int64_t head = i / job->blocks, d = shape->head_dim;
    int64_t kv_head = head / (shape->heads / shape->kv_heads);
    /* longest first */
    dpq_attention_block block = dpq_attention_block_at(job->blocks - 1 - i % job->blocks, job->tokens, shape->window);
    int64_t query = block.query, rows = block.rows, key = block.key, keys = block.keys;
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
    const dpq_gemm_shape qk = {.m = rows,
                               .n = keys,
                               .k = d,
                               .lda = job->ldq,
                               .ldb = job->ldk,
                               .ldc = keys,
                               .b_transposed = true,
                               .dtype = job->dtype};
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &qk, q, k, scores));
    dpq_softmax_block(shape, &block, scores, narrow, inverse_sum);
    const dpq_gemm_shape pv = {
        .m = rows, .n = d, .k = keys, .lda = keys, .ldb = job->ldv, .ldc = d, .dtype = job->dtype};
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &pv, narrow != NULL ? narrow : scores, v, out));
    size_t o_elem = dpq_dtype_bytes(job->o->dtype);
    for (int64_t r = 0; r < rows; r++) {
        scale_row((float *)out + r * d, d, ((float *)inverse_sum)[r], job->o->dtype,
                  (char *)dpq_row_at(job->o, query + r) + (size_t)(head * d) * o_elem);
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
    job.blocks = dpq_tile_count(job.tokens, DPQ_QUERY_BLOCK);
    DPQ_TRY_GOTO(st, dpq_operand_cpu(be, q, job.dtype, &job.q, &job.ldq), done);
    DPQ_TRY_GOTO(st, dpq_operand_cpu(be, k, job.dtype, &job.k, &job.ldk), done);
    DPQ_TRY_GOTO(st, dpq_operand_cpu(be, v, job.dtype, &job.v, &job.ldv), done);
    st = dpq_backend_parallel(be, shape->heads * job.blocks, attention_tile, &job);
done:
    dpq_workspace_release(be->workspace[0], mark);
    return st;
}
