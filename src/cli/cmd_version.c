/* SPDX-License-Identifier: Apache-2.0 */
/* dpquant --version: what this build is and what it finds on this machine. */
#include "cli_output.h"
#include "cli_priv.h"
#include "dpquant/alloc.h"
#include "dpquant/backend.h"
#include "dpquant/h5.h"
#include "dpquant/version.h"

dpq_status dpq_cmd_version(dpq_comm *comm, int argc, char **argv)
{
    char *text = NULL;
    (void)argc;
    (void)argv;
    if (dpq_comm_rank(comm) != 0) {
        return DPQ_OK;
    }
    DPQ_TRY(dpq_str_format(&text,
                           "dpquant %s\n"
                           "build            %s\n"
                           "compiler         %s\n"
                           "libraries        %s, %s\n"
                           "communication    %s\n"
                           "devices          cpu\n"
                           "instruction set  %s\n"
                           "auto compute     %s\n"
                           "allowed cores    %d\n",
                           dpq_version(), dpq_build(), dpq_compiler(), dpq_backend_libraries(), dpq_h5_library(),
                           dpq_comm_library(comm), dpq_backend_isa(),
                           dpq_backend_auto_compute() == DPQ_COMPUTE_BF16 ? "bf16" : "fp32",
                           dpq_backend_allowed_cores()));
    dpq_status st = dpq_cli_print(text);
    dpq_free(text);
    return st;
}
