/* SPDX-License-Identifier: Apache-2.0 */
/* The main job: a model folder in, a quantized folder out. The only place where ranks, layers and algorithms meet. */
#ifndef DPQUANT_ENGINE_H
#define DPQUANT_ENGINE_H

#include "dpquant/backend.h"
#include "dpquant/clock.h"
#include "dpquant/comm.h"
#include "dpquant/report.h"
#include "dpquant/settings.h"
#include "dpquant/status.h"

/* Measure the folder MODEL against its source REFERENCE as settings' eval section says. Collective; figures on every
 * rank. Handed down by the caller, so that the engine does not depend on the evaluation. */
typedef dpq_status (*dpq_evaluate)(dpq_comm *comm, dpq_backend *backend, const dpq_settings *settings,
                                   const char *model, const char *reference, dpq_spans *spans, dpq_eval_figures *out);

typedef struct {
    bool plan_only;           /* print the plan and stop */
    const char *command_line; /* for the record */
    dpq_evaluate evaluate;
    void (*print)(const char *text); /* called on rank 0 with the plan and the final table */
} dpq_engine_request;

/* Run the recipe. Rank 0 prints the plan, progress, and the final table.
 * Collective: over COMM. SETTINGS must be equal on all ranks.  Repeatable: the output folder, dpquant-run.json apart,
 * is bit-identical for any number of ranks and threads.  Errors: agreed on all ranks; nothing appears under the final
 * name. */
DPQ_MUST_USE dpq_status dpq_engine_run(dpq_comm *comm, const dpq_settings *settings, const dpq_engine_request *request);

#endif
