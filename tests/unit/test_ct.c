/* SPDX-License-Identifier: Apache-2.0 */
/* compressed-tensors modules: declared shapes, written and read back for odd shapes, widths and symmetries, known words
 * on disk, and files whose tensors do not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "dpquant/file.h"
#include "dpquant/pack.h"

#define MODULE "model.layers.0.mlp.up_proj"

static char folder[256];

static int make_folder(void **state)
{
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/dpquant-ct-XXXXXX", base != NULL ? base : "/tmp");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    return dpq_dir_remove(folder) != DPQ_OK;
}

static uint32_t next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* All codes occur; scales are representable in bf16 and half of them negative. */
static dpq_qweight make_weight(dpq_scheme scheme, int64_t n, int64_t k, dpq_dtype scale_dtype, bool with_g_idx)
{
    dpq_qweight q;
    uint64_t seed = (uint64_t)(n * 1000 + k + scheme.bits);
    int span = 1 << scheme.bits;
    assert_int_equal(dpq_qweight_create(&scheme, n, k, scale_dtype, with_g_idx, &q), DPQ_OK);
    for (int64_t i = 0; i < n * k; i++) {
        ((int8_t *)q.codes.data)[i] = (int8_t)((int)(next_random(&seed) % (uint32_t)span) - span / 2);
    }
    for (int64_t i = 0; i < n * q.groups; i++) {
        float sign = scheme.symmetric && i % 2 == 1 ? -1.0f : 1.0f;
        ((float *)q.scale.data)[i] = sign * (float)(128 + next_random(&seed) % 128) * 0x1p-15f;
        ((int8_t *)q.zero.data)[i] =
            (int8_t)(scheme.symmetric ? 0 : (int)(next_random(&seed) % (uint32_t)span) - span / 2);
    }
    for (int64_t c = 0; with_g_idx && c < k; c++) {
        ((int32_t *)q.g_idx.data)[c] = (int32_t)((k - 1 - c) % q.groups);
    }
    return q;
}

static void write_module(const dpq_qweight *q)
{
    dpq_ct_decls decls;
    dpq_st_writer *writer = NULL;
    dpq_ct_declare(MODULE, &q->scheme, q->n, q->k, q->scale_dtype, q->g_idx.data != NULL, &decls);
    assert_int_equal(dpq_st_writer_create(folder, decls.decls, (size_t)decls.count, 1 << 30, &writer), DPQ_OK);
    assert_int_equal(dpq_ct_write(writer, MODULE, q), DPQ_OK);
    assert_int_equal(dpq_st_writer_finish(&writer), DPQ_OK);
}

static void remove_file(void)
{
    char path[300];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(remove(path), 0);
}

static void check_same_tensor(const dpq_tensor *a, const dpq_tensor *b)
{
    assert_int_equal(a->dtype, b->dtype);
    assert_true(dpq_tensor_same_shape(a, b));
    assert_memory_equal(a->data, b->data, dpq_tensor_bytes(a));
}

static void check_round_trip(dpq_scheme scheme, int64_t n, int64_t k, dpq_dtype scale_dtype, bool with_g_idx)
{
    dpq_qweight q = make_weight(scheme, n, k, scale_dtype, with_g_idx);
    dpq_qweight back;
    dpq_st_store *store = NULL;
    write_module(&q);
    assert_int_equal(dpq_st_open(folder, &store), DPQ_OK);
    assert_int_equal(dpq_st_count(store), (scheme.symmetric ? 3 : 4) + (with_g_idx ? 1 : 0));
    assert_int_equal(dpq_ct_read(store, MODULE, &scheme, with_g_idx, &back), DPQ_OK);
    assert_int_equal(back.n, n);
    assert_int_equal(back.k, k);
    assert_int_equal(back.groups, q.groups);
    assert_int_equal(back.scale_dtype, scale_dtype);
    check_same_tensor(&back.codes, &q.codes);
    check_same_tensor(&back.scale, &q.scale);
    check_same_tensor(&back.zero, &q.zero);
    assert_true((back.g_idx.data != NULL) == with_g_idx);
    if (with_g_idx) {
        check_same_tensor(&back.g_idx, &q.g_idx);
    }
    dpq_qweight_fini(&back);
    dpq_qweight_fini(&q);
    dpq_st_close(&store);
    remove_file();
}

