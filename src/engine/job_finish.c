/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a job: what every rank did is gathered, both reports are written, the folder gets its name. */
#include <stdio.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/version.h"
#include "job_priv.h"
#include "output_priv.h"

static dpq_rank_record own_record(const dpq_job *job)
{
    const dpq_comm *comm = job->comm;
    const dpq_comm_stats *stats = dpq_comm_get_stats(comm);
    dpq_rank_record r = {.rank = dpq_comm_rank(comm),
                         .local_rank = dpq_comm_local_rank(comm),
                         .threads = dpq_backend_threads(job->run.backend),
                         .allowed_cores = dpq_backend_allowed_cores(),
                         .overlap_s = stats->overlap_s,
                         .exposed_s = stats->exposed_s,
                         .reduced_bytes = stats->reduced_bytes,
                         .broadcast_bytes = stats->broadcast_bytes,
                         .gathered_bytes = stats->gathered_bytes,
                         .peak_memory_bytes = dpq_memory_peak_bytes()};
    snprintf(r.host, sizeof r.host, "%s", dpq_comm_host(comm));
    snprintf(r.isa, sizeof r.isa, "%s", dpq_backend_isa());
    memcpy(r.seconds, job->run.spans.seconds, sizeof r.seconds);
    if (job->has_samples) {
        r.samples = dpq_shard_sample_count(job->samples.n, r.rank, dpq_comm_size(comm));
        for (int64_t i = 0; i < r.samples; i++) {
            int64_t s = dpq_shard_sample(i, r.rank, dpq_comm_size(comm));
            r.tokens_used += job->samples.start[s + 1] - job->samples.start[s];
        }
    }
    return r;
}

static dpq_status gather_records(dpq_job *job, dpq_rank_record **out)
{
    int size = dpq_comm_size(job->comm), rank = dpq_comm_rank(job->comm);
    void *records = NULL, *rows = NULL;
    dpq_status st = DPQ_OK;
    *out = NULL;
    dpq_status local = dpq_alloc_array(size, sizeof(dpq_rank_record), &records);
    local = local == DPQ_OK ? dpq_alloc_array(size + 1, sizeof(int64_t), &rows) : local;
    DPQ_TRY_GOTO(st, dpq_comm_agree(job->comm, local, &job->run.spans), done);
    for (int r = 0; r <= size; r++) {
        ((int64_t *)rows)[r] = r;
    }
    ((dpq_rank_record *)records)[rank] = own_record(job);
    dpq_tensor t = dpq_tensor_wrap_2d(records, DPQ_DTYPE_U8, size, sizeof(dpq_rank_record));
    DPQ_TRY_GOTO(st, dpq_comm_allgather_rows(job->comm, &t, rows), done);
    *out = records;
    records = NULL;
done:
    dpq_free(records);
    dpq_free(rows);
    return st;
}

static void fill_report(const dpq_job *job, dpq_rank_record *ranks, dpq_report *r)
{
    *r = (dpq_report){.version = dpq_version(),
                      .build = dpq_build(),
                      .compiler = dpq_compiler(),
                      .libraries = dpq_backend_libraries(),
                      .isa = dpq_backend_isa(),
                      .compute = job->plan->compute == DPQ_COMPUTE_BF16 ? "bf16" : "fp32",
                      .architecture = job->folder.config.architecture,
                      .sets = job->settings->sets,
                      .n_sets = job->settings->n_sets,
                      .modules = job->run.modules,
                      .n_modules = job->plan->n_work,
                      .samples = job->samples.n,
                      .tokens_read = job->samples.tokens_read,
                      .tokens_masked = job->samples.tokens_masked,
                      .tokens_cut = job->samples.tokens_cut,
                      .fallbacks = job->run.fallbacks,
                      .eval = job->eval,
                      .ranks = ranks,
                      .n_ranks = dpq_comm_size(job->comm),
                      .blocks = job->run.blocks,
                      .n_blocks = (size_t)job->folder.config.n_layers,
                      .seconds_total = dpq_clock_s() - job->start_s,
                      .seconds_quantize = job->seconds_quantize,
                      .seconds_eval = job->seconds_eval,
                      .output_bytes = job->plan->output_bytes,
                      .flop_forward = job->cost.flop_forward,
                      .flop_stats = job->cost.flop_statistics,
                      .command_line = job->command_line};
    r->tokens = job->has_samples ? job->samples.start[job->samples.n] : 0;
    snprintf(r->model_digest, sizeof r->model_digest, "%s", dpq_st_digest(job->folder.store));
    snprintf(r->data_digest, sizeof r->data_digest, "%s", job->samples.digest);
    for (int i = 0; i < r->n_ranks; i++) {
        r->peak_memory_bytes += ranks[i].peak_memory_bytes;
    }
}

static dpq_status write_reports(dpq_job *job, const dpq_report *report)
{
    char *text = NULL;
    size_t size = 0;
    dpq_status st = dpq_report_result_text(report, &text, &size);
    if (st == DPQ_OK) {
        st = dpq_output_put_text(job->run.output, DPQ_RESULT_FILE, text, size);
    }
    dpq_free(text);
    DPQ_TRY(st);
    text = NULL;
    st = dpq_report_run_text(report, &text, &size);
    if (st == DPQ_OK) {
        st = dpq_output_put_text(job->run.output, DPQ_RUN_FILE, text, size);
    }
    dpq_free(text);
    return st;
}

/* On rank 0. */
static dpq_status publish(dpq_job *job, dpq_report *report, char **table)
{
    char scheme[80], *overrides = NULL;
    dpq_status st = DPQ_OK;
    dpq_scheme_describe(&job->plan->scheme, scheme, sizeof scheme);
    if (job->plan->mixed) {
        strncat(scheme, ", mixed", sizeof scheme - strlen(scheme) - 1);
    }
    if (job->settings->n_overrides > 0) {
        DPQ_TRY_GOTO(st, dpq_settings_overrides_text(job->settings, &overrides), done);
        report->overrides_json = overrides;
    }
    DPQ_TRY_GOTO(st, write_reports(job, report), done);
    DPQ_TRY_GOTO(st, dpq_output_commit(&job->run.output), done);
    st = dpq_report_table_text(report, job->settings->run.model, scheme, job->plan->algorithm,
                               job->settings->run.output, table);
done:
    dpq_free(overrides);
    return st;
}

dpq_status dpq_job_finish(dpq_job *job)
{
    dpq_rank_record *ranks = NULL;
    dpq_report report;
    char *table = NULL;
    DPQ_TRY(gather_records(job, &ranks));
    fill_report(job, ranks, &report);
    dpq_status st = dpq_comm_rank(job->comm) == 0 ? publish(job, &report, &table) : DPQ_OK;
    st = dpq_comm_agree(job->comm, st, &job->run.spans);
    if (st == DPQ_OK && table != NULL) {
        job->print(table);
    }
    dpq_free(table);
    dpq_free(ranks);
    return st;
}
