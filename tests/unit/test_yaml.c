/* SPDX-License-Identifier: Apache-2.0 */
/* YAML trees: positions, scalars as text, everything that is refused, limits, hostile bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <stdio.h>

#include "dpquant/alloc.h"
#include "dpquant/config.h"

static dpq_yaml *parse(const char *text)
{
    dpq_yaml *tree = NULL;
    dpq_status st = dpq_yaml_parse(text, strlen(text), "r.yaml", &tree);
    if (st != DPQ_OK) {
        fail_msg("%s", dpq_error_last()->text);
    }
    return tree;
}

static const char *text_of(const dpq_yaml *mapping, const char *key)
{
    const dpq_yaml *value = dpq_yaml_get(mapping, key);
    assert_non_null(value);
    assert_int_equal(value->kind, DPQ_YAML_SCALAR);
    return value->text;
}

static void test_nesting_and_positions(void **state)
{
    (void)state;
    dpq_yaml *tree = parse("# comment\nmodel: m\nquantize:\n  bits: 4\n  ignore: [a, \"b c\"]\nlist:\n- x: 1\n- y\n");
    assert_int_equal(tree->kind, DPQ_YAML_MAPPING);
    assert_int_equal(tree->count, 3);
    assert_string_equal(text_of(tree, "model"), "m");
    const dpq_yaml *quantize = dpq_yaml_get(tree, "quantize");
    assert_string_equal(quantize->keys[0], "bits");
    assert_int_equal(quantize->key_lines[0], 4);
    assert_int_equal(quantize->key_columns[0], 3);
    assert_int_equal(quantize->items[0]->line, 4);
    assert_int_equal(quantize->items[0]->column, 9);
    const dpq_yaml *ignore = dpq_yaml_get(quantize, "ignore");
    assert_int_equal(ignore->kind, DPQ_YAML_SEQUENCE);
    assert_int_equal(ignore->count, 2);
    assert_string_equal(ignore->items[1]->text, "b c");
    assert_int_equal(ignore->items[1]->column, 15);
    const dpq_yaml *list = dpq_yaml_get(tree, "list");
    assert_string_equal(text_of(list->items[0], "x"), "1");
    assert_null(dpq_yaml_get(tree, "absent"));
    assert_null(dpq_yaml_get(list, "x"));
    dpq_yaml_destroy(&tree);
    assert_null(tree);
    dpq_yaml_destroy(&tree);
}

static void test_scalars_stay_text(void **state)
{
    (void)state;
    dpq_yaml *tree = parse("a: 1e-3\nb: no\nc: 0x10\nd: 'null'\ne: null\nf: ~\ng:\nh: \"\"\n"
                           "i: |\n  two\n  lines\nj: 1_000\n");
    assert_string_equal(text_of(tree, "a"), "1e-3");
    assert_string_equal(text_of(tree, "b"), "no");
    assert_string_equal(text_of(tree, "c"), "0x10");
    assert_string_equal(text_of(tree, "i"), "two\nlines\n");
    assert_string_equal(text_of(tree, "j"), "1_000");
    const char *const null_keys[] = {"e", "f", "g"};
    for (int i = 0; i < 3; i++) {
        assert_true(dpq_yaml_get(tree, null_keys[i])->is_null);
    }
    assert_false(dpq_yaml_get(tree, "d")->is_null);
    assert_false(dpq_yaml_get(tree, "h")->is_null);
    assert_false(dpq_yaml_get(tree, "b")->is_null);
    dpq_yaml_destroy(&tree);
}

static void test_crlf_and_byte_order_mark(void **state)
{
    (void)state;
    dpq_yaml *tree = parse("\xef\xbb\xbfmodel: m\r\nquantize:\r\n  bits: 4\r\n");
    assert_string_equal(text_of(tree, "model"), "m");
    assert_int_equal(tree->key_columns[0], 1);
    assert_string_equal(text_of(dpq_yaml_get(tree, "quantize"), "bits"), "4");
    dpq_yaml_destroy(&tree);
}

static void test_empty_documents(void **state)
{
    (void)state;
    const char *const texts[] = {"", "\n\n", "# only a comment\n", "---\n", "---\n...\n", "\xef\xbb\xbf", "{}"};
    for (size_t i = 0; i < DPQ_COUNT_OF(texts); i++) {
        dpq_yaml *tree = parse(texts[i]);
        assert_int_equal(tree->kind, DPQ_YAML_MAPPING);
        assert_int_equal(tree->count, 0);
        dpq_yaml_destroy(&tree);
    }
}

static void test_refused(void **state)
{
    (void)state;
    const char *const cases[][2] = {
        {"a: &x 1\n", "r.yaml:1:4: anchors"},
        {"&x a: 1\n", "r.yaml:1:1: anchors"},
        {"a: &x {b: 1}\n", "r.yaml:1:4: anchors"},
        {"a: &x [b]\n", "r.yaml:1:4: anchors"},
        {"a: *x\n", "r.yaml:1:4: aliases"},
        {"a: 1\n*x : 2\n", "r.yaml:2:1: aliases"},
        {"a: !!int 1\n", "r.yaml:1:4: tags"},
        {"a: ! 1\n", "r.yaml:1:4: tags"},
        {"a: !x [1]\n", "r.yaml:1:4: tags"},
        {"!!map\na: 1\n", "tags"},
        {"%TAG !e! tag:example.com,2000:\n---\na: 1\n", "tags"},
        {"a: 1\n<<: {b: 2}\n", "r.yaml:2:1: merge keys"},
        {"a: 1\nb: 2\na: 3\n", "r.yaml:3:1: repeated key a, first on line 1"},
        {"q:\n  a: 1\n  \"a\": 1\n", "r.yaml:3:3: repeated key a"},
        {"b: 1\na: 1\nb: 2\na: 2\n", "r.yaml:3:1: repeated key b"},
        {"[a]: 1\n", "r.yaml:1:1: a key must be"},
        {"? {a: 1}\n: 2\n", "a key must be"},
        {"a: 1\n---\nb: 2\n", "r.yaml:2:1: more than one document"},
        {"---\n---\n", "more than one document"},
        {"a: \"x\\0y\"\n", "r.yaml:1:4: text with a NUL"},
        {"a: [1, 2\n", "r.yaml:2:1: "},
        {"a: b: c\n", "r.yaml:1:5: "},
        {"a:\n\t- b\n", "r.yaml:2:1: "},
        {"a: 'open\n", "r.yaml:"},
        {"a: 1\nb: \xff\xfe\n", "r.yaml:2:4: "},
        {"a: 1\nb: \x01\n", "r.yaml:2:4: "},
        {"}", "r.yaml:1:1: "},
    };
    for (size_t i = 0; i < DPQ_COUNT_OF(cases); i++) {
        dpq_yaml *tree = (dpq_yaml *)1;
        dpq_status st = dpq_yaml_parse(cases[i][0], strlen(cases[i][0]), "r.yaml", &tree);
        if (st != DPQ_E_CONFIG || !strstr(dpq_error_last()->text, cases[i][1])) {
            fail_msg("case %zu: status %d, text \"%s\", expected \"%s\"", i, (int)st, dpq_error_last()->text,
                     cases[i][1]);
        }
        assert_null(tree);
    }
    const char nul[] = "a: 1\0b: 2\n";
    dpq_yaml *tree = NULL;
    assert_int_equal(dpq_yaml_parse(nul, sizeof nul - 1, "r.yaml", &tree), DPQ_E_CONFIG);
}

/* OPEN N times, then MIDDLE, then CLOSE N times. */
static char *nested(const char *open, const char *middle, const char *close, size_t n)
{
    dpq_text text = {0};
    dpq_status st = DPQ_OK;
    for (size_t i = 0; i < n && st == DPQ_OK; i++) {
        st = dpq_text_append(&text, "%s", open);
    }
    st = st == DPQ_OK ? dpq_text_append(&text, "%s", middle) : st;
    for (size_t i = 0; i < n && st == DPQ_OK; i++) {
        st = dpq_text_append(&text, "%s", close);
    }
    assert_int_equal(st, DPQ_OK);
    return text.text;
}

