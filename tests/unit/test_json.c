/* SPDX-License-Identifier: Apache-2.0 */
/* JSON reading, writing and appending. */
#include "io_test.h"

#include <math.h>

#include "dpquant/json.h"

static dpq_status parse(const char *text, dpq_json **doc)
{
    return dpq_json_parse(text, strlen(text), "t.json", doc);
}

static void values_and_order(void **state)
{
    dpq_json *doc = NULL;
    const dpq_json *value = NULL;
    (void)state;
    expect_ok(
        parse("{\"z\": 1, \"a\": [1.5, \"s\", true, null, {}], \"m\": -9223372036854775808, \"\\u00e9\": 2}", &doc));
    assert_int_equal(dpq_json_get_kind(doc), DPQ_JSON_OBJECT);
    assert_int_equal(dpq_json_size(doc), 4);
    const char *const keys[] = {"z", "a", "m", "\xc3\xa9"};
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(dpq_json_key(doc, i, &value), keys[i]);
        assert_ptr_equal(value, dpq_json_member(doc, keys[i]));
    }
    assert_null(dpq_json_key(doc, 4, &value));
    assert_null(value);
    const dpq_json *a = dpq_json_member(doc, "a");
    assert_int_equal(dpq_json_size(a), 5);
    assert_true(dpq_json_real(dpq_json_item(a, 0)) == 1.5);
    assert_string_equal(dpq_json_string(dpq_json_item(a, 1)), "s");
    assert_true(dpq_json_bool(dpq_json_item(a, 2)));
    assert_int_equal(dpq_json_get_kind(dpq_json_item(a, 3)), DPQ_JSON_NULL);
    assert_int_equal(dpq_json_size(dpq_json_item(a, 4)), 0);
    assert_null(dpq_json_item(a, 5));
    assert_null(dpq_json_member(a, "z"));
    assert_null(dpq_json_member(NULL, "z"));
    assert_null(dpq_json_member(doc, "y"));
    assert_true(dpq_json_int(dpq_json_member(doc, "m")) == INT64_MIN);
    dpq_json_destroy(&doc);
    assert_null(doc);
    dpq_json_destroy(&doc);
}

/* Many members: sorted look-up, file order kept; both sides of the size where sorting starts. */
static void large_objects(void **state)
{
    (void)state;
    for (int n = 1; n < 3000; n = n < 30 ? n + 1 : n * 7) {
        dpq_text text = {0};
        dpq_json *doc = NULL;
        for (int i = 0; i < n; i++) {
            expect_ok(dpq_text_append(&text, "%s\"k%d\": %d", i == 0 ? "{" : ", ", (i * 7919) % 10007, i));
        }
        expect_ok(dpq_text_append(&text, "}"));
        expect_ok(parse(text.text, &doc));
        assert_int_equal(dpq_json_size(doc), n);
        for (int i = 0; i < n; i++) {
            const dpq_json *value = NULL;
            const char *key = dpq_json_key(doc, (size_t)i, &value);
            assert_int_equal(dpq_json_int(value), i);
            assert_ptr_equal(dpq_json_member(doc, key), value);
        }
        assert_null(dpq_json_member(doc, "k10007"));
        assert_null(dpq_json_member(doc, "j"));
        assert_null(dpq_json_member(doc, "z"));
        dpq_json_destroy(&doc);
        dpq_text_fini(&text);
    }
}

