/* SPDX-License-Identifier: Apache-2.0 */
/* Counter-based random numbers: pure, distinct by each argument, even. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dpquant/rng.h"

static void test_is_a_function(void **state)
{
    (void)state;
    uint64_t first = dpq_rng_u64(1, 2, 3);
    (void)dpq_rng_u64(9, 9, 9);
    assert_true(dpq_rng_u64(1, 2, 3) == first);
    assert_true(dpq_rng_u64(2, 1, 3) != first);
    assert_true(dpq_rng_u64(1, 3, 2) != first);
    assert_true(dpq_rng_u64(3, 2, 1) != first);
    assert_true(dpq_rng_u64(0, 0, 0) != 0);
    assert_true(dpq_rng_u64(0, 0, 0) != dpq_rng_u64(0, 0, 1));
}

/* Recorded once: results of a seed must not change from version to version. */
static void test_recorded_values(void **state)
{
    (void)state;
    assert_true(dpq_rng_u64(0, 0, 0) == UINT64_C(0x103d7c62cc54ad9e));
    assert_true(dpq_rng_u64(42, 1, 1000) == UINT64_C(0xe0d1ff48bf45dc49));
    assert_true(dpq_rng_u64(UINT64_MAX, UINT64_MAX, UINT64_MAX) == UINT64_C(0x4e466c076ceef98d));
}

static void test_bits_are_even(void **state)
{
    (void)state;
    enum { DRAWS = 4096 };
    for (int bit = 0; bit < 64; bit++) {
        int ones = 0;
        int follows = 0;
        for (uint64_t i = 0; i < DRAWS; i++) {
            uint64_t x = dpq_rng_u64(5, 6, i) >> bit & 1;
            ones += (int)x;
            follows += x == (dpq_rng_u64(5, 7, i) >> bit & 1);
        }
        /* six standard deviations of a fair coin: 6 * sqrt(4096) / 2 = 192 */
        assert_in_range(ones, DRAWS / 2 - 192, DRAWS / 2 + 192);
        assert_in_range(follows, DRAWS / 2 - 192, DRAWS / 2 + 192);
    }
}

static void test_below(void **state)
{
    (void)state;
    int seen[10] = {0};
    for (uint64_t i = 0; i < 10000; i++) {
        uint64_t x = dpq_rng_below(1, 1, i, 10);
        assert_true(x < 10);
        seen[x]++;
    }
    for (int i = 0; i < 10; i++) {
        assert_in_range(seen[i], 820, 1180); /* 1000 +- 6 * sqrt(900) */
    }
    assert_true(dpq_rng_below(1, 1, 1, 1) == 0);
    assert_true(dpq_rng_below(1, 1, 1, UINT64_MAX) < UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_a_function),
        cmocka_unit_test(test_recorded_values),
        cmocka_unit_test(test_bits_are_even),
        cmocka_unit_test(test_below),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
