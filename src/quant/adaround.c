/* SPDX-License-Identifier: Apache-2.0 */
/* Adam rounding: the parameters, quantizer and schedule of SignRound, moved by Adam (Kingma and Ba) instead of by
 * signs. No small constant is added below the fraction bar, so that a step does not depend on the size of the loss; a
 * parameter that never had a gradient stays where it is. */
#include <math.h>

#include "tune_priv.h"

#define DECAY_FIRST  0.9
#define DECAY_SECOND 0.999

typedef struct {
    float lr, decay_first, decay_second, correct_first, correct_second;
} adam_rate;

DPQ_HOT static void adam_step(const adam_rate *rate, const float *restrict gradient, int64_t n, float *restrict first,
                              float *restrict second, float *restrict value)
{
    const adam_rate r = *rate;
    for (int64_t i = 0; i < n; i++) {
        first[i] = r.decay_first * first[i] + (1.0f - r.decay_first) * gradient[i];
        second[i] = r.decay_second * second[i] + (1.0f - r.decay_second) * (gradient[i] * gradient[i]);
        float size = sqrtf(second[i] * r.correct_second);
        float move = first[i] * r.correct_first / (size > 0.0f ? size : 1.0f);
        value[i] -= size > 0.0f ? r.lr * move : 0.0f;
    }
}

static int adam_moments(const dpq_tune_options *options)
{
    (void)options;
    return 2;
}

static void adam_update(const dpq_tune_options *options, int64_t step, float lr, const float *gradient, int64_t n,
                        tune_parameter parameter)
{
    double decay_first = options->momentum > 0.0 ? options->momentum : DECAY_FIRST;
    adam_rate rate = {.lr = lr,
                      .decay_first = (float)decay_first,
                      .decay_second = (float)DECAY_SECOND,
                      .correct_first = (float)(1.0 / (1.0 - pow(decay_first, (double)(step + 1)))),
                      .correct_second = (float)(1.0 / (1.0 - pow(DECAY_SECOND, (double)(step + 1))))};
    adam_step(&rate, gradient, n, parameter.first, parameter.second, parameter.value);
}

static const tune_rule adam_rule = {.name = "adaround", .moments = adam_moments, .update = adam_update};

static dpq_status create_adaround(const dpq_tune_options *options, dpq_backend *be, const dpq_tune_linear *linears,
                                  int n, dpq_block_state **out)
{
    return dpq_tune_create(&adam_rule, options, be, linears, n, out);
}

static size_t adaround_bytes(const dpq_tune_options *options, int64_t n, int64_t k, int64_t groups)
{
    return dpq_tune_state_bytes(&adam_rule, options, n, k, groups);
}

const dpq_block_algo_ops dpq_adaround_ops = {
    .name = "adaround",
    .help = "as signround, with Adam steps instead of signed ones",
    .create = create_adaround,
    .destroy = dpq_tune_destroy,
    .state_bytes = adaround_bytes,
    .weights = dpq_tune_weights,
    .snapshot = dpq_tune_snapshot,
    .step = dpq_tune_step,
    .finish = dpq_tune_finish,
};
