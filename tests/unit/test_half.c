/* SPDX-License-Identifier: Apache-2.0 */
/* Every bf16 and fp16 pattern, ties, limits, and the vectorised conversions against the scalar ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <math.h>

#include "dpquant/half.h"
#include "dpquant/tensor.h"

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* The value of an fp16 pattern by its definition. */
static double f16_value(uint16_t h)
{
    int exponent = (h >> 10) & 0x1f;
    int mantissa = h & 0x3ff;
    double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == 0x1f) {
        return mantissa ? NAN : sign * INFINITY;
    }
    return exponent ? sign * ldexp(1024 + mantissa, exponent - 25) : sign * ldexp(mantissa, -24);
}

static void test_f16_all_patterns(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        double value = f16_value(h);
        float f = dpq_f16_to_f32(h);
        if (isnan(value)) {
            assert_true(isnan(f));
            assert_int_equal(dpq_f32_to_f16(f), h | 0x200);
        } else {
            assert_true((double)f == value && !signbit(f) == !(h & 0x8000));
            assert_int_equal(dpq_f32_to_f16(f), h);
        }
    }
}

static void test_bf16_all_patterns(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        float f = dpq_bf16_to_f32(h);
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        assert_int_equal(bits, i << 16);
        bool is_nan = (h & 0x7f80) == 0x7f80 && (h & 0x7f) != 0;
        assert_int_equal(dpq_f32_to_bf16(f), is_nan ? (h | 0x40) : h);
    }
}

/* Between each two neighbours: below the middle goes down, above goes up, the middle goes to the even one. */
static void test_f16_ties(void **state)
{
    (void)state;
    for (uint16_t h = 0; h < 0x7bff; h++) {
        float low = dpq_f16_to_f32(h);
        float high = dpq_f16_to_f32((uint16_t)(h + 1));
        float middle = (low + high) / 2; /* exact: one more bit */
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        assert_int_equal(dpq_f32_to_f16(middle), even);
        assert_int_equal(dpq_f32_to_f16(nextafterf(middle, low)), h);
        assert_int_equal(dpq_f32_to_f16(nextafterf(middle, high)), h + 1);
        assert_int_equal(dpq_f32_to_f16(-middle), even | 0x8000);
    }
}

static void test_bf16_ties(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7f80; h++) {
        uint32_t even = h & 1 ? h + 1 : h;
        assert_int_equal(dpq_f32_to_bf16(from_bits(h << 16 | 0x8000)), even);
        assert_int_equal(dpq_f32_to_bf16(from_bits(h << 16 | 0x7fff)), h);
        assert_int_equal(dpq_f32_to_bf16(from_bits(h << 16 | 0x8001)), h + 1);
        assert_int_equal(dpq_f32_to_bf16(from_bits(0x80000000u | h << 16 | 0x8000)), even | 0x8000);
    }
}

