/* SPDX-License-Identifier: Apache-2.0 */
/* Backward operations against their fp64 definitions: odd shapes, types, strides, thread counts; the exact sums of
 * weight gradients. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpquant/backend_grad.h"
#include "op_case.h"
#include "ref_grad.h"
#include "ref_ops.h"

#define COUNT(a) ((int64_t)(sizeof(a) / sizeof(a)[0]))
#define F32      DPQ_DTYPE_F32
#define BF16     DPQ_DTYPE_BF16

static const int64_t token_counts[] = {1, 7, 65, 300};

/* Columns [begin, begin + cols) of a matrix, its rows where they are. */
static dpq_tensor columns(const dpq_tensor *m, int64_t begin, int64_t cols)
{
    dpq_tensor view = *m;
    view.data = (char *)m->data + (size_t)begin * dpq_dtype_bytes(m->dtype);
    view.dim[1] = cols;
    return view;
}

/* ---- linear_backward ---- */

typedef struct {
    const char *name;
    dpq_dtype dy, w, dx;
    bool accumulate;
} linear_types;

static const linear_types linear_variants[] = {
    {"f32", F32, F32, F32, false},          {"f32 sum", F32, F32, F32, true},
    {"bf16", BF16, BF16, BF16, false},      {"bf16 sum", BF16, BF16, BF16, true},
    {"bf16 in f32", BF16, F32, BF16, true}, {"bf16 to f32", BF16, BF16, F32, false},
};

typedef struct {
    const dpq_tensor *dy;
    dpq_weight weight;
    bool accumulate;
} linear_context;

static dpq_status call_linear_backward(dpq_backend *be, void *context, dpq_tensor *dx)
{
    linear_context *c = context;
    return dpq_op_linear_backward(be, c->dy, &c->weight, c->accumulate, dx);
}

static void check_linear_backward(const linear_types *v, int64_t t, int64_t n, int64_t k, int64_t pad)
{
    char label[128];
    snprintf(label, sizeof label, "linear_backward %s T=%lld N=%lld K=%lld", v->name, (long long)t, (long long)n,
             (long long)k);
    op_matrix dy = op_matrix_create(v->dy, t, n, pad), w = op_matrix_create(v->w, n, k, pad),
              dx = op_matrix_create(v->dx, t, k, pad);
    op_matrix_fill(&dy, 1, 1.0);
    op_matrix_fill(&w, 2, 0.5);
    if (v->accumulate) {
        op_matrix_fill(&dx, 3, 8.0);
    }
    double *dyd = op_matrix_values(&dy), *wd = op_matrix_values(&w), *want = op_matrix_values(&dx),
           *size = op_doubles(t * k);
    linear_context c = {.dy = &dy.t, .weight = {.w = w.t}, .accumulate = v->accumulate};
    ref_linear_backward(dyd, wd, v->accumulate, t, n, k, want, size);
    op_matrix out = op_run(label, call_linear_backward, &c, &dx);
    op_check_close(OP_LINEAR_BACKWARD, label, &out, want, size, false);
    op_matrix_free(&out);
    op_matrix_free(&dy);
    op_matrix_free(&w);
    op_matrix_free(&dx);
    free(dyd);
    free(wd);
    free(want);
    free(size);
}

static void test_linear_backward(void **state)
{
    (void)state;
    const int64_t outputs[] = {1, 33, 200}, widths[] = {1, 96, 200, 400};
    int64_t turn = 0;
    for (int64_t t = 0; t < COUNT(token_counts); t++) {
        for (int64_t n = 0; n < COUNT(outputs); n++) {
            for (int64_t k = 0; k < COUNT(widths); k++, turn++) {
                check_linear_backward(&linear_variants[turn % COUNT(linear_variants)], token_counts[t], outputs[n],
                                      widths[k], turn % 2 * 3);
            }
        }
    }
    check_linear_backward(&linear_variants[0], 33, 8192, 20, 0);
    check_linear_backward(&linear_variants[2], 33, 8192, 20, 0);
}

