/* SPDX-License-Identifier: Apache-2.0 */
/* Recipes into option structs: sections, unknown and repeated keys, wrong kinds, lists, handler, --set. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dpquant/alloc.h"
#include "dpquant/config.h"

typedef struct {
    char *model;
    char *scheme;
    int64_t bits;
    dpq_str_list ignore;
} quantize_settings;

typedef struct {
    double damp;
    bool sequential;
} gptq_settings;

static const dpq_option quantize_table[] = {
    {"model", DPQ_OPTION_PATH, offsetof(quantize_settings, model), 0, 0, NULL, NULL, false, ""},
    {"quantize.scheme", DPQ_OPTION_STRING, offsetof(quantize_settings, scheme), 0, 0, NULL, "none", true, ""},
    {"quantize.bits", DPQ_OPTION_INT, offsetof(quantize_settings, bits), 2, 8, NULL, "4", true, ""},
    {"quantize.ignore", DPQ_OPTION_STRINGS, offsetof(quantize_settings, ignore), 0, 0, NULL, "lm_head", true, ""},
};
static const dpq_option gptq_table[] = {
    {"gptq.damp", DPQ_OPTION_REAL, offsetof(gptq_settings, damp), 0, 1, NULL, "0.01", true, ""},
    {"gptq.order.sequential", DPQ_OPTION_BOOL, offsetof(gptq_settings, sequential), 0, 0, NULL, "true", true, ""},
};

static quantize_settings quantize;
static gptq_settings gptq;
static bool quantize_set[DPQ_COUNT_OF(quantize_table)];
static dpq_option_set sets[2] = {
    {quantize_table, DPQ_COUNT_OF(quantize_table), &quantize, quantize_set},
    {gptq_table, DPQ_COUNT_OF(gptq_table), &gptq, NULL},
};

static int begin(void **state)
{
    (void)state;
    memset(&quantize, 0, sizeof quantize);
    memset(&gptq, 0, sizeof gptq);
    return dpq_option_set_defaults(&sets[0]) == DPQ_OK && dpq_option_set_defaults(&sets[1]) == DPQ_OK ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    dpq_option_set_fini(&sets[0]);
    dpq_option_set_fini(&sets[1]);
    return 0;
}

static dpq_status apply_with(const char *text, dpq_config_handler handler, void *context)
{
    dpq_yaml *tree = NULL;
    DPQ_TRY(dpq_yaml_parse(text, strlen(text), "recipe.yaml", &tree));
    dpq_status st = dpq_config_apply(tree, "recipe.yaml", "/recipes", sets, 2, handler, context);
    dpq_yaml_destroy(&tree);
    return st;
}

static void check_error(const char *text, const char *message)
{
    assert_int_equal(apply_with(text, NULL, NULL), DPQ_E_CONFIG);
    assert_string_equal(dpq_error_last()->text, message);
}

static void test_good_recipe(void **state)
{
    (void)state;
    const char text[] = "model: ../m\nquantize:\n  bits: 3\n  scheme: \"w3\"\n  ignore:\n  - lm_head\n  - re:x{1,2}\n"
                        "gptq:\n  damp: 1e-3\n  order: {sequential: false}\n";
    assert_int_equal(apply_with(text, NULL, NULL), DPQ_OK);
    assert_string_equal(quantize.model, "/recipes/../m");
    assert_string_equal(quantize.scheme, "w3");
    assert_int_equal(quantize.bits, 3);
    assert_int_equal(quantize.ignore.count, 2); /* the default list is replaced */
    assert_string_equal(quantize.ignore.items[1], "re:x{1,2}");
    assert_true(gptq.damp == 1e-3 && !gptq.sequential);
    assert_true(quantize_set[0] && quantize_set[1] && quantize_set[2] && quantize_set[3]);
}

static void test_spellings(void **state)
{
    (void)state;
    assert_int_equal(apply_with("quantize.bits: 5\ngptq.order.sequential: false\n", NULL, NULL), DPQ_OK);
    assert_int_equal(quantize.bits, 5);
    assert_false(gptq.sequential);
    assert_false(quantize_set[0] || quantize_set[3]);
    assert_int_equal(apply_with("quantize: {ignore: a, bits: '6'}\n", NULL, NULL), DPQ_OK);
    assert_int_equal(quantize.bits, 6);
    assert_int_equal(quantize.ignore.count, 1);
    assert_string_equal(quantize.ignore.items[0], "a");
    assert_int_equal(apply_with("quantize: {ignore: 'a, b'}\n", NULL, NULL), DPQ_OK);
    assert_int_equal(quantize.ignore.count, 2);
    assert_int_equal(apply_with("quantize: {ignore: [], scheme: null}\ngptq:\n", NULL, NULL), DPQ_OK);
    assert_int_equal(quantize.ignore.count, 0);
    assert_null(quantize.scheme);
    assert_int_equal(apply_with("", NULL, NULL), DPQ_OK);
}

