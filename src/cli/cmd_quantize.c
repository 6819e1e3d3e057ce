/* SPDX-License-Identifier: Apache-2.0 */
/* The main command: recipe and flags into settings, settings printed once, the job run. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "cli_priv.h"
#include "dpquant/alloc.h"
#include "dpquant/engine.h"
#include "dpquant/eval.h"
#include "dpquant/log.h"

enum { OPT_OVERWRITE = 256, OPT_PLAN };

static const struct option long_options[] = {
    {"config", required_argument, NULL, 'c'},
    {"set", required_argument, NULL, 's'},
    {"model", required_argument, NULL, 'm'},
    {"output", required_argument, NULL, 'o'},
    {"overwrite", no_argument, NULL, OPT_OVERWRITE},
    {"plan", no_argument, NULL, OPT_PLAN},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};
static const char short_options[] = ":c:s:m:o:hV";

typedef struct {
    const char *config;
    bool plan, help, version;
} flags;

static dpq_status set_flag(dpq_settings *settings, const char *key, const char *value)
{
    char *assignment;
    DPQ_TRY(dpq_str_format(&assignment, "%s=%s", key, value));
    dpq_status st = dpq_recipe_set(assignment, settings);
    dpq_free(assignment);
    return st;
}

/* First pass (SETTINGS NULL): which recipe, which mode. Second pass: settings in the order given, over the recipe's. */
static dpq_status read_flags(int argc, char **argv, flags *f, dpq_settings *settings)
{
    int c;
    optind = 0;
    opterr = 0;
    while ((c = getopt_long(argc, argv, short_options, long_options, NULL)) != -1) {
        if (c == '?') {
            return DPQ_RAISE(DPQ_E_USAGE, "unknown option %s; 'dpquant --help' lists the options", argv[optind - 1]);
        }
        if (c == ':') {
            return DPQ_RAISE(DPQ_E_USAGE, "option %s needs a value", argv[optind - 1]);
        }
        if (settings == NULL) {
            if (c == 'c' && f->config != NULL) {
                return DPQ_RAISE(DPQ_E_USAGE, "--config is given twice: %s and %s", f->config, optarg);
            }
            f->config = c == 'c' ? optarg : f->config;
            f->plan = f->plan || c == OPT_PLAN;
            f->help = f->help || c == 'h';
            f->version = f->version || c == 'V';
        } else if (c == 's') {
            DPQ_TRY(dpq_recipe_set(optarg, settings));
        } else if (c == 'm' || c == 'o') {
            DPQ_TRY(set_flag(settings, c == 'm' ? "model" : "output", optarg));
        } else if (c == OPT_OVERWRITE) {
            DPQ_TRY(set_flag(settings, "overwrite", "true"));
        }
    }
    if (optind < argc) {
        return DPQ_RAISE(DPQ_E_USAGE, "unexpected argument '%s'; 'dpquant --help' shows the usage", argv[optind]);
    }
    return DPQ_OK;
}

/* Every effective setting, defaults included, once. */
static dpq_status print_settings(const dpq_settings *settings)
{
    printf("settings:\n");
    for (size_t s = 0; s < settings->n_sets; s++) {
        for (size_t i = 0; i < settings->sets[s].count; i++) {
            char *value;
            DPQ_TRY(dpq_option_format(&settings->sets[s], &settings->sets[s].options[i], &value));
            printf("  %s: %s%s\n", settings->sets[s].options[i].key, value,
                   settings->sets[s].was_set[i] ? "" : "  (default)");
            dpq_free(value);
        }
    }
    if (settings->n_overrides > 0) {
        char *text;
        DPQ_TRY(dpq_settings_overrides_text(settings, &text));
        printf("  quantize.overrides: %s", text);
        dpq_free(text);
    }
    fflush(stdout);
    return DPQ_OK;
}

static void print_text(const char *text)
{
    fputs(text, stdout);
    fflush(stdout);
}

/* The eval section of the recipe. */
static dpq_status evaluate(dpq_comm *comm, dpq_backend *backend, const dpq_settings *settings, const char *model,
                           const char *reference, dpq_spans *spans, dpq_eval_figures *out)
{
    const dpq_run_options *o = &settings->run;
    const dpq_eval_options options = {.model = model,
                                      .reference = reference,
                                      .data = o->eval.data,
                                      .bf16 = o->eval.precision == DPQ_PRECISION_BF16,
                                      .compute = o->run.compute == DPQ_COMPUTE_AUTO ? dpq_backend_auto_compute()
                                                                                    : (dpq_compute)o->run.compute};
    return dpq_eval_run(comm, backend, &options, spans, out);
}

static dpq_status command_line(int argc, char **argv, dpq_text *out)
{
    DPQ_TRY(dpq_text_append(out, "dpquant"));
    for (int i = 1; i < argc; i++) {
        DPQ_TRY(dpq_text_append(out, " %s", argv[i]));
    }
    return DPQ_OK;
}

static dpq_status load_settings(dpq_comm *comm, int argc, char **argv, flags *f, dpq_settings *settings)
{
    if (f->config != NULL) {
        DPQ_TRY(dpq_recipe_load(comm, f->config, settings));
    }
    DPQ_TRY(read_flags(argc, argv, f, settings));
    if (f->config == NULL && settings->run.model == NULL) {
        return DPQ_RAISE(DPQ_E_USAGE, "nothing to do: give --config RECIPE.yaml ('dpquant --help' shows the usage)");
    }
    return dpq_settings_resolve_scheme(settings);
}

dpq_status dpq_cmd_quantize(dpq_comm *comm, int argc, char **argv)
{
    flags f = {0};
    dpq_settings *settings = NULL;
    dpq_text line = {0};
    dpq_status st = DPQ_OK;
    bool first = dpq_comm_rank(comm) == 0;
    /* the collectives below need every rank: a flag that only one of them has is found here */
    DPQ_TRY_GOTO(st, dpq_comm_agree(comm, read_flags(argc, argv, &f, NULL), NULL), done);
    if (f.help) {
        if (first) {
            print_text(dpq_usage_text());
        }
        goto done;
    }
    if (f.version) {
        st = dpq_cmd_version(comm, argc, argv);
        goto done;
    }
    DPQ_TRY_GOTO(st, dpq_comm_agree(comm, dpq_settings_create(&settings), NULL), done);
    DPQ_TRY_GOTO(st, dpq_comm_agree(comm, load_settings(comm, argc, argv, &f, settings), NULL), done);
    st = command_line(argc, argv, &line);
    dpq_log_setup(dpq_comm_rank(comm), dpq_comm_size(comm), (dpq_log_level)settings->run.run.log_level);
    if (st == DPQ_OK && first) {
        st = print_settings(settings);
    }
    DPQ_TRY_GOTO(st, dpq_comm_agree(comm, st, NULL), done);
    const dpq_engine_request request = {
        .plan_only = f.plan, .command_line = line.text, .evaluate = evaluate, .print = print_text};
    st = dpq_engine_run(comm, settings, &request);
done:
    dpq_text_fini(&line);
    dpq_settings_destroy(&settings);
    return st;
}
