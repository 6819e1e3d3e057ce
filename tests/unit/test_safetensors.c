/* SPDX-License-Identifier: Apache-2.0 */
/* Reading safetensors: the demo model, legal oddities, one broken file for each check, folders and indexes. */
#include "io_test.h"

#include "dpquant/safetensors.h"

/* A file with a header of HEADER_BYTES bytes whose length field says LENGTH, and DATA_BYTES counting bytes after it. */
static void put_raw(const char *path, uint64_t length, const char *header, size_t header_bytes, size_t data_bytes)
{
    size_t n = 8 + header_bytes + data_bytes;
    unsigned char *bytes = malloc(n);
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(length >> (8 * i));
    }
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) {
        bytes[8 + header_bytes + i] = (unsigned char)i;
    }
    put_file(path, bytes, n);
    free(bytes);
}

static void put_st(const char *path, const char *header, size_t data_bytes)
{
    put_raw(path, strlen(header), header, strlen(header), data_bytes);
}

static void expect_refused(void **state, const char *part)
{
    dpq_st_store *store = NULL;
    expect_error(dpq_st_open(*state, &store), DPQ_E_INPUT, part);
    assert_null(store);
}

static void demo_model(void **state)
{
    dpq_st_store *store = NULL;
    (void)state;
    expect_ok(dpq_st_open("tests/models/tiny", &store));
    assert_int_equal(dpq_st_shard_count(store), 1);
    assert_string_equal(dpq_st_shard_name(store, 0), "model.safetensors");
    assert_int_equal(strlen(dpq_st_digest(store)), 64);
    uint64_t total = 0;
    for (size_t i = 0; i < dpq_st_count(store); i++) {
        const dpq_st_entry *e = dpq_st_at(store, i);
        assert_ptr_equal(dpq_st_find(store, e->name), e);
        assert_true(i == 0 || strcmp(dpq_st_at(store, i - 1)->name, e->name) < 0);
        total += e->bytes;
    }
    assert_int_equal(dpq_st_count(store), 2 + 4 * 9);
    const dpq_st_entry *e = dpq_st_find(store, "model.embed_tokens.weight");
    assert_non_null(e);
    assert_int_equal(e->dtype, DPQ_DTYPE_BF16);
    assert_int_equal(e->rank, 2);
    assert_int_equal(e->dim[0], 2048);
    assert_int_equal(e->dim[1], 256);
    assert_int_equal(e->bytes, 2048 * 256 * 2);
    assert_null(dpq_st_find(store, "lm_head.weight"));
    unsigned char *whole = malloc(e->bytes);
    unsigned char *rows = malloc(3 * 512);
    expect_ok(dpq_st_read(store, e, whole));
    expect_ok(dpq_st_read_rows(store, e, 100, 103, rows));
    assert_memory_equal(rows, whole + 100 * 512, 3 * 512);
    expect_ok(dpq_st_read_rows(store, e, 2048, 2048, rows));
    expect_error(dpq_st_read_rows(store, e, 2047, 2049, rows), DPQ_E_BUG, "rows [2047, 2049) of 2048");
    expect_error(dpq_st_read_rows(store, e, -1, 1, rows), DPQ_E_BUG, "rows [-1, 1)");
    /* The data begins where the file says. */
    char *file = NULL;
    size_t size = 0;
    expect_ok(dpq_file_read_all("tests/models/tiny/model.safetensors", 10 << 20, &file, &size));
    assert_int_equal(size - total, 8 + *(const uint64_t *)(const void *)file);
    assert_memory_equal(whole, file + e->offset, e->bytes);
    dpq_free(file);
    free(whole);
    free(rows);
    dpq_st_close(&store);
    assert_null(store);
    dpq_st_close(&store);
}

