/* SPDX-License-Identifier: Apache-2.0 */
/* Writing safetensors: layout, shards, any order of writing, misuse, and reading back with the reader. */
#include "io_test.h"

#include <sys/stat.h>

#include "dpquant/json.h"
#include "dpquant/safetensors.h"

static const dpq_st_decl decls[] = {
    {"b.i8", DPQ_DTYPE_I8, 1, {3}},      {"a.bf16", DPQ_DTYPE_BF16, 2, {3, 5}},
    {"z.i64", DPQ_DTYPE_I64, 1, {2}},    {"a.f32 \"\xc3\xa9\"", DPQ_DTYPE_F32, 0, {0}},
    {"empty", DPQ_DTYPE_F16, 2, {0, 7}}, {"a.i8", DPQ_DTYPE_I8, 2, {1, 2}},
};
#define DECLS (sizeof decls / sizeof decls[0])
static const size_t sizes[DECLS] = {3, 30, 16, 4, 0, 2};

static const unsigned char *pattern(size_t i)
{
    static unsigned char bytes[64];
    for (size_t k = 0; k < sizeof bytes; k++) {
        bytes[k] = (unsigned char)(i * 41 + k * 7 + 1);
    }
    return bytes;
}

static void put_all(dpq_st_writer *w, bool backwards)
{
    for (size_t k = 0; k < DECLS; k++) {
        size_t i = backwards ? DECLS - 1 - k : k;
        expect_ok(dpq_st_writer_put(w, decls[i].name, pattern(i), sizes[i]));
    }
}

static void check_store(const char *dir, int shards)
{
    dpq_st_store *store = NULL;
    expect_ok(dpq_st_open(dir, &store));
    assert_int_equal(dpq_st_count(store), DECLS);
    assert_int_equal(dpq_st_shard_count(store), shards);
    for (size_t i = 0; i < DECLS; i++) {
        unsigned char bytes[64];
        const dpq_st_entry *e = dpq_st_find(store, decls[i].name);
        assert_non_null(e);
        assert_int_equal(e->dtype, decls[i].dtype);
        assert_int_equal(e->rank, decls[i].rank);
        assert_int_equal(e->bytes, sizes[i]);
        assert_int_equal(e->offset % dpq_dtype_bytes(e->dtype), 0); /* aligned to its elements in the file */
        for (int d = 0; d < e->rank; d++) {
            assert_int_equal(e->dim[d], decls[i].dim[d]);
        }
        expect_ok(dpq_st_read(store, e, bytes));
        assert_memory_equal(bytes, pattern(i), sizes[i]);
    }
    dpq_st_close(&store);
}

static uint64_t folder_bytes(void **state)
{
    dpq_str_list names = {0};
    uint64_t total = 0;
    expect_ok(dpq_dir_list(*state, &names));
    for (size_t i = 0; i < names.count; i++) {
        struct stat info;
        assert_int_equal(stat(in_folder(state, names.items[i]), &info), 0);
        total += (uint64_t)info.st_size;
    }
    dpq_str_list_fini(&names);
    return total;
}

static size_t folder_count(void **state)
{
    dpq_str_list names = {0};
    expect_ok(dpq_dir_list(*state, &names));
    size_t n = names.count;
    dpq_str_list_fini(&names);
    return n;
}

