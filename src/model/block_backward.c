/* SPDX-License-Identifier: Apache-2.0 */
/* Forward pass of one block with a tape, and the backward pass to the gradients of its linears (block_grad.h). */
#include "dpquant/block_grad.h"

#include <math.h>
#include <string.h>

#define ROUND_UP(n) (((n) + DPQ_ALIGNMENT_BYTES - 1) / DPQ_ALIGNMENT_BYTES * DPQ_ALIGNMENT_BYTES)

/* ---- tape ---- */

typedef struct {
    dpq_tensor *t;
    int64_t width;
} tape_part;

enum { PARTS = DPQ_STAGE_COUNT + 8 };

/* All buffers of a tape with their widths; 0: not there. */
static void tape_parts(const dpq_model_config *c, dpq_block_tape *tape, tape_part parts[PARTS])
{
    int64_t heads = c->n_heads * c->head_dim, kv_heads = c->n_kv_heads * c->head_dim;
    int n = 0;
    for (int stage = 0; stage < DPQ_STAGE_COUNT; stage++) {
        parts[n++] = (tape_part){&tape->x[stage], dpq_model_stage_inputs(c, stage)};
    }
    parts[n++] = (tape_part){&tape->q, heads};
    parts[n++] = (tape_part){&tape->k, kv_heads};
    parts[n++] = (tape_part){&tape->v, kv_heads};
    parts[n++] = (tape_part){&tape->q_linear, c->qk_norm ? heads : 0};
    parts[n++] = (tape_part){&tape->k_linear, c->qk_norm ? kv_heads : 0};
    parts[n++] = (tape_part){&tape->h1, c->hidden_size};
    parts[n++] = (tape_part){&tape->gate, c->intermediate_size};
    parts[n++] = (tape_part){&tape->up, c->intermediate_size};
    DPQ_ASSERT(n == PARTS);
}

static size_t matrix_bytes(int64_t rows, int64_t cols, dpq_dtype dtype)
{
    return ROUND_UP((size_t)rows * (size_t)cols * dpq_dtype_bytes(dtype));
}

size_t dpq_block_tape_bytes(const dpq_model_config *c, dpq_dtype act, int64_t max_tokens)
{
    dpq_block_tape unused;
    tape_part parts[PARTS];
    size_t bytes = 0;
    tape_parts(c, &unused, parts);
    for (int i = 0; i < PARTS; i++) {
        bytes += matrix_bytes(max_tokens, parts[i].width, act);
    }
    return bytes;
}

dpq_status dpq_block_tape_create(const dpq_model_config *c, dpq_dtype act, int64_t max_tokens, dpq_block_tape *out)
{
    DPQ_ASSERT(max_tokens >= 1 && (act == DPQ_DTYPE_F32 || act == DPQ_DTYPE_BF16));
    memset(out, 0, sizeof *out);
    tape_part parts[PARTS];
    DPQ_TRY(dpq_alloc(dpq_block_tape_bytes(c, act, max_tokens), &out->memory));
    out->dtype = act;
    out->max_tokens = max_tokens;
    tape_parts(c, out, parts);
    char *at = out->memory;
    for (int i = 0; i < PARTS; i++) {
        if (parts[i].width > 0) {
            *parts[i].t = dpq_tensor_wrap_2d(at, act, max_tokens, parts[i].width);
            at += matrix_bytes(max_tokens, parts[i].width, act);
        }
    }
    return DPQ_OK;
}

void dpq_block_tape_fini(dpq_block_tape *tape)
{
    dpq_free(tape->memory);
    memset(tape, 0, sizeof *tape);
}

/* The buffers as matrices of TOKENS rows. */
static void tape_set_tokens(const dpq_model_config *c, dpq_block_tape *tape, int64_t tokens)
{
    tape_part parts[PARTS];
    tape_parts(c, tape, parts);
    for (int i = 0; i < PARTS; i++) {
        if (parts[i].width > 0) {
            parts[i].t->dim[0] = tokens;
        }
    }
}

/* ---- shared ---- */

static dpq_attention_shape attention_shape(const dpq_forward *f, int64_t layer, dpq_dtype act)
{
    const dpq_model_config *c = f->config;
    return (dpq_attention_shape){
        .heads = c->n_heads,
        .kv_heads = c->n_kv_heads,
        .head_dim = c->head_dim,
        .scale = 1.0 / sqrt((double)c->head_dim),
        .window = c->window[layer],
        .compute = act == DPQ_DTYPE_BF16 ? f->compute : DPQ_COMPUTE_F32,
    };
}

