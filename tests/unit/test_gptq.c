/* SPDX-License-Identifier: Apache-2.0 */
/* GPTQ against a plain fp64 version of the textbook loop: orders, group scales, dead columns, odd sizes, the ladder of
 * the factor, equal bits for any split of rows. */
#include <math.h>

#include "quant_test.h"

#define TOKENS 400

typedef struct {
    int64_t n, k, group;
    int bits;
    bool symmetric, signed_scale;
    dpq_gptq_order order;
    dpq_group_scales group_scales;
    dpq_search search;
    dpq_dtype dtype;
    int dead; /* number of silent inputs */
} gptq_case;

static const gptq_case cases[] = {
    {70, 96, 32, 4, true, true, DPQ_ORDER_STATIC, DPQ_GROUP_SCALES_STATIC, DPQ_SEARCH_IMPORTANCE, DPQ_DTYPE_F32, 0},
    {70, 320, 32, 4, true, true, DPQ_ORDER_STATIC, DPQ_GROUP_SCALES_STATIC, DPQ_SEARCH_IMPORTANCE, DPQ_DTYPE_BF16, 0},
    {64, 320, 64, 3, false, false, DPQ_ORDER_NONE, DPQ_GROUP_SCALES_STATIC, DPQ_SEARCH_MSE, DPQ_DTYPE_F32, 0},
    {33, 320, 64, 2, true, false, DPQ_ORDER_GROUP, DPQ_GROUP_SCALES_STATIC, DPQ_SEARCH_IMPORTANCE, DPQ_DTYPE_F16, 0},
    {130, 200, 40, 4, true, true, DPQ_ORDER_STATIC, DPQ_GROUP_SCALES_STATIC, DPQ_SEARCH_IMPORTANCE, DPQ_DTYPE_BF16, 7},
    {70, 288, 96, 4, true, false, DPQ_ORDER_NONE, DPQ_GROUP_SCALES_DYNAMIC, DPQ_SEARCH_MINMAX, DPQ_DTYPE_F32, 0},
    {70, 320, 32, 8, false, false, DPQ_ORDER_GROUP, DPQ_GROUP_SCALES_DYNAMIC, DPQ_SEARCH_MINMAX, DPQ_DTYPE_F32, 3},
    {66, 390, 195, 4, true, false, DPQ_ORDER_GROUP, DPQ_GROUP_SCALES_DYNAMIC, DPQ_SEARCH_MINMAX, DPQ_DTYPE_F32, 0},
    {70, 160, -1, 5, true, true, DPQ_ORDER_STATIC, DPQ_GROUP_SCALES_STATIC, DPQ_SEARCH_IMPORTANCE, DPQ_DTYPE_F32, 0},
    {70, 160, -1, 4, false, false, DPQ_ORDER_GROUP, DPQ_GROUP_SCALES_DYNAMIC, DPQ_SEARCH_MSE, DPQ_DTYPE_F32, 0},
    {1, 2, 2, 4, true, true, DPQ_ORDER_STATIC, DPQ_GROUP_SCALES_STATIC, DPQ_SEARCH_IMPORTANCE, DPQ_DTYPE_F32, 0},
    {70, 320, 32, 4, true, true, DPQ_ORDER_STATIC, DPQ_GROUP_SCALES_DYNAMIC, DPQ_SEARCH_IMPORTANCE, DPQ_DTYPE_F32, 0},
};

/* Integer sums of a stage with correlated inputs, and the Hessian they stand for. */
typedef struct {
    dpq_stage_stats stats;
    int64_t *xtx;
    int32_t *exponent;
    double *h; /* (K,K) */
} stage;

static void set_sum(stage *s, int64_t i, int64_t j, int64_t value)
{
    const int64_t edge = DPQ_XTX_TILE;
    int64_t row = i > j ? i : j;
    int64_t col = i > j ? j : i;
    int64_t ti = row / edge;
    int64_t tj = col / edge;
    int64_t *tile = s->xtx + (ti * (ti + 1) / 2 + tj) * edge * edge;
    tile[row % edge * edge + col % edge] = value;
    if (ti == tj) {
        tile[col % edge * edge + row % edge] = value;
    }
    double entry = ldexp((double)value, s->exponent[i] + s->exponent[j]) / (double)s->stats.tokens;
    s->h[i * s->stats.k + j] = entry;
    s->h[j * s->stats.k + i] = entry;
}

