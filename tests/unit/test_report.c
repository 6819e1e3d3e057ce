/* SPDX-License-Identifier: Apache-2.0 */
/* The record of a run as JSON: which setting goes to which file, typed values, figures, and that the result file
 * depends on nothing of the run. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "dpquant/alloc.h"
#include "dpquant/json.h"
#include "dpquant/report.h"

typedef struct {
    bool flag;
    int64_t count, bytes;
    double share;
    int choice;
    char *name, *path;
    dpq_str_list list;
} options;

static const char *const choices[] = {"one", "two", NULL};
static const dpq_option table[] = {
    {"t.flag", DPQ_OPTION_BOOL, offsetof(options, flag), 0, 0, NULL, "true", true, ""},
    {"t.count", DPQ_OPTION_INT, offsetof(options, count), 0, 0, NULL, "-7", true, ""},
    {"t.share", DPQ_OPTION_REAL, offsetof(options, share), 0, 0, NULL, "0.01", true, ""},
    {"t.choice", DPQ_OPTION_ENUM, offsetof(options, choice), 0, 0, choices, "two", true, ""},
    {"t.name", DPQ_OPTION_STRING, offsetof(options, name), 0, 0, NULL, NULL, true, ""},
    {"t.list", DPQ_OPTION_STRINGS, offsetof(options, list), 0, 0, NULL, "a,b", true, ""},
    {"run.path", DPQ_OPTION_PATH, offsetof(options, path), 0, 0, NULL, "/data/x", false, ""},
    {"run.bytes", DPQ_OPTION_BYTES, offsetof(options, bytes), 0, 0, NULL, "5G", false, ""},
};

typedef struct {
    options values;
    dpq_option_set set;
    dpq_module_record modules[2];
    dpq_rank_record ranks[2];
    dpq_block_record blocks[1];
    char module_names[2][16], block_name[16];
    dpq_report report;
} fixture;

static void fill(fixture *f)
{
    memset(f, 0, sizeof *f);
    f->set = (dpq_option_set){.options = table, .count = DPQ_COUNT_OF(table), .target = &f->values};
    assert_int_equal(dpq_option_set_defaults(&f->set), DPQ_OK);
    strcpy(f->module_names[0], "a.q_proj");
    strcpy(f->module_names[1], "lm_head");
    strcpy(f->block_name, "block 0");
    f->modules[0] = (dpq_module_record){.module = f->module_names[0],
                                        .n = 256,
                                        .k = 128,
                                        .quantized = true,
                                        .scheme = {4, 64, true, true},
                                        .method = "gptq",
                                        .relative_error = 0.125,
                                        .damping = 0.01,
                                        .fallback = false};
    f->modules[1] = (dpq_module_record){.module = f->module_names[1], .n = 300, .k = 256, .method = "ignored"};
    for (int r = 0; r < 2; r++) {
        f->ranks[r] = (dpq_rank_record){
            .rank = r, .threads = 1, .host = "node\"1", .isa = "avx2", .samples = 64, .peak_memory_bytes = 1000};
        f->ranks[r].seconds[DPQ_SPAN_FORWARD] = r + 1.0;
    }
    f->blocks[0] = (dpq_block_record){.name = f->block_name,
                                      .seconds = 1.5,
                                      .error = 0.25,
                                      .steps = 20,
                                      .repeats = 1,
                                      .best_step = 19,
                                      .initial_loss = 0.5,
                                      .best_loss = 0.125,
                                      .phase_seconds = {[DPQ_SPAN_BACKWARD] = 0.75}};
    f->report = (dpq_report){.version = "0.1.0",
                             .build = "abc",
                             .libraries = "lib 1",
                             .isa = "avx2",
                             .compute = "fp32",
                             .compiler = "gcc",
                             .architecture = "LlamaForCausalLM",
                             .sets = &f->set,
                             .n_sets = 1,
                             .overrides_json = "[{\"match\": \"re:.*down\", \"bits\": 8, \"x\": [1.5, null, true]}]",
                             .modules = f->modules,
                             .n_modules = 2,
                             .samples = 128,
                             .tokens = 1000,
                             .tokens_read = 1024,
                             .tokens_masked = 20,
                             .tokens_cut = 4,
                             .fallbacks = 3,
                             .ranks = f->ranks,
                             .n_ranks = 2,
                             .blocks = f->blocks,
                             .n_blocks = 1,
                             .seconds_total = 12.5,
                             .flop_forward = 4e9,
                             .output_bytes = 77,
                             .peak_memory_bytes = 2000,
                             .command_line = "dpquant --config x"};
    memset(f->report.model_digest, 'a', 64);
    memset(f->report.data_digest, 'b', 64);
    f->report.eval = (dpq_eval_figures){.done = true,
                                        .has_reference = true,
                                        .perplexity = 17.5,
                                        .reference_perplexity = 17.0,
                                        .kl_mean = 0.01,
                                        .kl_median = 0.005,
                                        .kl_p90 = 0.02,
                                        .kl_p99 = 0.1,
                                        .kl_p999 = 0.2,
                                        .kl_max = 0.5,
                                        .top1 = 0.95,
                                        .tokens = 511,
                                        .windows = 1};
}

static void release(fixture *f)
{
    dpq_option_set_fini(&f->set);
}

static dpq_json *parse(const char *text, size_t size)
{
    dpq_json *doc = NULL;
    assert_int_equal(strlen(text), size);
    assert_int_equal(dpq_json_parse(text, size, "report", &doc), DPQ_OK);
    return doc;
}

static const dpq_json *at(const dpq_json *object, const char *key)
{
    const dpq_json *value = dpq_json_member(object, key);
    if (value == NULL) {
        fail_msg("no member %s", key);
    }
    return value;
}

static void test_result(void **state)
{
    (void)state;
    fixture f;
    char *text = NULL;
    size_t size = 0;
    fill(&f);
    assert_int_equal(dpq_report_result_text(&f.report, &text, &size), DPQ_OK);
    dpq_json *doc = parse(text, size);
    const dpq_json *settings = at(doc, "settings");
    assert_int_equal(dpq_json_size(settings), 6);
    assert_true(dpq_json_bool(at(settings, "t.flag")));
    assert_int_equal(dpq_json_int(at(settings, "t.count")), -7);
    assert_true(dpq_json_real(at(settings, "t.share")) == 0.01);
    assert_string_equal(dpq_json_string(at(settings, "t.choice")), "two");
    assert_int_equal(dpq_json_get_kind(at(settings, "t.name")), DPQ_JSON_NULL);
    assert_int_equal(dpq_json_size(at(settings, "t.list")), 2);
    assert_string_equal(dpq_json_string(dpq_json_item(at(settings, "t.list"), 1)), "b");
    const dpq_json *overrides = dpq_json_item(at(doc, "overrides"), 0);
    assert_string_equal(dpq_json_string(at(overrides, "match")), "re:.*down");
    assert_int_equal(dpq_json_int(at(overrides, "bits")), 8);
    assert_int_equal(dpq_json_size(at(overrides, "x")), 3);
    assert_int_equal(dpq_json_int(at(at(doc, "calibration"), "tokens_masked")), 20);
    assert_string_equal(dpq_json_string(at(at(doc, "calibration"), "digest")), f.report.data_digest);
    assert_string_equal(dpq_json_string(at(at(doc, "model"), "digest")), f.report.model_digest);
    const dpq_json *module = dpq_json_item(at(doc, "modules"), 0);
    assert_string_equal(dpq_json_string(at(module, "name")), "a.q_proj");
    assert_int_equal(dpq_json_int(dpq_json_item(at(module, "shape"), 0)), 256);
    assert_int_equal(dpq_json_int(dpq_json_item(at(module, "shape"), 1)), 128);
    assert_int_equal(dpq_json_int(at(module, "group_size")), 64);
    assert_true(dpq_json_bool(at(module, "signed_scale")));
    assert_true(dpq_json_real(at(module, "relative_error")) == 0.125);
    const dpq_json *ignored = dpq_json_item(at(doc, "modules"), 1);
    assert_string_equal(dpq_json_string(at(ignored, "method")), "ignored");
    assert_null(dpq_json_member(ignored, "bits"));
    assert_int_equal(dpq_json_int(at(doc, "fallbacks")), 3);
    const dpq_json *block = dpq_json_item(at(doc, "blocks"), 0);
    assert_true(dpq_json_real(at(block, "error")) == 0.25);
    assert_int_equal(dpq_json_int(at(block, "steps")), 20);
    assert_int_equal(dpq_json_int(at(block, "repeated_steps")), 1);
    assert_int_equal(dpq_json_int(at(block, "best_step")), 19);
    assert_true(dpq_json_real(at(block, "initial_loss")) == 0.5 && dpq_json_real(at(block, "best_loss")) == 0.125);
    assert_true(dpq_json_real(at(at(doc, "eval"), "kl_p999")) == 0.2);
    assert_string_equal(dpq_json_string(at(at(doc, "dpquant"), "isa")), "avx2");
    dpq_json_destroy(&doc);
    dpq_free(text);
    release(&f);
}

static void test_result_depends_on_nothing_of_the_run(void **state)
{
    (void)state;
    fixture f;
    char *first = NULL, *second = NULL;
    size_t size = 0;
    fill(&f);
    assert_int_equal(dpq_report_result_text(&f.report, &first, &size), DPQ_OK);
    f.report.n_ranks = 1;
    f.report.ranks[0].threads = 8;
    f.report.ranks[0].seconds[DPQ_SPAN_LOAD] = 99.0;
    f.report.seconds_total = 1.0;
    f.report.blocks[0].seconds = 7.0;
    f.report.blocks[0].phase_seconds[DPQ_SPAN_BACKWARD] = 7.0;
    f.report.peak_memory_bytes = 5;
    f.report.output_bytes = 6;
    f.report.command_line = "another";
    f.values.bytes = 1;
    f.values.path[1] = 'z';
    assert_int_equal(dpq_report_result_text(&f.report, &second, &size), DPQ_OK);
    assert_string_equal(first, second);
    dpq_free(first);
    dpq_free(second);
    release(&f);
}

static void test_run(void **state)
{
    (void)state;
    fixture f;
    char *text = NULL;
    size_t size = 0;
    fill(&f);
    assert_int_equal(dpq_report_run_text(&f.report, &text, &size), DPQ_OK);
    dpq_json *doc = parse(text, size);
    assert_true(dpq_json_real(at(doc, "seconds_total")) == 12.5);
    assert_int_equal(dpq_json_size(at(doc, "settings")), 2);
    assert_string_equal(dpq_json_string(at(at(doc, "settings"), "run.path")), "/data/x");
    assert_int_equal(dpq_json_int(at(at(doc, "settings"), "run.bytes")), 5LL << 30);
    assert_int_equal(dpq_json_size(at(doc, "ranks")), 2);
    const dpq_json *rank = dpq_json_item(at(doc, "ranks"), 1);
    assert_string_equal(dpq_json_string(at(rank, "host")), "node\"1");
    assert_true(dpq_json_real(at(at(rank, "seconds"), "forward")) == 2.0);
    assert_int_equal(dpq_json_size(at(rank, "seconds")), DPQ_SPAN_COUNT);
    assert_true(dpq_json_real(at(doc, "gflops_forward")) == 2.0); /* 4e9 in the 2 s of the slower rank */
    assert_int_equal(dpq_json_get_kind(at(doc, "gflops_stats")), DPQ_JSON_NULL);
    const dpq_json *block = dpq_json_item(at(doc, "blocks"), 0);
    assert_string_equal(dpq_json_string(at(block, "name")), "block 0");
    assert_true(dpq_json_real(at(at(block, "seconds_by_phase"), "backward")) == 0.75);
    assert_int_equal(dpq_json_int(at(doc, "peak_memory_bytes")), 2000);
    dpq_json_destroy(&doc);
    dpq_free(text);
    release(&f);
}

