/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator of some of the ranks, and how the others wait. */
#include <string.h>

#include "comm_priv.h"
#include "dpquant/alloc.h"

dpq_status dpq_comm_subset(dpq_comm *comm, bool member, dpq_comm **out)
{
    void *memory = NULL;
    dpq_comm *sub = NULL;
    *out = NULL;
    DPQ_TRY(dpq_comm_check_caller(comm, "subset"));
    dpq_status local = DPQ_OK;
    if (comm->size == 1 && !member) {
        local = DPQ_RAISE(DPQ_E_BUG, "subset: no rank is a member");
    }
    if (local == DPQ_OK && member) {
        local = dpq_alloc(sizeof(dpq_comm), &memory);
    }
    DPQ_TRY(dpq_comm_agree(comm, local, NULL));
    sub = memory;
    if (sub != NULL) {
        memcpy(sub->host, comm->host, sizeof sub->host);
        memcpy(sub->library, comm->library, sizeof sub->library);
        sub->thread = comm->thread;
        sub->chunk_elems = comm->chunk_elems;
    }
    dpq_status st = comm->ops->split(comm, sub);
    if (st != DPQ_OK) {
        dpq_free(sub);
        return st;
    }
    *out = sub;
    return DPQ_OK;
}

dpq_status dpq_comm_rest(dpq_comm *comm)
{
    DPQ_TRY(dpq_comm_check_caller(comm, "rest"));
    return comm->ops->rest(comm);
}
