/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective on any number of ranks, against values computed from the rank numbers. Run under mpirun with 1, 2, 3
 * and 4 ranks (or with no launcher). Only rank 0 prints; a failed check on any rank makes all ranks return 1. Other
 * modes, each expected to end the job: "fail R" (a check fails on rank R), "abort R" (rank R aborts while the others
 * wait), "leave R" (rank R exits with code 3 while the others wait). */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../src/comm/comm_priv.h"
#include "dpquant/alloc.h"
#include "dpquant/log.h"

#define GUARD_BYTES 64
#define GUARD_VALUE 0xA5

static long n_checks;
static long n_failed;
static char first_failure[1024];

#define CHECK(condition, ...) check_that((condition), __LINE__, #condition, __VA_ARGS__)

static void check_that(bool condition, int line, const char *text, const char *fmt, ...) DPQ_PRINTF(4, 5);

static void check_that(bool condition, int line, const char *text, const char *fmt, ...)
{
    n_checks++;
    if (condition) {
        return;
    }
    if (n_failed == 0) {
        char detail[512];
        va_list args;
        va_start(args, fmt);
        vsnprintf(detail, sizeof detail, fmt, args);
        va_end(args);
        snprintf(first_failure, sizeof first_failure, "line %d: %s: %s", line, text, detail);
    }
    n_failed++;
}

/* A collective that fails where it must not: the peers may wait, so the job ends here. */
static void must(dpq_comm *comm, dpq_status st)
{
    if (st != DPQ_OK) {
        dpq_comm_abort(comm, st);
    }
}

/* BYTES of memory with guard bands before and after. */
static void *guarded_alloc(dpq_comm *comm, size_t bytes)
{
    void *memory = NULL;
    must(comm, dpq_alloc(bytes + 2 * GUARD_BYTES, &memory));
    memset(memory, GUARD_VALUE, bytes + 2 * GUARD_BYTES);
    memset((char *)memory + GUARD_BYTES, 0, bytes);
    return (char *)memory + GUARD_BYTES;
}

static void guarded_free(void *data, size_t bytes)
{
    const unsigned char *before = (const unsigned char *)data - GUARD_BYTES;
    const unsigned char *after = (const unsigned char *)data + bytes;
    bool whole = true;
    for (int i = 0; i < GUARD_BYTES; i++) {
        whole = whole && before[i] == GUARD_VALUE && after[i] == GUARD_VALUE;
    }
    CHECK(whole, "guard band around %zu bytes was written", bytes);
    dpq_free((char *)data - GUARD_BYTES);
}

/* Element I of rank RANK: differs in sign and size, small enough for any sum in 32 bits. */
static int64_t value_of(int rank, int64_t i)
{
    return (i * 7919 + rank * 104729) % 20011 - 10005;
}

static int64_t expected_of(int size, int64_t i, dpq_reduce_op op)
{
    int64_t result = value_of(0, i);
    for (int r = 1; r < size; r++) {
        int64_t v = value_of(r, i);
        if (op == DPQ_REDUCE_SUM) {
            result += v;
        } else if (op == DPQ_REDUCE_MIN ? v < result : v > result) {
            result = v;
        }
    }
    return result;
}

static void store(void *data, dpq_dtype dtype, int64_t i, int64_t v)
{
    switch (dtype) {
    case DPQ_DTYPE_I32:
        ((int32_t *)data)[i] = (int32_t)v;
        break;
    case DPQ_DTYPE_F32:
        ((float *)data)[i] = (float)v * 0.5f;
        break;
    case DPQ_DTYPE_F64:
        ((double *)data)[i] = (double)v * 0.25;
        break;
    default: /* I64; U64 takes the same bits, offset so that the order stays */
        ((int64_t *)data)[i] = dtype == DPQ_DTYPE_U64 ? v + 20011 : v;
        break;
    }
}

