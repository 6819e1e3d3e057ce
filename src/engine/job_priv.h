/* SPDX-License-Identifier: Apache-2.0 */
/* The main job: inputs, the run, and what is reported. */
#ifndef DPQUANT_JOB_PRIV_H
#define DPQUANT_JOB_PRIV_H

#include "dpquant/engine.h"
#include "engine_priv.h"

typedef struct {
    dpq_comm *world;       /* all ranks of the job */
    dpq_comm *subset;      /* those that work, when not all do; NULL otherwise and on the others */
    dpq_comm *comm;        /* of the ranks that work; NULL on a rank that waits */
    int sharing;           /* ranks that may use the same cores */
    uint64_t base_bytes;   /* of this rank before the work begins */
    uint64_t memory_bytes; /* available on this host when the plan was made */
    const dpq_settings *settings;
    const char *command_line;
    dpq_evaluate evaluate;
    void (*print)(const char *text); /* rank 0's standard output */
    double start_s, seconds_quantize, seconds_eval;
    dpq_model_folder folder;
    dpq_plan *plan;
    dpq_plan_cost cost;
    dpq_calibset samples, windows;
    bool has_samples, has_windows;
    dpq_run run;
    dpq_eval_figures eval;
} dpq_job;

/* job_ranks.c: decide which ranks work and set comm. Collective over world. */
DPQ_MUST_USE dpq_status dpq_job_choose_ranks(dpq_job *job);
/* job_start.c: threads of this rank, the backend, one line a rank, a warning when ranks differ. Collective. */
DPQ_MUST_USE dpq_status dpq_job_start_backend(dpq_job *job);
/* job_finish.c: gather the ranks' records, write both reports, commit the folder, print the table. Collective. */
DPQ_MUST_USE dpq_status dpq_job_finish(dpq_job *job);

#endif
