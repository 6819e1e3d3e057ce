/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator of one rank, what the environment says about launchers, argument checks, and the end by abort. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../src/comm/comm_priv.h"
#include "dpquant/alloc.h"

static const char *const launch_variables[] = {
    "OMPI_COMM_WORLD_SIZE", "PMI_RANK",      "PMI_SIZE",     "PMIX_RANK",
    "SLURM_PROCID",         "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
};

static void clear_environment(void)
{
    for (size_t i = 0; i < sizeof launch_variables / sizeof launch_variables[0]; i++) {
        unsetenv(launch_variables[i]);
    }
}

static int open_comm(void **state)
{
    dpq_comm *comm = NULL;
    clear_environment();
    dpq_error_clear();
    if (dpq_comm_open(NULL, NULL, &comm) != DPQ_OK) {
        return -1;
    }
    *state = comm;
    return 0;
}

static int close_comm(void **state)
{
    dpq_comm *comm = *state;
    dpq_comm_close(&comm);
    return comm == NULL ? 0 : -1;
}

static void test_identity(void **state)
{
    dpq_comm *comm = *state;
    char host[256] = "";
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    assert_int_equal(dpq_comm_rank(comm), 0);
    assert_int_equal(dpq_comm_size(comm), 1);
    assert_int_equal(dpq_comm_local_rank(comm), 0);
    assert_int_equal(dpq_comm_local_size(comm), 1);
    assert_string_equal(dpq_comm_host(comm), host);
    assert_string_equal(dpq_comm_library(comm), "none (one rank)");
    assert_false(comm->ops->uses_mpi);
    assert_int_equal(dpq_comm_get_stats(comm)->calls, 0);
    dpq_comm *none = NULL;
    dpq_comm_close(&none);
    dpq_comm_close(NULL);
}

static void test_collectives_keep_data(void **state)
{
    dpq_comm *comm = *state;
    int64_t i64[3] = {INT64_MIN, -1, INT64_MAX};
    float f32[2] = {-0.0f, 1.5f};
    uint8_t u8[6] = {1, 2, 3, 4, 5, 6};
    dpq_tensor ti = dpq_tensor_wrap_1d(i64, DPQ_DTYPE_I64, 3);
    dpq_tensor tf = dpq_tensor_wrap_1d(f32, DPQ_DTYPE_F32, 2);
    dpq_tensor tu = dpq_tensor_wrap_2d(u8, DPQ_DTYPE_U8, 3, 2);
    const int64_t rows[2] = {0, 3};
    assert_int_equal(dpq_comm_allreduce(comm, &ti, DPQ_REDUCE_SUM), DPQ_OK);
    assert_int_equal(dpq_comm_reduce(comm, &ti, DPQ_REDUCE_MAX, 0), DPQ_OK);
    assert_int_equal(dpq_comm_allreduce(comm, &tf, DPQ_REDUCE_MIN), DPQ_OK);
    assert_int_equal(dpq_comm_broadcast(comm, &tu, 0), DPQ_OK);
    assert_int_equal(dpq_comm_allgather_rows(comm, &tu, rows), DPQ_OK);
    assert_int_equal(dpq_comm_barrier(comm), DPQ_OK);
    assert_true(i64[0] == INT64_MIN && i64[1] == -1 && i64[2] == INT64_MAX);
    assert_memory_equal(f32, ((const float[2]){-0.0f, 1.5f}), sizeof f32);
    assert_memory_equal(u8, ((const uint8_t[6]){1, 2, 3, 4, 5, 6}), sizeof u8);
    const dpq_comm_stats *stats = dpq_comm_get_stats(comm);
    assert_int_equal(stats->reduced_bytes, 24 + 24 + 8);
    assert_int_equal(stats->broadcast_bytes, 6);
    assert_int_equal(stats->gathered_bytes, 6);
    assert_int_equal(stats->calls, 6);
}

