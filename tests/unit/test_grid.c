/* SPDX-License-Identifier: Apache-2.0 */
/* Grids of groups: hand-computed scales, zero points and codes; guards; the search against all candidates in fp64;
 * ties. */
#include <float.h>
#include <math.h>

#include "quant_test.h"

static const dpq_search_options minmax = {DPQ_SEARCH_MINMAX, 0.6, 1.1, 51};
static const dpq_scheme plain4 = {4, -1, true, false};
static const dpq_scheme signed4 = {4, -1, true, true};
static const dpq_scheme asym4 = {4, -1, false, false};

static dpq_grid range_grid(dpq_scheme scheme, const float *w, int64_t n)
{
    float work[3 * 16];
    return dpq_grid_choose(&scheme, &minmax, DPQ_DTYPE_F32, w, NULL, n, work);
}

static void expect_codes(dpq_scheme scheme, dpq_grid grid, const float *w, const int *codes, int n)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(dpq_grid_code(&scheme, grid, w[i]), codes[i]);
    }
}

static void test_symmetric_plain(void **state)
{
    (void)state;
    const float w[] = {1.0f, -7.5f, 3.0f, 0.0f, 2.5f, 3.5f, -0.5f, 7.5f};
    const int codes[] = {1, -8, 3, 0, 2, 4, 0, 7}; /* ties to even; 7.5 is clamped */
    dpq_grid grid = range_grid(plain4, w, 8);
    assert_true(grid.scale == 1.0f && grid.zero == 0);
    expect_codes(plain4, grid, w, codes, 8);
    const dpq_scheme plain8 = {8, -1, true, false};
    const float v[] = {-127.5f, 0.49f};
    assert_true(range_grid(plain8, v, 2).scale == 1.0f);
    assert_int_equal(dpq_grid_code(&plain8, range_grid(plain8, v, 2), -127.5f), -128);
}

static void test_symmetric_signed(void **state)
{
    (void)state;
    const float low[] = {-8.0f, 3.5f, 7.9f};
    const int low_codes[] = {-8, 4, 7};
    dpq_grid grid = range_grid(signed4, low, 3);
    assert_true(grid.scale == 1.0f);
    expect_codes(signed4, grid, low, low_codes, 3);
    const float high[] = {8.0f, -3.0f, 7.6f};
    const int high_codes[] = {-8, 3, -8};
    grid = range_grid(signed4, high, 3);
    assert_true(grid.scale == -1.0f && grid.zero == 0);
    expect_codes(signed4, grid, high, high_codes, 3);
    assert_true(dpq_grid_value(grid, -8) == 8.0f);
    const float tie[] = {8.0f, -8.0f};
    grid = range_grid(signed4, tie, 2);
    assert_true(grid.scale == 1.0f);
    const dpq_scheme signed2 = {2, -1, true, true};
    assert_true(range_grid(signed2, high, 3).scale == -4.0f);
}

static void test_asymmetric(void **state)
{
    (void)state;
    const float w[] = {-1.0f, 14.0f, 0.0f, 6.4f};
    const int codes[] = {-8, 7, -7, -1};
    dpq_grid grid = range_grid(asym4, w, 4);
    assert_true(grid.scale == 1.0f);
    assert_int_equal(grid.zero, -7);
    expect_codes(asym4, grid, w, codes, 4);
    assert_true(dpq_grid_value(grid, -7) == 0.0f);
    const float positive[] = {2.0f, 30.0f};
    grid = range_grid(asym4, positive, 2);
    assert_true(grid.scale == 2.0f);
    assert_int_equal(grid.zero, -8);
    assert_int_equal(dpq_grid_code(&asym4, grid, 30.0f), 7);
    const float negative[] = {-30.0f, -2.0f};
    grid = range_grid(asym4, negative, 2);
    assert_true(grid.scale == 2.0f);
    assert_int_equal(grid.zero, 7);
    assert_int_equal(dpq_grid_code(&asym4, grid, -30.0f), -8);
    /* The zero point is added before rounding: 2.5 - 7 = -4.5 goes to -4, not to 2 - 7. */
    assert_int_equal(dpq_grid_code(&asym4, (dpq_grid){1.0f, -7}, 2.5f), -4);
    assert_int_equal(dpq_grid_code(&asym4, (dpq_grid){1.0f, -7}, 1e30f), 7);
    assert_int_equal(dpq_grid_code(&asym4, (dpq_grid){1.0f, -7}, -1e30f), -8);
}

