/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of backward operations that do not fit are refused with DPQ_E_SHAPE and the name of the operation; nothing
 * is written. */
#include <math.h>
#include <string.h>

#include "dpquant/backend_grad.h"
#include "op_case.h"

#define F32  DPQ_DTYPE_F32
#define BF16 DPQ_DTYPE_BF16
#define F16  DPQ_DTYPE_F16

static dpq_backend *be;
static float area[16][256], untouched[16][256];

static int create(void **state)
{
    int failed = op_create_backends(state);
    be = op_backends[1];
    return failed;
}

/* A tensor over part PLACE of the test area; only its shape and type are looked at. */
static dpq_tensor at(int place, dpq_dtype dtype, int64_t rows, int64_t cols)
{
    return dpq_tensor_wrap_2d(area[place], dtype, rows, cols);
}

#define EXPECT_REFUSED(call, op)                                                                                       \
    do {                                                                                                               \
        dpq_error_clear();                                                                                             \
        assert_int_equal((call), DPQ_E_SHAPE);                                                                         \
        assert_non_null(strstr(dpq_error_last()->text, (op)));                                                         \
        assert_memory_equal(area, untouched, sizeof area);                                                             \
    } while (0)

static dpq_status linear(dpq_tensor dy, dpq_tensor w, dpq_tensor dx)
{
    const dpq_weight weight = {.w = w};
    return dpq_op_linear_backward(be, &dy, &weight, false, &dx);
}

static void test_linear_backward(void **state)
{
    (void)state;
    assert_int_equal(linear(at(0, F32, 4, 8), at(1, F32, 8, 5), at(2, F32, 4, 5)), DPQ_OK);
    EXPECT_REFUSED(linear(at(0, F32, 4, 8), at(1, F32, 5, 8), at(2, F32, 4, 8)), "linear_backward");
    EXPECT_REFUSED(linear(at(0, F32, 4, 8), at(1, F32, 8, 5), at(2, F32, 3, 5)), "linear_backward");
    EXPECT_REFUSED(linear(at(0, F32, 4, 8), at(1, F32, 8, 5), at(2, F32, 4, 6)), "linear_backward");
    EXPECT_REFUSED(linear(at(0, F32, 4, 8), at(1, BF16, 8, 5), at(2, F32, 4, 5)), "linear_backward");
    EXPECT_REFUSED(linear(at(0, F16, 4, 8), at(1, F32, 8, 5), at(2, F32, 4, 5)), "linear_backward");
    EXPECT_REFUSED(linear(at(0, F32, 4, 8), at(1, F32, 8, 5), at(2, F16, 4, 5)), "linear_backward");
    EXPECT_REFUSED(linear(at(0, F32, 4, 8), at(1, F32, 8, 8), at(0, F32, 4, 8)), "linear_backward");
}

static dpq_status gradient(dpq_tensor dy, dpq_tensor x, dpq_compute compute, int exponent, double limit)
{
    double peak = 7.0;
    dpq_status st = dpq_op_weight_gradient(be, &dy, &x, compute, exponent, limit, (int32_t *)area[3], &peak);
    assert_true(peak == 0.0);
    return st;
}

