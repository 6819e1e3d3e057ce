/* SPDX-License-Identifier: Apache-2.0 */
/* Backward pass of causal attention on the CPU (docs/algorithms/backward.md). One tile is a query head: block by block
 * of queries, the probabilities are computed again as in cpu_attention.c. Gradients of keys and values are collected in
 * fp32 a query head; a second loop adds the heads that share them, in order. */
#include "cpu_gemm.h"
#include "cpu_kernels.h"
#include "cpu_softmax.h"

#define SUM_TOKENS 64 /* tile of the second loop */

typedef struct {
    dpq_backend *be;
    const dpq_attention_shape *shape;
    const dpq_attention_operands *in;
    dpq_dtype dtype; /* of the products */
    const void *q, *k, *v, *d_o;
    int64_t tokens, ldq, ldk, ldv, ldo;
    float *dk_head, *dv_head; /* (HEADS,T,D) */
    dpq_tensor *dq, *dk, *dv;
} grad_job;

/* Buffers of one tile, for its longest block. p and ds in the product's type: beside the fp32 values, or the same
 * memory. */
typedef struct {
    float *scores, *dp, *product, *inverse_sum, *drow, *wide;
    uint16_t *p, *ds;
} grad_buffers;

/* sum a b over one head's part of a row of the output and of its gradient. SCRATCH: 2 * n floats. */
DPQ_HOT
static float row_dot(const void *a, const void *b, dpq_dtype dtype, int64_t n, float *scratch)
{
    float *restrict x = scratch;
    float *restrict y = scratch + n;
    float lanes[DPQ_LANES] = {0};
    dpq_row_load(a, dtype, n, x);
    dpq_row_load(b, dtype, n, y);
    int64_t i = 0;
    for (; i + DPQ_LANES <= n; i += DPQ_LANES) {
        for (int l = 0; l < DPQ_LANES; l++) {
            lanes[l] += x[i + l] * y[i + l];
        }
    }
    for (int l = 0; i + l < n; l++) {
        lanes[l] += x[i + l] * y[i + l];
    }
    for (int width = DPQ_LANES / 2; width > 0; width /= 2) {
        for (int l = 0; l < width; l++) {
            lanes[l] += lanes[l + width];
        }
    }
    return lanes[0];
}

/* p /= its sum; dp becomes dS = p (dp - drow) scale. Both rounded to bf16 when NARROW_P is not NULL, else in place. */
DPQ_HOT
static void score_gradient_row(float *restrict p, float *restrict dp, int64_t n, float inverse_sum, float drow,
                               float scale, uint16_t *restrict narrow_p, uint16_t *restrict narrow_ds)
{
    if (narrow_p != NULL) {
        for (int64_t i = 0; i < n; i++) {
            float probability = p[i] * inverse_sum;
            narrow_p[i] = dpq_f32_to_bf16(probability);
            narrow_ds[i] = dpq_f32_to_bf16(probability * (dp[i] - drow) * scale);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            p[i] *= inverse_sum;
            dp[i] = p[i] * (dp[i] - drow) * scale;
        }
    }
}

DPQ_HOT
static void add_rows(const float *restrict x, int64_t n, float *restrict sum)
{
    for (int64_t i = 0; i < n; i++) {
        sum[i] += x[i];
    }
}

DPQ_HOT
static void store_row(const float *x, int64_t n, dpq_dtype dtype, void *y)
{
    dpq_row_store(x, n, dtype, y);
}

static dpq_status borrow_floats(dpq_workspace *ws, int64_t count, float **out)
{
    void *memory;
    DPQ_TRY(dpq_workspace_alloc(ws, count, sizeof(float), &memory));
    *out = memory;
    return DPQ_OK;
}