static void create_stage(int64_t k, int64_t tokens, stage *s)
{
    s->xtx = calloc((size_t)dpq_xtx_count(k), sizeof(int64_t));
    s->exponent = calloc((size_t)k, sizeof(int32_t));
    s->h = calloc((size_t)(k * k), sizeof(double));
    assert_true(s->xtx && s->exponent && s->h);
    s->stats = (dpq_stage_stats){.k = k, .tokens = tokens, .xtx = s->xtx, .exponent = s->exponent};
}

static void destroy_stage(stage *s)
{
    free(s->xtx);
    free(s->exponent);
    free(s->h);
}

static void random_stage(int64_t k, int dead, stage *s)
{
    create_stage(k, TOKENS, s);
    int64_t *x = malloc((size_t)(TOKENS * k) * sizeof(int64_t));
    assert_non_null(x);
    for (int64_t j = 0; j < k; j++) {
        s->exponent[j] = (int32_t)(j % 5) - 8;
    }
    for (int64_t t = 0; t < TOKENS; t++) {
        double shared = 60.0 * random_unit(50, (uint64_t)t);
        for (int64_t j = 0; j < k; j++) {
            double own = 100.0 * random_unit(51, (uint64_t)(t * k + j));
            bool silent = dead > 0 && j % (k / dead) == 1;
            x[t * k + j] = silent ? 0 : (int64_t)rint(own + shared * (double)(j % 3));
        }
    }
    for (int64_t i = 0; i < k; i++) {
        for (int64_t j = 0; j <= i; j++) {
            int64_t sum = 0;
            for (int64_t t = 0; t < TOKENS; t++) {
                sum += x[t * k + i] * x[t * k + j];
            }
            set_sum(s, i, j, sum);
        }
    }
    free(x);
}

/* U with U^T U = inv(h): textbook way, inverse by Gauss-Jordan, then an upper Cholesky factor. h (K,K) is destroyed. */
static void textbook_factor(double *h, int64_t k, double *u)
{
    for (int64_t i = 0; i < k * k; i++) {
        u[i] = i % (k + 1) == 0 ? 1.0 : 0.0;
    }
    for (int64_t p = 0; p < k; p++) {
        double pivot = h[p * k + p];
        assert_true(pivot > 0.0);
        for (int64_t j = 0; j < k; j++) {
            h[p * k + j] /= pivot;
            u[p * k + j] /= pivot;
        }
        for (int64_t i = 0; i < k; i++) {
            double f = h[i * k + p];
            for (int64_t j = 0; j < k && i != p; j++) {
                h[i * k + j] -= f * h[p * k + j];
                u[i * k + j] -= f * u[p * k + j];
            }
        }
    }
    for (int64_t i = 0; i < k; i++) { /* u holds inv(h): replace it row by row */
        for (int64_t j = i; j < k; j++) {
            double sum = u[i * k + j];
            for (int64_t t = 0; t < i; t++) {
                sum -= u[t * k + i] * u[t * k + j];
            }
            u[i * k + j] = j == i ? sqrt(sum) : sum / u[i * k + i];
        }
        for (int64_t j = 0; j < i; j++) {
            u[i * k + j] = 0.0;
        }
    }
}

typedef struct {
    int64_t *order;
    double *u; /* by position */
} textbook;

static void create_textbook(const stage *s, dpq_gptq_order order, double damping, textbook *book)
{
    int64_t k = s->stats.k;
    book->order = malloc((size_t)k * sizeof(int64_t));
    book->u = malloc((size_t)(k * k) * sizeof(double));
    double *h = malloc((size_t)(k * k) * sizeof(double));
    assert_true(book->order && book->u && h);
    for (int64_t i = 0; i < k; i++) { /* insertion sort, stable */
        int64_t at = i;
        while (order != DPQ_ORDER_NONE && at > 0 && s->h[book->order[at - 1] * (k + 1)] < s->h[i * (k + 1)]) {
            book->order[at] = book->order[at - 1];
            at--;
        }
        book->order[at] = i;
    }
    double sum = 0.0;
    for (int64_t i = 0; i < k; i++) {
        for (int64_t j = 0; j < k; j++) {
            h[i * k + j] = s->h[book->order[i] * k + book->order[j]];
        }
        h[i * k + i] = h[i * k + i] == 0.0 ? 1.0 : h[i * k + i];
        sum += h[i * k + i];
    }
    for (int64_t i = 0; i < k; i++) {
        h[i * k + i] += damping * sum / (double)k;
    }
    textbook_factor(h, k, book->u);
    free(h);
}