static void test_weight_gradient(void **state)
{
    (void)state;
    const dpq_compute f32 = DPQ_COMPUTE_F32;
    assert_int_equal(gradient(at(0, BF16, 4, 8), at(1, BF16, 4, 5), DPQ_COMPUTE_BF16, 0, 1.0), DPQ_OK);
    EXPECT_REFUSED(gradient(at(0, F32, 4, 8), at(1, F32, 3, 5), f32, 0, 1.0), "weight_gradient");
    EXPECT_REFUSED(gradient(at(0, F32, 0, 8), at(1, F32, 0, 5), f32, 0, 1.0), "weight_gradient");
    EXPECT_REFUSED(gradient(at(0, F32, 4, 8), at(1, BF16, 4, 5), f32, 0, 1.0), "weight_gradient");
    EXPECT_REFUSED(gradient(at(0, F16, 4, 8), at(1, F16, 4, 5), f32, 0, 1.0), "weight_gradient");
    EXPECT_REFUSED(gradient(at(0, F32, 4, 8), at(1, F32, 4, 5), DPQ_COMPUTE_AUTO, 0, 1.0), "weight_gradient");
    EXPECT_REFUSED(gradient(at(0, F32, 4, 8), at(1, F32, 4, 5), f32, 253, 1.0), "weight_gradient");
    EXPECT_REFUSED(gradient(at(0, F32, 4, 8), at(1, F32, 4, 5), f32, -253, 1.0), "weight_gradient");
    EXPECT_REFUSED(gradient(at(0, F32, 4, 8), at(1, F32, 4, 5), f32, 0, 3.0), "weight_gradient");
    EXPECT_REFUSED(gradient(at(0, F32, 4, 8), at(1, F32, 4, 5), f32, 0, 0x1p31), "weight_gradient");
    EXPECT_REFUSED(gradient(at(0, F32, 4, 8), at(1, F32, 4, 5), f32, 0, 0.5), "weight_gradient");
    EXPECT_REFUSED(gradient(at(0, F32, 4, 8), at(1, F32, 4, 5), f32, 0, (double)NAN), "weight_gradient");
}

static dpq_status rmsnorm(dpq_tensor x, int64_t gamma, double eps, int64_t groups, dpq_tensor dy, bool accumulate,
                          dpq_tensor dx)
{
    dpq_tensor g = dpq_tensor_wrap_1d(area[9], F32, gamma);
    return dpq_op_rmsnorm_backward(be, &x, &g, eps, groups, &dy, accumulate, &dx);
}

static void test_rmsnorm_backward(void **state)
{
    (void)state;
    const dpq_tensor x = at(0, F32, 4, 8), dy = at(1, F32, 4, 8), dx = at(2, F32, 4, 8);
    assert_int_equal(rmsnorm(x, 4, 1.0, 2, dy, true, dx), DPQ_OK);
    assert_int_equal(rmsnorm(x, 4, 1.0, 2, dy, false, dy), DPQ_OK);
    EXPECT_REFUSED(rmsnorm(x, 8, 1.0, 2, dy, false, dx), "rmsnorm_backward");
    EXPECT_REFUSED(rmsnorm(x, 8, 1.0, 3, dy, false, dx), "rmsnorm_backward");
    EXPECT_REFUSED(rmsnorm(x, 8, 1.0, 0, dy, false, dx), "rmsnorm_backward");
    EXPECT_REFUSED(rmsnorm(x, 8, -1.0, 1, dy, false, dx), "rmsnorm_backward");
    EXPECT_REFUSED(rmsnorm(x, 8, 1.0, 1, dy, true, dy), "rmsnorm_backward");
    EXPECT_REFUSED(rmsnorm(x, 8, 1.0, 1, dy, false, x), "rmsnorm_backward");
    EXPECT_REFUSED(rmsnorm(x, 8, 1.0, 1, at(1, BF16, 4, 8), false, dx), "rmsnorm_backward");
    EXPECT_REFUSED(rmsnorm(x, 8, 1.0, 1, dy, false, at(2, F32, 4, 7)), "rmsnorm_backward");
}

/* Operands q, k, v, o, d_o, dq, dk, dv of 4 heads over 2, 5 wide, 3 tokens; CHANGED takes the place of operand INDEX.
 */
static dpq_status attention(int index, dpq_tensor changed, int64_t kv_heads, int64_t window)
{
    dpq_tensor t[8];
    for (int i = 0; i < 8; i++) {
        t[i] = i == index ? changed : at(i, F32, 3, i == 1 || i == 2 || i > 5 ? 10 : 20);
    }
    const dpq_attention_shape shape = {
        .heads = 4, .kv_heads = kv_heads, .head_dim = 5, .scale = 1.0, .window = window, .compute = DPQ_COMPUTE_F32};
    return dpq_op_attention_backward(be, &t[0], &t[1], &t[2], &t[3], &t[4], &shape, &t[5], &t[6], &t[7]);
}