static void test_reduce_case(dpq_comm *comm, dpq_dtype dtype, dpq_reduce_op op, int64_t n, int root)
{
    int rank = dpq_comm_rank(comm);
    int size = dpq_comm_size(comm);
    size_t bytes = (size_t)n * dpq_dtype_bytes(dtype);
    void *data = guarded_alloc(comm, bytes);
    void *expected = guarded_alloc(comm, bytes);
    for (int64_t i = 0; i < n; i++) {
        int64_t want = expected_of(size, i, op);
        store(data, dtype, i, value_of(rank, i));
        /* the offset of U64 is added once a rank */
        store(expected, dtype, i, dtype == DPQ_DTYPE_U64 && op == DPQ_REDUCE_SUM ? want + 20011 * (size - 1) : want);
    }
    dpq_tensor t = dpq_tensor_wrap_1d(data, dtype, n);
    must(comm, root < 0 ? dpq_comm_allreduce(comm, &t, op) : dpq_comm_reduce(comm, &t, op, root));
    if (root < 0 || root == rank) {
        CHECK(memcmp(data, expected, bytes) == 0, "type %s, op %d, %lld elements, root %d", dpq_dtype_name(dtype),
              (int)op, (long long)n, root);
    }
    guarded_free(expected, bytes);
    guarded_free(data, bytes);
}

static void test_reduce(dpq_comm *comm)
{
    static const dpq_dtype types[] = {DPQ_DTYPE_I32, DPQ_DTYPE_I64, DPQ_DTYPE_U64, DPQ_DTYPE_F32, DPQ_DTYPE_F64};
    static const int64_t counts[] = {0, 1, 3, 7, 1001};
    for (int op = DPQ_REDUCE_SUM; op <= DPQ_REDUCE_MAX; op++) {
        for (int k = op == DPQ_REDUCE_SUM ? 2 : 4; k >= 0; k--) {
            for (int c = 0; c < 5; c++) {
                for (int root = DPQ_COMM_ALL_RANKS; root < dpq_comm_size(comm); root++) {
                    test_reduce_case(comm, types[k], (dpq_reduce_op)op, counts[c], root);
                }
            }
        }
    }
}

/* Longer than one piece of a reduction at the normal limit. */
static void test_reduce_long(dpq_comm *comm)
{
    test_reduce_case(comm, DPQ_DTYPE_I32, DPQ_REDUCE_SUM, ((int64_t)1 << 22) + 7, DPQ_COMM_ALL_RANKS);
    test_reduce_case(comm, DPQ_DTYPE_F32, DPQ_REDUCE_MAX, ((int64_t)1 << 22) + 7, 0);
}

static void test_started_case(dpq_comm *comm, dpq_dtype dtype, dpq_reduce_op op, int64_t n)
{
    enum { REQUESTS = 3 };
    int rank = dpq_comm_rank(comm);
    int size = dpq_comm_size(comm);
    size_t bytes = (size_t)n * dpq_dtype_bytes(dtype);
    void *data[REQUESTS];
    void *expected = guarded_alloc(comm, bytes);
    dpq_comm_request *requests[REQUESTS];
    dpq_comm_stats before = *dpq_comm_get_stats(comm);
    for (int i = 0; i < REQUESTS; i++) {
        data[i] = guarded_alloc(comm, bytes);
        for (int64_t k = 0; k < n; k++) {
            store(data[i], dtype, k, value_of(rank, k + i));
        }
        dpq_tensor t = dpq_tensor_wrap_1d(data[i], dtype, n);
        must(comm, dpq_comm_start_allreduce(comm, &t, op, &requests[i]));
        must(comm, dpq_comm_progress(comm));
    }
    /* other collectives while these are under way, and each rank asks its own number of times */
    int64_t one = 1;
    dpq_tensor blocking = dpq_tensor_wrap_1d(&one, DPQ_DTYPE_I64, 1);
    must(comm, dpq_comm_allreduce(comm, &blocking, DPQ_REDUCE_SUM));
    CHECK(one == size, "%lld", (long long)one);
    for (int i = 0; i < rank; i++) {
        must(comm, dpq_comm_progress(comm));
    }
    for (int i = 0; i < REQUESTS; i++) { /* waited for in another order than started, by rank */
        int which = (i * 2 + rank) % REQUESTS;
        must(comm, dpq_comm_wait(comm, &requests[which], NULL));
        CHECK(requests[which] == NULL, "request %d", which);
        for (int64_t k = 0; k < n; k++) {
            int64_t want = expected_of(size, k + which, op);
            store(expected, dtype, k,
                  dtype == DPQ_DTYPE_U64 && op == DPQ_REDUCE_SUM ? want + 20011 * (size - 1) : want);
        }
        CHECK(memcmp(data[which], expected, bytes) == 0, "type %s, op %d, %lld elements, request %d",
              dpq_dtype_name(dtype), (int)op, (long long)n, which);
    }
    for (int i = 0; i < REQUESTS; i++) {
        guarded_free(data[i], bytes);
    }
    guarded_free(expected, bytes);
    const dpq_comm_stats *after = dpq_comm_get_stats(comm);
    CHECK(after->reduced_bytes == before.reduced_bytes + REQUESTS * bytes + sizeof one, "reduced bytes");
    CHECK(after->calls == before.calls + REQUESTS + 1, "calls");
    CHECK(after->overlap_s >= before.overlap_s && after->exposed_s >= before.exposed_s, "seconds went back");
    CHECK(comm->under_way == NULL, "a request is left");
}