/* Header of odd length and padding, tensors not in file order, rank 0, empty tensors, unaligned data, UTF-8 names. */
static void legal_oddities(void **state)
{
    dpq_st_store *store = NULL;
    const char *path = in_folder(state, "model.safetensors");
    put_st(
        path,
        "{\"z\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
        "\"__metadata__\":{\"format\":\"pt\"},"
        "\"scalar\":{\"shape\":[],\"dtype\":\"F32\",\"data_offsets\":[3,7]},"
        "\"empty\":{\"dtype\":\"F32\",\"shape\":[0,4],\"data_offsets\":[3,3]},"
        "\"vast\":{\"dtype\":\"I64\",\"shape\":[4611686018427387904,4,0],\"data_offsets\":[9,9]},"
        "\"\\u00e9 \\\"q\\\"\":{\"dtype\":\"BF16\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[7,9],\"more\":1}}   ",
        9);
    expect_ok(dpq_st_open(*state, &store));
    assert_int_equal(dpq_st_count(store), 5);
    unsigned char bytes[4] = {0};
    const dpq_st_entry *e = dpq_st_find(store, "scalar");
    assert_int_equal(e->rank, 0);
    expect_ok(dpq_st_read(store, e, bytes));
    assert_memory_equal(bytes, "\3\4\5\6", 4);
    expect_error(dpq_st_read_rows(store, e, 0, 0, bytes), DPQ_E_BUG, "rows");
    e = dpq_st_find(store, "empty");
    assert_int_equal(e->bytes, 0);
    expect_ok(dpq_st_read(store, e, bytes));
    expect_ok(dpq_st_read_rows(store, e, 0, 0, bytes));
    assert_int_equal(dpq_st_find(store, "vast")->bytes, 0);
    assert_int_equal(dpq_st_find(store, "\xc3\xa9 \"q\"")->rank, 8);
    /* The file shrinks after it was checked: an error with file and tensor, no crash. */
    assert_int_equal(truncate(path, 60), 0);
    expect_error(dpq_st_read(store, dpq_st_find(store, "z"), bytes), DPQ_E_INPUT,
                 "model.safetensors: tensor z: file ends");
    dpq_st_close(&store);
    put_st(path, "{}", 0);
    expect_ok(dpq_st_open(*state, &store));
    assert_int_equal(dpq_st_count(store), 0);
    assert_null(dpq_st_find(store, "a"));
    dpq_st_close(&store);
}

#define ONE(dtype, shape, offsets) "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(a_offsets, b_offsets)                                                                                      \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" a_offsets                                               \
    "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" b_offsets "}}"

