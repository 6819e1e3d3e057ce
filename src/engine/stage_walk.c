/* SPDX-License-Identifier: Apache-2.0 */
/* One block with calibration. Its stages are walked in order; a stage's input is known for all samples before its
 * linears are solved, and the stage is then computed with the weights that later stages shall see. With true_sequential
 * these are the quantized ones, so every product of the block is computed once. Without it the block is walked with the
 * source weights and then replayed from its entry with the quantized ones. */
#include <string.h>

#include "engine_priv.h"

typedef struct {
    dpq_run *run;
    int64_t layer;
    dpq_forward forward;
    dpq_block_weights weights;
    bool sequential;
} walk;

static bool stage_is_quantized(const dpq_run *run, int64_t layer, int stage)
{
    dpq_linear_role roles[3];
    int count = dpq_model_stage_linears(stage, roles);
    bool any = false;
    for (int i = 0; i < count; i++) {
        any = any || dpq_plan_work(run->plan, layer, roles[i])->quantized;
    }
    return any;
}

/* Weights of a stage ready for products; QUANTIZED (may be NULL) replaces the source's values. */
static dpq_status ready_stage(walk *w, int stage, dpq_block_source *source, const dpq_qweight *quantized)
{
    const dpq_plan *plan = w->run->plan;
    dpq_linear_role roles[3];
    int count = dpq_model_stage_linears(stage, roles);
    for (int i = 0; i < count; i++) {
        dpq_linear_role role = roles[i];
        if (quantized != NULL && quantized[role].codes.data != NULL) {
            DPQ_TRY(dpq_engine_dequantize(w->run->backend, &quantized[role], &source->w[role]));
        }
        DPQ_TRY(dpq_weight_prepare(&source->w[role], plan->act, plan->compute, &w->weights.linear[role]));
        w->weights.linear[role].bias = source->bias[role];
        memset(&source->bias[role], 0, sizeof source->bias[role]);
    }
    return DPQ_OK;
}

static dpq_status enter(walk *w)
{
    dpq_activations *a = w->run->activations;
    int64_t width = dpq_model_stage_inputs(&w->run->folder->config, 0);
    for (int64_t i = 0; i < a->n; i++) {
        a->x[i] = dpq_activations_view(a, i, width);
        DPQ_TRY(dpq_block_enter(&w->forward, &w->weights, &a->h[i], &a->x[i]));
    }
    return DPQ_OK;
}

static dpq_status advance(walk *w, int stage)
{
    dpq_activations *a = w->run->activations;
    dpq_workspace *ws = w->run->workspace;
    bool last = stage + 1 == DPQ_STAGE_COUNT;
    int64_t width = last ? 0 : dpq_model_stage_inputs(&w->run->folder->config, stage + 1);
    dpq_status st = DPQ_OK;
    for (int64_t i = 0; i < a->n && st == DPQ_OK; i++) {
        dpq_workspace_mark mark = dpq_workspace_get_mark(ws);
        dpq_tensor next = last ? (dpq_tensor){0} : dpq_activations_spare(a, i, width);
        st = dpq_block_advance(&w->forward, w->layer, &w->weights, stage, &a->x[i], &a->h[i], last ? NULL : &next, ws);
        dpq_workspace_release(ws, mark);
        if (st == DPQ_OK && !last) {
            dpq_activations_swap(a, i, width);
        }
    }
    return st;
}

/* A phase of local work ends with an agreement. */
static dpq_status end_phase(walk *w, dpq_status local, double *clock)
{
    dpq_spans_add(&w->run->spans, DPQ_SPAN_FORWARD, clock);
    dpq_status st = dpq_comm_agree(w->run->comm, local, &w->run->spans);
    *clock = dpq_clock_s();
    return st;
}

