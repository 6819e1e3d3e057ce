/* SPDX-License-Identifier: Apache-2.0 */
/* Perplexity and KL divergence of a model folder, data-parallel: sample i on rank i mod R, per-token figures gathered
 * in sample order, so that all figures are equal for every number of ranks. */
#ifndef DPQUANT_EVAL_H
#define DPQUANT_EVAL_H

#include "dpquant/backend.h"
#include "dpquant/calibset.h"
#include "dpquant/clock.h"
#include "dpquant/comm.h"
#include "dpquant/report.h"
#include "dpquant/status.h"

typedef struct {
    const char *model;     /* folder, dense or quantized */
    const char *reference; /* folder or NULL */
    dpq_calibset_options data;
    bool bf16;           /* eval.precision: activations and dequantized weights in bf16; default fp32 */
    dpq_compute compute; /* never AUTO; used when bf16 */
} dpq_eval_options;

/* Collective: over COMM. Figures on every rank. Errors: agreed. Seconds go to SPANS (DPQ_SPAN_EVAL, _LOAD, _WAIT). */
DPQ_MUST_USE dpq_status dpq_eval_run(dpq_comm *comm, dpq_backend *be, const dpq_eval_options *options, dpq_spans *spans,
                                     dpq_eval_figures *out);

/* Percentile of N ascending values: linear interpolation at fraction * (n - 1). */
double dpq_percentile(const double *sorted, int64_t n, double fraction);

#endif
