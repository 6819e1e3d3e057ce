/* SPDX-License-Identifier: Apache-2.0 */
/* dpquant list: what this build knows, from the tables it works by. */
#include <string.h>

#include "cli_output.h"
#include "cli_priv.h"
#include "dpquant/alloc.h"
#include "dpquant/model.h"
#include "list_priv.h"

static const char usage[] = "usage: dpquant list [schemes|algorithms|formats|architectures]\n"
                            "       dpquant list config [--markdown]\n"
                            "\n"
                            "What this build supports. Without a name: the first four. config: every key of a recipe "
                            "with its values and default\n"
                            "(--markdown: as docs/CONFIG.md).\n";

static dpq_status list_schemes(dpq_text *t)
{
    DPQ_TRY(
        dpq_text_append(t, "schemes (quantize.scheme; bits, group size and symmetry may then be set one by one)\n"));
    for (int i = 0; dpq_scheme_at(i) != NULL; i++) {
        const dpq_named_scheme *s = dpq_scheme_at(i);
        char description[96];
        dpq_scheme_describe(&s->scheme, description, sizeof description);
        DPQ_TRY(dpq_text_append(t, "  %-11s  %-24s  read by %s\n", s->name, description, s->loaders));
    }
    return dpq_text_append(
        t,
        "  bits 2 to 8, any group size that divides the inputs of a layer, or whole rows (-1). vLLM and SGLang take\n"
        "  groups of 32, 64, 128 and whole rows for 4 and 8 bits.\n");
}

static dpq_status list_algorithms(dpq_text *t)
{
    dpq_settings *settings = NULL;
    dpq_status st = DPQ_OK;
    DPQ_TRY(dpq_settings_create(&settings));
    DPQ_TRY_GOTO(st, dpq_text_append(t, "algorithms (quantize.algorithm)\n"), done);
    for (int i = 0; dpq_algo_at(i) != NULL; i++) {
        const dpq_linear_algo_ops *algo = dpq_algo_at(i);
        DPQ_TRY_GOTO(st, dpq_text_append(t, "  %-11s  %s\n", algo->name, algo->help), done);
        unsigned stats = algo->stats(&settings->algo);
        const char *needs = (stats & DPQ_STAT_XTX) != 0     ? "calibration data: sums of products of inputs (Hessian)"
                            : (stats & DPQ_STAT_SUMSQ) != 0 ? "calibration data: sums of squared inputs"
                                                            : "no calibration data";
        DPQ_TRY_GOTO(st, dpq_text_append(t, "  %-11s  with default settings it needs %s\n", "", needs), done);
    }
    for (int i = 0; dpq_block_algo_at(i) != NULL; i++) {
        const dpq_block_algo_ops *algo = dpq_block_algo_at(i);
        DPQ_TRY_GOTO(st, dpq_text_append(t, "  %-11s  %s\n", algo->name, algo->help), done);
        DPQ_TRY_GOTO(
            st,
            dpq_text_append(t, "  %-11s  needs calibration data: samples of every step; options under signround\n", ""),
            done);
    }
done:
    dpq_settings_destroy(&settings);
    return st;
}

static dpq_status list_formats(dpq_text *t)
{
    return dpq_text_append(
        t, "formats (export.format)\n"
           "  compressed-tensors  pack-quantized, version 0.18.0: integer weights of 2 to 8 bits, "
           "symmetric or not, any group\n"
           "                      size, several schemes in one model; see 'dpquant list schemes' for who reads "
           "which. Column order\n"
           "                      (weight_g_idx, gptq.order: group) is read by compressed-tensors up to "
           "0.17; newer ones and\n"
           "                      vLLM 0.32 refuse it\n");
}

static dpq_status list_architectures(dpq_text *t)
{
    DPQ_TRY(dpq_text_append(t, "architectures (config.json)\n"));
    for (int i = 0; dpq_arch_at(i) != NULL; i++) {
        const dpq_arch_ops *arch = dpq_arch_at(i);
        DPQ_TRY(dpq_text_append(t, "  %-20s  %-8s  %s\n", arch->architecture, arch->model_type, arch->help));
    }
    return dpq_text_append(
        t, "  rope: default, linear, llama3, yarn; sliding windows; tied and separate heads; F32, F16, BF16\n");
}

static dpq_status list_config(dpq_text *t)
{
    return dpq_list_config(t, false);
}

static dpq_status list_config_markdown(dpq_text *t)
{
    return dpq_list_config(t, true);
}

static const struct {
    const char *name;
    dpq_status (*list)(dpq_text *t);
    bool always; /* part of the list without a name */
} topics[] = {
    {"schemes", list_schemes, true}, {"algorithms", list_algorithms, true},
    {"formats", list_formats, true}, {"architectures", list_architectures, true},
    {"config", list_config, false},
};

/* Arguments in any order; *topic is -1 when none is named. */
static dpq_status read_arguments(int argc, char **argv, int *topic, bool *markdown, bool *help)
{
    const char *names[DPQ_COUNT_OF(topics)];
    *topic = -1;
    for (int i = 1; i < argc; i++) {
        int found = -1;
        for (size_t j = 0; j < DPQ_COUNT_OF(topics); j++) {
            names[j] = topics[j].name;
            found = strcmp(argv[i], topics[j].name) == 0 ? (int)j : found;
        }
        if (strcmp(argv[i], "--markdown") == 0) {
            *markdown = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            *help = true;
        } else if (found < 0 || *topic >= 0) {
            const char *nearest = found < 0 ? dpq_str_nearest(argv[i], names, DPQ_COUNT_OF(topics)) : NULL;
            return DPQ_RAISE(DPQ_E_USAGE, "list: unexpected argument '%s'%s%s; 'dpquant list --help' shows the usage",
                             argv[i], nearest != NULL ? "; nearest is " : "", nearest != NULL ? nearest : "");
        } else {
            *topic = found;
        }
    }
    if (*markdown && !*help && (*topic < 0 || topics[*topic].list != list_config)) {
        return DPQ_RAISE(DPQ_E_USAGE, "list: --markdown goes with 'list config' only");
    }
    return DPQ_OK;
}

static dpq_status append_topics(dpq_text *t, int topic, bool markdown)
{
    if (markdown) {
        return list_config_markdown(t);
    }
    if (topic >= 0) {
        return topics[topic].list(t);
    }
    for (size_t i = 0; i < DPQ_COUNT_OF(topics); i++) {
        if (topics[i].always) {
            DPQ_TRY(dpq_text_append(t, "%s", i > 0 ? "\n" : ""));
            DPQ_TRY(topics[i].list(t));
        }
    }
    return DPQ_OK;
}

dpq_status dpq_cmd_list(dpq_comm *comm, int argc, char **argv)
{
    int topic = -1;
    bool markdown = false, help = false;
    DPQ_TRY(read_arguments(argc, argv, &topic, &markdown, &help));
    if (dpq_comm_rank(comm) != 0) {
        return DPQ_OK;
    }
    if (help) {
        return dpq_cli_print(usage);
    }
    dpq_text t = {0};
    dpq_status st = append_topics(&t, topic, markdown);
    if (st == DPQ_OK) {
        st = dpq_cli_print(t.text);
    }
    dpq_text_fini(&t);
    return st;
}