static void destroy_textbook(textbook *book)
{
    free(book->order);
    free(book->u);
}

static int64_t group_of(const gptq_case *c, const textbook *book, int64_t position)
{
    int64_t width = c->group > 0 ? c->group : c->k;
    return (c->order == DPQ_ORDER_STATIC ? book->order[position] : position) / width;
}

static double loader_value(const dpq_qweight *q, int64_t row, int64_t column, int64_t g)
{
    float s = ((float *)q->scale.data)[row * q->groups + g];
    int z = ((int8_t *)q->zero.data)[row * q->groups + g];
    float value = (float)(((int8_t *)q->codes.data)[row * q->k + column] - z) * s;
    return q->scale_dtype == DPQ_DTYPE_BF16 ? dpq_bf16_to_f32(dpq_f32_to_bf16(value)) : value;
}

/* The grid of group G must be what dpq_grid_choose gives for WEIGHTS (fp64, by position), exactly or to fp32 rounding.
 */
static void expect_grid(const gptq_case *c, const dpq_qweight *q, const stage *s, const textbook *book,
                        const double *weights, int64_t row, int64_t g, bool exact)
{
    float members[400];
    float importance[400];
    float work[3 * 400];
    int64_t count = 0;
    int64_t width = dpq_scheme_group_width(&q->scheme, q->k);
    for (int64_t j = 0; j < q->k; j++) {
        /* static order: in the order of columns */
        int64_t position = j;
        for (int64_t i = 0; i < q->k && c->order == DPQ_ORDER_STATIC; i++) {
            position = book->order[i] == j ? i : position;
        }
        if (group_of(c, book, position) == g) {
            members[count] = (float)weights[position];
            importance[count++] = (float)s->h[book->order[position] * (q->k + 1)];
        }
    }
    assert_int_equal(count, width);
    dpq_search_options search = {c->search, 0.6, 1.1, 51};
    dpq_grid grid = dpq_grid_choose(&q->scheme, &search, c->dtype, members, importance, width, work);
    float scale = ((float *)q->scale.data)[row * q->groups + g];
    int zero = ((int8_t *)q->zero.data)[row * q->groups + g];
    if (exact) {
        assert_true(scale == grid.scale);
        assert_int_equal(zero, grid.zero);
    } else {
        assert_true(fabsf(scale - grid.scale) <= 2e-3f * fabsf(grid.scale));
        assert_true(abs(zero - grid.zero) <= 1);
    }
}

/* Walk one row in fp64 with the codes that were found: each must be the rounding of the fp64 weight at that point (to a
 * small distance from a tie); the loss must be the reported one. */
static void expect_row(const gptq_case *c, const dpq_qweight *q, const stage *s, const textbook *book,
                       const float *source, int64_t row)
{
    int64_t k = q->k;
    double low = -(double)(1 << (c->bits - 1));
    double *w = malloc((size_t)k * sizeof(double));
    double loss = 0.0;
    double signal = 0.0;
    bool dynamic = c->group_scales == DPQ_GROUP_SCALES_DYNAMIC && c->order != DPQ_ORDER_STATIC;
    for (int64_t i = 0; i < k; i++) {
        double diagonal = s->h[book->order[i] * (k + 1)];
        w[i] = diagonal == 0.0 ? 0.0 : (double)source[book->order[i]];
        signal += (double)(float)diagonal * w[i] * w[i];
    }
    for (int64_t g = 0; g < q->groups && !dynamic; g++) {
        expect_grid(c, q, s, book, w, row, g, true);
    }
    for (int64_t i = 0; i < k; i++) {
        int64_t g = group_of(c, book, i);
        int64_t column = book->order[i];
        if (dynamic && i % dpq_scheme_group_width(&q->scheme, k) == 0 && c->search == DPQ_SEARCH_MINMAX) {
            expect_grid(c, q, s, book, w, row, g, false);
        }
        double scale = ((float *)q->scale.data)[row * q->groups + g];
        double zero = ((int8_t *)q->zero.data)[row * q->groups + g];
        double code = ((int8_t *)q->codes.data)[row * k + column];
        double exact = fmin(fmax(w[i] / scale + zero, low), -low - 1.0);
        assert_true(fabs(exact - code) <= 0.5 + 2e-3);
        if (s->h[column * (k + 1)] == 0.0) {
            assert_true(code == zero);
        }
        double e = (w[i] - loader_value(q, row, column, g)) / book->u[i * k + i];
        loss += e * e;
        for (int64_t j = i; j < k; j++) {
            w[j] -= e * book->u[i * k + j];
        }
    }
    const double *reported = (const double *)q->row_error.data + 2 * row;
    assert_true(fabs(reported[0] - loss) <= 2e-3 * loss);
    assert_true(fabs(reported[1] - signal) <= 1e-6 * signal);
    free(w);
}

