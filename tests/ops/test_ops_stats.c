/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics and factors of the backend: column sums, exact integer Hessian sums, their expansion, the inverse factor.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op_case.h"
#include "ref_ops.h"

#define COUNT(a) ((int64_t)(sizeof(a) / sizeof(a)[0]))

static const int64_t token_counts[] = {1, 7, 65, 130};
static const dpq_dtype acts[] = {DPQ_DTYPE_F32, DPQ_DTYPE_BF16};

/* ---- column sums of squares ---- */

static dpq_status call_sumsq(dpq_backend *be, void *context, dpq_tensor *out)
{
    return dpq_op_column_sumsq(be, context, out->data);
}

/* Squares are exact and tokens come in order: the same bits as the plain loop. */
static void test_column_sumsq(void **state)
{
    (void)state;
    const int64_t widths[] = {1, 96, 200, 257, 576};
    for (int64_t a = 0; a < COUNT(acts); a++) {
        for (int64_t t = 0; t < COUNT(token_counts); t++) {
            for (int64_t k = 0; k < COUNT(widths); k++) {
                op_matrix x = op_matrix_create(acts[a], token_counts[t], widths[k], k % 2 * 3);
                op_matrix out = op_matrix_create(DPQ_DTYPE_F64, 1, widths[k], 0);
                op_matrix_fill(&x, 81, 10.0);
                double *values = op_matrix_values(&x), *want = op_doubles(widths[k]);
                ref_column_sumsq(values, token_counts[t], widths[k], want);
                op_matrix got = op_run("column_sumsq", call_sumsq, &x.t, &out);
                assert_memory_equal(got.t.data, want, (size_t)widths[k] * sizeof(double));
                op_matrix_free(&got);
                op_matrix_free(&out);
                op_matrix_free(&x);
                free(values);
                free(want);
            }
        }
    }
}

static void test_column_sumsq_of_special_values(void **state)
{
    (void)state;
    op_matrix x = op_matrix_create(DPQ_DTYPE_F32, 3, 40, 0), out = op_matrix_create(DPQ_DTYPE_F64, 1, 40, 0);
    op_matrix_fill(&x, 82, 1.0);
    op_matrix_set(&x, 1, 4, NAN);
    op_matrix_set(&x, 2, 5, -INFINITY);
    op_matrix_set(&x, 0, 6, 3e38); /* its square is no fp32 number */
    op_matrix got = op_run("column_sumsq", call_sumsq, &x.t, &out);
    assert_true(isnan(op_matrix_get(&got, 0, 4)));
    assert_true(isinf(op_matrix_get(&got, 0, 5)));
    assert_true(fabs(op_matrix_get(&got, 0, 6) / 9e76 - 1.0) < 1e-6);
    for (int64_t j = 0; j < 40; j++) {
        assert_true(j == 4 || j == 5 || isfinite(op_matrix_get(&got, 0, j)));
    }
    op_matrix_free(&got);
    op_matrix_free(&out);
    op_matrix_free(&x);
}

/* ---- Hessian sums ---- */

#define MAX_SAMPLES 3

typedef struct {
    const dpq_tensor *x;
    int64_t n;
    const int32_t *exponent;
    dpq_compute compute;
} xtx_context;

static dpq_status call_xtx(dpq_backend *be, void *context, dpq_tensor *out)
{
    xtx_context *c = context;
    return dpq_op_xtx_accumulate(be, c->x, c->n, c->exponent, c->compute, out->data);
}

typedef struct {
    const char *name;
    dpq_dtype dtype;
    dpq_compute compute;
    int64_t tokens[MAX_SAMPLES]; /* 0: no such sample */
    int64_t k, pad;
    bool integers; /* values whose products fp32 adds without rounding: the sums are exact */
} xtx_case;

static void fill_sample(op_matrix *x, const xtx_case *c, int64_t sample)
{
    uint64_t seed = (uint64_t)(91 + sample);
    if (!c->integers) {
        op_matrix_fill(x, seed, 1.0);
        return;
    }
    for (int64_t i = 0; i < x->t.dim[0]; i++) {
        for (int64_t j = 0; j < x->t.dim[1]; j++) {
            op_matrix_set(x, i, j, (double)(op_random(&seed) % 31) - 15.0);
        }
    }
}

