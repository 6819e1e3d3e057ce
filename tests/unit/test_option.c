/* SPDX-License-Identifier: Apache-2.0 */
/* Option tables: defaults, each type's good and bad values, lists, search, values as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "dpquant/alloc.h"
#include "dpquant/option.h"

typedef struct {
    bool symmetric;
    int64_t bits;
    int64_t samples;
    double damp;
    int64_t shard_size;
    int device;
    char *scheme;
    char *model;
    dpq_str_list ignore;
} settings;

static const char *const devices[] = {"auto", "cpu", "cuda", NULL};

static const dpq_option table[] = {
    {"quantize.symmetric", DPQ_OPTION_BOOL, offsetof(settings, symmetric), 0, 0, NULL, "true", true, ""},
    {"quantize.bits", DPQ_OPTION_INT, offsetof(settings, bits), 2, 8, NULL, "4", true, ""},
    {"calibration.samples", DPQ_OPTION_INT, offsetof(settings, samples), 1, 9e18, NULL, "128", true, ""},
    {"gptq.damp", DPQ_OPTION_REAL, offsetof(settings, damp), 0, 1, NULL, "0.01", true, ""},
    {"export.shard_size", DPQ_OPTION_BYTES, offsetof(settings, shard_size), 4096, 1e15, NULL, "5G", true, ""},
    {"run.device", DPQ_OPTION_ENUM, offsetof(settings, device), 0, 0, devices, "auto", false, ""},
    {"quantize.scheme", DPQ_OPTION_STRING, offsetof(settings, scheme), 0, 0, NULL, NULL, true, ""},
    {"model", DPQ_OPTION_PATH, offsetof(settings, model), 0, 0, NULL, NULL, false, ""},
    {"quantize.ignore", DPQ_OPTION_STRINGS, offsetof(settings, ignore), 0, 0, NULL, "lm_head", true, ""},
};
enum { N_OPTIONS = DPQ_COUNT_OF(table) };

static settings values;
static bool was_set[N_OPTIONS];
static dpq_option_set set = {table, N_OPTIONS, &values, was_set};

static int begin(void **state)
{
    (void)state;
    memset(&values, 0, sizeof values);
    return dpq_option_set_defaults(&set) == DPQ_OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    dpq_option_set_fini(&set);
    return values.model == NULL && values.ignore.items == NULL ? 0 : -1;
}

static const dpq_option *find(const char *key)
{
    const dpq_option *option = dpq_option_find(&set, 1, key, NULL);
    assert_non_null(option);
    return option;
}

static dpq_status give(const char *key, const char *text)
{
    return dpq_option_parse(&set, find(key), text, false, NULL, "--set");
}

static void check_format(const char *key, const char *expected)
{
    char *text = NULL;
    assert_int_equal(dpq_option_format(&set, find(key), &text), DPQ_OK);
    assert_string_equal(text, expected);
    dpq_free(text);
}

static void test_defaults(void **state)
{
    (void)state;
    assert_true(values.symmetric);
    assert_int_equal(values.bits, 4);
    assert_true(values.damp == 0.01);
    assert_int_equal(values.shard_size, 5LL << 30);
    assert_int_equal(values.device, 0);
    assert_null(values.scheme);
    assert_int_equal(values.ignore.count, 1);
    for (int i = 0; i < N_OPTIONS; i++) {
        assert_false(was_set[i]);
    }
}

static void test_bad_default_is_a_bug(void **state)
{
    (void)state;
    static const dpq_option bad[] = {{"x", DPQ_OPTION_INT, 0, 2, 8, NULL, "9", true, ""}};
    int64_t target = 0;
    dpq_option_set bad_set = {bad, 1, &target, NULL};
    assert_int_equal(dpq_option_set_defaults(&bad_set), DPQ_E_BUG);
    assert_non_null(strstr(dpq_error_last()->text, "x: expected integer 2..8, found \"9\""));
}

static void test_good_values(void **state)
{
    (void)state;
    assert_int_equal(give("quantize.bits", "8"), DPQ_OK);
    assert_int_equal(values.bits, 8);
    assert_true(was_set[1] && !was_set[0]);
    assert_int_equal(give("gptq.damp", "2e-5"), DPQ_OK);
    assert_true(values.damp == 2e-5);
    assert_int_equal(give("gptq.damp", "1"), DPQ_OK);
    assert_int_equal(give("run.device", "cuda"), DPQ_OK);
    assert_int_equal(values.device, 2);
    assert_int_equal(give("quantize.symmetric", "false"), DPQ_OK);
    assert_false(values.symmetric);
    assert_int_equal(give("export.shard_size", "2GB"), DPQ_OK);
    assert_int_equal(values.shard_size, 2000000000);
    assert_int_equal(give("quantize.scheme", "w4a16"), DPQ_OK);
    assert_int_equal(give("quantize.scheme", "w8a16"), DPQ_OK); /* the later one replaces */
    assert_string_equal(values.scheme, "w8a16");
    assert_int_equal(give("quantize.scheme", "null"), DPQ_OK);
    assert_null(values.scheme);
}

