/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on host memory over MPI: counts split below MPI's int limit, errors returned in MPI's own words. */
#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "comm_priv.h"
#include "dpquant/alloc.h"
#include "dpquant/log.h"

/* A reduction goes out in pieces of this many elements at most: MPI keeps temporary copies of what it reduces, and a
 * statistic may be as large as the memory that is left. Integer sums do not depend on the pieces. */
#define REDUCE_CHUNK_ELEMS ((int64_t)1 << 22)

typedef struct {
    MPI_Comm world; /* duplicate of MPI_COMM_WORLD, or a part of it, that returns errors */
    bool is_part;   /* closing it does not end MPI */
    int counts[]; /* 2 * size entries: room for the counts and offsets of an allgather, which so needs no allocation */
} mpi_state;

/* CALL is the source text of the failed call; only the function's name is printed. */
static dpq_status raise_mpi(int mpi_code, const char *call, const char *file, int line, const char *func)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (MPI_Error_string(mpi_code, text, &length) != MPI_SUCCESS) {
        snprintf(text, sizeof text, "unknown MPI error");
    }
    return dpq_error_raise(DPQ_E_COMM, file, line, func, "%.*s failed with code %d: %s", (int)strcspn(call, "("), call,
                           mpi_code, text);
}

#define DPQ_MPI(call)                                                                                                  \
    do {                                                                                                               \
        int mpi_code_ = (call);                                                                                        \
        if (mpi_code_ != MPI_SUCCESS) {                                                                                \
            return raise_mpi(mpi_code_, #call, __FILE__, __LINE__, __func__);                                          \
        }                                                                                                              \
    } while (0)

static MPI_Comm get_world(const dpq_comm *comm)
{
    const mpi_state *state = comm->impl;
    return state->world;
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* IEEE floats to integers in the same order and back (the map is its own inverse): negative numbers have the bits below
 * the sign flipped. MPI may return either of -0.0 and +0.0 as their maximum, depending on who reduces with whom; as
 * integers they differ, so that the result is the same bits for every number of ranks. NaN is above infinity. */
static void swap_float_order(void *data, int64_t count, dpq_dtype dtype)
{
    char *bytes = data;
    if (dtype == DPQ_DTYPE_F32) {
        for (int64_t i = 0; i < count; i++) {
            int32_t v;
            memcpy(&v, bytes + (size_t)i * sizeof v, sizeof v);
            v = v < 0 ? v ^ INT32_MAX : v;
            memcpy(bytes + (size_t)i * sizeof v, &v, sizeof v);
        }
    } else if (dtype == DPQ_DTYPE_F64) {
        for (int64_t i = 0; i < count; i++) {
            int64_t v;
            memcpy(&v, bytes + (size_t)i * sizeof v, sizeof v);
            v = v < 0 ? v ^ INT64_MAX : v;
            memcpy(bytes + (size_t)i * sizeof v, &v, sizeof v);
        }
    }
}

static dpq_status reduce_elems(dpq_comm *comm, void *data, int64_t count, size_t elem_bytes, MPI_Datatype type,
                               MPI_Op op, int root)
{
    int64_t limit = min_i64(comm->chunk_elems, REDUCE_CHUNK_ELEMS);
    for (int64_t done = 0; done < count; done += limit) {
        int n = (int)min_i64(count - done, limit);
        char *part = (char *)data + (size_t)done * elem_bytes;
        if (root == DPQ_COMM_ALL_RANKS) {
            DPQ_MPI(MPI_Allreduce(MPI_IN_PLACE, part, n, type, op, get_world(comm)));
        } else if (root == comm->rank) {
            DPQ_MPI(MPI_Reduce(MPI_IN_PLACE, part, n, type, op, root, get_world(comm)));
        } else {
            DPQ_MPI(MPI_Reduce(part, NULL, n, type, op, root, get_world(comm)));
        }
    }
    return DPQ_OK;
}

static MPI_Op mpi_op_of(dpq_reduce_op op)
{
    return op == DPQ_REDUCE_SUM ? MPI_SUM : op == DPQ_REDUCE_MIN ? MPI_MIN : MPI_MAX;
}

static dpq_status find_type(dpq_dtype dtype, MPI_Datatype *type)
{
    switch (dtype) {
    case DPQ_DTYPE_I32:
    case DPQ_DTYPE_F32: /* as ordered integers */
        *type = MPI_INT32_T;
        return DPQ_OK;
    case DPQ_DTYPE_I64:
    case DPQ_DTYPE_F64:
        *type = MPI_INT64_T;
        return DPQ_OK;
    case DPQ_DTYPE_U64:
        *type = MPI_UINT64_T;
        return DPQ_OK;
    default:
        return DPQ_RAISE(DPQ_E_BUG, "reduction of type %s reached MPI", dpq_dtype_name(dtype));
    }
}

static dpq_status reduce_mpi(dpq_comm *comm, void *data, int64_t count, dpq_dtype dtype, dpq_reduce_op op, int root)
{
    MPI_Datatype type = MPI_DATATYPE_NULL;
    DPQ_TRY(find_type(dtype, &type));
    swap_float_order(data, count, dtype);
    dpq_status st = reduce_elems(comm, data, count, dpq_dtype_bytes(dtype), type, mpi_op_of(op), root);
    swap_float_order(data, count, dtype);
    return st;
}

/* The pieces of a reduction under way. All are started at once: the order in which collectives start must be the same
 * on all ranks, so it may not depend on when an earlier piece ends. */
typedef struct {
    int count;
    MPI_Request pieces[];
} mpi_request;

static dpq_status start_mpi(dpq_comm *comm, dpq_comm_request *request)
{
    MPI_Datatype type = MPI_DATATYPE_NULL;
    DPQ_TRY(find_type(request->dtype, &type));
    int64_t limit = min_i64(comm->chunk_elems, REDUCE_CHUNK_ELEMS);
    int64_t n_pieces = (request->count + limit - 1) / limit;
    void *memory = NULL;
    DPQ_TRY(dpq_alloc(sizeof(mpi_request) + (size_t)n_pieces * sizeof(MPI_Request), &memory));
    mpi_request *own = memory;
    request->impl = own;
    for (int64_t i = 0; i < n_pieces; i++) {
        int n = (int)min_i64(request->count - i * limit, limit);
        char *part = (char *)request->data + (size_t)(i * limit) * dpq_dtype_bytes(request->dtype);
        DPQ_MPI(MPI_Iallreduce(MPI_IN_PLACE, part, n, type, mpi_op_of(request->op), get_world(comm), &own->pieces[i]));
        own->count++;
    }
    return DPQ_OK;
}

static dpq_status advance_mpi(dpq_comm *comm, dpq_comm_request *request, bool block)
{
    (void)comm;
    mpi_request *own = request->impl;
    int is_done = 1;
    if (block) {
        DPQ_MPI(MPI_Waitall(own->count, own->pieces, MPI_STATUSES_IGNORE));
    } else {
        DPQ_MPI(MPI_Testall(own->count, own->pieces, &is_done, MPI_STATUSES_IGNORE));
    }
    if (is_done) {
        dpq_free(own);
        request->impl = NULL;
        request->done = true;
    }
    return DPQ_OK;
}

static dpq_status broadcast_mpi(dpq_comm *comm, void *data, size_t bytes, int root)
{
    size_t limit = (size_t)comm->chunk_elems;
    for (size_t done = 0; done < bytes; done += limit) {
        size_t n = bytes - done < limit ? bytes - done : limit;
        DPQ_MPI(MPI_Bcast((char *)data + done, (int)n, MPI_BYTE, root, get_world(comm)));
    }
    return DPQ_OK;
}

/* Counts and displacements of MPI_Allgatherv in whole rows; both arrays have one entry a rank. */
static dpq_status allgather_whole_rows(dpq_comm *comm, void *data, int row_bytes, const int64_t *row_start, int *counts,
                                       int *offsets)
{
    MPI_Datatype row = MPI_DATATYPE_NULL;
    for (int r = 0; r < comm->size; r++) {
        counts[r] = (int)(row_start[r + 1] - row_start[r]);
        offsets[r] = (int)row_start[r];
    }
    DPQ_MPI(MPI_Type_contiguous(row_bytes, MPI_BYTE, &row));
    int code = MPI_Type_commit(&row);
    if (code == MPI_SUCCESS) {
        code = MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, counts, offsets, row, get_world(comm));
    }
    int free_code = MPI_Type_free(&row);
    if (code != MPI_SUCCESS) {
        return raise_mpi(code, "MPI_Allgatherv", __FILE__, __LINE__, __func__);
    }
    if (free_code != MPI_SUCCESS) {
        return raise_mpi(free_code, "MPI_Type_free", __FILE__, __LINE__, __func__);
    }
    return DPQ_OK;
}

static dpq_status allgather_rows_mpi(dpq_comm *comm, void *data, size_t row_bytes, const int64_t *row_start)
{
    /* too long for MPI's int counts: one broadcast a rank, which is split as needed */
    if (row_start[comm->size] > comm->chunk_elems || row_bytes > (size_t)comm->chunk_elems) {
        for (int r = 0; r < comm->size; r++) {
            size_t bytes = (size_t)(row_start[r + 1] - row_start[r]) * row_bytes;
            DPQ_TRY(broadcast_mpi(comm, (char *)data + (size_t)row_start[r] * row_bytes, bytes, r));
        }
        return DPQ_OK;
    }
    mpi_state *state = comm->impl;
    return allgather_whole_rows(comm, data, (int)row_bytes, row_start, state->counts, state->counts + comm->size);
}

static dpq_status barrier_mpi(dpq_comm *comm)
{
    DPQ_MPI(MPI_Barrier(get_world(comm)));
    return DPQ_OK;
}

static void warn_mpi(int mpi_code, const char *call)
{
    if (mpi_code != MPI_SUCCESS) {
        dpq_log(DPQ_LOG_WARNING, "comm", "%s failed with code %d", call, mpi_code);
    }
}

/* Polls rarely: the rank leaves its core to others. */
static dpq_status rest_mpi(dpq_comm *comm)
{
    const struct timespec nap = {.tv_nsec = 5000000};
    MPI_Request request;
    int done = 0;
    DPQ_MPI(MPI_Ibarrier(get_world(comm), &request));
    DPQ_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    while (!done) {
        nanosleep(&nap, NULL);
        DPQ_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    }
    return DPQ_OK;
}

static void close_mpi(dpq_comm *comm)
{
    mpi_state *state = comm->impl;
    bool is_part = state->is_part;
    warn_mpi(MPI_Comm_free(&state->world), "MPI_Comm_free");
    dpq_free(state);
    comm->impl = NULL;
    if (!is_part) {
        warn_mpi(MPI_Finalize(), "MPI_Finalize");
    }
}

static dpq_status read_local_ranks(dpq_comm *comm, MPI_Comm world);

static dpq_status split_mpi(dpq_comm *comm, dpq_comm *sub)
{
    MPI_Comm part = MPI_COMM_NULL;
    DPQ_MPI(MPI_Comm_split(get_world(comm), sub != NULL ? 0 : MPI_UNDEFINED, comm->rank, &part));
    if (sub == NULL) {
        return DPQ_OK;
    }
    void *memory;
    DPQ_MPI(MPI_Comm_set_errhandler(part, MPI_ERRORS_RETURN));
    DPQ_MPI(MPI_Comm_size(part, &sub->size));
    DPQ_TRY(dpq_alloc(sizeof(mpi_state) + 2 * (size_t)sub->size * sizeof(int), &memory));
    mpi_state *state = memory;
    state->world = part;
    state->is_part = true;
    sub->impl = state;
    sub->ops = comm->ops;
    DPQ_MPI(MPI_Comm_rank(part, &sub->rank));
    return read_local_ranks(sub, part);
}

static const dpq_comm_ops mpi_ops = {
    .uses_mpi = true,
    .reduce = reduce_mpi,
    .start = start_mpi,
    .advance = advance_mpi,
    .broadcast = broadcast_mpi,
    .allgather_rows = allgather_rows_mpi,
    .barrier = barrier_mpi,
    .rest = rest_mpi,
    .split = split_mpi,
    .close = close_mpi,
};

/* "Open MPI v4.1.4, package: ..." up to the first comma or line end. */
static dpq_status read_library(dpq_comm *comm)
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    DPQ_MPI(MPI_Get_library_version(text, &length));
    snprintf(comm->library, sizeof comm->library, "%.*s", (int)strcspn(text, ",\r\n"), text);
    return DPQ_OK;
}