static dpq_algo_options options_of(const gptq_case *c)
{
    dpq_algo_options options = default_options();
    options.gptq.order = c->order;
    options.gptq.group_scales = c->group_scales;
    options.gptq.search.search = c->search;
    return options;
}

static dpq_qweight create_output(const gptq_case *c, const dpq_algo_options *options)
{
    dpq_qweight q;
    dpq_scheme scheme = {c->bits, c->group, c->symmetric, c->signed_scale};
    bool with_g_idx = dpq_algo_find("gptq")->with_g_idx(options, &scheme);
    assert_int_equal(with_g_idx, c->order == DPQ_ORDER_GROUP && c->group > 0);
    assert_int_equal(dpq_qweight_create(&scheme, c->n, c->k, c->dtype, with_g_idx, &q), DPQ_OK);
    return q;
}

static void run_case(const gptq_case *c, dpq_backend *one, dpq_backend *three)
{
    const dpq_linear_algo_ops *gptq = dpq_algo_find("gptq");
    dpq_algo_options options = options_of(c);
    stage s;
    textbook book;
    dpq_factor factor;
    random_stage(c->k, c->dead, &s);
    create_textbook(&s, c->order, options.gptq.damping, &book);
    assert_int_equal(gptq->prepare(&options, three, &s.stats, &factor), DPQ_OK);
    assert_int_equal(factor.outcome, DPQ_FACTOR_OK);
    assert_true(factor.damping == 0.01);
    for (int64_t i = 0; i < c->k; i++) {
        assert_int_equal(((int32_t *)factor.order.data)[i], book.order[i]);
        assert_true(((float *)factor.importance.data)[i] == (float)s.h[i * (c->k + 1)]);
        for (int64_t j = 0; j < c->k; j++) {
            double bound = 1e-4 * fabs(book.u[i * c->k + i]);
            assert_true(fabs(((float *)factor.u.data)[i * c->k + j] - book.u[i * c->k + j]) <= bound);
        }
    }
    dpq_tensor w = random_weights(c->dtype, c->n, c->k, 300);
    float *f32 = malloc((size_t)(c->n * c->k) * sizeof(float));
    weights_as_f32(&w, f32);
    dpq_qweight q = create_output(c, &options);
    dpq_solve_input input = {.module = "m", .w = &w, .factor = &factor};
    dpq_method method = DPQ_METHOD_RTN;
    assert_int_equal(gptq->solve(&options, one, &input, 0, c->n, &q, &method), DPQ_OK);
    assert_int_equal(method, DPQ_METHOD_GPTQ);
    assert_int_equal(dpq_qweight_check(&q, "m"), DPQ_OK);
    for (int64_t i = 0; i < c->k && q.g_idx.data; i++) {
        assert_int_equal(((int32_t *)q.g_idx.data)[book.order[i]], i / c->group);
    }
    for (int64_t row = 0; row < c->n; row += row % 64 == 0 ? 5 : 13) {
        expect_row(c, &q, &s, &book, f32 + row * c->k, row);
    }
    expect_row(c, &q, &s, &book, f32 + (c->n - 1) * c->k, c->n - 1);

    dpq_qweight parts = create_output(c, &options);
    for (int64_t begin = c->n / 64 * 64; begin >= 0; begin -= 64) {
        int64_t end = begin + 64 < c->n ? begin + 64 : c->n;
        assert_int_equal(gptq->solve(&options, three, &input, begin, end, &parts, &method), DPQ_OK);
    }
    assert_qweights_equal(&q, &parts);
    if (c->n > 40 && c->n < 64 + 40) { /* a range may end anywhere: the rows it has are the same */
        dpq_qweight short_range = create_output(c, &options);
        assert_int_equal(gptq->solve(&options, three, &input, 0, 40, &short_range, &method), DPQ_OK);
        assert_memory_equal(short_range.codes.data, q.codes.data, (size_t)(40 * c->k));
        dpq_qweight_fini(&short_range);
    }
    dpq_qweight_fini(&parts);
    dpq_qweight_fini(&q);
    dpq_tensor_fini(&w);
    free(f32);
    dpq_factor_fini(&factor);
    destroy_textbook(&book);
    destroy_stage(&s);
}

