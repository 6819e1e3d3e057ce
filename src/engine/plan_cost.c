/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, bytes and operations of a plan, counted from shapes. */
#include <math.h>

#include "dpquant/alloc.h"
#include "dpquant/block_grad.h"
#include "dpquant/shard.h"
#include "plan_priv.h"

#define EVAL_CHUNK_TOKENS 64          /* rows of logits the evaluation holds at a time */
#define PACK_BYTES        (16u << 20) /* samples packed for Hessian sums */

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static int64_t block_parameters(const dpq_model_config *c)
{
    int64_t total = 0, n, k;
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        dpq_model_linear_shape(c, (dpq_linear_role)role, &n, &k);
        total += n * k;
    }
    return total;
}

/* Tokens of the fullest rank, of its samples' length, and of the longest sample. */
static int64_t fullest_share(const dpq_calibset *set, int size)
{
    int64_t most = 0;
    for (int rank = 0; rank < size; rank++) {
        int64_t tokens = 0;
        for (int64_t i = 0; i < dpq_shard_sample_count(set->n, rank, size); i++) {
            int64_t s = dpq_shard_sample(i, rank, size);
            tokens += set->start[s + 1] - set->start[s];
        }
        most = tokens > most ? tokens : most;
    }
    return most;
}

/* Sum over samples of T^2: what attention costs. */
static double squared_tokens(const dpq_calibset *set)
{
    double sum = 0;
    for (int64_t s = 0; s < set->n; s++) {
        double t = (double)(set->start[s + 1] - set->start[s]);
        sum += t * t;
    }
    return sum;
}

static int64_t widest_stage(const dpq_model_config *c)
{
    int64_t widest = 0;
    for (int stage = 0; stage < DPQ_STAGE_COUNT; stage++) {
        int64_t k = dpq_model_stage_inputs(c, stage);
        widest = k > widest ? k : widest;
    }
    return widest;
}

/* One forward of a model over a set of samples, attention over the causal half. */
static double forward_flop(const dpq_model_config *c, const dpq_calibset *set, bool head)
{
    double tokens = (double)set->start[set->n];
    double attention = 2.0 * (double)(c->n_heads * c->head_dim) * squared_tokens(set);
    double linear = 2.0 * tokens * (double)block_parameters(c);
    return (double)c->n_layers * (linear + attention) +
           (head ? 2.0 * tokens * (double)(c->vocab_size * c->hidden_size) : 0.0);
}

static void estimate_statistics(const dpq_plan *plan, double tokens, dpq_plan_cost *out)
{
    const dpq_model_config *c = &plan->folder->config;
    uint64_t largest = 0, per_block = 0;
    for (int stage = 0; stage < DPQ_STAGE_COUNT; stage++) {
        int64_t k = dpq_model_stage_inputs(c, stage);
        uint64_t sums = (plan->stats & DPQ_STAT_XTX) != 0 ? (uint64_t)dpq_xtx_count(k) * sizeof(int64_t)
                                                          : (uint64_t)k * sizeof(int64_t);
        uint64_t factor = (plan->stats & DPQ_STAT_XTX) != 0 ? 2 * (uint64_t)(k * k) * sizeof(float) : 0;
        largest = max_u64(largest, sums + factor);
        per_block += sums + (uint64_t)k * sizeof(double);
        out->flop_statistics +=
            (plan->stats & DPQ_STAT_XTX) != 0 ? (double)c->n_layers * tokens * (double)k * (double)(k + 1) : 0.0;
        out->flop_solve +=
            (plan->stats & DPQ_STAT_XTX) != 0 ? (double)c->n_layers * 2.0 / 3.0 * pow((double)k, 3) : 0.0;
    }
    for (size_t i = 0; i < plan->n_work; i++) {
        const dpq_work *w = &plan->work[i];
        if (w->quantized) {
            out->gathered += (uint64_t)(w->n * (w->k + 4 * dpq_scheme_groups(&w->scheme, w->k)));
            out->flop_solve += (plan->stats & DPQ_STAT_XTX) != 0 ? (double)w->n * (double)w->k * (double)w->k : 0.0;
        }
    }
    out->statistics = largest + ((plan->stats & DPQ_STAT_XTX) != 0 ? PACK_BYTES : 0);
    out->reduced = (uint64_t)c->n_layers * per_block;
}

