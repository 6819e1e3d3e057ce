/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of the small model: work list, overrides and patterns, fused sets, group sizes, output layout, costs. */
#include "../../src/engine/plan_priv.h"
#include "dpquant/config.h"
#include "tiny_folder.h"

typedef struct {
    dpq_settings *settings;
    dpq_model_folder folder;
    dpq_plan *plan;
} fixture;

static int open_all(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    expect_ok(dpq_settings_create(&f->settings));
    expect_ok(dpq_model_folder_open(TINY, false, &f->folder));
    *state = f;
    return 0;
}

static int close_all(void **state)
{
    fixture *f = *state;
    dpq_plan_destroy(&f->plan);
    dpq_model_folder_close(&f->folder);
    dpq_settings_destroy(&f->settings);
    free(f);
    return 0;
}

static void set(fixture *f, const char *assignment)
{
    expect_ok(dpq_config_set(assignment, f->settings->sets, f->settings->n_sets));
}

static dpq_override * override(fixture *f, const char *match)
{
    dpq_override *o;
    expect_ok(dpq_settings_add_override(f->settings, &o));
    expect_ok(dpq_str_dup(match, &o->match));
    return o;
}

static void plan(fixture *f)
{
    dpq_plan_destroy(&f->plan);
    expect_ok(dpq_plan_create(f->settings, &f->folder, &f->plan));
}

static void refused(fixture *f, dpq_status code, const char *part)
{
    dpq_plan *none = (dpq_plan *)f;
    expect_error(dpq_plan_create(f->settings, &f->folder, &none), code, part);
    assert_null(none);
}

static void test_every_linear_once(void **state)
{
    fixture *f = *state;
    plan(f);
    assert_int_equal(f->plan->n_work, TINY_LINEARS);
    assert_int_equal(f->plan->n_quantized, TINY_LINEARS);
    assert_false(f->plan->mixed);
    assert_int_equal(f->plan->act, DPQ_DTYPE_BF16);
    assert_int_equal(f->plan->ignored.count, 1);
    assert_string_equal(f->plan->ignored.items[0], "lm_head");
    const dpq_work *w = dpq_plan_work(f->plan, 2, DPQ_LINEAR_DOWN);
    assert_string_equal(w->module, "model.layers.2.mlp.down_proj");
    assert_int_equal(w->n, 256);
    assert_int_equal(w->k, 640);
    assert_false(w->with_g_idx);
    set(f, "run.precision=fp32");
    plan(f);
    assert_int_equal(f->plan->act, DPQ_DTYPE_F32);
    assert_int_equal(f->plan->compute, DPQ_COMPUTE_F32);
}

static void test_statistics_follow_the_algorithm(void **state)
{
    fixture *f = *state;
    plan(f);
    assert_true((f->plan->stats & DPQ_STAT_XTX) != 0);
    set(f, "gptq.order=group");
    plan(f);
    assert_true(f->plan->work[0].with_g_idx);
    set(f, "quantize.algorithm=rtn");
    plan(f);
    assert_int_equal(f->plan->stats, DPQ_STAT_SUMSQ);
    assert_false(f->plan->work[0].with_g_idx);
    set(f, "rtn.importance=false");
    plan(f);
    assert_int_equal(f->plan->stats, DPQ_STAT_NONE);
}

static void test_overrides_in_order(void **state)
{
    fixture *f = *state;
    dpq_override *o = override(f, "re:.*down_proj");
    o->has_bits = true;
    o->bits = 8;
    o = override(f, "model.layers.1.mlp.down_proj");
    o->has_bits = o->has_group_size = o->has_symmetric = true;
    o->bits = 3;
    o->group_size = 64;
    o->symmetric = false;
    plan(f);
    assert_true(f->plan->mixed);
    const dpq_scheme *first = &dpq_plan_work(f->plan, 0, DPQ_LINEAR_DOWN)->scheme;
    const dpq_scheme *second = &dpq_plan_work(f->plan, 1, DPQ_LINEAR_DOWN)->scheme;
    assert_int_equal(first->bits, 8);
    assert_int_equal(first->group_size, 128);
    assert_true(first->signed_scale);
    assert_int_equal(second->bits, 3);
    assert_int_equal(second->group_size, 64);
    assert_false(second->symmetric);
    assert_false(second->signed_scale); /* there is no such thing without symmetry */
    assert_int_equal(dpq_plan_work(f->plan, 0, DPQ_LINEAR_Q)->scheme.bits, 4);
}