static void test_started(dpq_comm *comm)
{
    static const dpq_dtype types[] = {DPQ_DTYPE_I32, DPQ_DTYPE_I64, DPQ_DTYPE_U64};
    static const int64_t counts[] = {0, 1, 7, 1001};
    for (int c = 0; c < 4; c++) {
        for (int k = 0; k < 3; k++) {
            test_started_case(comm, types[k], DPQ_REDUCE_SUM, counts[c]);
        }
        test_started_case(comm, DPQ_DTYPE_I32, DPQ_REDUCE_MAX, counts[c]);
    }
    float f = 1.0f;
    dpq_tensor t = dpq_tensor_wrap_1d(&f, DPQ_DTYPE_F32, 1);
    dpq_comm_request *request = NULL;
    CHECK(dpq_comm_start_allreduce(comm, &t, DPQ_REDUCE_SUM, &request) == DPQ_E_SHAPE, "a sum of floats");
    CHECK(dpq_comm_start_allreduce(comm, &t, DPQ_REDUCE_MAX, &request) == DPQ_E_SHAPE, "a maximum of floats");
    CHECK(request == NULL, "request of an error");
    dpq_error_clear();
}

/* A late rank: the others' seconds go to "overlap" while they ask between other work, to "exposed" when they wait. */
static void test_started_seconds(dpq_comm *comm, bool by_waiting)
{
    const struct timespec late = {.tv_nsec = 60 * 1000 * 1000};
    const struct timespec work = {.tv_nsec = 1000 * 1000};
    int32_t v[4] = {1, 2, 3, 4};
    dpq_tensor t = dpq_tensor_wrap_1d(v, DPQ_DTYPE_I32, 4);
    dpq_comm_request *request = NULL;
    dpq_spans spans = {{0}};
    must(comm, dpq_comm_barrier(comm));
    if (dpq_comm_rank(comm) == 0) {
        nanosleep(&late, NULL);
    }
    dpq_comm_stats before = *dpq_comm_get_stats(comm);
    must(comm, dpq_comm_start_allreduce(comm, &t, DPQ_REDUCE_SUM, &request));
    while (!by_waiting && comm->under_way != NULL) {
        nanosleep(&work, NULL);
        must(comm, dpq_comm_progress(comm));
    }
    must(comm, dpq_comm_wait(comm, &request, &spans));
    CHECK(v[3] == 4 * dpq_comm_size(comm), "%d", (int)v[3]);
    double overlap_s = dpq_comm_get_stats(comm)->overlap_s - before.overlap_s;
    double exposed_s = dpq_comm_get_stats(comm)->exposed_s - before.exposed_s;
    if (dpq_comm_rank(comm) > 0) {
        CHECK((by_waiting ? exposed_s : overlap_s) > 0.02, "overlap %g s, exposed %g s", overlap_s, exposed_s);
        CHECK((by_waiting ? overlap_s : exposed_s) < 0.02, "overlap %g s, exposed %g s", overlap_s, exposed_s);
        CHECK(spans.seconds[DPQ_SPAN_REDUCE] == exposed_s || fabs(spans.seconds[DPQ_SPAN_REDUCE] - exposed_s) < 0.01,
              "span of %g s, exposed %g s", spans.seconds[DPQ_SPAN_REDUCE], exposed_s);
    }
}

