/* SPDX-License-Identifier: Apache-2.0 */
/* The course of an evaluation: open, read the windows, stream each model, score, gather in sample order, figures. A
 * phase is local and ends with an agreement, or is one collective. */
#include <string.h>

#include "dpquant/log.h"
#include "dpquant/shard.h"
#include "dpquant/token_data.h"
#include "eval_priv.h"

typedef struct {
    dpq_eval_context ctx;
    dpq_calibset set;
    dpq_eval_model model, reference;
    bool has_reference;
    dpq_eval_tokens own, all;
} evaluation;

static dpq_status open_models(const dpq_eval_options *options, evaluation *e)
{
    double start_s = dpq_clock_s();
    DPQ_TRY(dpq_model_folder_open(options->model, true, &e->model.folder));
    if (e->has_reference) {
        DPQ_TRY(dpq_model_folder_open(options->reference, true, &e->reference.folder));
        int64_t expected = e->reference.folder.config.vocab_size;
        int64_t found = e->model.folder.config.vocab_size;
        if (expected != found) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: vocab_size: expected %lld as in the reference %s, found %lld",
                             options->model, (long long)expected, options->reference, (long long)found);
        }
    }
    dpq_spans_add(e->ctx.spans, DPQ_SPAN_LOAD, &start_s);
    return DPQ_OK;
}

static dpq_status read_heads(evaluation *e)
{
    double start_s = dpq_clock_s();
    DPQ_TRY(dpq_eval_model_read_head(&e->ctx, &e->model));
    if (e->has_reference) {
        DPQ_TRY(dpq_eval_model_read_head(&e->ctx, &e->reference));
    }
    dpq_spans_add(e->ctx.spans, DPQ_SPAN_LOAD, &start_s);
    return DPQ_OK;
}

static dpq_status score(evaluation *e)
{
    double start_s;
    DPQ_TRY(read_heads(e));
    start_s = dpq_clock_s();
    DPQ_TRY(dpq_eval_score(&e->ctx, &e->model, e->has_reference ? &e->reference : NULL, &e->own));
    dpq_spans_add(e->ctx.spans, DPQ_SPAN_EVAL, &start_s);
    return dpq_eval_tokens_create(e->set.n, e->own.width, e->has_reference, &e->all);
}

static dpq_status gather(evaluation *e)
{
    for (int v = 0; v < DPQ_EVAL_VALUES; v++) {
        if (e->all.value[v] != NULL) {
            DPQ_TRY(dpq_comm_gather_samples(e->ctx.comm, e->own.value[v], e->set.n, e->all.width, e->all.value[v]));
        }
    }
    return DPQ_OK;
}

static long count_steps(const evaluation *e)
{
    int64_t own = dpq_shard_sample_count(e->set.n, dpq_comm_rank(e->ctx.comm), dpq_comm_size(e->ctx.comm));
    int64_t blocks = e->model.folder.config.n_layers + (e->has_reference ? e->reference.folder.config.n_layers : 0);
    return (long)(blocks + own);
}

static dpq_status evaluate(const dpq_eval_options *options, evaluation *e, dpq_eval_figures *out)
{
    dpq_eval_context *ctx = &e->ctx;
    dpq_status st = open_models(options, e);
    DPQ_TRY(dpq_comm_agree(ctx->comm, st, ctx->spans));
    DPQ_TRY(dpq_token_data_read(ctx->comm, &options->data, e->model.folder.config.vocab_size, &e->set));
    ctx->set = &e->set;
    ctx->total = count_steps(e);
    DPQ_TRY(dpq_eval_model_run(ctx, &e->model));
    if (e->has_reference) {
        DPQ_TRY(dpq_eval_model_run(ctx, &e->reference));
    }
    st = score(e);
    DPQ_TRY(dpq_comm_agree(ctx->comm, st, ctx->spans));
    DPQ_TRY(gather(e));
    st = dpq_eval_compute_figures(&e->set, &e->all, out);
    DPQ_TRY(dpq_comm_agree(ctx->comm, st, ctx->spans));
    dpq_progress("eval", ctx->total, ctx->total);
    return DPQ_OK;
}

dpq_status dpq_eval_run(dpq_comm *comm, dpq_backend *be, const dpq_eval_options *options, dpq_spans *spans,
                        dpq_eval_figures *out)
{
    dpq_spans unused = {0};
    evaluation e = {
        .ctx = {.comm = comm,
                .be = be,
                .spans = spans != NULL ? spans : &unused,
                .act = options->bf16 ? DPQ_DTYPE_BF16 : DPQ_DTYPE_F32,
                .compute = options->bf16 ? options->compute : DPQ_COMPUTE_F32},
        .has_reference = options->reference != NULL,
    };
    memset(out, 0, sizeof *out);
    DPQ_ASSERT(e.ctx.compute != DPQ_COMPUTE_AUTO);
    dpq_status st = evaluate(options, &e, out);
    dpq_eval_tokens_fini(&e.own);
    dpq_eval_tokens_fini(&e.all);
    dpq_eval_model_fini(&e.model);
    dpq_eval_model_fini(&e.reference);
    dpq_calibset_fini(&e.set);
    if (st != DPQ_OK) {
        memset(out, 0, sizeof *out);
    }
    return st;
}