static void test_round_trips(void **state)
{
    (void)state;
    const struct {
        int64_t n, k, group;
    } shapes[] = {{8, 32, 32}, {1, 1, -1}, {13, 64, 32}, {9, 50, 10}, {33, 21, 7}, {3, 35, -1}, {7, 96, 96}};
    for (int bits = 2; bits <= 8; bits++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            for (int symmetric = 0; symmetric < 2; symmetric++) {
                dpq_scheme scheme = {
                    .bits = bits, .group_size = shapes[s].group, .symmetric = symmetric, .signed_scale = symmetric};
                check_round_trip(scheme, shapes[s].n, shapes[s].k, DPQ_DTYPE_BF16, false);
            }
        }
    }
}

static void test_scale_types_and_g_idx(void **state)
{
    (void)state;
    dpq_scheme symmetric = {.bits = 4, .group_size = 16, .symmetric = true, .signed_scale = true};
    dpq_scheme asymmetric = {.bits = 3, .group_size = 16};
    check_round_trip(symmetric, 11, 48, DPQ_DTYPE_F16, false);
    check_round_trip(symmetric, 11, 48, DPQ_DTYPE_F32, true);
    check_round_trip(asymmetric, 11, 48, DPQ_DTYPE_F16, true);
}

static void test_declared_shapes(void **state)
{
    (void)state;
    dpq_ct_decls d;
    dpq_scheme scheme = {.bits = 3, .group_size = 16};
    dpq_ct_declare("a.b", &scheme, 11, 48, DPQ_DTYPE_F16, true, &d);
    const struct {
        const char *name;
        dpq_dtype dtype;
        int rank;
        int64_t dim[2];
    } want[] = {{"a.b.weight_packed", DPQ_DTYPE_I32, 2, {11, 5}},
                {"a.b.weight_scale", DPQ_DTYPE_F16, 2, {11, 3}},
                {"a.b.weight_shape", DPQ_DTYPE_I64, 1, {2, 0}},
                {"a.b.weight_zero_point", DPQ_DTYPE_I32, 2, {2, 3}},
                {"a.b.weight_g_idx", DPQ_DTYPE_I32, 1, {48, 0}}};
    assert_int_equal(d.count, 5);
    for (int i = 0; i < 5; i++) {
        assert_string_equal(d.decls[i].name, want[i].name);
        assert_int_equal(d.decls[i].dtype, want[i].dtype);
        assert_int_equal(d.decls[i].rank, want[i].rank);
        assert_int_equal(d.decls[i].dim[0], want[i].dim[0]);
        assert_int_equal(d.decls[i].dim[1], want[i].dim[1]);
    }
    scheme.symmetric = true;
    scheme.group_size = -1;
    dpq_ct_declare("a.b", &scheme, 11, 48, DPQ_DTYPE_BF16, false, &d);
    assert_int_equal(d.count, 3);
    assert_int_equal(d.decls[1].dim[1], 1);
}

/* The words of docs/FORMATS.md, as they lie in the file: codes along columns, zero points along rows. */
static void test_words_on_disk(void **state)
{
    (void)state;
    dpq_scheme scheme = {.bits = 4, .group_size = 4};
    const int8_t codes[8] = {-8, -7, -1, 0, 1, 2, 7, -3};
    const int8_t zeros[8] = {-8, 0, 3, 7, -1, -2, 1, 2};
    dpq_qweight q = make_weight(scheme, 9, 8, DPQ_DTYPE_BF16, false); /* two groups; row 8 starts a second word */
    dpq_st_store *store = NULL;
    for (int64_t row = 0; row < 9; row++) {
        memcpy((int8_t *)q.codes.data + row * 8, codes, 8);
        ((int8_t *)q.zero.data)[row * 2] = zeros[row % 8];
        ((int8_t *)q.zero.data)[row * 2 + 1] = 7;
    }
    write_module(&q);
    assert_int_equal(dpq_st_open(folder, &store), DPQ_OK);
    uint32_t packed[9], zero[4];
    int64_t shape[2];
    assert_int_equal(dpq_st_read(store, dpq_st_find(store, MODULE ".weight_packed"), packed), DPQ_OK);
    assert_int_equal(dpq_st_read(store, dpq_st_find(store, MODULE ".weight_zero_point"), zero), DPQ_OK);
    assert_int_equal(dpq_st_read(store, dpq_st_find(store, MODULE ".weight_shape"), shape), DPQ_OK);
    for (int row = 0; row < 9; row++) {
        assert_int_equal(packed[row], 0x5FA98710u);
    }
    assert_int_equal(zero[0], 0xA967FB80u);
    assert_int_equal(zero[1], 0xFFFFFFFFu);
    assert_int_equal(zero[2], 0x0u); /* row 8: code 0, padding 0 */
    assert_int_equal(zero[3], 0xFu);
    assert_true(shape[0] == 9 && shape[1] == 8);
    dpq_st_close(&store);
    dpq_qweight_fini(&q);
    remove_file();
}

