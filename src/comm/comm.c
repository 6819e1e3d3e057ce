/* SPDX-License-Identifier: Apache-2.0 */
/* Communicator: open and close, argument checks, counting, and dispatch into the table of the implementation. */
#include <string.h>
#include <unistd.h>

#include "comm_priv.h"
#include "dpquant/alloc.h"

typedef enum { OP_REDUCE = 1, OP_BROADCAST, OP_ALLGATHER_ROWS, OP_BARRIER, OP_START_REDUCE } comm_op;

dpq_status dpq_comm_open(int *argc, char ***argv, dpq_comm **out)
{
    *out = NULL;
    dpq_status st = DPQ_OK;
    dpq_comm *comm = NULL;
    void *memory = NULL;
    DPQ_TRY(dpq_alloc(sizeof *comm, &memory));
    comm = memory;
    comm->thread = pthread_self();
    comm->chunk_elems = DPQ_COMM_CHUNK_ELEMS;
    if (gethostname(comm->host, sizeof comm->host - 1) != 0) {
        memcpy(comm->host, "unknown host", sizeof "unknown host");
    }
    dpq_comm_launch launch = dpq_comm_launch_read();
    if (launch.launched) {
        DPQ_TRY_GOTO(st, dpq_comm_init_mpi(comm, &launch, argc, argv), done);
    } else {
        dpq_comm_init_self(comm);
    }
    *out = comm;
    comm = NULL;
done:
    if (comm != NULL) {
        dpq_free(comm->impl);
        dpq_free(comm);
    }
    return st;
}

void dpq_comm_close(dpq_comm **comm)
{
    if (comm == NULL || *comm == NULL) {
        return;
    }
    (*comm)->ops->close(*comm);
    dpq_free(*comm);
    *comm = NULL;
}

int dpq_comm_rank(const dpq_comm *comm)
{
    return comm->rank;
}

int dpq_comm_size(const dpq_comm *comm)
{
    return comm->size;
}

int dpq_comm_local_rank(const dpq_comm *comm)
{
    return comm->local_rank;
}

int dpq_comm_local_size(const dpq_comm *comm)
{
    return comm->local_size;
}

const char *dpq_comm_host(const dpq_comm *comm)
{
    return comm->host;
}

const char *dpq_comm_library(const dpq_comm *comm)
{
    return comm->library;
}

const dpq_comm_stats *dpq_comm_get_stats(const dpq_comm *comm)
{
    return &comm->stats;
}

dpq_status dpq_comm_check_caller(const dpq_comm *comm, const char *what)
{
    if (comm == NULL) {
        return DPQ_RAISE(DPQ_E_BUG, "%s: no communicator", what);
    }
    if (!pthread_equal(comm->thread, pthread_self())) {
        return DPQ_RAISE(DPQ_E_BUG, "%s: called from another thread than the one that opened the communicator", what);
    }
    return DPQ_OK;
}

static dpq_status check_tensor(const dpq_tensor *t, const char *what)
{
    if (t == NULL) {
        return DPQ_RAISE(DPQ_E_BUG, "%s: no tensor", what);
    }
    if ((int)t->dtype < 0 || t->dtype >= DPQ_DTYPE_COUNT) {
        return DPQ_RAISE(DPQ_E_SHAPE, "%s: unknown element type %d", what, (int)t->dtype);
    }
    if (t->space == DPQ_SPACE_DEVICE) {
        return DPQ_RAISE(DPQ_E_SHAPE, "%s: tensor is in device memory, expected host memory", what);
    }
    if (!dpq_tensor_is_contiguous(t)) {
        return DPQ_RAISE(DPQ_E_SHAPE, "%s: tensor is not contiguous", what);
    }
    if (t->data == NULL && dpq_tensor_count(t) > 0) {
        return DPQ_RAISE(DPQ_E_SHAPE, "%s: tensor of %lld elements without data", what, (long long)dpq_tensor_count(t));
    }
    return DPQ_OK;
}

static dpq_status check_root(const dpq_comm *comm, int root, const char *what)
{
    if (root < 0 || root >= comm->size) {
        return DPQ_RAISE(DPQ_E_BUG, "%s: root %d, expected 0 to %d", what, root, comm->size - 1);
    }
    return DPQ_OK;
}

