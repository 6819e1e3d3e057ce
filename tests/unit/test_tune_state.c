/* SPDX-License-Identifier: Apache-2.0 */
/* Block tuning apart from its formulas: gradients against finite differences, weights as a loader sees the codes, equal
 * bits for any threads, initial scales, best step, Adam steps, memory figures, bad input. */
#include "dpquant/half.h"
#include "tune_test.h"

#define WIDTH 48

/* ---- gradients of the quantizer against finite differences */

typedef struct {
    tune_quantizer quantizer;
    float low, high;
    float w[WIDTH], v[WIDTH];
    int32_t sum[WIDTH];
    /* what straight-through rounding holds fixed: what rounding adds, and which codes are at a bound */
    double added[WIDTH], zero_added;
    bool at_bound[WIDTH];
    double code[WIDTH];
    double sign;
    bool low_is_larger, zero_follows;
    double zero;
} smooth_case;

/* sum_j gradient_j value_j with all roundings replaced by fixed additions. */
static double smooth_loss(const smooth_case *c, double min_scale, double max_scale, int moved, double by)
{
    double n = (double)(1 << (c->quantizer.bits - 1));
    double lower = c->low * min_scale;
    double upper = c->high * max_scale;
    double s = 0.0;
    double zero = 0.0;
    switch (c->quantizer.form) {
    case TUNE_FORM_SCALE:
        s = upper;
        break;
    case TUNE_FORM_SIGNED:
        s = c->sign * (c->low_is_larger ? -lower : upper) / n;
        break;
    case TUNE_FORM_PLAIN:
        s = (c->low_is_larger ? -lower : upper) / ((2.0 * n - 1.0) / 2.0);
        break;
    case TUNE_FORM_RANGE:
        s = (upper - lower) / (2.0 * n - 1.0);
        zero = c->zero_follows ? -n - lower / s + c->zero_added : c->zero;
        break;
    }
    double loss = 0.0;
    for (int j = 0; j < WIDTH; j++) {
        double shift = (double)c->v[j] + (j == moved ? by : 0.0);
        double position = c->at_bound[j] ? c->code[j] - zero : c->w[j] / s + shift + c->added[j];
        loss += c->sum[j] * position * s;
    }
    return loss;
}

static void make_case(smooth_case *c, tune_form form, int bits, uint64_t stream, float min_scale, float max_scale)
{
    *c = (smooth_case){.quantizer = {.form = form, .bits = bits, .scale_dtype = DPQ_DTYPE_F32}};
    double n = (double)(1 << (bits - 1));
    for (int j = 0; j < WIDTH; j++) {
        c->w[j] = random_weight(stream, (uint64_t)j);
        c->v[j] = 0.4f * (float)random_unit(stream + 1, (uint64_t)j);
        c->sum[j] = (int32_t)(1000.0 * random_unit(stream + 2, (uint64_t)j));
        c->low = fminf(c->low, c->w[j]);
        c->high = fmaxf(c->high, c->w[j]);
    }
    c->low_is_larger = -c->low * min_scale > c->high * max_scale;
    c->sign = c->low_is_larger ? 1.0 : -1.0;
    if (form == TUNE_FORM_SCALE) {
        c->low = 0.0f;
        c->high = (stream % 2 ? -1.0f : 1.0f) * c->high / (float)n;
    }
    tune_grid grid = dpq_tune_grid(&c->quantizer, c->low, c->high, min_scale, max_scale);
    c->zero = grid.zero;
    c->zero_follows = form == TUNE_FORM_RANGE && -c->low * min_scale / grid.scale <= 2.0 * n - 1.0;
    c->zero_added = grid.zero - (-n - (double)c->low * min_scale / grid.scale);
    for (int j = 0; j < WIDTH; j++) {
        double free_code = rint(c->w[j] / grid.scale + c->v[j]) + grid.zero;
        c->at_bound[j] = free_code < -n || free_code > n - 1.0;
        c->code[j] = free_code < -n ? -n : n - 1.0;
        c->added[j] = free_code - grid.zero - ((double)c->w[j] / grid.scale + c->v[j]);
    }
}

