/* SPDX-License-Identifier: Apache-2.0 */
/* The small table at the end of a run. */
#include <inttypes.h>

#include "report_priv.h"

static size_t count_quantized(const dpq_report *report)
{
    size_t n = 0;
    for (size_t i = 0; i < report->n_modules; i++) {
        n += report->modules[i].quantized ? 1 : 0;
    }
    return n;
}

static dpq_status append_eval(dpq_text *t, const dpq_eval_figures *f)
{
    if (!f->done) {
        return DPQ_OK;
    }
    if (!f->has_reference) {
        return dpq_text_append(t, "perplexity   %.4f\n", f->perplexity);
    }
    DPQ_TRY(dpq_text_append(t, "perplexity   %.4f before, %.4f after\n", f->reference_perplexity, f->perplexity));
    DPQ_TRY(dpq_text_append(t, "KL           mean %.5f, median %.5f, 99 %% %.5f, maximum %.4f\n", f->kl_mean,
                            f->kl_median, f->kl_p99, f->kl_max));
    return dpq_text_append(t, "top-1        %.2f %% equal over %" PRId64 " tokens\n", 100.0 * f->top1, f->tokens);
}

/* Reductions that were started and later waited for: how much of them ran beside other work, on the rank that waited
 * longest. */
static dpq_status append_overlap(dpq_text *t, const dpq_report *report)
{
    double overlapped = 0, exposed = 0;
    for (int r = 0; r < report->n_ranks; r++) {
        if (report->ranks[r].exposed_s >= exposed) {
            overlapped = report->ranks[r].overlap_s;
            exposed = report->ranks[r].exposed_s;
        }
    }
    if (report->n_ranks < 2 || overlapped + exposed <= 0) {
        return DPQ_OK;
    }
    return dpq_text_append(t, "reductions   %.2f s, %.0f %% of it beside the backward pass\n", overlapped + exposed,
                           100.0 * overlapped / (overlapped + exposed));
}

static dpq_status append_table(dpq_text *t, const dpq_report *report, const char *model, const char *scheme,
                               const char *algorithm, const char *output)
{
    size_t quantized = count_quantized(report);
    DPQ_TRY(dpq_text_append(t, "model        %s (%s)\n", model, report->architecture));
    DPQ_TRY(dpq_text_append(t, "scheme       %s\n", scheme));
    DPQ_TRY(dpq_text_append(t, "algorithm    %s\n", algorithm));
    DPQ_TRY(dpq_text_append(t, "modules      %zu quantized, %zu ignored\n", quantized, report->n_modules - quantized));
    DPQ_TRY(dpq_text_append(t, "fallbacks    %" PRId64 "\n", report->fallbacks));
    DPQ_TRY(append_eval(t, &report->eval));
    DPQ_TRY(dpq_text_append(t, "seconds      %.2f (quantize %.2f, eval %.2f)\n", report->seconds_total,
                            report->seconds_quantize, report->seconds_eval));
    DPQ_TRY(dpq_text_append(t, "peak memory  %.1f MiB over %d rank%s\n", (double)report->peak_memory_bytes / (1 << 20),
                            report->n_ranks, report->n_ranks == 1 ? "" : "s"));
    DPQ_TRY(append_overlap(t, report));
    return dpq_text_append(t, "output       %s (%.1f MiB)\n", output, (double)report->output_bytes / (1 << 20));
}

dpq_status dpq_report_table_text(const dpq_report *report, const char *model, const char *scheme, const char *algorithm,
                                 const char *output, char **text)
{
    dpq_text t = {0};
    *text = NULL;
    dpq_status st = append_table(&t, report, model, scheme, algorithm, output);
    if (st != DPQ_OK) {
        dpq_text_fini(&t);
        return st;
    }
    *text = t.text;
    return DPQ_OK;
}
