/* SPDX-License-Identifier: Apache-2.0 */
/* Token windows: order, padding, cutting, digests, and every refusal of the reader. */
#include "io_test.h"

#include <hdf5.h>

#include "dpquant/calibset.h"

/* A dataset (ROWS, COLS) of VALUES stored as TYPE. */
static void put_dataset(hid_t file, const char *name, hid_t type, int rank, hsize_t rows, hsize_t cols,
                        const int *values)
{
    const hsize_t dim[3] = {rows, cols, 1};
    hid_t space = H5Screate_simple(rank, dim, NULL);
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(space >= 0 && set >= 0);
    assert_true(H5Dwrite(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Dclose(set);
    H5Sclose(space);
}

/* A file with IDS and, when given, MASK; returns its path. */
static char *put_windows(void **state, hsize_t rows, hsize_t cols, const int *ids, const int *mask)
{
    char *path = (char *)(uintptr_t)in_folder(state, "calib.h5");
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(file >= 0);
    if (ids) {
        put_dataset(file, "input_ids", H5T_STD_I32LE, 2, rows, cols, ids);
    }
    if (mask) {
        put_dataset(file, "attention_mask", H5T_STD_U8LE, 2, rows, cols, mask);
    }
    H5Fclose(file);
    return path;
}

static const int four_rows[] = {0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32};

static void test_plain(void **state)
{
    dpq_calibset set;
    const dpq_calibset_options options = {.data = put_windows(state, 4, 3, four_rows, NULL)};
    expect_ok(dpq_calibset_read(&options, 33, &set));
    assert_int_equal(set.n, 4);
    assert_int_equal(set.rows_in_file, 4);
    assert_int_equal(set.max_length, 3);
    assert_int_equal(set.tokens_read, 12);
    assert_int_equal(set.tokens_masked, 0);
    assert_int_equal(set.tokens_cut, 0);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(set.ids[i], four_rows[i]);
    }
    for (int i = 0; i <= 4; i++) {
        assert_int_equal(set.start[i], 3 * i);
    }
    assert_int_equal(strlen(set.digest), 64);
    /* count, then length and ids of every sample */
    dpq_sha256 sha;
    char hex[65];
    int64_t number = 4;
    dpq_sha256_init(&sha);
    dpq_sha256_update(&sha, &number, 8);
    number = 3;
    for (int i = 0; i < 4; i++) {
        dpq_sha256_update(&sha, &number, 8);
        dpq_sha256_update(&sha, four_rows + 3 * i, 12);
    }
    dpq_sha256_hex(&sha, hex);
    assert_string_equal(set.digest, hex);
    dpq_calibset_fini(&set);
    assert_null(set.ids);
}

static void test_first_and_cut(void **state)
{
    dpq_calibset set;
    dpq_calibset_options options = {.data = put_windows(state, 4, 3, four_rows, NULL), .samples = 2, .seqlen = 2};
    expect_ok(dpq_calibset_read(&options, 13, &set)); /* the ids of rows that are not used are not looked at */
    assert_int_equal(set.n, 2);
    assert_int_equal(set.start[2], 4);
    assert_int_equal(set.ids[2], 10);
    assert_int_equal(set.ids[3], 11);
    assert_int_equal(set.tokens_read, 6);
    assert_int_equal(set.tokens_cut, 2);
    assert_int_equal(set.rows_in_file, 4);
    dpq_calibset_fini(&set);
    options.seqlen = 100; /* no row is that long */
    options.samples = 4;
    expect_ok(dpq_calibset_read(&options, 33, &set));
    assert_int_equal(set.max_length, 3);
    assert_int_equal(set.tokens_cut, 0);
    dpq_calibset_fini(&set);
}

static void test_padding(void **state)
{
    static const int ids[] = {-1, -1, 3, 4, 5, 6, 7, 8, 9, 99, 1, 2, 3, 4, 5};
    static const int mask[] = {0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1};
    dpq_calibset set;
    dpq_calibset_options options = {.data = put_windows(state, 3, 5, ids, mask), .seqlen = 4};
    expect_ok(dpq_calibset_read(&options, 10, &set));
    static const int32_t expected[] = {3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4};
    assert_int_equal(set.start[1], 3);
    assert_int_equal(set.start[2], 7);
    assert_int_equal(set.start[3], 11);
    assert_memory_equal(set.ids, expected, sizeof expected);
    assert_int_equal(set.tokens_read, 15);
    assert_int_equal(set.tokens_masked, 3);
    assert_int_equal(set.tokens_cut, 1);
    assert_int_equal(set.max_length, 4);
    dpq_calibset_fini(&set);
}

enum { MANY = 200 };

/* First ids of the rows in the order of SEED. */
static void shuffled(void **state, int64_t seed, int64_t samples, int32_t order[MANY], char digest[65])
{
    int ids[MANY * 2];
    for (int i = 0; i < MANY; i++) {
        ids[2 * i] = i;
        ids[2 * i + 1] = i + 1;
    }
    dpq_calibset set;
    const dpq_calibset_options options = {
        .data = put_windows(state, MANY, 2, ids, NULL), .samples = samples, .shuffle = true, .seed = seed};
    expect_ok(dpq_calibset_read(&options, 1000, &set));
    assert_int_equal(set.n, samples);
    for (int64_t i = 0; i < samples; i++) {
        order[i] = set.ids[2 * i];
        assert_int_equal(set.ids[2 * i + 1], order[i] + 1);
    }
    memcpy(digest, set.digest, 65);
    dpq_calibset_fini(&set);
}

static void test_shuffle(void **state)
{
    int32_t a[MANY], b[MANY];
    char digest_a[65], digest_b[65];
    bool seen[MANY] = {false};
    shuffled(state, 7, MANY, a, digest_a);
    shuffled(state, 7, MANY, b, digest_b);
    assert_memory_equal(a, b, sizeof a);
    assert_string_equal(digest_a, digest_b);
    int fixed = 0;
    for (int i = 0; i < MANY; i++) {
        assert_false(seen[a[i]]);
        seen[a[i]] = true;
        fixed += a[i] == i;
    }
    assert_true(fixed < 10);
    shuffled(state, 7, 20, b, digest_b); /* fewer samples are the first of more, from the whole file */
    assert_memory_equal(a, b, 20 * sizeof *a);
    assert_string_not_equal(digest_a, digest_b);
    int stayed = 0; /* a fair shuffle leaves one row a seed in its place, on average; cyclic ones none */
    for (int64_t seed = 0; seed < 8; seed++) {
        shuffled(state, seed, MANY, b, digest_b);
        for (int i = 0; i < MANY; i++) {
            stayed += b[i] == i;
        }
    }
    assert_in_range(stayed, 1, 30);
    shuffled(state, 8, MANY, b, digest_b);
    assert_memory_not_equal(a, b, sizeof a);
    assert_string_not_equal(digest_a, digest_b);
}

static void expect_refused(const char *path, int64_t samples, int64_t seqlen, int64_t vocab, const char *part)
{
    dpq_calibset set;
    const dpq_calibset_options options = {.data = (char *)(uintptr_t)path, .samples = samples, .seqlen = seqlen};
    expect_error(dpq_calibset_read(&options, vocab, &set), DPQ_E_INPUT, part);
    assert_null(set.ids);
    assert_null(set.start);
    assert_int_equal(set.n, 0);
    if (path) {
        expect_error(DPQ_E_INPUT, DPQ_E_INPUT, path);
    }
}

static void test_refused_options(void **state)
{
    const char *path = put_windows(state, 4, 3, four_rows, NULL);
    expect_refused(path, 5, 0, 100, "expected at least 5 rows (samples asked for), found 4");
    expect_refused(path, -1, 0, 100, "samples");
    expect_refused(path, 0, 1, 100, "seqlen");
    expect_refused(path, 0, -2, 100, "seqlen");
    expect_refused(path, 0, 0, 32, "row 3, token 2: expected 0..31 (the model's vocabulary), found 32");
    expect_refused(in_folder(state, "absent.h5"), 0, 0, 100, "absent.h5");
    expect_refused(NULL, 0, 0, 100, "input_ids");
}

static void test_refused_rows(void **state)
{
    static const int ids[] = {1, 2, 3, 4, 5, -6};
    static const int hole[] = {1, 1, 1, 1, 0, 1};
    static const int two[] = {1, 1, 1, 1, 1, 2};
    static const int empty[] = {1, 1, 1, 0, 0, 0};
    static const int single[] = {1, 1, 1, 0, 0, 1};
    expect_refused(put_windows(state, 2, 3, ids, NULL), 0, 0, 10, "row 1, token 2: expected 0..9");
    expect_refused(put_windows(state, 2, 3, ids, hole), 0, 0, 10, "row 1: expected one run of ones");
    expect_refused(put_windows(state, 2, 3, ids, two), 0, 0, 10, "row 1, token 2: expected 0 or 1, found 2");
    expect_refused(put_windows(state, 2, 3, ids, empty), 0, 0, 10, "row 1: expected at least 2 tokens, found 0");
    expect_refused(put_windows(state, 2, 3, ids, single), 0, 0, 10, "row 1: expected at least 2 tokens, found 1");
    expect_refused(put_windows(state, 6, 1, ids, NULL), 0, 0, 10, "at least 2 tokens");
}

static void test_refused_files(void **state)
{
    static const int ids[] = {1, 2, 3, 4, 5, 6};
    expect_refused(put_windows(state, 0, 0, NULL, ids), 0, 0, 10, "input_ids");
    const char *path = in_folder(state, "calib.h5");
    for (int kind = 0; kind < 4; kind++) {
        static const char *const parts[] = {"integer", "2 dimensions", "attention_mask: expected the shape", "integer"};
        hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
        put_dataset(file, "input_ids", kind == 0 ? H5T_IEEE_F32LE : H5T_STD_I64LE, kind == 1 ? 1 : 2, kind == 1 ? 6 : 2,
                    3, ids);
        if (kind >= 2) {
            put_dataset(file, "attention_mask", kind == 3 ? H5T_IEEE_F64LE : H5T_STD_I8LE, 2, 2, kind == 2 ? 2 : 3,
                        ids);
        }
        H5Fclose(file);
        expect_refused(path, 0, 0, 10, parts[kind]);
    }
    put_file(path, "no HDF5", 7);
    expect_refused(path, 0, 0, 10, "calib.h5");
}

/* 64-bit ids that would wrap into the vocabulary when cut to 32 bits. */
static void test_wide_ids(void **state)
{
    const char *path = in_folder(state, "calib.h5");
    const hsize_t dim[2] = {1, 2};
    const int64_t ids[2] = {1, ((int64_t)1 << 32) + 1};
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t space = H5Screate_simple(2, dim, NULL);
    hid_t set = H5Dcreate2(file, "input_ids", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Dwrite(set, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, ids) >= 0);
    H5Dclose(set);
    H5Sclose(space);
    H5Fclose(file);
    expect_refused(path, 0, 0, 10, "found 4294967297");
}

static void test_shipped_file(void **state)
{
    (void)state;
    char path[] = "tests/models/tiny/calib.h5";
    dpq_calibset set;
    const dpq_calibset_options options = {.data = path, .samples = 3, .seqlen = 100};
    expect_ok(dpq_calibset_read(&options, 2048, &set));
    assert_int_equal(set.n, 3);
    assert_int_equal(set.rows_in_file, 256);
    assert_int_equal(set.start[3], 300);
    assert_int_equal(set.tokens_cut, 3 * 412);
    dpq_calibset_fini(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        folder_test(test_plain),         folder_test(test_first_and_cut),   folder_test(test_padding),
        folder_test(test_shuffle),       folder_test(test_refused_options), folder_test(test_refused_rows),
        folder_test(test_refused_files), folder_test(test_wide_ids),        cmocka_unit_test(test_shipped_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
