/* SPDX-License-Identifier: Apache-2.0 */
/* Rope tables against the published formulas in double, hand-computed values, and the fp32 rounding of angles. */
#include <math.h>

#include "io_test.h"

#include "dpquant/model.h"

static const dpq_rope_config plain = {.type = DPQ_ROPE_DEFAULT,
                                      .theta = 10000.0,
                                      .factor = 1.0,
                                      .attention_factor = 1.0,
                                      .truncate = true,
                                      .rotary_dim = 8};

/* Frequency i, recovered from the table's row of position 1 (frequencies are at most 1, so the angle is unique). */
static double table_frequency(const dpq_rope_config *rope, int64_t i)
{
    dpq_tensor c, s;
    expect_ok(dpq_rope_tables(rope, 2, &c, &s));
    int64_t half = rope->rotary_dim / 2;
    double angle = atan2((double)((float *)s.data)[half + i], (double)((float *)c.data)[half + i]);
    dpq_tensor_fini(&c);
    dpq_tensor_fini(&s);
    return angle;
}

static void expect_near(double found, double expected, double relative)
{
    if (!(fabs(found - expected) <= relative * fabs(expected))) {
        print_error("expected %.10g, found %.10g\n", expected, found);
        fail();
    }
}

static void test_default(void **state)
{
    (void)state;
    dpq_tensor c, s;
    expect_ok(dpq_rope_tables(&plain, 3, &c, &s));
    assert_int_equal(c.dim[0], 3);
    assert_int_equal(c.dim[1], 4);
    assert_int_equal(c.dtype, DPQ_DTYPE_F32);
    assert_true(dpq_tensor_same_shape(&c, &s));
    const float *cosine = c.data;
    const float *sine = s.data;
    for (int i = 0; i < 4; i++) {
        assert_true(cosine[i] == 1.0f && sine[i] == 0.0f);
        for (int pos = 1; pos < 3; pos++) {
            double angle = pos * pow(10.0, -i); /* 10000^(-2i/8) */
            assert_float_equal(cosine[pos * 4 + i], cos(angle), 2e-7);
            expect_near((double)sine[pos * 4 + i], sin(angle), 4e-7);
        }
    }
    dpq_tensor_fini(&c);
    dpq_tensor_fini(&s);
}

/* At position 200003 the fp32 product is up to 2^-7 off the true angle: the table must have that error, as the models
 * do. */
static void test_fp32_angles(void **state)
{
    (void)state;
    enum { POSITIONS = 200004 };
    dpq_rope_config rope = plain;
    rope.theta = 500000.0;
    rope.rotary_dim = 4;
    dpq_tensor c, s;
    expect_ok(dpq_rope_tables(&rope, POSITIONS, &c, &s));
    float frequency = 1.0f / (float)pow(500000.0, 0.5);
    int apart = 0;
    for (int64_t pos = 0; pos < POSITIONS; pos++) {
        volatile float angle = (float)pos * frequency;
        assert_true(((float *)c.data)[pos * 2 + 1] == (float)cos((double)angle));
        assert_true(((float *)s.data)[pos * 2 + 1] == (float)sin((double)angle));
        apart += (float)sin((double)pos * (double)frequency) != (float)sin((double)angle);
    }
    assert_true(apart > POSITIONS / 2); /* the test can tell */
    dpq_tensor_fini(&c);
    dpq_tensor_fini(&s);
}

static void test_linear_and_factor(void **state)
{
    (void)state;
    dpq_rope_config rope = plain;
    rope.type = DPQ_ROPE_LINEAR;
    rope.factor = 4.0;
    for (int64_t i = 0; i < 4; i++) {
        expect_near(table_frequency(&rope, i), pow(10.0, (double)-i) / 4.0, 1e-6);
    }
    rope.attention_factor = 1.5;
    dpq_tensor c, s;
    expect_ok(dpq_rope_tables(&rope, 2, &c, &s));
    assert_true(((float *)c.data)[0] == 1.5f);
    expect_near((double)((float *)s.data)[4], 1.5 * sin(0.25), 1e-6);
    dpq_tensor_fini(&c);
    dpq_tensor_fini(&s);
}

