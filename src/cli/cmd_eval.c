/* SPDX-License-Identifier: Apache-2.0 */
/* dpquant eval: perplexity of a model folder, and its divergence from a reference. */
#include <getopt.h>
#include <inttypes.h>
#include <string.h>

#include "cli_output.h"
#include "cli_priv.h"
#include "dpquant/alloc.h"
#include "dpquant/eval.h"
#include "dpquant/file.h"

static const char usage[] =
    "usage: [mpirun -np N] dpquant eval --model DIR --data FILE.h5 [options]\n"
    "\n"
    "Perplexity of a model folder, dense or quantized. With --reference also the KL divergence from that model over "
    "the\n"
    "whole vocabulary, and how often both have the same most likely token. Equal for every number of ranks.\n"
    "\n"
    "  -m, --model DIR         the model to measure\n"
    "  -r, --reference DIR     the model to compare it with\n"
    "  -d, --data FILE         HDF5 file of token windows (input_ids, optional attention_mask)\n"
    "      --samples N         number of windows; 0, the default, takes all\n"
    "      --seqlen N          longest window in tokens; 0, the default: as in the file\n"
    "      --precision P       fp32 (default) or bf16: type of activations and dequantized weights\n"
    "      --compute C         with bf16: auto (default), fp32 or bf16, the type in which products are computed\n"
    "      --threads N         threads a rank; 0, the default: OMP_NUM_THREADS, else one for each core it may use\n"
    "  -j, --json FILE         write the figures to FILE\n"
    "  -h, --help              this text\n";

enum { OPT_SAMPLES = 256, OPT_SEQLEN, OPT_PRECISION, OPT_COMPUTE, OPT_THREADS };

static const struct option long_options[] = {
    {"model", required_argument, NULL, 'm'},
    {"reference", required_argument, NULL, 'r'},
    {"data", required_argument, NULL, 'd'},
    {"samples", required_argument, NULL, OPT_SAMPLES},
    {"seqlen", required_argument, NULL, OPT_SEQLEN},
    {"precision", required_argument, NULL, OPT_PRECISION},
    {"compute", required_argument, NULL, OPT_COMPUTE},
    {"threads", required_argument, NULL, OPT_THREADS},
    {"json", required_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};
static const char short_options[] = ":m:r:d:j:h";
static const char *const precision_names[] = {"fp32", "bf16", NULL};
static const char *const compute_names[] = {"auto", "fp32", "bf16", NULL}; /* in the order of dpq_compute */

#define MAX_COUNT   ((int64_t)1 << 40)
#define MAX_THREADS 4096

typedef struct {
    dpq_eval_options eval;
    const char *json;
    int64_t threads;
    bool help;
} request;

static dpq_status parse_count(const char *flag, const char *text, int64_t max, int64_t *out)
{
    if (!dpq_parse_int64(text, out) || *out < 0 || *out > max) {
        return DPQ_RAISE(DPQ_E_USAGE, "eval: %s: expected an integer 0..%" PRId64 ", found '%s'", flag, max, text);
    }
    return DPQ_OK;
}

static dpq_status parse_name(const char *flag, const char *text, const char *const *names, int *out)
{
    for (int i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], text) == 0) {
            *out = i;
            return DPQ_OK;
        }
    }
    return DPQ_RAISE(DPQ_E_USAGE, "eval: %s: expected %s%s%s%s%s, found '%s'", flag, names[0],
                     names[2] != NULL ? ", " : "", names[2] != NULL ? names[1] : "", " or ",
                     names[2] != NULL ? names[2] : names[1], text);
}

static dpq_status read_option(int c, request *r)
{
    int choice = 0;
    switch (c) {
    case 'm':
        r->eval.model = optarg;
        return DPQ_OK;
    case 'r':
        r->eval.reference = optarg;
        return DPQ_OK;
    case 'd':
        r->eval.data.data = optarg;
        return DPQ_OK;
    case 'j':
        r->json = optarg;
        return DPQ_OK;
    case OPT_SAMPLES:
        return parse_count("--samples", optarg, MAX_COUNT, &r->eval.data.samples);
    case OPT_SEQLEN:
        return parse_count("--seqlen", optarg, MAX_COUNT, &r->eval.data.seqlen);
    case OPT_THREADS:
        return parse_count("--threads", optarg, MAX_THREADS, &r->threads);
    case OPT_PRECISION:
        DPQ_TRY(parse_name("--precision", optarg, precision_names, &choice));
        r->eval.bf16 = choice == 1;
        return DPQ_OK;
    case OPT_COMPUTE:
        DPQ_TRY(parse_name("--compute", optarg, compute_names, &choice));
        r->eval.compute = (dpq_compute)choice;
        return DPQ_OK;
    default:
        r->help = true;
        return DPQ_OK;
    }
}

static dpq_status read_options(int argc, char **argv, request *r)
{
    int c;
    optind = 0;
    opterr = 0;
    while ((c = getopt_long(argc, argv, short_options, long_options, NULL)) != -1) {
        if (c == '?' || c == ':') {
            return dpq_cli_bad_option(c, argv, "eval");
        }
        DPQ_TRY(read_option(c, r));
    }
    if (r->help) {
        return DPQ_OK;
    }
    if (optind < argc) {
        return DPQ_RAISE(DPQ_E_USAGE, "eval: unexpected argument '%s'; 'dpquant eval --help' shows the usage",
                         argv[optind]);
    }
    if (r->eval.model == NULL || r->eval.data.data == NULL) {
        return DPQ_RAISE(DPQ_E_USAGE, "eval: --%s is missing; 'dpquant eval --help' shows the usage",
                         r->eval.model == NULL ? "model" : "data");
    }
    if (r->eval.compute == DPQ_COMPUTE_BF16 && !r->eval.bf16) {
        return DPQ_RAISE(DPQ_E_USAGE, "eval: --compute bf16 goes with --precision bf16 only");
    }
    return DPQ_OK;
}

