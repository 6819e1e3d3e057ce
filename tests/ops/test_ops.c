/* SPDX-License-Identifier: Apache-2.0 */
/* Products and attention of the backend against their fp64 definitions: odd shapes, types, strides, thread counts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op_case.h"
#include "ref_ops.h"

#define COUNT(a) ((int64_t)(sizeof(a) / sizeof(a)[0]))

static const int64_t token_counts[] = {1, 7, 65, 130};

static int64_t sized(int64_t rows, int64_t cols)
{
    return rows * cols;
}

/* ---- linear ---- */

typedef struct {
    const char *name;
    dpq_dtype x, w, y;
    bool bias, accumulate;
} linear_types;

static const linear_types linear_variants[] = {
    {"f32", DPQ_DTYPE_F32, DPQ_DTYPE_F32, DPQ_DTYPE_F32, false, false},
    {"f32 bias", DPQ_DTYPE_F32, DPQ_DTYPE_F32, DPQ_DTYPE_F32, true, false},
    {"f32 sum", DPQ_DTYPE_F32, DPQ_DTYPE_F32, DPQ_DTYPE_F32, true, true},
    {"bf16 in f32", DPQ_DTYPE_BF16, DPQ_DTYPE_F32, DPQ_DTYPE_BF16, true, false},
    {"bf16 in f32 sum", DPQ_DTYPE_BF16, DPQ_DTYPE_F32, DPQ_DTYPE_BF16, false, true},
    {"bf16", DPQ_DTYPE_BF16, DPQ_DTYPE_BF16, DPQ_DTYPE_BF16, false, false},
    {"bf16 sum", DPQ_DTYPE_BF16, DPQ_DTYPE_BF16, DPQ_DTYPE_BF16, true, true},
    {"bf16 to f32", DPQ_DTYPE_BF16, DPQ_DTYPE_BF16, DPQ_DTYPE_F32, false, false},
};

typedef struct {
    const dpq_tensor *x;
    dpq_weight weight;
    bool accumulate;
} linear_context;

static dpq_status call_linear(dpq_backend *be, void *context, dpq_tensor *y)
{
    linear_context *c = context;
    return dpq_op_linear(be, c->x, &c->weight, c->accumulate, y);
}

static void check_linear(const linear_types *v, int64_t t, int64_t k, int64_t n, int64_t pad)
{
    char label[128];
    snprintf(label, sizeof label, "linear %s T=%lld K=%lld N=%lld", v->name, (long long)t, (long long)k, (long long)n);
    op_matrix x = op_matrix_create(v->x, t, k, pad), w = op_matrix_create(v->w, n, k, pad);
    op_matrix bias = op_matrix_create(DPQ_DTYPE_F32, 1, n, 0), y = op_matrix_create(v->y, t, n, pad);
    op_matrix_fill(&x, 1, 1.0);
    op_matrix_fill(&w, 2, 0.5);
    op_matrix_fill(&bias, 3, 2.0);
    if (v->accumulate) {
        op_matrix_fill(&y, 4, 8.0);
    }
    double *xd = op_matrix_values(&x), *wd = op_matrix_values(&w), *bd = op_matrix_values(&bias),
           *yd = op_matrix_values(&y);
    double *size = op_doubles(sized(t, n));
    linear_context c = {.x = &x.t, .weight = {.w = w.t}, .accumulate = v->accumulate};
    if (v->bias) {
        c.weight.bias = dpq_tensor_wrap_1d(bias.t.data, DPQ_DTYPE_F32, n);
    }
    ref_linear(xd, wd, v->bias ? bd : NULL, v->accumulate, t, k, n, yd, size);
    op_matrix out = op_run(label, call_linear, &c, &y);
    op_check_close(OP_LINEAR, label, &out, yd, size, false);
    op_matrix_free(&out);
    op_matrix_free(&x);
    op_matrix_free(&w);
    op_matrix_free(&bias);
    op_matrix_free(&y);
    free(xd);
    free(wd);
    free(bd);
    free(yd);
    free(size);
}

static void test_linear(void **state)
{
    (void)state;
    const int64_t widths[] = {96, 200, 576}, outputs[] = {33, 192, 200};
    int64_t turn = 0;
    for (int64_t t = 0; t < COUNT(token_counts); t++) {
        for (int64_t k = 0; k < COUNT(widths); k++) {
            for (int64_t n = 0; n < COUNT(outputs); n++) {
                /* every shape with two variants, all variants with all kinds of shape */
                check_linear(&linear_variants[turn % COUNT(linear_variants)], token_counts[t], widths[k], outputs[n],
                             0);
                check_linear(&linear_variants[(turn + 5) % COUNT(linear_variants)], token_counts[t], widths[k],
                             outputs[n], 3);
                turn += 3;
            }
        }
    }
}