static void test_null_list_is_empty(void **state)
{
    (void)state;
    assert_int_equal(apply_with("quantize:\n  ignore:\n", NULL, NULL), DPQ_OK);
    assert_int_equal(quantize.ignore.count, 0);
    assert_true(quantize_set[3]);
}

static void test_unknown_keys(void **state)
{
    (void)state;
    check_error("model: m\nquantize:\n  bts: 4\n",
                "recipe.yaml:3:3: quantize.bts: unknown key; nearest is quantize.bits");
    check_error("quantise: {bits: 4}\n", "recipe.yaml:1:1: quantise: unknown key; nearest is quantize");
    check_error("bits: 4\n", "recipe.yaml:1:1: bits: unknown key; nearest is quantize.bits");
    check_error("gptq:\n  bits: 4\n", "recipe.yaml:2:3: gptq.bits: unknown key; nearest is quantize.bits");
    check_error("zzzzzzzz: 1\n", "recipe.yaml:1:1: zzzzzzzz: unknown key");
    check_error("gptq: {order: {sequental: true}}\n",
                "recipe.yaml:1:16: gptq.order.sequental: unknown key; nearest is gptq.order.sequential");
}

static void test_bad_values(void **state)
{
    (void)state;
    check_error("quantize:\n  bits: 9\n", "recipe.yaml:2:9: quantize.bits: expected integer 2..8, found \"9\"");
    check_error("quantize:\n  bits: 4.0\n", "recipe.yaml:2:9: quantize.bits: expected integer 2..8, found \"4.0\"");
    check_error("gptq: {order: {sequential: no}}\n",
                "recipe.yaml:1:28: gptq.order.sequential: expected true or false, found \"no\"");
    check_error("gptq: {damp: 0,01}\n", "recipe.yaml:1:16: gptq.01: unknown key");
    assert_int_equal(quantize.bits, 4);
}

static void test_wrong_kinds(void **state)
{
    (void)state;
    check_error("quantize: 4\n", "recipe.yaml:1:11: quantize: expected a mapping of options, found a single value");
    check_error("quantize: [bits]\n", "recipe.yaml:1:11: quantize: expected a mapping of options, found a sequence");
    check_error("quantize:\n  bits: {a: 1}\n",
                "recipe.yaml:2:9: quantize.bits: expected integer 2..8, found a mapping");
    check_error("quantize:\n  bits: [4]\n", "recipe.yaml:2:9: quantize.bits: expected integer 2..8, found a sequence");
    check_error("quantize:\n  bits:\n", "recipe.yaml:2:8: quantize.bits: expected integer 2..8, found nothing");
    check_error("quantize:\n  ignore: {a: 1}\n",
                "recipe.yaml:2:11: quantize.ignore: expected list of texts, found a mapping");
    check_error("quantize:\n  ignore: [a, [b]]\n",
                "recipe.yaml:2:15: quantize.ignore: expected text as item 2, found a sequence");
    check_error("quantize:\n  ignore: [a, ~]\n",
                "recipe.yaml:2:15: quantize.ignore: expected text as item 2, found nothing");
    check_error("- a\n", "recipe.yaml:1:1: expected a mapping of options, found a sequence");
    check_error("just text\n", "recipe.yaml:1:1: expected a mapping of options, found a single value");
}

static void test_repeated_in_two_spellings(void **state)
{
    (void)state;
    check_error("quantize: {bits: 4}\nquantize.bits: 4\n", "recipe.yaml:2:1: quantize.bits: repeated key");
}

typedef struct {
    int n_overrides;
    bool must_fail;
} handler_state;

static dpq_status take_overrides(void *context, const char *key, const dpq_yaml *value, const char *name, bool *handled)
{
    handler_state *h = context;
    *handled = strcmp(key, "quantize.overrides") == 0;
    if (*handled && h->must_fail) {
        return DPQ_RAISE(DPQ_E_CONFIG, "%s:%d:%d: refused", name, value->line, value->column);
    }
    if (*handled) {
        h->n_overrides += (int)value->count;
    }
    return DPQ_OK;
}