/* ---- weight_gradient ---- */

typedef struct {
    const dpq_tensor *dy, *x;
    dpq_compute compute;
    int exponent;
    double limit;
    double peak[OP_BACKENDS];
    int calls;
} gradient_context;

static dpq_status call_weight_gradient(dpq_backend *be, void *context, dpq_tensor *out)
{
    gradient_context *c = context;
    return dpq_op_weight_gradient(be, c->dy, c->x, c->compute, c->exponent, c->limit, out->data, &c->peak[c->calls++]);
}

/* INTEGERS: values whose products fp32 adds without rounding; sums and peak are exact then. */
static void fill_gradient(op_matrix *m, uint64_t seed, bool integers)
{
    op_matrix_fill(m, seed, 1.0);
    for (int64_t i = 0; integers && i < m->t.dim[0]; i++) {
        for (int64_t j = 0; j < m->t.dim[1]; j++) {
            op_matrix_set(m, i, j, (double)(op_random(&seed) % 31) - 15.0);
        }
    }
}

static void check_weight_gradient(dpq_dtype dtype, dpq_compute compute, int64_t t, int64_t n, int64_t k, int64_t pad,
                                  int exponent, bool integers)
{
    char label[128];
    snprintf(label, sizeof label, "weight_gradient %s compute %d T=%lld N=%lld K=%lld 2^%d", dpq_dtype_name(dtype),
             compute, (long long)t, (long long)n, (long long)k, exponent);
    op_matrix dy = op_matrix_create(dtype, t, n, pad), x = op_matrix_create(dtype, t, k, pad),
              sums = op_matrix_create(DPQ_DTYPE_I32, n, k, 0);
    fill_gradient(&dy, 5, integers);
    fill_gradient(&x, 6, integers);
    int32_t *before = sums.t.data;
    for (int64_t i = 0; i < n * k; i++) {
        before[i] = (int32_t)(i * 37 % 2001 - 1000);
    }
    double *dyd = op_matrix_values(&dy), *xd = op_matrix_values(&x), *want = op_doubles(n * k),
           *size = op_doubles(n * k);
    ref_weight_gradient(dyd, xd, t, n, k, want, size);
    gradient_context c = {.dy = &dy.t, .x = &x.t, .compute = compute, .exponent = exponent, .limit = 0x1p30};
    op_matrix out = op_run(label, call_weight_gradient, &c, &sums);
    const int32_t *got = out.t.data;
    double peak = 0.0, peak_limit = 0.0;
    for (int64_t i = 0; i < n * k; i++) {
        double unit = ldexp(1.0, exponent), exact = want[i] / unit;
        double limit = integers ? 0.0 : op_limit(OP_WEIGHT_GRADIENT, exact, size[i] / unit, DPQ_DTYPE_I64, false);
        double added = (double)(got[i] - before[i]), expected = integers ? rint(exact) : exact;
        if (fabs(added - expected) > (integers ? 0.0 : limit + 0.5)) {
            fail_msg("%s: entry %lld adds %.9g, expected %.9g, allowed error %.3g", label, (long long)i, added,
                     expected, limit + 0.5);
        }
        peak = fmax(peak, fabs(want[i]));
        peak_limit = fmax(peak_limit, limit * unit);
    }
    assert_true(fabs(c.peak[0] - peak) <= peak_limit);
    for (int b = 1; b < OP_BACKENDS; b++) {
        assert_true(c.peak[b] == c.peak[0]);
    }
    op_matrix_free(&out);
    op_matrix_free(&dy);
    op_matrix_free(&x);
    op_matrix_free(&sums);
    free(dyd);
    free(xd);
    free(want);
    free(size);
}

