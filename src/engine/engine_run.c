/* SPDX-License-Identifier: Apache-2.0 */
/* The main job from settings to a committed folder. */
#include "dpquant/engine.h"

#include <stdio.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/backend_grad.h"
#include "dpquant/log.h"
#include "dpquant/token_data.h"
#include "engine_priv.h"
#include "job_priv.h"
#include "output_priv.h"

static bool wants_eval(const dpq_job *job)
{
    return job->settings->run.eval.data.data != NULL;
}

/* Model, plan and samples: everything that can be wrong with the input is found here. */
static dpq_status prepare_inputs(dpq_job *job)
{
    const dpq_run_options *o = &job->settings->run;
    dpq_comm *comm = job->comm;
    dpq_status local = DPQ_OK;
    if (o->model == NULL) {
        return DPQ_RAISE(DPQ_E_CONFIG,
                         "model: required: the folder of the source model (recipe key model, or --model)");
    }
    local = dpq_model_folder_open(o->model, false, &job->folder);
    DPQ_TRY(dpq_comm_agree(comm, local, &job->run.spans));
    DPQ_TRY(dpq_comm_agree(comm, dpq_plan_create(job->settings, &job->folder, &job->plan), &job->run.spans));
    if (job->plan->needs_samples) {
        if (o->calibration.data == NULL) {
            return DPQ_RAISE(DPQ_E_CONFIG, "calibration.data: required by algorithm %s%s", job->plan->algorithm,
                             strcmp(job->plan->algorithm, "rtn") == 0 ? " with rtn.importance: true" : "");
        }
        DPQ_TRY(dpq_token_data_read(comm, &o->calibration, job->folder.config.vocab_size, &job->samples));
        job->has_samples = true;
        if (job->samples.max_length > job->folder.config.max_positions) {
            dpq_log(DPQ_LOG_WARNING, "engine", "samples of %lld tokens are longer than the model's %lld positions",
                    (long long)job->samples.max_length, (long long)job->folder.config.max_positions);
        }
        if (dpq_comm_rank(comm) == 0 && job->samples.n < dpq_comm_size(comm)) {
            dpq_log(DPQ_LOG_WARNING, "engine", "%lld samples for %d ranks: the rest wait", (long long)job->samples.n,
                    dpq_comm_size(comm));
        }
    }
    if (wants_eval(job)) {
        DPQ_TRY(dpq_token_data_read(comm, &o->eval.data, job->folder.config.vocab_size, &job->windows));
        job->has_windows = true;
    }
    return DPQ_OK;
}

/* May the output be written there? Asked before any work; rank 0 only. */
static dpq_status check_output(const dpq_job *job)
{
    const dpq_run_options *o = &job->settings->run;
    char *final_path = NULL;
    bool exist = false;
    if (dpq_comm_rank(job->comm) != 0) {
        return DPQ_OK;
    }
    DPQ_TRY(dpq_output_check_parents(o->output, &exist));
    dpq_status st = exist ? dpq_output_check_place(o->output, job->folder.dir, o->overwrite, &final_path) : DPQ_OK;
    dpq_free(final_path);
    return st;
}

static dpq_status show_plan(dpq_job *job)
{
    const dpq_calibset *samples = job->has_samples ? &job->samples : NULL;
    const dpq_calibset *windows = job->has_windows ? &job->windows : NULL;
    int size = dpq_comm_size(job->comm);
    double mine = 0.0, total = 0.0;
    void *rates = NULL;
    char *text = NULL;
    dpq_status st = DPQ_OK;
    dpq_plan_estimate(job->plan, samples, windows, size, dpq_backend_threads(job->run.backend), job->base_bytes,
                      &job->cost);
    dpq_status local = dpq_backend_measure_gflops(job->run.backend, job->plan->compute, 0.05, &mine);
    local = local == DPQ_OK ? dpq_alloc_array(size, sizeof(double), &rates) : local;
    DPQ_TRY_GOTO(st, dpq_comm_agree(job->comm, local, &job->run.spans), done);
    DPQ_TRY_GOTO(st, dpq_comm_gather_samples(job->comm, &mine, size, 1, rates), done);
    for (int r = 0; r < size; r++) {
        total += ((double *)rates)[r];
    }
    DPQ_TRY_GOTO(st, dpq_plan_text(job->plan, &job->cost, size, total, &text), done);
    if (dpq_comm_rank(job->comm) == 0) {
        job->print(text);
    }
    st = dpq_comm_agree(job->comm, check_output(job), &job->run.spans);
done:
    dpq_free(rates);
    dpq_free(text);
    return st;
}

static dpq_status start_output(dpq_job *job)
{
    dpq_status local = DPQ_OK;
    if (dpq_comm_rank(job->comm) == 0) {
        local = dpq_output_create(job->plan, &job->run.output);
    }
    return dpq_comm_agree(job->comm, local, &job->run.spans);
}

/* Between tiles of the backward pass: MPI moves data only inside its calls. Errors show when the reduction is waited
 * for. */
static void let_reductions_progress(void *comm)
{
    DPQ_IGNORE(dpq_comm_progress(comm) != DPQ_OK, "the wait that follows reports it");
}

static dpq_status start_activations(dpq_job *job)
{
    dpq_run *run = &job->run;
    const dpq_model_config *config = &job->folder.config;
    DPQ_TRY(dpq_workspace_create(&run->workspace));
    DPQ_TRY(dpq_rope_tables(&config->rope, job->samples.max_length, &run->cos, &run->sin));
    if (job->plan->tuner != NULL) {
        dpq_backend_set_idle(run->backend, let_reductions_progress, run->comm);
        return dpq_tuning_create(run, &run->tuning);
    }
    return dpq_activations_create(&job->folder, run->backend, &job->samples, dpq_comm_rank(job->comm),
                                  dpq_comm_size(job->comm), job->plan->act, job->plan->replays, &run->activations);
}