static void test_patterns(void **state)
{
    fixture *f = *state;
    override(f, "re:.*q_prj")->ignore = true;
    refused(f, DPQ_E_CONFIG, "'re:.*q_prj' fits no linear of this model");
    dpq_free(f->settings->overrides[0].match);
    /* matched from the start of the name, and as a whole when it is no expression */
    expect_ok(dpq_str_dup("o_proj", &f->settings->overrides[0].match));
    refused(f, DPQ_E_CONFIG, "'o_proj' fits no linear");
    dpq_free(f->settings->overrides[0].match);
    expect_ok(dpq_str_dup("re:(", &f->settings->overrides[0].match));
    refused(f, DPQ_E_CONFIG, "character");
}

static void test_ignored_linears(void **state)
{
    fixture *f = *state;
    set(f, "quantize.ignore=lm_head,re:model.layers.0.,model.layers.2.self_attn.o_proj,absent");
    override(f, "model.layers.3.mlp.down_proj")->ignore = true;
    plan(f);
    assert_int_equal(f->plan->n_quantized, TINY_LINEARS - 9);
    assert_int_equal(f->plan->ignored.count, 1 + 9);
    assert_false(dpq_plan_work(f->plan, 0, DPQ_LINEAR_UP)->quantized);
    assert_false(dpq_plan_work(f->plan, 2, DPQ_LINEAR_O)->quantized);
    assert_true(dpq_plan_work(f->plan, 2, DPQ_LINEAR_Q)->quantized);
    assert_false(f->plan->mixed);
    assert_int_equal(dpq_plan_replaces(f->plan, "model.layers.0.mlp.up_proj.weight"), -1);
    assert_true(dpq_plan_replaces(f->plan, "model.layers.1.mlp.up_proj.weight") >= 0);
    assert_int_equal(dpq_plan_replaces(f->plan, "model.layers.1.mlp.up_proj.bias"), -1);
    assert_int_equal(dpq_plan_replaces(f->plan, "model.layers.1.mlp.up_proj"), -1);
    assert_int_equal(dpq_plan_replaces(f->plan, ".weight"), -1);
    assert_int_equal(dpq_plan_replaces(f->plan, "model.embed_tokens.weight"), -1);
    set(f, "quantize.ignore=re:.*");
    refused(f, DPQ_E_CONFIG, "no linear is left");
}

/* One member of a fused set set apart by MATCH, in one way after the other. */
static void split(fixture *f, const char *match, const char *names)
{
    dpq_override *o = override(f, match);
    o->has_bits = true;
    o->bits = 8;
    refused(f, DPQ_E_CONFIG, names);
    o->has_bits = false;
    o->has_group_size = true;
    o->group_size = 64;
    refused(f, DPQ_E_CONFIG, names);
    o->has_group_size = false;
    o->has_symmetric = true;
    o->symmetric = false;
    refused(f, DPQ_E_CONFIG, names);
    o->has_symmetric = false;
    o->ignore = true;
    refused(f, DPQ_E_CONFIG, "not quantized");
    dpq_free(o->match);
    f->settings->n_overrides--;
}

static void test_fused_sets(void **state)
{
    fixture *f = *state;
    split(f, "model.layers.1.self_attn.k_proj",
          "model.layers.1.self_attn.q_proj is W4 group 128 symmetric but "
          "model.layers.1.self_attn.k_proj is W");
    split(f, "model.layers.3.self_attn.v_proj", "model.layers.3.self_attn.v_proj is W");
    split(f, "re:.*self_attn.q_proj", "model.layers.0.self_attn.q_proj is W");
    split(f, "re:.*gate_proj", "model.layers.0.mlp.up_proj is W");
    set(f, "quantize.ignore=model.layers.3.self_attn.v_proj");
    refused(f, DPQ_E_CONFIG, "model.layers.3.self_attn.v_proj is not quantized: loaders fuse them");
    set(f, "quantize.ignore=lm_head");
    /* a whole set, and linears that stand alone, may differ */
    override(f, "re:.*layers.1.self_attn.[qkv]_proj")->ignore = true;
    override(f, "re:.*layers.2.mlp.(gate|up)_proj")->ignore = true;
    override(f, "model.layers.0.self_attn.o_proj")->ignore = true;
    plan(f);
    assert_int_equal(f->plan->n_quantized, TINY_LINEARS - 6);
}

