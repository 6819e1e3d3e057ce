/* SPDX-License-Identifier: Apache-2.0 */
/* SignRound step by step, V, scales, zero points, codes and loss: against values from automatic differentiation
 * (tests/golden/make_signround.py), and against the formulas in plain loops and fp64 sums, written anew here. */
#include "tune_test.h"

#define N      6
#define K      64
#define GROUP  32
#define GROUPS (K / GROUP)
#define STEPS  5
#define UNIT   0x1p-20

/* ---- the values of the other implementation */

static void read_words(FILE *file, const char *word)
{
    char found[32] = "";
    assert_int_equal(fscanf(file, "%31s", found), 1);
    assert_string_equal(found, word);
}

static float read_bits(FILE *file)
{
    uint32_t bits = 0;
    float value;
    assert_int_equal(fscanf(file, "%x", &bits), 1);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void read_letters(FILE *file, const char *word, char *text)
{
    read_words(file, word);
    assert_int_equal(fscanf(file, "%400s", text), 1);
    assert_int_equal(strlen(text), N * K);
}

static dpq_tune_options options_of(const char *form, double momentum)
{
    dpq_tune_options options = tune_defaults();
    options.iterations = STEPS;
    options.lr = 1.0 / STEPS;
    options.momentum = momentum;
    options.init_scale = DPQ_INIT_SCALE_MINMAX;
    if (strcmp(form, "scale") == 0) { /* one factor to choose from */
        options.init_scale = DPQ_INIT_SCALE_SEARCH;
        options.search_low = 0.75;
        options.search_high = 0.75;
        options.search_steps = 1;
    }
    return options;
}

static dpq_scheme scheme_of(const char *form, int bits)
{
    return (dpq_scheme){.bits = bits,
                        .group_size = GROUP,
                        .symmetric = strcmp(form, "range") != 0,
                        .signed_scale = strcmp(form, "signed") == 0 || strcmp(form, "scale") == 0};
}

static void expect_step(FILE *file, dpq_block_state *state, float lr, float *v, dpq_qweight *q)
{
    const dpq_block_algo_ops *ops = dpq_block_algo_find("signround");
    char moves[401];
    tune_view view = dpq_tune_view(state, 0);
    read_letters(file, "v", moves);
    for (int i = 0; i < N * K; i++) {
        v[i] += moves[i] == '+' ? lr : moves[i] == '-' ? -lr : 0.0f;
        assert_true(view.v[i] == v[i]);
    }
    read_words(file, "scales");
    for (int g = 0; g < N * GROUPS; g++) {
        assert_true(view.max_scale[g] == read_bits(file));
    }
    for (int g = 0; g < N * GROUPS; g++) {
        assert_true(view.min_scale[g] == read_bits(file));
    }
    assert_int_equal(ops->finish(state, false, 0, q), DPQ_OK);
    for (int g = 0; g < N * GROUPS; g++) {
        assert_true(((float *)q->scale.data)[g] == read_bits(file));
    }
    for (int g = 0; g < N * GROUPS; g++) {
        int zero = 0;
        assert_int_equal(fscanf(file, "%d", &zero), 1);
        assert_int_equal(((int8_t *)q->zero.data)[g], zero);
    }
}

static void expect_case(FILE *file, dpq_backend *be, const dpq_tensor *w, const float *w_f32, const double *x,
                        int64_t tokens)
{
    const dpq_block_algo_ops *ops = dpq_block_algo_find("signround");
    int bits = 0;
    char form[16];
    double momentum = 0.0;
    assert_int_equal(fscanf(file, " case %d %15s %lf", &bits, form, &momentum), 3);
    dpq_scheme scheme = scheme_of(form, bits);
    dpq_tune_options options = options_of(form, momentum);
    dpq_block_state *state = tune_start("signround", &options, be, &scheme, w, NULL);
    dpq_tensor wq;
    dpq_qweight q;
    int32_t sum[N * K];
    float v[N * K] = {0};
    assert_int_equal(dpq_tensor_create_2d(DPQ_DTYPE_F32, N, K, &wq), DPQ_OK);
    assert_int_equal(dpq_qweight_create(&scheme, N, K, DPQ_DTYPE_BF16, false, &q), DPQ_OK);
    if (strcmp(form, "scale") == 0) {
        read_words(file, "start");
        assert_int_equal(ops->finish(state, false, 0, &q), DPQ_OK);
        for (int g = 0; g < N * GROUPS; g++) {
            assert_true(((float *)q.scale.data)[g] == read_bits(file));
        }
    }
    for (int step = 0; step < STEPS; step++) {
        double expected = 0.0;
        assert_int_equal(fscanf(file, " loss %lf", &expected), 1);
        assert_int_equal(ops->weights(state, 0, &wq), DPQ_OK);
        double loss = tune_gradient(x, tokens, w_f32, wq.data, N, K, UNIT, sum);
        assert_true(fabs(loss - expected) <= 1e-12 * expected);
        assert_int_equal(ops->step(state, step, 0, sum, UNIT), DPQ_OK);
        expect_step(file, state, (float)(1.0 / STEPS * (1.0 - (double)step / STEPS)), v, &q);
    }
    char codes[401];
    read_letters(file, "codes", codes);
    for (int i = 0; i < N * K; i++) {
        assert_int_equal(((int8_t *)q.codes.data)[i], codes[i] - 'a' - (1 << (bits - 1)));
    }
    assert_int_equal(dpq_qweight_check(&q, "m"), DPQ_OK);
    dpq_qweight_fini(&q);
    dpq_tensor_fini(&wq);
    ops->destroy(&state);
}

static void test_equals_autograd(void **context)
{
    (void)context;
    FILE *file = fopen("tests/golden/signround.txt", "r");
    assert_non_null(file);
    int size[5];
    assert_int_equal(fscanf(file, " shape %d %d %d %d %d", &size[0], &size[1], &size[2], &size[3], &size[4]), 5);
    assert_true(size[0] == N && size[1] == K && size[2] == GROUP && size[3] > 0 && size[4] == STEPS);
    dpq_backend *be = tune_backend(2);
    dpq_tensor w;
    assert_int_equal(dpq_tensor_create_2d(DPQ_DTYPE_BF16, N, K, &w), DPQ_OK);
    read_words(file, "w");
    for (int i = 0; i < N * K; i++) {
        unsigned bits = 0;
        assert_int_equal(fscanf(file, "%x", &bits), 1);
        ((uint16_t *)w.data)[i] = (uint16_t)bits;
    }
    float w_f32[N * K];
    weights_as_f32(&w, w_f32);
    double *x = calloc((size_t)size[3] * K, sizeof(double));
    assert_non_null(x);
    read_words(file, "x");
    for (int i = 0; i < size[3] * K; i++) {
        int eighths = 0;
        assert_int_equal(fscanf(file, "%d", &eighths), 1);
        x[i] = eighths / 8.0;
    }
    for (int c = 0; c < 24; c++) {
        expect_case(file, be, &w, w_f32, x, size[3]);
    }
    char rest[2];
    assert_int_equal(fscanf(file, "%1s", rest), EOF);
    free(x);
    dpq_tensor_fini(&w);
    dpq_backend_destroy(&be);
    fclose(file);
}

/* ---- the formulas in plain loops */

typedef struct {
    dpq_scheme scheme;
    dpq_dtype dtype;
    double momentum;
    float w[N * K], v[N * K];
    double past_v[N * K];
    float max_scale[N * GROUPS], min_scale[N * GROUPS];
    double past_max[N * GROUPS], past_min[N * GROUPS];
    float scale[N * GROUPS];
    int zero[N * GROUPS], code[N * K];
} reference;

static bool is_zero_group(const reference *ref, int g)
{
    for (int j = 0; j < GROUP; j++) {
        if (ref->w[g * GROUP + j] != 0.0f) {
            return false;
        }
    }
    return true;
}

/* Range of the weights of group G with zero: lower, upper. */
static void range_of(const reference *ref, int g, float *lower, float *upper)
{
    *lower = 0.0f;
    *upper = 0.0f;
    for (int j = 0; j < GROUP; j++) {
        *lower = fminf(*lower, ref->w[g * GROUP + j]);
        *upper = fmaxf(*upper, ref->w[g * GROUP + j]);
    }
}

static void reference_codes(reference *ref)
{
    int n = 1 << (ref->scheme.bits - 1);
    for (int g = 0; g < N * GROUPS; g++) {
        float lower;
        float upper;
        range_of(ref, g, &lower, &upper);
        lower *= ref->min_scale[g];
        upper *= ref->max_scale[g];
        float s = !ref->scheme.symmetric      ? (upper - lower) / (float)(2 * n - 1)
                  : !ref->scheme.signed_scale ? fmaxf(-lower, upper) / ((float)(2 * n - 1) / 2.0f)
                  : -lower >= upper           ? -lower / (float)n
                                              : -upper / (float)n;
        ref->scale[g] = dpq_grid_round_scale(s, ref->dtype);
        int unsigned_zero =
            ref->scheme.symmetric ? n : (int)fmaxf(0.0f, fminf((float)(2 * n - 1), rintf(-lower / ref->scale[g])));
        if (is_zero_group(ref, g)) {
            ref->scale[g] = 1.0f;
            unsigned_zero = n;
        }
        ref->zero[g] = unsigned_zero - n;
        for (int j = g * GROUP; j < (g + 1) * GROUP; j++) {
            double q = rint((double)(ref->w[j] / ref->scale[g] + ref->v[j])) + unsigned_zero;
            ref->code[j] = (int)fmax(0.0, fmin(2.0 * n - 1.0, q)) - n;
        }
    }
}

static float move(const reference *ref, double *past, double gradient, float lr)
{
    *past = ref->momentum * *past + gradient;
    return *past > 0.0 ? -lr : *past < 0.0 ? lr : 0.0f;
}

static void reference_step(reference *ref, const int32_t *sum, float lr)
{
    int n = 1 << (ref->scheme.bits - 1);
    for (int g = 0; g < N * GROUPS; g++) {
        double by_scale = 0.0;
        double by_lower = 0.0;
        double s = ref->scale[g];
        float lower;
        float upper;
        range_of(ref, g, &lower, &upper);
        if (is_zero_group(ref, g)) {
            continue;
        }
        for (int j = g * GROUP; j < (g + 1) * GROUP; j++) {
            double q = rint((double)(ref->w[j] / ref->scale[g] + ref->v[j])) + ref->zero[g];
            double gradient = sum[j];
            double value = ref->code[j] - ref->zero[g];
            if (q >= -n && q <= n - 1) {
                by_scale += gradient * (value - ref->w[j] / s);
                ref->v[j] += move(ref, &ref->past_v[j], gradient * s, lr);
            } else {
                double follows = ref->scheme.symmetric ? 0.0 : 1.0;
                by_scale += gradient * (value - follows * (double)lower * ref->min_scale[g] / s);
                by_lower += follows * gradient;
                ref->v[j] += move(ref, &ref->past_v[j], 0.0, lr);
            }
        }
        double levels = !ref->scheme.symmetric ? 2 * n - 1 : ref->scheme.signed_scale ? n : (2 * n - 1) / 2.0;
        double by_max = by_scale * upper / levels;
        double by_min = -by_scale * lower / levels + by_lower * lower;
        if (ref->scheme.symmetric) {
            float lo = -lower * ref->min_scale[g];
            float hi = upper * ref->max_scale[g];
            by_max *= ref->scheme.signed_scale && lo < hi ? -1.0 : 1.0;
            by_max *= lo > hi ? 0.0 : lo == hi ? 0.5 : 1.0;
            by_min *= lo < hi ? 0.0 : lo == hi ? 0.5 : 1.0;
        }
        float max_move = move(ref, &ref->past_max[g], by_max, lr);
        float min_move = move(ref, &ref->past_min[g], by_min, lr);
        ref->max_scale[g] = fmaxf(0.0f, fminf(1.0f, ref->max_scale[g] + max_move));
        ref->min_scale[g] = fmaxf(0.0f, fminf(1.0f, ref->min_scale[g] + min_move));
    }
}

static void compare(const reference *ref, dpq_block_state *state, const dpq_qweight *q)
{
    tune_view view = dpq_tune_view(state, 0);
    for (int i = 0; i < N * K; i++) {
        assert_true(view.v[i] == ref->v[i]);
        assert_int_equal(((int8_t *)q->codes.data)[i], ref->code[i]);
    }
    for (int g = 0; g < N * GROUPS; g++) {
        assert_true(view.max_scale[g] == ref->max_scale[g] && view.min_scale[g] == ref->min_scale[g]);
        assert_true(((float *)q->scale.data)[g] == ref->scale[g]);
        assert_int_equal(((int8_t *)q->zero.data)[g], ref->zero[g]);
    }
}

static void run_formulas(dpq_backend *be, reference *ref, uint64_t stream)
{
    const dpq_block_algo_ops *ops = dpq_block_algo_find("signround");
    dpq_tune_options options = options_of("", ref->momentum);
    dpq_tensor w = random_weights(ref->dtype, N, K, stream);
    memset((char *)w.data + (size_t)(5 * K + GROUP) * dpq_dtype_bytes(ref->dtype), 0,
           GROUP * dpq_dtype_bytes(ref->dtype));
    weights_as_f32(&w, ref->w);
    dpq_block_state *state = tune_start("signround", &options, be, &ref->scheme, &w, NULL);
    dpq_qweight q;
    assert_int_equal(dpq_qweight_create(&ref->scheme, N, K, ref->dtype, false, &q), DPQ_OK);
    for (int g = 0; g < N * GROUPS; g++) {
        ref->max_scale[g] = 1.0f;
        ref->min_scale[g] = 1.0f;
    }
    for (int step = 0; step < STEPS; step++) {
        int32_t sum[N * K];
        for (int i = 0; i < N * K; i++) {
            sum[i] = (int32_t)(1e6 * random_unit(stream + 99, (uint64_t)(step * N * K + i)));
            sum[i] = i % 37 == 0 ? 0 : sum[i];
        }
        reference_codes(ref);
        assert_int_equal(ops->finish(state, false, 0, &q), DPQ_OK);
        compare(ref, state, &q);
        reference_step(ref, sum, (float)(1.0 / STEPS * (1.0 - (double)step / STEPS)));
        assert_int_equal(ops->step(state, step, 0, sum, UNIT), DPQ_OK);
    }
    reference_codes(ref);
    assert_int_equal(ops->finish(state, false, 0, &q), DPQ_OK);
    compare(ref, state, &q);
    dpq_qweight_fini(&q);
    ops->destroy(&state);
    dpq_tensor_fini(&w);
}

static void test_equals_formulas(void **context)
{
    (void)context;
    static const dpq_dtype dtypes[] = {DPQ_DTYPE_BF16, DPQ_DTYPE_F32, DPQ_DTYPE_F16};
    dpq_backend *be = tune_backend(1);
    for (int c = 0; c < 54; c++) {
        static const int bits[] = {4, 3, 2};
        reference *ref = calloc(1, sizeof *ref);
        assert_non_null(ref);
        int form = c / 3 % 3;
        ref->scheme =
            (dpq_scheme){.bits = bits[c % 3], .group_size = GROUP, .symmetric = form < 2, .signed_scale = form == 0};
        ref->dtype = dtypes[c / 9 % 3];
        ref->momentum = c < 27 ? 0.0 : 0.5;
        run_formulas(be, ref, 500 + (uint64_t)c);
        free(ref);
    }
    dpq_backend_destroy(&be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_autograd),
        cmocka_unit_test(test_equals_formulas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
