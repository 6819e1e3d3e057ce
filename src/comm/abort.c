/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the whole job from one rank, for faults where peers already wait. The only MPI_Abort. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm_priv.h"
#include "dpquant/log.h"

_Noreturn void dpq_comm_abort(dpq_comm *comm, dpq_status status)
{
    /* an abort without a reason is our bug, and must not look like success */
    dpq_status reason = status == DPQ_OK ? DPQ_E_BUG : status;
    int exit_code = dpq_status_exit_code(reason);
    const dpq_error_record *record = dpq_error_last();
    bool known = record->code == status && status != DPQ_OK;
    const char *text = known ? record->text : dpq_status_text(reason);
    char prefix[DPQ_COMM_PREFIX_BYTES] = "";
    if (comm != NULL && !dpq_comm_text_is_agreed(comm, text)) {
        dpq_comm_format_prefix(comm, prefix);
    }
    if (known && record->origin[0] != '\0') {
        dpq_log(DPQ_LOG_ERROR, "comm", "%s%s (%s)", prefix, text, record->origin);
    } else {
        dpq_log(DPQ_LOG_ERROR, "comm", "%s%s", prefix, text);
    }
    fflush(stdout);
    if (comm == NULL || comm->ops->uses_mpi) {
        int initialized = 0;
        int finalized = 0;
        MPI_Initialized(&initialized);
        MPI_Finalized(&finalized);
        if (initialized && !finalized) {
            MPI_Abort(MPI_COMM_WORLD, exit_code);
        }
    }
    _Exit(exit_code); /* exit handlers may wait for threads or peers that no longer move */
}
