/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of a stage's input over all samples of all ranks, exact: first the largest sum of squares a sample has in each
 * channel (a maximum is exact), which fixes the units; then integer sums. */
#include <math.h>

#include "dpquant/fixsum.h"
#include "engine_priv.h"

void dpq_stage_sums_fini(dpq_stage_sums *sums)
{
    dpq_free(sums->exponent);
    dpq_free(sums->sumsq);
    dpq_free(sums->xtx);
    *sums = (dpq_stage_sums){0};
}

/* sample_sumsq (n_local, K) and the largest over them, maximum (K). */
static dpq_status observe_squares(const dpq_run *run, int64_t k, double *sample_sumsq, double *maximum)
{
    const dpq_activations *a = run->activations;
    for (int64_t i = 0; i < a->n; i++) {
        double *sumsq = sample_sumsq + i * k;
        DPQ_TRY(dpq_op_column_sumsq(run->backend, &a->x[i], sumsq));
        for (int64_t j = 0; j < k; j++) {
            if (!isfinite(sumsq[j])) {
                return DPQ_RAISE(DPQ_E_NUMERIC, "input channel %lld is not finite", (long long)j);
            }
            maximum[j] = sumsq[j] > maximum[j] ? sumsq[j] : maximum[j];
        }
    }
    return DPQ_OK;
}

/* sum over samples of round(sumsq / 2^(2 e)), in units of 2^(2 e). */
static dpq_status sum_squares(dpq_run *run, int64_t k, const double *sample_sumsq, dpq_stage_sums *out)
{
    void *units = NULL, *result = NULL;
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, dpq_alloc_array(k, sizeof(int64_t), &units), &run->spans), done);
    DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, dpq_alloc_array(k, sizeof(double), &result), &run->spans), done);
    out->sumsq = result;
    int64_t *total = units;
    for (int64_t i = 0; i < run->activations->n; i++) {
        for (int64_t j = 0; j < k; j++) {
            total[j] += (int64_t)rint(ldexp(sample_sumsq[i * k + j], -2 * out->exponent[j]));
        }
    }
    dpq_tensor t = dpq_tensor_wrap_1d(total, DPQ_DTYPE_I64, k);
    DPQ_TRY_GOTO(st, dpq_comm_allreduce(run->comm, &t, DPQ_REDUCE_SUM), done);
    for (int64_t j = 0; j < k; j++) {
        out->sumsq[j] = ldexp((double)total[j], 2 * out->exponent[j]);
    }
done:
    dpq_free(units);
    return st;
}

static dpq_status allocate(int64_t k, int64_t n_local, unsigned wanted, dpq_stage_sums *out, void **sample_sumsq, void **maximum)
{
    void *memory;
    DPQ_TRY(dpq_alloc_array(k, sizeof *out->exponent, &memory));
    out->exponent = memory;
    if ((wanted & DPQ_STAT_XTX) != 0) {
        DPQ_TRY(dpq_alloc_array(dpq_xtx_count(k), sizeof *out->xtx, &memory));
        out->xtx = memory;
    }
    DPQ_TRY(dpq_alloc_array(n_local * k, sizeof(double), sample_sumsq));
    return dpq_alloc_array(k, sizeof(double), maximum);
}

dpq_status dpq_stage_combine(dpq_run *run, int64_t k, unsigned wanted, int owner, dpq_stage_sums *out)
{
    const dpq_activations *a = run->activations;
    void *sample_sumsq = NULL, *maximum = NULL;
    dpq_status st = DPQ_OK;
    double clock = dpq_clock_s();
    *out = (dpq_stage_sums){.k = k};
    dpq_status local = allocate(k, a->n, wanted, out, &sample_sumsq, &maximum);
    if (local == DPQ_OK) {
        local = observe_squares(run, k, sample_sumsq, maximum);
    }
    dpq_spans_add(&run->spans, DPQ_SPAN_STATS, &clock);
    DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, local, &run->spans), done);
    clock = dpq_clock_s();
    dpq_tensor peak = dpq_tensor_wrap_1d(maximum, DPQ_DTYPE_F64, k);
    DPQ_TRY_GOTO(st, dpq_comm_allreduce(run->comm, &peak, DPQ_REDUCE_MAX), done);
    DPQ_TRY_GOTO(st, dpq_fixsum_exponents(maximum, k, run->samples->n, out->exponent), done);
    if ((wanted & DPQ_STAT_SUMSQ) != 0) {
        DPQ_TRY_GOTO(st, sum_squares(run, k, sample_sumsq, out), done);
    }
    dpq_spans_add(&run->spans, DPQ_SPAN_REDUCE, &clock);
    if ((wanted & DPQ_STAT_XTX) != 0) {
        local = dpq_op_xtx_accumulate(run->backend, a->x, a->n, out->exponent, run->plan->compute, out->xtx);
        dpq_spans_add(&run->spans, DPQ_SPAN_STATS, &clock);
        DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, local, &run->spans), done);
        clock = dpq_clock_s();
        dpq_tensor tiles = dpq_tensor_wrap_1d(out->xtx, DPQ_DTYPE_I64, dpq_xtx_count(k));
        DPQ_TRY_GOTO(st, dpq_comm_reduce(run->comm, &tiles, DPQ_REDUCE_SUM, owner), done);
        dpq_spans_add(&run->spans, DPQ_SPAN_REDUCE, &clock);
        if (dpq_comm_rank(run->comm) != owner) {
            dpq_free(out->xtx);
            out->xtx = NULL;
        }
    }
done:
    dpq_free(sample_sumsq);
    dpq_free(maximum);
    return st;
}
