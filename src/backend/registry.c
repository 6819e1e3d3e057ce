/* SPDX-License-Identifier: Apache-2.0 */
/* Backends by name, their threads and per-thread state, the parallel loop, and what the processor and the libraries
 * are. */
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend_ops.h"
#include "cpu_gemm.h"
#include "dpquant/clock.h"
#include "dpquant/hash.h"
#include "dpquant/str.h"

#define MAX_THREADS 4096

void openblas_set_num_threads(int threads);
char *openblas_get_config(void);
char *openblas_get_corename(void);

static const dpq_backend_ops *const backends[] = {&dpq_backend_cpu_ops};

int dpq_backend_allowed_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 1;
    }
    int cores = CPU_COUNT(&set);
    return cores > 0 ? cores : 1;
}

uint64_t dpq_backend_cores_key(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 0;
    }
    return dpq_hash64(0, &set, sizeof set);
}

int dpq_backend_choose_threads(int64_t wanted, int sharing)
{
    int64_t from_env = 0;
    const char *env = getenv("OMP_NUM_THREADS");
    int allowed = dpq_backend_allowed_cores();
    if (wanted > 0) {
        return (int)wanted;
    }
    if (env != NULL && dpq_parse_int64(env, &from_env) && from_env > 0 && from_env <= MAX_THREADS) {
        return (int)from_env;
    }
    return allowed > sharing ? allowed / sharing : 1;
}

static dpq_status create_thread_state(dpq_backend *be)
{
    void *gemm, *workspace;
    DPQ_TRY(dpq_alloc_array(be->threads, sizeof *be->gemm, &gemm));
    be->gemm = gemm;
    DPQ_TRY(dpq_alloc_array(be->threads, sizeof *be->workspace, &workspace));
    be->workspace = workspace;
    for (int t = 0; t < be->threads; t++) {
        DPQ_TRY(dpq_gemm_context_create(&be->gemm[t]));
        DPQ_TRY(dpq_workspace_create(&be->workspace[t]));
    }
    return DPQ_OK;
}

dpq_status dpq_backend_create(const char *name, int threads, dpq_backend **out)
{
    *out = NULL;
    const dpq_backend_ops *ops = NULL;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        ops = strcmp(backends[i]->name, name) == 0 ? backends[i] : ops;
    }
    if (ops == NULL) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "device '%s' is not in this build; it has: cpu", name);
    }
    /* libraries below run single-threaded inside our own tiles */
    omp_set_num_threads(1);
    openblas_set_num_threads(1);
    void *memory;
    DPQ_TRY(dpq_alloc(sizeof(dpq_backend), &memory));
    dpq_backend *be = memory;
    be->ops = ops;
    be->threads = threads > 0 ? threads : dpq_backend_allowed_cores();
    dpq_status st = create_thread_state(be);
    if (st != DPQ_OK) {
        dpq_backend_destroy(&be);
        return st;
    }
    *out = be;
    return DPQ_OK;
}

void dpq_backend_destroy(dpq_backend **backend)
{
    dpq_backend *be = *backend;
    if (be == NULL) {
        return;
    }
    for (int t = 0; t < be->threads; t++) {
        if (be->gemm != NULL) {
            dpq_gemm_context_destroy(&be->gemm[t]);
        }
        if (be->workspace != NULL) {
            dpq_workspace_destroy(&be->workspace[t]);
        }
    }
    dpq_free(be->gemm);
    dpq_free(be->workspace);
    dpq_free(be);
    *backend = NULL;
}

int dpq_backend_threads(const dpq_backend *backend)
{
    return backend->threads;
}

const char *dpq_backend_isa(void)
{
    return dpq_gemm_isa();
}

const char *dpq_backend_libraries(void)
{
    static char text[256];
    snprintf(text, sizeof text, "%s, %s (core %s)", dpq_gemm_library(), openblas_get_config(), openblas_get_corename());
    return text;
}

dpq_compute dpq_backend_auto_compute(void)
{
    return dpq_gemm_prefers_bf16() ? DPQ_COMPUTE_BF16 : DPQ_COMPUTE_F32;
}