static void expect_near(double found, double expected, double size)
{
    if (!(fabs(found - expected) <= 2e-4 * size)) {
        fail_msg("gradient %g, expected %g (terms of size %g)", found, expected, size);
    }
}

static void test_gradients_by_differences(void **state)
{
    (void)state;
    static const tune_form forms[] = {TUNE_FORM_SIGNED, TUNE_FORM_PLAIN, TUNE_FORM_SCALE, TUNE_FORM_RANGE};
    const double h = 1e-6;
    for (uint64_t i = 0; i < 4 * 7 * 4; i++) {
        smooth_case c;
        float max_scale = i / 28 % 2 ? 0.95f : 0.4f;
        float min_scale = i / 56 % 2 ? 0.9f : 0.6f;
        make_case(&c, forms[i % 4], 2 + (int)(i / 4 % 7), 40 + 3 * i, min_scale, max_scale);
        tune_grid grid = dpq_tune_grid(&c.quantizer, c.low, c.high, min_scale, max_scale);
        float by_v[WIDTH];
        tune_range_gradient sums = dpq_tune_gradient(&grid, c.w, c.v, c.sum, 1.0f, WIDTH, by_v);
        double size = 0.0;
        for (int j = 0; j < WIDTH; j++) {
            size += fabs(c.sum[j] * (double)c.w[j]) + fabs(c.sum[j] * (double)grid.scale);
            double slope =
                (smooth_loss(&c, min_scale, max_scale, j, h) - smooth_loss(&c, min_scale, max_scale, j, -h)) /
                (2.0 * h);
            expect_near(by_v[j], slope, fabs(c.sum[j] * (double)grid.scale) + 1e-6);
        }
        double by_max =
            (smooth_loss(&c, min_scale, max_scale + h, -1, 0.0) - smooth_loss(&c, min_scale, max_scale - h, -1, 0.0)) /
            (2.0 * h);
        double by_min =
            (smooth_loss(&c, min_scale + h, max_scale, -1, 0.0) - smooth_loss(&c, min_scale - h, max_scale, -1, 0.0)) /
            (2.0 * h);
        expect_near((double)sums.scale * grid.by_max, by_max, size);
        expect_near((double)sums.scale * grid.by_min + (double)sums.low * c.low, by_min, size);
    }
}

/* At the guard the scale does not move, so neither may its parameters; a group of zeros is left alone. */
static void test_guard_and_zeros(void **state)
{
    (void)state;
    const tune_form forms[] = {TUNE_FORM_SIGNED, TUNE_FORM_PLAIN, TUNE_FORM_SCALE, TUNE_FORM_RANGE};
    const dpq_dtype dtypes[] = {DPQ_DTYPE_BF16, DPQ_DTYPE_F16, DPQ_DTYPE_F32};
    for (int i = 0; i < 12; i++) {
        tune_quantizer quantizer = {.form = forms[i % 4], .bits = 4, .scale_dtype = dtypes[i / 4]};
        tune_grid grid = dpq_tune_grid(&quantizer, -0.5f, 0.25f, 0.0f, 0.0f);
        assert_true(grid.scale > 0.0f && grid.scale < 1e-4f && isfinite(grid.scale));
        assert_true(grid.by_min == 0.0f && grid.by_max == 0.0f && !grid.frozen);
        if (i % 4 < 2) { /* two ends alike: half the gradient each, positive scale */
            float levels = i % 4 == 0 ? 8.0f : 7.5f;
            grid = dpq_tune_grid(&quantizer, -0.5f, 0.5f, 1.0f, 1.0f);
            assert_true(grid.scale > 0.0f);
            assert_true(grid.by_min == 0.5f * (0.5f / levels) && grid.by_max == 0.5f * (0.5f / levels));
        }
        grid = dpq_tune_grid(&quantizer, 0.0f, 0.0f, 1.0f, 1.0f);
        assert_true(grid.frozen && grid.scale == 1.0f && grid.zero == 0.0f);
    }
}

/* ---- states */

