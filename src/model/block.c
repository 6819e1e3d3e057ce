/* SPDX-License-Identifier: Apache-2.0 */
/* Forward pass of one block as four stages, each from a linear's input to the next linear's input; the same code for
 * all architectures. */
#include <math.h>
#include <string.h>

#include "model_priv.h"

void dpq_block_weights_fini(dpq_block_weights *weights)
{
    for (int i = 0; i < DPQ_LINEAR_COUNT; i++) {
        dpq_weight_fini(&weights->linear[i]);
    }
    for (int i = 0; i < DPQ_NORM_COUNT; i++) {
        dpq_tensor_fini(&weights->norm[i]);
    }
}

static dpq_status borrow_matrix(dpq_workspace *ws, dpq_dtype dtype, int64_t rows, int64_t cols, dpq_tensor *out)
{
    size_t count = 0;
    void *data = NULL;
    memset(out, 0, sizeof *out);
    DPQ_TRY(dpq_mul_size((size_t)rows, (size_t)cols, &count));
    DPQ_TRY(dpq_workspace_alloc(ws, (int64_t)count, dpq_dtype_bytes(dtype), &data));
    *out = dpq_tensor_wrap_2d(data, dtype, rows, cols);
    return DPQ_OK;
}

/* q or k from x: the linear, the norm of each head where the model has one, the rotation. */
static dpq_status rotated_heads(const dpq_forward *f, const dpq_tensor *x, const dpq_weight *linear,
                                const dpq_tensor *norm, int64_t heads, dpq_tensor *y)
{
    DPQ_TRY(dpq_op_linear(f->backend, x, linear, false, y));
    if (f->config->qk_norm) {
        DPQ_TRY(dpq_op_rmsnorm(f->backend, y, norm, f->config->rms_eps, heads, y));
    }
    return dpq_op_rope(f->backend, y, heads, f->cos, f->sin);
}

static dpq_status attend(const dpq_forward *f, int64_t layer, const dpq_block_weights *w, const dpq_tensor *x,
                         dpq_tensor *next, dpq_workspace *ws)
{
    const dpq_model_config *c = f->config;
    int64_t tokens = x->dim[0];
    dpq_tensor q, k, v;
    DPQ_TRY(borrow_matrix(ws, x->dtype, tokens, c->n_heads * c->head_dim, &q));
    DPQ_TRY(borrow_matrix(ws, x->dtype, tokens, c->n_kv_heads * c->head_dim, &k));
    DPQ_TRY(borrow_matrix(ws, x->dtype, tokens, c->n_kv_heads * c->head_dim, &v));
    DPQ_TRY(rotated_heads(f, x, &w->linear[DPQ_LINEAR_Q], &w->norm[DPQ_NORM_Q], c->n_heads, &q));
    DPQ_TRY(rotated_heads(f, x, &w->linear[DPQ_LINEAR_K], &w->norm[DPQ_NORM_K], c->n_kv_heads, &k));
    DPQ_TRY(dpq_op_linear(f->backend, x, &w->linear[DPQ_LINEAR_V], false, &v));
    const dpq_attention_shape shape = {
        .heads = c->n_heads,
        .kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .scale = 1.0 / sqrt((double)c->head_dim),
        .window = c->window[layer],
        .compute = x->dtype == DPQ_DTYPE_BF16 ? f->compute : DPQ_COMPUTE_F32, /* products of f32 values need f32 */
    };
    return dpq_op_attention(f->backend, &q, &k, &v, &shape, next);
}

static dpq_status activate(const dpq_forward *f, const dpq_block_weights *w, const dpq_tensor *x, dpq_tensor *next,
                           dpq_workspace *ws)
{
    dpq_tensor up;
    DPQ_TRY(borrow_matrix(ws, x->dtype, x->dim[0], f->config->intermediate_size, &up));
    DPQ_TRY(dpq_op_linear(f->backend, x, &w->linear[DPQ_LINEAR_GATE], false, next));
    DPQ_TRY(dpq_op_linear(f->backend, x, &w->linear[DPQ_LINEAR_UP], false, &up));
    return dpq_op_silu_mul(f->backend, next, &up, next);
}

dpq_status dpq_block_enter(const dpq_forward *f, const dpq_block_weights *w, const dpq_tensor *h, dpq_tensor *x)
{
    return dpq_op_rmsnorm(f->backend, h, &w->norm[DPQ_NORM_INPUT], f->config->rms_eps, 1, x);
}