static void broken_documents(void **state)
{
    static const struct {
        const char *text;
        const char *part;
    } cases[] = {
        {"", "t.json:"},
        {"{\"a\": 1,}", "t.json:1:"},
        {"{\"a\": 1}\n{", "t.json:2:"},
        {"{\"a\": 1, \"b\": 2, \"a\": 3}", "duplicate object key"},
        {"{\"x\": {\"a\": 1, \"a\": 1}}", "duplicate object key"},
        {"{\"a\": \"\xff\"}", "0xff"},
        {"\"\xed\xa0\x80\"", "unable to decode"},
        {"\"\\ud800\"", "invalid Unicode"},
        {"\"\\u0000\"", "NUL"},
        {"\"a\nb\"", "t.json:1:"},
        {"{\"a\": 'x'}", "invalid token"},
        {"{\"a\": nan}", "invalid token"},
        {"{\"a\": NaNa}", "t.json:1:"},
        {"{\"a\": 01}", "t.json:1:"},
        {"{\"a\": 1e999}", "overflow"},
        {"{\"a\": \"unterminated", "t.json:1:"},
        {"{\"a\": \"x\\", "t.json:1:"},
        {"\xef\xbb\xbf{}", "t.json:1:"},
        {"[1] // comment", "t.json:1:"},
        {"-", "t.json:1:"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dpq_json *doc = NULL;
        expect_error(parse(cases[i].text, &doc), DPQ_E_INPUT, cases[i].part);
        assert_null(doc);
    }
    dpq_json *doc = NULL;
    expect_error(dpq_json_parse("{}\0", 3, "t.json", &doc), DPQ_E_INPUT, "t.json:1:");
    expect_error(dpq_json_read_file("tests/models/tiny/none.json", 100, &doc), DPQ_E_INPUT, "none.json");
    expect_error(dpq_json_read_file("tests/models/tiny/config.json", 10, &doc), DPQ_E_INPUT, "at most 10");
}

static void depth_is_capped(void **state)
{
    char text[200];
    dpq_json *doc = NULL;
    (void)state;
    memset(text, '[', 64);
    memset(text + 64, ']', 64);
    text[128] = '\0';
    expect_ok(parse(text, &doc));
    dpq_json_destroy(&doc);
    memset(text, '[', 65);
    memset(text + 65, ']', 65);
    text[130] = '\0';
    expect_error(parse(text, &doc), DPQ_E_INPUT, "nested more than 64 deep");
    /* Brackets in strings do not count. */
    memset(text, '[', 150);
    text[0] = text[149] = '"';
    text[150] = '\0';
    expect_ok(parse(text, &doc));
    dpq_json_destroy(&doc);
}

static void python_words(void **state)
{
    dpq_json *doc = NULL;
    double real = 7;
    bool found = true;
    (void)state;
    expect_ok(parse(
        "{\"a\": NaN, \"b\": [Infinity,-Infinity,NaN,NaN,-1], \"c\": \"NaN \\\" Infinity\", \"d\\\\\": NaN}", &doc));
    assert_int_equal(dpq_json_get_kind(dpq_json_member(doc, "a")), DPQ_JSON_NULL);
    const dpq_json *b = dpq_json_member(doc, "b");
    assert_int_equal(dpq_json_size(b), 5);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(dpq_json_get_kind(dpq_json_item(b, i)), DPQ_JSON_NULL);
    }
    assert_int_equal(dpq_json_int(dpq_json_item(b, 4)), -1);
    assert_string_equal(dpq_json_string(dpq_json_member(doc, "c")), "NaN \" Infinity");
    assert_int_equal(dpq_json_get_kind(dpq_json_member(doc, "d\\")), DPQ_JSON_NULL);
    expect_ok(dpq_json_opt_real(doc, "t.json", "a", &real, &found));
    assert_false(found);
    assert_true(real == 7);
    dpq_json_destroy(&doc);
    /* Columns after a word stay right. */
    expect_error(parse("{\"a\": Infinity, x}", &doc), DPQ_E_INPUT, "t.json:1:17");
    expect_ok(parse("NaN", &doc));
    dpq_json_destroy(&doc);
}

static void big_integers_become_reals(void **state)
{
    dpq_json *doc = NULL;
    int64_t value = 0;
    (void)state;
    expect_ok(parse("[9223372036854775807, 9223372036854775808, -9223372036854775809, 1000000000000000019884624838656,"
                    "-9223372036854775808, 18446744073709551615]",
                    &doc));
    assert_true(dpq_json_int(dpq_json_item(doc, 0)) == INT64_MAX);
    assert_int_equal(dpq_json_get_kind(dpq_json_item(doc, 1)), DPQ_JSON_REAL);
    assert_int_equal(dpq_json_get_kind(dpq_json_item(doc, 2)), DPQ_JSON_REAL);
    assert_true(dpq_json_real(dpq_json_item(doc, 3)) == 1e30);
    assert_true(dpq_json_int(dpq_json_item(doc, 4)) == INT64_MIN);
    assert_true(dpq_json_real(dpq_json_item(doc, 5)) == 18446744073709551616.0);
    dpq_json_destroy(&doc);
    expect_ok(parse("{\"n\": 99999999999999999999}", &doc));
    expect_error(dpq_json_opt_int(doc, "t.json", "n", &value, NULL), DPQ_E_INPUT, "expected an integer, found real");
    dpq_json_destroy(&doc);
}

