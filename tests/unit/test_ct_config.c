/* SPDX-License-Identifier: Apache-2.0 */
/* quantization_config: the text written for uniform and mixed schemes is parsed back; order of targets; ignore;
 * everything a reader must refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "dpquant/alloc.h"
#include "dpquant/json.h"
#include "dpquant/pack.h"

#define FILE_NAME "config.json"

static dpq_json *parse(const char *text)
{
    dpq_json *doc = NULL;
    if (dpq_json_parse(text, strlen(text), FILE_NAME, &doc) != DPQ_OK) {
        fail_msg("%s in: %s", dpq_error_last()->text, text);
    }
    return doc;
}

typedef struct {
    dpq_scheme scheme;
    bool with_g_idx, found;
} looked_up;

static looked_up lookup(const dpq_json *doc, const char *module)
{
    looked_up r = {0};
    dpq_status st = dpq_ct_config_lookup(doc, FILE_NAME, module, &r.scheme, &r.with_g_idx, &r.found);
    if (st != DPQ_OK) {
        fail_msg("%s: %s", module, dpq_error_last()->text);
    }
    return r;
}

static char *write_config(const dpq_ct_module *modules, size_t n, bool actorder_static)
{
    dpq_str_list ignore = {0};
    char *text = NULL;
    assert_int_equal(dpq_str_list_append(&ignore, "lm_head"), DPQ_OK);
    assert_int_equal(dpq_str_list_append(&ignore, "odd \"name\"\\"), DPQ_OK);
    assert_int_equal(dpq_ct_config_text(modules, n, &ignore, actorder_static, &text), DPQ_OK);
    dpq_str_list_fini(&ignore);
    return text;
}

static const char *word_at(const dpq_json *object, const char *key)
{
    const dpq_json *value = dpq_json_member(object, key);
    assert_non_null(value);
    return dpq_json_get_kind(value) == DPQ_JSON_STRING ? dpq_json_string(value) : NULL;
}

static void test_uniform(void **state)
{
    (void)state;
    const dpq_ct_module modules[] = {
        {"l.0.q_proj", {.bits = 4, .group_size = 128, .symmetric = true, .signed_scale = true}, false},
        {"l.0.k_proj", {.bits = 4, .group_size = 128, .symmetric = true}, false}, /* the sign does not matter on disk */
    };
    char *text = write_config(modules, 2, false);
    dpq_json *doc = parse(text);
    assert_string_equal(word_at(doc, "quant_method"), "compressed-tensors");
    assert_string_equal(word_at(doc, "format"), "pack-quantized");
    assert_string_equal(word_at(doc, "quantization_status"), "compressed");
    assert_string_equal(word_at(doc, "version"), "0.18.0");
    const dpq_json *groups = dpq_json_member(doc, "config_groups");
    assert_int_equal(dpq_json_size(groups), 1);
    const dpq_json *group = dpq_json_member(groups, "group_0");
    assert_string_equal(word_at(group, "format"), "pack-quantized");
    assert_int_equal(dpq_json_size(dpq_json_member(group, "targets")), 1);
    assert_string_equal(dpq_json_string(dpq_json_item(dpq_json_member(group, "targets"), 0)), "Linear");
    const dpq_json *args = dpq_json_member(group, "weights");
    assert_null(word_at(args, "actorder"));
    assert_string_equal(word_at(args, "strategy"), "group");
    /* keys that older readers refuse */
    assert_null(dpq_json_member(args, "scale_dtype"));
    assert_null(dpq_json_member(args, "zp_dtype"));
    looked_up r = lookup(doc, "l.0.k_proj");
    assert_true(r.found && r.scheme.bits == 4 && r.scheme.group_size == 128 && r.scheme.symmetric && !r.with_g_idx);
    assert_true(r.scheme.signed_scale);
    assert_false(lookup(doc, "lm_head").found);
    assert_false(lookup(doc, "odd \"name\"\\").found);
    dpq_json_destroy(&doc);
    dpq_free(text);
}

static void test_channel_and_asymmetric(void **state)
{
    (void)state;
    const dpq_ct_module modules[] = {{"a", {.bits = 3, .group_size = -1}, false}};
    char *text = write_config(modules, 1, true);
    dpq_json *doc = parse(text);
    const dpq_json *args =
        dpq_json_member(dpq_json_member(dpq_json_member(doc, "config_groups"), "group_0"), "weights");
    assert_string_equal(word_at(args, "strategy"), "channel");
    assert_int_equal(dpq_json_get_kind(dpq_json_member(args, "group_size")), DPQ_JSON_NULL);
    assert_string_equal(word_at(args, "actorder"), "weight");
    looked_up r = lookup(doc, "a");
    assert_true(r.found && r.scheme.bits == 3 && r.scheme.group_size == -1 && !r.scheme.symmetric &&
                !r.scheme.signed_scale);
    assert_false(r.with_g_idx);
    dpq_json_destroy(&doc);
    dpq_free(text);
}

