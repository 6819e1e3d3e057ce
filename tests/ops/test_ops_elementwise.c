/* SPDX-License-Identifier: Apache-2.0 */
/* Norms, rotary embedding, gated activation, gather and losses against their fp64 definitions, with NaN and infinities.
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

/* ---- rmsnorm ---- */

typedef struct {
    const dpq_tensor *x; /* NULL: in place */
    dpq_tensor gamma;
    double eps;
    int64_t groups;
} norm_context;

static dpq_status call_rmsnorm(dpq_backend *be, void *context, dpq_tensor *y)
{
    norm_context *c = context;
    return dpq_op_rmsnorm(be, c->x != NULL ? c->x : y, &c->gamma, c->eps, c->groups, y);
}

static void check_rmsnorm(dpq_dtype dtype, int64_t t, int64_t width, int64_t groups, int64_t pad, double scale)
{
    char label[96];
    int64_t cols = width * groups;
    snprintf(label, sizeof label, "rmsnorm %s T=%lld C=%lld groups %lld", dpq_dtype_name(dtype), (long long)t,
             (long long)width, (long long)groups);
    op_matrix x = op_matrix_create(dtype, t, cols, pad), y = op_matrix_create(dtype, t, cols, pad + 1);
    op_matrix gamma = op_matrix_create(DPQ_DTYPE_F32, 1, width, 0);
    op_matrix_fill(&x, 21, scale);
    op_matrix_fill(&gamma, 22, 1.0);
    for (int64_t j = 0; j < cols && t > 2; j++) {
        op_matrix_set(&x, 2, j, 0.0); /* a silent token */
    }
    if (t > 5) {
        op_matrix_set(&x, 4, 1, NAN); /* poisons its own group only */
        op_matrix_set(&x, 5, cols - 1, INFINITY);
    }
    double *xd = op_matrix_values(&x), *gd = op_matrix_values(&gamma), *yd = op_doubles(t * cols);
    norm_context c = {&x.t, dpq_tensor_wrap_1d(gamma.t.data, DPQ_DTYPE_F32, width), 1e-6, groups};
    ref_rmsnorm(xd, gd, c.eps, groups, t, cols, yd);
    op_matrix out = op_run(label, call_rmsnorm, &c, &y);
    op_check_close(OP_RMSNORM, label, &out, yd, NULL, false);
    c.x = NULL;
    op_matrix same = op_run(label, call_rmsnorm, &c, &x);
    op_check_close(OP_RMSNORM, label, &same, yd, NULL, false);
    op_matrix_free(&same);
    op_matrix_free(&out);
    op_matrix_free(&x);
    op_matrix_free(&y);
    op_matrix_free(&gamma);
    free(xd);
    free(gd);
    free(yd);
}

static void test_rmsnorm(void **state)
{
    (void)state;
    for (int64_t a = 0; a < COUNT(acts); a++) {
        for (int64_t t = 0; t < COUNT(token_counts); t++) {
            check_rmsnorm(acts[a], token_counts[t], 576, 1, 0, 1.0);
            check_rmsnorm(acts[a], token_counts[t], 200, 1, 3, 300.0);
            check_rmsnorm(acts[a], token_counts[t], 64, 9, 0, 1.0);
            check_rmsnorm(acts[a], token_counts[t], 7, 3, 1, 1e-3); /* eps matters */
        }
        check_rmsnorm(acts[a], 3, 4, 1, 0, 1e18); /* squares beyond fp32 */
    }
}

/* ---- rope ---- */

typedef struct {
    int64_t heads;
    const dpq_tensor *cos, *sin;
} rope_context;

static dpq_status call_rope(dpq_backend *be, void *context, dpq_tensor *x)
{
    rope_context *c = context;
    return dpq_op_rope(be, x, c->heads, c->cos, c->sin);
}

