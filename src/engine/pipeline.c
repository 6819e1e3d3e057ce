/* SPDX-License-Identifier: Apache-2.0 */
/* The calibration: one block after the other is loaded (the next one prefetched), walked, compared over the ranks, and
 * written. */
#include <string.h>

#include "dpquant/hash.h"
#include "dpquant/log.h"
#include "engine_priv.h"

/* Fingerprint of a few tensors; empty ones do not count. */
static uint64_t fingerprint(const dpq_tensor *const *tensors, size_t n)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < n; i++) {
        if (tensors[i]->data != NULL) {
            hash = dpq_hash64(hash, tensors[i]->data, dpq_tensor_bytes(tensors[i]));
        }
    }
    return hash;
}

/* Index of the first value that is not equal on all ranks, or -1. Collective. */
static dpq_status first_difference(dpq_run *run, const uint64_t *values, int64_t n, int64_t *index)
{
    uint64_t lowest[2 * DPQ_LINEAR_COUNT], highest[2 * DPQ_LINEAR_COUNT];
    DPQ_ASSERT(n <= 2 * DPQ_LINEAR_COUNT);
    memcpy(lowest, values, (size_t)n * sizeof *values);
    memcpy(highest, values, (size_t)n * sizeof *values);
    dpq_tensor low = dpq_tensor_wrap_1d(lowest, DPQ_DTYPE_U64, n), high = dpq_tensor_wrap_1d(highest, DPQ_DTYPE_U64, n);
    *index = -1;
    DPQ_TRY(dpq_comm_allreduce(run->comm, &low, DPQ_REDUCE_MIN));
    DPQ_TRY(dpq_comm_allreduce(run->comm, &high, DPQ_REDUCE_MAX));
    for (int64_t i = n - 1; i >= 0; i--) {
        *index = lowest[i] != highest[i] ? i : *index;
    }
    return DPQ_OK;
}

/* Every rank must have read the same block: replicas on other hosts may differ without anyone noticing. */
static dpq_status compare_sources(dpq_run *run, int64_t layer, const dpq_block_source *source)
{
    uint64_t values[DPQ_LINEAR_COUNT + 1];
    int64_t index;
    const dpq_tensor *norms[DPQ_NORM_COUNT];
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        const dpq_tensor *parts[] = {&source->w[role], &source->bias[role]};
        values[role] = fingerprint(parts, DPQ_COUNT_OF(parts));
    }
    for (int role = 0; role < DPQ_NORM_COUNT; role++) {
        norms[role] = &source->norm[role];
    }
    values[DPQ_LINEAR_COUNT] = fingerprint(norms, DPQ_NORM_COUNT);
    DPQ_TRY(first_difference(run, values, DPQ_LINEAR_COUNT + 1, &index));
    if (index >= 0) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s differs between ranks: all must read the same model",
                         index < DPQ_LINEAR_COUNT ? dpq_plan_work(run->plan, layer, (dpq_linear_role)index)->module
                                                  : "a norm");
    }
    return DPQ_OK;
}

/* Every rank holds the same quantized block, or the run ends naming the linear that differs. */
static dpq_status compare_results(dpq_run *run, int64_t layer, const dpq_qweight *quantized)
{
    uint64_t values[DPQ_LINEAR_COUNT];
    int64_t index;
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        const dpq_qweight *q = &quantized[role];
        const dpq_tensor *parts[] = {&q->codes, &q->scale, &q->zero, &q->g_idx};
        values[role] = fingerprint(parts, DPQ_COUNT_OF(parts));
    }
    DPQ_TRY(first_difference(run, values, DPQ_LINEAR_COUNT, &index));
    if (index >= 0) {
        return DPQ_RAISE(DPQ_E_BUG, "%s differs between ranks",
                         dpq_plan_work(run->plan, layer, (dpq_linear_role)index)->module);
    }
    return DPQ_OK;
}

