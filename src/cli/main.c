/* SPDX-License-Identifier: Apache-2.0 */
/* Open the communicator, dispatch the command, agree on its outcome, report it once, close. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli_priv.h"
#include "dpquant/log.h"

static const struct {
    const char *name;
    dpq_status (*run)(dpq_comm *comm, int argc, char **argv);
} commands[] = {
    {"quantize", dpq_cmd_quantize},
    {"eval", dpq_cmd_eval},
    {"inspect", dpq_cmd_inspect},
    {"list", dpq_cmd_list},
};

static dpq_status dispatch(dpq_comm *comm, int argc, char **argv)
{
    if (argc < 2) {
        return DPQ_RAISE(DPQ_E_USAGE, "no command; 'dpquant --help' shows the usage");
    }
    if (argv[1][0] == '-') {
        return dpq_cmd_quantize(comm, argc, argv);
    }
    const char *names[DPQ_COUNT_OF(commands)];
    for (size_t i = 0; i < DPQ_COUNT_OF(commands); i++) {
        if (strcmp(commands[i].name, argv[1]) == 0) {
            return commands[i].run(comm, argc - 1, argv + 1);
        }
        names[i] = commands[i].name;
    }
    const char *nearest = dpq_str_nearest(argv[1], names, DPQ_COUNT_OF(commands));
    return DPQ_RAISE(DPQ_E_USAGE, "unknown command '%s'%s%s; 'dpquant --help' shows the usage", argv[1],
                     nearest != NULL ? "; nearest is " : "", nearest != NULL ? nearest : "");
}

int main(int argc, char **argv)
{
    dpq_comm *comm = NULL;
    signal(SIGXFSZ, SIG_IGN); /* a file size limit becomes an error with a name */
    dpq_status st = dpq_comm_open(&argc, &argv, &comm);
    if (st != DPQ_OK) {
        fprintf(stderr, "dpquant: %s\n", dpq_error_last()->text);
        return dpq_status_exit_code(st);
    }
    dpq_log_setup(dpq_comm_rank(comm), dpq_comm_size(comm), DPQ_LOG_INFO);
    st = dpq_comm_agree(comm, dispatch(comm, argc, argv), NULL);
    if (st != DPQ_OK && dpq_comm_rank(comm) == 0) {
        fprintf(stderr, "dpquant: %s: %s\n", dpq_status_text(st), dpq_error_last()->text);
    }
    dpq_comm_close(&comm);
    return dpq_status_exit_code(st);
}