static void copy_rows(const dpq_tensor *from, dpq_tensor *to)
{
    size_t elem = dpq_dtype_bytes(from->dtype);
    for (int64_t t = 0; t < from->dim[0]; t++) {
        memcpy((char *)to->data + (size_t)(t * to->stride[0]) * elem,
               (const char *)from->data + (size_t)(t * from->stride[0]) * elem, (size_t)from->dim[1] * elem);
    }
}

static dpq_status borrow_matrix(dpq_workspace *ws, dpq_dtype dtype, int64_t rows, int64_t cols, dpq_tensor *out)
{
    void *data;
    DPQ_TRY(dpq_workspace_alloc(ws, rows * cols, dpq_dtype_bytes(dtype), &data));
    *out = dpq_tensor_wrap_2d(data, dtype, rows, cols);
    return DPQ_OK;
}

/* ---- forward ---- */

/* q or k: the linear (kept where a norm follows), the norm of each head, the rotation. */
static dpq_status rotated_heads(const dpq_forward *f, const dpq_tensor *x, const dpq_weight *linear,
                                const dpq_tensor *norm, int64_t heads, dpq_tensor *before, dpq_tensor *y)
{
    if (f->config->qk_norm) {
        DPQ_TRY(dpq_op_linear(f->backend, x, linear, false, before));
        DPQ_TRY(dpq_op_rmsnorm(f->backend, before, norm, f->config->rms_eps, heads, y));
    } else {
        DPQ_TRY(dpq_op_linear(f->backend, x, linear, false, y));
    }
    return dpq_op_rope(f->backend, y, heads, f->cos, f->sin);
}

static dpq_status forward_attention(const dpq_forward *f, int64_t layer, const dpq_block_weights *w,
                                    dpq_block_tape *tape)
{
    const dpq_model_config *c = f->config;
    dpq_tensor *x = &tape->x[0];
    DPQ_TRY(rotated_heads(f, x, &w->linear[DPQ_LINEAR_Q], &w->norm[DPQ_NORM_Q], c->n_heads, &tape->q_linear, &tape->q));
    DPQ_TRY(
        rotated_heads(f, x, &w->linear[DPQ_LINEAR_K], &w->norm[DPQ_NORM_K], c->n_kv_heads, &tape->k_linear, &tape->k));
    DPQ_TRY(dpq_op_linear(f->backend, x, &w->linear[DPQ_LINEAR_V], false, &tape->v));
    const dpq_attention_shape shape = attention_shape(f, layer, tape->dtype);
    DPQ_TRY(dpq_op_attention(f->backend, &tape->q, &tape->k, &tape->v, &shape, &tape->x[1]));
    return dpq_op_linear(f->backend, &tape->x[1], &w->linear[DPQ_LINEAR_O], true, &tape->h1);
}

dpq_status dpq_block_forward_tape(const dpq_forward *f, int64_t layer, const dpq_block_weights *w, const dpq_tensor *h,
                                  dpq_block_tape *tape, dpq_tensor *y, dpq_workspace *ws)
{
    (void)ws;
    DPQ_ASSERT(layer >= 0 && layer < f->config->n_layers);
    if (h->rank != 2 || h->dim[0] > tape->max_tokens || h->dim[1] != f->config->hidden_size ||
        h->dtype != tape->dtype || y->dtype != h->dtype || !dpq_tensor_same_shape(h, y)) {
        return DPQ_RAISE(DPQ_E_SHAPE,
                         "layer %lld: input %s (%lld,%lld), output %s; expected %s (at most %lld,%lld), same shape",
                         (long long)layer, dpq_dtype_name(h->dtype), (long long)h->dim[0], (long long)h->dim[1],
                         dpq_dtype_name(y->dtype), dpq_dtype_name(tape->dtype), (long long)tape->max_tokens,
                         (long long)f->config->hidden_size);
    }
    const dpq_model_config *c = f->config;
    tape->filled = false;
    tape_set_tokens(c, tape, h->dim[0]);
    DPQ_TRY(dpq_block_enter(f, w, h, &tape->x[0]));
    copy_rows(h, &tape->h1);
    DPQ_TRY(forward_attention(f, layer, w, tape));
    DPQ_TRY(dpq_op_rmsnorm(f->backend, &tape->h1, &w->norm[DPQ_NORM_POST], c->rms_eps, 1, &tape->x[2]));
    DPQ_TRY(dpq_op_linear(f->backend, &tape->x[2], &w->linear[DPQ_LINEAR_GATE], false, &tape->gate));
    DPQ_TRY(dpq_op_linear(f->backend, &tape->x[2], &w->linear[DPQ_LINEAR_UP], false, &tape->up));
    DPQ_TRY(dpq_op_silu_mul(f->backend, &tape->gate, &tape->up, &tape->x[3]));
    copy_rows(&tape->h1, y);
    DPQ_TRY(dpq_op_linear(f->backend, &tape->x[3], &w->linear[DPQ_LINEAR_DOWN], true, y));
    tape->filled = true;
    return DPQ_OK;
}

