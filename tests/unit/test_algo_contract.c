/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of every registered algorithm: statistics folded in R parts and combined give the result of one part,
 * bit for bit, for any dealing of samples to parts, any number of threads, and any dealing of rows to solves. */
#include <math.h>

#include "dpquant/fixsum.h"
#include "quant_test.h"

enum { SAMPLES = 7, K = 200, N = 150 };

typedef struct {
    dpq_tensor x[SAMPLES];
    int64_t tokens;
    double max_sumsq[K];
    int32_t exponent[K];
} calibration;

static void create_calibration(dpq_backend *be, calibration *c)
{
    *c = (calibration){0};
    for (int s = 0; s < SAMPLES; s++) {
        int64_t tokens = 20 + 7 * s;
        assert_int_equal(dpq_tensor_create_2d(DPQ_DTYPE_BF16, tokens, K, &c->x[s]), DPQ_OK);
        for (int64_t i = 0; i < tokens * K; i++) {
            double x = random_unit(60 + (uint64_t)s, (uint64_t)i) * (1.0 + (double)(i % K % 11)) + 0.3;
            ((uint16_t *)c->x[s].data)[i] = dpq_f32_to_bf16((float)x);
        }
        double sumsq[K];
        assert_int_equal(dpq_op_column_sumsq(be, &c->x[s], sumsq), DPQ_OK);
        for (int j = 0; j < K; j++) {
            c->max_sumsq[j] = fmax(c->max_sumsq[j], sumsq[j]);
        }
        c->tokens += tokens;
    }
    assert_int_equal(dpq_fixsum_exponents(c->max_sumsq, K, SAMPLES, c->exponent), DPQ_OK);
}

/* Sums of the samples dealt to PARTS parts, each folded by itself in its own order. */
static void combine(dpq_backend *be, const calibration *c, int parts, int64_t *xtx, int64_t *sumsq)
{
    int64_t count = dpq_xtx_count(K);
    memset(xtx, 0, (size_t)count * sizeof(int64_t));
    memset(sumsq, 0, K * sizeof(int64_t));
    int64_t *part = malloc((size_t)count * sizeof(int64_t));
    assert_non_null(part);
    for (int p = parts - 1; p >= 0; p--) {
        memset(part, 0, (size_t)count * sizeof(int64_t));
        for (int s = p; s < SAMPLES; s += parts) {
            double own[K];
            assert_int_equal(dpq_op_xtx_accumulate(be, &c->x[s], 1, c->exponent, DPQ_COMPUTE_F32, part), DPQ_OK);
            assert_int_equal(dpq_op_column_sumsq(be, &c->x[s], own), DPQ_OK);
            for (int j = 0; j < K; j++) {
                sumsq[j] += llrint(ldexp(own[j], -2 * c->exponent[j]));
            }
        }
        for (int64_t i = 0; i < count; i++) {
            xtx[i] += part[i];
        }
    }
    free(part);
}

static void run(const dpq_linear_algo_ops *algo, dpq_backend *be, const dpq_algo_options *options, const calibration *c,
                int parts, const dpq_tensor *w, dpq_qweight *q)
{
    int64_t *xtx = malloc((size_t)dpq_xtx_count(K) * sizeof(int64_t));
    int64_t sums[K];
    double sumsq[K];
    dpq_factor factor = {0};
    combine(be, c, parts, xtx, sums);
    for (int j = 0; j < K; j++) {
        sumsq[j] = ldexp((double)sums[j], 2 * c->exponent[j]);
    }
    unsigned wanted = algo->stats(options);
    dpq_stage_stats stats = {.k = K,
                             .tokens = c->tokens,
                             .sumsq = wanted & DPQ_STAT_SUMSQ ? sumsq : NULL,
                             .xtx = wanted & DPQ_STAT_XTX ? xtx : NULL,
                             .exponent = wanted & DPQ_STAT_XTX ? c->exponent : NULL};
    if (algo->prepare) {
        assert_int_equal(algo->prepare(options, be, &stats, &factor), DPQ_OK);
    }
    free(xtx); /* the factor stands on its own */
    dpq_scheme scheme = {4, 40, true, true};
    assert_int_equal(dpq_qweight_create(&scheme, N, K, DPQ_DTYPE_BF16, algo->with_g_idx(options, &scheme), q), DPQ_OK);
    dpq_solve_input input = {.module = "m", .w = w, .sumsq = stats.sumsq, .factor = algo->prepare ? &factor : NULL};
    int64_t step = parts == 1 ? N : 64;
    for (int64_t begin = 0; begin < N; begin += step) {
        dpq_method method;
        int64_t end = begin + step < N ? begin + step : N;
        assert_int_equal(algo->solve(options, be, &input, begin, end, q, &method), DPQ_OK);
    }
    assert_int_equal(dpq_qweight_check(q, "m"), DPQ_OK);
    dpq_factor_fini(&factor);
}

static void test_parts_equal_whole(void **state)
{
    (void)state;
    dpq_backend *one = NULL;
    dpq_backend *two = NULL;
    assert_int_equal(dpq_backend_create("cpu", 1, &one), DPQ_OK);
    assert_int_equal(dpq_backend_create("cpu", 2, &two), DPQ_OK);
    calibration c;
    create_calibration(one, &c);
    dpq_tensor w = random_weights(DPQ_DTYPE_BF16, N, K, 12);
    for (int variant = 0; variant < 3; variant++) {
        dpq_algo_options options = default_options();
        options.gptq.order = (dpq_gptq_order)variant;
        options.gptq.group_scales = variant == 0 ? DPQ_GROUP_SCALES_STATIC : DPQ_GROUP_SCALES_DYNAMIC;
        options.rtn.importance = variant != 1;
        for (int a = 0; dpq_algo_at(a); a++) {
            dpq_qweight whole;
            run(dpq_algo_at(a), one, &options, &c, 1, &w, &whole);
            for (int parts = 2; parts <= SAMPLES + 1;
                 parts += parts == 2 ? 1 : 5) { /* 2, 3, 8: one part has no sample */
                dpq_qweight split;
                run(dpq_algo_at(a), two, &options, &c, parts, &w, &split);
                assert_qweights_equal(&whole, &split);
                dpq_qweight_fini(&split);
            }
            dpq_qweight_fini(&whole);
        }
    }
    dpq_tensor_fini(&w);
    for (int s = 0; s < SAMPLES; s++) {
        dpq_tensor_fini(&c.x[s]);
    }
    dpq_backend_destroy(&two);
    dpq_backend_destroy(&one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parts_equal_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