static void test_attention_backward(void **state)
{
    (void)state;
    const dpq_tensor none = {0};
    assert_int_equal(attention(-1, none, 2, 0), DPQ_OK);
    EXPECT_REFUSED(attention(-1, none, 1, 0), "attention_backward");
    EXPECT_REFUSED(attention(-1, none, 3, 0), "attention_backward");
    EXPECT_REFUSED(attention(-1, none, 2, -1), "attention_backward");
    for (int i = 0; i < 8; i++) {
        bool narrow = i == 1 || i == 2 || i > 5;
        EXPECT_REFUSED(attention(i, at(i, F32, 4, narrow ? 10 : 20), 2, 0), "attention_backward");
        EXPECT_REFUSED(attention(i, at(i, F32, 3, narrow ? 20 : 10), 2, 0), "attention_backward");
        EXPECT_REFUSED(attention(i, at(i, BF16, 3, narrow ? 10 : 20), 2, 0), "attention_backward");
        EXPECT_REFUSED(attention(i, none, 2, 0), "attention_backward");
    }
    for (int i = 0; i < 5; i++) { /* no gradient over an input */
        EXPECT_REFUSED(attention(5, at(i, F32, 3, 20), 2, 0), "attention_backward");
        EXPECT_REFUSED(attention(7, at(i, F32, 3, 10), 2, 0), "attention_backward");
    }
}

static dpq_status silu(dpq_tensor gate, dpq_tensor up, dpq_tensor dy, dpq_tensor dgate, dpq_tensor dup)
{
    return dpq_op_silu_mul_backward(be, &gate, &up, &dy, &dgate, &dup);
}

static void test_silu_mul_backward(void **state)
{
    (void)state;
    const dpq_tensor g = at(0, F32, 4, 8), u = at(1, F32, 4, 8), d = at(2, F32, 4, 8), dg = at(3, F32, 4, 8),
                     du = at(4, F32, 4, 8);
    assert_int_equal(silu(g, u, d, g, u), DPQ_OK);
    EXPECT_REFUSED(silu(g, at(1, F32, 4, 7), d, dg, du), "silu_mul_backward");
    EXPECT_REFUSED(silu(g, u, at(2, F32, 5, 8), dg, du), "silu_mul_backward");
    EXPECT_REFUSED(silu(g, u, d, at(3, BF16, 4, 8), du), "silu_mul_backward");
    EXPECT_REFUSED(silu(at(0, F16, 4, 8), u, d, dg, du), "silu_mul_backward");
    EXPECT_REFUSED(silu(g, u, d, dg, dg), "silu_mul_backward");
}

static dpq_status squared(dpq_tensor y, dpq_tensor target, int64_t rows, int64_t suppress, dpq_tensor dy)
{
    double loss = 7.0;
    dpq_status st = dpq_op_squared_error(be, &y, &target, rows, suppress, 1.0, &dy, &loss);
    assert_true(loss == 0.0);
    return st;
}

static void test_squared_error(void **state)
{
    (void)state;
    const dpq_tensor y = at(0, F32, 4, 8), target = at(1, BF16, 4, 8), dy = at(2, F32, 4, 8);
    assert_int_equal(squared(y, target, 4, 32, dy), DPQ_OK);
    assert_int_equal(squared(y, target, 0, 0, dy), DPQ_OK);
    EXPECT_REFUSED(squared(y, target, 5, 0, dy), "squared_error");
    EXPECT_REFUSED(squared(y, target, -1, 0, dy), "squared_error");
    EXPECT_REFUSED(squared(y, target, 2, 17, dy), "squared_error");
    EXPECT_REFUSED(squared(y, target, 4, -1, dy), "squared_error");
    EXPECT_REFUSED(squared(y, at(1, F32, 4, 7), 4, 0, dy), "squared_error");
    EXPECT_REFUSED(squared(y, at(1, F16, 4, 8), 4, 0, dy), "squared_error");
    EXPECT_REFUSED(squared(y, target, 4, 0, y), "squared_error");
    EXPECT_REFUSED(squared(y, target, 4, 0, at(2, F32, 3, 8)), "squared_error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear_backward),   cmocka_unit_test(test_weight_gradient),
        cmocka_unit_test(test_rmsnorm_backward),  cmocka_unit_test(test_attention_backward),
        cmocka_unit_test(test_silu_mul_backward), cmocka_unit_test(test_squared_error),
    };
    return cmocka_run_group_tests(tests, create, op_destroy_backends);
}
