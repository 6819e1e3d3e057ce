/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: defaults, a named scheme against keys set by hand in either order, overrides, and which settings shape the
 * result. */
#include "dpquant/config.h"
#include "dpquant/json.h"
#include "dpquant/settings.h"
#include "io_test.h"

static dpq_settings *create(void)
{
    dpq_settings *settings = NULL;
    expect_ok(dpq_settings_create(&settings));
    return settings;
}

static void set(dpq_settings *settings, const char *assignment)
{
    char key[128];
    expect_ok(dpq_config_set(assignment, settings->sets, settings->n_sets));
    snprintf(key, sizeof key, "%.*s", (int)strcspn(assignment, "="), assignment);
    dpq_settings_note_set(settings, key);
}

static void expect_scheme(const dpq_settings *settings, int bits, int64_t group, bool symmetric, bool signed_scale)
{
    dpq_scheme scheme;
    expect_ok(dpq_settings_base_scheme(settings, &scheme));
    assert_int_equal(scheme.bits, bits);
    assert_int_equal(scheme.group_size, group);
    assert_int_equal(scheme.symmetric, symmetric);
    assert_int_equal(scheme.signed_scale, signed_scale);
}

static void test_defaults(void **state)
{
    (void)state;
    dpq_settings *s = create();
    expect_scheme(s, 4, 128, true, true);
    assert_null(s->run.model);
    assert_null(s->run.output);
    assert_false(s->run.overwrite);
    assert_int_equal(s->run.calibration.samples, 128);
    assert_int_equal(s->run.eval.precision, DPQ_PRECISION_FP32);
    assert_int_equal(s->run.run.precision, DPQ_PRECISION_BF16);
    assert_int_equal(s->run.quantize.ignore.count, 1);
    assert_string_equal(s->run.quantize.ignore.items[0], "lm_head");
    dpq_settings_destroy(&s);
    assert_null(s);
    dpq_settings_destroy(&s);
}

static void test_scheme_and_keys_in_either_order(void **state)
{
    (void)state;
    dpq_settings *s = create();
    set(s, "quantize.bits=2");
    set(s, "quantize.group_size=32");
    expect_scheme(s, 2, 32, true, true);
    set(s, "quantize.scheme=W8A16_ASYM"); /* the later one replaces what was set by hand */
    expect_scheme(s, 8, 128, false, false);
    set(s, "quantize.bits=3");
    expect_scheme(s, 3, 128, false, false);
    set(s, "quantize.symmetric=true");
    expect_scheme(s, 3, 128, true, true);
    set(s, "quantize.signed_scale=false");
    expect_scheme(s, 3, 128, true, false);
    set(s, "quantize.scheme=W4A16");
    expect_scheme(s, 4, 128, true, false);
    dpq_settings_destroy(&s);
}

static void test_resolved_settings_are_the_effective_ones(void **state)
{
    (void)state;
    dpq_settings *s = create();
    expect_ok(dpq_settings_resolve_scheme(s));
    assert_int_equal(s->run.quantize.bits, 4);
    set(s, "quantize.scheme=W8A16_ASYM");
    set(s, "quantize.group_size=-1");
    expect_ok(dpq_settings_resolve_scheme(s));
    assert_int_equal(s->run.quantize.bits, 8);
    assert_int_equal(s->run.quantize.group_size, -1);
    assert_false(s->run.quantize.symmetric);
    expect_scheme(s, 8, -1, false, false); /* and stay so */
    dpq_settings_destroy(&s);
}

static void test_refused(void **state)
{
    (void)state;
    dpq_settings *s = create();
    dpq_scheme scheme;
    set(s, "quantize.group_size=0");
    expect_error(dpq_settings_base_scheme(s, &scheme), DPQ_E_CONFIG, "found 0");
    expect_error(dpq_settings_resolve_scheme(s), DPQ_E_CONFIG, "found 0");
    set(s, "quantize.scheme=W4");
    expect_error(dpq_settings_base_scheme(s, &scheme), DPQ_E_CONFIG, "unknown scheme 'W4'");
    expect_error(dpq_config_set("quantize.bits=9", s->sets, s->n_sets), DPQ_E_CONFIG, "quantize.bits");
    expect_error(dpq_config_set("quantize.bit=4", s->sets, s->n_sets), DPQ_E_CONFIG, "quantize.bits");
    dpq_settings_destroy(&s);
}

static void test_overrides(void **state)
{
    (void)state;
    dpq_settings *s = create();
    char *text = NULL;
    dpq_override *o;
    for (int i = 0; i < 20; i++) { /* the list moves while it grows */
        expect_ok(dpq_settings_add_override(s, &o));
        assert_null(o->match);
        assert_false(o->has_bits || o->has_group_size || o->has_symmetric || o->ignore);
        expect_ok(dpq_str_format(&o->match, "module \"%d\"", i));
    }
    s->overrides[1].has_bits = true;
    s->overrides[1].bits = 8;
    s->overrides[2].ignore = true;
    expect_ok(dpq_settings_overrides_text(s, &text));
    dpq_json *json = NULL;
    expect_ok(dpq_json_parse(text, strlen(text), "overrides", &json));
    assert_int_equal(dpq_json_size(json), 20);
    assert_non_null(strstr(text, "module \\\"19\\\""));
    assert_non_null(strstr(text, "\"bits\": 8"));
    assert_non_null(strstr(text, "\"ignore\": true"));
    assert_null(strstr(text, "group_size"));
    dpq_json_destroy(&json);
    dpq_free(text);
    dpq_settings_destroy(&s);
}

/* Places, machines and what is printed do not shape a result; everything else does. A new setting must take its side
 * here. */
static void test_which_settings_shape_the_result(void **state)
{
    (void)state;
    static const char *const free_ones[] = {"model",          "output",      "overwrite",   "calibration.data",
                                            "eval.data",      "run.device",  "run.threads", "run.log_level",
                                            "run.low_memory", "run.scratch", "run.ranks"};
    dpq_settings *s = create();
    size_t found = 0;
    for (size_t set_index = 0; set_index < s->n_sets; set_index++) {
        for (size_t i = 0; i < s->sets[set_index].count; i++) {
            const dpq_option *option = &s->sets[set_index].options[i];
            bool free_one = false;
            for (size_t f = 0; f < DPQ_COUNT_OF(free_ones); f++) {
                free_one = free_one || strcmp(option->key, free_ones[f]) == 0;
            }
            if (option->shapes_result == free_one) {
                fail_msg("%s is on the wrong side", option->key);
            }
            found += free_one ? 1 : 0;
            size_t where = 99;
            assert_ptr_equal(dpq_option_find(s->sets, s->n_sets, option->key, &where), option); /* no key twice */
            assert_int_equal(where, set_index);
            assert_true(strlen(option->help) > 10);
        }
    }
    assert_true(found >= 8);
    dpq_settings_destroy(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_scheme_and_keys_in_either_order),
        cmocka_unit_test(test_resolved_settings_are_the_effective_ones),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_which_settings_shape_the_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
