/* SPDX-License-Identifier: Apache-2.0 */
/* Index arithmetic: every sample and every row belongs to one rank, whatever the numbers are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "dpquant/model.h"
#include "dpquant/shard.h"

static void test_samples_by_hand(void **state)
{
    (void)state;
    assert_int_equal(dpq_shard_sample_count(7, 0, 3), 3); /* 0 3 6 */
    assert_int_equal(dpq_shard_sample_count(7, 1, 3), 2); /* 1 4 */
    assert_int_equal(dpq_shard_sample_count(7, 2, 3), 2); /* 2 5 */
    assert_int_equal(dpq_shard_sample(2, 0, 3), 6);
    assert_int_equal(dpq_shard_sample(1, 2, 3), 5);
    assert_int_equal(dpq_shard_sample_count(2, 1, 4), 1);
    assert_int_equal(dpq_shard_sample_count(2, 2, 4), 0); /* more ranks than samples */
    assert_int_equal(dpq_shard_sample_count(0, 0, 1), 0);
}

static void test_every_sample_once(void **state)
{
    (void)state;
    for (int64_t n = 0; n <= 40; n++) {
        for (int size = 1; size <= 9; size++) {
            int seen[40] = {0};
            for (int rank = 0; rank < size; rank++) {
                for (int64_t i = 0; i < dpq_shard_sample_count(n, rank, size); i++) {
                    int64_t sample = dpq_shard_sample(i, rank, size);
                    assert_in_range(sample, 0, n - 1);
                    seen[sample]++;
                }
            }
            for (int64_t s = 0; s < n; s++) {
                assert_int_equal(seen[s], 1);
            }
        }
    }
}

static void test_rows_by_hand(void **state)
{
    (void)state;
    int64_t start[5];
    dpq_shard_rows(300, 64, 3, start); /* 5 tiles: 2 2 1 */
    const int64_t expected[] = {0, 128, 256, 300};
    assert_memory_equal(start, expected, sizeof expected);
    dpq_shard_rows(64, 64, 4, start); /* one tile, three ranks without */
    const int64_t one[] = {0, 64, 64, 64, 64};
    assert_memory_equal(start, one, sizeof one);
    dpq_shard_rows(10, 64, 2, start); /* less than a tile */
    const int64_t partial[] = {0, 10, 10};
    assert_memory_equal(start, partial, sizeof partial);
    dpq_shard_rows(0, 64, 2, start);
    const int64_t none[] = {0, 0, 0};
    assert_memory_equal(start, none, sizeof none);
}

static void test_rows_cover_in_whole_tiles(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 700; n += 23) {
        for (int size = 1; size <= 8; size++) {
            int64_t start[9];
            int64_t fewest = INT64_MAX, most = 0;
            dpq_shard_rows(n, 64, size, start);
            assert_int_equal(start[0], 0);
            assert_int_equal(start[size], n);
            for (int r = 0; r < size; r++) {
                int64_t tiles = (start[r + 1] - start[r] + 63) / 64;
                assert_true(start[r] <= start[r + 1]);
                assert_true(start[r] % 64 == 0 || start[r] == n);
                fewest = tiles < fewest ? tiles : fewest;
                most = tiles > most ? tiles : most;
            }
            assert_true(most - fewest <= 1);
        }
    }
}

static void test_owners_take_turns(void **state)
{
    (void)state;
    int work[3] = {0};
    assert_int_equal(dpq_shard_owner(0, 0, 1), 0);
    assert_int_equal(dpq_shard_owner(0, 1, 3), 1);
    assert_int_equal(dpq_shard_owner(1, 0, 3), 1); /* stage 4 of all */
    for (int64_t layer = 0; layer < 3; layer++) {
        for (int stage = 0; stage < DPQ_STAGE_COUNT; stage++) {
            work[dpq_shard_owner(layer, stage, 3)]++;
        }
    }
    assert_int_equal(work[0], 4);
    assert_int_equal(work[1], 4);
    assert_int_equal(work[2], 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples_by_hand),   cmocka_unit_test(test_every_sample_once),
        cmocka_unit_test(test_rows_by_hand),      cmocka_unit_test(test_rows_cover_in_whole_tiles),
        cmocka_unit_test(test_owners_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