static dpq_status borrow_buffers(const grad_job *job, dpq_workspace *ws, grad_buffers *b)
{
    int64_t d = job->shape->head_dim;
    int64_t rows = job->tokens < DPQ_QUERY_BLOCK ? job->tokens : DPQ_QUERY_BLOCK;
    int64_t keys = 0;
    for (int64_t i = 0; i < dpq_tile_count(job->tokens, DPQ_QUERY_BLOCK); i++) {
        dpq_attention_block block = dpq_attention_block_at(i, job->tokens, job->shape->window);
        keys = block.keys > keys ? block.keys : keys;
    }
    int64_t longest = keys > rows ? keys : rows;
    DPQ_TRY(borrow_floats(ws, rows * keys, &b->scores));
    DPQ_TRY(borrow_floats(ws, rows * keys, &b->dp));
    DPQ_TRY(borrow_floats(ws, longest * d, &b->product));
    DPQ_TRY(borrow_floats(ws, 2 * rows + 2 * d, &b->inverse_sum));
    b->drow = b->inverse_sum + rows;
    b->wide = b->drow + rows;
    b->p = b->ds = NULL;
    if (job->dtype == DPQ_DTYPE_BF16) {
        void *memory;
        DPQ_TRY(dpq_workspace_alloc(ws, 2 * rows * keys, sizeof(uint16_t), &memory));
        b->p = memory;
        b->ds = b->p + rows * keys;
    }
    return DPQ_OK;
}

/* Probabilities p and score gradients ds of the block. */
static dpq_status block_scores(const grad_job *job, int64_t head, const dpq_attention_block *block, int thread,
                               const void *q, const void *d_o, const void *k, const void *v, const grad_buffers *b)
{
    const dpq_attention_shape *shape = job->shape;
    int64_t d = shape->head_dim, keys = block->keys;
    dpq_gemm_shape scores = {.m = block->rows,
                             .n = keys,
                             .k = d,
                             .lda = job->ldq,
                             .ldb = job->ldk,
                             .ldc = keys,
                             .b_transposed = true,
                             .dtype = job->dtype};
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &scores, q, k, b->scores));
    dpq_softmax_block(shape, block, b->scores, NULL, b->inverse_sum);
    scores.lda = job->ldo;
    scores.ldb = job->ldv;
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &scores, d_o, v, b->dp));
    dpq_dtype act = job->in->o->dtype;
    size_t offset = (size_t)(head * d) * dpq_dtype_bytes(act);
    for (int64_t r = 0; r < block->rows; r++) {
        const char *o = (const char *)dpq_row_at(job->in->o, block->query + r) + offset;
        const char *gradient = (const char *)dpq_row_at(job->in->d_o, block->query + r) + offset;
        float drow = row_dot(o, gradient, act, d, b->wide);
        score_gradient_row(b->scores + r * keys, b->dp + r * keys, keys, b->inverse_sum[r], drow, (float)shape->scale,
                           b->p == NULL ? NULL : b->p + r * keys, b->ds == NULL ? NULL : b->ds + r * keys);
    }
    return DPQ_OK;
}

static dpq_status head_block(const grad_job *job, int64_t head, const dpq_attention_block *block, int thread,
                             const grad_buffers *b)
{
    const dpq_attention_shape *shape = job->shape;
    size_t elem = dpq_dtype_bytes(job->dtype);
    int64_t d = shape->head_dim, kv_head = head / (shape->heads / shape->kv_heads), keys = block->keys;
    const char *q = (const char *)job->q + (size_t)(block->query * job->ldq + head * d) * elem;
    const char *d_o = (const char *)job->d_o + (size_t)(block->query * job->ldo + head * d) * elem;
    const char *k = (const char *)job->k + (size_t)(block->key * job->ldk + kv_head * d) * elem;
    const char *v = (const char *)job->v + (size_t)(block->key * job->ldv + kv_head * d) * elem;
    DPQ_TRY(block_scores(job, head, block, thread, q, d_o, k, v, b));
    const void *p = b->p != NULL ? (const void *)b->p : b->scores;
    const void *ds = b->ds != NULL ? (const void *)b->ds : b->dp;
    const dpq_gemm_shape queries = {
        .m = block->rows, .n = d, .k = keys, .lda = keys, .ldb = job->ldk, .ldc = d, .dtype = job->dtype};
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &queries, ds, k, b->product));
    dpq_dtype act = job->dq->dtype;
    for (int64_t r = 0; r < block->rows; r++) {
        store_row(b->product + r * d, d, act,
                  (char *)dpq_row_at(job->dq, block->query + r) + (size_t)(head * d) * dpq_dtype_bytes(act));
    }
    dpq_gemm_shape collected = {.m = keys,
                                .n = d,
                                .k = block->rows,
                                .lda = keys,
                                .ldb = job->ldq,
                                .ldc = d,
                                .a_transposed = true,
                                .dtype = job->dtype};
    int64_t at = (head * job->tokens + block->key) * d;
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &collected, ds, q, b->product));
    add_rows(b->product, keys * d, job->dk_head + at);
    collected.ldb = job->ldo;
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &collected, p, d_o, b->product));
    add_rows(b->product, keys * d, job->dv_head + at);
    return DPQ_OK;
}

