/* SPDX-License-Identifier: Apache-2.0 */
/* A model streamed block by block over this rank's samples: embedding, blocks, final norm, and rows of logits from what
 * is left. Between blocks only one hidden state a sample stays. */
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/log.h"
#include "dpquant/shard.h"
#include "eval_priv.h"

void dpq_eval_model_fini(dpq_eval_model *model)
{
    for (int64_t i = 0; model->hidden != NULL && i < model->n_hidden; i++) {
        dpq_tensor_fini(&model->hidden[i]);
    }
    dpq_free(model->hidden);
    dpq_weight_fini(&model->head);
    dpq_model_folder_close(&model->folder);
    memset(model, 0, sizeof *model);
}

static void step_done(dpq_eval_context *ctx)
{
    ctx->done++;
    dpq_progress("eval", ctx->done, ctx->total);
}

static int64_t own_sample(const dpq_eval_context *ctx, int64_t i)
{
    return dpq_shard_sample(i, dpq_comm_rank(ctx->comm), dpq_comm_size(ctx->comm));
}

static dpq_status embed(dpq_eval_context *ctx, dpq_eval_model *model)
{
    dpq_status st = DPQ_OK;
    const dpq_calibset *set = ctx->set;
    dpq_tensor table = {0};
    void *memory = NULL;
    double start_s = dpq_clock_s();
    int64_t n = dpq_shard_sample_count(set->n, dpq_comm_rank(ctx->comm), dpq_comm_size(ctx->comm));
    DPQ_TRY_GOTO(st, dpq_alloc_array(n, sizeof *model->hidden, &memory), done);
    model->hidden = memory;
    model->n_hidden = n;
    const char *name = dpq_model_embed_name(&model->folder.config);
    DPQ_TRY_GOTO(st, dpq_folder_read_tensor(&model->folder, name, &table), done);
    dpq_spans_add(ctx->spans, DPQ_SPAN_LOAD, &start_s);
    for (int64_t i = 0; i < n; i++) {
        int64_t s = own_sample(ctx, i);
        int64_t tokens = set->start[s + 1] - set->start[s];
        dpq_tensor *h = &model->hidden[i];
        DPQ_TRY_GOTO(st, dpq_tensor_create_2d(ctx->act, tokens, model->folder.config.hidden_size, h), done);
        DPQ_TRY_GOTO(st, dpq_op_gather_rows(ctx->be, &table, set->ids + set->start[s], h), done);
    }
    dpq_spans_add(ctx->spans, DPQ_SPAN_EVAL, &start_s);
done:
    dpq_tensor_fini(&table);
    return st;
}

static dpq_status run_block(dpq_eval_context *ctx, dpq_eval_model *model, dpq_loader *loader,
                            const dpq_forward *forward, int64_t layer, dpq_workspace *ws)
{
    dpq_status st = DPQ_OK;
    dpq_block_source source = {0};
    dpq_block_weights weights = {0};
    double start_s = dpq_clock_s();
    DPQ_TRY_GOTO(st, dpq_loader_take(loader, layer, &source), done);
    DPQ_TRY_GOTO(st, dpq_block_source_prepare(&source, ctx->act, ctx->compute, &weights), done);
    dpq_spans_add(ctx->spans, DPQ_SPAN_LOAD, &start_s);
    for (int64_t i = 0; i < model->n_hidden; i++) {
        DPQ_TRY_GOTO(st, dpq_block_forward(forward, layer, &weights, &model->hidden[i], ws), done);
    }
    dpq_spans_add(ctx->spans, DPQ_SPAN_EVAL, &start_s);
done:
    dpq_block_source_fini(&source);
    dpq_block_weights_fini(&weights);
    return st;
}

static dpq_status final_norm(dpq_eval_context *ctx, dpq_eval_model *model)
{
    dpq_status st = DPQ_OK;
    const dpq_model_config *c = &model->folder.config;
    dpq_tensor gamma = {0};
    double start_s = dpq_clock_s();
    DPQ_TRY_GOTO(st, dpq_folder_read_vector(&model->folder, dpq_model_final_norm_name(c), &gamma), done);
    for (int64_t i = 0; i < model->n_hidden; i++) {
        dpq_tensor *h = &model->hidden[i];
        DPQ_TRY_GOTO(st, dpq_op_rmsnorm(ctx->be, h, &gamma, c->rms_eps, 1, h), done);
    }
    dpq_spans_add(ctx->spans, DPQ_SPAN_EVAL, &start_s);
done:
    dpq_tensor_fini(&gamma);
    return st;
}

/* What lives as long as the blocks are walked. */
typedef struct {
    dpq_loader *loader;
    dpq_workspace *ws;
    dpq_tensor cos, sin;
    dpq_forward forward;
} block_walk;

static dpq_status walk_begin(dpq_eval_context *ctx, dpq_eval_model *model, block_walk *w)
{
    const dpq_model_config *c = &model->folder.config;
    if (dpq_comm_rank(ctx->comm) == 0 && c->max_positions > 0 && ctx->set->max_length > c->max_positions) {
        dpq_log_warn_once("eval-positions", "eval", "windows of %lld tokens are longer than the %lld positions of %s",
                          (long long)ctx->set->max_length, (long long)c->max_positions, model->folder.dir);
    }
    DPQ_TRY(dpq_loader_create(&model->folder, ctx->act == DPQ_DTYPE_BF16, &w->loader));
    DPQ_TRY(dpq_workspace_create(&w->ws));
    DPQ_TRY(dpq_rope_tables(&c->rope, ctx->set->max_length, &w->cos, &w->sin));
    w->forward =
        (dpq_forward){.backend = ctx->be, .config = c, .cos = &w->cos, .sin = &w->sin, .compute = ctx->compute};
    return embed(ctx, model);
}

static void walk_end(block_walk *w)
{
    dpq_tensor_fini(&w->cos);
    dpq_tensor_fini(&w->sin);
    dpq_workspace_destroy(&w->ws);
    dpq_loader_destroy(&w->loader);
}

dpq_status dpq_eval_model_run(dpq_eval_context *ctx, dpq_eval_model *model)
{
    dpq_status st = DPQ_OK;
    block_walk walk = {0};
    st = walk_begin(ctx, model, &walk);
    DPQ_TRY_GOTO(st, dpq_comm_agree(ctx->comm, st, ctx->spans), done);
    for (int64_t layer = 0; layer < model->folder.config.n_layers; layer++) {
        st = run_block(ctx, model, walk.loader, &walk.forward, layer, walk.ws);
        DPQ_TRY_GOTO(st, dpq_comm_agree(ctx->comm, st, ctx->spans), done);
        step_done(ctx);
    }
    st = final_norm(ctx, model);
    st = dpq_comm_agree(ctx->comm, st, ctx->spans);
done:
    walk_end(&walk);
    return st;
}

dpq_status dpq_eval_model_read_head(const dpq_eval_context *ctx, dpq_eval_model *model)
{
    dpq_tensor table = {0};
    DPQ_TRY(dpq_folder_read_tensor(&model->folder, dpq_model_head_name(&model->folder.config), &table));
    return dpq_weight_prepare(&table, ctx->act, ctx->compute, &model->head);
}

dpq_status dpq_eval_logits(const dpq_eval_context *ctx, const dpq_eval_model *model, int64_t i, int64_t begin,
                           int64_t end, dpq_tensor *logits)
{
    DPQ_ASSERT(i >= 0 && i < model->n_hidden);
    dpq_tensor rows = dpq_tensor_rows(&model->hidden[i], begin, end);
    return dpq_op_linear(ctx->be, &rows, &model->head, false, logits);
}