/* Sums near 2^62, where a double or a 32-bit step on the way would show. */
static void test_big_sums(dpq_comm *comm)
{
    int rank = dpq_comm_rank(comm);
    int size = dpq_comm_size(comm);
    const int64_t share = (INT64_C(1) << 62) / size;
    int64_t v[4] = {share - rank, -share + rank, rank % 2 == 0 ? INT64_C(1) << 61 : -(INT64_C(1) << 61), 1};
    int64_t ranks = (int64_t)size * (size - 1) / 2;
    dpq_tensor t = dpq_tensor_wrap_1d(v, DPQ_DTYPE_I64, 4);
    must(comm, dpq_comm_allreduce(comm, &t, DPQ_REDUCE_SUM));
    CHECK(v[0] == share * size - ranks, "%lld", (long long)v[0]);
    CHECK(v[1] == -share * size + ranks, "%lld", (long long)v[1]);
    CHECK(v[2] == (size % 2 == 0 ? 0 : INT64_C(1) << 61), "%lld", (long long)v[2]);
    CHECK(v[3] == size, "%lld", (long long)v[3]);
}

/* Infinities, denormals, and zeros of both signs: +0 is above -0 whatever rank holds it. */
static void test_float_extremes(dpq_comm *comm)
{
    int rank = dpq_comm_rank(comm);
    int size = dpq_comm_size(comm);
    for (int holder = 0; holder < size; holder++) {
        bool mine = rank == holder;
        double d[5] = {mine ? 0.0 : -0.0, mine ? -0.0 : 0.0, mine ? INFINITY : 1e308, mine ? -INFINITY : -1e308,
                       mine ? 4.9e-324 : -4.9e-324};
        float f[3] = {mine ? 0.0f : -0.0f, mine ? -0.0f : 0.0f, mine ? 1e-45f : -1e-45f};
        dpq_tensor td = dpq_tensor_wrap_1d(d, DPQ_DTYPE_F64, 5);
        dpq_tensor tf = dpq_tensor_wrap_1d(f, DPQ_DTYPE_F32, 3);
        must(comm, dpq_comm_allreduce(comm, &td, DPQ_REDUCE_MAX));
        must(comm, dpq_comm_allreduce(comm, &tf, DPQ_REDUCE_MAX));
        const double max_d[5] = {0.0, size > 1 ? 0.0 : -0.0, INFINITY, size > 1 ? -1e308 : -INFINITY, 4.9e-324};
        const float max_f[3] = {0.0f, size > 1 ? 0.0f : -0.0f, 1e-45f};
        CHECK(memcmp(d, max_d, sizeof d) == 0, "F64 maximum, special values at rank %d", holder);
        CHECK(memcmp(f, max_f, sizeof f) == 0, "F32 maximum, special values at rank %d", holder);
        double low[2] = {mine ? -0.0 : 0.0, mine ? -INFINITY : -1e308};
        const double min_d[2] = {-0.0, -INFINITY};
        dpq_tensor tl = dpq_tensor_wrap_1d(low, DPQ_DTYPE_F64, 2);
        must(comm, dpq_comm_allreduce(comm, &tl, DPQ_REDUCE_MIN));
        CHECK(memcmp(low, min_d, sizeof low) == 0, "F64 minimum, special values at rank %d", holder);
    }
}