static void one_file(void **state)
{
    dpq_st_writer *w = NULL;
    char *file = NULL;
    size_t size = 0;
    uint64_t planned = 0;
    int shards = 0;
    expect_ok(dpq_st_layout_bytes(decls, DECLS, 1 << 20, &planned, &shards));
    assert_int_equal(shards, 1);
    expect_ok(dpq_st_writer_create(*state, decls, DECLS, 1 << 20, &w));
    put_all(w, false);
    expect_ok(dpq_st_writer_finish(&w));
    assert_null(w);
    assert_int_equal(folder_bytes(state), planned);
    assert_int_equal(folder_count(state), 1);
    check_store(*state, 1);
    expect_ok(dpq_file_read_all(in_folder(state, "model.safetensors"), 1 << 20, &file, &size));
    /* The exact header: element size first, then name; 8 + length divides by 8; blanks at the end. */
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"z.i64\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]},"
                                 "\"a.f32 \\\"\xc3\xa9\\\"\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[16,20]},"
                                 "\"a.bf16\":{\"dtype\":\"BF16\",\"shape\":[3,5],\"data_offsets\":[20,50]},"
                                 "\"empty\":{\"dtype\":\"F16\",\"shape\":[0,7],\"data_offsets\":[50,50]},"
                                 "\"a.i8\":{\"dtype\":\"I8\",\"shape\":[1,2],\"data_offsets\":[50,52]},"
                                 "\"b.i8\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[52,55]}}";
    uint64_t length = 0;
    memcpy(&length, file, 8);
    assert_int_equal(length % 8, 0);
    assert_true(length >= sizeof header - 1 && length < sizeof header - 1 + 8);
    assert_memory_equal(file + 8, header, sizeof header - 1);
    for (size_t i = sizeof header - 1; i < length; i++) {
        assert_int_equal(file[8 + i], ' ');
    }
    dpq_free(file);
}

/* Padding for all lengths modulo 8. */
static void header_padding(void **state)
{
    for (size_t n = 1; n <= 9; n++) {
        char name[10] = "nnnnnnnnn";
        name[n] = '\0';
        dpq_st_decl decl = {name, DPQ_DTYPE_U8, 1, {1}};
        dpq_st_writer *w = NULL;
        dpq_st_store *store = NULL;
        uint64_t length = 0;
        size_t size = 0;
        char *file = NULL;
        expect_ok(dpq_st_writer_create(*state, &decl, 1, 100, &w));
        expect_ok(dpq_st_writer_put(w, name, "x", 1));
        expect_ok(dpq_st_writer_finish(&w));
        expect_ok(dpq_file_read_all(in_folder(state, "model.safetensors"), 1 << 20, &file, &size));
        memcpy(&length, file, 8);
        assert_int_equal(length % 8, 0);
        assert_int_equal(size, 8 + length + 1);
        dpq_free(file);
        expect_ok(dpq_st_open(*state, &store));
        dpq_st_close(&store);
        assert_int_equal(unlink(in_folder(state, "model.safetensors")), 0);
    }
}

/* 3 | 30 | 16 4 0 | 2 bytes in the order given, at most 20 a shard; 30 alone is over the limit. */
static void several_shards(void **state)
{
    dpq_st_writer *w = NULL;
    dpq_json *index = NULL;
    uint64_t planned = 0;
    int shards = 0;
    expect_ok(dpq_st_layout_bytes(decls, DECLS, 20, &planned, &shards));
    assert_int_equal(shards, 4);
    expect_ok(dpq_st_writer_create(*state, decls, DECLS, 20, &w));
    put_all(w, true);
    assert_false(dpq_path_exists(in_folder(state, "model.safetensors.index.json")));
    expect_ok(dpq_st_writer_finish(&w));
    assert_int_equal(folder_bytes(state), planned);
    assert_int_equal(folder_count(state), 5);
    check_store(*state, 4);
    expect_ok(dpq_json_read_file(in_folder(state, "model.safetensors.index.json"), 1 << 20, &index));
    int64_t total = 0;
    expect_ok(dpq_json_opt_int(dpq_json_member(index, "metadata"), "index", "total_size", &total, NULL));
    assert_int_equal(total, 55);
    const dpq_json *map = dpq_json_member(index, "weight_map");
    static const char *const names[] = {"a.bf16", "a.f32 \"\xc3\xa9\"", "a.i8", "b.i8", "empty", "z.i64"};
    static const int shard[] = {2, 3, 4, 1, 3, 3};
    assert_int_equal(dpq_json_size(map), DECLS);
    for (size_t i = 0; i < DECLS; i++) {
        const dpq_json *value = NULL;
        char expected[64];
        snprintf(expected, sizeof expected, "model-%05d-of-00004.safetensors", shard[i]);
        assert_string_equal(dpq_json_key(map, i, &value), names[i]);
        assert_string_equal(dpq_json_string(value), expected);
    }
    dpq_json_destroy(&index);
}