/* Entries of the lower triangle against the fp64 sums in units of 2^(e_i + e_j), on top of what the sums held. */
static void check_sums(const char *label, const xtx_case *c, int64_t samples, const int32_t *exponent, const double *h,
                       const double *size, const int64_t *before, const int64_t *sums)
{
    for (int64_t i = 0; i < c->k; i++) {
        for (int64_t j = 0; j <= i; j++) {
            int64_t at = ref_xtx_index(i, j, DPQ_XTX_TILE);
            double unit = ldexp(1.0, exponent[i] + exponent[j]);
            double got = (double)(sums[at] - before[at]), want = h[i * c->k + j] / unit;
            double limit =
                op_limit(OP_XTX, want, size[i * c->k + j] / unit, DPQ_DTYPE_I64, false) + 0.5 * (double)samples;
            if (c->integers ? got != want : fabs(got - want) > limit) {
                fail_msg("%s: sum (%lld,%lld) grew by %.17g, expected %.17g, allowed error %.3g", label, (long long)i,
                         (long long)j, got, want, c->integers ? 0.0 : limit);
            }
        }
    }
}

static void check_xtx(const xtx_case *c)
{
    char label[128];
    snprintf(label, sizeof label, "xtx %s T=%lld K=%lld", c->name, (long long)c->tokens[0], (long long)c->k);
    int64_t count = dpq_xtx_count(c->k), edge = dpq_xtx_tiles_per_edge(c->k), samples = 0;
    assert_int_equal(count, edge * (edge + 1) / 2 * DPQ_XTX_TILE * DPQ_XTX_TILE);
    op_matrix x[MAX_SAMPLES], sums = op_matrix_create(DPQ_DTYPE_I64, 1, count, 0);
    dpq_tensor views[MAX_SAMPLES];
    double *h = op_doubles(c->k * c->k), *size = op_doubles(c->k * c->k);
    int32_t *exponent = (int32_t *)op_doubles(c->k);
    for (int64_t i = 0; i < count; i++) {
        ((int64_t *)sums.t.data)[i] =
            i * 1000003; /* accumulation, not assignment; and guards what lies outside the triangle */
    }
    for (int64_t i = 0; i < c->k; i++) {
        exponent[i] = c->integers ? (int32_t) - (i % 5) : (int32_t)(-14 - i % 3);
    }
    for (; samples < MAX_SAMPLES && c->tokens[samples] > 0; samples++) {
        x[samples] = op_matrix_create(c->dtype, c->tokens[samples], c->k, c->pad);
        fill_sample(&x[samples], c, samples);
        views[samples] = x[samples].t;
        double *values = op_matrix_values(&x[samples]);
        ref_xtx(values, c->tokens[samples], c->k, h, size);
        free(values);
    }
    xtx_context context = {views, samples, exponent, c->compute};
    op_matrix out = op_run(label, call_xtx, &context, &sums);
    check_sums(label, c, samples, exponent, h, size, sums.t.data, out.t.data);
    for (int64_t s = 0; s < samples; s++) {
        op_matrix_free(&x[s]);
    }
    op_matrix_free(&out);
    op_matrix_free(&sums);
    free(exponent);
    free(h);
    free(size);
}

static void test_xtx_is_exact(void **state)
{
    (void)state;
    const xtx_case cases[] = {
        {"f32 integers", DPQ_DTYPE_F32, DPQ_COMPUTE_F32, {130, 7, 65}, 96, 0, true},
        {"f32 integers", DPQ_DTYPE_F32, DPQ_COMPUTE_F32, {65}, 200, 3, true},
        {"bf16 integers in f32", DPQ_DTYPE_BF16, DPQ_COMPUTE_F32, {7, 1, 130}, 200, 3, true},
        {"bf16 integers in bf16", DPQ_DTYPE_BF16, DPQ_COMPUTE_BF16, {65, 130}, 200, 1, true},
        {"bf16 integers in bf16", DPQ_DTYPE_BF16, DPQ_COMPUTE_BF16, {130, 7}, 576, 0, true},
        {"one token", DPQ_DTYPE_F32, DPQ_COMPUTE_F32, {1}, 193, 0, true},
        {"one channel", DPQ_DTYPE_BF16, DPQ_COMPUTE_BF16, {7}, 1, 0, true},
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        check_xtx(&cases[i]);
    }
}

static void test_xtx_within_bounds(void **state)
{
    (void)state;
    const xtx_case cases[] = {
        {"f32", DPQ_DTYPE_F32, DPQ_COMPUTE_F32, {130, 65, 7}, 200, 0, false},
        {"bf16 in f32", DPQ_DTYPE_BF16, DPQ_COMPUTE_F32, {130, 65, 7}, 200, 3, false},
        {"bf16 in bf16", DPQ_DTYPE_BF16, DPQ_COMPUTE_BF16, {130, 65, 7}, 200, 0, false},
        {"f32 long", DPQ_DTYPE_F32, DPQ_COMPUTE_F32, {4096}, 96, 0, false},
        {"bf16 in f32 long", DPQ_DTYPE_BF16, DPQ_COMPUTE_F32, {4096}, 200, 0, false},
        {"bf16 in bf16 long", DPQ_DTYPE_BF16, DPQ_COMPUTE_BF16, {4096, 2048}, 200, 0, false},
    };
    for (int64_t i = 0; i < COUNT(cases); i++) {
        check_xtx(&cases[i]);
    }
}