/* One broken header for each check; the texts are all different, so a case proves which check fired. */
static void broken_headers(void **state)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *part;
    } cases[] = {
        {" {}", 0, "header begins with byte 0x20"},
        {"[]", 0, "header begins with byte 0x5b"},
        {"{\"a\":", 0, "header:1:"},
        {"{}\1", 0, "header:1:"},
        {"{}{}", 0, "end of file expected"},
        {"{\"\xff\":1}", 0, "unable to decode byte 0xff"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "duplicate object key"},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "duplicate object key"},
        {"{\"\\u0000\":{}}", 0, "NUL"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "__metadata__ key \"k\" is not a string"},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "empty name"},
        {"{\"a\\n\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "tensor a?: control character"},
        {"{\"a\":7}", 0, "tensor a: its header entry is not an object"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "tensor a: \"dtype\" is missing"},
        {ONE("5", "[1]", "[0,1]"), 1, "\"dtype\" is not a string"},
        {ONE("\"F5\"", "[1]", "[0,1]"), 1, "dtype \"F5\" is unknown"},
        {ONE("\"f32\"", "[1]", "[0,4]"), 4, "dtype \"f32\" is unknown"},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "\"shape\" is missing"},
        {ONE("\"U8\"", "1", "[0,1]"), 1, "\"shape\" is not an array"},
        {ONE("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "9 dimensions, expected at most 8"},
        {ONE("\"U8\"", "[1,-1]", "[0,1]"), 1, "dimension 1 is not a whole number"},
        {ONE("\"U8\"", "[1.0]", "[0,1]"), 1, "dimension 0 is not a whole number"},
        {ONE("\"U8\"", "[18446744073709551616]", "[0,1]"), 1, "dimension 0 is not a whole number"},
        {ONE("\"U8\"", "[NaN]", "[0,1]"), 1, "dimension 0 is not a whole number"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "\"data_offsets\" is missing"},
        {ONE("\"U8\"", "[1]", "[0]"), 1, "\"data_offsets\" is not an array of two"},
        {ONE("\"U8\"", "[1]", "[0,1,2]"), 1, "\"data_offsets\" is not an array of two"},
        {ONE("\"U8\"", "[1]", "[-1,0]"), 1, "data offset 0 is not a whole number"},
        {ONE("\"U8\"", "[1]", "[0,\"1\"]"), 1, "data offset 1 is not a whole number"},
        {ONE("\"U8\"", "[1]", "[1,0]"), 1, "data ends at 0 before it begins at 1"},
        {ONE("\"U8\"", "[2]", "[0,2]"), 1, "data ends at 2, the file has 1 bytes of data"},
        {ONE("\"U8\"", "[2]", "[9223372036854775800,9223372036854775802]"), 2, "data ends at 9223372036854775802"},
        {ONE("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4, "product of its dimensions overflows"},
        {ONE("\"F32\"", "[4611686018427387904]", "[0,0]"), 0, "product of its dimensions overflows"},
        {ONE("\"F32\"", "[2]", "[0,4]"), 4, "need 8 bytes, data_offsets give 4"},
        {ONE("\"U8\"", "[]", "[0,0]"), 0, "need 1 bytes, data_offsets give 0"},
        {ONE("\"U8\"", "[0]", "[0,1]"), 1, "need 0 bytes, data_offsets give 1"},
        {TWO("[0,4]", "[3,7]"), 7, "tensor b: overlaps the tensor before it by 1 bytes"},
        {TWO("[0,4]", "[0,4]"), 4, "tensor b: overlaps the tensor before it by 4 bytes"},
        {TWO("[0,4]", "[5,9]"), 9, "tensor b: a hole of 1 bytes before it"},
        {TWO("[5,9]", "[1,5]"), 9, "tensor b: a hole of 1 bytes before it"},
        {TWO("[0,4]", "[4,8]"), 9, "1 bytes after the last tensor"},
        {"{}", 3, "3 bytes after the last tensor"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_st(in_folder(state, "model.safetensors"), cases[i].header, cases[i].data_bytes);
        expect_refused(state, cases[i].part);
        assert_non_null(strstr(dpq_error_last()->text, "model.safetensors: "));
    }
}

static void broken_lengths(void **state)
{
    const char *path = in_folder(state, "model.safetensors");
    put_file(path, "", 0);
    expect_refused(state, "0 bytes, too short for the 8-byte header length");
    put_file(path, "\2\0\0\0\0\0\0", 7);
    expect_refused(state, "7 bytes, too short");
    put_raw(path, 0, "{}", 2, 0);
    expect_refused(state, "header length 0 is too small");
    put_raw(path, 1, "{", 1, 0);
    expect_refused(state, "header length 1 is too small");
    put_raw(path, 3, "{}", 2, 0);
    expect_refused(state, "header length 3 reaches past the end of the file of 10 bytes");
    put_raw(path, 100000000, "{}", 2, 0);
    expect_refused(state, "header length 100000000 reaches past the end");
    put_raw(path, 100000001, "{}", 2, 0);
    expect_refused(state, "header length 100000001, expected at most 100000000");
    put_raw(path, UINT64_MAX, "{}", 2, 0);
    expect_refused(state, "header length 18446744073709551615, expected at most");
    /* Over the cap even though the file (with holes) is long enough. */
    put_raw(path, 100000001, "{}", 2, 0);
    assert_int_equal(truncate(path, 100000009), 0);
    expect_refused(state, "expected at most 100000000");
}

/* Every cut and every changed byte of a small good file: refused or read, never a crash. */
static void damaged_files(void **state)
{
    static const char header[] = TWO("[0,4]", "[4,8]");
    const char *path = in_folder(state, "model.safetensors");
    char bytes[256];
    size_t n = 8 + sizeof header - 1 + 8;
    memset(bytes, 0, sizeof bytes);
    bytes[0] = (char)(sizeof header - 1);
    memcpy(bytes + 8, header, sizeof header - 1);
    dpq_st_store *store = NULL;
    for (size_t cut = 0; cut < n; cut++) {
        put_file(path, bytes, cut);
        expect_refused(state, "model.safetensors");
    }
    int refused = 0;
    for (size_t at = 0; at < n; at++) {
        static const unsigned char flips[] = {0x01, 0x02, 0x10, 0x80, 0xff};
        for (size_t f = 0; f < sizeof flips; f++) {
            bytes[at] = (char)(bytes[at] ^ flips[f]);
            put_file(path, bytes, n);
            dpq_status st = dpq_st_open(*state, &store);
            assert_true(st == DPQ_OK || st == DPQ_E_INPUT);
            refused += st != DPQ_OK;
            dpq_st_close(&store);
            bytes[at] = (char)(bytes[at] ^ flips[f]);
        }
    }
    assert_true(refused > 500);
}

#define U8_TENSOR(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}"

static void which_files(void **state)
{
    dpq_st_store *store = NULL;
    expect_error(dpq_st_open(in_folder(state, "none"), &store), DPQ_E_INPUT, "cannot open folder");
    expect_refused(state, "no *.safetensors file");
    put_file(in_folder(state, "pytorch_model-00001-of-00002.bin"), "x", 1);
    expect_refused(state, "the weights are in pytorch_model-00001-of-00002.bin, a pickle file");
    put_st(in_folder(state, "other.safetensors"), U8_TENSOR("o"), 2);
    expect_ok(dpq_st_open(*state, &store));
    assert_string_equal(dpq_st_shard_name(store, 0), "other.safetensors");
    dpq_st_close(&store);
    put_st(in_folder(state, "second.safetensors"), U8_TENSOR("s"), 2);
    expect_refused(state, "2 *.safetensors files but no model.safetensors.index.json");
    put_st(in_folder(state, "model.safetensors"), U8_TENSOR("m"), 2);
    expect_ok(dpq_st_open(*state, &store));
    assert_int_equal(dpq_st_count(store), 1);
    assert_non_null(dpq_st_find(store, "m"));
    dpq_st_close(&store);
}

static void put_text(const char *path, const char *text)
{
    put_file(path, text, strlen(text));
}

static void shards_and_index(void **state)
{
    dpq_st_store *store = NULL;
    unsigned char bytes[2];
    char digest[65];
    put_st(in_folder(state, "b.safetensors"), U8_TENSOR("x"), 2);
    put_st(in_folder(state, "a.safetensors"), U8_TENSOR("y"), 2);
    const char *index = in_folder(state, "model.safetensors.index.json");
    put_text(index, "{\"metadata\": {\"total_size\": 4}, \"weight_map\": "
                    "{\"y\": \"a.safetensors\", \"x\": \"b.safetensors\"}}");
    expect_ok(dpq_st_open(*state, &store));
    assert_int_equal(dpq_st_count(store), 2);
    assert_int_equal(dpq_st_shard_count(store), 2);
    assert_string_equal(dpq_st_shard_name(store, dpq_st_find(store, "x")->shard), "b.safetensors");
    expect_ok(dpq_st_read(store, dpq_st_find(store, "y"), bytes));
    assert_memory_equal(bytes, "\0\1", 2);
    strcpy(digest, dpq_st_digest(store));
    dpq_st_close(&store);
    /* The digest follows the headers, not the order or total of the index (a wrong total is only a warning). */
    put_text(index, "{\"metadata\": {\"total_size\": 5}, \"weight_map\": "
                    "{\"x\": \"b.safetensors\", \"y\": \"a.safetensors\"}}");
    expect_ok(dpq_st_open(*state, &store));
    assert_string_equal(digest, dpq_st_digest(store));
    dpq_st_close(&store);
    put_st(in_folder(state, "b.safetensors"), "{\"x\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2);
    expect_ok(dpq_st_open(*state, &store));
    assert_string_not_equal(digest, dpq_st_digest(store));
    dpq_st_close(&store);
}

static void broken_indexes(void **state)
{
    static const struct {
        const char *index;
        const char *part;
    } cases[] = {
        {"[]", "the index is not a JSON object"},
        {"{", "index.json:1:"},
        {"{\"weight_map\": {\"x\": \"a.safetensors\", \"x\": \"a.safetensors\"}}", "duplicate object key"},
        {"{\"metadata\": {}}", "\"weight_map\" is missing"},
        {"{\"weight_map\": []}", "\"weight_map\" is not an object"},
        {"{\"weight_map\": {}}", "\"weight_map\" is empty"},
        {"{\"weight_map\": {\"x\": 1}}", "weight_map key \"x\": expected a file name"},
        {"{\"weight_map\": {\"x\": \"\"}}", "shard \"\" is not a plain file name"},
        {"{\"weight_map\": {\"x\": \"../a.safetensors\"}}", "is not a plain file name"},
        {"{\"weight_map\": {\"x\": \"/etc/a.safetensors\"}}", "is not a plain file name"},
        {"{\"weight_map\": {\"x\": \"..safetensors\"}}", "is not a plain file name"},
        {"{\"weight_map\": {\"x\": \"sub\\\\a.safetensors\"}}", "is not a plain file name"},
        {"{\"weight_map\": {\"x\": \"a.bin\"}}", "does not end in .safetensors"},
        {"{\"weight_map\": {\"x\": \"missing.safetensors\"}}", "missing.safetensors: cannot open"},
        {"{\"weight_map\": {\"z\": \"a.safetensors\"}}", "tensor z is not in shard a.safetensors but nowhere"},
        {"{\"weight_map\": {\"x\": \"b.safetensors\", \"y\": \"a.safetensors\"}}",
         "tensor x is not in shard b.safetensors but a.safetensors"},
        {"{\"weight_map\": {\"y\": \"b.safetensors\", \"q\": \"c.safetensors\"}}",
         "tensor r of shard c.safetensors is missing in the index"},
        {"{\"weight_map\": {\"x\": \"a.safetensors\", \"y\": \"b.safetensors\", \"w\": \"d.safetensors\"}}",
         "tensor x is in two shards, a.safetensors and d.safetensors"},
    };
    put_st(in_folder(state, "a.safetensors"), U8_TENSOR("x"), 2);
    put_st(in_folder(state, "b.safetensors"), U8_TENSOR("y"), 2);
    put_st(in_folder(state, "c.safetensors"),
           "{\"q\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"r\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
           2);
    put_st(in_folder(state, "d.safetensors"), U8_TENSOR("x"), 2);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_text(in_folder(state, "model.safetensors.index.json"), cases[i].index);
        expect_refused(state, cases[i].part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_model),  folder_test(legal_oddities), folder_test(broken_headers),
        folder_test(broken_lengths),   folder_test(damaged_files),  folder_test(which_files),
        folder_test(shards_and_index), folder_test(broken_indexes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