static void check_limit(char *text, dpq_status expected, const char *message)
{
    dpq_yaml *tree = NULL;
    assert_int_equal(dpq_yaml_parse(text, strlen(text), "r.yaml", &tree), expected);
    if (message) {
        assert_non_null(strstr(dpq_error_last()->text, message));
    }
    dpq_yaml_destroy(&tree);
    dpq_free(text);
}

static void test_limits(void **state)
{
    (void)state;
    check_limit(nested("[", "", "]", 32), DPQ_OK, NULL);
    check_limit(nested("[", "", "]", 33), DPQ_E_CONFIG, "r.yaml:1:33: nested deeper than 32");
    check_limit(nested("{a: ", "", "}", 31), DPQ_OK, NULL);
    check_limit(nested("[", "", "", 500000), DPQ_E_CONFIG, "nested deeper than 32");
    check_limit(nested("- 1\n", "", "", 99999), DPQ_OK, NULL);
    check_limit(nested("- 1\n", "", "", 100000), DPQ_E_CONFIG, "more than 100000");
    check_limit(nested("#234567\n", "", "", 131072), DPQ_OK, NULL);
    check_limit(nested("#234567\n", "\n", "", 131072), DPQ_E_CONFIG, "1048577 bytes");
}

static void test_many_keys(void **state)
{
    (void)state;
    dpq_text text = {0};
    for (int i = 0; i < 50000; i++) {
        assert_int_equal(dpq_text_append(&text, "k%d: 1\n", i), DPQ_OK);
    }
    dpq_yaml *tree = NULL;
    assert_int_equal(dpq_yaml_parse(text.text, text.length, "r.yaml", &tree), DPQ_OK);
    assert_int_equal(tree->count, 50000);
    dpq_yaml_destroy(&tree);
    assert_int_equal(dpq_text_append(&text, "k7: 2\n"), DPQ_OK);
    assert_int_equal(dpq_yaml_parse(text.text, text.length, "r.yaml", &tree), DPQ_E_CONFIG);
    assert_non_null(strstr(dpq_error_last()->text, "r.yaml:50001:1: repeated key k7, first on line 8"));
    dpq_text_fini(&text);
}

