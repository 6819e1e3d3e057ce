/* SPDX-License-Identifier: Apache-2.0 */
/* What the commands share: text to standard output, errors of wrong options. */
#include "cli_output.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

dpq_status dpq_cli_print(const char *text)
{
    errno = 0;
    if (fputs(text, stdout) == EOF || fflush(stdout) == EOF) {
        return DPQ_RAISE(DPQ_E_DISK, "standard output: %s", strerror(errno));
    }
    return DPQ_OK;
}

dpq_status dpq_cli_bad_option(int c, char **argv, const char *command)
{
    if (c == ':') {
        return DPQ_RAISE(DPQ_E_USAGE, "%s: option %s needs a value", command, argv[optind - 1]);
    }
    return DPQ_RAISE(DPQ_E_USAGE, "%s: unknown option %s; 'dpquant %s --help' lists the options", command,
                     argv[optind - 1], command);
}
