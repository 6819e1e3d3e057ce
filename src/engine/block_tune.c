/* SPDX-License-Identifier: Apache-2.0 */
/* One block of a tuning run: the source block gives the targets (and the importance of inputs); the algorithm's
 * parameters are tuned for its steps; the block with the final weights moves the quantized chain on. Every rank holds
 * the same parameters and takes the same steps from the same exact sums. */
#include <math.h>
#include <string.h>

#include "dpquant/log.h"
#include "tuning_priv.h"

/* ---- weights of the block ---- */

/* Values of the source in the product's type: a view where the type fits and the linear is not tuned, else a copy. */
static dpq_status source_weight(dpq_block_tuning *t, int role, dpq_block_source *source)
{
    const dpq_plan *plan = t->run->plan;
    dpq_tensor *w = &source->w[role];
    dpq_weight *out = &t->weights.linear[role];
    dpq_dtype product = dpq_product_dtype(w->dtype, plan->act, plan->compute);
    if (t->index[role] < 0 && product == w->dtype) {
        out->w = dpq_tensor_wrap_2d(w->data, w->dtype, w->dim[0], w->dim[1]);
    } else {
        DPQ_TRY(dpq_tensor_create_2d(product, w->dim[0], w->dim[1], &out->w));
        DPQ_TRY(dpq_convert(w->data, w->dtype, out->w.data, product, dpq_tensor_count(w)));
    }
    out->bias = source->bias[role];
    memset(&source->bias[role], 0, sizeof source->bias[role]);
    return DPQ_OK;
}

static dpq_status prepare_weights(dpq_block_tuning *t, dpq_block_source *source)
{
    memcpy(t->weights.norm, source->norm, sizeof source->norm);
    memset(source->norm, 0, sizeof source->norm);
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        DPQ_TRY(source_weight(t, role, source));
    }
    return DPQ_OK;
}

/* Weights of all tuned linears at the present parameters. */
static dpq_status refresh_weights(dpq_block_tuning *t)
{
    double clock = dpq_clock_s();
    for (int i = 0; i < t->count; i++) {
        DPQ_TRY(t->ops->weights(t->state, i, &t->weights.linear[t->roles[i]].w));
    }
    dpq_spans_add(&t->run->spans, DPQ_SPAN_UPDATE, &clock);
    return DPQ_OK;
}

/* ---- targets and importance ---- */

/* All stage inputs side by side: offset of a stage, and their sum for DPQ_STAGE_COUNT. */
static int64_t stage_offset(const dpq_model_config *config, int stage)
{
    int64_t offset = 0;
    for (int s = 0; s < stage; s++) {
        offset += dpq_model_stage_inputs(config, s);
    }
    return offset;
}

/* The source block on one sample of the source chain, in place; sums of squares of the stage inputs when SUMSQ is
 * given. */
static dpq_status target_sample(dpq_block_tuning *t, int64_t i, double *sumsq)
{
    const dpq_model_config *config = &t->run->folder->config;
    dpq_workspace *ws = t->run->workspace;
    dpq_tensor *h = &t->tuning->target[i], x = {0}, next = {0};
    for (int stage = 0; stage < DPQ_STAGE_COUNT; stage++) {
        void *memory;
        if (stage == 0) {
            DPQ_TRY(dpq_workspace_alloc(ws, h->dim[0] * dpq_model_stage_inputs(config, 0), dpq_dtype_bytes(h->dtype),
                                        &memory));
            x = dpq_tensor_wrap_2d(memory, h->dtype, h->dim[0], dpq_model_stage_inputs(config, 0));
            DPQ_TRY(dpq_block_enter(&t->forward, &t->weights, h, &x));
        }
        if (sumsq != NULL) {
            DPQ_TRY(dpq_op_column_sumsq(t->run->backend, &x, sumsq + stage_offset(config, stage)));
        }
        bool last = stage + 1 == DPQ_STAGE_COUNT;
        if (!last) {
            int64_t width = dpq_model_stage_inputs(config, stage + 1);
            DPQ_TRY(dpq_workspace_alloc(ws, h->dim[0] * width, dpq_dtype_bytes(h->dtype), &memory));
            next = dpq_tensor_wrap_2d(memory, h->dtype, h->dim[0], width);
        }
        DPQ_TRY(dpq_block_advance(&t->forward, t->layer, &t->weights, stage, &x, h, last ? NULL : &next, ws));
        x = next;
    }
    return DPQ_OK;
}

static dpq_status target_samples(dpq_block_tuning *t, double *sample_sumsq, int64_t channels)
{
    dpq_workspace *ws = t->run->workspace;
    dpq_status st = DPQ_OK;
    for (int64_t i = 0; i < t->tuning->n && st == DPQ_OK; i++) {
        dpq_workspace_mark mark = dpq_workspace_get_mark(ws);
        st = target_sample(t, i, sample_sumsq != NULL ? sample_sumsq + i * channels : NULL);
        dpq_workspace_release(ws, mark);
    }
    return st;
}