/* Complete at once, counted, freed by the wait. */
static void test_started(void **state)
{
    dpq_comm *comm = *state;
    int32_t i32[3] = {INT32_MIN, -1, 7};
    float f32[1] = {1.0f};
    dpq_tensor ti = dpq_tensor_wrap_1d(i32, DPQ_DTYPE_I32, 3);
    dpq_tensor tf = dpq_tensor_wrap_1d(f32, DPQ_DTYPE_F32, 1);
    dpq_spans spans = {{0}};
    dpq_comm_request *request = NULL;
    assert_int_equal(dpq_comm_progress(comm), DPQ_OK);
    assert_int_equal(dpq_comm_wait(comm, &request, &spans), DPQ_OK);
    assert_int_equal(dpq_comm_start_allreduce(comm, &ti, DPQ_REDUCE_SUM, &request), DPQ_OK);
    assert_non_null(request);
    assert_null(comm->under_way);
    assert_int_equal(dpq_comm_progress(comm), DPQ_OK);
    assert_int_equal(dpq_comm_wait(comm, &request, &spans), DPQ_OK);
    assert_null(request);
    assert_true(i32[0] == INT32_MIN && i32[1] == -1 && i32[2] == 7);
    const dpq_comm_stats *stats = dpq_comm_get_stats(comm);
    assert_true(stats->reduced_bytes == 12 && stats->calls == 1);
    assert_true(stats->overlap_s == 0.0 && stats->exposed_s == 0.0 && spans.seconds[DPQ_SPAN_REDUCE] == 0.0);
    assert_int_equal(dpq_comm_start_allreduce(comm, &tf, DPQ_REDUCE_SUM, &request), DPQ_E_SHAPE);
    assert_int_equal(dpq_comm_start_allreduce(comm, &tf, DPQ_REDUCE_MAX, &request), DPQ_E_SHAPE);
    assert_int_equal(dpq_comm_start_allreduce(comm, NULL, DPQ_REDUCE_SUM, &request), DPQ_E_BUG);
    assert_int_equal(dpq_comm_start_allreduce(NULL, &ti, DPQ_REDUCE_SUM, &request), DPQ_E_BUG);
    assert_null(request);
    assert_int_equal(stats->calls, 1);

    /* a started and a blocking reduction do not pair up: the digest that the ranks compare tells them apart */
    comm->sequence = 0;
    assert_int_equal(dpq_comm_start_allreduce(comm, &ti, DPQ_REDUCE_SUM, &request), DPQ_OK);
    assert_int_equal(dpq_comm_wait(comm, &request, NULL), DPQ_OK);
    uint64_t started = comm->sequence;
    comm->sequence = 0;
    assert_int_equal(dpq_comm_allreduce(comm, &ti, DPQ_REDUCE_SUM), DPQ_OK);
    assert_true(started != 0 && comm->sequence != 0 && started != comm->sequence);
}

static void test_gather_samples(void **state)
{
    dpq_comm *comm = *state;
    const double local[6] = {1, 2, 3, 4, 5, 6};
    double out[7] = {0, 0, 0, 0, 0, 0, -7};
    assert_int_equal(dpq_comm_gather_samples(comm, local, 3, 2, out), DPQ_OK);
    assert_memory_equal(out, local, sizeof local);
    assert_true(out[6] == -7);
    assert_int_equal(dpq_comm_gather_samples(comm, NULL, 0, 2, NULL), DPQ_OK);
    assert_int_equal(dpq_comm_gather_samples(comm, NULL, 2, 0, NULL), DPQ_OK);
    assert_int_equal(dpq_comm_gather_samples(comm, NULL, 2, 1, out), DPQ_E_BUG);
    assert_int_equal(dpq_comm_gather_samples(comm, local, -1, 1, out), DPQ_E_SHAPE);
}

