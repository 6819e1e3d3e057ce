/* SPDX-License-Identifier: Apache-2.0 */
/* One record of a run and its two files: dpquant.json (equal for every number of ranks: what shapes the result) and
 * dpquant-run.json (everything else: ranks, hosts, seconds, bytes). Plain data in, JSON text out. */
#ifndef DPQUANT_REPORT_H
#define DPQUANT_REPORT_H

#include <stdint.h>

#include "dpquant/clock.h"
#include "dpquant/option.h"
#include "dpquant/scheme.h"
#include "dpquant/status.h"

/* Figures of an evaluation. KL fields are meaningful only with has_reference. */
typedef struct {
    bool done, has_reference;
    double perplexity, reference_perplexity;
    double kl_mean, kl_median, kl_p90, kl_p99, kl_p999, kl_max, top1;
    int64_t tokens, windows;
    char data_digest[65];
} dpq_eval_figures;

/* One quantized (or ignored) linear. */
typedef struct {
    char *module; /* owned */
    int64_t n, k;
    bool quantized;
    dpq_scheme scheme;
    const char *method;    /* dpq_method_name, "ignored" */
    double relative_error; /* weighted error / weighted signal, square root; 0 when ignored */
    double damping;        /* gptq: the share that succeeded */
    bool fallback;
} dpq_module_record;

/* One rank, for dpquant-run.json. Plain data, sent between ranks. */
typedef struct {
    int rank, local_rank, threads, allowed_cores;
    char host[64];
    char isa[32];
    int64_t samples, tokens_used;
    double seconds[DPQ_SPAN_COUNT];
    double overlap_s, exposed_s; /* reductions that ran beside work, and the wait for them */
    uint64_t reduced_bytes, broadcast_bytes, gathered_bytes, peak_memory_bytes;
} dpq_rank_record;

typedef struct {
    char *name; /* of a block with its index, "block 3" */
    double seconds, error;
    /* tuning: steps taken (0: the block was not tuned), steps repeated for their exponents, mean squared errors of the
     * block's output */
    int64_t steps, repeats, best_step;
    double initial_loss, best_loss;
    double phase_seconds[DPQ_SPAN_COUNT]; /* of rank 0 */
} dpq_block_record;

typedef struct {
    /* identity */
    const char *version, *build, *libraries, *isa, *compute, *compiler;
    char model_digest[65], data_digest[65];
    const char *architecture;
    /* settings: the option sets; shapes_result decides the file */
    const dpq_option_set *sets;
    size_t n_sets;
    /* per-module overrides of the recipe as JSON text of an array, or NULL */
    const char *overrides_json;
    dpq_module_record *modules;
    size_t n_modules;
    int64_t samples, tokens, tokens_read, tokens_masked, tokens_cut;
    int64_t fallbacks;
    dpq_eval_figures eval;
    /* run */
    dpq_rank_record *ranks;
    int n_ranks;
    dpq_block_record *blocks;
    size_t n_blocks;
    double seconds_total, seconds_quantize, seconds_eval;
    uint64_t output_bytes, peak_memory_bytes; /* peak: summed over ranks */
    double flop_forward, flop_stats;          /* of all ranks, counted from shapes */
    const char *command_line;
} dpq_report;

/* Text of dpquant.json and dpquant-run.json; heap. Settings appear under "settings" by dotted key with typed JSON
 * values. Eval keys: perplexity, reference_perplexity, kl_mean, kl_median, kl_p90, kl_p99, kl_p999, kl_max, top1,
 * tokens. */
DPQ_MUST_USE dpq_status dpq_report_result_text(const dpq_report *report, char **text, size_t *size);
DPQ_MUST_USE dpq_status dpq_report_run_text(const dpq_report *report, char **text, size_t *size);
/* The figures alone as JSON (dpquant eval --json). */
DPQ_MUST_USE dpq_status dpq_report_eval_text(const dpq_eval_figures *figures, char **text, size_t *size);
/* The small table at the end of a run (model, scheme, algorithm, perplexity before and after, KL, top-1, fallbacks,
 * seconds, peak memory, output). */
DPQ_MUST_USE dpq_status dpq_report_table_text(const dpq_report *report, const char *model, const char *scheme,
                                              const char *algorithm, const char *output, char **text);

#endif