static void test_against_textbook(void **state)
{
    (void)state;
    dpq_backend *one = NULL;
    dpq_backend *three = NULL;
    assert_int_equal(dpq_backend_create("cpu", 1, &one), DPQ_OK);
    assert_int_equal(dpq_backend_create("cpu", 3, &three), DPQ_OK);
    for (size_t i = 0; i < DPQ_COUNT_OF(cases); i++) {
        run_case(&cases[i], one, three);
    }
    dpq_backend_destroy(&three);
    dpq_backend_destroy(&one);
}

/* tr(D H D^T), the error of outputs that GPTQ is meant to lower. */
static double output_error(const dpq_qweight *q, const stage *s, const float *source)
{
    double sum = 0.0;
    double *d = malloc((size_t)q->k * sizeof(double));
    int64_t width = dpq_scheme_group_width(&q->scheme, q->k);
    for (int64_t row = 0; row < q->n; row++) {
        for (int64_t j = 0; j < q->k; j++) {
            int64_t g = q->g_idx.data ? ((int32_t *)q->g_idx.data)[j] : j / width;
            d[j] = source[row * q->k + j] - loader_value(q, row, j, g);
        }
        for (int64_t i = 0; i < q->k; i++) {
            for (int64_t j = 0; j < q->k; j++) {
                sum += d[i] * s->h[i * q->k + j] * d[j];
            }
        }
    }
    free(d);
    return sum;
}

static void test_lowers_output_error(void **state)
{
    (void)state;
    dpq_backend *be = NULL;
    assert_int_equal(dpq_backend_create("cpu", 2, &be), DPQ_OK);
    const gptq_case c = cases[1];
    stage s;
    random_stage(c.k, 0, &s);
    dpq_tensor w = random_weights(c.dtype, c.n, c.k, 9);
    float *f32 = malloc((size_t)(c.n * c.k) * sizeof(float));
    double *sumsq = malloc((size_t)c.k * sizeof(double));
    weights_as_f32(&w, f32);
    for (int64_t j = 0; j < c.k; j++) {
        sumsq[j] = s.h[j * (c.k + 1)];
    }
    dpq_method method;
    dpq_algo_options options = options_of(&c);
    dpq_qweight q = create_output(&c, &options);
    dpq_solve_input input = {.module = "m", .w = &w, .sumsq = sumsq};
    assert_int_equal(dpq_algo_find("rtn")->solve(&options, be, &input, 0, c.n, &q, &method), DPQ_OK);
    double rtn = output_error(&q, &s, f32);
    dpq_qweight_fini(&q);
    for (int order = 0; order < 3; order++) {
        for (int scales = 0; scales < 2; scales++) {
            dpq_factor factor;
            gptq_case changed = c;
            changed.order = (dpq_gptq_order)order;
            changed.group_scales = (dpq_group_scales)scales;
            options = options_of(&changed);
            q = create_output(&changed, &options);
            assert_int_equal(dpq_algo_find("gptq")->prepare(&options, be, &s.stats, &factor), DPQ_OK);
            input.factor = &factor;
            assert_int_equal(dpq_algo_find("gptq")->solve(&options, be, &input, 0, c.n, &q, &method), DPQ_OK);
            assert_true(output_error(&q, &s, f32) < 0.8 * rtn);
            dpq_factor_fini(&factor);
            dpq_qweight_fini(&q);
        }
    }
    free(sumsq);
    free(f32);
    dpq_tensor_fini(&w);
    destroy_stage(&s);
    dpq_backend_destroy(&be);
}

/* Sums with unit diagonal 2^40 and one coupled pair. */
static void pair_stage(int64_t off_diagonal, stage *s)
{
    create_stage(64, 1, s);
    for (int64_t j = 0; j < 64; j++) {
        s->exponent[j] = -20;
    }
    for (int64_t i = 0; i < 64; i++) {
        set_sum(s, i, i, (int64_t)1 << 40);
    }
    set_sum(s, 50, 3, off_diagonal);
}

