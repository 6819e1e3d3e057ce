/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of a stage's input over all samples of all ranks, exact: first the largest sum of squares a sample has in
 * each channel (a maximum is exact), which fixes the units; then integer sums. */
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

/* Sum of squares of each local sample's stage input, (n_local, K). */
static dpq_status observe_squares(const dpq_run *run, int64_t k, double *sample_sumsq)
{
    const dpq_activations *a = run->activations;
    for (int64_t i = 0; i < a->n; i++) {
        DPQ_TRY(dpq_op_column_sumsq(run->backend, &a->x[i], sample_sumsq + i * k));
    }
    return DPQ_OK;
}

/* Largest over the local samples, (K). */
static dpq_status largest_squares(int64_t k, int64_t n_local, const double *sample_sumsq, double *maximum)
{
    for (int64_t i = 0; i < n_local * k; i++) {
        if (!isfinite(sample_sumsq[i])) {
            return DPQ_RAISE(DPQ_E_NUMERIC, "input channel %lld is not finite", (long long)(i % k));
        }
        maximum[i % k] = sample_sumsq[i] > maximum[i % k] ? sample_sumsq[i] : maximum[i % k];
    }
    return DPQ_OK;
}

/* sum over samples of round(sumsq / 2^(2 e)), in units of 2^(2 e). */
static dpq_status sum_squares(dpq_run *run, int64_t k, int64_t n_local, const double *sample_sumsq,
                              const int32_t *exponent, double *sumsq)
{
    void *units = NULL;
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, dpq_alloc_array(k, sizeof(int64_t), &units), &run->spans), done);
    int64_t *total = units;
    for (int64_t i = 0; i < n_local * k; i++) {
        total[i % k] += (int64_t)rint(ldexp(sample_sumsq[i], -2 * exponent[i % k]));
    }
    dpq_tensor t = dpq_tensor_wrap_1d(total, DPQ_DTYPE_I64, k);
    DPQ_TRY_GOTO(st, dpq_comm_allreduce(run->comm, &t, DPQ_REDUCE_SUM), done);
    for (int64_t j = 0; j < k; j++) {
        sumsq[j] = ldexp((double)total[j], 2 * exponent[j]);
    }
done:
    dpq_free(units);
    return st;
}

dpq_status dpq_squares_combine(dpq_run *run, int64_t k, int64_t n_local, const double *sample_sumsq, int32_t *exponent,
                               double *sumsq)
{
    void *maximum = NULL;
    dpq_status st = DPQ_OK;
    dpq_status local = dpq_alloc_array(k, sizeof(double), &maximum);
    local = local == DPQ_OK ? largest_squares(k, n_local, sample_sumsq, maximum) : local;
    DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, local, &run->spans), done);
    double clock = dpq_clock_s();
    dpq_tensor peak = dpq_tensor_wrap_1d(maximum, DPQ_DTYPE_F64, k);
    DPQ_TRY_GOTO(st, dpq_comm_allreduce(run->comm, &peak, DPQ_REDUCE_MAX), done);
    DPQ_TRY_GOTO(st, dpq_fixsum_exponents(maximum, k, run->samples->n, exponent), done);
    if (sumsq != NULL) {
        DPQ_TRY_GOTO(st, sum_squares(run, k, n_local, sample_sumsq, exponent, sumsq), done);
    }
    dpq_spans_add(&run->spans, DPQ_SPAN_REDUCE, &clock);
done:
    dpq_free(maximum);
    return st;
}

static dpq_status allocate(int64_t k, int64_t n_local, unsigned wanted, dpq_stage_sums *out, void **sample_sumsq)
{
    void *memory;
    DPQ_TRY(dpq_alloc_array(k, sizeof *out->exponent, &memory));
    out->exponent = memory;
    if ((wanted & DPQ_STAT_SUMSQ) != 0) {
        DPQ_TRY(dpq_alloc_array(k, sizeof *out->sumsq, &memory));
        out->sumsq = memory;
    }
    if ((wanted & DPQ_STAT_XTX) != 0) {
        DPQ_TRY(dpq_alloc_array(dpq_xtx_count(k), sizeof *out->xtx, &memory));
        out->xtx = memory;
    }
    return dpq_alloc_array(n_local * k, sizeof(double), sample_sumsq);
}

dpq_status dpq_stage_combine(dpq_run *run, int64_t k, unsigned wanted, int owner, dpq_stage_sums *out)
{
    const dpq_activations *a = run->activations;
    void *sample_sumsq = NULL;
    dpq_status st = DPQ_OK;
    double clock = dpq_clock_s();
    *out = (dpq_stage_sums){.k = k};
    dpq_status local = allocate(k, a->n, wanted, out, &sample_sumsq);
    local = local == DPQ_OK ? observe_squares(run, k, sample_sumsq) : local;
    dpq_spans_add(&run->spans, DPQ_SPAN_STATS, &clock);
    DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, local, &run->spans), done);
    DPQ_TRY_GOTO(st, dpq_squares_combine(run, k, a->n, sample_sumsq, out->exponent, out->sumsq), done);
    if ((wanted & DPQ_STAT_XTX) != 0) {
        clock = dpq_clock_s();
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
    return st;
}