/* Steps with made-up gradients; codes after them. */
static void run_steps(const char *algorithm, const dpq_tune_options *options, dpq_backend *be, const dpq_scheme *scheme,
                      const dpq_tensor *w, const double *sumsq, dpq_tensor *wq, dpq_qweight *q)
{
    const dpq_block_algo_ops *ops = dpq_block_algo_find(algorithm);
    dpq_block_state *state = tune_start(algorithm, options, be, scheme, w, sumsq);
    int64_t count = dpq_tensor_count(w);
    int32_t *sum = malloc((size_t)count * sizeof *sum);
    assert_non_null(sum);
    for (int step = 0; step < options->iterations; step++) {
        for (int64_t i = 0; i < count; i++) {
            sum[i] = (int32_t)(1e8 * random_unit(300 + (uint64_t)step, (uint64_t)i));
        }
        assert_int_equal(ops->step(state, step, 0, sum, ldexp(1.0, -40 - step)), DPQ_OK);
    }
    assert_int_equal(ops->weights(state, 0, wq), DPQ_OK);
    assert_int_equal(ops->finish(state, false, 0, q), DPQ_OK);
    free(sum);
    ops->destroy(&state);
}

/* Any threads: the same bits. The weights of a step are the codes' values as a loader computes them, rounded to the
 * source type. */
static void test_threads_and_weights(void **context)
{
    (void)context;
    static const dpq_dtype dtypes[] = {DPQ_DTYPE_BF16, DPQ_DTYPE_F32, DPQ_DTYPE_F16};
    const int64_t n = 75;
    const int64_t k = 120;
    double sumsq[120];
    for (int j = 0; j < 120; j++) {
        sumsq[j] = 1.0 + j % 7;
    }
    for (int c = 0; c < 24; c++) {
        dpq_scheme scheme = {2 + c % 7, c % 2 ? 40 : -1, c % 3 != 0, c % 3 == 1};
        dpq_dtype dtype = dtypes[c / 8];
        dpq_tensor w = random_weights(dtype, n, k, 70 + (uint64_t)c);
        dpq_tune_options options = tune_defaults();
        options.iterations = 6;
        options.momentum = c % 4 ? 0.0 : 0.9;
        options.init_scale = c % 5 ? DPQ_INIT_SCALE_SEARCH : DPQ_INIT_SCALE_MINMAX;
        dpq_tensor wq[3];
        dpq_qweight q[3];
        for (int t = 0; t < 3; t++) {
            static const int threads[] = {1, 2, 5};
            dpq_backend *be = tune_backend(threads[t]);
            dpq_dtype wq_dtype = dtype == DPQ_DTYPE_BF16 && c % 2 ? DPQ_DTYPE_BF16 : DPQ_DTYPE_F32;
            assert_int_equal(dpq_tensor_create_2d(wq_dtype, n, k, &wq[t]), DPQ_OK);
            assert_int_equal(dpq_qweight_create(&scheme, n, k, dtype, false, &q[t]), DPQ_OK);
            run_steps(c % 2 ? "signround" : "adaround", &options, be, &scheme, &w, sumsq, &wq[t], &q[t]);
            assert_tensor_bytes_equal(&wq[0], &wq[t]);
            assert_qweights_equal(&q[0], &q[t]);
            dpq_backend_destroy(&be);
        }
        assert_int_equal(dpq_qweight_check(&q[0], "m"), DPQ_OK);
        assert_int_equal(dpq_qweight_dequantize(&q[0], 0, n, &wq[1]), DPQ_OK);
        if (wq[1].dtype == DPQ_DTYPE_F32 && dtype != DPQ_DTYPE_F32) { /* that gives fp32 values: round them */
            uint16_t *half = malloc((size_t)(n * k) * sizeof *half);
            assert_int_equal(dpq_convert(wq[1].data, DPQ_DTYPE_F32, half, dtype, n * k), DPQ_OK);
            assert_int_equal(dpq_convert(half, dtype, wq[1].data, DPQ_DTYPE_F32, n * k), DPQ_OK);
            free(half);
        }
        float *a = malloc((size_t)(n * k) * sizeof *a);
        float *b = malloc((size_t)(n * k) * sizeof *b);
        weights_as_f32(&wq[0], a);
        weights_as_f32(&wq[1], b);
        for (int64_t i = 0; i < n * k; i++) {
            assert_true(a[i] == b[i]);
        }
        free(a);
        free(b);
        for (int t = 0; t < 3; t++) {
            dpq_tensor_fini(&wq[t]);
            dpq_qweight_fini(&q[t]);
        }
        dpq_tensor_fini(&w);
    }
}