static dpq_status read_local_ranks(dpq_comm *comm, MPI_Comm world)
{
    MPI_Comm host = MPI_COMM_NULL;
    DPQ_MPI(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, comm->rank, MPI_INFO_NULL, &host));
    DPQ_MPI(MPI_Comm_rank(host, &comm->local_rank));
    DPQ_MPI(MPI_Comm_size(host, &comm->local_size));
    DPQ_MPI(MPI_Comm_free(&host));
    return DPQ_OK;
}

static dpq_status duplicate_world(dpq_comm *comm)
{
    mpi_state *state = NULL;
    void *memory = NULL;
    DPQ_TRY(dpq_alloc(sizeof *state + 2 * (size_t)comm->size * sizeof state->counts[0], &memory));
    state = memory;
    comm->impl = state; /* freed by the caller of dpq_comm_init_mpi when what follows fails */
    DPQ_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &state->world));
    DPQ_MPI(MPI_Comm_set_errhandler(state->world, MPI_ERRORS_RETURN));
    DPQ_TRY(read_local_ranks(comm, state->world));
    return read_library(comm);
}

/* A launcher of another MPI, or srun without its PMI plug-in, starts N processes that each believe to be alone: they
 * would all write the same output. */
static dpq_status check_size(const dpq_comm *comm, const dpq_comm_launch *launch)
{
    if (comm->size != 1 || launch->tasks <= 1) {
        return DPQ_OK;
    }
    return DPQ_RAISE(DPQ_E_COMM,
                     "%s says that %" PRId64
                     " tasks were started, but MPI found only this one on %s; start with mpirun "
                     "of the MPI that dpquant was built with (%s), or with srun --mpi=pmix",
                     launch->variable, launch->tasks, comm->host, comm->library);
}

dpq_status dpq_comm_init_mpi(dpq_comm *comm, const dpq_comm_launch *launch, int *argc, char ***argv)
{
    int provided = MPI_THREAD_SINGLE;
    if (launch->without_pmi) {
        dpq_log(DPQ_LOG_WARNING, "comm",
                "started by srun without a PMI plug-in; if MPI does not start, use srun --mpi=pmix or mpirun");
    }
    DPQ_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided));
    DPQ_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    DPQ_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &comm->rank));
    DPQ_MPI(MPI_Comm_size(MPI_COMM_WORLD, &comm->size));
    /* A rank that fails here on its own leaves without MPI_Finalize, where it might wait for its peers for ever: the
     * launcher ends the job when a process leaves with an error. */
    if (provided < MPI_THREAD_FUNNELED) {
        return DPQ_RAISE(DPQ_E_COMM, "MPI offers no thread level MPI_THREAD_FUNNELED (got %d)", provided);
    }
    DPQ_TRY(duplicate_world(comm));
    comm->ops = &mpi_ops;
    dpq_status st = check_size(comm, launch);
    if (st != DPQ_OK) {
        close_mpi(comm); /* alone by definition: nobody to wait for */
    }
    return st;
}
