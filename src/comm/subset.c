/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of ranks: a communicator of some of them, how the others wait, and ranks of a host that have something in
 * common. */
#include <string.h>

#include "comm_priv.h"
#include "dpquant/alloc.h"
#include "dpquant/hash.h"

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

dpq_status dpq_comm_count_equal(dpq_comm *comm, uint64_t key, int *count)
{
    void *memory = NULL;
    dpq_status st = DPQ_OK;
    *count = 1;
    uint64_t mine = dpq_hash64(key, comm->host, strlen(comm->host));
    const double halves[2] = {(double)(mine >> 32), (double)(mine & 0xffffffffu)};
    DPQ_TRY(dpq_comm_agree(comm, dpq_alloc_array(comm->size, sizeof halves, &memory), NULL));
    const double *all = memory;
    DPQ_TRY_GOTO(st, dpq_comm_gather_samples(comm, halves, comm->size, 2, memory), done);
    *count = 0;
    for (int r = 0; r < comm->size; r++) {
        *count += all[2 * r] == halves[0] && all[2 * r + 1] == halves[1] ? 1 : 0;
    }
done:
    dpq_free(memory);
    return st;
}