/* ---- parallel loop ---- */

void dpq_backend_set_idle(dpq_backend *be, void (*callback)(void *context), void *context)
{
    be->idle = callback;
    be->idle_context = context;
}

typedef struct {
    dpq_backend *be;
    dpq_parallel_body body;
    void *context;
    int64_t failed; /* lowest index that failed, or n */
    dpq_error_record record;
} loop;

static void run_one(loop *l, int64_t i, int thread)
{
    dpq_workspace *ws = l->be->workspace[thread];
    dpq_workspace_mark mark = dpq_workspace_get_mark(ws);
    dpq_status st = l->body(l->context, i, thread, ws);
    dpq_workspace_release(ws, mark);
    if (st != DPQ_OK) {
#pragma omp critical(dpq_parallel_error)
        if (i < l->failed) {
            l->failed = i;
            l->record = *dpq_error_last();
            l->record.code = st;
        }
    }
    if (thread == 0 && l->be->idle != NULL) { /* thread 0 of the team is the one that called */
        l->be->idle(l->be->idle_context);
    }
}

dpq_status dpq_backend_parallel(dpq_backend *be, int64_t n, dpq_parallel_body body, void *context)
{
    loop l = {.be = be, .body = body, .context = context, .failed = n};
    if (be->threads == 1 || n <= 1) {
        for (int64_t i = 0; i < n; i++) {
            run_one(&l, i, 0);
        }
    } else {
#pragma omp parallel for schedule(dynamic, 1) num_threads(be->threads)
        for (int64_t i = 0; i < n; i++) {
            run_one(&l, i, omp_get_thread_num());
        }
    }
    if (l.failed < n) {
        dpq_error_set(&l.record);
        return l.record.code;
    }
    return DPQ_OK;
}

/* ---- measured rate ---- */

typedef struct {
    dpq_backend *be;
    dpq_gemm_shape shape;
    const void *a, *b;
    double seconds;
    int64_t *runs;
    double *elapsed;
} rate_job;

static dpq_status rate_thread(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const rate_job *job = context;
    void *c;
    DPQ_TRY(dpq_workspace_alloc(ws, job->shape.m * job->shape.n, sizeof(float), &c));
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &job->shape, job->a, job->b, c));
    double start = dpq_clock_s();
    do {
        DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &job->shape, job->a, job->b, c));
        job->runs[i]++;
        job->elapsed[i] = dpq_clock_s() - start;
    } while (job->elapsed[i] < job->seconds);
    return DPQ_OK;
}

dpq_status dpq_backend_measure_gflops(dpq_backend *be, dpq_compute compute, double seconds, double *gflops)
{
    enum { M = 256, N = 256, K = 1024 };
    *gflops = 0.0;
    dpq_dtype dtype = compute == DPQ_COMPUTE_BF16 ? DPQ_DTYPE_BF16 : DPQ_DTYPE_F32;
    rate_job job = {
        .be = be,
        .shape = {.m = M, .n = N, .k = K, .lda = K, .ldb = K, .ldc = N, .b_transposed = true, .dtype = dtype},
        .seconds = seconds};
    void *operands = NULL, *runs = NULL, *elapsed = NULL;
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_alloc_array((M + N) * K, dpq_dtype_bytes(dtype), &operands), done);
    DPQ_TRY_GOTO(st, dpq_alloc_array(be->threads, sizeof *job.runs, &runs), done);
    DPQ_TRY_GOTO(st, dpq_alloc_array(be->threads, sizeof *job.elapsed, &elapsed), done);
    job.a = operands;
    job.b = (const char *)operands + (size_t)M * K * dpq_dtype_bytes(dtype);
    job.runs = runs;
    job.elapsed = elapsed;
    DPQ_TRY_GOTO(st, dpq_backend_parallel(be, be->threads, rate_thread, &job), done);
    for (int t = 0; t < be->threads; t++) {
        *gflops += 2e-9 * M * N * K * (double)job.runs[t] / job.elapsed[t];
    }
done:
    dpq_free(operands);
    dpq_free(runs);
    dpq_free(elapsed);
    return st;
}