static void test_mixed(void **state)
{
    (void)state;
    const dpq_ct_module modules[] = {
        {"l.0.q", {.bits = 4, .group_size = 128, .symmetric = true}, false},
        {"l.0.up", {.bits = 8, .group_size = 128, .symmetric = true}, false},
        {"l.1.q", {.bits = 4, .group_size = 128, .symmetric = true}, false},
        {"l.1.up", {.bits = 4, .group_size = 128, .symmetric = false}, false},
        {"l.2.q", {.bits = 4, .group_size = 128, .symmetric = true}, true},
        {"l.2.up", {.bits = 4, .group_size = -1, .symmetric = true}, false},
    };
    size_t n = sizeof modules / sizeof modules[0];
    char *text = write_config(modules, n, false);
    dpq_json *doc = parse(text);
    assert_null(strstr(text, "Linear")); /* never beside explicit names */
    assert_int_equal(dpq_json_size(dpq_json_member(doc, "config_groups")), 5);
    for (size_t i = 0; i < n; i++) {
        looked_up r = lookup(doc, modules[i].module);
        assert_true(r.found);
        assert_int_equal(r.scheme.bits, modules[i].scheme.bits);
        assert_int_equal(r.scheme.group_size, modules[i].scheme.group_size);
        assert_int_equal(r.scheme.symmetric, modules[i].scheme.symmetric);
        assert_int_equal(r.with_g_idx, modules[i].with_g_idx);
    }
    assert_false(lookup(doc, "l.3.q").found);
    dpq_json_destroy(&doc);
    dpq_free(text);
}

static void test_nothing_to_write(void **state)
{
    (void)state;
    dpq_str_list ignore = {0};
    char *text = (char *)&ignore;
    assert_int_equal(dpq_ct_config_text(NULL, 0, &ignore, false, &text), DPQ_E_CONFIG);
    assert_null(text);
}

/* ---- reading what others write ---- */

#define TOP                                                                                                            \
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\",\"ignore\":[\"lm_head\",\"re:.*gate$\"],"
#define INT(bits) "\"weights\":{\"num_bits\":" bits ",\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32}"

static void test_order_of_targets(void **state)
{
    (void)state;
    dpq_json *doc =
        parse(TOP "\"config_groups\":{"
                  "\"group_0\":{\"targets\":[\"Linear\"]," INT(
                      "2") "},"
                           "\"group_1\":{\"targets\":[\"re:model.*\"]," INT(
                               "3") "},"
                                    "\"group_2\":{\"targets\":[\"re:mo.*\",\"model.a\"]," INT(
                                        "4") "},"
                                             "\"group_3\":{\"targets\":[\"model.b\",\"Linear\"]," INT(
                                                 "5") "},"
                                                      "\"group_4\":{\"targets\":[\"model.b\"]," INT("6") "}}}");
    assert_int_equal(lookup(doc, "other").scheme.bits, 5);   /* the later of two groups with the same target */
    assert_int_equal(lookup(doc, "model.c").scheme.bits, 4); /* "re:mo.*" sorts before "re:model.*" */
    assert_int_equal(lookup(doc, "model.a").scheme.bits, 4); /* exact name */
    assert_int_equal(lookup(doc, "model.b").scheme.bits, 6);
    assert_false(lookup(doc, "model.gate").found);
    assert_true(lookup(doc, "model.gate_proj").found);
    assert_false(lookup(doc, "lm_head").found);
    assert_true(lookup(doc, "x.lm_head").found);
    dpq_json_destroy(&doc);
}

static void test_defaults_and_actorder(void **state)
{
    (void)state;
    dpq_json *doc =
        parse(TOP "\"quantization_status\":\"compressed\",\"kv_cache_scheme\":null,\"sparsity_config\":{},"
                  "\"config_groups\":{"
                  "\"g0\":{\"targets\":[\"a\"],\"weights\":{\"group_size\":64}},"
                  "\"g1\":{\"targets\":[\"b\"],\"weights\":{\"group_size\":-1,\"num_bits\":4,\"actorder\":false}},"
                  "\"g2\":{\"targets\":[\"c\"],\"weights\":{\"group_size\":64,\"actorder\":\"group\"}},"
                  "\"g3\":{\"targets\":[\"d\"],\"weights\":{\"group_size\":64,\"actorder\":true,\"symmetric\":false}},"
                  "\"g4\":{\"targets\":[\"e\"],\"weights\":{\"group_size\":64,\"actorder\":\"static\"}},"
                  "\"g5\":{\"targets\":[\"f\"],\"format\":\"pack-quantized\",\"input_activations\":null,"
                  "\"weights\":{\"group_size\":null,\"strategy\":\"channel\",\"zp_dtype\":null}}}}");
    looked_up r = lookup(doc, "a");
    assert_true(r.scheme.bits == 8 && r.scheme.group_size == 64 && r.scheme.symmetric && !r.with_g_idx);
    r = lookup(doc, "b");
    assert_true(r.scheme.bits == 4 && r.scheme.group_size == -1 && !r.with_g_idx);
    assert_true(lookup(doc, "c").with_g_idx);
    r = lookup(doc, "d");
    assert_true(r.with_g_idx && !r.scheme.symmetric);
    assert_false(lookup(doc, "e").with_g_idx);
    assert_int_equal(lookup(doc, "f").scheme.group_size, -1);
    dpq_json_destroy(&doc);
}

