/* SPDX-License-Identifier: Apache-2.0 */
/* RTN: codes and scales of the min-max form against the definition in a plain loop, options, errors, error measure, and
 * equal bits for any split of rows and any number of threads. */
#include <math.h>

#include "quant_test.h"

static dpq_backend *create_backend(int threads)
{
    dpq_backend *be = NULL;
    assert_int_equal(dpq_backend_create("cpu", threads, &be), DPQ_OK);
    return be;
}

/* Min-max as compressed-tensors computes it in fp32: scale, zero point, then rne(clamp(w / s + z)). */
static void expect_reference_row(const dpq_qweight *q, int64_t row, const float *w)
{
    int64_t width = dpq_scheme_group_width(&q->scheme, q->k);
    float levels = (float)((1 << q->scheme.bits) - 1);
    float qmin = (float)-(1 << (q->scheme.bits - 1));
    float qmax = -qmin - 1.0f;
    for (int64_t g = 0; g < q->groups; g++) {
        float lo = 0.0f;
        float hi = 0.0f;
        for (int64_t j = g * width; j < (g + 1) * width; j++) {
            lo = fminf(lo, w[j]);
            hi = fmaxf(hi, w[j]);
        }
        float s = q->scheme.symmetric ? fmaxf(-lo, hi) / (levels / 2.0f) : (hi - lo) / levels;
        s = dpq_grid_round_scale(s, q->scale_dtype);
        float z = q->scheme.symmetric ? 0.0f : rintf(fminf(fmaxf(qmin - lo / s, qmin), qmax));
        assert_true(((float *)q->scale.data)[row * q->groups + g] == s);
        assert_int_equal(((int8_t *)q->zero.data)[row * q->groups + g], (int)z);
        for (int64_t j = g * width; j < (g + 1) * width; j++) {
            float code = rintf(fminf(fmaxf(w[j] / s + z, qmin), qmax));
            assert_int_equal(((int8_t *)q->codes.data)[row * q->k + j], (int)code);
        }
    }
}

static void test_minmax_equals_reference(void **state)
{
    (void)state;
    dpq_backend *be = create_backend(2);
    dpq_algo_options options = default_options();
    options.rtn.search.search = DPQ_SEARCH_MINMAX;
    static const dpq_dtype dtypes[] = {DPQ_DTYPE_F32, DPQ_DTYPE_BF16, DPQ_DTYPE_F16};
    static const int64_t groups[] = {32, 12, -1};
    const int64_t n = 70;
    const int64_t k = 96;
    float *f32 = malloc((size_t)(n * k) * sizeof(float));
    for (int c = 0; c < 42; c++) {
        dpq_scheme scheme = {2 + c % 7, groups[c % 3], c % 2 == 0, false};
        dpq_dtype dtype = dtypes[c / 14];
        dpq_tensor w = random_weights(dtype, n, k, 10 + (uint64_t)c);
        dpq_qweight q;
        assert_int_equal(dpq_qweight_create(&scheme, n, k, dtype, false, &q), DPQ_OK);
        dpq_solve_input input = {.module = "m", .w = &w};
        dpq_method method = DPQ_METHOD_GPTQ;
        assert_int_equal(dpq_algo_find("rtn")->solve(&options, be, &input, 0, n, &q, &method), DPQ_OK);
        assert_int_equal(method, DPQ_METHOD_RTN);
        assert_int_equal(dpq_qweight_check(&q, "m"), DPQ_OK);
        weights_as_f32(&w, f32);
        for (int64_t row = 0; row < n; row++) {
            expect_reference_row(&q, row, f32 + row * k);
        }
        dpq_qweight_fini(&q);
        dpq_tensor_fini(&w);
    }
    free(f32);
    dpq_backend_destroy(&be);
}