static void test_broadcast(dpq_comm *comm)
{
    static const int64_t counts[] = {0, 1, 5, 1003};
    int rank = dpq_comm_rank(comm);
    for (int root = 0; root < dpq_comm_size(comm); root++) {
        for (int c = 0; c < 4; c++) {
            size_t bytes = (size_t)counts[c] * 2;
            uint16_t *data = guarded_alloc(comm, bytes);
            for (int64_t i = 0; i < counts[c]; i++) {
                data[i] = (uint16_t)(rank == root ? value_of(root, i) : -1);
            }
            dpq_tensor t = dpq_tensor_wrap_1d(data, DPQ_DTYPE_BF16, counts[c]);
            must(comm, dpq_comm_broadcast(comm, &t, root));
            bool equal = true;
            for (int64_t i = 0; i < counts[c]; i++) {
                equal = equal && data[i] == (uint16_t)value_of(root, i);
            }
            CHECK(equal, "%lld elements from rank %d", (long long)counts[c], root);
            guarded_free(data, bytes);
        }
    }
}

static void test_allgather_case(dpq_comm *comm, const int64_t *row_start, int64_t cols)
{
    int rank = dpq_comm_rank(comm);
    int64_t rows = row_start[dpq_comm_size(comm)];
    size_t bytes = (size_t)(rows * cols) * sizeof(int32_t);
    int32_t *data = guarded_alloc(comm, bytes);
    for (int64_t i = 0; i < rows * cols; i++) {
        bool mine = i / cols >= row_start[rank] && i / cols < row_start[rank + 1];
        data[i] = mine ? (int32_t)value_of(5, i) : -77777;
    }
    dpq_tensor t = dpq_tensor_wrap_2d(data, DPQ_DTYPE_I32, rows, cols);
    must(comm, dpq_comm_allgather_rows(comm, &t, row_start));
    int64_t n_wrong = 0;
    for (int64_t i = 0; i < rows * cols; i++) {
        n_wrong += data[i] != (int32_t)value_of(5, i);
    }
    CHECK(n_wrong == 0, "%lld of %lld x %lld elements wrong", (long long)n_wrong, (long long)rows, (long long)cols);
    guarded_free(data, bytes);
}

/* Rows dealt evenly, all to one rank, all but one rank empty or with one row, odd widths. */
static void test_allgather_rows(dpq_comm *comm)
{
    static const int64_t widths[] = {0, 1, 3, 65};
    int size = dpq_comm_size(comm);
    void *memory = NULL;
    must(comm, dpq_alloc_array((int64_t)size + 1, sizeof(int64_t), &memory));
    int64_t *start = memory;
    for (int w = 0; w < 4; w++) {
        for (int64_t rows = 0; rows < 3 * size + 2; rows++) {
            for (int r = 0; r <= size; r++) {
                start[r] = rows * r / size;
            }
            test_allgather_case(comm, start, widths[w]);
        }
        for (int owner = 0; owner < size; owner++) {
            for (int r = 0; r <= size; r++) {
                start[r] = r > owner ? 11 : 0;
            }
            test_allgather_case(comm, start, widths[w]);
            for (int r = 0; r <= size; r++) {
                start[r] = r + (r > owner ? 8 : 0);
            }
            test_allgather_case(comm, start, widths[w]);
        }
    }
    dpq_free(memory);
}

static double sample_value(int64_t sample, int64_t k)
{
    return (double)sample * 1000.125 - (double)k / 3.0;
}

static void test_gather_samples(dpq_comm *comm)
{
    int rank = dpq_comm_rank(comm);
    int size = dpq_comm_size(comm);
    for (int64_t width = 1; width <= 3; width += 2) {
        for (int64_t n = 0; n <= 2 * size + 1; n++) {
            size_t bytes = (size_t)(n * width) * sizeof(double);
            double *local = guarded_alloc(comm, bytes);
            double *out = guarded_alloc(comm, bytes);
            int64_t own = 0;
            for (int64_t s = rank; s < n; s += size) {
                for (int64_t k = 0; k < width; k++) {
                    local[own++] = sample_value(s, k);
                }
            }
            must(comm, dpq_comm_gather_samples(comm, own > 0 ? local : NULL, n, width, out));
            bool equal = true;
            for (int64_t i = 0; i < n * width; i++) {
                equal = equal && out[i] == sample_value(i / width, i % width);
            }
            CHECK(equal, "%lld samples of %lld values", (long long)n, (long long)width);
            guarded_free(out, bytes);
            guarded_free(local, bytes);
        }
    }
}

