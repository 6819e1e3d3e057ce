/* SPDX-License-Identifier: Apache-2.0 */
/* Module patterns: exact names, expressions from the start of the name, bad expressions, the limit on one match. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "dpquant/log.h"
#include "dpquant/pattern.h"

static bool matches(const char *text, const char *name)
{
    dpq_pattern *p = NULL;
    assert_int_equal(dpq_pattern_compile(text, &p), DPQ_OK);
    bool result = dpq_pattern_matches(p, name);
    dpq_pattern_destroy(&p);
    assert_null(p);
    return result;
}

static void test_exact(void **state)
{
    (void)state;
    assert_true(matches("lm_head", "lm_head"));
    assert_false(matches("lm_head", "lm_head2"));
    assert_false(matches("lm_head", "model.lm_head"));
    assert_false(matches("layers.0", "layersx0")); /* no expression without re: */
    assert_false(matches(".*", "lm_head"));
    assert_false(matches("RE:.*", "lm_head"));
}

static void test_anchored_at_the_start_only(void **state)
{
    (void)state;
    assert_true(matches("re:model\\.layers\\.0\\.", "model.layers.0.mlp.up_proj"));
    assert_false(matches("re:layers\\.0\\.", "model.layers.0.mlp.up_proj"));
    assert_true(matches("re:.*up_proj", "model.layers.0.mlp.up_proj.extra"));
    assert_false(matches("re:.*up_proj$", "model.layers.0.mlp.up_proj.extra"));
    assert_true(matches("re:^model", "model.norm"));
    /* every branch of an alternative is tied to the start */
    assert_true(matches("re:lm_head|model", "model.norm"));
    assert_false(matches("re:lm_head|norm", "model.norm"));
    assert_true(matches("re:", "anything"));
}

static void test_numbers_and_classes(void **state)
{
    (void)state;
    const char *odd = "re:model\\.layers\\.(?:[0-9]*[13579])\\.self_attn\\.[qkv]_proj$";
    assert_true(matches(odd, "model.layers.11.self_attn.q_proj"));
    assert_false(matches(odd, "model.layers.12.self_attn.q_proj"));
    assert_false(matches(odd, "model.layers.11.self_attn.o_proj"));
}

static void test_bad_expression(void **state)
{
    (void)state;
    dpq_pattern *p = (dpq_pattern *)&p;
    assert_int_equal(dpq_pattern_compile("re:layers\\.(0", &p), DPQ_E_CONFIG);
    assert_null(p);
    const char *text = dpq_error_last()->text;
    assert_non_null(strstr(text, "layers\\.(0"));
    assert_non_null(strstr(text, "parenthes"));
    assert_non_null(strstr(text, "character 11"));
    assert_int_equal(dpq_pattern_compile("re:[a", &p), DPQ_E_CONFIG);
    assert_int_equal(dpq_pattern_compile("re:*x", &p), DPQ_E_CONFIG);
    assert_int_equal(dpq_pattern_compile("re:\xff", &p), DPQ_E_CONFIG); /* no UTF-8 */
    dpq_pattern_destroy(&p);
}

/* Nested quantifiers on a name without a match: the limit ends it, and the answer is no. */
static void test_runaway_expression_ends(void **state)
{
    (void)state;
    assert_false(matches("re:(a+)+$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"));
}

static void test_non_ascii_names(void **state)
{
    (void)state;
    assert_true(matches("re:couche.\\.", "couche\xc3\xa9.poids")); /* "." is one character, not one byte */
    assert_false(matches("re:.*", "\xff\xfe"));
}

int main(void)
{
    dpq_log_setup(0, 1, DPQ_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_anchored_at_the_start_only),
        cmocka_unit_test(test_numbers_and_classes),
        cmocka_unit_test(test_bad_expression),
        cmocka_unit_test(test_runaway_expression_ends),
        cmocka_unit_test(test_non_ascii_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