/* Without a step the searched start is the grid of the search itself, and rounding to the nearest; its error is what
 * finish says. */
static void test_start_is_search(void **context)
{
    (void)context;
    dpq_backend *be = tune_backend(2);
    const int64_t n = 20;
    const int64_t k = 96;
    double sumsq[96];
    float importance[96];
    for (int j = 0; j < 96; j++) {
        sumsq[j] = 3.0 * (1 + j % 5);
        importance[j] = (float)(sumsq[j] / 15.0);
    }
    for (int c = 0; c < 21; c++) {
        dpq_scheme scheme = {2 + c % 7, 48, c / 7 != 2, c / 7 == 0};
        dpq_tensor w = random_weights(DPQ_DTYPE_BF16, n, k, 200 + (uint64_t)c);
        float *f32 = malloc((size_t)(n * k) * sizeof *f32);
        weights_as_f32(&w, f32);
        dpq_tune_options options = tune_defaults();
        options.iterations = 0;
        const dpq_search_options search = {DPQ_SEARCH_IMPORTANCE, options.search_low, options.search_high,
                                           options.search_steps};
        dpq_tensor wq;
        dpq_qweight q;
        assert_int_equal(dpq_tensor_create_2d(DPQ_DTYPE_F32, n, k, &wq), DPQ_OK);
        assert_int_equal(dpq_qweight_create(&scheme, n, k, DPQ_DTYPE_BF16, false, &q), DPQ_OK);
        run_steps("signround", &options, be, &scheme, &w, sumsq, &wq, &q);
        for (int64_t g = 0; g < n * 2; g++) {
            float work[3 * 48];
            dpq_grid grid =
                dpq_grid_choose(&scheme, &search, DPQ_DTYPE_BF16, f32 + g * 48, importance + g % 2 * 48, 48, work);
            assert_true(((float *)q.scale.data)[g] == grid.scale);
            assert_int_equal(((int8_t *)q.zero.data)[g], grid.zero);
        }
        for (int64_t row = 0; row < n; row++) {
            double error = 0.0;
            double signal = 0.0;
            for (int64_t i = row * k; i < (row + 1) * k; i++) {
                double d = (double)f32[i] - (double)((float *)wq.data)[i];
                error += d * d;
                signal += (double)f32[i] * (double)f32[i];
            }
            assert_true(((double *)q.row_error.data)[2 * row] == error);
            assert_true(((double *)q.row_error.data)[2 * row + 1] == signal);
        }
        dpq_qweight_fini(&q);
        dpq_tensor_fini(&wq);
        free(f32);
        dpq_tensor_fini(&w);
    }
    dpq_backend_destroy(&be);
}

/* The snapshot is what finish would have said when it was taken; a step does not depend on the size of the unit. */
static void test_best_step(void **context)
{
    (void)context;
    dpq_backend *be = tune_backend(2);
    const dpq_block_algo_ops *ops = dpq_block_algo_find("signround");
    dpq_scheme scheme = {3, 32, false, false};
    dpq_tensor w = random_weights(DPQ_DTYPE_F16, 33, 64, 5);
    dpq_tune_options options = tune_defaults();
    options.iterations = 4;
    dpq_block_state *state = tune_start("signround", &options, be, &scheme, &w, NULL);
    dpq_qweight q[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(dpq_qweight_create(&scheme, 33, 64, DPQ_DTYPE_F16, false, &q[i]), DPQ_OK);
    }
    assert_int_equal(ops->finish(state, true, 0, &q[0]), DPQ_E_BUG);
    int32_t sum[33 * 64];
    for (int i = 0; i < 33 * 64; i++) {
        sum[i] = (int32_t)(1e5 * random_unit(8, (uint64_t)i));
    }
    assert_int_equal(ops->step(state, 0, 0, sum, 0x1p-300), DPQ_OK);
    assert_int_equal(ops->finish(state, false, 0, &q[0]), DPQ_OK);
    assert_int_equal(ops->snapshot(state), DPQ_OK);
    assert_int_equal(ops->step(state, 1, 0, sum, 0x1p-301), DPQ_OK);
    assert_int_equal(ops->finish(state, true, 0, &q[1]), DPQ_OK);
    assert_int_equal(ops->finish(state, false, 0, &q[2]), DPQ_OK);
    assert_qweights_equal(&q[0], &q[1]);
    assert_true(memcmp(q[0].codes.data, q[2].codes.data, 33 * 64) != 0);
    assert_int_equal(ops->snapshot(state), DPQ_OK);
    assert_int_equal(ops->finish(state, true, 0, &q[3]), DPQ_OK);
    assert_qweights_equal(&q[2], &q[3]);
    for (int i = 0; i < 4; i++) {
        dpq_qweight_fini(&q[i]);
    }
    ops->destroy(&state);
    dpq_tensor_fini(&w);
    dpq_backend_destroy(&be);
}