static void test_zero_groups(void **state)
{
    (void)state;
    const float zeros[20] = {0};
    float work[60];
    const dpq_search_options search = {DPQ_SEARCH_IMPORTANCE, 0.6, 1.1, 51};
    const dpq_scheme schemes[] = {plain4, signed4, asym4};
    for (int i = 0; i < 3; i++) {
        dpq_grid grid = dpq_grid_choose(&schemes[i], &search, DPQ_DTYPE_F16, zeros, NULL, 20, work);
        assert_true(grid.scale == 1.0f && grid.zero == 0);
        assert_int_equal(dpq_grid_code(&schemes[i], grid, 0.0f), 0);
    }
}

static void test_round_scale(void **state)
{
    (void)state;
    assert_true(dpq_grid_round_scale(0.1f, DPQ_DTYPE_F32) == 0.1f);
    assert_true(dpq_grid_round_scale(0.1f, DPQ_DTYPE_BF16) == dpq_bf16_to_f32(dpq_f32_to_bf16(0.1f)));
    assert_true(dpq_grid_round_scale(-0.1f, DPQ_DTYPE_F16) == dpq_f16_to_f32(dpq_f32_to_f16(-0.1f)));
    assert_true(dpq_grid_round_scale(1e-30f, DPQ_DTYPE_F16) == 0x1p-14f);
    assert_true(dpq_grid_round_scale(-1e-30f, DPQ_DTYPE_F16) == -0x1p-14f);
    assert_true(dpq_grid_round_scale(0x1p-15f, DPQ_DTYPE_F16) == 0x1p-14f); /* subnormal */
    assert_true(dpq_grid_round_scale(1e-45f, DPQ_DTYPE_BF16) == FLT_MIN);
    assert_true(dpq_grid_round_scale(-1e-40f, DPQ_DTYPE_F32) == -FLT_MIN);
    assert_true(dpq_grid_round_scale(0.0f, DPQ_DTYPE_F32) == FLT_MIN);
    assert_true(dpq_grid_round_scale(1e6f, DPQ_DTYPE_F16) == 65504.0f);
    assert_true(dpq_grid_round_scale(-1e6f, DPQ_DTYPE_F16) == -65504.0f);
    assert_true(dpq_grid_round_scale(FLT_MAX, DPQ_DTYPE_BF16) == 0x1.fep127f);
    assert_true(dpq_grid_round_scale(INFINITY, DPQ_DTYPE_F32) == FLT_MAX);
}

/* The definition of a candidate, written out once more. */
static dpq_grid candidate(dpq_scheme s, dpq_dtype dtype, const float *w, int n, float factor)
{
    float lo = 0.0f;
    float hi = 0.0f;
    for (int i = 0; i < n; i++) {
        lo = fminf(lo, w[i]);
        hi = fmaxf(hi, w[i]);
    }
    dpq_grid grid = {0.0f, 0};
    float range = (float)((1 << s.bits) - 1);
    if (!s.symmetric) {
        grid.scale = dpq_grid_round_scale((hi * factor - lo * factor) / range, dtype);
        float qmin = (float)-(1 << (s.bits - 1));
        grid.zero = (int)rintf(fminf(fmaxf(qmin - lo * factor / grid.scale, qmin), -qmin - 1.0f));
    } else if (s.signed_scale) {
        float extreme = -lo >= hi ? lo : hi;
        grid.scale = dpq_grid_round_scale(-extreme * factor / (float)(1 << (s.bits - 1)), dtype);
    } else {
        grid.scale = dpq_grid_round_scale(fmaxf(-lo, hi) * factor / (range / 2.0f), dtype);
    }
    return grid;
}

