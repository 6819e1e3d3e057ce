/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of block tuning share: options, one state over one linear, gradients as integers. */
#ifndef DPQUANT_TUNE_TEST_H
#define DPQUANT_TUNE_TEST_H

#include <math.h>
#include <stdio.h>

#include "../../src/quant/tune_priv.h"
#include "quant_test.h"

static inline dpq_tune_options tune_defaults(void)
{
    dpq_tune_options options;
    memset(&options, 0, sizeof options);
    dpq_option_set set = {dpq_signround_option_table, dpq_signround_option_count, &options, NULL};
    assert_int_equal(dpq_option_set_defaults(&set), DPQ_OK);
    return options;
}

static inline dpq_backend *tune_backend(int threads)
{
    dpq_backend *be = NULL;
    assert_int_equal(dpq_backend_create("cpu", threads, &be), DPQ_OK);
    return be;
}

static inline dpq_block_state *tune_start(const char *algorithm, const dpq_tune_options *options, dpq_backend *be,
                                          const dpq_scheme *scheme, const dpq_tensor *w, const double *sumsq)
{
    const dpq_tune_linear linear = {.module = "m", .scheme = *scheme, .w = w, .sumsq = sumsq};
    dpq_block_state *state = NULL;
    assert_int_equal(dpq_block_algo_find(algorithm)->create(options, be, &linear, 1, &state), DPQ_OK);
    return state;
}

/* Gradient of |X (Wq - W)^T|^2 with respect to Wq in whole units of UNIT; x (TOKENS,K). Returns the loss. */
static inline double tune_gradient(const double *x, int64_t tokens, const float *w, const float *wq, int64_t n,
                                   int64_t k, double unit, int32_t *sum)
{
    double loss = 0.0;
    for (int64_t r = 0; r < n; r++) {
        double *gradient = calloc((size_t)k, sizeof(double));
        assert_non_null(gradient);
        for (int64_t t = 0; t < tokens; t++) {
            double y = 0.0;
            for (int64_t j = 0; j < k; j++) {
                y += x[t * k + j] * ((double)wq[r * k + j] - (double)w[r * k + j]);
            }
            loss += y * y;
            for (int64_t j = 0; j < k; j++) {
                gradient[j] += 2.0 * y * x[t * k + j];
            }
        }
        for (int64_t j = 0; j < k; j++) {
            sum[r * k + j] = (int32_t)rint(gradient[j] / unit);
        }
        free(gradient);
    }
    return loss;
}

#endif