/* The unit is part of the gradient: with a memory of past ones, twice the sum at half the unit is the same step. */
static void test_units(void **context)
{
    (void)context;
    static const char *const names[] = {"signround", "adaround"};
    dpq_backend *be = tune_backend(1);
    dpq_scheme scheme = {4, 32, false, false};
    dpq_tensor w = random_weights(DPQ_DTYPE_F32, 8, 32, 6);
    dpq_tune_options options = tune_defaults();
    options.iterations = 6;
    options.momentum = 0.9;
    for (int a = 0; a < 2; a++) {
        const dpq_block_algo_ops *ops = dpq_block_algo_find(names[a]);
        dpq_block_state *states[2];
        for (int v = 0; v < 2; v++) {
            states[v] = tune_start(names[a], &options, be, &scheme, &w, NULL);
            for (int step = 0; step < 6; step++) {
                int32_t sum[8 * 32];
                for (int i = 0; i < 8 * 32; i++) {
                    sum[i] = (int32_t)(1e5 * random_unit(20 + (uint64_t)step, (uint64_t)i)) * (v ? 1 << step : 1);
                }
                assert_int_equal(ops->step(states[v], step, 0, sum, v ? ldexp(0.7, -step) : 0.7), DPQ_OK);
            }
        }
        assert_memory_equal(dpq_tune_view(states[0], 0).v, dpq_tune_view(states[1], 0).v, 8 * 32 * sizeof(float));
        assert_memory_equal(dpq_tune_view(states[0], 0).min_scale, dpq_tune_view(states[1], 0).min_scale, 32);
        ops->destroy(&states[0]);
        ops->destroy(&states[1]);
    }
    dpq_tensor_fini(&w);
    dpq_backend_destroy(&be);
}

/* Adam against its definition in fp64, on V of a linear whose ranges stay. */
static void test_adam(void **context)
{
    (void)context;
    dpq_backend *be = tune_backend(1);
    const dpq_block_algo_ops *ops = dpq_block_algo_find("adaround");
    dpq_scheme scheme = {4, 16, true, false};
    dpq_tensor w = random_weights(DPQ_DTYPE_F32, 3, 32, 77);
    dpq_tune_options options = tune_defaults();
    options.iterations = 5;
    options.lr = 0.2;
    options.minmax_tuning = false;
    dpq_block_state *state = tune_start("adaround", &options, be, &scheme, &w, NULL);
    dpq_qweight q;
    assert_int_equal(dpq_qweight_create(&scheme, 3, 32, DPQ_DTYPE_F32, false, &q), DPQ_OK);
    double v[96] = {0};
    double m1[96] = {0};
    double m2[96] = {0};
    for (int step = 0; step < 5; step++) {
        int32_t sum[96];
        assert_int_equal(ops->finish(state, false, 0, &q), DPQ_OK);
        const float *scale = q.scale.data;
        for (int i = 0; i < 96; i++) {
            sum[i] = i % 10 == 0 ? 0 : (int32_t)(3e6 * random_unit(500 + (uint64_t)step, (uint64_t)i));
            double u = (double)((float *)w.data)[i] / (double)scale[i / 16] + (double)dpq_tune_view(state, 0).v[i];
            double g = rint(u) >= -8.0 && rint(u) <= 7.0 ? sum[i] * (double)scale[i / 16] : 0.0;
            m1[i] = 0.9 * m1[i] + 0.1 * g;
            m2[i] = 0.999 * m2[i] + 0.001 * g * g;
            double size = sqrt(m2[i] / (1.0 - pow(0.999, step + 1)));
            v[i] -= size > 0.0 ? 0.2 * (1.0 - step / 5.0) * m1[i] / (1.0 - pow(0.9, step + 1)) / size : 0.0;
        }
        assert_int_equal(ops->step(state, step, 0, sum, 0x1p-30), DPQ_OK);
        for (int i = 0; i < 96; i++) {
            assert_true(fabs((double)dpq_tune_view(state, 0).v[i] - v[i]) < 1e-5);
        }
    }
    assert_true(fabs(v[1]) > 0.05 && v[0] == 0.0);
    dpq_qweight_fini(&q);
    ops->destroy(&state);
    dpq_tensor_fini(&w);
    dpq_backend_destroy(&be);
}