static void test_ladder(void **state)
{
    (void)state;
    static const struct {
        int64_t off_diagonal;
        double damping;
        dpq_factor_outcome outcome;
        double result;
    } steps[] = {
        {(int64_t)1 << 39, 0.01, DPQ_FACTOR_OK, 0.01},
        {((int64_t)1 << 40) - 1, 0.0, DPQ_FACTOR_OK_F64, 0.0}, /* 1 - 2^-40 is 1 in fp32 */
        {((int64_t)1 << 40) + ((int64_t)1 << 35), 0.01, DPQ_FACTOR_DAMPED, 0.1},
        {((int64_t)1 << 40) + ((int64_t)1 << 29), 0.0, DPQ_FACTOR_DAMPED, 0.01},
        {((int64_t)1 << 40) + ((int64_t)1 << 28), 0.0, DPQ_FACTOR_DAMPED, 0.001},
        {((int64_t)1 << 40) + ((int64_t)1 << 39), 0.3, DPQ_FACTOR_DAMPED, 1.0},
        {(int64_t)3 << 40, 0.01, DPQ_FACTOR_FAILED, 0.01},
    };
    dpq_backend *be = NULL;
    assert_int_equal(dpq_backend_create("cpu", 2, &be), DPQ_OK);
    for (size_t i = 0; i < DPQ_COUNT_OF(steps); i++) {
        dpq_algo_options options = default_options();
        options.gptq.damping = steps[i].damping;
        stage s;
        dpq_factor factor;
        int64_t off = steps[i].off_diagonal;
        if (i == 3) {
            off = ((int64_t)1 << 40) + (((int64_t)1 << 40) / 1000) * 5; /* above what 0.001 mends, below 0.01 */
        }
        pair_stage(off, &s);
        assert_int_equal(dpq_algo_find("gptq")->prepare(&options, be, &s.stats, &factor), DPQ_OK);
        assert_int_equal(factor.outcome, steps[i].outcome);
        assert_true(fabs(factor.damping - steps[i].result) <= 1e-12);
        assert_int_equal(factor.u.data == NULL, steps[i].outcome == DPQ_FACTOR_FAILED);
        assert_true(((float *)factor.importance.data)[3] == 1.0f);
        dpq_factor_fini(&factor);
        destroy_stage(&s);
    }
    dpq_backend_destroy(&be);
}

/* Without a factor: RTN by importance, also when nothing was seen, and with groups of contiguous columns in g_idx. */
static void test_fallback(void **state)
{
    (void)state;
    dpq_backend *be = NULL;
    assert_int_equal(dpq_backend_create("cpu", 2, &be), DPQ_OK);
    for (int silent = 0; silent < 2; silent++) {
        gptq_case c = {
            70, 64, 32, 4, true, true, DPQ_ORDER_GROUP, DPQ_GROUP_SCALES_STATIC, DPQ_SEARCH_MINMAX, DPQ_DTYPE_BF16, 0};
        dpq_algo_options options = options_of(&c);
        stage s;
        dpq_factor factor;
        pair_stage((int64_t)3 << 40, &s);
        if (silent) {
            memset(s.xtx, 0, (size_t)dpq_xtx_count(64) * sizeof(int64_t));
            s.stats.tokens = 0;
        }
        assert_int_equal(dpq_algo_find("gptq")->prepare(&options, be, &s.stats, &factor), DPQ_OK);
        assert_int_equal(factor.outcome, DPQ_FACTOR_FAILED);
        dpq_tensor w = random_weights(c.dtype, c.n, c.k, 9);
        dpq_qweight q = create_output(&c, &options);
        dpq_solve_input input = {.module = "m", .w = &w, .factor = &factor};
        dpq_method method = DPQ_METHOD_GPTQ;
        assert_int_equal(dpq_algo_find("gptq")->solve(&options, be, &input, 0, c.n, &q, &method), DPQ_OK);
        assert_int_equal(method, DPQ_METHOD_RTN_FALLBACK);
        assert_int_equal(dpq_qweight_check(&q, "m"), DPQ_OK);
        double ones[64];
        for (int j = 0; j < 64; j++) {
            ones[j] = 1.0;
            assert_int_equal(((int32_t *)q.g_idx.data)[j], j / 32);
        }
        dpq_algo_options rtn_options = default_options();
        dpq_qweight rtn;
        assert_int_equal(dpq_qweight_create(&q.scheme, c.n, c.k, c.dtype, false, &rtn), DPQ_OK);
        dpq_solve_input rtn_input = {.module = "m", .w = &w, .sumsq = ones};
        assert_int_equal(dpq_algo_find("rtn")->solve(&rtn_options, be, &rtn_input, 0, c.n, &rtn, &method), DPQ_OK);
        assert_tensor_bytes_equal(&q.codes, &rtn.codes);
        assert_tensor_bytes_equal(&q.scale, &rtn.scale);
        dpq_qweight_fini(&rtn);
        dpq_qweight_fini(&q);
        dpq_tensor_fini(&w);
        dpq_factor_fini(&factor);
        destroy_stage(&s);
    }
    dpq_backend_destroy(&be);
}

