/* SPDX-License-Identifier: Apache-2.0 */
/* Communicator of the job. Collectives take tensors, so a byte count cannot pass for an element count. Reductions are
 * exact: integer sums, and min/max; there is no floating-point sum. All collectives: over COMM, all ranks in the same
 * order. Works the same under mpirun, srun, and with no launcher (one rank). */
#ifndef DPQUANT_COMM_H
#define DPQUANT_COMM_H

#include <stdint.h>

#include "dpquant/clock.h"
#include "dpquant/status.h"
#include "dpquant/tensor.h"

typedef struct dpq_comm dpq_comm;

typedef enum { DPQ_REDUCE_SUM, DPQ_REDUCE_MIN, DPQ_REDUCE_MAX } dpq_reduce_op;

/* Bytes a rank handed to collectives and how often, since open. Of reductions that were started and waited for: seconds
 * in which at least one was under way while this rank did other work (until a progress or wait saw its end), and
 * seconds spent in wait. */
typedef struct {
    uint64_t reduced_bytes, broadcast_bytes, gathered_bytes;
    uint64_t calls;
    double overlap_s, exposed_s;
} dpq_comm_stats;

/* Start MPI (thread level FUNNELED; duplicated world communicator, errors returned) or, when no launcher is present
 * (none of the OMPI_/PMI_/PMIX_/SLURM step variables is set), the one-rank communicator without any MPI call. */
DPQ_MUST_USE dpq_status dpq_comm_open(int *argc, char ***argv, dpq_comm **out);
/* Finalize. Collective. */
void dpq_comm_close(dpq_comm **comm);

/* A communicator of the ranks that pass MEMBER, in the same order; *out is NULL on the others. Collective: over COMM.
 * At least one member. Close it before COMM. */
DPQ_MUST_USE dpq_status dpq_comm_subset(dpq_comm *comm, bool member, dpq_comm **out);
/* Wait for all ranks of COMM as a barrier does, but asleep: for ranks that have nothing to do for long. Collective:
 * over COMM. */
DPQ_MUST_USE dpq_status dpq_comm_rest(dpq_comm *comm);

int dpq_comm_rank(const dpq_comm *comm);
int dpq_comm_size(const dpq_comm *comm);
int dpq_comm_local_rank(const dpq_comm *comm); /* on this host */
int dpq_comm_local_size(const dpq_comm *comm);
const char *dpq_comm_host(const dpq_comm *comm);
const char *dpq_comm_library(const dpq_comm *comm); /* "Open MPI v4.1.4", "none (one rank)" */
const dpq_comm_stats *dpq_comm_get_stats(const dpq_comm *comm);

/* In place over all ranks. SUM: I32, I64, U64 only. MIN/MAX: those and F32, F64 (NaN inputs are the caller's to
 * exclude). Contiguous host tensors. Errors: DPQ_E_SHAPE for a type or layout not allowed, DPQ_E_COMM. */
DPQ_MUST_USE dpq_status dpq_comm_allreduce(dpq_comm *comm, dpq_tensor *t, dpq_reduce_op op);
/* As allreduce, but only ROOT's tensor holds the result; other ranks' tensors are unspecified after. */
DPQ_MUST_USE dpq_status dpq_comm_reduce(dpq_comm *comm, dpq_tensor *t, dpq_reduce_op op, int root);
/* A reduction that goes on while the caller computes. start: as allreduce, integers only (sums, minima and maxima are
 * exact in any order). T's data are the communicator's until the request was waited for; every request must be, in any
 * order, before close. Starting is collective; progress and wait are not. On an error the caller ends the job
 * (dpq_comm_abort): its peers wait. */
typedef struct dpq_comm_request dpq_comm_request;
DPQ_MUST_USE dpq_status dpq_comm_start_allreduce(dpq_comm *comm, dpq_tensor *t, dpq_reduce_op op,
                                                 dpq_comm_request **out);
/* Let started reductions move on; MPI may do nothing for them between calls. Cheap: meant to be called between tiles,
 * on the thread that opened COMM. */
DPQ_MUST_USE dpq_status dpq_comm_progress(dpq_comm *comm);
/* Until *request is complete; then frees it and sets it NULL (NULL: nothing to do). Time waited is added to SPANS (may
 * be NULL) as DPQ_SPAN_REDUCE. */
DPQ_MUST_USE dpq_status dpq_comm_wait(dpq_comm *comm, dpq_comm_request **request, dpq_spans *spans);
DPQ_MUST_USE dpq_status dpq_comm_broadcast(dpq_comm *comm, dpq_tensor *t, int root);
/* Rank r holds rows [row_start[r], row_start[r+1]) of T (size+1 entries, ascending, equal on all ranks); after the call
 * every rank holds all. */
DPQ_MUST_USE dpq_status dpq_comm_allgather_rows(dpq_comm *comm, dpq_tensor *t, const int64_t *row_start);
DPQ_MUST_USE dpq_status dpq_comm_barrier(dpq_comm *comm);

/* On how many ranks of this host KEY has the same value, this one included. */
DPQ_MUST_USE dpq_status dpq_comm_count_equal(dpq_comm *comm, uint64_t key, int *count);

/* "Did any rank fail?" Every rank passes its own status; returns the status of the lowest failing rank on all ranks and
 * sets the error record there to that rank's, its text prefixed "rank R of N (HOST): " when size > 1. DPQ_OK when all
 * are. Time spent waiting is added to SPANS (may be NULL) as DPQ_SPAN_WAIT. */
DPQ_MUST_USE dpq_status dpq_comm_agree(dpq_comm *comm, dpq_status local, dpq_spans *spans);

/* Print the error record at once with rank and host, and end the whole job: where peers already wait. The only
 * MPI_Abort. */
_Noreturn void dpq_comm_abort(dpq_comm *comm, dpq_status status);

/* Values of samples in sample order: rank r holds WIDTH doubles for each of its samples r, r+R, r+2R, ... < n; OUT (n *
 * width) on every rank in sample order. */
DPQ_MUST_USE dpq_status dpq_comm_gather_samples(dpq_comm *comm, const double *local, int64_t n, int64_t width,
                                                double *out);

#endif