static dpq_status check_reducible(const dpq_tensor *t, dpq_reduce_op op, const char *what)
{
    bool integer = t->dtype == DPQ_DTYPE_I32 || t->dtype == DPQ_DTYPE_I64 || t->dtype == DPQ_DTYPE_U64;
    bool real = t->dtype == DPQ_DTYPE_F32 || t->dtype == DPQ_DTYPE_F64;
    switch (op) {
    case DPQ_REDUCE_SUM:
        if (!integer) {
            return DPQ_RAISE(DPQ_E_SHAPE, "%s: sum of type %s, expected I32, I64 or U64 (sums are exact)", what,
                             dpq_dtype_name(t->dtype));
        }
        return DPQ_OK;
    case DPQ_REDUCE_MIN:
    case DPQ_REDUCE_MAX:
        if (!integer && !real) {
            return DPQ_RAISE(DPQ_E_SHAPE, "%s: minimum or maximum of type %s, expected I32, I64, U64, F32 or F64", what,
                             dpq_dtype_name(t->dtype));
        }
        return DPQ_OK;
    }
    return DPQ_RAISE(DPQ_E_BUG, "%s: unknown operation %d", what, (int)op);
}

/* One step of the digest that agree compares: FNV-1a over whole words. What goes in must be equal on all ranks. */
static void note_call(dpq_comm *comm, comm_op op, int detail, int root, uint64_t amount)
{
    const uint64_t words[3] = {((uint64_t)op << 32) | (uint32_t)detail, (uint32_t)root, amount};
    comm->stats.calls++;
    for (int i = 0; i < 3; i++) {
        comm->sequence = (comm->sequence ^ words[i] ^ UINT64_C(0xcbf29ce484222325)) * UINT64_C(0x100000001b3);
        comm->sequence ^= comm->sequence >> 29;
    }
}

dpq_status dpq_comm_check_reduction(const dpq_tensor *t, dpq_reduce_op op, const char *what)
{
    DPQ_TRY(check_tensor(t, what));
    return check_reducible(t, op, what);
}

void dpq_comm_note_reduction(dpq_comm *comm, const dpq_tensor *t, dpq_reduce_op op, int root, bool started)
{
    size_t bytes = dpq_tensor_bytes(t);
    note_call(comm, started ? OP_START_REDUCE : OP_REDUCE, (int)op * DPQ_DTYPE_COUNT + (int)t->dtype, root, bytes);
    comm->stats.reduced_bytes += bytes;
}

static dpq_status reduce_to(dpq_comm *comm, dpq_tensor *t, dpq_reduce_op op, int root, const char *what)
{
    DPQ_TRY(dpq_comm_check_reduction(t, op, what));
    dpq_comm_note_reduction(comm, t, op, root, false);
    return dpq_tensor_bytes(t) == 0 ? DPQ_OK
                                    : comm->ops->reduce(comm, t->data, dpq_tensor_count(t), t->dtype, op, root);
}

dpq_status dpq_comm_allreduce(dpq_comm *comm, dpq_tensor *t, dpq_reduce_op op)
{
    DPQ_TRY(dpq_comm_check_caller(comm, "allreduce"));
    return reduce_to(comm, t, op, DPQ_COMM_ALL_RANKS, "allreduce");
}

dpq_status dpq_comm_reduce(dpq_comm *comm, dpq_tensor *t, dpq_reduce_op op, int root)
{
    DPQ_TRY(dpq_comm_check_caller(comm, "reduce"));
    DPQ_TRY(check_root(comm, root, "reduce"));
    return reduce_to(comm, t, op, root, "reduce");
}

dpq_status dpq_comm_broadcast(dpq_comm *comm, dpq_tensor *t, int root)
{
    DPQ_TRY(dpq_comm_check_caller(comm, "broadcast"));
    DPQ_TRY(check_root(comm, root, "broadcast"));
    DPQ_TRY(check_tensor(t, "broadcast"));
    size_t bytes = dpq_tensor_bytes(t);
    note_call(comm, OP_BROADCAST, (int)t->dtype, root, bytes);
    comm->stats.broadcast_bytes += bytes;
    return bytes == 0 ? DPQ_OK : comm->ops->broadcast(comm, t->data, bytes, root);
}