static double weighted_error(dpq_scheme s, dpq_grid grid, const float *w, const float *importance, int n)
{
    double sum = 0.0;
    double low = -(double)(1 << (s.bits - 1));
    for (int i = 0; i < n; i++) {
        double q = fmin(fmax(rint((double)w[i] / grid.scale) + grid.zero, low), -low - 1.0);
        double d = (double)w[i] - (q - grid.zero) * (double)grid.scale;
        sum += (importance ? (double)importance[i] : 1.0) * d * d;
    }
    return sum;
}

static void test_search_against_all_candidates(void **state)
{
    (void)state;
    static const int widths[] = {1, 2, 5, 15, 16, 17, 32, 100, 128};
    static const dpq_dtype dtypes[] = {DPQ_DTYPE_F32, DPQ_DTYPE_BF16, DPQ_DTYPE_F16};
    int moved = 0;
    for (int trial = 0; trial < 400; trial++) {
        int n = widths[trial % 9];
        dpq_scheme s = {2 + trial % 7, -1, trial % 3 != 0, trial % 3 == 1};
        dpq_dtype dtype = dtypes[trial / 9 % 3];
        bool weighted = trial % 2 == 0;
        dpq_search_options search = {weighted ? DPQ_SEARCH_IMPORTANCE : DPQ_SEARCH_MSE, 0.6, 1.1, trial % 5 ? 51 : 150};
        float w[128];
        float importance[128];
        float work[3 * 128];
        for (int i = 0; i < n; i++) {
            w[i] = random_weight(100 + (uint64_t)trial, (uint64_t)i);
            double x = random_unit(900 + (uint64_t)trial, (uint64_t)i);
            importance[i] = i % 4 == 3 ? 0.0f : (float)(1e6 * x * x);
        }
        dpq_grid got = dpq_grid_choose(&s, &search, dtype, w, importance, n, work);
        double got_error = weighted_error(s, got, w, weighted ? importance : NULL, n);
        bool is_candidate = false;
        double size = 0.0;
        for (int i = 0; i < n; i++) {
            size += (weighted ? (double)importance[i] : 1.0) * (double)w[i] * (double)w[i];
        }
        for (int64_t i = 0; i < search.steps; i++) {
            float factor = (float)(0.6 + (1.1 - 0.6) * (double)i / (double)(search.steps - 1));
            dpq_grid grid = candidate(s, dtype, w, n, factor);
            is_candidate = is_candidate || (grid.scale == got.scale && grid.zero == got.zero);
            double error = weighted_error(s, grid, w, weighted ? importance : NULL, n);
            /* fp32 rounding of each error term and of w / s near a tie */
            assert_true(got_error <= error * (1.0 + 1e-4) + size * 1e-9);
        }
        assert_true(is_candidate);
        dpq_grid whole = candidate(s, dtype, w, n, 1.0f);
        moved += whole.scale != got.scale;
    }
    assert_true(moved > 200);
}