static void test_options(void **state)
{
    (void)state;
    dpq_algo_options options = default_options();
    assert_true(options.rtn.importance);
    assert_int_equal(options.rtn.search.steps, 51);
    assert_true(options.rtn.search.low == 0.6 && options.rtn.search.high == 1.1);
    const dpq_linear_algo_ops *rtn = dpq_algo_find("rtn");
    assert_int_equal(rtn->stats(&options), DPQ_STAT_SUMSQ);
    assert_null(rtn->prepare);
    assert_false(rtn->with_g_idx(&options, &(dpq_scheme){4, 32, true, true}));
    options.rtn.search.search = DPQ_SEARCH_MINMAX;
    assert_int_equal(rtn->stats(&options), DPQ_STAT_NONE);
    options = default_options();
    options.rtn.importance = false;
    assert_int_equal(rtn->stats(&options), DPQ_STAT_NONE);
    dpq_option_set set = {dpq_rtn_option_table, dpq_rtn_option_count, &options, NULL};
    size_t index = 0;
    const dpq_option *search = dpq_option_find(&set, 1, "rtn.search", &index);
    assert_non_null(search);
    assert_int_equal(dpq_option_parse(&set, search, "minmax", false, NULL, "test"), DPQ_OK);
    assert_int_equal(options.rtn.search.search, DPQ_SEARCH_MINMAX);
    assert_int_equal(dpq_option_parse(&set, search, "mse", false, NULL, "test"), DPQ_E_CONFIG);
}

/* What each search must do, and the error measure by its definition. */
static void test_searches_and_error(void **state)
{
    (void)state;
    dpq_backend *be = create_backend(1);
    const int64_t n = 5;
    const int64_t k = 64;
    dpq_tensor w = random_weights(DPQ_DTYPE_BF16, n, k, 77);
    float *f32 = malloc((size_t)(n * k) * sizeof(float));
    float *values = malloc((size_t)(n * k) * sizeof(float));
    uint16_t *stored = malloc((size_t)(n * k) * sizeof(uint16_t));
    weights_as_f32(&w, f32);
    double sumsq[64];
    for (int64_t j = 0; j < k; j++) {
        sumsq[j] = j == 3 ? 0.0 : 1e5 * random_unit(78, (uint64_t)j) * random_unit(78, (uint64_t)j) + 1.0;
    }
    double error[3] = {0.0, 0.0, 0.0}; /* weighted, of: minmax, shrink, shrink with importance */
    for (int c = 0; c < 3; c++) {
        dpq_algo_options options = default_options();
        options.rtn.importance = c == 2;
        options.rtn.search.search = c == 0 ? DPQ_SEARCH_MINMAX : DPQ_SEARCH_MSE;
        dpq_scheme scheme = {3, 32, true, true};
        dpq_qweight q;
        assert_int_equal(dpq_qweight_create(&scheme, n, k, DPQ_DTYPE_BF16, false, &q), DPQ_OK);
        dpq_solve_input input = {.module = "m", .w = &w, .sumsq = sumsq};
        dpq_method method;
        assert_int_equal(dpq_algo_find("rtn")->solve(&options, be, &input, 0, n, &q, &method), DPQ_OK);
        dpq_tensor dst = dpq_tensor_wrap_2d(stored, DPQ_DTYPE_BF16, n, k);
        assert_int_equal(dpq_qweight_dequantize(&q, 0, n, &dst), DPQ_OK);
        weights_as_f32(&dst, values);
        double largest = 0.0;
        for (int64_t j = 0; j < k; j++) {
            largest = fmax(largest, sumsq[j]);
        }
        for (int64_t row = 0; row < n; row++) {
            double expected[2] = {0.0, 0.0};
            for (int64_t j = 0; j < k; j++) {
                double x = f32[row * k + j];
                double d = x - (double)values[row * k + j];
                double weight = c == 2 ? sumsq[j] / largest : 1.0;
                expected[0] += weight * d * d;
                expected[1] += weight * x * x;
                error[c] += sumsq[j] * d * d;
            }
            const double *got = (const double *)q.row_error.data + 2 * row;
            assert_true(fabs(got[0] - expected[0]) <= 1e-6 * expected[0]);
            assert_true(fabs(got[1] - expected[1]) <= 1e-6 * expected[1]);
        }
        dpq_qweight_fini(&q);
    }
    assert_true(error[1] < error[0]);
    assert_true(error[2] < error[1]);
    free(stored);
    free(values);
    free(f32);
    dpq_tensor_fini(&w);
    dpq_backend_destroy(&be);
}

