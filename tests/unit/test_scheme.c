/* SPDX-License-Identifier: Apache-2.0 */
/* Named schemes, group arithmetic, the check against a width, and the quantized weight's storage, values and check. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "dpquant/half.h"
#include "dpquant/scheme.h"

static void test_named(void **state)
{
    (void)state;
    int count = 0;
    for (; dpq_scheme_at(count); count++) {
        const dpq_named_scheme *named = dpq_scheme_at(count);
        assert_ptr_equal(dpq_scheme_find(named->name), named);
        assert_int_equal(named->scheme.group_size, 128);
        assert_int_equal(named->name[1] - '0', named->scheme.bits);
        assert_int_equal(strstr(named->name, "_ASYM") == NULL, named->scheme.symmetric);
        assert_int_equal(named->scheme.signed_scale, named->scheme.symmetric);
        assert_true(strlen(named->loaders) > 0);
    }
    assert_int_equal(count, 14);
    assert_null(dpq_scheme_at(-1));
    assert_null(dpq_scheme_find("W9A16"));
    assert_null(dpq_scheme_find("w4a16"));
    assert_non_null(dpq_scheme_find("W4A16_ASYM"));
    assert_non_null(dpq_scheme_find("W8A16_ASYM"));
}

static void test_groups(void **state)
{
    (void)state;
    dpq_scheme s = {4, 32, true, true};
    assert_int_equal(dpq_scheme_groups(&s, 96), 3);
    assert_int_equal(dpq_scheme_group_width(&s, 96), 32);
    char text[64];
    dpq_scheme_describe(&s, text, sizeof text);
    assert_string_equal(text, "W4 group 32 symmetric");
    s.group_size = -1;
    s.symmetric = false;
    assert_int_equal(dpq_scheme_groups(&s, 96), 1);
    assert_int_equal(dpq_scheme_group_width(&s, 96), 96);
    dpq_scheme_describe(&s, text, sizeof text);
    assert_string_equal(text, "W4 whole rows asymmetric");
    dpq_scheme_describe(&s, text, 5);
    assert_string_equal(text, "W4 w");
}

static void test_equal(void **state)
{
    (void)state;
    const dpq_scheme a = {4, 128, true, true};
    dpq_scheme b = a;
    assert_true(dpq_scheme_equal(&a, &b));
    b.signed_scale = false;
    assert_false(dpq_scheme_equal(&a, &b));
    b = a;
    b.bits = 3;
    assert_false(dpq_scheme_equal(&a, &b));
    b = a;
    b.group_size = -1;
    assert_false(dpq_scheme_equal(&a, &b));
    b = a;
    b.symmetric = false;
    assert_false(dpq_scheme_equal(&a, &b));
    dpq_scheme c = b;
    c.signed_scale = false;
    assert_true(dpq_scheme_equal(&b, &c));
}

static void expect_refusal(dpq_scheme s, int64_t k, const char *words)
{
    assert_int_equal(dpq_scheme_check(&s, "layers.0.down", k), DPQ_E_UNSUPPORTED);
    assert_non_null(strstr(dpq_error_last()->text, "layers.0.down"));
    assert_non_null(strstr(dpq_error_last()->text, words));
}

static void test_check(void **state)
{
    (void)state;
    dpq_scheme s = {4, 128, true, true};
    assert_int_equal(dpq_scheme_check(&s, "m", 256), DPQ_OK);
    expect_refusal(s, 576, "input width 576; group sizes that do: 32, 64, -1");
    expect_refusal(s, 100, "group sizes that do: -1");
    expect_refusal(s, 64, "group sizes that do: 32, 64, -1");
    expect_refusal((dpq_scheme){4, 0, true, true}, 64, "group size 0");
    expect_refusal((dpq_scheme){4, -2, true, true}, 64, "group size -2");
    expect_refusal((dpq_scheme){1, 32, true, true}, 64, "1 bits");
    expect_refusal((dpq_scheme){9, 32, true, true}, 64, "9 bits");
    s.group_size = -1;
    assert_int_equal(dpq_scheme_check(&s, "m", 577), DPQ_OK);
}

static void fill(dpq_qweight *q, float scale, int zero)
{
    for (int64_t i = 0; i < q->n * q->groups; i++) {
        ((float *)q->scale.data)[i] = scale * (float)(i + 1);
        ((int8_t *)q->zero.data)[i] = (int8_t)zero;
    }
    for (int64_t i = 0; i < q->n * q->k; i++) {
        ((int8_t *)q->codes.data)[i] = (int8_t)(i % 16 - 8);
    }
}

static void test_dequantize(void **state)
{
    (void)state;
    const dpq_scheme s = {4, 5, false, false};
    for (int with_g_idx = 0; with_g_idx < 2; with_g_idx++) {
        dpq_qweight q;
        assert_int_equal(dpq_qweight_create(&s, 3, 10, DPQ_DTYPE_BF16, with_g_idx, &q), DPQ_OK);
        assert_int_equal(q.groups, 2);
        fill(&q, 0.11f, -3);
        for (int32_t j = 0; j < 10 && with_g_idx; j++) {
            ((int32_t *)q.g_idx.data)[j] = j % 2;
        }
        float f32[2 * 10];
        uint16_t bf16[2 * 12]; /* row stride 12 */
        memset(bf16, 0x55, sizeof bf16);
        dpq_tensor as_f32 = dpq_tensor_wrap_2d(f32, DPQ_DTYPE_F32, 2, 10);
        dpq_tensor as_bf16 = dpq_tensor_wrap_2d(bf16, DPQ_DTYPE_BF16, 2, 10);
        as_bf16.stride[0] = 12;
        assert_int_equal(dpq_qweight_dequantize(&q, 1, 3, &as_f32), DPQ_OK);
        assert_int_equal(dpq_qweight_dequantize(&q, 1, 3, &as_bf16), DPQ_OK);
        for (int row = 0; row < 2; row++) {
            for (int j = 0; j < 10; j++) {
                int at = (row + 1) * 10 + j;
                int group = (row + 1) * 2 + (with_g_idx ? j % 2 : j / 5);
                float expected = (float)(at % 16 - 8 + 3) * (0.11f * (float)(group + 1));
                assert_true(f32[row * 10 + j] == expected);
                assert_int_equal(bf16[row * 12 + j], dpq_f32_to_bf16(expected));
            }
            assert_int_equal(bf16[row * 12 + 10], 0x5555);
        }
        assert_int_equal(dpq_qweight_dequantize(&q, 2, 4, &as_f32), DPQ_E_SHAPE);
        assert_int_equal(dpq_qweight_dequantize(&q, 0, 3, &as_f32), DPQ_E_SHAPE);
        as_f32.dtype = DPQ_DTYPE_I32;
        assert_int_equal(dpq_qweight_dequantize(&q, 1, 3, &as_f32), DPQ_E_UNSUPPORTED);
        dpq_qweight_fini(&q);
        assert_null(q.codes.data);
    }
}