static void test_ties(void **state)
{
    (void)state;
    /* Only the weight 0 counts, and it is exact on any grid: all factors tie, and the one nearest to 1 is kept. */
    const float w[] = {8.0f, 0.0f};
    const float importance[] = {0.0f, 1.0f};
    float work[6];
    dpq_search_options search = {DPQ_SEARCH_IMPORTANCE, 0.6, 1.1, 51};
    assert_true(dpq_grid_choose(&signed4, &search, DPQ_DTYPE_F32, w, importance, 2, work).scale == -1.0f);
    search = (dpq_search_options){DPQ_SEARCH_IMPORTANCE, 0.5, 1.5, 2}; /* equally near: the smaller */
    assert_true(dpq_grid_choose(&signed4, &search, DPQ_DTYPE_F32, w, importance, 2, work).scale == -0.5f);
    search = (dpq_search_options){DPQ_SEARCH_IMPORTANCE, 0.5, 1.25, 2};
    assert_true(dpq_grid_choose(&signed4, &search, DPQ_DTYPE_F32, w, importance, 2, work).scale == -1.25f);
    search = (dpq_search_options){DPQ_SEARCH_IMPORTANCE, 0.75, 1.25, 1}; /* one step: the low end */
    assert_true(dpq_grid_choose(&signed4, &search, DPQ_DTYPE_F32, w, importance, 2, work).scale == -0.75f);
    /* Across passes of candidates: many steps, exact 1 in the second half. */
    search = (dpq_search_options){DPQ_SEARCH_IMPORTANCE, 0.0625, 1.0625, 257};
    assert_true(dpq_grid_choose(&signed4, &search, DPQ_DTYPE_F32, w, importance, 2, work).scale == -1.0f);
}

static void test_importance_of_zeros_counts_as_ones(void **state)
{
    (void)state;
    float w[33];
    float work[99];
    const float zeros[33] = {0};
    for (int i = 0; i < 33; i++) {
        w[i] = random_weight(3, (uint64_t)i);
    }
    dpq_search_options weighted = {DPQ_SEARCH_IMPORTANCE, 0.6, 1.1, 51};
    dpq_search_options equal = {DPQ_SEARCH_MSE, 0.6, 1.1, 51};
    dpq_grid expected = dpq_grid_choose(&plain4, &equal, DPQ_DTYPE_F32, w, NULL, 33, work);
    assert_true(dpq_grid_choose(&plain4, &weighted, DPQ_DTYPE_F32, w, zeros, 33, work).scale == expected.scale);
    assert_true(dpq_grid_choose(&plain4, &weighted, DPQ_DTYPE_F32, w, NULL, 33, work).scale == expected.scale);
    assert_true(expected.scale != range_grid(plain4, w, 33).scale);
}

/* Powers of two on weights and importance change nothing but the scale, also where squares would leave the range of
 * fp32. */
static void test_any_magnitude(void **state)
{
    (void)state;
    float w[32];
    float importance[32];
    float scaled_w[32];
    float scaled_importance[32];
    float work[96];
    for (int i = 0; i < 32; i++) {
        w[i] = random_weight(4, (uint64_t)i);
        importance[i] = (float)fabs(random_unit(5, (uint64_t)i));
    }
    dpq_search_options search = {DPQ_SEARCH_IMPORTANCE, 0.6, 1.1, 51};
    const int powers[][2] = {{-40, -100}, {30, 100}, {-40, 120}, {40, -120}};
    for (int p = 0; p < 4; p++) {
        for (int i = 0; i < 32; i++) {
            scaled_w[i] = ldexpf(w[i], powers[p][0]);
            scaled_importance[i] = ldexpf(importance[i], powers[p][1]);
        }
        dpq_grid a = dpq_grid_choose(&asym4, &search, DPQ_DTYPE_F32, w, importance, 32, work);
        dpq_grid b = dpq_grid_choose(&asym4, &search, DPQ_DTYPE_F32, scaled_w, scaled_importance, 32, work);
        assert_true(ldexpf(a.scale, powers[p][0]) == b.scale);
        assert_int_equal(a.zero, b.zero);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_symmetric_plain),
        cmocka_unit_test(test_symmetric_signed),
        cmocka_unit_test(test_asymmetric),
        cmocka_unit_test(test_zero_groups),
        cmocka_unit_test(test_round_scale),
        cmocka_unit_test(test_search_against_all_candidates),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_importance_of_zeros_counts_as_ones),
        cmocka_unit_test(test_any_magnitude),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
