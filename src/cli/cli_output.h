/* SPDX-License-Identifier: Apache-2.0 */
/* Standard output of the commands. */
#ifndef DPQUANT_CLI_OUTPUT_H
#define DPQUANT_CLI_OUTPUT_H

#include "dpquant/status.h"

/* Write TEXT to standard output at once. Errors: DPQ_E_DISK when it does not take it (a full disk, a closed pipe). */
DPQ_MUST_USE dpq_status dpq_cli_print(const char *text);
/* Error for the value getopt_long returned when it is '?' or ':'; ARGV[optind - 1] is what it stands for. */
DPQ_MUST_USE dpq_status dpq_cli_bad_option(int c, char **argv, const char *command);

#endif