/* Targets of all samples; *importance (channels of all stages) when the initial scales are searched. */
static dpq_status make_targets(dpq_block_tuning *t, double **importance)
{
    dpq_run *run = t->run;
    int64_t channels = stage_offset(&run->folder->config, DPQ_STAGE_COUNT);
    void *sample_sumsq = NULL, *exponent = NULL, *total = NULL;
    dpq_status st = DPQ_OK, local = DPQ_OK;
    bool search = t->options->init_scale == DPQ_INIT_SCALE_SEARCH;
    double clock = dpq_clock_s();
    *importance = NULL;
    if (search) {
        local = dpq_alloc_array(t->tuning->n * channels, sizeof(double), &sample_sumsq);
        local = local == DPQ_OK ? dpq_alloc_array(channels, sizeof(int32_t), &exponent) : local;
        local = local == DPQ_OK ? dpq_alloc_array(channels, sizeof(double), &total) : local;
    }
    local = local == DPQ_OK ? target_samples(t, sample_sumsq, channels) : local;
    dpq_spans_add(&run->spans, DPQ_SPAN_FORWARD, &clock);
    DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, local, &run->spans), done);
    if (search) {
        DPQ_TRY_GOTO(st, dpq_squares_combine(run, channels, t->tuning->n, sample_sumsq, exponent, total), done);
        *importance = total;
        total = NULL;
    }
done:
    dpq_free(sample_sumsq);
    dpq_free(exponent);
    dpq_free(total);
    return st;
}

static dpq_status create_state(dpq_block_tuning *t, const dpq_block_source *source, const double *importance)
{
    const dpq_model_config *config = &t->run->folder->config;
    dpq_tune_linear linears[DPQ_LINEAR_COUNT];
    for (int i = 0; i < t->count; i++) {
        const dpq_work *work = dpq_plan_work(t->run->plan, t->layer, t->roles[i]);
        int64_t offset = stage_offset(config, dpq_model_linear_stage(t->roles[i]));
        linears[i] = (dpq_tune_linear){.module = work->module,
                                       .scheme = work->scheme,
                                       .w = &source->w[t->roles[i]],
                                       .sumsq = importance != NULL ? importance + offset : NULL};
    }
    return t->ops->create(t->options, t->run->backend, linears, t->count, &t->state);
}

/* ---- the steps ---- */

typedef struct {
    double initial, best;
    int64_t best_step, steps;
    bool has_snapshot;
} tuning_outcome;

static dpq_status keep_if_better(dpq_block_tuning *t, int64_t step, double loss, tuning_outcome *o)
{
    if (step == 0 || loss < o->best) {
        o->best = loss;
        o->best_step = step;
        if (t->options->best_step != DPQ_BEST_STEP_LAST) {
            DPQ_TRY(t->ops->snapshot(t->state));
            o->has_snapshot = true;
        }
    }
    return DPQ_OK;
}

static dpq_status take_step(dpq_block_tuning *t, int64_t step)
{
    double clock = dpq_clock_s();
    for (int i = 0; i < t->count; i++) {
        double unit;
        const int32_t *sum = dpq_gradient_sum_values(t->tuning->gradients, t->roles[i], &unit);
        DPQ_TRY(t->ops->step(t->state, (int)step, i, sum, unit));
    }
    dpq_spans_add(&t->run->spans, DPQ_SPAN_UPDATE, &clock);
    return DPQ_OK;
}

/* best_step fixed looks at the same samples every so many steps. */
#define FIXED_LOOKS 20

static bool is_look(const dpq_tune_options *options, int64_t step)
{
    int64_t every = options->iterations / FIXED_LOOKS > 0 ? options->iterations / FIXED_LOOKS : 1;
    return options->best_step == DPQ_BEST_STEP_FIXED && (step % every == 0 || step == options->iterations);
}

static dpq_status look(dpq_block_tuning *t, int64_t step, tuning_outcome *o)
{
    double loss;
    int64_t n = t->run->samples->n, share = (int64_t)ceil(t->options->fixed_share * (double)n);
    DPQ_TRY(dpq_tune_evaluate(t, share < 1 ? 1 : share < n ? share : n, &loss));
    o->initial = step == 0 ? loss : o->initial;
    return keep_if_better(t, step, loss, o);
}

static dpq_status run_steps(dpq_block_tuning *t, tuning_outcome *o)
{
    const dpq_tune_options *options = t->options;
    bool fixed = options->best_step == DPQ_BEST_STEP_FIXED;
    DPQ_TRY(refresh_weights(t));
    for (int64_t step = 0; step < options->iterations; step++) {
        double loss = 0;
        if (is_look(options, step)) {
            DPQ_TRY(look(t, step, o));
        }
        DPQ_TRY(dpq_tune_gradients(t, step, &loss));
        if (!fixed) {
            o->initial = step == 0 ? loss : o->initial;
            DPQ_TRY(keep_if_better(t, step, loss, o));
        }
        o->steps = step + 1;
        if (options->early_stop > 0 && step - o->best_step >= options->early_stop) {
            break;
        }
        DPQ_TRY(take_step(t, step));
        DPQ_TRY(refresh_weights(t));
        dpq_progress("steps", (long)(t->layer * options->iterations + step + 1),
                     (long)(t->run->folder->config.n_layers * options->iterations));
    }
    if (is_look(options, options->iterations) && o->steps == options->iterations) {
        DPQ_TRY(look(t, options->iterations, o));
    }
    return DPQ_OK;
}