static void check_agreed(dpq_comm *comm, int origin, dpq_status want, dpq_status got, const char *text)
{
    char start[128];
    snprintf(start, sizeof start, "rank %d of %d (", origin, dpq_comm_size(comm));
    const char *found = dpq_error_last()->text;
    CHECK(got == want && dpq_error_last()->code == want, "status %d, record %d, expected %d", (int)got,
          (int)dpq_error_last()->code, (int)want);
    if (dpq_comm_size(comm) > 1) {
        CHECK(strncmp(found, start, strlen(start)) == 0, "\"%.200s\" does not start with \"%s\"", found, start);
        CHECK(strstr(found + 1, "rank ") == NULL, "two ranks named in \"%.200s\"", found);
    }
    CHECK(strstr(found, text) != NULL, "\"%.200s\" lacks \"%s\"", found, text);
}

static void test_agree(dpq_comm *comm)
{
    int rank = dpq_comm_rank(comm);
    int size = dpq_comm_size(comm);
    dpq_error_clear();
    CHECK(dpq_comm_agree(comm, DPQ_OK, NULL) == DPQ_OK, "nobody failed");
    for (int failing = 0; failing < size; failing++) {
        dpq_error_clear();
        dpq_status st = rank == failing ? DPQ_RAISE(DPQ_E_INPUT, "shard %d is short", rank) : DPQ_OK;
        char text[64];
        snprintf(text, sizeof text, "): shard %d is short", failing);
        st = dpq_comm_agree(comm, st, NULL);
        check_agreed(comm, failing, DPQ_E_INPUT, st, size > 1 ? text : "shard 0 is short");
        CHECK(strstr(dpq_error_last()->origin, "test_comm_mpi.c") != NULL, "origin \"%s\"", dpq_error_last()->origin);
        /* on the way up the same error may be agreed on again: it keeps the name of its own rank */
        dpq_error_add_context("layer %d", 4);
        st = dpq_comm_agree(comm, st, NULL);
        CHECK(st == DPQ_E_INPUT, "status %d", (int)st);
        CHECK(strncmp(dpq_error_last()->text, "layer 4: ", 9) == 0, "\"%.200s\"", dpq_error_last()->text);
        CHECK(size == 1 || strstr(dpq_error_last()->text, text) != NULL, "\"%.200s\"", dpq_error_last()->text);
    }
    /* all but rank 0 fail, differently: the lowest wins */
    dpq_error_clear();
    int lowest = size > 1 ? 1 : 0;
    dpq_status st = rank >= lowest ? DPQ_RAISE(rank == lowest ? DPQ_E_MEMORY : DPQ_E_DISK, "number %d", rank) : DPQ_OK;
    check_agreed(comm, lowest, DPQ_E_MEMORY, dpq_comm_agree(comm, st, NULL), lowest == 1 ? "number 1" : "number 0");
    /* a status without a record, and a text too long for the prefix */
    dpq_error_clear();
    st = dpq_comm_agree(comm, rank == size - 1 ? DPQ_E_NUMERIC : DPQ_OK, NULL);
    check_agreed(comm, size - 1, DPQ_E_NUMERIC, st, dpq_status_text(DPQ_E_NUMERIC));
    st = rank == 0 ? DPQ_RAISE(DPQ_E_FAIL, "%0*d", DPQ_ERROR_TEXT_BYTES - 2, 0) : DPQ_OK;
    check_agreed(comm, 0, DPQ_E_FAIL, dpq_comm_agree(comm, st, NULL), "0000");
    CHECK(strlen(dpq_error_last()->text) < DPQ_ERROR_TEXT_BYTES, "text is not terminated");
    dpq_error_clear();
    CHECK(dpq_comm_agree(comm, DPQ_OK, NULL) == DPQ_OK, "an old failure came back");
}

