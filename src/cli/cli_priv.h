/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of the program. Each gets its own argument vector (argv[0] is the command's name) and returns a status that
 * main.c turns into the exit code; errors are printed once, by main.c on rank 0. */
#ifndef DPQUANT_CLI_PRIV_H
#define DPQUANT_CLI_PRIV_H

#include "dpquant/comm.h"
#include "dpquant/settings.h"
#include "dpquant/status.h"

DPQ_MUST_USE dpq_status dpq_cmd_quantize(dpq_comm *comm, int argc, char **argv);
DPQ_MUST_USE dpq_status dpq_cmd_eval(dpq_comm *comm, int argc, char **argv);
DPQ_MUST_USE dpq_status dpq_cmd_inspect(dpq_comm *comm, int argc, char **argv);
DPQ_MUST_USE dpq_status dpq_cmd_list(dpq_comm *comm, int argc, char **argv);
DPQ_MUST_USE dpq_status dpq_cmd_version(dpq_comm *comm, int argc, char **argv);

/* recipe.c: the recipe file into settings; rank 0 reads it, all ranks apply the same bytes. Collective. */
DPQ_MUST_USE dpq_status dpq_recipe_load(dpq_comm *comm, const char *path, dpq_settings *settings);
/* recipe.c: "key=value" from --set or a flag. */
DPQ_MUST_USE dpq_status dpq_recipe_set(const char *assignment, dpq_settings *settings);

/* usage.c: the help text of the program. */
const char *dpq_usage_text(void);

#endif
