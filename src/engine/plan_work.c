/* SPDX-License-Identifier: Apache-2.0 */
/* The work list: which scheme each linear gets, and the checks that every layer can be written in it. */
#include "plan_priv.h"

#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/log.h"
#include "dpquant/pattern.h"

/* Linears that loaders fuse: one scheme and one ignore state for all members. */
static const struct {
    int count;
    dpq_linear_role roles[3];
} fused_sets[] = {
    {3, {DPQ_LINEAR_Q, DPQ_LINEAR_K, DPQ_LINEAR_V}},
    {2, {DPQ_LINEAR_GATE, DPQ_LINEAR_UP}},
};

static dpq_status init_work(dpq_plan *plan)
{
    const dpq_model_config *config = &plan->folder->config;
    void *work;
    plan->n_work = (size_t)config->n_layers * DPQ_LINEAR_COUNT;
    DPQ_TRY(dpq_alloc_array((int64_t)plan->n_work, sizeof(dpq_work), &work));
    plan->work = work;
    for (size_t i = 0; i < plan->n_work; i++) {
        dpq_work *w = &plan->work[i];
        char name[DPQ_NAME_BYTES + 16];
        dpq_linear_role role = (dpq_linear_role)(i % DPQ_LINEAR_COUNT);
        dpq_model_linear_name(config, (int64_t)(i / DPQ_LINEAR_COUNT), role, w->module);
        dpq_model_linear_shape(config, role, &w->n, &w->k);
        snprintf(name, sizeof name, "%s.weight", w->module);
        const dpq_st_entry *entry = dpq_st_find(plan->folder->store, name);
        if (entry == NULL) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s is missing", plan->folder->dir, name);
        }
        w->dtype = entry->dtype;
        w->scheme = plan->scheme;
        w->quantized = true;
    }
    return DPQ_OK;
}

static void apply_override(dpq_work *w, const dpq_override *o)
{
    w->scheme.bits = o->has_bits ? (int)o->bits : w->scheme.bits;
    w->scheme.group_size = o->has_group_size ? o->group_size : w->scheme.group_size;
    w->scheme.symmetric = o->has_symmetric ? o->symmetric : w->scheme.symmetric;
    w->quantized = w->quantized && !o->ignore;
}

static dpq_status apply_overrides(dpq_plan *plan)
{
    bool signed_scale = plan->settings->run.quantize.signed_scale;
    for (size_t i = 0; i < plan->settings->n_overrides; i++) {
        const dpq_override *o = &plan->settings->overrides[i];
        dpq_pattern *pattern;
        size_t matched = 0;
        DPQ_TRY(dpq_pattern_compile(o->match, &pattern));
        for (size_t j = 0; j < plan->n_work; j++) {
            if (dpq_pattern_matches(pattern, plan->work[j].module)) {
                apply_override(&plan->work[j], o);
                plan->work[j].scheme.signed_scale = plan->work[j].scheme.symmetric && signed_scale;
                matched++;
            }
        }
        dpq_pattern_destroy(&pattern);
        if (matched == 0) {
            return DPQ_RAISE(DPQ_E_CONFIG,
                             "quantize.overrides: match '%s' fits no linear of this model (they are named like %s)",
                             o->match, plan->work[0].module);
        }
    }
    return DPQ_OK;
}

static dpq_status apply_ignore(dpq_plan *plan)
{
    const dpq_str_list *ignore = &plan->settings->run.quantize.ignore;
    DPQ_TRY(dpq_str_list_append(&plan->ignored, "lm_head"));
    for (size_t i = 0; i < ignore->count; i++) {
        dpq_pattern *pattern;
        DPQ_TRY(dpq_pattern_compile(ignore->items[i], &pattern));
        bool matched = dpq_pattern_matches(pattern, "lm_head");
        for (size_t j = 0; j < plan->n_work; j++) {
            if (dpq_pattern_matches(pattern, plan->work[j].module)) {
                plan->work[j].quantized = false;
                matched = true;
            }
        }
        dpq_pattern_destroy(&pattern);
        if (!matched) {
            dpq_log(DPQ_LOG_WARNING, "plan", "quantize.ignore: '%s' fits no module of this model", ignore->items[i]);
        }
    }
    for (size_t j = 0; j < plan->n_work; j++) {
        if (!plan->work[j].quantized) {
            DPQ_TRY(dpq_str_list_append(&plan->ignored, plan->work[j].module));
        }
    }
    return DPQ_OK;
}