/* Bytes of one rank and operations of the job when blocks are tuned. */
static void estimate_tuning(const dpq_plan *plan, const dpq_calibset *samples, int64_t share, int size, int threads,
                            dpq_plan_cost *out)
{
    const dpq_model_config *c = &plan->folder->config;
    const dpq_tune_options *o = &plan->settings->tune;
    size_t act = dpq_dtype_bytes(plan->act);
    double tokens = (double)samples->start[samples->n] / (double)samples->n;
    double steps = (double)(o->iterations * o->batch * o->accumulate) * (double)c->n_layers;
    double attention = 2.0 * (double)(c->n_heads * c->head_dim) * squared_tokens(samples) / (double)samples->n;
    double forward = 2.0 * tokens * (double)block_parameters(c), input = 0;
    /* with low_memory both chains lie in a file */
    out->activations = plan->settings->run.run.low_memory ? 0 : 2 * (uint64_t)share * (uint64_t)c->hidden_size * act;
    out->tuning = dpq_block_tape_bytes(c, plan->act, samples->max_length) +
                  dpq_block_backward_bytes(c, plan->act, samples->max_length, threads) +
                  2 * (uint64_t)(samples->max_length * c->hidden_size) * act;
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        const dpq_work *w = &plan->work[role];
        if (!w->quantized) {
            continue;
        }
        uint64_t product = dpq_dtype_bytes(dpq_product_dtype(w->dtype, plan->act, plan->compute));
        /* sums, a copy of them that MPI keeps while they travel, and the weights in use */
        out->tuning += (uint64_t)(w->n * w->k) * (sizeof(int32_t) * (size > 1 ? 2 : 1) + product) +
                       plan->tuner->state_bytes(o, w->n, w->k, dpq_scheme_groups(&w->scheme, w->k));
        out->reduced += (uint64_t)(w->n * w->k) * sizeof(int32_t) * (uint64_t)(o->iterations * c->n_layers);
        input += role > DPQ_LINEAR_V ? 2.0 * tokens * (double)(w->n * w->k) : 0.0; /* q, k, v need no input gradient */
    }
    out->flop_forward = 2.0 * forward_flop(c, samples, false);
    out->flop_tuning = steps * (2.0 * forward + input + 3.5 * attention);
}

void dpq_plan_estimate(const dpq_plan *plan, const dpq_calibset *samples, const dpq_calibset *eval, int size,
                       int threads, uint64_t base, dpq_plan_cost *out)
{
    const dpq_model_config *c = &plan->folder->config;
    size_t act = dpq_dtype_bytes(plan->act);
    dpq_dtype source = plan->work[0].dtype;
    uint64_t parameters = (uint64_t)block_parameters(c);
    bool widened = dpq_product_dtype(source, plan->act, plan->compute) != source;
    uint64_t head = (uint64_t)(c->vocab_size * c->hidden_size);
    *out = (dpq_plan_cost){.base = base};
    /* this block and the prefetched one, products' copies, codes of the stage being solved */
    out->weights = 2 * parameters * dpq_dtype_bytes(source) + (widened ? parameters * sizeof(float) : 0) + parameters;
    if (plan->needs_samples && samples != NULL) {
        int64_t share = fullest_share(samples, size);
        int64_t width = widest_stage(c);
        out->activations = (uint64_t)share * (uint64_t)(c->hidden_size * (plan->replays ? 2 : 1) + width) * act +
                           (uint64_t)samples->max_length * (uint64_t)(4 * width) * sizeof(float);
        out->embedding = head * dpq_dtype_bytes(source);
        out->flop_forward = forward_flop(c, samples, false) * (plan->replays ? 2.0 : 1.0);
        if (plan->tuner != NULL) {
            estimate_tuning(plan, samples, share, size, threads, out);
        } else {
            estimate_statistics(plan, (double)samples->start[samples->n], out);
        }
    }
    if (eval != NULL) {
        bool bf16 = plan->settings->run.eval.precision == DPQ_PRECISION_BF16;
        uint64_t hidden = (uint64_t)fullest_share(eval, size) * (uint64_t)c->hidden_size * (bf16 ? 2u : 4u);
        /* hidden states and heads of both models, one head's source while it is converted, logits of a chunk of each, a
         * block and the next */
        out->evaluation = 2 * hidden + 2 * head * (bf16 ? 2u : 4u) + head * dpq_dtype_bytes(source) +
                          2 * EVAL_CHUNK_TOKENS * (uint64_t)c->vocab_size * sizeof(float) +
                          parameters * (sizeof(float) + 2 * dpq_dtype_bytes(source)) +
                          (uint64_t)eval->max_length * (uint64_t)(4 * widest_stage(c)) * sizeof(float) +
                          ((plan->stats & DPQ_STAT_XTX) != 0 ? PACK_BYTES : 0);
        out->flop_eval = 2.0 * forward_flop(c, eval, true);
    }
    out->total =
        out->base + max_u64(max_u64(out->weights + out->statistics + out->tuning, out->embedding) + out->activations,
                            out->evaluation);
}

