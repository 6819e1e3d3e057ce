/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks work: all that fit into their hosts' memory (run.ranks: auto), or the stated number, or a refusal with
 * the figures and what would fit. */
#include <stdio.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/log.h"
#include "job_priv.h"

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

static void estimate(const dpq_job *job, int ranks, dpq_plan_cost *cost)
{
    int threads = dpq_backend_choose_threads(job->settings->run.run.threads, job->sharing);
    dpq_plan_estimate(job->plan, job->has_samples ? &job->samples : NULL, job->has_windows ? &job->windows : NULL,
                      ranks, threads, job->base_bytes, cost);
}

/* How many ranks of the job fit beside the ranks before them on their host when RANKS share the work; *mine: does this
 * one? */
static dpq_status count_usable(const dpq_job *job, int ranks, bool *mine, int *usable)
{
    dpq_plan_cost cost;
    estimate(job, ranks, &cost);
    *mine = (uint64_t)(dpq_comm_local_rank(job->world) + 1) * cost.total <= job->memory_bytes;
    int32_t count = *mine ? 1 : 0;
    dpq_tensor t = dpq_tensor_wrap_1d(&count, DPQ_DTYPE_I32, 1);
    DPQ_TRY(dpq_comm_allreduce(job->world, &t, DPQ_REDUCE_SUM));
    *usable = (int)count;
    return DPQ_OK;
}

/* Settings that make a rank smaller, with what it would then need. */
static void suggest(const dpq_job *job, int ranks, char *text, size_t size)
{
    dpq_plan_cost cost;
    estimate(job, ranks, &cost);
    size_t used = 0;
    if (job->plan->tuner != NULL && !job->settings->run.run.low_memory) {
        used += (size_t)snprintf(text + used, size - used, "run.low_memory: true (%.1f MiB, activations in a file), ",
                                 mib(cost.total - cost.activations));
    }
    if (job->has_samples && cost.activations > 0) {
        used += (size_t)snprintf(text + used, size - used, "half of calibration.samples (%.1f MiB), ",
                                 mib(cost.total - cost.activations / 2));
    }
    snprintf(text + used, size - used, "fewer ranks a host");
}

static dpq_status refuse(const dpq_job *job, int ranks, const char *why)
{
    dpq_plan_cost cost;
    char settings[256];
    estimate(job, ranks, &cost);
    suggest(job, ranks, settings, sizeof settings);
    return DPQ_RAISE(
        DPQ_E_MEMORY,
        "%s: a rank needs about %.1f MiB (weights %.1f, statistics %.1f, tuning %.1f, activations %.1f, evaluation "
        "%.1f, program %.1f), this host has %d ranks and %.1f MiB available; what helps: %s",
        why, mib(cost.total), mib(cost.weights), mib(cost.statistics), mib(cost.tuning), mib(cost.activations),
        mib(cost.evaluation), mib(cost.base), dpq_comm_local_size(job->world), mib(job->memory_bytes), settings);
}

static dpq_status parse_ranks(const dpq_job *job, int64_t *stated)
{
    const char *text = job->settings->run.run.ranks;
    int size = dpq_comm_size(job->world);
    *stated = 0;
    if (text == NULL || strcmp(text, "auto") == 0) {
        return DPQ_OK;
    }
    if (!dpq_parse_int64(text, stated) || *stated < 1) {
        return DPQ_RAISE(DPQ_E_CONFIG, "run.ranks: expected auto or a positive integer, found '%s'", text);
    }
    if (*stated > size) {
        return DPQ_RAISE(DPQ_E_CONFIG, "run.ranks: %lld are stated, but the job was started with %d",
                         (long long)*stated, size);
    }
    return DPQ_OK;
}

/* Largest number of ranks that all fit when they share the work. */
static dpq_status largest_fit(const dpq_job *job, bool *mine, int *ranks)
{
    int usable = 0;
    *ranks = dpq_comm_size(job->world);
    DPQ_TRY(count_usable(job, *ranks, mine, &usable));
    while (usable<*ranks && * ranks> 1) {
        *ranks = usable > 0 && usable < *ranks ? usable : *ranks - 1;
        DPQ_TRY(count_usable(job, *ranks, mine, &usable));
    }
    return usable >= *ranks ? DPQ_OK : refuse(job, 1, "run.ranks: not even one rank fits");
}

dpq_status dpq_job_choose_ranks(dpq_job *job)
{
    int64_t stated = 0;
    int ranks = 0, usable = 0, before = 0, size = dpq_comm_size(job->world), rank = dpq_comm_rank(job->world);
    bool mine = false;
    void *flags = NULL;
    dpq_status st = DPQ_OK;
    DPQ_TRY(dpq_comm_count_equal(job->world, dpq_backend_cores_key(), &job->sharing));
    job->base_bytes = dpq_memory_peak_bytes();
    /* what this rank holds already is no longer available, but counted in its need */
    job->memory_bytes = dpq_memory_available_bytes() + job->base_bytes * (uint64_t)dpq_comm_local_size(job->world);
    DPQ_TRY(parse_ranks(job, &stated));
    if (stated > 0) {
        ranks = (int)stated;
        DPQ_TRY(count_usable(job, ranks, &mine, &usable));
        DPQ_TRY(dpq_comm_agree(
            job->world, usable >= ranks ? DPQ_OK : refuse(job, ranks, "run.ranks: the stated number does not fit"),
            &job->run.spans));
    } else {
        DPQ_TRY(dpq_comm_agree(job->world, largest_fit(job, &mine, &ranks), &job->run.spans));
    }
    if (ranks == size) {
        return DPQ_OK;
    }
    double flag = mine ? 1.0 : 0.0;
    DPQ_TRY_GOTO(st, dpq_comm_agree(job->world, dpq_alloc_array(size, sizeof(double), &flags), &job->run.spans), done);
    DPQ_TRY_GOTO(st, dpq_comm_gather_samples(job->world, &flag, size, 1, flags), done);
    for (int r = 0; r < rank; r++) {
        before += ((double *)flags)[r] > 0 ? 1 : 0;
    }
    if (rank == 0) {
        dpq_log(DPQ_LOG_WARNING, "engine", "%d of %d ranks work%s; the rest wait", ranks, size,
                stated > 0 ? "" : ", as many as fit into memory");
    }
    DPQ_TRY_GOTO(st, dpq_comm_subset(job->world, mine && before < ranks, &job->subset), done);
    job->comm = job->subset;
    job->run.comm = job->subset;
done:
    dpq_free(flags);
    return st;
}