static void check_rope(dpq_dtype dtype, int64_t t, int64_t heads, int64_t d, int64_t half, int64_t pad)
{
    char label[96];
    snprintf(label, sizeof label, "rope %s T=%lld heads %lld D=%lld half %lld", dpq_dtype_name(dtype), (long long)t,
             (long long)heads, (long long)d, (long long)half);
    op_matrix x = op_matrix_create(dtype, t, heads * d, pad);
    op_matrix cosine = op_matrix_create(DPQ_DTYPE_F32, t + 3, half, pad);
    op_matrix sine = op_matrix_create(DPQ_DTYPE_F32, t + 3, half, pad);
    op_matrix_fill(&x, 31, 1.0);
    for (int64_t i = 0; i < t + 3; i++) {
        for (int64_t j = 0; j < half; j++) {
            double angle = (double)i * pow(10000.0, -(double)j / (double)half);
            op_matrix_set(&cosine, i, j, cos(angle));
            op_matrix_set(&sine, i, j, sin(angle));
        }
    }
    double *xd = op_matrix_values(&x), *cd = op_matrix_values(&cosine), *sd = op_matrix_values(&sine);
    double *size = op_doubles(t * heads * d);
    rope_context c = {heads, &cosine.t, &sine.t};
    ref_rope(xd, t, heads, d, half, cd, sd, size);
    op_matrix out = op_run(label, call_rope, &c, &x);
    op_check_close(OP_ROPE, label, &out, xd, size, false);
    /* what is not turned keeps its bits */
    for (int64_t i = 0; i < t; i++) {
        for (int64_t j = 0; j < heads * d; j++) {
            assert_true(j % d < 2 * half || op_matrix_get(&out, i, j) == op_matrix_get(&x, i, j));
        }
    }
    op_matrix_free(&out);
    op_matrix_free(&x);
    op_matrix_free(&cosine);
    op_matrix_free(&sine);
    free(xd);
    free(cd);
    free(sd);
    free(size);
}

static void test_rope(void **state)
{
    (void)state;
    for (int64_t a = 0; a < COUNT(acts); a++) {
        for (int64_t t = 0; t < COUNT(token_counts); t++) {
            check_rope(acts[a], token_counts[t], 9, 64, 32, 0);
            check_rope(acts[a], token_counts[t], 3, 20, 5, 2); /* only the first half of each head */
            check_rope(acts[a], token_counts[t], 1, 2, 1, 0);
        }
    }
}

/* ---- silu(gate) * up ---- */

typedef struct {
    const dpq_tensor *gate, *up; /* NULL: the output */
} silu_context;

static dpq_status call_silu_mul(dpq_backend *be, void *context, dpq_tensor *y)
{
    silu_context *c = context;
    return dpq_op_silu_mul(be, c->gate != NULL ? c->gate : y, c->up != NULL ? c->up : y, y);
}

static void check_silu_mul(dpq_dtype dtype, int64_t t, int64_t cols, int64_t pad)
{
    char label[96];
    snprintf(label, sizeof label, "silu_mul %s T=%lld C=%lld", dpq_dtype_name(dtype), (long long)t, (long long)cols);
    const double special[] = {0.0, -0.0, 88.0, -88.0, 1000.0, -1000.0, 1e-30, -1e-30, NAN, INFINITY};
    op_matrix gate = op_matrix_create(dtype, t, cols, pad), up = op_matrix_create(dtype, t, cols, pad);
    op_matrix y = op_matrix_create(dtype, t, cols, pad);
    op_matrix_fill(&gate, 41, 6.0);
    op_matrix_fill(&up, 42, 1.0);
    for (int64_t j = 0; j < COUNT(special) && j < cols; j++) {
        op_matrix_set(&gate, t - 1, cols - 1 - j, special[j]);
    }
    double *gd = op_matrix_values(&gate), *ud = op_matrix_values(&up), *yd = op_doubles(t * cols);
    ref_silu_mul(gd, ud, t * cols, yd);
    silu_context c[3] = {{&gate.t, &up.t}, {NULL, &up.t}, {&gate.t, NULL}};
    const op_matrix *initial[3] = {&y, &gate, &up};
    for (int i = 0; i < 3; i++) { /* apart, over the gate, over up */
        op_matrix out = op_run(label, call_silu_mul, &c[i], initial[i]);
        op_check_close(OP_SILU_MUL, label, &out, yd, NULL, false);
        op_matrix_free(&out);
    }
    op_matrix_free(&gate);
    op_matrix_free(&up);
    op_matrix_free(&y);
    free(gd);
    free(ud);
    free(yd);
}

static void test_silu_mul(void **state)
{
    (void)state;
    for (int64_t a = 0; a < COUNT(acts); a++) {
        for (int64_t t = 0; t < COUNT(token_counts); t++) {
            check_silu_mul(acts[a], token_counts[t], 200, 0);
            check_silu_mul(acts[a], token_counts[t], 33, 5);
        }
        check_silu_mul(acts[a], 4, 8192, 0);
    }
}

/* ---- gather ---- */

typedef struct {
    const dpq_tensor *table;
    const int32_t *ids;
} gather_context;

