/* SPDX-License-Identifier: Apache-2.0 */
/* The samples of the steps of tuning: a pure function, equal shares for every number of ranks that divides the batch,
 * all samples reached, none favoured. */
#include "quant_test.h"

#include "dpquant/block_algo.h"

#define MOST 160

static void test_pure_function(void **state)
{
    (void)state;
    int64_t a[8];
    int64_t b[8];
    int n_equal = 0;
    for (int64_t step = 40; step >= 0; step--) {
        dpq_tune_schedule(42, 128, 8, step, a);
        dpq_tune_schedule(42, 128, 8, step, b);
        assert_memory_equal(a, b, sizeof a);
        dpq_tune_schedule(43, 128, 8, step, b);
        n_equal += memcmp(a, b, sizeof a) == 0;
    }
    assert_true(n_equal < 3);
}

static void test_shares_and_coverage(void **state)
{
    (void)state;
    static const struct {
        int64_t n, batch;
    } cases[] = {{128, 8}, {8, 8}, {130, 8}, {15, 8}, {9, 8}, {12, 6}, {7, 1}, {1, 1}, {160, 12}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int64_t n = cases[c].n;
        int64_t batch = cases[c].batch;
        for (int64_t step = 0; step < 100; step++) {
            int64_t samples[MOST];
            dpq_tune_schedule(7, n, batch, step, samples);
            for (int64_t ranks = 1; ranks <= batch; ranks++) {
                int64_t share[MOST] = {0};
                for (int64_t i = 0; i < batch; i++) {
                    assert_true(samples[i] >= 0 && samples[i] < n && samples[i] % batch == i);
                    share[samples[i] % ranks]++;
                }
                for (int64_t r = 0; batch % ranks == 0 && r < ranks; r++) {
                    assert_int_equal(share[r], batch / ranks);
                }
            }
        }
        /* in its first passes each class is gone through whole */
        for (int64_t pass = 0; pass < 3; pass++) {
            for (int64_t k = 0; k < batch; k++) {
                int64_t members = (n - k + batch - 1) / batch;
                int64_t seen[MOST] = {0};
                for (int64_t step = pass * members; step < (pass + 1) * members; step++) {
                    int64_t samples[MOST];
                    dpq_tune_schedule(7, n, batch, step, samples);
                    seen[samples[k]]++;
                }
                for (int64_t i = 0; i < n; i++) {
                    assert_int_equal(seen[i], i % batch == k);
                }
            }
        }
    }
}

/* Each member of a class comes first in a pass about as often as any other, and orders differ between classes. */
static void test_orders_are_drawn(void **state)
{
    (void)state;
    enum { MEMBERS = 5, PASSES = 4000 };
    int first[MEMBERS] = {0};
    int last[MEMBERS] = {0};
    int alike = 0;
    for (int64_t pass = 0; pass < PASSES; pass++) {
        int64_t samples[4];
        dpq_tune_schedule(3, 4 * MEMBERS, 4, pass * MEMBERS, samples);
        first[samples[0] / 4]++;
        alike += samples[0] / 4 == samples[1] / 4;
        dpq_tune_schedule(3, 4 * MEMBERS, 4, pass * MEMBERS + MEMBERS - 1, samples);
        last[samples[0] / 4]++;
    }
    for (int i = 0; i < MEMBERS; i++) { /* 800 expected, deviation 25 */
        assert_in_range(first[i], 675, 925);
        assert_in_range(last[i], 675, 925);
    }
    assert_in_range(alike, 675, 925);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pure_function),
        cmocka_unit_test(test_shares_and_coverage),
        cmocka_unit_test(test_orders_are_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