static void test_linear_of_several_tiles(void **state)
{
    (void)state;
    for (int64_t v = 0; v < COUNT(linear_variants); v++) {
        check_linear(&linear_variants[v], 300, 65, 400, v % 2);
        check_linear(&linear_variants[v], 5, 1, 1, v % 2);
    }
}

static void test_linear_of_long_rows(void **state)
{
    (void)state;
    const int64_t widths[] = {2048, 8192};
    for (int64_t k = 0; k < COUNT(widths); k++) {
        check_linear(&linear_variants[0], 7, widths[k], 33, 0);
        check_linear(&linear_variants[3], 33, widths[k], 40, 0);
        check_linear(&linear_variants[5], 65, widths[k], 33, 0);
        check_linear(&linear_variants[7], 300, widths[k], 20, 0);
    }
}

/* One bad token must stay in its own row. */
static void test_linear_keeps_nan_in_its_row(void **state)
{
    (void)state;
    op_matrix x = op_matrix_create(DPQ_DTYPE_BF16, 7, 96, 0), w = op_matrix_create(DPQ_DTYPE_F32, 33, 96, 0);
    op_matrix y = op_matrix_create(DPQ_DTYPE_BF16, 7, 33, 0);
    op_matrix_fill(&x, 1, 1.0);
    op_matrix_fill(&w, 2, 1.0);
    op_matrix_set(&x, 3, 17, NAN);
    linear_context c = {.x = &x.t, .weight = {.w = w.t}};
    op_matrix out = op_run("linear NaN", call_linear, &c, &y);
    for (int64_t i = 0; i < 7; i++) {
        for (int64_t j = 0; j < 33; j++) {
            assert_true(isnan(op_matrix_get(&out, i, j)) == (i == 3));
        }
    }
    op_matrix_free(&out);
    op_matrix_free(&x);
    op_matrix_free(&w);
    op_matrix_free(&y);
}

/* ---- attention ---- */

typedef struct {
    const dpq_tensor *q, *k, *v;
    dpq_attention_shape shape;
} attention_context;

static dpq_status call_attention(dpq_backend *be, void *context, dpq_tensor *o)
{
    attention_context *c = context;
    return dpq_op_attention(be, c->q, c->k, c->v, &c->shape, o);
}

static void check_attention(dpq_dtype dtype, dpq_compute compute, int64_t t, const dpq_attention_shape *shape,
                            int64_t pad)
{
    char label[128];
    int64_t d = shape->head_dim, wide = shape->heads * d, narrow = shape->kv_heads * d;
    snprintf(label, sizeof label, "attention %s compute %d T=%lld heads %lld/%lld D=%lld window %lld",
             dpq_dtype_name(dtype), compute, (long long)t, (long long)shape->heads, (long long)shape->kv_heads,
             (long long)d, (long long)shape->window);
    op_matrix q = op_matrix_create(dtype, t, wide, pad), k = op_matrix_create(dtype, t, narrow, pad);
    op_matrix v = op_matrix_create(dtype, t, narrow, pad), o = op_matrix_create(dtype, t, wide, pad);
    op_matrix_fill(&q, 11, 1.5);
    op_matrix_fill(&k, 12, 1.0);
    op_matrix_fill(&v, 13, 1.0);
    double *qd = op_matrix_values(&q), *kd = op_matrix_values(&k), *vd = op_matrix_values(&v);
    double *od = op_doubles(sized(t, wide)), *size = op_doubles(sized(t, wide));
    attention_context c = {.q = &q.t, .k = &k.t, .v = &v.t, .shape = *shape};
    c.shape.compute = compute;
    ref_attention(qd, kd, vd, t, shape->heads, shape->kv_heads, d, shape->scale, shape->window, od, size);
    op_matrix out = op_run(label, call_attention, &c, &o);
    op_check_close(OP_ATTENTION, label, &out, od, size, compute == DPQ_COMPUTE_BF16);
    op_matrix_free(&out);
    op_matrix_free(&q);
    op_matrix_free(&k);
    op_matrix_free(&v);
    op_matrix_free(&o);
    free(qd);
    free(kd);
    free(vd);
    free(od);
    free(size);
}

static void test_attention(void **state)
{
    (void)state;
    const int64_t windows[] = {0, 1, 5, 64};
    const dpq_attention_shape shapes[] = {
        {.heads = 9, .kv_heads = 3, .head_dim = 64, .scale = 0.125},
        {.heads = 8, .kv_heads = 4, .head_dim = 20, .scale = 0.3},
        {.heads = 1, .kv_heads = 1, .head_dim = 7, .scale = 1.0},
    };
    for (int64_t t = 0; t < COUNT(token_counts); t++) {
        for (int64_t s = 0; s < COUNT(shapes); s++) {
            for (int64_t w = 0; w < COUNT(windows); w++) {
                dpq_attention_shape shape = shapes[s];
                shape.window = windows[w];
                check_attention(DPQ_DTYPE_F32, DPQ_COMPUTE_F32, token_counts[t], &shape, 0);
                check_attention(DPQ_DTYPE_BF16, DPQ_COMPUTE_F32, token_counts[t], &shape, 5);
                check_attention(DPQ_DTYPE_BF16, DPQ_COMPUTE_BF16, token_counts[t], &shape, 0);
            }
        }
    }
}