/* Samples one at a time, together, or in another order: the same integers. */
static void test_xtx_of_any_dealing(void **state)
{
    (void)state;
    int32_t exponent[96];
    dpq_tensor views[3], swapped[3];
    op_matrix x[3], sums = op_matrix_create(DPQ_DTYPE_I64, 1, dpq_xtx_count(96), 0);
    memset(sums.t.data, 0, dpq_tensor_bytes(&sums.t));
    for (int s = 0; s < 3; s++) {
        x[s] = op_matrix_create(DPQ_DTYPE_BF16, 30 + s, 96, 0);
        op_matrix_fill(&x[s], (uint64_t)s, 1.0);
        views[s] = x[s].t;
        swapped[2 - s] = x[s].t;
    }
    for (int i = 0; i < 96; i++) {
        exponent[i] = -12;
    }
    xtx_context together = {views, 3, exponent, DPQ_COMPUTE_F32}, other = {swapped, 3, exponent, DPQ_COMPUTE_F32};
    op_matrix a = op_run("xtx together", call_xtx, &together, &sums);
    op_matrix b = op_run("xtx swapped", call_xtx, &other, &sums);
    for (int s = 0; s < 3; s++) {
        assert_int_equal(dpq_op_xtx_accumulate(op_backends[s], &views[s], 1, exponent, DPQ_COMPUTE_F32, sums.t.data),
                         DPQ_OK);
    }
    assert_memory_equal(a.t.data, sums.t.data, dpq_tensor_bytes(&sums.t));
    assert_memory_equal(b.t.data, sums.t.data, dpq_tensor_bytes(&sums.t));
    assert_int_equal(dpq_op_xtx_accumulate(op_backends[0], views, 0, exponent, DPQ_COMPUTE_F32, sums.t.data), DPQ_OK);
    assert_memory_equal(a.t.data, sums.t.data, dpq_tensor_bytes(&sums.t));
    for (int s = 0; s < 3; s++) {
        op_matrix_free(&x[s]);
    }
    op_matrix_free(&a);
    op_matrix_free(&b);
    op_matrix_free(&sums);
}

static void test_xtx_of_special_values(void **state)
{
    (void)state;
    const double bad[] = {NAN, INFINITY, 1e30}; /* the last: its square is no fp32 number */
    int32_t exponent[200] = {0};
    op_matrix sums = op_matrix_create(DPQ_DTYPE_I64, 1, dpq_xtx_count(200), 0);
    for (int64_t i = 0; i < COUNT(bad); i++) {
        op_matrix x = op_matrix_create(DPQ_DTYPE_F32, 7, 200, 0);
        op_matrix_fill(&x, 3, 1.0);
        op_matrix_set(&x, 6, 197, bad[i]);
        for (int b = 0; b < OP_BACKENDS; b++) {
            memset(sums.t.data, 0, dpq_tensor_bytes(&sums.t));
            assert_int_equal(dpq_op_xtx_accumulate(op_backends[b], &x.t, 1, exponent, DPQ_COMPUTE_F32, sums.t.data),
                             DPQ_E_NUMERIC);
        }
        op_matrix_free(&x);
    }
    op_matrix_free(&sums);
}

typedef struct {
    const int64_t *sums;
    const int32_t *exponent;
    double scale;
} expand_context;

static dpq_status call_expand(dpq_backend *be, void *context, dpq_tensor *h)
{
    expand_context *c = context;
    return dpq_op_xtx_expand(be, c->sums, c->exponent, c->scale, h);
}

/* One conversion to fp64, one product: the same bits, above and below the diagonal. */
static void test_xtx_expand(void **state)
{
    (void)state;
    const int64_t widths[] = {1, 96, 193, 400};
    uint64_t seed = 17;
    for (int64_t w = 0; w < COUNT(widths); w++) {
        int64_t k = widths[w], count = dpq_xtx_count(k);
        int64_t *sums = (int64_t *)op_doubles(count);
        int32_t *exponent = (int32_t *)op_doubles(k);
        for (int64_t i = 0; i < count; i++) {
            sums[i] = (int64_t)((uint64_t)op_random(&seed) << 30) - ((int64_t)1 << 61);
        }
        for (int64_t i = 0; i < k; i++) {
            exponent[i] = (int32_t)(op_random(&seed) % 40) - 30;
        }
        expand_context c = {sums, exponent, 1.0 / 130.0};
        for (int f = 0; f < 2; f++) {
            op_matrix h = op_matrix_create(f ? DPQ_DTYPE_F64 : DPQ_DTYPE_F32, k, k, 0);
            op_matrix out = op_run("xtx_expand", call_expand, &c, &h);
            for (int64_t i = 0; i < k; i++) {
                for (int64_t j = 0; j < k; j++) {
                    int64_t at = i > j ? ref_xtx_index(i, j, DPQ_XTX_TILE) : ref_xtx_index(j, i, DPQ_XTX_TILE);
                    double want = ldexp((double)sums[at], exponent[i] + exponent[j]) * c.scale;
                    assert_true(op_matrix_get(&out, i, j) == (f ? want : (double)(float)want));
                }
            }
            op_matrix_free(&out);
            op_matrix_free(&h);
        }
        free(sums);
        free(exponent);
    }
}