/* auto: what the processors of all ranks say. Collective. */
static dpq_status resolve_compute(dpq_comm *comm, dpq_eval_options *options)
{
    if (options->compute != DPQ_COMPUTE_AUTO) {
        return DPQ_OK;
    }
    int32_t low = (int32_t)dpq_backend_auto_compute();
    int32_t high = low;
    dpq_tensor smallest = dpq_tensor_wrap_1d(&low, DPQ_DTYPE_I32, 1);
    dpq_tensor largest = dpq_tensor_wrap_1d(&high, DPQ_DTYPE_I32, 1);
    DPQ_TRY(dpq_comm_allreduce(comm, &smallest, DPQ_REDUCE_MIN));
    DPQ_TRY(dpq_comm_allreduce(comm, &largest, DPQ_REDUCE_MAX));
    if (options->bf16 && low != high) {
        return DPQ_RAISE(DPQ_E_USAGE,
                         "eval: --compute auto means fp32 on some ranks' processors and bf16 on others'; set it");
    }
    options->compute = (dpq_compute)low;
    return DPQ_OK;
}

static dpq_status append_figures(dpq_text *t, const request *r, const dpq_eval_figures *f)
{
    DPQ_TRY(dpq_text_append(t, "model                 %s\n", r->eval.model));
    if (f->has_reference) {
        DPQ_TRY(dpq_text_append(t, "reference             %s\n", r->eval.reference));
    }
    DPQ_TRY(dpq_text_append(t, "data                  %s\n", r->eval.data.data));
    DPQ_TRY(dpq_text_append(t, "windows               %" PRId64 "\n", f->windows));
    DPQ_TRY(dpq_text_append(t, "predicted tokens      %" PRId64 "\n", f->tokens));
    DPQ_TRY(dpq_text_append(t, "precision             %s\n", r->eval.bf16 ? "bf16" : "fp32"));
    DPQ_TRY(dpq_text_append(t, "perplexity            %.6f\n", f->perplexity));
    if (!f->has_reference) {
        return DPQ_OK;
    }
    DPQ_TRY(dpq_text_append(t, "reference perplexity  %.6f\n", f->reference_perplexity));
    DPQ_TRY(dpq_text_append(t, "KL mean               %.6f\n", f->kl_mean));
    DPQ_TRY(dpq_text_append(t, "KL median             %.6f\n", f->kl_median));
    DPQ_TRY(dpq_text_append(t, "KL 90 %%               %.6f\n", f->kl_p90));
    DPQ_TRY(dpq_text_append(t, "KL 99 %%               %.6f\n", f->kl_p99));
    DPQ_TRY(dpq_text_append(t, "KL 99.9 %%             %.6f\n", f->kl_p999));
    DPQ_TRY(dpq_text_append(t, "KL maximum            %.6f\n", f->kl_max));
    return dpq_text_append(t, "top-1 agreement       %.4f %%\n", 100.0 * f->top1);
}

/* Rank 0: the table, and the JSON file. */
static dpq_status present(const request *r, const dpq_eval_figures *figures)
{
    dpq_status st = DPQ_OK;
    dpq_text table = {0};
    char *json = NULL;
    size_t size = 0;
    if (r->json != NULL) {
        DPQ_TRY_GOTO(st, dpq_report_eval_text(figures, &json, &size), done);
        DPQ_TRY_GOTO(st, dpq_file_write_text(r->json, json, size), done);
    }
    DPQ_TRY_GOTO(st, append_figures(&table, r, figures), done);
    st = dpq_cli_print(table.text);
done:
    dpq_free(json);
    dpq_text_fini(&table);
    return st;
}

static dpq_status run(dpq_comm *comm, request *r)
{
    dpq_status st = DPQ_OK;
    dpq_backend *backend = NULL;
    dpq_spans spans = {0};
    dpq_eval_figures figures = {0};
    int sharing = 1;
    DPQ_TRY(resolve_compute(comm, &r->eval));
    DPQ_TRY(dpq_comm_count_equal(comm, dpq_backend_cores_key(), &sharing));
    st = dpq_backend_create("cpu", dpq_backend_choose_threads(r->threads, sharing), &backend);
    DPQ_TRY_GOTO(st, dpq_comm_agree(comm, st, NULL), done);
    DPQ_TRY_GOTO(st, dpq_eval_run(comm, backend, &r->eval, &spans, &figures), done);
    if (dpq_comm_rank(comm) == 0) {
        st = present(r, &figures);
    }
done:
    dpq_backend_destroy(&backend);
    return st;
}

dpq_status dpq_cmd_eval(dpq_comm *comm, int argc, char **argv)
{
    request r = {0};
    DPQ_TRY(dpq_comm_agree(comm, read_options(argc, argv, &r), NULL));
    if (r.help) {
        return dpq_comm_rank(comm) == 0 ? dpq_cli_print(usage) : DPQ_OK;
    }
    dpq_status st = run(comm, &r);
    DPQ_CONTEXT(st, "eval");
    return st;
}