static void test_attention_of_several_blocks(void **state)
{
    (void)state;
    const int64_t windows[] = {0, 64, 200, 1000};
    for (int64_t w = 0; w < COUNT(windows); w++) {
        dpq_attention_shape shape = {.heads = 2, .kv_heads = 1, .head_dim = 32, .scale = 0.2, .window = windows[w]};
        check_attention(DPQ_DTYPE_F32, DPQ_COMPUTE_F32, 400, &shape, 0);
        check_attention(DPQ_DTYPE_BF16, DPQ_COMPUTE_BF16, 257, &shape, 1);
    }
}

/* What comes later must not be seen at all: same bits for a prefix. */
static void test_attention_is_causal(void **state)
{
    (void)state;
    const dpq_attention_shape shape = {
        .heads = 2, .kv_heads = 1, .head_dim = 16, .scale = 0.25, .compute = DPQ_COMPUTE_F32};
    op_matrix q = op_matrix_create(DPQ_DTYPE_F32, 20, 32, 0), kv = op_matrix_create(DPQ_DTYPE_F32, 20, 16, 0);
    op_matrix o = op_matrix_create(DPQ_DTYPE_F32, 20, 32, 0);
    op_matrix_fill(&q, 1, 1.0);
    op_matrix_fill(&kv, 2, 1.0);
    attention_context c = {.q = &q.t, .k = &kv.t, .v = &kv.t, .shape = shape};
    op_matrix before = op_run("attention", call_attention, &c, &o);
    for (int64_t j = 0; j < 16; j++) {
        op_matrix_set(&kv, 15, j, 30.0);
    }
    op_matrix after = op_run("attention", call_attention, &c, &o);
    assert_memory_equal(before.t.data, after.t.data, 15 * 32 * sizeof(float));
    assert_memory_not_equal((float *)before.t.data + 15 * 32, (float *)after.t.data + 15 * 32, 32 * sizeof(float));
    op_matrix_free(&before);
    op_matrix_free(&after);
    op_matrix_free(&q);
    op_matrix_free(&kv);
    op_matrix_free(&o);
}

/* ---- c -= a b, on the caller's thread ---- */

typedef struct {
    const dpq_tensor *a, *b;
} product_context;

static dpq_status call_subtract(dpq_backend *be, void *context, dpq_tensor *c)
{
    product_context *p = context;
    return dpq_op_subtract_product(be, dpq_backend_threads(be) - 1, p->a, p->b, c);
}

static void test_subtract_product(void **state)
{
    (void)state;
    const int64_t shapes[][3] = {{1, 1, 1}, {7, 128, 65}, {130, 33, 200}, {16, 128, 576}};
    for (int64_t s = 0; s < COUNT(shapes); s++) {
        for (int64_t pad = 0; pad < 12; pad += 11) {
            int64_t m = shapes[s][0], k = shapes[s][1], n = shapes[s][2];
            op_matrix a = op_matrix_create(DPQ_DTYPE_F32, m, k, pad), b = op_matrix_create(DPQ_DTYPE_F32, k, n, pad);
            op_matrix c = op_matrix_create(DPQ_DTYPE_F32, m, n, pad);
            op_matrix_fill(&a, 1, 1.0);
            op_matrix_fill(&b, 2, 1.0);
            op_matrix_fill(&c, 3, 5.0);
            double *ad = op_matrix_values(&a), *bd = op_matrix_values(&b), *cd = op_matrix_values(&c);
            double *size = op_doubles(sized(m, n));
            product_context p = {&a.t, &b.t};
            ref_subtract_product(ad, bd, m, k, n, cd, size);
            op_matrix out = op_run("subtract_product", call_subtract, &p, &c);
            op_check_close(OP_SUBTRACT_PRODUCT, "subtract_product", &out, cd, size, false);
            op_matrix_free(&out);
            op_matrix_free(&a);
            op_matrix_free(&b);
            op_matrix_free(&c);
            free(ad);
            free(bd);
            free(cd);
            free(size);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_linear_of_several_tiles),
        cmocka_unit_test(test_linear_of_long_rows),
        cmocka_unit_test(test_linear_keeps_nan_in_its_row),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_of_several_blocks),
        cmocka_unit_test(test_attention_is_causal),
        cmocka_unit_test(test_subtract_product),
    };
    return cmocka_run_group_tests(tests, op_create_backends, op_destroy_backends);
}