/* ---- files that do not fit ---- */

/* Tensors of a 2 x 16 module, 4 bits, groups of 8; a case changes one of them. */
typedef struct {
    const char *what;
    int index; /* tensor to change; -1: none */
    bool drop;
    dpq_dtype dtype;
    int rank;
    int64_t dim[2];
    dpq_status status;
    const char *words; /* part of the message */
} bad_case;

static void write_changed(const bad_case *c, const int64_t shape[2], int32_t g_idx)
{
    static const int64_t zero_bytes[64];
    int32_t index[16] = {0};
    dpq_scheme scheme = {.bits = 4, .group_size = 8};
    dpq_ct_decls d;
    dpq_st_writer *writer = NULL;
    dpq_ct_declare(MODULE, &scheme, 2, 16, DPQ_DTYPE_BF16, true, &d);
    index[15] = g_idx;
    if (c->index >= 0) {
        dpq_st_decl *decl = &d.decls[c->index];
        decl->dtype = c->dtype;
        decl->rank = c->rank;
        memcpy(decl->dim, c->dim, sizeof c->dim);
        if (c->drop) {
            d.decls[c->index] = d.decls[d.count - 1];
            d.count--;
        }
    }
    assert_int_equal(dpq_st_writer_create(folder, d.decls, (size_t)d.count, 1 << 30, &writer), DPQ_OK);
    for (int i = 0; i < d.count; i++) {
        size_t bytes = dpq_dtype_bytes(d.decls[i].dtype);
        for (int r = 0; r < d.decls[i].rank; r++) {
            bytes *= (size_t)d.decls[i].dim[r];
        }
        const char *name = d.decls[i].name;
        const void *data = strstr(name, "weight_shape") ? (const void *)shape
                           : strstr(name, "g_idx")      ? (const void *)index
                                                        : zero_bytes;
        assert_int_equal(dpq_st_writer_put(writer, name, data, bytes), DPQ_OK);
    }
    assert_int_equal(dpq_st_writer_finish(&writer), DPQ_OK);
}

static void expect_failure(const bad_case *c, const dpq_scheme *scheme, bool with_g_idx)
{
    dpq_st_store *store = NULL;
    dpq_qweight q;
    memset(&q, 0x5a, sizeof q);
    assert_int_equal(dpq_st_open(folder, &store), DPQ_OK);
    dpq_status st = dpq_ct_read(store, MODULE, scheme, with_g_idx, &q);
    if (st != c->status || (st != DPQ_OK && strstr(dpq_error_last()->text, c->words) == NULL)) {
        fail_msg("%s: status %s, text '%s'", c->what, dpq_status_name(st), dpq_error_last()->text);
    }
    assert_true(st == DPQ_OK || q.codes.data == NULL);
    dpq_qweight_fini(&q);
    dpq_st_close(&store);
    remove_file();
}