static dpq_status check_advance(const dpq_forward *f, int64_t layer, int stage, const dpq_tensor *x,
                                const dpq_tensor *h)
{
    int64_t inputs = dpq_model_stage_inputs(f->config, stage);
    DPQ_ASSERT(layer >= 0 && layer < f->config->n_layers);
    if (x->rank != 2 || x->dim[1] != inputs) {
        return DPQ_RAISE(DPQ_E_SHAPE, "layer %lld stage %d: input of %lld dimensions, width %lld; expected 2, %lld",
                         (long long)layer, stage, (long long)x->rank, (long long)(x->rank == 2 ? x->dim[1] : 0),
                         (long long)inputs);
    }
    if (h->rank != 2 || h->dim[0] != x->dim[0] || h->dim[1] != f->config->hidden_size || h->dtype != x->dtype) {
        return DPQ_RAISE(DPQ_E_SHAPE, "layer %lld stage %d: residual %s (%lld,%lld); expected %s (%lld,%lld)",
                         (long long)layer, stage, dpq_dtype_name(h->dtype), (long long)h->dim[0], (long long)h->dim[1],
                         dpq_dtype_name(x->dtype), (long long)x->dim[0], (long long)f->config->hidden_size);
    }
    return DPQ_OK;
}

dpq_status dpq_block_advance(const dpq_forward *f, int64_t layer, const dpq_block_weights *w, int stage,
                             const dpq_tensor *x, dpq_tensor *h, dpq_tensor *next, dpq_workspace *ws)
{
    DPQ_ASSERT(stage >= 0 && stage < DPQ_STAGE_COUNT);
    DPQ_ASSERT(next || stage == DPQ_STAGE_COUNT - 1);
    DPQ_TRY(check_advance(f, layer, stage, x, h));
    dpq_workspace_mark mark = dpq_workspace_get_mark(ws);
    dpq_status st = DPQ_OK;
    switch (stage) {
    case 0:
        st = attend(f, layer, w, x, next, ws);
        break;
    case 1:
        DPQ_TRY_GOTO(st, dpq_op_linear(f->backend, x, &w->linear[DPQ_LINEAR_O], true, h), done);
        st = dpq_op_rmsnorm(f->backend, h, &w->norm[DPQ_NORM_POST], f->config->rms_eps, 1, next);
        break;
    case 2:
        st = activate(f, w, x, next, ws);
        break;
    default:
        st = dpq_op_linear(f->backend, x, &w->linear[DPQ_LINEAR_DOWN], true, h);
        break;
    }
done:
    dpq_workspace_release(ws, mark);
    return st;
}

dpq_status dpq_block_forward(const dpq_forward *f, int64_t layer, const dpq_block_weights *w, dpq_tensor *h,
                             dpq_workspace *ws)
{
    const dpq_model_config *c = f->config;
    dpq_workspace_mark mark = dpq_workspace_get_mark(ws);
    dpq_status st = DPQ_OK;
    int64_t tokens = h->dim[0];
    int64_t attention_width = dpq_model_stage_inputs(c, 1);
    /* Inputs of the even stages share one buffer, those of the odd stages the other: each is dead when the next but one
     * is written. */
    dpq_tensor even, odd;
    int64_t widest = attention_width > c->intermediate_size ? attention_width : c->intermediate_size;
    DPQ_TRY_GOTO(st, borrow_matrix(ws, h->dtype, tokens, c->hidden_size, &even), done);
    DPQ_TRY_GOTO(st, borrow_matrix(ws, h->dtype, tokens, widest, &odd), done);
    dpq_tensor heads = dpq_tensor_wrap_2d(odd.data, h->dtype, tokens, attention_width);
    dpq_tensor inner = dpq_tensor_wrap_2d(odd.data, h->dtype, tokens, c->intermediate_size);
    DPQ_TRY_GOTO(st, dpq_block_enter(f, w, h, &even), done);
    DPQ_TRY_GOTO(st, dpq_block_advance(f, layer, w, 0, &even, h, &heads, ws), done);
    DPQ_TRY_GOTO(st, dpq_block_advance(f, layer, w, 1, &heads, h, &even, ws), done);
    DPQ_TRY_GOTO(st, dpq_block_advance(f, layer, w, 2, &even, h, &inner, ws), done);
    st = dpq_block_advance(f, layer, w, 3, &inner, h, NULL, ws);
done:
    dpq_workspace_release(ws, mark);
    return st;
}