static void expect_refused(const char *text, dpq_status status, const char *words)
{
    dpq_json *doc = parse(text);
    looked_up r = {.found = true};
    dpq_status st = dpq_ct_config_lookup(doc, FILE_NAME, "a", &r.scheme, &r.with_g_idx, &r.found);
    const char *message = dpq_error_last()->text;
    if (st != status || strstr(message, words) == NULL || strstr(message, FILE_NAME) == NULL || r.found) {
        fail_msg("%s: status %s, text '%s'", text, dpq_status_name(st), message);
    }
    dpq_json_destroy(&doc);
}

#define ONE(group) "\"config_groups\":{\"g\":{\"targets\":[\"a\"]," group "}}}"
#define ARGS(args) TOP ONE("\"weights\":{\"num_bits\":4," args "}")

static void test_refused(void **state)
{
    (void)state;
    const dpq_status no = DPQ_E_UNSUPPORTED, bad = DPQ_E_INPUT;
    const char *group = ONE(INT("4"));
    char text[1024];
#define WITH_TOP(top) (snprintf(text, sizeof text, "{%s%s", top, group), text)
    expect_refused("[]", bad, "object");
    expect_refused(WITH_TOP(""), no, "quant_method");
    expect_refused(WITH_TOP("\"quant_method\":\"gptq\","), no, "gptq");
    expect_refused(WITH_TOP("\"quant_method\":7,"), bad, "quant_method");
    expect_refused(WITH_TOP("\"quant_method\":\"compressed-tensors\","), no, "format");
    expect_refused(WITH_TOP("\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\","), no,
                   "int-quantized");
    expect_refused(TOP ONE("\"format\":\"float-quantized\"," INT("4")), no, "float-quantized");
    expect_refused(TOP "\"quantization_status\":\"frozen\"," ONE(INT("4")), no, "quantization_status");
    expect_refused(TOP "\"kv_cache_scheme\":{\"num_bits\":8}," ONE(INT("4")), no, "kv_cache_scheme");
    expect_refused(TOP "\"transform_config\":{\"r\":1}," ONE(INT("4")), no, "transform_config");
    expect_refused(TOP "\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}," ONE(INT("4")), no, "sparsity_config");
    expect_refused(TOP "\"x\":1}", bad, "config_groups");
    expect_refused(TOP "\"config_groups\":{\"g\":3}}", bad, "config_groups.g");
    expect_refused(TOP "\"config_groups\":{\"g\":{\"targets\":\"a\"}}}", bad, "targets");
    expect_refused(TOP "\"config_groups\":{\"g\":{\"targets\":[1]}}}", bad, "targets[0]");
    expect_refused(TOP "\"config_groups\":{\"g\":{\"targets\":[\"re:(\"]}}}", bad, "regular expression");
    expect_refused(TOP ONE("\"weights\":null"), no, "config_groups.g.weights");
    expect_refused(TOP ONE("\"input_activations\":{\"num_bits\":8}," INT("8")), no, "input_activations");
    expect_refused(TOP ONE("\"output_activations\":{\"num_bits\":8}," INT("8")), no, "output_activations");
    expect_refused(TOP ONE(INT("1")), no, "num_bits");
    expect_refused(TOP ONE(INT("16")), no, "num_bits");
    expect_refused(TOP ONE(INT("\"4\"")), bad, "num_bits");
    expect_refused(ARGS("\"type\":\"float\""), no, "type");
    expect_refused(ARGS("\"strategy\":\"block\""), no, "block");
    expect_refused(ARGS("\"symmetric\":true"), no, "tensor"); /* neither strategy nor group size */
    expect_refused(ARGS("\"strategy\":\"group\""), bad, "group_size");
    expect_refused(ARGS("\"strategy\":\"group\",\"group_size\":0"), bad, "group_size");
    expect_refused(ARGS("\"strategy\":\"channel\",\"group_size\":64"), bad, "channel");
    expect_refused(ARGS("\"group_size\":64,\"dynamic\":true"), no, "dynamic");
    expect_refused(ARGS("\"group_size\":64,\"dynamic\":\"local\""), no, "dynamic");
    expect_refused(ARGS("\"group_size\":64,\"actorder\":\"other\""), no, "actorder");
    expect_refused(ARGS("\"group_size\":64,\"actorder\":3"), bad, "actorder");
#undef WITH_TOP
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_channel_and_asymmetric),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_nothing_to_write),
        cmocka_unit_test(test_order_of_targets),
        cmocka_unit_test(test_defaults_and_actorder),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