static void test_tensors_that_do_not_fit(void **state)
{
    (void)state;
    const dpq_scheme scheme = {.bits = 4, .group_size = 8};
    const int64_t shape[2] = {2, 16};
    const bad_case cases[] = {
        {"as declared", -1, false, 0, 0, {0}, DPQ_OK, ""},
        {"no codes", 0, true, 0, 0, {0}, DPQ_E_INPUT, "weight_packed"},
        {"codes I16", 0, false, DPQ_DTYPE_I16, 2, {2, 2}, DPQ_E_INPUT, "weight_packed"},
        {"codes too narrow", 0, false, DPQ_DTYPE_I32, 2, {2, 1}, DPQ_E_INPUT, "weight_packed"},
        {"codes rank 1", 0, false, DPQ_DTYPE_I32, 1, {4, 0}, DPQ_E_INPUT, "weight_packed"},
        {"no scale", 1, true, 0, 0, {0}, DPQ_E_INPUT, "weight_scale"},
        {"scale F64", 1, false, DPQ_DTYPE_F64, 2, {2, 2}, DPQ_E_INPUT, "weight_scale"},
        {"scale of one group",
         1,
         false,
         DPQ_DTYPE_BF16,
         2,
         {2, 1},
         DPQ_E_INPUT,
         "expected BF16 [2, 2], found BF16 [2, 1]"},
        {"no shape", 2, true, 0, 0, {0}, DPQ_E_INPUT, "weight_shape"},
        {"shape I32", 2, false, DPQ_DTYPE_I32, 1, {2, 0}, DPQ_E_INPUT, "weight_shape"},
        {"no zero point", 3, true, 0, 0, {0}, DPQ_E_INPUT, "weight_zero_point"},
        {"zero point unpacked", 3, false, DPQ_DTYPE_I32, 2, {2, 2}, DPQ_E_INPUT, "weight_zero_point"},
        {"g_idx too short", 4, false, DPQ_DTYPE_I32, 1, {8, 0}, DPQ_E_INPUT, "weight_g_idx"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_changed(&cases[i], shape, 1);
        expect_failure(&cases[i], &scheme, true);
    }
}

static void test_values_that_do_not_fit(void **state)
{
    (void)state;
    const dpq_scheme scheme = {.bits = 4, .group_size = 8};
    const dpq_scheme symmetric = {.bits = 4, .group_size = 8, .symmetric = true};
    const dpq_scheme wide = {.bits = 8, .group_size = 8};
    const dpq_scheme odd = {.bits = 4, .group_size = 5};
    const int64_t good[2] = {2, 16};
    bad_case c = {"shape", -1, false, 0, 0, {0}, DPQ_E_INPUT, "weight_shape"};
    const int64_t shapes[][2] = {{3, 16}, {2, 17}, {2, 8}, {0, 16}, {2, -16}, {INT64_MAX, INT64_MAX}, {2, INT64_MIN}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        write_changed(&c, shapes[i], 1);
        expect_failure(&c, &scheme, true);
    }
    write_changed(&c, good, 1);
    expect_failure(&c, &wide, true);
    c = (bad_case){"group 2", -1, false, 0, 0, {0}, DPQ_E_INPUT, "column 15 is in group 2"};
    write_changed(&c, good, 2);
    expect_failure(&c, &scheme, true);
    c = (bad_case){"group -1", -1, false, 0, 0, {0}, DPQ_E_INPUT, "column 15 is in group -1"};
    write_changed(&c, good, -1);
    expect_failure(&c, &scheme, true);
    c = (bad_case){"zero point of a symmetric scheme", -1, false, 0, 0, {0}, DPQ_E_INPUT, "weight_zero_point"};
    write_changed(&c, good, 1);
    expect_failure(&c, &symmetric, true);
    c = (bad_case){"g_idx nobody asked for", -1, false, 0, 0, {0}, DPQ_E_INPUT, "weight_g_idx"};
    write_changed(&c, good, 1);
    expect_failure(&c, &scheme, false);
    c = (bad_case){"group size", -1, false, 0, 0, {0}, DPQ_E_UNSUPPORTED, MODULE};
    write_changed(&c, good, 1);
    expect_failure(&c, &odd, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_declared_shapes),
        cmocka_unit_test_setup_teardown(test_round_trips, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_scale_types_and_g_idx, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_words_on_disk, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_tensors_that_do_not_fit, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_values_that_do_not_fit, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
