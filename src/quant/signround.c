/* SPDX-License-Identifier: Apache-2.0 */
/* SignRound (Cheng et al., "Optimize Weight Rounding via Signed Gradient Descent"): rounding and range of each group
 * are moved by the sign of the gradient of the block's output error. Settings of block tuning; deviations from the
 * reference implementation: docs/algorithms/signround.md. */
#include "tune_priv.h"

static const char *const init_choices[] = {"minmax", "search", NULL};
static const char *const best_choices[] = {"batch", "fixed", "last", NULL};

#define AT(field) offsetof(dpq_tune_options, field)
const dpq_option dpq_signround_option_table[] = {
    {"signround.iterations", DPQ_OPTION_INT, AT(iterations), 0, 100000, NULL, "200", true,
     "steps a block; 0 keeps the initial scales and plain rounding"},
    {"signround.batch", DPQ_OPTION_INT, AT(batch), 1, 65536, NULL, "8", true, "samples a mini-batch, over all ranks"},
    {"signround.accumulate", DPQ_OPTION_INT, AT(accumulate), 1, 1024, NULL, "1", true, "mini-batches a step"},
    {"signround.lr", DPQ_OPTION_REAL, AT(lr), 0, 10, NULL, "0", true,
     "length of the first step of the rounding; 0 means 1/iterations, at most 0.02 (2/iterations from 1000 iterations "
     "at 3 bits or fewer)"},
    {"signround.minmax_lr", DPQ_OPTION_REAL, AT(minmax_lr), 0, 10, NULL, "0", true,
     "length of the first step of the ranges; 0 means as the rounding"},
    {"signround.minmax_tuning", DPQ_OPTION_BOOL, AT(minmax_tuning), 0, 0, NULL, "true", true,
     "tune the ranges of the groups as well"},
    {"signround.momentum", DPQ_OPTION_REAL, AT(momentum), 0, 0.9999, NULL, "0", true,
     "share of the past gradients in a step (adaround: its first decay rate, 0 means 0.9)"},
    {"signround.init_scale", DPQ_OPTION_ENUM, AT(init_scale), 0, 0, init_choices, "search", true,
     "where the scales start: range of the group as it is, or the factor on it with the smallest weighted error"},
    {"signround.best_step", DPQ_OPTION_ENUM, AT(best_step), 0, 0, best_choices, "last", true,
     "which step is kept: lowest loss of a mini-batch, lowest loss of a fixed share of the samples, or the last"},
    {"signround.fixed_share", DPQ_OPTION_REAL, AT(fixed_share), 0.001, 1, NULL, "0.125", true,
     "share of the samples that best_step fixed looks at"},
    {"signround.early_stop", DPQ_OPTION_INT, AT(early_stop), 0, 100000, NULL, "0", true,
     "end a block after this many steps without a lower loss; 0 means never"},
    {"signround.suppress_outliers", DPQ_OPTION_BOOL, AT(suppress_outliers), 0, 0, NULL, "true", true,
     "below 4 bits: leave the largest thousandth of each sample's errors out of the loss"},
    {"signround.seed", DPQ_OPTION_INT, AT(seed), 0, 9007199254740992.0, NULL, "42", true,
     "of the order of the samples"},
    {"signround.search_low", DPQ_OPTION_REAL, AT(search_low), 0.01, 4.0, NULL, "0.5", true,
     "smallest factor of init_scale search"},
    {"signround.search_high", DPQ_OPTION_REAL, AT(search_high), 0.01, 4.0, NULL, "1.2", true,
     "largest factor of init_scale search"},
    {"signround.search_steps", DPQ_OPTION_INT, AT(search_steps), 1, 10000, NULL, "71", true,
     "number of evenly spaced factors, both ends included"},
};
const size_t dpq_signround_option_count = DPQ_COUNT_OF(dpq_signround_option_table);
#undef AT

QUANT_INLINE float sign_of(float x)
{
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f;
}

DPQ_HOT static void sign_step(float lr, const float *restrict gradient, int64_t n, float *restrict value)
{
    for (int64_t i = 0; i < n; i++) {
        value[i] -= lr * sign_of(gradient[i]);
    }
}

DPQ_HOT static void momentum_step(float lr, float momentum, const float *restrict gradient, int64_t n,
                                  float *restrict past, float *restrict value)
{
    for (int64_t i = 0; i < n; i++) {
        past[i] = momentum * past[i] + gradient[i];
        value[i] -= lr * sign_of(past[i]);
    }
}

static int sign_moments(const dpq_tune_options *options)
{
    return options->momentum > 0.0 ? 1 : 0;
}

static void sign_update(const dpq_tune_options *options, int64_t step, float lr, const float *gradient, int64_t n,
                        tune_parameter parameter)
{
    (void)step;
    if (parameter.first) {
        momentum_step(lr, (float)options->momentum, gradient, n, parameter.first, parameter.value);
    } else {
        sign_step(lr, gradient, n, parameter.value);
    }
}

static const tune_rule sign_rule = {.name = "signround", .moments = sign_moments, .update = sign_update};

static dpq_status create_signround(const dpq_tune_options *options, dpq_backend *be, const dpq_tune_linear *linears,
                                   int n, dpq_block_state **out)
{
    return dpq_tune_create(&sign_rule, options, be, linears, n, out);
}

static size_t signround_bytes(const dpq_tune_options *options, int64_t n, int64_t k, int64_t groups)
{
    return dpq_tune_state_bytes(&sign_rule, options, n, k, groups);
}

const dpq_block_algo_ops dpq_signround_ops = {
    .name = "signround",
    .help = "tune rounding and ranges of whole blocks by signed gradient steps",
    .create = create_signround,
    .destroy = dpq_tune_destroy,
    .state_bytes = signround_bytes,
    .weights = dpq_tune_weights,
    .snapshot = dpq_tune_snapshot,
    .step = dpq_tune_step,
    .finish = dpq_tune_finish,
};