static dpq_status check_fused(const dpq_plan *plan)
{
    for (int64_t layer = 0; layer < plan->folder->config.n_layers; layer++) {
        for (size_t s = 0; s < DPQ_COUNT_OF(fused_sets); s++) {
            const dpq_work *first = dpq_plan_work(plan, layer, fused_sets[s].roles[0]);
            for (int i = 1; i < fused_sets[s].count; i++) {
                const dpq_work *other = dpq_plan_work(plan, layer, fused_sets[s].roles[i]);
                bool equal = first->quantized == other->quantized &&
                             (!first->quantized || dpq_scheme_equal(&first->scheme, &other->scheme));
                char a[64] = "not quantized", b[64] = "not quantized";
                if (equal) {
                    continue;
                }
                if (first->quantized) {
                    dpq_scheme_describe(&first->scheme, a, sizeof a);
                }
                if (other->quantized) {
                    dpq_scheme_describe(&other->scheme, b, sizeof b);
                }
                return DPQ_RAISE(DPQ_E_CONFIG,
                                 "%s is %s but %s is %s: loaders fuse them, so they need the same bits, group size, "
                                 "symmetry and ignore state",
                                 first->module, a, other->module, b);
            }
        }
    }
    return DPQ_OK;
}

/* Group sizes among the common ones that divide every K in question. */
static void fitting_groups(const dpq_plan *plan, char *text, size_t size)
{
    static const int64_t common[] = {16, 32, 64, 96, 128, 256};
    size_t used = 0;
    for (size_t c = 0; c < DPQ_COUNT_OF(common); c++) {
        bool fits = true;
        for (size_t i = 0; i < plan->n_work; i++) {
            fits = fits && (!plan->work[i].quantized || plan->work[i].k % common[c] == 0);
        }
        if (fits) {
            used += (size_t)snprintf(text + used, size - used, "%lld, ", (long long)common[c]);
        }
    }
    snprintf(text + used, size - used, "-1");
}

/* Every quantized linear must divide into groups; all that do not are named, by role. */
static dpq_status check_groups(const dpq_plan *plan)
{
    dpq_text list = {0};
    dpq_status st = DPQ_OK;
    int64_t group = 0;
    for (size_t role = 0; role < DPQ_LINEAR_COUNT; role++) {
        int64_t misfits = 0;
        const dpq_work *first = NULL;
        for (size_t i = role; i < plan->n_work; i += DPQ_LINEAR_COUNT) {
            const dpq_work *w = &plan->work[i];
            if (w->quantized && dpq_scheme_check(&w->scheme, w->module, w->k) != DPQ_OK) {
                dpq_error_clear();
                first = misfits++ == 0 ? w : first;
            }
        }
        if (misfits > 0) {
            group = first->scheme.group_size;
            DPQ_TRY_GOTO(st,
                         dpq_text_append(&list, "%s%s (input width %lld; %lld layers alike)",
                                         list.length > 0 ? ", " : "", first->module, (long long)first->k,
                                         (long long)misfits),
                         done);
        }
    }
    if (list.length > 0) {
        char fits[96];
        fitting_groups(plan, fits, sizeof fits);
        st =
            DPQ_RAISE(DPQ_E_CONFIG,
                      "quantize.group_size: %lld does not divide the inputs of %s; group sizes that fit all layers: %s",
                      (long long)group, list.text, fits);
    }
done:
    dpq_text_fini(&list);
    return st;
}

dpq_status dpq_plan_assign_work(dpq_plan *plan)
{
    DPQ_TRY(init_work(plan));
    DPQ_TRY(apply_overrides(plan));
    DPQ_TRY(apply_ignore(plan));
    DPQ_TRY(check_fused(plan));
    DPQ_TRY(check_groups(plan));
    const dpq_work *first = NULL;
    for (size_t i = 0; i < plan->n_work; i++) {
        dpq_work *w = &plan->work[i];
        if (!w->quantized) {
            continue;
        }
        w->with_g_idx = plan->algo != NULL && plan->algo->with_g_idx(&plan->settings->algo, &w->scheme);
        plan->mixed = plan->mixed || (first != NULL && !dpq_scheme_equal(&first->scheme, &w->scheme));
        first = first == NULL ? w : first;
        plan->n_quantized++;
    }
    if (first != NULL && first->with_g_idx) {
        dpq_log(
            DPQ_LOG_WARNING, "plan",
            "gptq.order: group writes weight_g_idx, which compressed-tensors from 0.19 and vLLM 0.32 refuse to load");
    }
    if (first == NULL) {
        return DPQ_RAISE(DPQ_E_CONFIG, "quantize.ignore: no linear is left to quantize");
    }
    return DPQ_OK;
}