static void test_any_split_of_rows(void **state)
{
    (void)state;
    const int64_t n = 200;
    const int64_t k = 96;
    dpq_tensor w = random_weights(DPQ_DTYPE_F32, n, k, 5);
    double sumsq[96];
    for (int64_t j = 0; j < k; j++) {
        sumsq[j] = fabs(random_unit(6, (uint64_t)j));
    }
    dpq_algo_options options = default_options();
    dpq_scheme scheme = {4, 32, false, false};
    dpq_solve_input input = {.module = "m", .w = &w, .sumsq = sumsq};
    dpq_qweight whole;
    dpq_qweight parts;
    dpq_method method;
    assert_int_equal(dpq_qweight_create(&scheme, n, k, DPQ_DTYPE_F16, false, &whole), DPQ_OK);
    assert_int_equal(dpq_qweight_create(&scheme, n, k, DPQ_DTYPE_F16, false, &parts), DPQ_OK);
    dpq_backend *one = create_backend(1);
    dpq_backend *three = create_backend(3);
    const dpq_linear_algo_ops *rtn = dpq_algo_find("rtn");
    assert_int_equal(rtn->solve(&options, one, &input, 0, n, &whole, &method), DPQ_OK);
    assert_int_equal(rtn->solve(&options, three, &input, 128, n, &parts, &method), DPQ_OK);
    assert_int_equal(rtn->solve(&options, three, &input, 0, 64, &parts, &method), DPQ_OK);
    assert_int_equal(rtn->solve(&options, three, &input, 64, 128, &parts, &method), DPQ_OK);
    assert_int_equal(rtn->solve(&options, three, &input, 64, 64, &parts, &method), DPQ_OK);
    assert_qweights_equal(&whole, &parts);
    dpq_backend_destroy(&one);
    dpq_backend_destroy(&three);
    dpq_qweight_fini(&whole);
    dpq_qweight_fini(&parts);
    dpq_tensor_fini(&w);
}

static void expect_failure(dpq_backend *be, const dpq_algo_options *options, const dpq_solve_input *input,
                           int64_t begin, dpq_qweight *q, dpq_status expected, const char *words)
{
    dpq_method method;
    assert_int_equal(dpq_algo_find("rtn")->solve(options, be, input, begin, q->n, q, &method), expected);
    assert_non_null(strstr(dpq_error_last()->text, "layers.7.q_proj"));
    assert_non_null(strstr(dpq_error_last()->text, words));
}

static void test_errors(void **state)
{
    (void)state;
    dpq_backend *be = create_backend(2);
    dpq_algo_options options = default_options();
    dpq_scheme scheme = {4, 32, true, true};
    dpq_tensor w = random_weights(DPQ_DTYPE_F32, 130, 64, 1);
    dpq_tensor narrow = random_weights(DPQ_DTYPE_F32, 130, 32, 1);
    dpq_tensor integers;
    assert_int_equal(dpq_tensor_create_2d(DPQ_DTYPE_I32, 130, 64, &integers), DPQ_OK);
    dpq_qweight q;
    assert_int_equal(dpq_qweight_create(&scheme, 130, 64, DPQ_DTYPE_F32, false, &q), DPQ_OK);
    dpq_solve_input input = {.module = "layers.7.q_proj", .w = &w};
    expect_failure(be, &options, &input, 0, &q, DPQ_E_BUG, "sums of squared inputs");
    options.rtn.importance = false;
    expect_failure(be, &options, &input, 3, &q, DPQ_E_SHAPE, "multiple of 64");
    ((float *)w.data)[100 * 64 + 17] = NAN;
    expect_failure(be, &options, &input, 0, &q, DPQ_E_NUMERIC, "row 100, column 17 is nan");
    ((float *)w.data)[70 * 64 + 1] = -INFINITY;
    expect_failure(be, &options, &input, 0, &q, DPQ_E_NUMERIC, "row 70, column 1 is -inf");
    input.w = &narrow;
    expect_failure(be, &options, &input, 0, &q, DPQ_E_SHAPE, "(130, 32); expected row-major (130, 64)");
    input.w = &integers;
    expect_failure(be, &options, &input, 0, &q, DPQ_E_UNSUPPORTED, "I32");
    dpq_qweight_fini(&q);
    dpq_tensor_fini(&integers);
    dpq_tensor_fini(&narrow);
    dpq_tensor_fini(&w);
    dpq_backend_destroy(&be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_minmax_equals_reference),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_searches_and_error),
        cmocka_unit_test(test_any_split_of_rows),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