static void test_weight_gradient(void **state)
{
    (void)state;
    const int64_t outputs[] = {1, 33, 200, 400}, widths[] = {1, 96, 193};
    int64_t turn = 0;
    for (int64_t t = 0; t < COUNT(token_counts); t++) {
        for (int64_t n = 0; n < COUNT(outputs); n++) {
            for (int64_t k = 0; k < COUNT(widths); k++, turn++) {
                dpq_dtype dtype = turn % 3 == 0 ? F32 : BF16;
                dpq_compute compute = turn % 3 == 1 ? DPQ_COMPUTE_BF16 : DPQ_COMPUTE_F32;
                check_weight_gradient(dtype, compute, token_counts[t], outputs[n], widths[k], turn % 2 * 3, -20, false);
                check_weight_gradient(dtype, compute, token_counts[t], outputs[n], widths[k], 0, turn % 2 == 0 ? -3 : 4,
                                      true);
            }
        }
    }
}

/* What a step too fine for the numbers leaves is reported by the peak; exponents far out round to zero or pass the
 * limit. */
static void test_weight_gradient_at_the_limits(void **state)
{
    (void)state;
    int32_t sums[4] = {0};
    float one[2] = {0.75f, -1.0f}, two[2] = {1.0f, 0.5f};
    dpq_tensor dy = dpq_tensor_wrap_2d(one, F32, 1, 2), x = dpq_tensor_wrap_2d(two, F32, 1, 2);
    double peak = 0.0;
    assert_int_equal(dpq_op_weight_gradient(op_backends[1], &dy, &x, DPQ_COMPUTE_F32, -2, 4.0, sums, &peak), DPQ_OK);
    assert_true(peak == 1.0); /* reaches the limit: 1 * 2^2 >= 4 */
    assert_int_equal(sums[0], 3);
    assert_int_equal(sums[1], 2); /* 1.5, ties to even */
    memset(sums, 0, sizeof sums);
    assert_int_equal(dpq_op_weight_gradient(op_backends[1], &dy, &x, DPQ_COMPUTE_F32, 252, 4.0, sums, &peak), DPQ_OK);
    assert_true(peak == 1.0 && sums[0] == 0 && sums[1] == 0 && sums[2] == 0 && sums[3] == 0);
    assert_int_equal(dpq_op_weight_gradient(op_backends[1], &dy, &x, DPQ_COMPUTE_F32, -252, 0x1p30, sums, &peak),
                     DPQ_OK);
    assert_true(peak == 1.0);
    one[1] = 1e-30f; /* a subnormal product's magnitude is exact too */
    two[0] = 1e-12f;
    two[1] = 1e-13f;
    one[0] = 0.0f;
    assert_int_equal(dpq_op_weight_gradient(op_backends[1], &dy, &x, DPQ_COMPUTE_F32, 0, 4.0, sums, &peak), DPQ_OK);
    assert_true(peak == (double)(one[1] * two[0]));
}

static void test_weight_gradient_not_finite(void **state)
{
    (void)state;
    op_matrix dy = op_matrix_create(BF16, 9, 300, 0), x = op_matrix_create(BF16, 9, 200, 0);
    int32_t *sums = calloc((size_t)300 * 200, sizeof *sums);
    const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int64_t i = 0; i < COUNT(bad); i++) {
        for (int b = 0; b < OP_BACKENDS; b++) {
            double peak = 1.0;
            op_matrix_fill(&dy, 7, 1.0);
            op_matrix_fill(&x, 8, 1.0);
            op_matrix_set(&dy, 4, 250, bad[i]);
            assert_int_equal(
                dpq_op_weight_gradient(op_backends[b], &dy.t, &x.t, DPQ_COMPUTE_BF16, -10, 0x1p30, sums, &peak),
                DPQ_E_NUMERIC);
            assert_non_null(strstr(dpq_error_last()->text, "output channel 250"));
        }
    }
    free(sums);
    op_matrix_free(&dy);
    op_matrix_free(&x);
}

/* ---- rmsnorm_backward ---- */

typedef struct {
    const dpq_tensor *x, *gamma, *dy;
    int64_t groups;
    bool accumulate, in_place;
} rmsnorm_context;