static void typed_members(void **state)
{
    dpq_json *doc = NULL;
    int64_t i = 5;
    double r = 5;
    bool b = true;
    bool found = true;
    const char *s = "s";
    (void)state;
    expect_ok(
        parse("{\"i\": 3, \"r\": 1e-06, \"b\": false, \"s\": \"x\\ty\", \"n\": null, \"a\": [1], \"o\": {}}", &doc));
    expect_ok(dpq_json_opt_int(doc, "f", "missing", &i, &found));
    assert_int_equal(i, 5);
    assert_false(found);
    expect_ok(dpq_json_opt_int(doc, "f", "n", &i, &found));
    assert_false(found);
    expect_ok(dpq_json_opt_int(doc, "f", "i", &i, &found));
    assert_int_equal(i, 3);
    assert_true(found);
    expect_ok(dpq_json_opt_real(doc, "f", "i", &r, NULL));
    assert_true(r == 3);
    expect_ok(dpq_json_opt_real(doc, "f", "r", &r, NULL));
    assert_true(r == 1e-6);
    expect_ok(dpq_json_opt_bool(doc, "f", "b", &b, &found));
    assert_false(b);
    expect_ok(dpq_json_opt_string(doc, "f", "s", &s, &found));
    assert_string_equal(s, "x\ty");
    expect_error(dpq_json_opt_int(doc, "f", "r", &i, &found), DPQ_E_INPUT,
                 "f: key \"r\": expected an integer, found real number 9.9");
    assert_false(found);
    expect_error(dpq_json_opt_int(doc, "f", "b", &i, NULL), DPQ_E_INPUT, "found false");
    expect_error(dpq_json_opt_real(doc, "f", "s", &r, NULL), DPQ_E_INPUT, "expected a number, found string \"x?y\"");
    expect_error(dpq_json_opt_bool(doc, "f", "i", &b, NULL), DPQ_E_INPUT, "expected true or false, found integer 3");
    expect_error(dpq_json_opt_string(doc, "f", "a", &s, NULL), DPQ_E_INPUT, "expected a string, found array of 1");
    expect_error(dpq_json_opt_string(doc, "f", "o", &s, NULL), DPQ_E_INPUT, "found object of 0 members");
    dpq_json_destroy(&doc);
}

static void real_files(void **state)
{
    dpq_json *doc = NULL;
    int64_t width = 0;
    double eps = 0;
    (void)state;
    expect_ok(dpq_json_read_file("tests/models/tiny/config.json", 1 << 20, &doc));
    expect_ok(dpq_json_opt_int(doc, "config.json", "hidden_size", &width, NULL));
    assert_int_equal(width, 256);
    expect_ok(dpq_json_opt_real(doc, "config.json", "rms_norm_eps", &eps, NULL));
    assert_true(eps == 1e-5);
    dpq_json_destroy(&doc);
    expect_ok(dpq_json_read_file("tests/models/tiny/tokenizer.json", 1 << 20, &doc));
    assert_int_equal(dpq_json_size(dpq_json_member(dpq_json_member(doc, "model"), "vocab")), 2048);
    dpq_json_destroy(&doc);
}

static void writer_text(void **state)
{
    dpq_json_writer *w = NULL;
    char *text = NULL;
    size_t size = 0;
    dpq_json *doc = NULL;
    (void)state;
    expect_ok(dpq_json_writer_create(&w));
    dpq_json_begin_object(w, NULL);
    dpq_json_put_string(w, "quote\"", "a\\b\n\x01\xc3\xa9\xff\xe2\x82");
    dpq_json_put_string(w, "none", NULL);
    dpq_json_begin_array(w, "list");
    dpq_json_put_int(w, NULL, INT64_MIN);
    dpq_json_put_real(w, NULL, 0.1);
    dpq_json_put_real(w, NULL, 3);
    dpq_json_put_real(w, NULL, NAN);
    dpq_json_put_real(w, NULL, -INFINITY);
    dpq_json_begin_object(w, NULL);
    dpq_json_end(w);
    dpq_json_end(w);
    dpq_json_begin_array(w, "empty");
    dpq_json_end(w);
    dpq_json_put_bool(w, "yes", true);
    dpq_json_put_null(w, "null");
    dpq_json_end(w);
    expect_ok(dpq_json_writer_finish(&w, &text, &size));
    assert_null(w);
    assert_string_equal(text, "{\n"
                              "  \"quote\\\"\": \"a\\\\b\\n\\u0001\xc3\xa9\\ufffd\\ufffd\\ufffd\",\n"
                              "  \"none\": null,\n"
                              "  \"list\": [\n"
                              "    -9223372036854775808,\n"
                              "    0.1,\n"
                              "    3.0,\n"
                              "    null,\n"
                              "    null,\n"
                              "    {}\n"
                              "  ],\n"
                              "  \"empty\": [],\n"
                              "  \"yes\": true,\n"
                              "  \"null\": null\n"
                              "}\n");
    assert_int_equal(size, strlen(text));
    expect_ok(parse(text, &doc));
    dpq_json_destroy(&doc);
    dpq_free(text);
}