static void test_errors_and_options(void **state)
{
    (void)state;
    dpq_backend *be = NULL;
    assert_int_equal(dpq_backend_create("cpu", 1, &be), DPQ_OK);
    const dpq_linear_algo_ops *gptq = dpq_algo_find("gptq");
    dpq_algo_options options = default_options();
    assert_true(options.gptq.damping == 0.01 && options.gptq.true_sequential);
    assert_int_equal(options.gptq.order, DPQ_ORDER_STATIC);
    assert_int_equal(options.gptq.group_scales, DPQ_GROUP_SCALES_STATIC);
    assert_int_equal(options.gptq.search.search, DPQ_SEARCH_IMPORTANCE);
    assert_int_equal(gptq->stats(&options), DPQ_STAT_XTX);
    stage s;
    dpq_factor factor;
    pair_stage(0, &s);
    dpq_stage_stats nothing = {.k = 64, .tokens = 1};
    assert_int_equal(gptq->prepare(&options, be, &nothing, &factor), DPQ_E_BUG);
    assert_null(factor.u.data);
    assert_int_equal(gptq->prepare(&options, be, &s.stats, &factor), DPQ_OK);
    dpq_tensor w = random_weights(DPQ_DTYPE_F32, 10, 96, 2);
    dpq_scheme scheme = {4, 32, true, true};
    dpq_qweight q;
    dpq_method method;
    assert_int_equal(dpq_qweight_create(&scheme, 10, 96, DPQ_DTYPE_F32, false, &q), DPQ_OK);
    dpq_solve_input input = {.module = "layers.1.up", .w = &w, .factor = &factor};
    assert_int_equal(gptq->solve(&options, be, &input, 0, 10, &q, &method), DPQ_E_SHAPE); /* factor of width 64 */
    assert_non_null(strstr(dpq_error_last()->text, "layers.1.up"));
    input.factor = NULL;
    assert_int_equal(gptq->solve(&options, be, &input, 0, 10, &q, &method), DPQ_E_SHAPE);
    dpq_qweight_fini(&q);
    dpq_tensor_fini(&w);
    w = random_weights(DPQ_DTYPE_F32, 10, 64, 2);
    assert_int_equal(dpq_qweight_create(&scheme, 10, 64, DPQ_DTYPE_F32, false, &q), DPQ_OK);
    input.factor = &factor;
    options.gptq.order = DPQ_ORDER_GROUP;
    assert_int_equal(gptq->solve(&options, be, &input, 0, 10, &q, &method), DPQ_E_BUG); /* no room for g_idx */
    options.gptq.order = DPQ_ORDER_STATIC;
    ((float *)w.data)[3 * 64 + 5] = NAN;
    assert_int_equal(gptq->solve(&options, be, &input, 0, 10, &q, &method), DPQ_E_NUMERIC);
    assert_non_null(strstr(dpq_error_last()->text, "layers.1.up: weight in row 3, column 5"));
    dpq_qweight_fini(&q);
    dpq_tensor_fini(&w);
    dpq_factor_fini(&factor);
    destroy_stage(&s);
    dpq_backend_destroy(&be);
    assert_null(dpq_algo_find("gptq2"));
    assert_string_equal(dpq_algo_at(1)->name, "gptq");
    assert_null(dpq_algo_at(2));
    assert_null(dpq_algo_at(-1));
    assert_string_equal(dpq_method_name(DPQ_METHOD_RTN_FALLBACK), "rtn-fallback");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_textbook),
        cmocka_unit_test(test_lowers_output_error),
        cmocka_unit_test(test_ladder),
        cmocka_unit_test(test_fallback),
        cmocka_unit_test(test_errors_and_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