static dpq_status call_rmsnorm_backward(dpq_backend *be, void *context, dpq_tensor *dx)
{
    rmsnorm_context *c = context;
    return dpq_op_rmsnorm_backward(be, c->x, c->gamma, 1e-3, c->groups, c->in_place ? dx : c->dy, c->accumulate, dx);
}

static void check_rmsnorm_backward(dpq_dtype dtype, int64_t t, int64_t width, int64_t groups, bool accumulate,
                                   bool in_place)
{
    char label[128];
    int64_t c = width * groups;
    snprintf(label, sizeof label, "rmsnorm_backward %s T=%lld C=%lld groups %lld", dpq_dtype_name(dtype), (long long)t,
             (long long)c, (long long)groups);
    op_matrix x = op_matrix_create(dtype, t, c, 1), dy = op_matrix_create(dtype, t, c, 2),
              dx = op_matrix_create(dtype, t, c, 3);
    op_matrix gamma = op_matrix_create(F32, 1, width, 0);
    op_matrix_fill(&x, 21, 3.0);
    op_matrix_fill(&dy, 22, 1.0);
    op_matrix_fill(&dx, in_place ? 22 : 23, 1.0);
    op_matrix_fill(&gamma, 24, 1.0);
    double *xd = op_matrix_values(&x), *gd = op_matrix_values(&gamma), *dyd = op_matrix_values(&dy),
           *want = op_matrix_values(&dx);
    double *size = op_doubles(t * c);
    dpq_tensor g = dpq_tensor_wrap_1d(gamma.t.data, F32, width);
    rmsnorm_context context = {
        .x = &x.t, .gamma = &g, .dy = &dy.t, .groups = groups, .accumulate = accumulate, .in_place = in_place};
    ref_rmsnorm_backward(xd, gd, 1e-3, groups, t, c, dyd, accumulate, want, size);
    op_matrix out = op_run(label, call_rmsnorm_backward, &context, &dx);
    op_check_close(OP_RMSNORM_BACKWARD, label, &out, want, size, false);
    op_matrix_free(&out);
    op_matrix_free(&x);
    op_matrix_free(&dy);
    op_matrix_free(&dx);
    op_matrix_free(&gamma);
    free(xd);
    free(gd);
    free(dyd);
    free(want);
    free(size);
}

static void test_rmsnorm_backward(void **state)
{
    (void)state;
    const int64_t widths[] = {1, 7, 64, 200, 577};
    for (int64_t t = 0; t < COUNT(token_counts); t++) {
        for (int64_t w = 0; w < COUNT(widths); w++) {
            dpq_dtype dtype = (t + w) % 2 == 0 ? F32 : BF16;
            check_rmsnorm_backward(dtype, token_counts[t], widths[w], 1, w % 2 == 0, false);
            check_rmsnorm_backward(dtype, token_counts[t], widths[w], 3, false, w % 2 == 0);
        }
    }
}

/* ---- attention_backward: the three gradients are columns of one guarded matrix ---- */

typedef struct {
    const dpq_tensor *q, *k, *v, *o, *d_o;
    dpq_attention_shape shape;
} attention_context;

static dpq_status call_attention_backward(dpq_backend *be, void *context, dpq_tensor *out)
{
    attention_context *c = context;
    int64_t wide = c->q->dim[1], narrow = c->k->dim[1];
    dpq_tensor dq = columns(out, 0, wide), dk = columns(out, wide, narrow), dv = columns(out, wide + narrow, narrow);
    return dpq_op_attention_backward(be, c->q, c->k, c->v, c->o, c->d_o, &c->shape, &dq, &dk, &dv);
}

static void gather_columns(const double *part, int64_t t, int64_t cols, int64_t total, int64_t begin, double *all)
{
    for (int64_t i = 0; i < t; i++) {
        memcpy(all + i * total + begin, part + i * cols, (size_t)cols * sizeof *all);
    }
}