static void test_bad_values_leave_field(void **state)
{
    (void)state;
    const char *const bad[][2] = {
        {"quantize.bits", "1"},
        {"quantize.bits", "9"},
        {"quantize.bits", "4.0"},
        {"quantize.bits", ""},
        {"gptq.damp", "1.0001"},
        {"gptq.damp", "-1e-9"},
        {"gptq.damp", "nan"},
        {"run.device", "CPU"},
        {"run.device", ""},
        {"quantize.symmetric", "yes"},
        {"export.shard_size", "1K"},
        {"export.shard_size", "-5G"},
        {"model", ""},
        {"calibration.samples", "0"},
        {"quantize.ignore", "a,,b"},
        {"quantize.ignore", "a,"},
    };
    for (size_t i = 0; i < DPQ_COUNT_OF(bad); i++) {
        assert_int_equal(give(bad[i][0], bad[i][1]), DPQ_E_CONFIG);
        assert_true(dpq_str_starts_with(dpq_error_last()->text, "--set: "));
        assert_non_null(strstr(dpq_error_last()->text, bad[i][0]));
        assert_non_null(strstr(dpq_error_last()->text, bad[i][1]));
        assert_non_null(strstr(dpq_error_last()->text, "expected "));
    }
    assert_int_equal(values.bits, 4);
    assert_int_equal(values.ignore.count, 1);
    assert_null(values.model);
    for (int i = 0; i < N_OPTIONS; i++) {
        assert_false(was_set[i]);
    }
}

static void test_message(void **state)
{
    (void)state;
    assert_int_equal(dpq_option_parse(&set, find("run.device"), "cpi", false, NULL, "r.yaml:3:9"), DPQ_E_CONFIG);
    assert_string_equal(dpq_error_last()->text,
                        "r.yaml:3:9: run.device: expected one of: auto, cpu, cuda, found \"cpi\"; nearest is cpu");
    assert_int_equal(dpq_option_parse(&set, find("quantize.bits"), "x", false, NULL, NULL), DPQ_E_CONFIG);
    assert_string_equal(dpq_error_last()->text, "quantize.bits: expected integer 2..8, found \"x\"");
}

static void test_paths(void **state)
{
    (void)state;
    const dpq_option *model = find("model");
    assert_int_equal(dpq_option_parse(&set, model, "m", false, "/etc/recipes", NULL), DPQ_OK);
    assert_string_equal(values.model, "/etc/recipes/m");
    assert_int_equal(dpq_option_parse(&set, model, "/abs", false, "/etc/recipes", NULL), DPQ_OK);
    assert_string_equal(values.model, "/abs");
    assert_int_equal(give("model", "m"), DPQ_OK);
    assert_string_equal(values.model, "m");
}