static dpq_status one_stage(walk *w, int stage, dpq_block_source *source, dpq_qweight *quantized)
{
    dpq_run *run = w->run;
    dpq_stage_sums sums = {0};
    dpq_status st = DPQ_OK;
    if (stage_is_quantized(run, w->layer, stage)) {
        int owner = dpq_shard_owner(w->layer, stage, dpq_comm_size(run->comm));
        int64_t k = dpq_model_stage_inputs(&run->folder->config, stage);
        st = dpq_stage_combine(run, k, run->plan->stats, owner, &sums);
        DPQ_CONTEXT(st, "stage %d", stage);
        DPQ_TRY_GOTO(st, st, done);
        DPQ_TRY_GOTO(st, dpq_stage_solve(run, w->layer, stage, source->w, &sums, quantized), done);
    }
    double clock = dpq_clock_s();
    dpq_status local = ready_stage(w, stage, source, w->sequential ? quantized : NULL);
    if (local == DPQ_OK) {
        local = advance(w, stage);
    }
    st = end_phase(w, local, &clock);
done:
    dpq_stage_sums_fini(&sums);
    return st;
}

static void save_entry(const dpq_activations *a)
{
    for (int64_t i = 0; i < a->n; i++) {
        memcpy(a->saved[i].data, a->h[i].data, dpq_tensor_bytes(&a->h[i]));
    }
}

/* Quantized values in place of the source's in weights that are already prepared. */
static dpq_status replace_weights(walk *w, const dpq_qweight *quantized)
{
    const dpq_plan *plan = w->run->plan;
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        if (quantized[role].codes.data == NULL) {
            continue;
        }
        dpq_tensor values, bias = w->weights.linear[role].bias;
        memset(&w->weights.linear[role].bias, 0, sizeof bias);
        dpq_weight_fini(&w->weights.linear[role]);
        dpq_status st = dpq_tensor_create_2d(dpq_plan_work(plan, w->layer, (dpq_linear_role)role)->dtype,
                                             quantized[role].n, quantized[role].k, &values);
        if (st == DPQ_OK) {
            st = dpq_engine_dequantize(w->run->backend, &quantized[role], &values);
        }
        if (st == DPQ_OK) {
            st = dpq_weight_prepare(&values, plan->act, plan->compute, &w->weights.linear[role]);
        }
        dpq_tensor_fini(&values);
        w->weights.linear[role].bias = bias;
        DPQ_TRY(st);
    }
    return DPQ_OK;
}

static dpq_status replay(walk *w, const dpq_qweight *quantized)
{
    const dpq_activations *a = w->run->activations;
    DPQ_TRY(replace_weights(w, quantized));
    for (int64_t i = 0; i < a->n; i++) {
        memcpy(a->h[i].data, a->saved[i].data, dpq_tensor_bytes(&a->h[i]));
    }
    DPQ_TRY(enter(w));
    for (int stage = 0; stage < DPQ_STAGE_COUNT; stage++) {
        DPQ_TRY(advance(w, stage));
    }
    return DPQ_OK;
}

dpq_status dpq_stage_walk(dpq_run *run, int64_t layer, dpq_block_source *source, dpq_qweight *quantized)
{
    walk w = {.run = run, .layer = layer, .sequential = run->activations->saved == NULL};
    w.forward = (dpq_forward){.backend = run->backend,
                              .config = &run->folder->config,
                              .cos = &run->cos,
                              .sin = &run->sin,
                              .compute = run->plan->compute};
    dpq_status st = DPQ_OK;
    double clock = dpq_clock_s();
    memcpy(w.weights.norm, source->norm, sizeof source->norm);
    memset(source->norm, 0, sizeof source->norm);
    if (!w.sequential) {
        save_entry(run->activations);
    }
    DPQ_TRY_GOTO(st, end_phase(&w, enter(&w), &clock), done);
    for (int stage = 0; stage < DPQ_STAGE_COUNT; stage++) {
        DPQ_TRY_GOTO(st, one_stage(&w, stage, source, quantized), done);
    }
    if (!w.sequential) {
        clock = dpq_clock_s();
        DPQ_TRY_GOTO(st, end_phase(&w, replay(&w, quantized), &clock), done);
    }
done:
    dpq_block_weights_fini(&w.weights);
    return st;
}

dpq_status dpq_stage_walk_data_free(dpq_run *run, int64_t layer, const dpq_block_source *source, dpq_qweight *quantized)
{
    for (int stage = 0; stage < DPQ_STAGE_COUNT; stage++) {
        DPQ_TRY(dpq_stage_solve(run, layer, stage, source->w, NULL, quantized));
    }
    return DPQ_OK;
}