/* ---- backward ---- */

typedef struct {
    const dpq_forward *f;
    int64_t layer;
    const dpq_block_weights *w;
    dpq_block_tape *tape;
    dpq_block_gradient on_gradient;
    void *context;
    dpq_workspace *ws;
} backward_pass;

static dpq_status emit(const backward_pass *b, dpq_linear_role role, const dpq_tensor *d_out)
{
    return b->on_gradient(b->context, role, d_out, &b->tape->x[dpq_model_linear_stage(role)]);
}

/* Through down, the activation, gate and up, and the norm before them: dh1 = dy + gradient of the norm's input. */
static dpq_status backward_mlp(const backward_pass *b, const dpq_tensor *dy, dpq_tensor *dh1)
{
    dpq_backend *be = b->f->backend;
    const dpq_model_config *c = b->f->config;
    dpq_block_tape *tape = b->tape;
    int64_t tokens = dy->dim[0];
    dpq_tensor d_inner, d_norm;
    DPQ_TRY(emit(b, DPQ_LINEAR_DOWN, dy));
    dpq_workspace_mark mark = dpq_workspace_get_mark(b->ws);
    DPQ_TRY(borrow_matrix(b->ws, dy->dtype, tokens, c->intermediate_size, &d_inner));
    DPQ_TRY(dpq_op_linear_backward(be, dy, &b->w->linear[DPQ_LINEAR_DOWN], false, &d_inner));
    DPQ_TRY(dpq_op_silu_mul_backward(be, &tape->gate, &tape->up, &d_inner, &tape->gate, &tape->up));
    dpq_workspace_release(b->ws, mark);
    DPQ_TRY(emit(b, DPQ_LINEAR_GATE, &tape->gate));
    DPQ_TRY(emit(b, DPQ_LINEAR_UP, &tape->up));
    DPQ_TRY(borrow_matrix(b->ws, dy->dtype, tokens, c->hidden_size, &d_norm));
    DPQ_TRY(dpq_op_linear_backward(be, &tape->gate, &b->w->linear[DPQ_LINEAR_GATE], false, &d_norm));
    DPQ_TRY(dpq_op_linear_backward(be, &tape->up, &b->w->linear[DPQ_LINEAR_UP], true, &d_norm));
    copy_rows(dy, dh1);
    DPQ_TRY(dpq_op_rmsnorm_backward(be, &tape->h1, &b->w->norm[DPQ_NORM_POST], c->rms_eps, 1, &d_norm, true, dh1));
    dpq_workspace_release(b->ws, mark);
    return DPQ_OK;
}

/* Gradient of q or k back through rotation and norm, in place. */
static dpq_status backward_heads(const backward_pass *b, const dpq_tensor *sin_negative, const dpq_tensor *before,
                                 const dpq_tensor *norm, int64_t heads, dpq_tensor *d)
{
    dpq_backend *be = b->f->backend;
    DPQ_TRY(dpq_op_rope(be, d, heads, b->f->cos, sin_negative));
    if (!b->f->config->qk_norm) {
        return DPQ_OK;
    }
    return dpq_op_rmsnorm_backward(be, before, norm, b->f->config->rms_eps, heads, d, false, d);
}

/* sin of the opposite angles, as many rows as cos has. */
static dpq_status negated_sin(const backward_pass *b, dpq_tensor *out)
{
    const dpq_tensor *sin = b->f->sin;
    DPQ_TRY(borrow_matrix(b->ws, DPQ_DTYPE_F32, sin->dim[0], sin->dim[1], out));
    const float *from = sin->data;
    float *to = out->data;
    for (int64_t t = 0; t < sin->dim[0]; t++) {
        for (int64_t i = 0; i < sin->dim[1]; i++) {
            to[t * sin->dim[1] + i] = -from[t * sin->stride[0] + i];
        }
    }
    return DPQ_OK;
}