static void test_lists(void **state)
{
    (void)state;
    const dpq_option *ignore = find("quantize.ignore");
    assert_int_equal(give("quantize.ignore", "a , b c,re:d.*"), DPQ_OK);
    assert_int_equal(values.ignore.count, 3);
    assert_string_equal(values.ignore.items[0], "a");
    assert_string_equal(values.ignore.items[1], "b c");
    assert_string_equal(values.ignore.items[2], "re:d.*");
    check_format("quantize.ignore", "[a, b c, re:d.*]");
    assert_int_equal(give("quantize.ignore", "[x, y]"), DPQ_OK);
    assert_int_equal(values.ignore.count, 2);
    assert_int_equal(dpq_option_parse(&set, ignore, "re:z{1,2}", true, NULL, NULL), DPQ_OK);
    assert_int_equal(values.ignore.count, 3);
    assert_string_equal(values.ignore.items[2], "re:z{1,2}");
    assert_int_equal(give("quantize.ignore", ""), DPQ_OK);
    assert_int_equal(values.ignore.count, 0);
    check_format("quantize.ignore", "[]");
    was_set[N_OPTIONS - 1] = false;
    dpq_option_clear_list(&set, ignore);
    assert_true(was_set[N_OPTIONS - 1]);
}

static void test_find_and_nearest(void **state)
{
    (void)state;
    static const dpq_option other[] = {{"eval.data", DPQ_OPTION_PATH, 0, 0, 0, NULL, NULL, true, ""}};
    char *target = NULL;
    const dpq_option_set sets[2] = {set, {other, 1, &target, NULL}};
    size_t index = 9;
    assert_ptr_equal(dpq_option_find(sets, 2, "eval.data", &index), other);
    assert_int_equal(index, 1);
    assert_null(dpq_option_find(sets, 2, "eval", &index));
    assert_string_equal(dpq_option_nearest(sets, 2, "quantize.bts"), "quantize.bits");
    assert_string_equal(dpq_option_nearest(sets, 2, "eval.dta"), "eval.data");
    assert_string_equal(dpq_option_nearest(sets, 2, "bits"), "quantize.bits");
    assert_string_equal(dpq_option_nearest(sets, 2, "gptq.bits"), "quantize.bits");
    assert_null(dpq_option_nearest(sets, 2, "zzzzzz"));
}

static void test_format(void **state)
{
    (void)state;
    check_format("quantize.symmetric", "true");
    check_format("quantize.bits", "4");
    check_format("gptq.damp", "0.01");
    check_format("export.shard_size", "5368709120");
    check_format("run.device", "auto");
    check_format("quantize.scheme", "null");
    const double reals[] = {0, 1, 0.1, 1.0 / 3, 1e-300, 0.30000000000000004, 123456789.0 / 1e9};
    for (size_t i = 0; i < DPQ_COUNT_OF(reals); i++) {
        char *text = NULL;
        values.damp = reals[i];
        assert_int_equal(dpq_option_format(&set, find("gptq.damp"), &text), DPQ_OK);
        assert_int_equal(give("gptq.damp", text), DPQ_OK);
        assert_true(values.damp == reals[i]);
        dpq_free(text);
    }
}

static void check_describe(const char *key, const char *expected)
{
    char *text = NULL;
    assert_int_equal(dpq_option_describe(find(key), &text), DPQ_OK);
    assert_string_equal(text, expected);
    dpq_free(text);
}

static void test_describe(void **state)
{
    (void)state;
    check_describe("quantize.symmetric", "true or false");
    check_describe("quantize.bits", "integer 2..8");
    check_describe("calibration.samples", "integer, at least 1");
    check_describe("gptq.damp", "number 0..1");
    check_describe("run.device", "one of: auto, cpu, cuda");
    check_describe("quantize.ignore", "list of texts");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_defaults, begin, end),
        cmocka_unit_test(test_bad_default_is_a_bug),
        cmocka_unit_test_setup_teardown(test_good_values, begin, end),
        cmocka_unit_test_setup_teardown(test_bad_values_leave_field, begin, end),
        cmocka_unit_test_setup_teardown(test_message, begin, end),
        cmocka_unit_test_setup_teardown(test_paths, begin, end),
        cmocka_unit_test_setup_teardown(test_lists, begin, end),
        cmocka_unit_test_setup_teardown(test_find_and_nearest, begin, end),
        cmocka_unit_test_setup_teardown(test_format, begin, end),
        cmocka_unit_test_setup_teardown(test_describe, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
