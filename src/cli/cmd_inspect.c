/* SPDX-License-Identifier: Apache-2.0 */
/* dpquant inspect: what a model or an output folder holds, on rank 0 alone. */
#include <string.h>

#include "cli_output.h"
#include "cli_priv.h"
#include "inspect_priv.h"

static const char usage[] = "usage: dpquant inspect DIR\n"
                            "\n"
                            "Architecture, sizes, tensors and bytes of a model folder; for a quantized one also its "
                            "schemes, bits per weight and\n"
                            "scales, and the figures in its dpquant.json.\n";

static dpq_status inspect(const char *dir)
{
    dpq_status st = DPQ_OK;
    dpq_model_folder folder = {0};
    dpq_text t = {0};
    DPQ_TRY_GOTO(st, dpq_model_folder_open(dir, true, &folder), done);
    DPQ_TRY_GOTO(st, dpq_inspect_model(&folder, &t), done);
    DPQ_TRY_GOTO(st, dpq_inspect_quantized(&folder, &t), done);
    DPQ_TRY_GOTO(st, dpq_inspect_record(&folder, &t), done);
    st = dpq_cli_print(t.text);
done:
    dpq_text_fini(&t);
    dpq_model_folder_close(&folder);
    DPQ_CONTEXT(st, "inspect");
    return st;
}

dpq_status dpq_cmd_inspect(dpq_comm *comm, int argc, char **argv)
{
    const char *dir = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return dpq_comm_rank(comm) == 0 ? dpq_cli_print(usage) : DPQ_OK;
        }
        if (dir != NULL || argv[i][0] == '-') {
            return DPQ_RAISE(DPQ_E_USAGE, "inspect: unexpected argument '%s'; 'dpquant inspect --help' shows the usage",
                             argv[i]);
        }
        dir = argv[i];
    }
    if (dir == NULL) {
        return DPQ_RAISE(DPQ_E_USAGE, "inspect: which folder? 'dpquant inspect --help' shows the usage");
    }
    return dpq_comm_rank(comm) == 0 ? inspect(dir) : DPQ_OK;
}