static dpq_status head_tile(void *context, int64_t head, int thread, dpq_workspace *ws)
{
    const grad_job *job = context;
    int64_t count = job->tokens * job->shape->head_dim;
    grad_buffers b;
    DPQ_TRY(borrow_buffers(job, ws, &b));
    memset(job->dk_head + head * count, 0, (size_t)count * sizeof(float));
    memset(job->dv_head + head * count, 0, (size_t)count * sizeof(float));
    for (int64_t i = 0; i < dpq_tile_count(job->tokens, DPQ_QUERY_BLOCK); i++) {
        dpq_attention_block block = dpq_attention_block_at(i, job->tokens, job->shape->window);
        DPQ_TRY(head_block(job, head, &block, thread, &b));
    }
    return DPQ_OK;
}

/* Tokens of a tile of one key-value head: the query heads that read it, in order. */
static dpq_status sum_tile(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    (void)thread;
    const grad_job *job = context;
    int64_t d = job->shape->head_dim, group = job->shape->heads / job->shape->kv_heads;
    int64_t kv_head = i % job->shape->kv_heads;
    int64_t begin = i / job->shape->kv_heads * SUM_TOKENS;
    int64_t tokens = job->tokens - begin < SUM_TOKENS ? job->tokens - begin : SUM_TOKENS;
    float *sum;
    DPQ_TRY(borrow_floats(ws, tokens * d, &sum));
    for (int which = 0; which < 2; which++) {
        const float *heads = which == 0 ? job->dk_head : job->dv_head;
        dpq_tensor *out = which == 0 ? job->dk : job->dv;
        size_t offset = (size_t)(kv_head * d) * dpq_dtype_bytes(out->dtype);
        memset(sum, 0, (size_t)(tokens * d) * sizeof(float));
        for (int64_t g = 0; g < group; g++) {
            add_rows(heads + ((kv_head * group + g) * job->tokens + begin) * d, tokens * d, sum);
        }
        for (int64_t t = 0; t < tokens; t++) {
            store_row(sum + t * d, d, out->dtype, (char *)dpq_row_at(out, begin + t) + offset);
        }
    }
    return DPQ_OK;
}

dpq_status dpq_attention_backward_cpu(dpq_backend *be, const dpq_attention_operands *in,
                                      const dpq_attention_shape *shape, dpq_tensor *dq, dpq_tensor *dk, dpq_tensor *dv)
{
    grad_job job = {.be = be, .shape = shape, .in = in, .tokens = in->q->dim[0], .dq = dq, .dk = dk, .dv = dv};
    dpq_workspace *ws = be->workspace[0];
    dpq_workspace_mark mark = dpq_workspace_get_mark(ws);
    dpq_status st = DPQ_OK;
    job.dtype = dpq_product_dtype(in->q->dtype, in->q->dtype, shape->compute);
    int64_t count = job.tokens * shape->heads * shape->head_dim;
    DPQ_TRY_GOTO(st, dpq_operand_cpu(be, in->q, job.dtype, &job.q, &job.ldq), done);
    DPQ_TRY_GOTO(st, dpq_operand_cpu(be, in->k, job.dtype, &job.k, &job.ldk), done);
    DPQ_TRY_GOTO(st, dpq_operand_cpu(be, in->v, job.dtype, &job.v, &job.ldv), done);
    DPQ_TRY_GOTO(st, dpq_operand_cpu(be, in->d_o, job.dtype, &job.d_o, &job.ldo), done);
    DPQ_TRY_GOTO(st, borrow_floats(ws, count, &job.dk_head), done);
    DPQ_TRY_GOTO(st, borrow_floats(ws, count, &job.dv_head), done);
    DPQ_TRY_GOTO(st, dpq_backend_parallel(be, shape->heads, head_tile, &job), done);
    st = dpq_backend_parallel(be, shape->kv_heads * dpq_tile_count(job.tokens, SUM_TOKENS), sum_tile, &job);
done:
    dpq_workspace_release(ws, mark);
    return st;
}
