/* SPDX-License-Identifier: Apache-2.0 */
/* HDF5 reading: the calibration files of the demo model, and files made here with each thing that must be refused. */
#include "io_test.h"

#include <math.h>

#include <hdf5.h>

#include "dpquant/h5.h"

#define ROWS 5
#define COLS 7

static hid_t make_file(const char *path)
{
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(file >= 0);
    return file;
}

/* A dataset of RANK dimensions with the creation properties CREATE (closed here), filled from DATA when it is not NULL.
 */
static void make_dataset(hid_t at, const char *name, int rank, const hsize_t *dim, hid_t type, hid_t memory_type,
                         hid_t create, const void *data)
{
    hid_t space = rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(rank, dim, NULL);
    hid_t set = H5Dcreate2(at, name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
    if (set < 0) {
        fail_msg("cannot make dataset %s", name);
    }
    if (data != NULL) {
        assert_true(H5Dwrite(set, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    }
    H5Dclose(set);
    H5Sclose(space);
    if (create != H5P_DEFAULT) {
        H5Pclose(create);
    }
}

static hid_t chunked(int rank, const hsize_t *chunk, int deflate)
{
    hid_t create = H5Pcreate(H5P_DATASET_CREATE);
    assert_true(H5Pset_chunk(create, rank, chunk) >= 0);
    if (deflate) {
        assert_true(H5Pset_shuffle(create) >= 0 && H5Pset_deflate(create, 6) >= 0 && H5Pset_fletcher32(create) >= 0);
    }
    return create;
}

static void demo_files(void **state)
{
    dpq_h5 *h = NULL;
    int rank = 0;
    int64_t dim[3];
    bool is_integer = false;
    int64_t ids[2 * 512];
    (void)state;
    expect_ok(dpq_h5_open("tests/models/tiny/calib.h5", &h));
    assert_true(dpq_h5_has(h, "input_ids"));
    assert_true(dpq_h5_has(h, "/input_ids"));
    assert_false(dpq_h5_has(h, "input_id"));
    assert_false(dpq_h5_has(h, "input_ids/x"));
    assert_false(dpq_h5_has(h, ""));
    expect_ok(dpq_h5_shape(h, "input_ids", &rank, dim, &is_integer));
    assert_int_equal(rank, 2);
    assert_int_equal(dim[0], 256);
    assert_int_equal(dim[1], 512);
    assert_true(is_integer);
    expect_ok(dpq_h5_read_rows_i64(h, "input_ids", 254, 256, ids));
    for (int i = 0; i < 2 * 512; i++) {
        assert_in_range(ids[i], 0, 2047);
    }
    dpq_h5_close(&h);
    assert_null(h);
    dpq_h5_close(&h);
    expect_ok(dpq_h5_open("tests/models/tiny/golden.h5", &h));
    double perplexity = 0;
    expect_ok(dpq_h5_attr_f64(h, "heldout_perplexity", &perplexity));
    assert_true(fabs(perplexity - 17.678) < 0.01);
    expect_ok(dpq_h5_shape(h, "hidden/0", &rank, dim, &is_integer));
    assert_int_equal(rank, 3);
    assert_int_equal(dim[2], 256);
    assert_false(is_integer);
    float *x = malloc(2 * 128 * 256 * sizeof *x);
    expect_ok(dpq_h5_read_rows_f32(h, "hidden/0", 0, 2, x));
    float first = x[128 * 256];
    expect_ok(dpq_h5_read_rows_f32(h, "hidden/0", 1, 2, x)); /* a row is everything behind the first dimension */
    assert_true(x[0] == first && isfinite(first));
    free(x);
    /* The mean of the stored losses is the logarithm of the stored perplexity. */
    expect_ok(dpq_h5_shape(h, "heldout_nll", &rank, dim, &is_integer));
    float *nll = malloc((size_t)(dim[0] * dim[1]) * sizeof *nll);
    double sum = 0;
    expect_ok(dpq_h5_read_rows_f32(h, "heldout_nll", 0, dim[0], nll));
    for (int64_t i = 0; i < dim[0] * dim[1]; i++) {
        sum += nll[i];
    }
    assert_true(fabs(exp(sum / (double)(dim[0] * dim[1])) - perplexity) < 0.01);
    free(nll);
    dpq_h5_close(&h);
}

/* All plain layouts, sizes, signs and byte orders give the same numbers; ranges; groups. */
static void plain_datasets(void **state)
{
    static const char *const names[] = {"contiguous", "compact", "chunked", "deflated", "group/inner/set"};
    const char *path = in_folder(state, "a.h5");
    const hsize_t dim[2] = {ROWS, COLS};
    const hsize_t chunk[2] = {2, 3};
    int64_t values[ROWS * COLS];
    int64_t back[ROWS * COLS];
    hid_t file = make_file(path);
    for (int i = 0; i < ROWS * COLS; i++) {
        values[i] = i * 3;
    }
    hid_t compact = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_layout(compact, H5D_COMPACT);
    make_dataset(file, names[0], 2, dim, H5T_STD_I32LE, H5T_NATIVE_INT64, H5P_DEFAULT, values);
    make_dataset(file, names[1], 2, dim, H5T_STD_U8LE, H5T_NATIVE_INT64, compact, values);
    make_dataset(file, names[2], 2, dim, H5T_STD_I16BE, H5T_NATIVE_INT64, chunked(2, chunk, 0), values);
    make_dataset(file, names[3], 2, dim, H5T_STD_I64LE, H5T_NATIVE_INT64, chunked(2, chunk, 1), values);
    hid_t group = H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    hid_t inner = H5Gcreate2(group, "inner", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    make_dataset(inner, "set", 2, dim, H5T_STD_U64BE, H5T_NATIVE_INT64, H5P_DEFAULT, values);
    H5Gclose(inner);
    H5Gclose(group);
    H5Fclose(file);
    dpq_h5 *h = NULL;
    expect_ok(dpq_h5_open(path, &h));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_true(dpq_h5_has(h, names[i]));
        memset(back, 0, sizeof back);
        expect_ok(dpq_h5_read_rows_i64(h, names[i], 0, ROWS, back));
        assert_memory_equal(back, values, sizeof values);
        memset(back, 0, sizeof back);
        expect_ok(dpq_h5_read_rows_i64(h, names[i], 1, 4, back));
        assert_memory_equal(back, values + COLS, 3 * COLS * sizeof back[0]);
        assert_int_equal(back[3 * COLS], 0); /* nothing behind the rows asked for */
        expect_ok(dpq_h5_read_rows_i64(h, names[i], ROWS, ROWS, back));
    }
    expect_error(dpq_h5_read_rows_i64(h, "chunked", 4, 6, back), DPQ_E_INPUT, "rows [4, 6) asked for, it has 5");
    expect_error(dpq_h5_read_rows_i64(h, "chunked", -1, 1, back), DPQ_E_INPUT, "rows [-1, 1)");
    expect_error(dpq_h5_read_rows_i64(h, "chunked", 2, 1, back), DPQ_E_INPUT, "rows [2, 1)");
    expect_error(dpq_h5_read_rows_f32(h, "chunked", 0, 1, NULL), DPQ_E_INPUT, "integers, expected floats");
    expect_error(dpq_h5_read_rows_i64(h, "group", 0, 1, back), DPQ_E_INPUT, "\"group\" is not a dataset");
    expect_error(dpq_h5_read_rows_i64(h, "chunked/x", 0, 1, back), DPQ_E_INPUT, "\"chunked\" is not a group");
    expect_error(dpq_h5_read_rows_i64(h, "group/none", 0, 1, back), DPQ_E_INPUT, "there is no \"none\"");
    expect_error(dpq_h5_read_rows_i64(h, "", 0, 1, back), DPQ_E_INPUT, "empty or too long part");
    dpq_h5_close(&h);
}

static void float_datasets(void **state)
{
    const char *path = in_folder(state, "a.h5");
    const hsize_t dim[3] = {3, 2, 2};
    const double values[12] = {0, 0.5, -1, 2, 3, 4, 1e-3, 6, 7, 8, 9, 1e30};
    const hsize_t none[2] = {0, 4};
    float back[12];
    hid_t file = make_file(path);
    make_dataset(file, "f64", 3, dim, H5T_IEEE_F64BE, H5T_NATIVE_DOUBLE, H5P_DEFAULT, values);
    make_dataset(file, "f32", 1, (const hsize_t[]){12}, H5T_IEEE_F32LE, H5T_NATIVE_DOUBLE, H5P_DEFAULT, values);
    make_dataset(file, "none", 2, none, H5T_STD_I32LE, H5T_NATIVE_INT64, H5P_DEFAULT, NULL);
    H5Fclose(file);
    dpq_h5 *h = NULL;
    int64_t ids[1];
    int64_t shape[3];
    int rank = 0;
    bool is_integer = false;
    expect_ok(dpq_h5_open(path, &h));
    expect_ok(dpq_h5_read_rows_f32(h, "f64", 1, 3, back));
    for (int i = 0; i < 8; i++) {
        assert_true(back[i] == (float)values[4 + i]);
    }
    expect_ok(dpq_h5_read_rows_f32(h, "f32", 10, 12, back));
    assert_true(back[0] == 9.0f && back[1] == 1e30f);
    expect_error(dpq_h5_read_rows_i64(h, "f64", 0, 1, ids), DPQ_E_INPUT,
                 "3 dimensions of floats, expected 2 of integers");
    expect_ok(dpq_h5_shape(h, "none", &rank, shape, &is_integer));
    assert_int_equal(shape[0], 0);
    expect_ok(dpq_h5_read_rows_i64(h, "none", 0, 0, ids));
    dpq_h5_close(&h);
}

static void expect_bad(const dpq_h5 *h, const char *name, const char *part)
{
    int rank = 0;
    int64_t dim[3];
    bool is_integer = false;
    expect_error(dpq_h5_shape(h, name, &rank, dim, &is_integer), DPQ_E_INPUT, part);
    assert_int_equal(rank, 0);
}

static void links_are_not_followed(void **state)
{
    const char *path = in_folder(state, "a.h5");
    const char *other = in_folder(state, "secret.h5");
    const hsize_t dim[2] = {1, 1};
    const int64_t value = 7;
    hid_t file = make_file(other);
    make_dataset(file, "set", 2, dim, H5T_STD_I64LE, H5T_NATIVE_INT64, H5P_DEFAULT, &value);
    H5Fclose(file);
    file = make_file(path);
    hid_t group = H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    make_dataset(group, "set", 2, dim, H5T_STD_I64LE, H5T_NATIVE_INT64, H5P_DEFAULT, &value);
    assert_true(H5Lcreate_soft("/group/set", file, "soft", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lcreate_soft("/group", file, "soft_group", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lcreate_external("secret.h5", "/set", file, "external", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lcreate_external("secret.h5", "/", group, "external_group", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    assert_true(H5Lcreate_hard(group, "set", file, "hard", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    H5Gclose(group);
    H5Fclose(file);
    dpq_h5 *h = NULL;
    int64_t back = 0;
    expect_ok(dpq_h5_open(path, &h));
    expect_ok(dpq_h5_read_rows_i64(h, "hard", 0, 1, &back));
    assert_int_equal(back, 7);
    assert_true(dpq_h5_has(h, "soft")); /* the name is taken, so opening it tells why it is refused */
    expect_bad(h, "soft", "\"soft\" is a soft link");
    expect_bad(h, "soft_group/set", "\"soft_group\" is a soft link");
    expect_bad(h, "external", "\"external\" is an external link");
    expect_bad(h, "group/external_group/set", "\"external_group\" is an external link");
    dpq_h5_close(&h);
}

static void refused_storage(void **state)
{
    const char *path = in_folder(state, "a.h5");
    const hsize_t dim[2] = {4, 4};
    const hsize_t vast[2] = {(hsize_t)1 << 40, 16};
    const hsize_t overflow[2] = {(hsize_t)1 << 30, (hsize_t)1 << 31};
    const hsize_t big_chunk[2] = {(hsize_t)1 << 14, (hsize_t)1 << 14};
    const int64_t values[16] = {1, 2, 3};
    hid_t file = make_file(path);
    make_dataset(file, "plain", 2, dim, H5T_STD_I64LE, H5T_NATIVE_INT64, H5P_DEFAULT, values);
    hid_t create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(create, "/etc/hostname", 0, 16 * 8);
    make_dataset(file, "external", 2, dim, H5T_STD_I64LE, H5T_NATIVE_INT64, create, NULL);
    create = H5Pcreate(H5P_DATASET_CREATE);
    hid_t space = H5Screate_simple(2, dim, NULL);
    H5Pset_virtual(create, space, "secret.h5", "/set", space);
    make_dataset(file, "virtual", 2, dim, H5T_STD_I64LE, H5T_NATIVE_INT64, create, NULL);
    H5Sclose(space);
    create = chunked(2, dim, 0);
    H5Pset_nbit(create);
    make_dataset(file, "nbit", 2, dim, H5T_STD_I64LE, H5T_NATIVE_INT64, create, values);
    create = chunked(2, dim, 0);
    H5Pset_filter(create, 32001, H5Z_FLAG_OPTIONAL, 0, NULL); /* a registered plug-in filter */
    make_dataset(file, "plugin", 2, dim, H5T_STD_I64LE, H5T_NATIVE_INT64, create, NULL);
    make_dataset(file, "vast", 2, vast, H5T_STD_I64LE, H5T_NATIVE_INT64, chunked(2, dim, 0), NULL);
    make_dataset(file, "vast_deflated", 2, vast, H5T_STD_I64LE, H5T_NATIVE_INT64, chunked(2, dim, 1), NULL);
    make_dataset(file, "overflow", 2, overflow, H5T_STD_I64LE, H5T_NATIVE_INT64, chunked(2, dim, 0), NULL);
    make_dataset(file, "big_chunk", 2, big_chunk, H5T_STD_I64LE, H5T_NATIVE_INT64, chunked(2, big_chunk, 1), NULL);
    make_dataset(file, "unwritten", 2, dim, H5T_STD_I64LE, H5T_NATIVE_INT64, H5P_DEFAULT, NULL);
    H5Fclose(file);
    dpq_h5 *h = NULL;
    int64_t back[16];
    expect_ok(dpq_h5_open(path, &h));
    expect_ok(dpq_h5_read_rows_i64(h, "plain", 0, 4, back));
    expect_bad(h, "external", "its data lies in other files");
    expect_bad(h, "virtual", "virtual layout");
    expect_bad(h, "nbit", "expected only deflate, shuffle or fletcher32");
    expect_bad(h, "plugin", "filter 32001");
    expect_bad(h, "vast", "its shape claims 140737488355328 bytes, 0 are stored");
    expect_bad(h, "vast_deflated", "its shape claims");
    expect_bad(h, "overflow", "size overflows 64 bits");
    expect_bad(h, "big_chunk", "chunks of 2147483648 bytes");
    expect_bad(h, "unwritten", "incomplete or forged");
    dpq_h5_close(&h);
}

static void refused_types(void **state)
{
    const char *path = in_folder(state, "a.h5");
    const hsize_t dim[4] = {2, 2, 2, 2};
    const int64_t values[16] = {0};
    hid_t file = make_file(path);
    hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, 8);
    hid_t compound = H5Tcreate(H5T_COMPOUND, 8);
    H5Tinsert(compound, "x", 0, H5T_NATIVE_INT64);
    make_dataset(file, "scalar", 0, NULL, H5T_STD_I64LE, H5T_NATIVE_INT64, H5P_DEFAULT, values);
    make_dataset(file, "rank4", 4, dim, H5T_STD_I64LE, H5T_NATIVE_INT64, H5P_DEFAULT, values);
    make_dataset(file, "rank3", 3, dim, H5T_STD_I64LE, H5T_NATIVE_INT64, H5P_DEFAULT, values);
    make_dataset(file, "rank1", 1, dim, H5T_STD_I64LE, H5T_NATIVE_INT64, H5P_DEFAULT, values);
    make_dataset(file, "text", 2, dim, text, text, H5P_DEFAULT, values);
    make_dataset(file, "compound", 2, dim, compound, compound, H5P_DEFAULT, values);
    H5Tclose(text);
    H5Tclose(compound);
    H5Fclose(file);
    dpq_h5 *h = NULL;
    int64_t back[16];
    expect_ok(dpq_h5_open(path, &h));
    expect_bad(h, "scalar", "rank 0, expected an array of 1 to 3 dimensions");
    expect_bad(h, "rank4", "rank 4");
    expect_bad(h, "text", "expected integers of 1 to 8 or floats");
    expect_bad(h, "compound", "expected integers of 1 to 8 or floats");
    expect_error(dpq_h5_read_rows_i64(h, "rank3", 0, 1, back), DPQ_E_INPUT, "3 dimensions of integers, expected 2");
    expect_error(dpq_h5_read_rows_i64(h, "rank1", 0, 1, back), DPQ_E_INPUT, "1 dimensions of integers, expected 2");
    dpq_h5_close(&h);
}

static void attributes(void **state)
{
    const char *path = in_folder(state, "a.h5");
    const hsize_t two = 2;
    const double values[2] = {2.5, 3.5};
    hid_t file = make_file(path);
    hid_t scalar = H5Screate(H5S_SCALAR);
    hid_t pair = H5Screate_simple(1, &two, NULL);
    hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, 8);
    hid_t a = H5Acreate2(file, "one", H5T_IEEE_F32BE, scalar, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(a, H5T_NATIVE_DOUBLE, values);
    H5Aclose(a);
    a = H5Acreate2(file, "two", H5T_IEEE_F64LE, pair, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(a, H5T_NATIVE_DOUBLE, values);
    H5Aclose(a);
    a = H5Acreate2(file, "text", text, scalar, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(a, text, values);
    H5Aclose(a);
    H5Tclose(text);
    H5Sclose(scalar);
    H5Sclose(pair);
    H5Fclose(file);
    dpq_h5 *h = NULL;
    double value = 0;
    expect_ok(dpq_h5_open(path, &h));
    expect_ok(dpq_h5_attr_f64(h, "one", &value));
    assert_true(value == 2.5);
    expect_error(dpq_h5_attr_f64(h, "two", &value), DPQ_E_INPUT, "attribute two: expected one number");
    expect_error(dpq_h5_attr_f64(h, "text", &value), DPQ_E_INPUT, "attribute text: expected one number");
    expect_error(dpq_h5_attr_f64(h, "none", &value), DPQ_E_INPUT, "no attribute none");
    dpq_h5_close(&h);
}

static void broken_files(void **state)
{
    dpq_h5 *h = NULL;
    const char *path = in_folder(state, "a.h5");
    expect_error(dpq_h5_open(in_folder(state, "none.h5"), &h), DPQ_E_INPUT, "No such file");
    expect_error(dpq_h5_open(*state, &h), DPQ_E_INPUT, "not a regular file");
    put_file(path, "", 0);
    expect_error(dpq_h5_open(path, &h), DPQ_E_INPUT, "a.h5: cannot open: HDF5: ");
    put_file(path, "this is no HDF5 file, only some text of a few words", 51);
    expect_error(dpq_h5_open(path, &h), DPQ_E_INPUT, "signature");
    assert_null(h);
    /* Cut short: the library says so when it opens the file. */
    char *bytes = NULL;
    size_t size = 0;
    expect_ok(dpq_file_read_all("tests/models/tiny/heldout.h5", 1 << 20, &bytes, &size));
    put_file(path, bytes, size - 1000);
    expect_error(dpq_h5_open(path, &h), DPQ_E_INPUT, "truncated");
    /* Damaged index of the chunks, then damaged chunks: refused with the library's words. */
    static const struct {
        size_t from_end; /* where bytes are overwritten */
        size_t bytes;
        const char *part;
    } damages[] = {{113525 / 2, 2000, "cannot find its stored size: HDF5: "},
                   {1000, 500, "cannot read rows [0, 128): HDF5: "}};
    int64_t *ids = malloc(128 * 512 * sizeof *ids);
    for (int i = 0; i < 2; i++) {
        char *damaged = malloc(size);
        memcpy(damaged, bytes, size);
        memset(damaged + size - damages[i].from_end, 0x5a, damages[i].bytes);
        put_file(path, damaged, size);
        free(damaged);
        expect_ok(dpq_h5_open(path, &h));
        expect_error(dpq_h5_read_rows_i64(h, "input_ids", 0, 128, ids), DPQ_E_INPUT, damages[i].part);
        dpq_h5_close(&h);
    }
    free(ids);
    dpq_free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_files), folder_test(plain_datasets),
        folder_test(float_datasets),  folder_test(links_are_not_followed),
        folder_test(refused_storage), folder_test(refused_types),
        folder_test(attributes),      folder_test(broken_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