static void test_llama3(void **state)
{
    (void)state;
    const dpq_rope_config rope = {.type = DPQ_ROPE_LLAMA3,
                                  .theta = 500000.0,
                                  .factor = 8.0,
                                  .low_freq_factor = 1.0,
                                  .high_freq_factor = 4.0,
                                  .original_max_position = 8192.0,
                                  .attention_factor = 1.0,
                                  .rotary_dim = 128};
    int kinds[3] = {0, 0, 0};
    for (int64_t i = 0; i < 64; i++) {
        double inv = pow(500000.0, -2.0 * (double)i / 128.0);
        double wave = 2.0 * M_PI / inv;
        double expected = inv;
        int kind = 0;
        if (wave > 8192.0) {
            expected = inv / 8.0;
            kind = 2;
        } else if (wave >= 2048.0) {
            double t = (8192.0 / wave - 1.0) / 3.0;
            expected = (1.0 - t) * inv / 8.0 + t * inv;
            kind = 1;
        }
        kinds[kind]++;
        expect_near(table_frequency(&rope, i), expected, 2e-6);
    }
    assert_int_equal(kinds[0], 29); /* log_500000(2048 / 2 pi) * 64 = 28.2: indices 0..28 */
    assert_int_equal(kinds[1], 6);
    assert_int_equal(kinds[2], 29);
}

static void test_yarn(void **state)
{
    (void)state;
    dpq_rope_config rope = {.type = DPQ_ROPE_YARN,
                            .theta = 1000000.0,
                            .factor = 4.0,
                            .original_max_position = 32768.0,
                            .beta_fast = 32.0,
                            .beta_slow = 1.0,
                            .truncate = true,
                            .attention_factor = 1.0,
                            .rotary_dim = 128};
    for (int truncate = 1; truncate >= 0; truncate--) {
        /* 128 ln(32768 / (2 pi n)) / (2 ln 10^6) = 23.5959 for n = 32, 39.6509 for n = 1 */
        double low = truncate ? 23.0 : 128.0 * log(32768.0 / (64.0 * M_PI)) / (2.0 * log(1e6));
        double high = truncate ? 40.0 : 128.0 * log(32768.0 / (2.0 * M_PI)) / (2.0 * log(1e6));
        rope.truncate = truncate;
        for (int64_t i = 0; i < 64; i++) {
            double inv = pow(1e6, -2.0 * (double)i / 128.0);
            double ramp = fmin(fmax(((double)i - low) / (high - low), 0.0), 1.0);
            expect_near(table_frequency(&rope, i), inv / 4.0 * ramp + inv * (1.0 - ramp), 2e-6);
        }
    }
    /* low == high: a step between two neighbours instead of a division by zero */
    rope.original_max_position = 6.0;
    rope.truncate = true;
    rope.factor = 2.0;
    expect_near(table_frequency(&rope, 0), 1.0, 1e-6);
    expect_near(table_frequency(&rope, 1), pow(1e6, -2.0 / 128.0) / 2.0, 1e-6);
}

static void test_edges(void **state)
{
    (void)state;
    dpq_tensor c, s;
    dpq_rope_config rope = plain;
    rope.rotary_dim = 2;
    expect_ok(dpq_rope_tables(&rope, 0, &c, &s));
    assert_int_equal(c.dim[0], 0);
    dpq_tensor_fini(&c);
    dpq_tensor_fini(&s);
    expect_near(table_frequency(&rope, 0), 1.0, 1e-6);
    assert_int_equal(dpq_rope_tables(&rope, INT64_MAX / 2, &c, &s), DPQ_E_MEMORY);
    assert_null(c.data);
    assert_null(s.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default), cmocka_unit_test(test_fp32_angles), cmocka_unit_test(test_linear_and_factor),
        cmocka_unit_test(test_llama3),  cmocka_unit_test(test_yarn),        cmocka_unit_test(test_edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