static void check_attention_backward(dpq_dtype dtype, dpq_compute compute, int64_t t, const dpq_attention_shape *shape,
                                     int64_t pad)
{
    char label[160];
    int64_t d = shape->head_dim, wide = shape->heads * d, narrow = shape->kv_heads * d, total = wide + 2 * narrow;
    snprintf(label, sizeof label, "attention_backward %s compute %d T=%lld heads %lld/%lld D=%lld window %lld",
             dpq_dtype_name(dtype), compute, (long long)t, (long long)shape->heads, (long long)shape->kv_heads,
             (long long)d, (long long)shape->window);
    op_matrix in[5], out_area = op_matrix_create(dtype, t, total, pad);
    const double scales[5] = {1.5, 1.0, 1.0, 1.0, 1.0};
    for (int i = 0; i < 5; i++) {
        in[i] = op_matrix_create(dtype, t, i == 1 || i == 2 ? narrow : wide, pad);
        op_matrix_fill(&in[i], (uint64_t)(31 + i), scales[i]);
    }
    double *qd = op_matrix_values(&in[0]), *kd = op_matrix_values(&in[1]), *vd = op_matrix_values(&in[2]),
           *gd = op_matrix_values(&in[4]);
    double *o_exact = op_doubles(t * wide), *unused = op_doubles(t * wide);
    ref_attention(qd, kd, vd, t, shape->heads, shape->kv_heads, d, shape->scale, shape->window, o_exact, unused);
    for (int64_t i = 0; i < t * wide; i++) {
        op_matrix_set(&in[3], i / wide, i % wide, o_exact[i]);
    }
    double *od = op_matrix_values(&in[3]);
    double *r[6], *want = op_doubles(t * total), *size = op_doubles(t * total);
    for (int i = 0; i < 6; i++) {
        r[i] = op_doubles(t * wide);
    }
    const ref_attention_gradients ref = {.t = t,
                                         .heads = shape->heads,
                                         .kv_heads = shape->kv_heads,
                                         .d = d,
                                         .window = shape->window,
                                         .scale = shape->scale,
                                         .q = qd,
                                         .k = kd,
                                         .v = vd,
                                         .o = od,
                                         .d_o = gd,
                                         .dq = r[0],
                                         .dk = r[1],
                                         .dv = r[2],
                                         .dq_size = r[3],
                                         .dk_size = r[4],
                                         .dv_size = r[5]};
    ref_attention_backward(&ref);
    for (int i = 0; i < 6; i++) {
        int64_t begin = i % 3 == 0 ? 0 : i % 3 == 1 ? wide : wide + narrow;
        gather_columns(r[i], t, i % 3 == 0 ? wide : narrow, total, begin, i < 3 ? want : size);
        free(r[i]);
    }
    attention_context c = {
        .q = &in[0].t, .k = &in[1].t, .v = &in[2].t, .o = &in[3].t, .d_o = &in[4].t, .shape = *shape};
    c.shape.compute = compute;
    op_matrix out = op_run(label, call_attention_backward, &c, &out_area);
    op_check_close(OP_ATTENTION_BACKWARD, label, &out, want, size, compute == DPQ_COMPUTE_BF16);
    double *const heap[] = {qd, kd, vd, gd, od, o_exact, unused, want, size};
    for (int64_t i = 0; i < COUNT(heap); i++) {
        free(heap[i]);
    }
    for (int i = 0; i < 5; i++) {
        op_matrix_free(&in[i]);
    }
    op_matrix_free(&out);
    op_matrix_free(&out_area);
}

static void test_attention_backward(void **state)
{
    (void)state;
    const int64_t windows[] = {0, 1, 5, 64, 140};
    const dpq_attention_shape shapes[] = {
        {.heads = 6, .kv_heads = 2, .head_dim = 64, .scale = 0.125},
        {.heads = 4, .kv_heads = 4, .head_dim = 20, .scale = 0.3},
        {.heads = 3, .kv_heads = 1, .head_dim = 7, .scale = 0.5},
    };
    int64_t turn = 0;
    for (int64_t s = 0; s < COUNT(shapes); s++) {
        for (int64_t t = 0; t < COUNT(token_counts); t++) {
            for (int64_t w = 0; w < COUNT(windows); w++, turn++) {
                dpq_attention_shape shape = shapes[s];
                shape.window = windows[w];
                dpq_dtype dtype = turn % 3 == 0 ? F32 : BF16;
                dpq_compute compute = turn % 3 == 1 ? DPQ_COMPUTE_BF16 : DPQ_COMPUTE_F32;
                check_attention_backward(dtype, compute, token_counts[t], &shape, turn % 2 * 3);
            }
        }
    }
}

