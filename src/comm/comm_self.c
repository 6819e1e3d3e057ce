/* SPDX-License-Identifier: Apache-2.0 */
/* The communicator of one rank: no MPI call, every collective is already complete. */
#include <stdio.h>

#include "comm_priv.h"

static dpq_status reduce_self(dpq_comm *comm, void *data, int64_t count, dpq_dtype dtype, dpq_reduce_op op, int root)
{
    (void)comm;
    (void)data;
    (void)count;
    (void)dtype;
    (void)op;
    (void)root;
    return DPQ_OK;
}

static dpq_status start_self(dpq_comm *comm, dpq_comm_request *request)
{
    (void)comm;
    request->done = true;
    return DPQ_OK;
}

static dpq_status advance_self(dpq_comm *comm, dpq_comm_request *request, bool block)
{
    (void)comm;
    (void)block;
    request->done = true;
    return DPQ_OK;
}

static dpq_status broadcast_self(dpq_comm *comm, void *data, size_t bytes, int root)
{
    (void)comm;
    (void)data;
    (void)bytes;
    (void)root;
    return DPQ_OK;
}

static dpq_status allgather_rows_self(dpq_comm *comm, void *data, size_t row_bytes, const int64_t *row_start)
{
    (void)comm;
    (void)data;
    (void)row_bytes;
    (void)row_start;
    return DPQ_OK;
}

static dpq_status barrier_self(dpq_comm *comm)
{
    (void)comm;
    return DPQ_OK;
}

static dpq_status split_self(dpq_comm *comm, dpq_comm *sub)
{
    (void)comm;
    dpq_comm_init_self(sub);
    return DPQ_OK;
}

static void close_self(dpq_comm *comm)
{
    (void)comm;
}

static const dpq_comm_ops self_ops = {
    .uses_mpi = false,
    .reduce = reduce_self,
    .start = start_self,
    .advance = advance_self,
    .broadcast = broadcast_self,
    .allgather_rows = allgather_rows_self,
    .barrier = barrier_self,
    .rest = barrier_self,
    .split = split_self,
    .close = close_self,
};

void dpq_comm_init_self(dpq_comm *comm)
{
    comm->ops = &self_ops;
    comm->rank = 0;
    comm->size = 1;
    comm->local_rank = 0;
    comm->local_size = 1;
    snprintf(comm->library, sizeof comm->library, "none (one rank)");
}
