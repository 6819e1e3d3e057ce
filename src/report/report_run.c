/* SPDX-License-Identifier: Apache-2.0 */
/* dpquant-run.json: how this run went. The one file that may differ between two runs with the same result. */
#include <math.h>

#include "report_priv.h"

static void put_rank(dpq_json_writer *w, const dpq_rank_record *r)
{
    dpq_json_begin_object(w, NULL);
    dpq_json_put_int(w, "rank", r->rank);
    dpq_json_put_string(w, "host", r->host);
    dpq_json_put_int(w, "local_rank", r->local_rank);
    dpq_json_put_int(w, "threads", r->threads);
    dpq_json_put_int(w, "allowed_cores", r->allowed_cores);
    dpq_json_put_string(w, "isa", r->isa);
    dpq_json_put_int(w, "samples", r->samples);
    dpq_json_put_int(w, "tokens_used", r->tokens_used);
    dpq_json_begin_object(w, "seconds");
    for (int span = 0; span < DPQ_SPAN_COUNT; span++) {
        dpq_json_put_real(w, dpq_span_name((dpq_span)span), r->seconds[span]);
    }
    dpq_json_end(w);
    dpq_json_put_real(w, "reduce_overlapped", r->overlap_s);
    dpq_json_put_real(w, "reduce_exposed", r->exposed_s);
    dpq_json_put_int(w, "reduced_bytes", (int64_t)r->reduced_bytes);
    dpq_json_put_int(w, "broadcast_bytes", (int64_t)r->broadcast_bytes);
    dpq_json_put_int(w, "gathered_bytes", (int64_t)r->gathered_bytes);
    dpq_json_put_int(w, "peak_memory_bytes", (int64_t)r->peak_memory_bytes);
    dpq_json_end(w);
}

static double slowest(const dpq_report *report, dpq_span span)
{
    double seconds = 0.0;
    for (int r = 0; r < report->n_ranks; r++) {
        seconds = fmax(seconds, report->ranks[r].seconds[span]);
    }
    return seconds;
}

/* Operations of all ranks over the time of the slowest; null when the phase did not run. */
static void put_rate(dpq_json_writer *w, const char *key, double flop, double seconds)
{
    if (flop > 0.0 && seconds > 0.0) {
        dpq_json_put_real(w, key, 1e-9 * flop / seconds);
    } else {
        dpq_json_put_null(w, key);
    }
}

static void put_rates(dpq_json_writer *w, const dpq_report *report)
{
    dpq_json_put_real(w, "flop_forward", report->flop_forward);
    dpq_json_put_real(w, "flop_stats", report->flop_stats);
    put_rate(w, "gflops_forward", report->flop_forward, slowest(report, DPQ_SPAN_FORWARD));
    put_rate(w, "gflops_stats", report->flop_stats, slowest(report, DPQ_SPAN_STATS));
}

static void put_ranks(dpq_json_writer *w, const dpq_report *report)
{
    dpq_json_begin_array(w, "ranks");
    for (int r = 0; r < report->n_ranks; r++) {
        put_rank(w, &report->ranks[r]);
    }
    dpq_json_end(w);
}

/* Phases of rank 0 in this block. */
static void put_block_seconds(dpq_json_writer *w, const dpq_block_record *b)
{
    dpq_json_begin_object(w, "seconds_by_phase");
    for (int span = 0; span < DPQ_SPAN_COUNT; span++) {
        dpq_json_put_real(w, dpq_span_name((dpq_span)span), b->phase_seconds[span]);
    }
    dpq_json_end(w);
}

static void put_blocks(dpq_json_writer *w, const dpq_report *report)
{
    dpq_json_begin_array(w, "blocks");
    for (size_t i = 0; i < report->n_blocks; i++) {
        dpq_json_begin_object(w, NULL);
        dpq_json_put_string(w, "name", report->blocks[i].name);
        dpq_json_put_real(w, "seconds", report->blocks[i].seconds);
        put_block_seconds(w, &report->blocks[i]);
        dpq_json_end(w);
    }
    dpq_json_end(w);
}

dpq_status dpq_report_run_text(const dpq_report *report, char **text, size_t *size)
{
    dpq_json_writer *w = NULL;
    *text = NULL;
    *size = 0;
    DPQ_TRY(dpq_json_writer_create(&w));
    dpq_json_begin_object(w, NULL);
    dpq_json_put_string(w, "command_line", report->command_line);
    dpq_json_put_real(w, "seconds_total", report->seconds_total);
    dpq_json_put_real(w, "seconds_quantize", report->seconds_quantize);
    dpq_json_put_real(w, "seconds_eval", report->seconds_eval);
    dpq_json_put_int(w, "peak_memory_bytes", (int64_t)report->peak_memory_bytes);
    dpq_json_put_int(w, "output_bytes", (int64_t)report->output_bytes);
    put_rates(w, report);
    put_ranks(w, report);
    dpq_report_put_settings(w, report, false);
    put_blocks(w, report);
    dpq_json_end(w);
    return dpq_json_writer_finish(&w, text, size);
}