static dpq_status init_records(dpq_job *job)
{
    void *memory;
    DPQ_TRY(dpq_alloc_array((int64_t)job->plan->n_work, sizeof(dpq_module_record), &memory));
    job->run.modules = memory;
    DPQ_TRY(dpq_alloc_array(job->folder.config.n_layers, sizeof(dpq_block_record), &memory));
    job->run.blocks = memory;
    for (size_t i = 0; i < job->plan->n_work; i++) {
        const dpq_work *w = &job->plan->work[i];
        job->run.modules[i] = (dpq_module_record){
            .n = w->n, .k = w->k, .quantized = w->quantized, .scheme = w->scheme, .method = "ignored"};
        DPQ_TRY(dpq_str_dup(w->module, &job->run.modules[i].module));
    }
    for (int64_t layer = 0; layer < job->folder.config.n_layers; layer++) {
        DPQ_TRY(dpq_str_format(&job->run.blocks[layer].name, "block %lld", (long long)layer));
    }
    return DPQ_OK;
}

static dpq_status calibrate(dpq_job *job)
{
    dpq_run *run = &job->run;
    double clock = dpq_clock_s();
    dpq_status local = init_records(job);
    if (local == DPQ_OK && job->has_samples) {
        local = start_activations(job);
        dpq_spans_add(&run->spans, DPQ_SPAN_LOAD, &clock);
    }
    DPQ_TRY(dpq_comm_agree(job->comm, local, &run->spans));
    DPQ_TRY(dpq_pipeline_run(run));
    dpq_activations_destroy(&run->activations);
    dpq_tuning_destroy(&run->tuning);
    dpq_memory_trim();
    clock = dpq_clock_s();
    local = run->output != NULL ? dpq_output_complete(run->output) : DPQ_OK;
    dpq_spans_add(&run->spans, DPQ_SPAN_WRITE, &clock);
    return dpq_comm_agree(job->comm, local, &run->spans);
}

/* The folder just written against its source. Rank 0 knows where it is. */
static dpq_status evaluate(dpq_job *job)
{
    char path[4096] = "";
    dpq_tensor t = dpq_tensor_wrap_1d(path, DPQ_DTYPE_U8, sizeof path);
    if (job->run.output != NULL) {
        snprintf(path, sizeof path, "%s", dpq_output_dir(job->run.output));
    }
    DPQ_TRY(dpq_comm_broadcast(job->comm, &t, 0));
    return job->evaluate(job->comm, job->run.backend, job->settings, path, job->settings->run.model, &job->run.spans,
                         &job->eval);
}

static dpq_status run_job(dpq_job *job, bool plan_only)
{
    DPQ_TRY(prepare_inputs(job));
    DPQ_TRY(dpq_job_choose_ranks(job));
    if (job->comm == NULL) {
        return DPQ_OK; /* this rank waits for the others at the end */
    }
    DPQ_TRY(dpq_job_start_backend(job));
    job->run.plan = job->plan;
    job->run.folder = &job->folder;
    job->run.samples = job->has_samples ? &job->samples : NULL;
    DPQ_TRY(show_plan(job));
    if (plan_only) {
        return DPQ_OK;
    }
    DPQ_TRY(start_output(job));
    double clock = dpq_clock_s();
    DPQ_TRY(calibrate(job));
    job->seconds_quantize = dpq_clock_s() - clock;
    if (wants_eval(job)) {
        clock = dpq_clock_s();
        DPQ_TRY(evaluate(job));
        job->seconds_eval = dpq_clock_s() - clock;
    }
    return dpq_job_finish(job);
}

static void fini_job(dpq_job *job)
{
    dpq_run *run = &job->run;
    for (size_t i = 0; run->modules != NULL && i < job->plan->n_work; i++) {
        dpq_free(run->modules[i].module);
    }
    for (int64_t i = 0; run->blocks != NULL && i < job->folder.config.n_layers; i++) {
        dpq_free(run->blocks[i].name);
    }
    dpq_free(run->modules);
    dpq_free(run->blocks);
    dpq_output_abandon(&run->output);
    dpq_activations_destroy(&run->activations);
    dpq_tuning_destroy(&run->tuning);
    dpq_tensor_fini(&run->cos);
    dpq_tensor_fini(&run->sin);
    dpq_workspace_destroy(&run->workspace);
    dpq_backend_destroy(&run->backend);
    dpq_calibset_fini(&job->samples);
    dpq_calibset_fini(&job->windows);
    dpq_plan_destroy(&job->plan);
    dpq_model_folder_close(&job->folder);
}

dpq_status dpq_engine_run(dpq_comm *comm, const dpq_settings *settings, const dpq_engine_request *request)
{
    dpq_job job = {.world = comm,
                   .comm = comm,
                   .settings = settings,
                   .command_line = request->command_line,
                   .print = request->print,
                   .evaluate = request->evaluate,
                   .start_s = dpq_clock_s()};
    job.run.comm = comm;
    job.run.settings = settings;
    dpq_status st = run_job(&job, request->plan_only);
    fini_job(&job);
    if (job.world != job.comm) {
        /* ranks that wait do so asleep; whatever happened is agreed on by the caller */
        DPQ_TRY(dpq_comm_rest(job.world));
    }
    dpq_comm_close(&job.subset);
    return st;
}
