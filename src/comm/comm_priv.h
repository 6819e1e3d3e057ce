/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a communicator: its fields, and the table that an implementation (comm_self.c, comm_mpi.c) fills.
 * Arguments are checked and counted once, in comm.c; the table sees only plain memory that is known to be right. */
#ifndef DPQ_COMM_PRIV_H
#define DPQ_COMM_PRIV_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dpquant/comm.h"

#define DPQ_COMM_ALL_RANKS    (-1)
#define DPQ_COMM_NAME_BYTES   256
#define DPQ_COMM_PREFIX_BYTES (DPQ_COMM_NAME_BYTES + 48)

/* Largest count of one MPI call: safely below the int limit of MPI 3. */
#define DPQ_COMM_CHUNK_ELEMS ((int64_t)1 << 30)

/* A started reduction; part of the list of those under way until it is done. */
struct dpq_comm_request {
    void *data;
    int64_t count;
    dpq_dtype dtype; /* I32, I64, U64 */
    dpq_reduce_op op;
    bool done;
    void *impl; /* of the implementation while under way */
    dpq_comm_request *next;
};

typedef struct {
    bool uses_mpi;
    /* In place; the result is on ROOT, or everywhere for DPQ_COMM_ALL_RANKS. */
    dpq_status (*reduce)(dpq_comm *comm, void *data, int64_t count, dpq_dtype dtype, dpq_reduce_op op, int root);
    /* Start a reduction over all ranks; ask whether it is done, or (BLOCK) wait until it is. Both may set
     * request->done, and then have released request->impl. */
    dpq_status (*start)(dpq_comm *comm, dpq_comm_request *request);
    dpq_status (*advance)(dpq_comm *comm, dpq_comm_request *request, bool block);
    dpq_status (*broadcast)(dpq_comm *comm, void *data, size_t bytes, int root);
    dpq_status (*allgather_rows)(dpq_comm *comm, void *data, size_t row_bytes, const int64_t *row_start);
    dpq_status (*barrier)(dpq_comm *comm);
    dpq_status (*rest)(dpq_comm *comm);
    /* Fill SUB (zeroed, with the parent's host, library and thread) for the members; others pass NULL. */
    dpq_status (*split)(dpq_comm *comm, dpq_comm *sub);
    void (*close)(dpq_comm *comm); /* releases impl */
} dpq_comm_ops;

struct dpq_comm {
    const dpq_comm_ops *ops;
    void *impl;
    int rank, size;
    int local_rank, local_size;
    char host[DPQ_COMM_NAME_BYTES];
    char library[DPQ_COMM_NAME_BYTES];
    dpq_comm_stats stats;
    dpq_comm_request *under_way; /* started, not known to be done; oldest first */
    double counted_until_s; /* end of the time already in stats.overlap_s or exposed_s, while something is under way */
    pthread_t thread;       /* the only thread that may call (MPI_THREAD_FUNNELED) */
    int64_t chunk_elems;    /* DPQ_COMM_CHUNK_ELEMS; equal on all ranks; tests lower it */
    uint64_t sequence;      /* digest of the collectives since the last agree; equal on all ranks */
    char agreed[DPQ_COMM_PREFIX_BYTES]; /* prefix of the last error that was agreed on; "" when none */
};

/* What the environment says about how this process was started (comm_launch.c). */
typedef struct {
    bool launched;        /* a launcher started it: MPI has to be initialised */
    int64_t tasks;        /* ranks the launcher started, 0 when it does not say */
    const char *variable; /* the variable TASKS came from, NULL when TASKS is 0 */
    bool without_pmi;     /* first task of an srun that gives MPI no way to find its peers: MPI may fail to start */
} dpq_comm_launch;

dpq_comm_launch dpq_comm_launch_read(void);

void dpq_comm_init_self(dpq_comm *comm);
DPQ_MUST_USE dpq_status dpq_comm_init_mpi(dpq_comm *comm, const dpq_comm_launch *launch, int *argc, char ***argv);

/* DPQ_E_BUG when COMM is NULL or the caller is not the thread that opened it. */
DPQ_MUST_USE dpq_status dpq_comm_check_caller(const dpq_comm *comm, const char *what);
/* Arguments of a reduction over all ranks, and its entry in the counters and the digest. */
DPQ_MUST_USE dpq_status dpq_comm_check_reduction(const dpq_tensor *t, dpq_reduce_op op, const char *what);
void dpq_comm_note_reduction(dpq_comm *comm, const dpq_tensor *t, dpq_reduce_op op, int root, bool started);
/* "rank R of N (HOST): " */
void dpq_comm_format_prefix(const dpq_comm *comm, char prefix[DPQ_COMM_PREFIX_BYTES]);
/* TEXT already names the rank it came from, because all ranks agreed on it before. */
bool dpq_comm_text_is_agreed(const dpq_comm *comm, const char *text);

#endif