/* ---- the result ---- */

static void record(dpq_block_tuning *t, int role, const dpq_qweight *q)
{
    dpq_module_record *m = &t->run->modules[t->layer * DPQ_LINEAR_COUNT + role];
    m->method = t->ops->name;
    m->relative_error = dpq_qweight_relative_error(q);
}

static dpq_status finish_linears(dpq_block_tuning *t, bool best, dpq_qweight *quantized)
{
    for (int i = 0; i < t->count; i++) {
        const dpq_work *work = dpq_plan_work(t->run->plan, t->layer, t->roles[i]);
        dpq_qweight *q = &quantized[t->roles[i]];
        DPQ_TRY(dpq_qweight_create(&work->scheme, work->n, work->k, work->dtype, false, q));
        DPQ_TRY(t->ops->finish(t->state, best, i, q));
        DPQ_TRY(dpq_qweight_check(q, work->module));
        record(t, (int)t->roles[i], q);
    }
    return DPQ_OK;
}

/* The block with its final weights moves the quantized chain on. */
static dpq_status advance_input(dpq_block_tuning *t, dpq_block_source *source, const dpq_qweight *quantized)
{
    dpq_workspace *ws = t->run->workspace;
    for (int i = 0; i < t->count; i++) {
        dpq_tensor *values = &source->w[t->roles[i]], *w = &t->weights.linear[t->roles[i]].w;
        DPQ_TRY(dpq_engine_dequantize(t->run->backend, &quantized[t->roles[i]], values));
        DPQ_TRY(dpq_convert(values->data, values->dtype, w->data, w->dtype, dpq_tensor_count(w)));
    }
    for (int64_t i = 0; i < t->tuning->n; i++) {
        dpq_workspace_mark mark = dpq_workspace_get_mark(ws);
        dpq_status st = dpq_block_forward(&t->forward, t->layer, &t->weights, &t->tuning->input[i], ws);
        dpq_workspace_release(ws, mark);
        DPQ_TRY(st);
    }
    return DPQ_OK;
}

static void init_block(dpq_run *run, int64_t layer, dpq_block_tuning *t)
{
    *t = (dpq_block_tuning){.run = run,
                            .tuning = run->tuning,
                            .layer = layer,
                            .options = &run->settings->tune,
                            .ops = run->plan->tuner,
                            .min_bits = 8};
    t->forward = (dpq_forward){.backend = run->backend,
                               .config = &run->folder->config,
                               .cos = &run->cos,
                               .sin = &run->sin,
                               .compute = run->plan->compute};
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        const dpq_work *work = dpq_plan_work(run->plan, layer, (dpq_linear_role)role);
        t->index[role] = work->quantized ? t->count : -1;
        if (work->quantized) {
            t->roles[t->count++] = (dpq_linear_role)role;
            t->min_bits = work->scheme.bits < t->min_bits ? work->scheme.bits : t->min_bits;
        }
    }
}

static void report_block(const dpq_block_tuning *t, const tuning_outcome *o, int64_t repeats)
{
    dpq_block_record *b = &t->run->blocks[t->layer];
    b->steps = o->steps;
    b->repeats = repeats;
    b->best_step = o->best_step;
    b->initial_loss = o->initial;
    b->best_loss = o->best;
    dpq_log(DPQ_LOG_INFO, "engine", "block %lld: loss %.4g at first, best %.4g at step %lld of %lld",
            (long long)t->layer + 1, o->initial, o->best, (long long)o->best_step, (long long)o->steps);
}

dpq_status dpq_block_tune(dpq_run *run, int64_t layer, dpq_block_source *source, dpq_qweight *quantized)
{
    dpq_block_tuning t;
    tuning_outcome outcome = {0};
    double *importance = NULL;
    int64_t repeats = dpq_gradient_sum_repeats(run->tuning->gradients);
    dpq_status st = DPQ_OK;
    init_block(run, layer, &t);
    DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, prepare_weights(&t, source), &run->spans), done);
    DPQ_TRY_GOTO(st, make_targets(&t, &importance), done);
    if (t.count > 0) {
        DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, create_state(&t, source, importance), &run->spans), done);
        DPQ_TRY_GOTO(st, run_steps(&t, &outcome), done);
        DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, finish_linears(&t, outcome.has_snapshot, quantized), &run->spans),
                     done);
        report_block(&t, &outcome, dpq_gradient_sum_repeats(run->tuning->gradients) - repeats);
    }
    double clock = dpq_clock_s();
    dpq_status local = advance_input(&t, source, quantized);
    dpq_spans_add(&run->spans, DPQ_SPAN_FORWARD, &clock);
    st = dpq_comm_agree(run->comm, local, &run->spans);
done:
    if (t.state != NULL) {
        t.ops->destroy(&t.state);
    }
    dpq_free(importance);
    dpq_block_weights_fini(&t.weights);
    return st;
}