static void reals_read_back(void **state)
{
    static const double values[] = {0.0,           -0.0, 1e-6,    1.0 / 3.0, 5e-324,          1.7976931348623157e308,
                                    123456789.125, 1e22, 1.5e-10, 100000,    17.678123456789, 2.2250738585072014e-308};
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        dpq_json_writer *w = NULL;
        char *text = NULL;
        size_t size = 0;
        dpq_json *doc = NULL;
        expect_ok(dpq_json_writer_create(&w));
        dpq_json_put_real(w, NULL, values[i]);
        expect_ok(dpq_json_writer_finish(&w, &text, &size));
        expect_ok(parse(text, &doc));
        assert_int_equal(dpq_json_get_kind(doc), DPQ_JSON_REAL);
        double back = dpq_json_real(doc);
        assert_memory_equal(&back, values + i, sizeof back);
        dpq_json_destroy(&doc);
        dpq_free(text);
    }
}

static void writer_misuse(void **state)
{
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        dpq_json_writer *w = NULL;
        char *text = NULL;
        size_t size = 0;
        expect_ok(dpq_json_writer_create(&w));
        switch (kind) {
        case 0: /* no root */
            break;
        case 1:
            dpq_json_begin_object(w, NULL); /* stays open */
            break;
        case 2:
            dpq_json_end(w);
            break;
        case 3:
            dpq_json_begin_object(w, NULL);
            dpq_json_put_int(w, NULL, 1); /* member without key */
            dpq_json_end(w);
            break;
        case 4:
            dpq_json_put_int(w, NULL, 1);
            dpq_json_put_int(w, NULL, 2); /* two roots */
            break;
        default:
            for (int i = 0; i < 65; i++) {
                dpq_json_begin_array(w, NULL);
            }
            break;
        }
        expect_error(dpq_json_writer_finish(&w, &text, &size), DPQ_E_BUG, "JSON writer");
        assert_null(w);
        assert_null(text);
    }
}

static void append_is(const char *source, const char *value, const char *expected)
{
    char *out = NULL;
    expect_ok(dpq_json_append_member(source, "k", value, &out));
    assert_string_equal(out, expected);
    dpq_free(out);
}

static void appending_keeps_the_rest(void **state)
{
    char *out = NULL;
    (void)state;
    append_is("{\n  \"a\": 1e-06,\n  \"b\": NaN\n}\n", "{\n  \"x\": 1\n}\n",
              "{\n  \"a\": 1e-06,\n  \"b\": NaN,\n  \"k\": {\n    \"x\": 1\n  }\n}\n");
    append_is("{\"a\":\"}\"}", "2", "{\"a\":\"}\", \"k\": 2}");
    append_is("{}", "2", "{\"k\": 2}");
    append_is(" { \n } \r\n", "2", " {\"k\": 2 \n } \r\n");
    append_is("{\r\n    \"a\": 10000000000000000000000,\r\n    \"c\": [1, 2]\r\n}", "[\n  1\n]",
              "{\r\n    \"a\": 10000000000000000000000,\r\n    \"c\": [1, 2],\r\n    \"k\": [\n      1\n    ]\r\n}");
    expect_error(dpq_json_append_member("[1]", "k", "1", &out), DPQ_E_INPUT, "no object");
    expect_error(dpq_json_append_member("{\"k\": 0}", "k", "1", &out), DPQ_E_INPUT, "has it already");
    expect_error(dpq_json_append_member("{\"a\": 0", "k", "1", &out), DPQ_E_INPUT, "JSON text:1:");
    expect_error(dpq_json_append_member("{\"a\": 0}", "k", "1,", &out), DPQ_E_INPUT, "with the added member");
    expect_error(dpq_json_append_member("{\"a\": 0}", "k", "", &out), DPQ_E_INPUT, "with the added member");
    assert_null(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_order), cmocka_unit_test(large_objects),
        cmocka_unit_test(broken_documents), cmocka_unit_test(depth_is_capped),
        cmocka_unit_test(python_words),     cmocka_unit_test(big_integers_become_reals),
        cmocka_unit_test(typed_members),    cmocka_unit_test(real_files),
        cmocka_unit_test(writer_text),      cmocka_unit_test(reals_read_back),
        cmocka_unit_test(writer_misuse),    cmocka_unit_test(appending_keeps_the_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