/* ---- inverse factor ---- */

static dpq_status call_factor(dpq_backend *be, void *context, dpq_tensor *h)
{
    return dpq_op_inverse_factor(be, h, context);
}

/* x^T x / T of T = 4 K tokens, and a tenth of the identity: condition below 100. */
static void fill_positive(op_matrix *h)
{
    int64_t k = h->t.dim[0], t = 4 * k;
    op_matrix x = op_matrix_create(DPQ_DTYPE_F32, t, k, 0);
    op_matrix_fill(&x, 101, 1.0);
    double *values = op_matrix_values(&x), *sums = op_doubles(k * k), *size = op_doubles(k * k);
    ref_xtx(values, t, k, sums, size);
    for (int64_t i = 0; i < k * k; i++) {
        op_matrix_set(h, i / k, i % k, sums[i] / (double)t + (i / k == i % k ? 0.1 : 0.0));
    }
    op_matrix_free(&x);
    free(values);
    free(sums);
    free(size);
}

static void check_factor(dpq_dtype dtype, int64_t k)
{
    char label[64];
    bool positive = false;
    snprintf(label, sizeof label, "inverse_factor %s K=%lld", dpq_dtype_name(dtype), (long long)k);
    op_matrix h = op_matrix_create(dtype, k, k, 0);
    fill_positive(&h);
    double *hd = op_matrix_values(&h), *want = op_doubles(k * k), *size = op_doubles(k * k);
    assert_true(ref_inverse_factor(hd, k, want));
    for (int64_t i = 0; i < k * k; i++) {
        size[i] = i / k <= i % k ? 1.0 : 0.0; /* entries of U are of size 1; the lower triangle is zero */
    }
    op_matrix u = op_run(label, call_factor, &positive, &h);
    assert_true(positive);
    op_check_close(OP_FACTOR, label, &u, want, size, false);
    op_matrix_free(&u);
    op_matrix_free(&h);
    free(hd);
    free(want);
    free(size);
}

static void test_inverse_factor(void **state)
{
    (void)state;
    const int64_t widths[] = {1, 2, 33, 128, 129, 200, 300};
    for (int64_t k = 0; k < COUNT(widths); k++) {
        check_factor(DPQ_DTYPE_F32, widths[k]);
        check_factor(DPQ_DTYPE_F64, widths[k]);
    }
}

/* Not positive definite: said so, and no error, wherever the bad pivot lies. */
static void test_inverse_factor_of_bad_matrices(void **state)
{
    (void)state;
    const int64_t places[] = {0, 1, 130, 199};
    const double pivots[] = {-1.0, 0.0, NAN, INFINITY};
    for (int f = 0; f < 2; f++) {
        for (int64_t p = 0; p < COUNT(places); p++) {
            for (int64_t v = 0; v < COUNT(pivots); v++) {
                for (int b = 0; b < OP_BACKENDS; b++) {
                    bool positive = true;
                    op_matrix h = op_matrix_create(f ? DPQ_DTYPE_F64 : DPQ_DTYPE_F32, 200, 200, 0);
                    for (int64_t i = 0; i < 200 * 200; i++) {
                        op_matrix_set(&h, i / 200, i % 200, i / 200 == i % 200 ? 1.0 : 0.0);
                    }
                    op_matrix_set(&h, places[p], places[p], pivots[v]);
                    assert_int_equal(dpq_op_inverse_factor(op_backends[b], &h.t, &positive), DPQ_OK);
                    op_check_guards("inverse_factor", &h);
                    assert_false(positive);
                    op_matrix_free(&h);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_column_sumsq),
        cmocka_unit_test(test_column_sumsq_of_special_values),
        cmocka_unit_test(test_xtx_is_exact),
        cmocka_unit_test(test_xtx_within_bounds),
        cmocka_unit_test(test_xtx_of_any_dealing),
        cmocka_unit_test(test_xtx_of_special_values),
        cmocka_unit_test(test_xtx_expand),
        cmocka_unit_test(test_inverse_factor),
        cmocka_unit_test(test_inverse_factor_of_bad_matrices),
    };
    return cmocka_run_group_tests(tests, op_create_backends, op_destroy_backends);
}