static void test_agree_measures_wait(dpq_comm *comm)
{
    const struct timespec pause = {.tv_nsec = 60 * 1000 * 1000};
    dpq_spans spans = {{0}};
    must(comm, dpq_comm_barrier(comm));
    if (dpq_comm_rank(comm) == 0) {
        nanosleep(&pause, NULL);
    }
    must(comm, dpq_comm_agree(comm, DPQ_OK, &spans));
    if (dpq_comm_rank(comm) > 0) {
        CHECK(spans.seconds[DPQ_SPAN_WAIT] > 0.02, "waited %g s", spans.seconds[DPQ_SPAN_WAIT]);
    }
}

/* Same bytes under two types on different ranks: MPI is content, the next agree is not. */
static void test_different_lists(dpq_comm *comm)
{
    int32_t v[2] = {1, 2};
    dpq_tensor t =
        dpq_comm_rank(comm) == 0 ? dpq_tensor_wrap_1d(v, DPQ_DTYPE_I32, 2) : dpq_tensor_wrap_1d(v, DPQ_DTYPE_U32, 2);
    must(comm, dpq_comm_agree(comm, DPQ_OK, NULL));
    must(comm, dpq_comm_broadcast(comm, &t, 0));
    dpq_status st = dpq_comm_agree(comm, DPQ_OK, NULL);
    CHECK(st == (dpq_comm_size(comm) > 1 ? DPQ_E_BUG : DPQ_OK), "status %d", (int)st);
    dpq_error_clear();
    CHECK(dpq_comm_agree(comm, DPQ_OK, NULL) == DPQ_OK, "the difference came back");
}

/* An error that MPI finds must come back as a status, in MPI's words, and leave the communicator usable. */
static void test_mpi_error_is_returned(dpq_comm *comm)
{
    if (!comm->ops->uses_mpi) {
        return;
    }
    int64_t v = 1;
    dpq_status st = comm->ops->broadcast(comm, &v, sizeof v, dpq_comm_size(comm) + 3);
    CHECK(st == DPQ_E_COMM, "status %d", (int)st);
    CHECK(strstr(dpq_error_last()->text, "MPI_Bcast failed") != NULL && strstr(dpq_error_last()->text, "root") != NULL,
          "\"%.300s\"", dpq_error_last()->text);
    dpq_error_clear();
    dpq_tensor t = dpq_tensor_wrap_1d(&v, DPQ_DTYPE_I64, 1);
    must(comm, dpq_comm_allreduce(comm, &t, DPQ_REDUCE_SUM));
    CHECK(v == dpq_comm_size(comm), "%lld", (long long)v);
}

static void test_identity_and_stats(dpq_comm *comm)
{
    int size = dpq_comm_size(comm);
    int rank = dpq_comm_rank(comm);
    CHECK(rank >= 0 && rank < size, "rank %d of %d", rank, size);
    CHECK(dpq_comm_local_size(comm) >= 1 && dpq_comm_local_size(comm) <= size, "%d", dpq_comm_local_size(comm));
    CHECK(dpq_comm_local_rank(comm) >= 0 && dpq_comm_local_rank(comm) < dpq_comm_local_size(comm), "%d",
          dpq_comm_local_rank(comm));
    CHECK(dpq_comm_host(comm)[0] != '\0' && dpq_comm_library(comm)[0] != '\0', "no names");
    CHECK(strpbrk(dpq_comm_library(comm), ",\n") == NULL, "library \"%s\"", dpq_comm_library(comm));
    int64_t seen[64] = {0};
    if (rank < 64) {
        seen[rank] = 1;
    }
    dpq_comm_stats before = *dpq_comm_get_stats(comm);
    dpq_tensor t = dpq_tensor_wrap_1d(seen, DPQ_DTYPE_I64, 64);
    must(comm, dpq_comm_allreduce(comm, &t, DPQ_REDUCE_SUM));
    must(comm, dpq_comm_broadcast(comm, &t, size - 1));
    for (int r = 0; r < 64; r++) {
        CHECK(seen[r] == (r < size), "rank %d was seen %lld times", r, (long long)seen[r]);
    }
    const dpq_comm_stats *after = dpq_comm_get_stats(comm);
    CHECK(after->reduced_bytes == before.reduced_bytes + sizeof seen, "reduced bytes");
    CHECK(after->broadcast_bytes == before.broadcast_bytes + sizeof seen, "broadcast bytes");
    CHECK(after->gathered_bytes == before.gathered_bytes && after->calls == before.calls + 2, "gathered bytes, calls");
}