static dpq_status call_gather(dpq_backend *be, void *context, dpq_tensor *y)
{
    gather_context *c = context;
    return dpq_op_gather_rows(be, c->table, c->ids, y);
}

static void test_gather_rows(void **state)
{
    (void)state;
    const dpq_dtype tables[] = {DPQ_DTYPE_F32, DPQ_DTYPE_F16, DPQ_DTYPE_BF16};
    int32_t ids[130];
    uint64_t seed = 5;
    for (int i = 0; i < 130; i++) {
        ids[i] = (int32_t)(op_random(&seed) % 50);
    }
    ids[0] = 49; /* first and last row, and repeats */
    ids[1] = 0;
    for (int64_t s = 0; s < COUNT(tables); s++) {
        op_matrix table = op_matrix_create(tables[s], 50, 96, 2);
        op_matrix_fill(&table, 51, 1.0);
        op_matrix_set(&table, 49, 3, NAN);
        op_matrix_set(&table, 49, 4, -INFINITY);
        double *values = op_matrix_values(&table);
        for (int64_t a = 0; a < COUNT(acts); a++) {
            for (int64_t t = 0; t < COUNT(token_counts); t++) {
                op_matrix y = op_matrix_create(acts[a], token_counts[t], 96, 3);
                double *yd = op_doubles(token_counts[t] * 96);
                gather_context c = {&table.t, ids};
                ref_gather_rows(values, ids, token_counts[t], 96, yd);
                op_matrix out = op_run("gather_rows", call_gather, &c, &y);
                op_check_close(OP_GATHER_ROWS, "gather_rows", &out, yd, NULL, false);
                op_matrix_free(&out);
                op_matrix_free(&y);
                free(yd);
            }
        }
        op_matrix_free(&table);
        free(values);
    }
}

/* ---- losses ---- */

/* Column 0: nll, column 1: top (as a double), or kl alone. */
typedef struct {
    const dpq_tensor *logits, *model;
    const int32_t *target;
} loss_context;

static dpq_status call_nll(dpq_backend *be, void *context, dpq_tensor *out)
{
    loss_context *c = context;
    int32_t top[130];
    double *values = out->data;
    dpq_status st = dpq_op_nll(be, c->logits, c->target, values, top);
    for (int64_t i = 0; i < out->dim[1] / 2; i++) {
        values[out->dim[1] / 2 + i] = top[i];
    }
    return st;
}

static dpq_status call_kl(dpq_backend *be, void *context, dpq_tensor *out)
{
    loss_context *c = context;
    return dpq_op_kl(be, c->logits, c->model, out->data);
}

static void fill_logits(op_matrix *m, uint64_t seed, double scale)
{
    op_matrix_fill(m, seed, scale);
    for (int64_t i = 1; i < m->t.dim[0]; i += 3) {
        op_matrix_set(m, i, i * 7 % m->t.dim[1], 6.0 * scale + 10.0); /* a clear favourite; other rows are flat */
    }
}

static void check_nll(int64_t t, int64_t v, double scale)
{
    char label[96];
    int32_t target[130];
    snprintf(label, sizeof label, "nll T=%lld V=%lld scale %g", (long long)t, (long long)v, scale);
    op_matrix logits = op_matrix_create(DPQ_DTYPE_F32, t, v, 1), out = op_matrix_create(DPQ_DTYPE_F64, 1, 2 * t, 0);
    fill_logits(&logits, 61, scale);
    if (v > 3) { /* equal maxima: the first wins */
        op_matrix_set(&logits, 0, v - 1, 1e4);
        op_matrix_set(&logits, 0, 2, 1e4);
    }
    double *values = op_matrix_values(&logits), *want = op_doubles(2 * t), *size = op_doubles(2 * t);
    for (int64_t i = 0; i < t; i++) {
        int32_t top;
        target[i] = (int32_t)(i * 31 % v);
        want[i] = ref_nll(values + i * v, v, target[i], &top, &size[i]);
        want[t + i] = top;
    }
    loss_context c = {.logits = &logits.t, .target = target};
    op_matrix got = op_run(label, call_nll, &c, &out);
    op_check_close(OP_NLL, label, &got, want, size, false);
    op_matrix_free(&got);
    op_matrix_free(&out);
    op_matrix_free(&logits);
    free(values);
    free(want);
    free(size);
}

static void test_nll(void **state)
{
    (void)state;
    for (int64_t t = 0; t < COUNT(token_counts); t++) {
        check_nll(token_counts[t], 1, 1.0);
        check_nll(token_counts[t], 33, 10.0);
        check_nll(token_counts[t], 512, 2.0);
    }
    check_nll(5, 50001, 3.0);
    check_nll(5, 1000, 100.0); /* all but the top below the smallest number */
}

