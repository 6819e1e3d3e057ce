/* SPDX-License-Identifier: Apache-2.0 */
/* Threads and backend of this rank, and the start lines. */
#include <stdio.h>
#include <string.h>

#include "dpquant/log.h"
#include "job_priv.h"

/* What every rank must share for equal bits: a warning names the first rank that differs. */
static dpq_status compare_machines(const dpq_job *job)
{
    char mine[128] = "", first[128];
    snprintf(mine, sizeof mine, "%s, %s", dpq_backend_isa(), dpq_backend_libraries());
    memcpy(first, mine, sizeof first);
    dpq_tensor t = dpq_tensor_wrap_1d(first, DPQ_DTYPE_U8, sizeof first);
    DPQ_TRY(dpq_comm_broadcast(job->comm, &t, 0));
    if (strcmp(first, mine) != 0) {
        dpq_log(DPQ_LOG_WARNING, "engine",
                "this rank computes with %s, rank 0 with %s: results may depend on which rank does what; "
                "ONEDNN_MAX_CPU_ISA and run.compute pin them",
                mine, first);
    }
    return DPQ_OK;
}

/* run.compute: auto is decided by each rank's processor; all must come to the same. */
static dpq_status compare_compute(const dpq_job *job)
{
    int32_t low = (int32_t)job->plan->compute, high = low;
    dpq_tensor l = dpq_tensor_wrap_1d(&low, DPQ_DTYPE_I32, 1), h = dpq_tensor_wrap_1d(&high, DPQ_DTYPE_I32, 1);
    DPQ_TRY(dpq_comm_allreduce(job->comm, &l, DPQ_REDUCE_MIN));
    DPQ_TRY(dpq_comm_allreduce(job->comm, &h, DPQ_REDUCE_MAX));
    if (low != high) {
        return DPQ_RAISE(DPQ_E_CONFIG,
                         "run.compute: auto means fp32 on some ranks' processors and bf16 on others'; set it");
    }
    return DPQ_OK;
}

dpq_status dpq_job_start_backend(dpq_job *job)
{
    int allowed = dpq_backend_allowed_cores();
    DPQ_TRY(dpq_comm_count_equal(job->comm, dpq_backend_cores_key(), &job->sharing));
    int threads = dpq_backend_choose_threads(job->settings->run.run.threads, job->sharing);
    DPQ_TRY(dpq_comm_agree(job->comm, dpq_backend_create("cpu", threads, &job->run.backend), &job->run.spans));
    if (dpq_comm_rank(job->comm) == 0) {
        dpq_log(DPQ_LOG_INFO, "engine", "Starting distributed execution with %d rank%s", dpq_comm_size(job->comm),
                dpq_comm_size(job->comm) == 1 ? "" : "s");
    }
    dpq_log_every_rank("engine", "rank %d of %d: host %s, device cpu, %d thread%s, %d core%s allowed, %s",
                       dpq_comm_rank(job->comm), dpq_comm_size(job->comm), dpq_comm_host(job->comm), threads,
                       threads == 1 ? "" : "s", allowed, allowed == 1 ? "" : "s", dpq_backend_isa());
    if (threads > allowed) {
        dpq_log_warn_once("threads", "engine",
                          "%d threads on %d allowed core%s; give mpirun --bind-to none or --map-by socket:PE=%d",
                          threads, allowed, allowed == 1 ? "" : "s", threads);
    }
    DPQ_TRY(compare_machines(job));
    return compare_compute(job);
}
