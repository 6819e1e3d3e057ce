/* SPDX-License-Identifier: Apache-2.0 */
/* Exponents of order-free sums: every entry fits with room for n samples, and no exponent is needlessly large. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "dpquant/fixsum.h"

static int ceil_log2(int64_t n)
{
    int bits = 0;
    while (((int64_t)1 << bits) < n) {
        bits++;
    }
    return bits;
}

static void test_bounds(void **state)
{
    (void)state;
    static const int64_t samples[] = {1, 2, 3, 4, 127, 128, 129, 1 << 20};
    static const double sums[] = {1e-300, 4.9e-324, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 1e10, 0x1p100, 1e300};
    for (size_t s = 0; s < sizeof samples / sizeof samples[0]; s++) {
        double limit = ldexp(1.0, 62 - ceil_log2(samples[s]));
        for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
            int ei = dpq_fixsum_channel_exponent(sums[i], samples[s]);
            for (size_t j = 0; j < sizeof sums / sizeof sums[0]; j++) {
                int ej = dpq_fixsum_channel_exponent(sums[j], samples[s]);
                /* The largest entry Cauchy-Schwarz allows, in units, twice (one bit to spare). */
                double entry = ldexp(sqrt(sums[i]), -ei) * ldexp(sqrt(sums[j]), -ej);
                assert_true(2.0 * entry <= limit);
            }
            /* A diagonal entry keeps all but five of the bits it could have. */
            double diagonal = ldexp(sqrt(sums[i]), -ei);
            assert_true(diagonal * diagonal * 32.0 >= limit);
        }
    }
}

static void test_hand_computed(void **state)
{
    (void)state;
    /* n = 1: 61 bits, 30 for a channel; 4 < 2^3, so e + 30 = 2 */
    assert_int_equal(dpq_fixsum_channel_exponent(4.0, 1), -28);
    assert_int_equal(dpq_fixsum_channel_exponent(3.0, 1), -29);
    /* n = 128: 54 bits, 27 for a channel */
    assert_int_equal(dpq_fixsum_channel_exponent(3.0, 128), -26);
    /* n = 129: 53 bits, 26 for a channel */
    assert_int_equal(dpq_fixsum_channel_exponent(3.0, 129), -25);
    assert_int_equal(dpq_fixsum_channel_exponent(0.0, 5), 0);
    /* 0.125 <= x < 0.25 is 2^-3 .. 2^-2: e + 30 = -1 */
    assert_int_equal(dpq_fixsum_channel_exponent(0.2, 1), -31);
}

static void test_errors(void **state)
{
    (void)state;
    int32_t exponent[3] = {7, 7, 7};
    const double good[3] = {0.0, 3.0, 4.0};
    assert_int_equal(dpq_fixsum_exponents(good, 3, 1, exponent), DPQ_OK);
    assert_int_equal(exponent[0], 0);
    assert_int_equal(exponent[1], -29);
    assert_int_equal(exponent[2], -28);
    const double bad[4] = {1.0, NAN, INFINITY, -1.0};
    static const char *const words[] = {NULL, "channel 0", "channel 0", "channel 0"};
    for (int i = 1; i < 4; i++) {
        assert_int_equal(dpq_fixsum_exponents(bad + i, 1, 1, exponent), DPQ_E_NUMERIC);
        assert_non_null(strstr(dpq_error_last()->text, words[i]));
    }
    assert_int_equal(dpq_fixsum_exponents(bad, 2, 1, exponent), DPQ_E_NUMERIC);
    assert_non_null(strstr(dpq_error_last()->text, "channel 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_hand_computed),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
