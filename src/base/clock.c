/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time and the named spans of a run. */
#include "dpquant/clock.h"

#include <time.h>

#include "dpquant/status.h"

double dpq_clock_s(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

const char *dpq_span_name(dpq_span span)
{
    static const char *const names[DPQ_SPAN_COUNT] = {
        [DPQ_SPAN_LOAD] = "load",         [DPQ_SPAN_FORWARD] = "forward", [DPQ_SPAN_STATS] = "stats",
        [DPQ_SPAN_REDUCE] = "reduce",     [DPQ_SPAN_WAIT] = "wait",       [DPQ_SPAN_FACTOR] = "factor",
        [DPQ_SPAN_BACKWARD] = "backward", [DPQ_SPAN_UPDATE] = "update",   [DPQ_SPAN_SOLVE] = "solve",
        [DPQ_SPAN_WRITE] = "write",       [DPQ_SPAN_EVAL] = "eval",
    };
    DPQ_ASSERT((int)span >= 0 && span < DPQ_SPAN_COUNT);
    return names[span];
}

void dpq_spans_add(dpq_spans *spans, dpq_span span, double *start_s)
{
    DPQ_ASSERT((int)span >= 0 && span < DPQ_SPAN_COUNT);
    double now_s = dpq_clock_s();
    spans->seconds[span] += now_s - *start_s;
    *start_s = now_s;
}
