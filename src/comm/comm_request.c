/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions that go on while the caller computes: the list of those under way, and how much of their time was hidden.
 */
#include "comm_priv.h"
#include "dpquant/alloc.h"

/* The time since the last count goes to COUNTER. */
static void count_time(dpq_comm *comm, double *counter)
{
    double now_s = dpq_clock_s();
    *counter += now_s - comm->counted_until_s;
    comm->counted_until_s = now_s;
}

static void append(dpq_comm *comm, dpq_comm_request *request)
{
    dpq_comm_request **end = &comm->under_way;
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *end = request;
}

static void take_out(dpq_comm *comm, const dpq_comm_request *request)
{
    dpq_comm_request **at = &comm->under_way;
    while (*at != NULL && *at != request) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = request->next;
    }
}

dpq_status dpq_comm_start_allreduce(dpq_comm *comm, dpq_tensor *t, dpq_reduce_op op, dpq_comm_request **out)
{
    static const char what[] = "start_allreduce";
    void *memory = NULL;
    *out = NULL;
    DPQ_TRY(dpq_comm_check_caller(comm, what));
    DPQ_TRY(dpq_comm_check_reduction(t, op, what));
    if (t->dtype == DPQ_DTYPE_F32 || t->dtype == DPQ_DTYPE_F64) {
        return DPQ_RAISE(DPQ_E_SHAPE, "%s: type %s, expected I32, I64 or U64", what, dpq_dtype_name(t->dtype));
    }
    DPQ_TRY(dpq_alloc(sizeof(dpq_comm_request), &memory));
    dpq_comm_request *request = memory;
    *request = (dpq_comm_request){.data = t->data, .count = dpq_tensor_count(t), .dtype = t->dtype, .op = op};
    dpq_comm_note_reduction(comm, t, op, DPQ_COMM_ALL_RANKS, true);
    request->done = request->count == 0;
    if (!request->done) {
        dpq_status st = comm->ops->start(comm, request);
        if (st != DPQ_OK) {
            /* pieces that were started may still be written to: their list stays with MPI, the job ends */
            dpq_free(request);
            return st;
        }
    }
    if (!request->done) {
        if (comm->under_way == NULL) {
            comm->counted_until_s = dpq_clock_s();
        }
        append(comm, request);
    }
    *out = request;
    return DPQ_OK;
}

dpq_status dpq_comm_progress(dpq_comm *comm)
{
    if (comm->under_way == NULL) {
        return DPQ_OK;
    }
    DPQ_TRY(dpq_comm_check_caller(comm, "progress"));
    dpq_comm_request **at = &comm->under_way;
    while (*at != NULL) {
        DPQ_TRY(comm->ops->advance(comm, *at, false));
        if ((*at)->done) {
            *at = (*at)->next;
        } else {
            at = &(*at)->next;
        }
    }
    count_time(comm, &comm->stats.overlap_s);
    return DPQ_OK;
}

dpq_status dpq_comm_wait(dpq_comm *comm, dpq_comm_request **request, dpq_spans *spans)
{
    if (*request == NULL) {
        return DPQ_OK;
    }
    DPQ_TRY(dpq_comm_check_caller(comm, "wait"));
    if (!(*request)->done) {
        count_time(comm, &comm->stats.overlap_s);
        double start_s = comm->counted_until_s;
        DPQ_TRY(comm->ops->advance(comm, *request, true));
        take_out(comm, *request);
        count_time(comm, &comm->stats.exposed_s);
        if (spans != NULL) {
            dpq_spans_add(spans, DPQ_SPAN_REDUCE, &start_s);
        }
    }
    dpq_free(*request);
    *request = NULL;
    return DPQ_OK;
}
