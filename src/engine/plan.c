/* SPDX-License-Identifier: Apache-2.0 */
/* Creates the plan: algorithm, types, work list, output layout. */
#include "dpquant/alloc.h"
#include "plan_priv.h"

/* Activations travel as bf16 only when every linear's weight is bf16; other sources keep their precision in fp32. */
static void choose_types(dpq_plan *plan)
{
    const dpq_run_options *o = &plan->settings->run;
    bool bf16 = o->run.precision == DPQ_PRECISION_BF16;
    for (size_t i = 0; i < plan->n_work; i++) {
        bf16 = bf16 && plan->work[i].dtype == DPQ_DTYPE_BF16;
    }
    plan->act = bf16 ? DPQ_DTYPE_BF16 : DPQ_DTYPE_F32;
    plan->compute = o->run.compute == DPQ_COMPUTE_AUTO ? dpq_backend_auto_compute() : (dpq_compute)o->run.compute;
    plan->compute = bf16 ? plan->compute : DPQ_COMPUTE_F32;
}

dpq_status dpq_plan_create(const dpq_settings *settings, const dpq_model_folder *folder, dpq_plan **out)
{
    *out = NULL;
    void *memory;
    DPQ_TRY(dpq_alloc(sizeof(dpq_plan), &memory));
    dpq_plan *plan = memory;
    plan->settings = settings;
    plan->folder = folder;
    plan->algorithm = dpq_settings_algorithm(settings);
    plan->algo = dpq_algo_find(plan->algorithm);
    plan->tuner = dpq_block_algo_find(plan->algorithm);
    DPQ_ASSERT((plan->algo != NULL) != (plan->tuner != NULL));
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_settings_base_scheme(settings, &plan->scheme), fail);
    DPQ_TRY_GOTO(st, dpq_plan_assign_work(plan), fail);
    plan->stats = plan->algo != NULL ? plan->algo->stats(&settings->algo) : DPQ_STAT_NONE;
    plan->needs_samples = plan->tuner != NULL || plan->stats != DPQ_STAT_NONE;
    plan->replays = (plan->stats & DPQ_STAT_XTX) != 0 && !settings->algo.gptq.true_sequential;
    choose_types(plan);
    DPQ_TRY_GOTO(st, dpq_plan_lay_out(plan), fail);
    *out = plan;
    return DPQ_OK;
fail:
    dpq_plan_destroy(&plan);
    return st;
}

void dpq_plan_destroy(dpq_plan **plan)
{
    if (*plan == NULL) {
        return;
    }
    dpq_str_list_fini(&(*plan)->ignored);
    dpq_free((*plan)->work);
    dpq_free((*plan)->ct);
    dpq_free((*plan)->decls);
    dpq_free(*plan);
    *plan = NULL;
}

const dpq_work *dpq_plan_work(const dpq_plan *plan, int64_t layer, dpq_linear_role role)
{
    return &plan->work[layer * DPQ_LINEAR_COUNT + (int64_t)role];
}