static void check_kl(int64_t t, int64_t v, double scale, double difference)
{
    char label[96];
    snprintf(label, sizeof label, "kl T=%lld V=%lld scale %g difference %g", (long long)t, (long long)v, scale,
             difference);
    op_matrix a = op_matrix_create(DPQ_DTYPE_F32, t, v, 1), b = op_matrix_create(DPQ_DTYPE_F32, t, v, 1);
    op_matrix out = op_matrix_create(DPQ_DTYPE_F64, 1, t, 0);
    fill_logits(&a, 71, scale);
    op_matrix_fill(&b, 72, difference);
    for (int64_t i = 0; i < t; i++) {
        for (int64_t j = 0; j < v; j++) {
            op_matrix_set(&b, i, j, op_matrix_get(&b, i, j) + op_matrix_get(&a, i, j));
        }
    }
    double *ad = op_matrix_values(&a), *bd = op_matrix_values(&b), *want = op_doubles(t), *size = op_doubles(t);
    for (int64_t i = 0; i < t; i++) {
        want[i] = ref_kl(ad + i * v, bd + i * v, v, &size[i]);
    }
    loss_context c = {.logits = &a.t, .model = &b.t};
    op_matrix got = op_run(label, call_kl, &c, &out);
    op_check_close(OP_KL, label, &got, want, size, false);
    for (int64_t i = 0; i < t; i++) {
        assert_true(op_matrix_get(&got, 0, i) >= 0.0);
        assert_true(difference != 0.0 || op_matrix_get(&got, 0, i) == 0.0);
    }
    op_matrix_free(&got);
    op_matrix_free(&out);
    op_matrix_free(&a);
    op_matrix_free(&b);
    free(ad);
    free(bd);
    free(want);
    free(size);
}

static void test_kl(void **state)
{
    (void)state;
    for (int64_t t = 0; t < COUNT(token_counts); t++) {
        check_kl(token_counts[t], 1, 1.0, 1.0);
        check_kl(token_counts[t], 33, 3.0, 1.0);
        check_kl(token_counts[t], 512, 2.0, 0.05);
        check_kl(token_counts[t], 512, 2.0, 1e-4); /* rounding may go below zero */
        check_kl(token_counts[t], 512, 2.0, 0.0);
    }
    check_kl(5, 50001, 3.0, 0.1);
    check_kl(5, 1000, 80.0, 40.0);
}

/* Infinite and missing logits: a token impossible in the reference counts nothing, one impossible in the model alone is
 * infinite. */
static void test_losses_of_special_values(void **state)
{
    (void)state;
    float a[4][3] = {{0, 1, -INFINITY}, {0, 1, 2}, {0, NAN, 2}, {0, 1, 2}};
    float b[4][3] = {{0, 1, -INFINITY}, {0, 1, -INFINITY}, {0, 1, 2}, {NAN, 1, 2}};
    const int32_t target[4] = {2, 0, 0, 0};
    double kl[4], nll[4];
    int32_t top[4];
    dpq_tensor ta = dpq_tensor_wrap_2d(a, DPQ_DTYPE_F32, 4, 3), tb = dpq_tensor_wrap_2d(b, DPQ_DTYPE_F32, 4, 3);
    for (int i = 0; i < OP_BACKENDS; i++) {
        assert_int_equal(dpq_op_kl(op_backends[i], &ta, &tb, kl), DPQ_OK);
        assert_true(kl[0] == 0.0);
        assert_true(isinf(kl[1]) && kl[1] > 0);
        assert_true(isnan(kl[2]) && isnan(kl[3]));
        assert_int_equal(dpq_op_nll(op_backends[i], &ta, target, nll, top), DPQ_OK);
        assert_true(isinf(nll[0]) && nll[0] > 0);
        assert_true(fabs(nll[1] - 2.4076059644443806) < 1e-6); /* log(1 + e + e^2) */
        assert_true(isnan(nll[2]));
        assert_int_equal(top[0], 1);
        assert_int_equal(top[2], 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_silu_mul),
        cmocka_unit_test(test_gather_rows),
        cmocka_unit_test(test_nll),
        cmocka_unit_test(test_kl),
        cmocka_unit_test(test_losses_of_special_values),
    };
    return cmocka_run_group_tests(tests, op_create_backends, op_destroy_backends);
}