static void expect_bad(const dpq_qweight *q, const char *words)
{
    assert_int_equal(dpq_qweight_check(q, "layers.1.up"), DPQ_E_NUMERIC);
    assert_non_null(strstr(dpq_error_last()->text, "layers.1.up"));
    assert_non_null(strstr(dpq_error_last()->text, words));
}

static void test_qweight_check(void **state)
{
    (void)state;
    const dpq_scheme s = {4, 5, true, true};
    dpq_qweight q;
    assert_int_equal(dpq_qweight_create(&s, 3, 10, DPQ_DTYPE_F32, true, &q), DPQ_OK);
    float *scale = q.scale.data;
    int8_t *zero = q.zero.data;
    int8_t *codes = q.codes.data;
    int32_t *g_idx = q.g_idx.data;
    expect_bad(&q, "row 0, group 0: scale is 0");
    fill(&q, 0.5f, 0);
    for (int32_t j = 0; j < 10; j++) {
        g_idx[j] = 1 - j % 2;
    }
    assert_int_equal(dpq_qweight_check(&q, "m"), DPQ_OK);
    scale[3] = -1.0f;
    assert_int_equal(dpq_qweight_check(&q, "m"), DPQ_OK);
    q.scheme.signed_scale = false;
    expect_bad(&q, "row 1, group 1: scale is -1");
    scale[3] = NAN;
    expect_bad(&q, "row 1, group 1");
    scale[3] = INFINITY;
    expect_bad(&q, "row 1, group 1");
    scale[3] = 1.0f;
    zero[5] = 1;
    expect_bad(&q, "row 2, group 1: zero point is 1");
    q.scheme.symmetric = false;
    assert_int_equal(dpq_qweight_check(&q, "m"), DPQ_OK);
    zero[5] = 8;
    expect_bad(&q, "zero point is 8");
    zero[5] = 0;
    codes[29] = 8;
    expect_bad(&q, "row 2 has the code 8");
    codes[29] = -9;
    expect_bad(&q, "row 2 has the code -9");
    codes[29] = 0;
    g_idx[4] = 0;
    expect_bad(&q, "has 6 columns; expected 5"); /* group 0 gains column 4 */
    g_idx[4] = 2;
    expect_bad(&q, "column 4 is in group 2");
    dpq_qweight_fini(&q);
}

static void test_create_errors(void **state)
{
    (void)state;
    dpq_qweight q;
    dpq_scheme s = {4, 32, true, true};
    assert_int_equal(dpq_qweight_create(&s, 3, 33, DPQ_DTYPE_F32, false, &q), DPQ_E_UNSUPPORTED);
    assert_null(q.codes.data);
    assert_int_equal(dpq_qweight_create(&s, 3, 32, DPQ_DTYPE_I8, false, &q), DPQ_E_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_named),         cmocka_unit_test(test_groups),     cmocka_unit_test(test_equal),
        cmocka_unit_test(test_check),         cmocka_unit_test(test_dequantize), cmocka_unit_test(test_qweight_check),
        cmocka_unit_test(test_create_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