/* The modes that must end the job. Returns when MODE is not one of them. */
static void run_ending_mode(dpq_comm *comm, const char *mode, int who)
{
    bool mine = dpq_comm_rank(comm) == who;
    if (strcmp(mode, "abort") == 0 && mine) {
        dpq_comm_abort(comm, DPQ_RAISE(DPQ_E_NUMERIC, "rank %d gives up", who));
    } else if (strcmp(mode, "leave") == 0 && mine) {
        _Exit(3);
    } else if (strcmp(mode, "fail") == 0) {
        CHECK(!mine, "asked to fail on rank %d", who);
        return;
    }
    must(comm, dpq_comm_barrier(comm));
}

static void run_tests(dpq_comm *comm)
{
    static const int64_t chunk_limits[] = {DPQ_COMM_CHUNK_ELEMS, 100, 3, 1};
    for (int c = 0; c < 4; c++) {
        comm->chunk_elems = chunk_limits[c];
        test_reduce(comm);
        test_started(comm);
        test_big_sums(comm);
        test_float_extremes(comm);
        test_broadcast(comm);
        test_allgather_rows(comm);
        test_gather_samples(comm);
        test_agree(comm);
        test_identity_and_stats(comm);
    }
    comm->chunk_elems = DPQ_COMM_CHUNK_ELEMS;
    test_reduce_long(comm);
    test_started_case(comm, DPQ_DTYPE_I32, DPQ_REDUCE_SUM, ((int64_t)1 << 22) + 7);
    test_started_seconds(comm, false);
    test_started_seconds(comm, true);
    test_agree_measures_wait(comm);
    test_different_lists(comm);
    test_mpi_error_is_returned(comm);
}

int main(int argc, char **argv)
{
    dpq_comm *comm = NULL;
    if (dpq_comm_open(&argc, &argv, &comm) != DPQ_OK) {
        fprintf(stderr, "open: %s\n", dpq_error_last()->text);
        return 1;
    }
    int rank = dpq_comm_rank(comm);
    int size = dpq_comm_size(comm);
    dpq_log_setup(rank, size, DPQ_LOG_INFO);
    if (argc == 3) {
        run_ending_mode(comm, argv[1], atoi(argv[2]));
    } else {
        run_tests(comm);
    }
    int64_t failed_anywhere = n_failed;
    dpq_tensor t = dpq_tensor_wrap_1d(&failed_anywhere, DPQ_DTYPE_I64, 1);
    must(comm, dpq_comm_allreduce(comm, &t, DPQ_REDUCE_SUM));
    dpq_error_clear();
    dpq_status st = n_failed > 0 ? DPQ_RAISE(DPQ_E_FAIL, "%s", first_failure) : DPQ_OK;
    st = dpq_comm_agree(comm, st, NULL);
    if (rank == 0) {
        printf("test_comm_mpi: %d ranks, %ld checks on rank 0, %lld failed on all ranks, %s\n", size, n_checks,
               (long long)failed_anywhere, dpq_comm_library(comm));
        if (st != DPQ_OK) {
            printf("FAILED: %s\n", dpq_error_last()->text);
        }
    }
    dpq_comm_close(&comm);
    return st == DPQ_OK && failed_anywhere == 0 && n_failed == 0 ? 0 : 1;
}
