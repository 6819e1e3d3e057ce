/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time and named spans. */
#ifndef DPQUANT_CLOCK_H
#define DPQUANT_CLOCK_H

/* Seconds of a monotonic clock since an arbitrary start. */
double dpq_clock_s(void);

/* Phases of a run whose seconds are summed per rank and reported (dpquant-run.json). */
typedef enum {
    DPQ_SPAN_LOAD,
    DPQ_SPAN_FORWARD,
    DPQ_SPAN_BACKWARD,
    DPQ_SPAN_UPDATE, /* tuning: quantize-dequantize and the step */
    DPQ_SPAN_STATS,
    DPQ_SPAN_REDUCE,
    DPQ_SPAN_WAIT,
    DPQ_SPAN_FACTOR,
    DPQ_SPAN_SOLVE,
    DPQ_SPAN_WRITE,
    DPQ_SPAN_EVAL,
    DPQ_SPAN_COUNT
} dpq_span;

typedef struct {
    double seconds[DPQ_SPAN_COUNT];
} dpq_spans;

const char *dpq_span_name(dpq_span span);
/* Add the seconds since *start_s to SPAN and set *start_s to now. */
void dpq_spans_add(dpq_spans *spans, dpq_span span, double *start_s);

#endif