static void test_nothing_calibrated_nor_evaluated(void **state)
{
    (void)state;
    fixture f;
    char *text = NULL;
    size_t size = 0;
    fill(&f);
    f.report.samples = 0;
    f.report.eval.done = false;
    f.report.overrides_json = NULL;
    assert_int_equal(dpq_report_result_text(&f.report, &text, &size), DPQ_OK);
    dpq_json *doc = parse(text, size);
    assert_int_equal(dpq_json_get_kind(at(doc, "eval")), DPQ_JSON_NULL);
    assert_int_equal(dpq_json_get_kind(at(doc, "calibration")), DPQ_JSON_NULL);
    assert_int_equal(dpq_json_size(at(doc, "overrides")), 0);
    dpq_json_destroy(&doc);
    dpq_free(text);
    release(&f);
}

static void test_bad_overrides(void **state)
{
    (void)state;
    fixture f;
    char *text = NULL;
    size_t size = 1;
    fill(&f);
    f.report.overrides_json = "[{]";
    assert_int_equal(dpq_report_result_text(&f.report, &text, &size), DPQ_E_INPUT);
    assert_null(text);
    assert_int_equal(size, 0);
    release(&f);
}

static void test_eval_text(void **state)
{
    (void)state;
    dpq_eval_figures figures = {.done = true, .perplexity = 17.5, .tokens = 10, .windows = 2};
    char *text = NULL;
    size_t size = 0;
    assert_int_equal(dpq_report_eval_text(&figures, &text, &size), DPQ_OK);
    dpq_json *doc = parse(text, size);
    assert_true(dpq_json_real(at(doc, "perplexity")) == 17.5);
    assert_int_equal(dpq_json_get_kind(at(doc, "kl_mean")), DPQ_JSON_NULL);
    assert_int_equal(dpq_json_get_kind(at(doc, "top1")), DPQ_JSON_NULL);
    assert_int_equal(dpq_json_int(at(doc, "tokens")), 10);
    dpq_json_destroy(&doc);
    dpq_free(text);
}

static void test_table(void **state)
{
    (void)state;
    fixture f;
    char *text = NULL;
    fill(&f);
    assert_int_equal(dpq_report_table_text(&f.report, "in", "W4 group 64 symmetric", "gptq", "out", &text), DPQ_OK);
    assert_non_null(strstr(text, "perplexity   17.0000 before, 17.5000 after"));
    assert_non_null(strstr(text, "1 quantized, 1 ignored"));
    assert_non_null(strstr(text, "fallbacks    3"));
    assert_non_null(strstr(text, "95.00 %"));
    dpq_free(text);
    f.report.eval.done = false;
    assert_int_equal(dpq_report_table_text(&f.report, "in", "W4 group 64 symmetric", "gptq", "out", &text), DPQ_OK);
    assert_null(strstr(text, "perplexity"));
    dpq_free(text);
    release(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_result),        cmocka_unit_test(test_result_depends_on_nothing_of_the_run),
        cmocka_unit_test(test_run),           cmocka_unit_test(test_nothing_calibrated_nor_evaluated),
        cmocka_unit_test(test_bad_overrides), cmocka_unit_test(test_eval_text),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