/* Every prefix and every one-byte change of a recipe parses or is refused; nothing else happens (sanitizers watch). */
static void test_damaged_text(void **state)
{
    (void)state;
    const char good[] = "model: \"m\"\nq: {bits: 4, i: [a, 'b']}\neval:\n  - x: |\n     t\n  - ? y\n    : z\n";
    const char marks[] = "\0\n\t \"'[]{},:-?&*!|>%@#<~\x80\xff";
    char text[sizeof good];
    for (size_t i = 0; i < sizeof good; i++) {
        dpq_yaml *tree = NULL;
        dpq_status st = dpq_yaml_parse(good, i, "r.yaml", &tree);
        assert_true((st == DPQ_OK) == (tree != NULL) && (st == DPQ_OK || st == DPQ_E_CONFIG));
        dpq_yaml_destroy(&tree);
        for (size_t m = 0; m < sizeof marks && i < sizeof good - 1; m++) {
            memcpy(text, good, sizeof good);
            text[i] = marks[m];
            st = dpq_yaml_parse(text, sizeof good - 1, "r.yaml", &tree);
            assert_true((st == DPQ_OK) == (tree != NULL) && (st == DPQ_OK || st == DPQ_E_CONFIG));
            dpq_yaml_destroy(&tree);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nesting_and_positions),
        cmocka_unit_test(test_scalars_stay_text),
        cmocka_unit_test(test_crlf_and_byte_order_mark),
        cmocka_unit_test(test_empty_documents),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_damaged_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