/* The step lengths: 1/iterations but at most 0.02, twice that from 1000 iterations at 3 bits or fewer, or as given; ranges alike or
 * their own. */
static void test_step_lengths(void **context)
{
    (void)context;
    static const struct {
        int bits;
        int64_t iterations;
        double lr, minmax_lr;
        bool tuned;
        float v, scale;
    } cases[] = {{4, 200, 0, 0, true, 0.005f, 0.005f},      {3, 1000, 0, 0, true, 0.002f, 0.002f},
                 {4, 1000, 0, 0, true, 0.001f, 0.001f},     {4, 10, 0, 0, true, 0.02f, 0.02f},     {4, 50, 0.25, 0, true, 0.25f, 0.25f},
                 {2, 50, 0.25, 0.125, true, 0.25f, 0.125f}, {2, 50, 0, 0.5, false, 0.02f, 0.0f}};
    dpq_backend *be = tune_backend(1);
    const dpq_block_algo_ops *ops = dpq_block_algo_find("signround");
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        dpq_scheme scheme = {cases[c].bits, -1, true, true};
        float values[4] = {-1.0f, 0.2f, 0.4f, 0.0f}; /* the scale is set by the lower end */
        dpq_tensor w = dpq_tensor_wrap_2d(values, DPQ_DTYPE_F32, 1, 4);
        dpq_tune_options options = tune_defaults();
        options.iterations = cases[c].iterations;
        options.lr = cases[c].lr;
        options.minmax_lr = cases[c].minmax_lr;
        options.minmax_tuning = cases[c].tuned;
        options.init_scale = DPQ_INIT_SCALE_MINMAX;
        float moved = 0.0f;
        for (int32_t sign = -1; sign <= 1; sign += 2) { /* a scale at its limit moves for one of them only */
            dpq_block_state *state = tune_start("signround", &options, be, &scheme, &w, NULL);
            const int32_t sum[4] = {0, -100 * sign, 130 * sign, 0};
            assert_int_equal(ops->step(state, 0, 0, sum, 1.0), DPQ_OK);
            tune_view view = dpq_tune_view(state, 0);
            float v = (float)sign * cases[c].v;
            assert_true(view.v[0] == 0.0f && view.v[1] == v && view.v[2] == -v && view.v[3] == 0.0f);
            assert_true(view.max_scale[0] == 1.0f);
            moved += 1.0f - view.min_scale[0];
            ops->destroy(&state);
        }
        assert_true(fabsf(moved - cases[c].scale) < 1e-6f);
    }
    dpq_backend_destroy(&be);
}