dpq_status dpq_comm_allgather_rows(dpq_comm *comm, dpq_tensor *t, const int64_t *row_start)
{
    DPQ_TRY(dpq_comm_check_caller(comm, "allgather_rows"));
    DPQ_TRY(check_tensor(t, "allgather_rows"));
    if (t->rank < 1) {
        return DPQ_RAISE(DPQ_E_SHAPE, "allgather_rows: tensor has no rows (rank %d)", t->rank);
    }
    if (row_start == NULL || row_start[0] != 0 || row_start[comm->size] != t->dim[0]) {
        return DPQ_RAISE(DPQ_E_SHAPE, "allgather_rows: row ranges do not cover the tensor's %lld rows",
                         (long long)t->dim[0]);
    }
    for (int r = 0; r < comm->size; r++) {
        if (row_start[r] > row_start[r + 1]) {
            return DPQ_RAISE(DPQ_E_SHAPE, "allgather_rows: rows of rank %d start at %lld and end at %lld", r,
                             (long long)row_start[r], (long long)row_start[r + 1]);
        }
    }
    size_t bytes = dpq_tensor_bytes(t);
    note_call(comm, OP_ALLGATHER_ROWS, (int)t->dtype, DPQ_COMM_ALL_RANKS, bytes);
    if (bytes == 0) {
        return DPQ_OK;
    }
    size_t row_bytes = bytes / (size_t)t->dim[0];
    comm->stats.gathered_bytes += row_bytes * (size_t)(row_start[comm->rank + 1] - row_start[comm->rank]);
    return comm->ops->allgather_rows(comm, t->data, row_bytes, row_start);
}

dpq_status dpq_comm_barrier(dpq_comm *comm)
{
    DPQ_TRY(dpq_comm_check_caller(comm, "barrier"));
    note_call(comm, OP_BARRIER, 0, DPQ_COMM_ALL_RANKS, 0);
    return comm->ops->barrier(comm);
}

/* Samples of rank r: r, r + size, r + 2 size, ... below n. */
static int64_t count_samples(const dpq_comm *comm, int rank, int64_t n)
{
    return n > rank ? (n - rank - 1) / comm->size + 1 : 0;
}

/* BY_RANK holds the samples of rank 0, then those of rank 1, and so on. */
static void order_samples(const dpq_comm *comm, const double *by_rank, int64_t n, int64_t width, double *out)
{
    for (int rank = 0; rank < comm->size; rank++) {
        for (int64_t i = rank; i < n; i += comm->size) {
            memcpy(out + i * width, by_rank, (size_t)width * sizeof *out);
            by_rank += width;
        }
    }
}

dpq_status dpq_comm_gather_samples(dpq_comm *comm, const double *local, int64_t n, int64_t width, double *out)
{
    DPQ_TRY(dpq_comm_check_caller(comm, "gather_samples"));
    if (n < 0 || width < 0) {
        return DPQ_RAISE(DPQ_E_SHAPE, "gather_samples: %lld samples of %lld values", (long long)n, (long long)width);
    }
    if (n == 0 || width == 0) {
        return DPQ_OK;
    }
    dpq_status st = DPQ_OK;
    void *values = NULL;
    void *starts = NULL;
    int64_t own = count_samples(comm, comm->rank, n);
    if (out == NULL || (local == NULL && own > 0)) {
        st = DPQ_RAISE(DPQ_E_BUG, "gather_samples: no memory given");
    }
    size_t total = 0;
    if (st == DPQ_OK) {
        st = dpq_mul_size((size_t)n, (size_t)width, &total);
    }
    if (st == DPQ_OK) {
        st = dpq_alloc_array((int64_t)total, sizeof(double), &values);
    }
    if (st == DPQ_OK) {
        st = dpq_alloc_array((int64_t)comm->size + 1, sizeof(int64_t), &starts);
    }
    /* one rank without memory must not leave the others waiting in the gather */
    DPQ_TRY_GOTO(st, dpq_comm_agree(comm, st, NULL), done);
    int64_t *row_start = starts;
    for (int rank = 0; rank < comm->size; rank++) {
        row_start[rank + 1] = row_start[rank] + count_samples(comm, rank, n);
    }
    if (own > 0) {
        double *mine = (double *)values + row_start[comm->rank] * width;
        memcpy(mine, local, (size_t)(own * width) * sizeof *mine);
    }
    dpq_tensor rows = dpq_tensor_wrap_2d(values, DPQ_DTYPE_F64, n, width);
    DPQ_TRY_GOTO(st, dpq_comm_allgather_rows(comm, &rows, row_start), done);
    order_samples(comm, values, n, width, out);
done:
    dpq_free(starts);
    dpq_free(values);
    return st;
}