static double block_error(const dpq_run *run, int64_t layer)
{
    double sum = 0;
    int count = 0;
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        const dpq_module_record *m = &run->modules[layer * DPQ_LINEAR_COUNT + role];
        sum += m->quantized ? m->relative_error : 0.0;
        count += m->quantized ? 1 : 0;
    }
    return count > 0 ? sum / count : 0.0;
}

static dpq_status write_block(dpq_run *run, int64_t layer, const dpq_qweight *quantized)
{
    dpq_status local = DPQ_OK;
    double clock = dpq_clock_s();
    if (run->output != NULL) {
        local = dpq_output_put_block(run->output, layer, quantized);
    }
    dpq_spans_add(&run->spans, DPQ_SPAN_WRITE, &clock);
    return dpq_comm_agree(run->comm, local, &run->spans);
}

static dpq_status one_block(dpq_run *run, dpq_loader *loader, int64_t layer)
{
    dpq_block_source source = {0};
    dpq_qweight quantized[DPQ_LINEAR_COUNT];
    int64_t layers = run->folder->config.n_layers;
    const dpq_spans before = run->spans;
    double start = dpq_clock_s(), clock = start;
    memset(quantized, 0, sizeof quantized);
    dpq_status st = dpq_loader_take(loader, layer, &source);
    dpq_spans_add(&run->spans, DPQ_SPAN_LOAD, &clock);
    DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, st, &run->spans), done);
    DPQ_TRY_GOTO(st, compare_sources(run, layer, &source), done);
    if (run->tuning != NULL) {
        DPQ_TRY_GOTO(st, dpq_block_tune(run, layer, &source, quantized), done);
    } else if (run->activations != NULL) {
        DPQ_TRY_GOTO(st, dpq_stage_walk(run, layer, &source, quantized), done);
    } else {
        DPQ_TRY_GOTO(st, dpq_stage_walk_data_free(run, layer, &source, quantized), done);
    }
    DPQ_TRY_GOTO(st, compare_results(run, layer, quantized), done);
    DPQ_TRY_GOTO(st, write_block(run, layer, quantized), done);
    run->blocks[layer].seconds = dpq_clock_s() - start;
    for (int span = 0; span < DPQ_SPAN_COUNT; span++) {
        run->blocks[layer].phase_seconds[span] = run->spans.seconds[span] - before.seconds[span];
    }
    run->blocks[layer].error = block_error(run, layer);
    dpq_log(DPQ_LOG_INFO, "engine", "block %lld/%lld done in %.2f s, error %.5f", (long long)layer + 1,
            (long long)layers, run->blocks[layer].seconds, run->blocks[layer].error);
    dpq_progress("blocks", (long)layer + 1, (long)layers);
done:
    DPQ_CONTEXT(st, "layer %lld", (long long)layer);
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        dpq_qweight_fini(&quantized[role]);
    }
    dpq_block_source_fini(&source);
    return st;
}

/* More fallbacks than allowed fail the run, before anything is committed. */
static dpq_status check_fallbacks(const dpq_run *run)
{
    double share = (double)run->fallbacks / (double)run->plan->n_quantized;
    if (share > run->settings->run.quantize.max_fallbacks) {
        return DPQ_RAISE(
            DPQ_E_NUMERIC,
            "%lld of %zu linears fell back to round-to-nearest, more than quantize.max_fallbacks %g allows",
            (long long)run->fallbacks, run->plan->n_quantized, run->settings->run.quantize.max_fallbacks);
    }
    return DPQ_OK;
}

dpq_status dpq_pipeline_run(dpq_run *run)
{
    dpq_loader *loader = NULL;
    dpq_status st = dpq_comm_agree(run->comm, dpq_loader_create(run->folder, false, &loader), &run->spans);
    dpq_progress("blocks", 0, (long)run->folder->config.n_layers);
    for (int64_t layer = 0; layer < run->folder->config.n_layers && st == DPQ_OK; layer++) {
        st = one_block(run, loader, layer);
    }
    dpq_loader_destroy(&loader);
    DPQ_TRY(st);
    return check_fallbacks(run);
}