static void test_registry_and_memory(void **context)
{
    (void)context;
    assert_string_equal(dpq_block_algo_at(0)->name, "signround");
    assert_string_equal(dpq_block_algo_at(1)->name, "adaround");
    assert_null(dpq_block_algo_at(2));
    assert_null(dpq_block_algo_at(-1));
    assert_null(dpq_block_algo_find("rtn"));
    dpq_tune_options options = tune_defaults();
    assert_true(options.iterations == 200 && options.batch == 8 && options.accumulate == 1 && options.seed == 42);
    assert_true(options.init_scale == DPQ_INIT_SCALE_SEARCH && options.best_step == DPQ_BEST_STEP_LAST);
    assert_true(options.minmax_tuning && options.suppress_outliers && options.fixed_share == 0.125);
    assert_true(options.search_low == 0.5 && options.search_high == 1.2 && options.search_steps == 71);
    const dpq_block_algo_ops *sign = dpq_block_algo_find("signround");
    size_t plain = sign->state_bytes(&options, 100, 256, 2);
    assert_int_equal(plain, 4 * (100 * 256 + 4 * 200));
    options.momentum = 0.5;
    assert_int_equal(sign->state_bytes(&options, 100, 256, 2), 4 * (2 * 100 * 256 + 6 * 200));
    options.best_step = DPQ_BEST_STEP_BATCH;
    assert_int_equal(sign->state_bytes(&options, 100, 256, 2), 4 * (2 * 100 * 256 + 6 * 200) + 25600 + 200 * 5 + 1600);
    assert_int_equal(dpq_block_algo_find("adaround")->state_bytes(&options, 1, 8, 1), 4 * (3 * 8 + 8) + 8 + 5 + 16);
}

static void test_bad_input(void **context)
{
    (void)context;
    dpq_backend *be = tune_backend(2);
    const dpq_block_algo_ops *ops = dpq_block_algo_find("signround");
    dpq_tune_options options = tune_defaults();
    dpq_tensor w = random_weights(DPQ_DTYPE_BF16, 40, 64, 1);
    double sumsq[64] = {0};
    dpq_tune_linear linear = {.module = "layer.q", .scheme = {4, 32, true, true}, .w = &w, .sumsq = sumsq};
    dpq_block_state *state = NULL;
    assert_int_equal(ops->create(&options, be, &linear, 1, &state), DPQ_OK); /* all importance zero: as none */
    assert_int_equal(ops->step(state, 200, 0, (const int32_t *)w.data, 1.0), DPQ_E_BUG);
    assert_int_equal(ops->step(state, 0, 0, (const int32_t *)w.data, 0.0), DPQ_E_NUMERIC);
    assert_int_equal(ops->step(state, 0, 0, (const int32_t *)w.data, NAN), DPQ_E_NUMERIC);
    dpq_tensor small;
    assert_int_equal(dpq_tensor_create_2d(DPQ_DTYPE_F32, 39, 64, &small), DPQ_OK);
    assert_int_equal(ops->weights(state, 0, &small), DPQ_E_SHAPE);
    dpq_qweight q;
    assert_int_equal(dpq_qweight_create(&linear.scheme, 40, 64, DPQ_DTYPE_F32, false, &q), DPQ_OK);
    assert_int_equal(ops->finish(state, false, 0, &q), DPQ_E_SHAPE); /* scales of another type */
    dpq_qweight_fini(&q);
    dpq_tensor_fini(&small);
    ops->destroy(&state);
    ops->destroy(&state);
    ops->destroy(NULL);

    sumsq[3] = NAN;
    assert_int_equal(ops->create(&options, be, &linear, 1, &state), DPQ_E_NUMERIC);
    assert_null(state);
    sumsq[3] = 1.0;
    ((uint16_t *)w.data)[37 * 64 + 5] = 0x7f80; /* infinity */
    assert_int_equal(ops->create(&options, be, &linear, 1, &state), DPQ_E_NUMERIC);
    assert_non_null(strstr(dpq_error_last()->text, "layer.q"));
    assert_non_null(strstr(dpq_error_last()->text, "row 37, column 5"));
    assert_null(state);
    linear.scheme.group_size = 48;
    assert_int_equal(ops->create(&options, be, &linear, 1, &state), DPQ_E_UNSUPPORTED);
    dpq_tensor_fini(&w);
    dpq_backend_destroy(&be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_by_differences),
        cmocka_unit_test(test_guard_and_zeros),
        cmocka_unit_test(test_threads_and_weights),
        cmocka_unit_test(test_start_is_search),
        cmocka_unit_test(test_best_step),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_units),
        cmocka_unit_test(test_step_lengths),
        cmocka_unit_test(test_registry_and_memory),
        cmocka_unit_test(test_bad_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