static void test_handler(void **state)
{
    (void)state;
    const char text[] = "quantize:\n  overrides:\n  - {match: a, bits: 8}\n  - {match: b}\n  bits: 2\n";
    handler_state h = {0};
    assert_int_equal(apply_with(text, take_overrides, &h), DPQ_OK);
    assert_int_equal(h.n_overrides, 2);
    assert_int_equal(quantize.bits, 2);
    h.must_fail = true;
    assert_int_equal(apply_with(text, take_overrides, &h), DPQ_E_CONFIG);
    assert_string_equal(dpq_error_last()->text, "recipe.yaml:3:3: refused");
    assert_int_equal(apply_with(text, NULL, NULL), DPQ_E_CONFIG);
    h.must_fail = false;
    const char twice[] = "quantize: {overrides: []}\nquantize.overrides: []\n";
    assert_int_equal(apply_with(twice, take_overrides, &h), DPQ_E_CONFIG);
}

static void check_set_error(const char *assignment, const char *message)
{
    assert_int_equal(dpq_config_set(assignment, sets, 2), DPQ_E_CONFIG);
    assert_string_equal(dpq_error_last()->text, message);
}

static void test_set(void **state)
{
    (void)state;
    assert_int_equal(dpq_config_set("quantize.bits=3", sets, 2), DPQ_OK);
    assert_int_equal(dpq_config_set("quantize.bits=2", sets, 2), DPQ_OK);
    assert_int_equal(quantize.bits, 2);
    assert_int_equal(dpq_config_set("quantize.ignore=a,b=c", sets, 2), DPQ_OK);
    assert_int_equal(quantize.ignore.count, 2);
    assert_string_equal(quantize.ignore.items[1], "b=c");
    assert_int_equal(dpq_config_set("model=m", sets, 2), DPQ_OK); /* relative to the working folder */
    assert_string_equal(quantize.model, "m");
    assert_int_equal(dpq_config_set("gptq.damp=2e-5", sets, 2), DPQ_OK);
    check_set_error("quantize.bits", "--set: expected key=value, found \"quantize.bits\"");
    check_set_error("=3", "--set: expected key=value, found \"=3\"");
    check_set_error("quantize.bts=3", "--set: quantize.bts: unknown key; nearest is quantize.bits");
    check_set_error("quantize.bits=", "--set: quantize.bits: expected integer 2..8, found \"\"");
    check_set_error("quantize=3", "--set: quantize: unknown key");
}

#ifdef DPQ_FAULT_INJECTION
/* Let each allocation of a whole recipe fail in turn, in a child: the status says "no memory", and nothing breaks or
 * leaks (a build with AddressSanitizer looks for leaks in exit and changes the exit code). */
static void test_failing_allocations(void **state)
{
    (void)state;
    int n_failed = 0;
    for (int n = 1; n < 20000; n++) {
        fflush(NULL); /* or the child prints the parent's buffer again */
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            char text[32];
            snprintf(text, sizeof text, "%d", n);
            setenv("DPQ_FAIL_AT", text, 1);
            dpq_status st = apply_with("quantize: {ignore: [a, b], bits: 3, scheme: x}\nmodel: m\n", NULL, NULL);
            st = st == DPQ_OK ? dpq_config_set("quantize.ignore=c,d", sets, 2) : st;
            if (st == DPQ_OK) { /* the way to an error message allocates, too */
                st = apply_with("quantise: {bits: 3}\n", NULL, NULL);
                st = st == DPQ_E_CONFIG ? DPQ_OK : st;
            }
            unsetenv("DPQ_FAIL_AT");
            end(NULL);
            exit(st == DPQ_OK ? 0 : st == DPQ_E_MEMORY ? 1 : 2);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
        n_failed += WEXITSTATUS(status);
        if (n_failed && WEXITSTATUS(status) == 0) {
            break;
        }
    }
    assert_true(n_failed > 20);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_good_recipe, begin, end),
        cmocka_unit_test_setup_teardown(test_spellings, begin, end),
        cmocka_unit_test_setup_teardown(test_null_list_is_empty, begin, end),
        cmocka_unit_test_setup_teardown(test_unknown_keys, begin, end),
        cmocka_unit_test_setup_teardown(test_bad_values, begin, end),
        cmocka_unit_test_setup_teardown(test_wrong_kinds, begin, end),
        cmocka_unit_test_setup_teardown(test_repeated_in_two_spellings, begin, end),
        cmocka_unit_test_setup_teardown(test_handler, begin, end),
        cmocka_unit_test_setup_teardown(test_set, begin, end),
#ifdef DPQ_FAULT_INJECTION
        cmocka_unit_test_setup_teardown(test_failing_allocations, begin, end),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