static void test_bad_arguments(void **state)
{
    dpq_comm *comm = *state;
    float f32[4] = {1, 2, 3, 4};
    int64_t i64[4] = {1, 2, 3, 4};
    dpq_tensor tf = dpq_tensor_wrap_2d(f32, DPQ_DTYPE_F32, 2, 2);
    dpq_tensor ti = dpq_tensor_wrap_1d(i64, DPQ_DTYPE_I64, 4);

    assert_int_equal(dpq_comm_allreduce(comm, &tf, DPQ_REDUCE_SUM), DPQ_E_SHAPE);
    assert_non_null(strstr(dpq_error_last()->text, "sum of type F32"));
    dpq_tensor tb = dpq_tensor_wrap_1d(f32, DPQ_DTYPE_BF16, 4);
    assert_int_equal(dpq_comm_allreduce(comm, &tb, DPQ_REDUCE_MAX), DPQ_E_SHAPE);
    assert_int_equal(dpq_comm_allreduce(comm, &ti, (dpq_reduce_op)9), DPQ_E_BUG);
    assert_int_equal(dpq_comm_reduce(comm, &ti, DPQ_REDUCE_SUM, 1), DPQ_E_BUG);
    assert_int_equal(dpq_comm_reduce(comm, &ti, DPQ_REDUCE_SUM, -1), DPQ_E_BUG);
    assert_int_equal(dpq_comm_broadcast(comm, &ti, 1), DPQ_E_BUG);
    assert_int_equal(dpq_comm_broadcast(comm, NULL, 0), DPQ_E_BUG);
    assert_int_equal(dpq_comm_barrier(NULL), DPQ_E_BUG);

    dpq_tensor column = tf;
    column.dim[1] = 1;
    assert_int_equal(dpq_comm_broadcast(comm, &column, 0), DPQ_E_SHAPE);
    dpq_tensor device = tf;
    device.space = DPQ_SPACE_DEVICE;
    assert_int_equal(dpq_comm_broadcast(comm, &device, 0), DPQ_E_SHAPE);
    dpq_tensor no_data = tf;
    no_data.data = NULL;
    assert_int_equal(dpq_comm_broadcast(comm, &no_data, 0), DPQ_E_SHAPE);
    dpq_tensor unknown = tf;
    unknown.dtype = DPQ_DTYPE_COUNT;
    assert_int_equal(dpq_comm_broadcast(comm, &unknown, 0), DPQ_E_SHAPE);

    const int64_t short_rows[2] = {0, 1};
    const int64_t late_rows[2] = {1, 2};
    const int64_t rows[2] = {0, 2};
    assert_int_equal(dpq_comm_allgather_rows(comm, &tf, short_rows), DPQ_E_SHAPE);
    assert_int_equal(dpq_comm_allgather_rows(comm, &tf, late_rows), DPQ_E_SHAPE);
    assert_int_equal(dpq_comm_allgather_rows(comm, &tf, NULL), DPQ_E_SHAPE);
    dpq_tensor scalar = dpq_tensor_wrap(f32, DPQ_DTYPE_F32, 0, NULL);
    assert_int_equal(dpq_comm_allgather_rows(comm, &scalar, rows), DPQ_E_SHAPE);
    assert_int_equal(dpq_comm_get_stats(comm)->calls, 0);
}

static void *call_barrier(void *comm)
{
    static dpq_status st;
    st = dpq_comm_barrier(comm);
    return &st;
}