static void shard_limits(void **state)
{
    static const struct {
        uint64_t limit;
        int shards;
    } cases[] = {{55, 1}, {54, 2}, {33, 2}, {32, 3}, {1, 5}, {0, 5}, {UINT64_MAX, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t bytes = 0;
        int shards = 0;
        expect_ok(dpq_st_layout_bytes(decls, DECLS, cases[i].limit, &bytes, &shards));
        assert_int_equal(shards, cases[i].shards);
    }
}

/* Order of writing changes no byte. */
static void order_does_not_matter(void **state)
{
    for (int pass = 0; pass < 2; pass++) {
        dpq_st_writer *w = NULL;
        const char *dir = in_folder(state, pass == 0 ? "forth" : "back");
        expect_ok(dpq_dir_create(dir));
        expect_ok(dpq_st_writer_create(dir, decls, DECLS, 35, &w));
        put_all(w, pass == 1);
        expect_ok(dpq_st_writer_finish(&w));
    }
    dpq_str_list names = {0};
    expect_ok(dpq_dir_list(in_folder(state, "forth"), &names));
    assert_true(names.count > 2);
    for (size_t i = 0; i < names.count; i++) {
        char path[64];
        char *one = NULL;
        char *two = NULL;
        size_t one_size = 0;
        size_t two_size = 0;
        snprintf(path, sizeof path, "forth/%.50s", names.items[i]);
        expect_ok(dpq_file_read_all(in_folder(state, path), 1 << 20, &one, &one_size));
        snprintf(path, sizeof path, "back/%.50s", names.items[i]);
        expect_ok(dpq_file_read_all(in_folder(state, path), 1 << 20, &two, &two_size));
        assert_int_equal(one_size, two_size);
        assert_memory_equal(one, two, one_size);
        dpq_free(one);
        dpq_free(two);
    }
    dpq_str_list_fini(&names);
}

static void no_tensors(void **state)
{
    dpq_st_writer *w = NULL;
    dpq_st_store *store = NULL;
    expect_ok(dpq_st_writer_create(*state, NULL, 0, 100, &w));
    expect_error(dpq_st_writer_put(w, "a", "", 0), DPQ_E_BUG, "not declared");
    expect_ok(dpq_st_writer_finish(&w));
    expect_ok(dpq_st_open(*state, &store));
    assert_int_equal(dpq_st_count(store), 0);
    dpq_st_close(&store);
}

static void misuse(void **state)
{
    dpq_st_writer *w = NULL;
    expect_ok(dpq_st_writer_create(*state, decls, DECLS, 20, &w));
    assert_int_equal(folder_count(state), 4);
    expect_error(dpq_st_writer_put(w, "a.i9", "", 0), DPQ_E_BUG, "tensor a.i9 was not declared");
    expect_error(dpq_st_writer_put(w, "b.i8", pattern(0), 4), DPQ_E_BUG, "4 bytes given, 3 declared");
    expect_ok(dpq_st_writer_put(w, "b.i8", pattern(0), 3));
    expect_error(dpq_st_writer_put(w, "b.i8", pattern(0), 3), DPQ_E_BUG, "written twice");
    expect_error(dpq_st_writer_finish(&w), DPQ_E_BUG, "was declared but not written");
    assert_null(w);
    assert_int_equal(folder_count(state), 0); /* nothing that looks like a model stays */
    expect_ok(dpq_st_writer_create(*state, decls, DECLS, 20, &w));
    dpq_st_writer_abandon(&w);
    assert_null(w);
    dpq_st_writer_abandon(&w);
    assert_int_equal(folder_count(state), 0);
}

static void bad_declarations(void **state)
{
    static const struct {
        dpq_st_decl decl[2];
        size_t n;
        const char *part;
    } cases[] = {
        {{{"a", DPQ_DTYPE_U8, 1, {1}}, {"a", DPQ_DTYPE_I8, 1, {2}}}, 2, "tensor a is declared twice"},
        {{{"", DPQ_DTYPE_U8, 1, {1}}}, 1, "cannot be written"},
        {{{NULL, DPQ_DTYPE_U8, 1, {1}}}, 1, "cannot be written"},
        {{{"a\n", DPQ_DTYPE_U8, 1, {1}}}, 1, "\"a?\" cannot be written"},
        {{{"__metadata__", DPQ_DTYPE_U8, 1, {1}}}, 1, "cannot be written"},
        {{{"a", DPQ_DTYPE_U8, 9, {1}}}, 1, "rank 9"},
        {{{"a", DPQ_DTYPE_U8, -1, {1}}}, 1, "rank -1"},
        {{{"a", DPQ_DTYPE_COUNT, 1, {1}}}, 1, "dtype number"},
        {{{"a", DPQ_DTYPE_U8, 1, {-1}}}, 1, "dimension 0 is -1"},
        {{{"a", DPQ_DTYPE_F32, 2, {4294967296, 4294967296}}}, 1, "the size overflows"},
        {{{"a", DPQ_DTYPE_U8, 1, {INT64_MAX}}, {"b", DPQ_DTYPE_U8, 1, {2}}}, 2, "all tensors overflow"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dpq_st_writer *w = NULL;
        uint64_t bytes = 0;
        int shards = 0;
        expect_error(dpq_st_writer_create(*state, cases[i].decl, cases[i].n, 100, &w), DPQ_E_BUG, cases[i].part);
        assert_null(w);
        expect_error(dpq_st_layout_bytes(cases[i].decl, cases[i].n, 100, &bytes, &shards), DPQ_E_BUG, cases[i].part);
        assert_int_equal(folder_count(state), 0);
    }
}

/* A header over 100,000,000 bytes would be refused by every reader, so it is refused before it is written. */
static void header_over_the_cap(void **state)
{
    size_t n = 100000000;
    char *name = malloc(n + 1);
    uint64_t bytes = 0;
    int shards = 0;
    (void)state;
    memset(name, 'n', n);
    name[n] = '\0';
    dpq_st_decl decl = {name, DPQ_DTYPE_U8, 1, {1}};
    expect_error(dpq_st_layout_bytes(&decl, 1, 100, &bytes, &shards), DPQ_E_UNSUPPORTED,
                 "header would exceed 100000000");
    free(name);
}

static void disk_faults(void **state)
{
    dpq_st_writer *w = NULL;
    expect_error(dpq_st_writer_create(in_folder(state, "none"), decls, DECLS, 100, &w), DPQ_E_DISK, "cannot create");
    dpq_st_decl huge = {"huge", DPQ_DTYPE_U8, 1, {(int64_t)1 << 62}};
    expect_error(dpq_st_writer_create(*state, &huge, 1, 100, &w), DPQ_E_DISK, "cannot reserve");
    assert_int_equal(folder_count(state), 0);
    /* The second shard's name is taken: the first one is removed again, the stranger stays. */
    put_file(in_folder(state, "model-00002-of-00004.safetensors"), "mine", 4);
    expect_error(dpq_st_writer_create(*state, decls, DECLS, 20, &w), DPQ_E_DISK, "File exists");
    assert_null(w);
    assert_int_equal(folder_count(state), 1);
}

/* A file changed behind the writer's back is found when it is read back. */
static void finish_reads_back(void **state)
{
    dpq_st_writer *w = NULL;
    expect_ok(dpq_st_writer_create(*state, decls, DECLS, 1000, &w));
    put_all(w, false);
    assert_int_equal(truncate(in_folder(state, "model.safetensors"), 500), 0);
    expect_error(dpq_st_writer_finish(&w), DPQ_E_INPUT, "model.safetensors");
    assert_int_equal(folder_count(state), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        folder_test(one_file),
        folder_test(header_padding),
        folder_test(several_shards),
        cmocka_unit_test(shard_limits),
        folder_test(order_does_not_matter),
        folder_test(no_tensors),
        folder_test(misuse),
        folder_test(bad_declarations),
        cmocka_unit_test(header_over_the_cap),
        folder_test(disk_faults),
        folder_test(finish_reads_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