static void test_limits(void **state)
{
    (void)state;
    assert_int_equal(dpq_f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(dpq_f32_to_f16(nextafterf(65520.0f, 0.0f)), 0x7bff);
    assert_int_equal(dpq_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(dpq_f32_to_f16(3e38f), 0x7c00);
    assert_int_equal(dpq_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(dpq_f32_to_f16(ldexpf(1, -25)), 0);
    assert_int_equal(dpq_f32_to_f16(nextafterf(ldexpf(1, -25), 1)), 1);
    assert_int_equal(dpq_f32_to_f16(from_bits(1)), 0);
    assert_int_equal(dpq_f32_to_bf16(3.4e38f), 0x7f80);
    assert_int_equal(dpq_f32_to_bf16(-INFINITY), 0xff80);
    assert_true(isnan(dpq_bf16_to_f32(dpq_f32_to_bf16(from_bits(0x7f800001u)))));
    assert_true(isnan(dpq_bf16_to_f32(dpq_f32_to_bf16(from_bits(0xffffffffu)))));
    assert_true(isnan(dpq_f16_to_f32(dpq_f32_to_f16(from_bits(0x7f800001u)))));
    assert_true(isnan(dpq_f16_to_f32(dpq_f32_to_f16(from_bits(0xffffffffu)))));
}

#define MANY 4099 /* four conversion blocks and an odd rest */

static void test_convert_matches_scalar(void **state)
{
    (void)state;
    static float f[MANY];
    static uint16_t h[MANY + 1];
    static float back[MANY + 1];
    static double d[MANY];
    uint32_t bits = 12345;
    for (int i = 0; i < MANY; i++) {
        bits = bits * 1664525u + 1013904223u;
        f[i] = from_bits(bits); /* NaN and infinities among them */
        d[i] = (double)i * 1.7 - 3000;
    }
    const int sizes[] = {0, 1, 7, 16, 1023, 1024, 1025, MANY};
    const dpq_dtype types[] = {DPQ_DTYPE_BF16, DPQ_DTYPE_F16};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int t = 0; t < 2; t++) {
            int n = sizes[s];
            bool is_bf16 = types[t] == DPQ_DTYPE_BF16;
            h[n] = 0xabcd;
            back[n] = 42.0f;
            assert_int_equal(dpq_convert(f, DPQ_DTYPE_F32, h, types[t], n), DPQ_OK);
            assert_int_equal(dpq_convert(h, types[t], back, DPQ_DTYPE_F32, n), DPQ_OK);
            assert_int_equal(h[n], 0xabcd);
            assert_true(back[n] == 42.0f);
            for (int i = 0; i < n; i++) {
                assert_int_equal(h[i], is_bf16 ? dpq_f32_to_bf16(f[i]) : dpq_f32_to_f16(f[i]));
                float expected = is_bf16 ? dpq_bf16_to_f32(h[i]) : dpq_f16_to_f32(h[i]);
                assert_memory_equal(&back[i], &expected, sizeof expected);
            }
            assert_int_equal(dpq_convert(d, DPQ_DTYPE_F64, h, types[t], n), DPQ_OK);
            for (int i = 0; i < n; i++) {
                assert_int_equal(h[i], is_bf16 ? dpq_f32_to_bf16((float)d[i]) : dpq_f32_to_f16((float)d[i]));
            }
            assert_int_equal(h[n], 0xabcd);
        }
    }
}

static void test_convert_between_halves_and_copies(void **state)
{
    (void)state;
    const uint16_t bf16[3] = {0x3f80, 0xc000, 0x7f81};
    uint16_t out[3];
    assert_int_equal(dpq_convert(bf16, DPQ_DTYPE_BF16, out, DPQ_DTYPE_F16, 2), DPQ_OK);
    assert_int_equal(out[0], 0x3c00);
    assert_int_equal(out[1], 0xc000);
    assert_int_equal(dpq_convert(bf16, DPQ_DTYPE_BF16, out, DPQ_DTYPE_BF16, 3), DPQ_OK);
    assert_memory_equal(out, bf16, sizeof bf16);
}

static void test_convert_refuses_other_types(void **state)
{
    (void)state;
    int32_t from[1] = {1};
    float to[1] = {0};
    assert_int_equal(dpq_convert(from, DPQ_DTYPE_I32, to, DPQ_DTYPE_F32, 1), DPQ_E_UNSUPPORTED);
    assert_non_null(strstr(dpq_error_last()->text, "I32"));
    assert_int_equal(dpq_convert(to, DPQ_DTYPE_F32, from, DPQ_DTYPE_F64, 0), DPQ_E_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_all_patterns),
        cmocka_unit_test(test_bf16_all_patterns),
        cmocka_unit_test(test_f16_ties),
        cmocka_unit_test(test_bf16_ties),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_convert_matches_scalar),
        cmocka_unit_test(test_convert_between_halves_and_copies),
        cmocka_unit_test(test_convert_refuses_other_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