static dpq_status backward_attention(const backward_pass *b, const dpq_tensor *dh1)
{
    dpq_backend *be = b->f->backend;
    const dpq_model_config *c = b->f->config;
    const dpq_block_weights *w = b->w;
    dpq_block_tape *tape = b->tape;
    dpq_dtype act = tape->dtype;
    int64_t tokens = dh1->dim[0];
    dpq_tensor d_o, dq, dk, dv, sin_negative;
    DPQ_TRY(emit(b, DPQ_LINEAR_O, dh1));
    DPQ_TRY(borrow_matrix(b->ws, act, tokens, c->n_heads * c->head_dim, &d_o));
    DPQ_TRY(borrow_matrix(b->ws, act, tokens, c->n_heads * c->head_dim, &dq));
    DPQ_TRY(borrow_matrix(b->ws, act, tokens, c->n_kv_heads * c->head_dim, &dk));
    DPQ_TRY(borrow_matrix(b->ws, act, tokens, c->n_kv_heads * c->head_dim, &dv));
    DPQ_TRY(negated_sin(b, &sin_negative));
    DPQ_TRY(dpq_op_linear_backward(be, dh1, &w->linear[DPQ_LINEAR_O], false, &d_o));
    const dpq_attention_shape shape = attention_shape(b->f, b->layer, act);
    DPQ_TRY(dpq_op_attention_backward(be, &tape->q, &tape->k, &tape->v, &tape->x[1], &d_o, &shape, &dq, &dk, &dv));
    DPQ_TRY(emit(b, DPQ_LINEAR_V, &dv));
    DPQ_TRY(backward_heads(b, &sin_negative, &tape->k_linear, &w->norm[DPQ_NORM_K], c->n_kv_heads, &dk));
    DPQ_TRY(emit(b, DPQ_LINEAR_K, &dk));
    DPQ_TRY(backward_heads(b, &sin_negative, &tape->q_linear, &w->norm[DPQ_NORM_Q], c->n_heads, &dq));
    return emit(b, DPQ_LINEAR_Q, &dq);
}

dpq_status dpq_block_backward(const dpq_forward *f, int64_t layer, const dpq_block_weights *w, dpq_block_tape *tape,
                              const dpq_tensor *dy, dpq_block_gradient on_gradient, void *context, dpq_workspace *ws)
{
    DPQ_ASSERT(layer >= 0 && layer < f->config->n_layers);
    if (!tape->filled || dy->dtype != tape->dtype || !dpq_tensor_same_shape(dy, &tape->h1)) {
        return DPQ_RAISE(DPQ_E_SHAPE,
                         "layer %lld: gradient %s (%lld,%lld); expected %s (%lld,%lld) after one forward pass%s",
                         (long long)layer, dpq_dtype_name(dy->dtype), (long long)dy->dim[0], (long long)dy->dim[1],
                         dpq_dtype_name(tape->dtype), (long long)tape->h1.dim[0], (long long)tape->h1.dim[1],
                         tape->filled ? "" : ", found none");
    }
    tape->filled = false;
    const backward_pass b = {
        .f = f, .layer = layer, .w = w, .tape = tape, .on_gradient = on_gradient, .context = context, .ws = ws};
    dpq_workspace_mark mark = dpq_workspace_get_mark(ws);
    dpq_status st = DPQ_OK;
    dpq_tensor dh1;
    DPQ_TRY_GOTO(st, borrow_matrix(ws, dy->dtype, dy->dim[0], dy->dim[1], &dh1), done);
    DPQ_TRY_GOTO(st, backward_mlp(&b, dy, &dh1), done);
    st = backward_attention(&b, &dh1);
done:
    dpq_workspace_release(ws, mark);
    return st;
}

size_t dpq_block_backward_bytes(const dpq_model_config *c, dpq_dtype act, int64_t max_tokens, int threads)
{
    enum { QUERIES = 128, TILE = 256 * 192 };
    int64_t heads = c->n_heads * c->head_dim, kv_heads = c->n_kv_heads * c->head_dim;
    size_t attention = 2 * matrix_bytes(max_tokens, heads, act) + 2 * matrix_bytes(max_tokens, kv_heads, act) +
                       matrix_bytes(max_tokens, c->rope.rotary_dim / 2, DPQ_DTYPE_F32);
    size_t mlp =
        matrix_bytes(max_tokens, c->intermediate_size > c->hidden_size ? c->intermediate_size : c->hidden_size, act);
    size_t own = matrix_bytes(max_tokens, c->hidden_size, act) + (attention > mlp ? attention : mlp);
    /* of the backend: gradients of keys and values a head; a thread: scores, their gradients (and both as bf16), one
     * product */
    size_t backend = 2 * matrix_bytes(max_tokens, heads, DPQ_DTYPE_F32);
    size_t tile = (size_t)max_tokens * (QUERIES * 3 + (size_t)c->head_dim) * sizeof(float);
    tile = tile > TILE * sizeof(float) ? tile : TILE * sizeof(float);
    return own + backend + (size_t)threads * tile;
}