/* ---- silu_mul_backward: both gradients are columns of one guarded matrix ---- */

typedef struct {
    const dpq_tensor *gate, *up, *dy;
    bool in_place;
} silu_context;

static dpq_status call_silu_mul_backward(dpq_backend *be, void *context, dpq_tensor *out)
{
    silu_context *c = context;
    int64_t n = c->dy->dim[1];
    dpq_tensor dgate = columns(out, 0, n), dup = columns(out, n, n);
    return dpq_op_silu_mul_backward(be, c->in_place ? &dgate : c->gate, c->in_place ? &dup : c->up, c->dy, &dgate,
                                    &dup);
}

static void check_silu_mul_backward(dpq_dtype dtype, int64_t t, int64_t n, bool in_place)
{
    char label[128];
    snprintf(label, sizeof label, "silu_mul_backward %s T=%lld N=%lld", dpq_dtype_name(dtype), (long long)t,
             (long long)n);
    op_matrix in = op_matrix_create(dtype, t, 2 * n, 3), dy = op_matrix_create(dtype, t, n, 1);
    op_matrix_fill(&in, 41, 8.0); /* gates up to 25: both ends of the sigmoid */
    op_matrix_fill(&dy, 42, 1.0);
    double *all = op_matrix_values(&in), *dyd = op_matrix_values(&dy), *want = op_doubles(t * 2 * n),
           *size = op_doubles(t * 2 * n);
    for (int64_t i = 0; i < t; i++) {
        ref_silu_mul_backward(all + i * 2 * n, all + i * 2 * n + n, dyd + i * n, n, want + i * 2 * n,
                              want + i * 2 * n + n, size + i * 2 * n, size + i * 2 * n + n);
    }
    dpq_tensor gate = columns(&in.t, 0, n), up = columns(&in.t, n, n);
    silu_context c = {.gate = &gate, .up = &up, .dy = &dy.t, .in_place = in_place};
    op_matrix area = op_matrix_create(dtype, t, 2 * n, 3);
    op_matrix out = op_run(label, call_silu_mul_backward, &c, in_place ? &in : &area);
    op_check_close(OP_SILU_MUL_BACKWARD, label, &out, want, size, false);
    op_matrix_free(&out);
    op_matrix_free(&area);
    op_matrix_free(&in);
    op_matrix_free(&dy);
    free(all);
    free(dyd);
    free(want);
    free(size);
}

static void test_silu_mul_backward(void **state)
{
    (void)state;
    const int64_t widths[] = {1, 33, 576};
    for (int64_t t = 0; t < COUNT(token_counts); t++) {
        for (int64_t w = 0; w < COUNT(widths); w++) {
            check_silu_mul_backward((t + w) % 2 == 0 ? F32 : BF16, token_counts[t], widths[w], w % 2 == 0);
            check_silu_mul_backward((t + w) % 2 == 0 ? BF16 : F32, token_counts[t], widths[w], w % 2 == 1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_backward),
        cmocka_unit_test(test_weight_gradient),
        cmocka_unit_test(test_weight_gradient_at_the_limits),
        cmocka_unit_test(test_weight_gradient_not_finite),
        cmocka_unit_test(test_rmsnorm_backward),
        cmocka_unit_test(test_attention_backward),
        cmocka_unit_test(test_silu_mul_backward),
    };
    return cmocka_run_group_tests(tests, op_create_backends, op_destroy_backends);
}