static dpq_status append_schemes(const dpq_plan *plan, dpq_text *t)
{
    for (size_t i = 0; i < plan->n_work; i++) {
        const dpq_work *w = &plan->work[i];
        size_t alike = 0;
        char scheme[64] = "not quantized";
        bool first = true;
        for (size_t j = 0; j < plan->n_work; j++) {
            const dpq_work *o = &plan->work[j];
            bool same = o->quantized == w->quantized && (!w->quantized || dpq_scheme_equal(&o->scheme, &w->scheme)) &&
                        i % DPQ_LINEAR_COUNT == j % DPQ_LINEAR_COUNT;
            first = first && !(same && j < i);
            alike += same ? 1 : 0;
        }
        if (!first) {
            continue;
        }
        if (w->quantized) {
            dpq_scheme_describe(&w->scheme, scheme, sizeof scheme);
        }
        DPQ_TRY(dpq_text_append(t, "  %-44s %6lld x %-6lld  %-28s %4zu layers\n", w->module, (long long)w->n,
                                (long long)w->k, scheme, alike));
    }
    return DPQ_OK;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

dpq_status dpq_plan_text(const dpq_plan *plan, const dpq_plan_cost *cost, int size, double gflops, char **out)
{
    dpq_text t = {0};
    dpq_status st = DPQ_OK;
    const dpq_model_config *c = &plan->folder->config;
    *out = NULL;
    DPQ_TRY_GOTO(
        st,
        dpq_text_append(
            &t, "plan: %s, %lld blocks of width %lld, algorithm %s, activations %s, products in %s, %d rank%s\n",
            c->architecture, (long long)c->n_layers, (long long)c->hidden_size, plan->algorithm,
            dpq_dtype_name(plan->act), plan->compute == DPQ_COMPUTE_BF16 ? "bf16" : "fp32", size, size == 1 ? "" : "s"),
        done);
    DPQ_TRY_GOTO(st, dpq_text_append(&t, "work (first layer of each kind):\n"), done);
    DPQ_TRY_GOTO(st, append_schemes(plan, &t), done);
    DPQ_TRY_GOTO(
        st,
        dpq_text_append(&t,
                        "memory per rank on the host, MiB: weights %.1f, statistics and factor %.1f, tuning %.1f, "
                        "activations %.1f, embedding %.1f, evaluation %.1f, program %.1f; peak %.1f (device: none)\n",
                        mib(cost->weights), mib(cost->statistics), mib(cost->tuning), mib(cost->activations),
                        mib(cost->embedding), mib(cost->evaluation), mib(cost->base), mib(cost->total)),
        done);
    DPQ_TRY_GOTO(st,
                 dpq_text_append(&t, "to be reduced %.1f MiB, gathered %.1f MiB; to be written %.1f MiB in %d file%s\n",
                                 mib(cost->reduced), mib(cost->gathered), mib(plan->output_bytes), plan->shards,
                                 plan->shards == 1 ? "" : "s"),
                 done);
    DPQ_TRY_GOTO(st,
                 dpq_text_append(
                     &t, "operations, GFLOP: forward %.1f, statistics %.1f, solve %.1f, tuning %.1f, evaluation %.1f\n",
                     cost->flop_forward * 1e-9, cost->flop_statistics * 1e-9, cost->flop_solve * 1e-9,
                     cost->flop_tuning * 1e-9, cost->flop_eval * 1e-9),
                 done);
    if (gflops > 0) {
        double total =
            (cost->flop_forward + cost->flop_statistics + cost->flop_solve + cost->flop_tuning + cost->flop_eval) *
            1e-9;
        /* 70 % of the measured product rate is what the whole job reaches */
        DPQ_TRY_GOTO(st,
                     dpq_text_append(&t, "estimate: %.0f s at a measured %.0f GFLOP/s over all ranks\n",
                                     total / (0.7 * gflops), gflops),
                     done);
    }
    *out = t.text;
    return DPQ_OK;
done:
    dpq_text_fini(&t);
    return st;
}