static void test_group_sizes(void **state)
{
    fixture *f = *state;
    set(f, "quantize.group_size=256");
    refused(f, DPQ_E_CONFIG,
            "256 does not divide the inputs of model.layers.0.mlp.down_proj (input width 640; 4 layers alike); "
            "group sizes that fit all layers: 16, 32, 64, 128, -1");
    set(f, "quantize.ignore=re:.*down_proj");
    plan(f);
    set(f, "quantize.group_size=320");
    refused(f, DPQ_E_CONFIG, "model.layers.0.self_attn.q_proj (input width 256; 4 layers alike)");
    set(f, "quantize.ignore=lm_head");
    set(f, "quantize.group_size=1000");
    refused(f, DPQ_E_CONFIG, "(input width 640");
    set(f, "quantize.group_size=-1");
    plan(f);
    set(f, "quantize.group_size=128");
    dpq_override *o = override(f, "model.layers.3.mlp.down_proj");
    o->has_group_size = true;
    o->group_size = 96;
    refused(f, DPQ_E_CONFIG, "model.layers.3.mlp.down_proj (input width 640; 1 layers alike)");
    o->group_size = 160; /* any divisor */
    plan(f);
}

static void test_layout(void **state)
{
    fixture *f = *state;
    uint64_t whole = 0;
    plan(f);
    assert_int_equal(f->plan->n_decls, dpq_st_count(f->folder.store) + TINY_LINEARS * 2); /* packed, scale, shape */
    assert_int_equal(f->plan->shards, 1);
    whole = f->plan->output_bytes;
    for (size_t i = 0; i < f->plan->n_decls; i++) {
        assert_int_equal(dpq_plan_replaces(f->plan, f->plan->decls[i].name), -1); /* the dense weight is gone */
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(f->plan->decls[i].name, f->plan->decls[j].name);
        }
    }
    set(f, "export.shard_size=300K");
    plan(f);
    assert_true(f->plan->shards > 4);
    assert_true(f->plan->output_bytes > whole); /* a header more for each */
    set(f, "quantize.symmetric=false");
    plan(f);
    assert_int_equal(f->plan->n_decls, dpq_st_count(f->folder.store) + TINY_LINEARS * 3); /* and zero points */
}

/* The number of ranks divides activations and nothing else. */
static void test_costs(void **state)
{
    fixture *f = *state;
    int64_t start[6];
    for (int i = 0; i < 6; i++) {
        start[i] = 100 * i;
    }
    const dpq_calibset samples = {.n = 5, .start = start, .max_length = 100};
    dpq_plan_cost one, three, eight;
    plan(f);
    dpq_plan_estimate(f->plan, &samples, NULL, 1, 1, 0, &one);
    dpq_plan_estimate(f->plan, &samples, NULL, 3, 1, 0, &three);
    dpq_plan_estimate(f->plan, &samples, NULL, 8, 1, 0, &eight);
    assert_int_equal(one.weights, three.weights);
    assert_int_equal(one.statistics, three.statistics);
    assert_int_equal(one.reduced, three.reduced);
    assert_true(one.flop_forward == eight.flop_forward && one.flop_statistics == eight.flop_statistics);
    assert_true(one.activations > three.activations && three.activations > eight.activations);
    assert_int_equal(one.activations - three.activations, 3 * 100 * (256 + 640) * 2); /* 5 samples against 2 */
    assert_int_equal(one.evaluation, 0);
    assert_true(one.total >= one.base + one.weights + one.statistics + one.activations);
    dpq_plan_cost with_eval;
    dpq_plan_estimate(f->plan, &samples, &samples, 1, 1, 0, &with_eval);
    assert_true(with_eval.evaluation > 0 && with_eval.flop_eval > 0);
    char *text = NULL;
    expect_ok(dpq_plan_text(f->plan, &one, 3, 100.0, &text));
    assert_non_null(strstr(text, "3 ranks"));
    assert_non_null(strstr(text, "memory per rank"));
    assert_non_null(strstr(text, "estimate: "));
    dpq_free(text);
    expect_ok(dpq_plan_text(f->plan, &one, 1, 0.0, &text));
    assert_null(strstr(text, "estimate: "));
    dpq_free(text);
}

#define plan_test(function) cmocka_unit_test_setup_teardown(function, open_all, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        plan_test(test_every_linear_once),
        plan_test(test_statistics_follow_the_algorithm),
        plan_test(test_overrides_in_order),
        plan_test(test_patterns),
        plan_test(test_ignored_linears),
        plan_test(test_fused_sets),
        plan_test(test_group_sizes),
        plan_test(test_layout),
        plan_test(test_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