static void test_other_thread_is_refused(void **state)
{
    pthread_t thread;
    void *result = NULL;
    assert_int_equal(pthread_create(&thread, NULL, call_barrier, *state), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_int_equal(*(dpq_status *)result, DPQ_E_BUG);
}

static void test_agree(void **state)
{
    dpq_comm *comm = *state;
    dpq_spans spans = {{0}};
    assert_int_equal(dpq_comm_agree(comm, DPQ_OK, &spans), DPQ_OK);
    dpq_status st = DPQ_RAISE(DPQ_E_INPUT, "shard 3 is short");
    assert_int_equal(dpq_comm_agree(comm, st, NULL), DPQ_E_INPUT);
    assert_string_equal(dpq_error_last()->text, "shard 3 is short");
    /* a status that comes with another error's record, or none, gets its own text */
    assert_int_equal(dpq_comm_agree(comm, DPQ_E_MEMORY, NULL), DPQ_E_MEMORY);
    assert_int_equal(dpq_error_last()->code, DPQ_E_MEMORY);
    assert_string_equal(dpq_error_last()->text, dpq_status_text(DPQ_E_MEMORY));
}

/* Environment of a launcher and what must follow from it. */
typedef struct {
    const char *set[5]; /* NAME=VALUE */
    bool launched;
    int64_t tasks;
    bool without_pmi;
} launch_case;

static void test_launch(void **state)
{
    (void)state;
    static const launch_case cases[] = {
        {{NULL}, false, 0, false},
        {{"OMPI_COMM_WORLD_SIZE=4"}, true, 4, false},
        {{"OMPI_COMM_WORLD_SIZE=1", "SLURM_PROCID=0", "SLURM_STEP_ID=3", "SLURM_STEP_NUM_TASKS=8"}, true, 1, false},
        {{"PMI_RANK=0", "PMI_SIZE=3"}, true, 3, false},
        {{"PMI_RANK=0", "PMI_SIZE=junk"}, true, 0, false},
        {{"PMIX_RANK=1"}, true, 0, false},
        {{"PMIX_RANK=1", "SLURM_PROCID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2"}, true, 2, false},
        {{"SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_NTASKS=4"}, true, 2, true},
        {{"SLURM_PROCID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2"}, true, 2, false},
        {{"SLURM_PROCID=0", "SLURM_STEPID=0", "SLURM_NTASKS=4"}, true, 4, true},
        {{"SLURM_PROCID=0", "SLURM_STEP_ID=0"}, true, 0, true},
        /* one task needs no MPI; a batch script and an interactive shell are no tasks; nor is an empty variable */
        {{"SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=1", "SLURM_NTASKS=4"}, false, 1, false},
        {{"SLURM_PROCID=0", "SLURM_NTASKS=4"}, false, 0, false},
        {{"SLURM_PROCID=0", "SLURM_STEP_ID=4294967290", "SLURM_NTASKS=4"}, false, 0, false},
        {{"PMIX_RANK=", "OMPI_COMM_WORLD_SIZE="}, false, 0, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        clear_environment();
        for (size_t k = 0; k < 5 && cases[i].set[k] != NULL; k++) {
            char name[64];
            size_t length = strcspn(cases[i].set[k], "=");
            memcpy(name, cases[i].set[k], length);
            name[length] = '\0';
            assert_int_equal(setenv(name, cases[i].set[k] + length + 1, 1), 0);
        }
        dpq_comm_launch launch = dpq_comm_launch_read();
        if (launch.launched != cases[i].launched || launch.tasks != cases[i].tasks ||
            launch.without_pmi != cases[i].without_pmi || (launch.variable == NULL) != (launch.tasks == 0)) {
            fail_msg("case %zu: launched %d, tasks %ld, without_pmi %d", i, launch.launched, (long)launch.tasks,
                     launch.without_pmi);
        }
    }
    clear_environment();
}

/* Exit code of a child that aborts with ST, and what it wrote to stderr. */
static int run_abort(dpq_comm *comm, dpq_status st, bool raise, char *text, size_t text_bytes)
{
    int pipe_end[2];
    assert_int_equal(pipe(pipe_end), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipe_end[1], STDERR_FILENO);
        if (raise) {
            DPQ_IGNORE(DPQ_RAISE(st, "device lost"), "only the record is wanted");
        }
        dpq_comm_abort(comm, st);
    }
    close(pipe_end[1]);
    size_t length = 0;
    ssize_t got;
    while ((got = read(pipe_end[0], text + length, text_bytes - 1 - length)) > 0) {
        length += (size_t)got;
    }
    text[length] = '\0';
    close(pipe_end[0]);
    int wait_status = 0;
    assert_int_equal(waitpid(child, &wait_status, 0), child);
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
}

static void test_abort(void **state)
{
    dpq_comm *comm = *state;
    char text[8192];
    assert_int_equal(run_abort(comm, DPQ_E_DEVICE, true, text, sizeof text), 5);
    assert_non_null(strstr(text, "error"));
    assert_non_null(strstr(text, "rank 0 of 1 ("));
    assert_non_null(strstr(text, "): device lost ("));
    assert_int_equal(run_abort(comm, DPQ_E_NUMERIC, false, text, sizeof text), 6);
    assert_non_null(strstr(text, dpq_status_text(DPQ_E_NUMERIC)));
    assert_int_equal(run_abort(comm, DPQ_OK, false, text, sizeof text), 70);
    assert_int_equal(run_abort(NULL, DPQ_E_MEMORY, true, text, sizeof text), 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_identity, open_comm, close_comm),
        cmocka_unit_test_setup_teardown(test_collectives_keep_data, open_comm, close_comm),
        cmocka_unit_test_setup_teardown(test_started, open_comm, close_comm),
        cmocka_unit_test_setup_teardown(test_gather_samples, open_comm, close_comm),
        cmocka_unit_test_setup_teardown(test_bad_arguments, open_comm, close_comm),
        cmocka_unit_test_setup_teardown(test_other_thread_is_refused, open_comm, close_comm),
        cmocka_unit_test_setup_teardown(test_agree, open_comm, close_comm),
        cmocka_unit_test_setup_teardown(test_abort, open_comm, close_comm),
        cmocka_unit_test(test_launch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
