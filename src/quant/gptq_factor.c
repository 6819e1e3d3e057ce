/* SPDX-License-Identifier: Apache-2.0 */
/* The part of GPTQ that is done once a stage (docs/algorithms/gptq.md): column order, damping, and the upper factor of
 * the inverse Hessian, with the ladder of retries. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "quant_priv.h"

#define GATHER_ROWS   64
#define LADDER_FACTOR 10.0
#define LADDER_FIRST  1e-3 /* first step up from a smaller damping than a tenth of it */
#define LADDER_LAST   1.0

typedef struct {
    double diagonal;
    int32_t column;
} ranked_column;

/* Descending diagonal; equal ones by column, which makes the order total and the sort stable. */
static int compare_columns(const void *a, const void *b)
{
    const ranked_column *x = a;
    const ranked_column *y = b;
    if (x->diagonal != y->diagonal) {
        return x->diagonal > y->diagonal ? -1 : 1;
    }
    return x->column < y->column ? -1 : x->column > y->column;
}

/* Entry (j,j) of the Hessian straight from the integer sums. */
static double diagonal_entry(const dpq_stage_stats *stats, int64_t j, double scale)
{
    const int64_t edge = DPQ_XTX_TILE;
    int64_t tile = j / edge;
    int64_t inside = j % edge;
    int64_t index = (tile * (tile + 1) / 2 + tile) * edge * edge + inside * edge + inside;
    return ldexp((double)stats->xtx[index], 2 * stats->exponent[j]) * scale;
}

static double stage_scale(const dpq_stage_stats *stats)
{
    return stats->tokens > 0 ? 1.0 / (double)stats->tokens : 1.0;
}

/* Importance and column order. *alive: any column with a non-zero diagonal? */
static dpq_status rank_columns(const dpq_stage_stats *stats, dpq_gptq_order order, dpq_factor *factor, bool *alive)
{
    void *memory = NULL;
    DPQ_TRY(dpq_alloc_array(stats->k, sizeof(ranked_column), &memory));
    ranked_column *ranked = memory;
    float *importance = factor->importance.data;
    *alive = false;
    for (int64_t j = 0; j < stats->k; j++) {
        ranked[j].diagonal = diagonal_entry(stats, j, stage_scale(stats));
        ranked[j].column = (int32_t)j;
        importance[j] = ranked[j].diagonal < (double)FLT_MAX ? (float)ranked[j].diagonal : FLT_MAX;
        *alive = *alive || importance[j] > 0.0f;
    }
    if (order != DPQ_ORDER_NONE) {
        qsort(ranked, (size_t)stats->k, sizeof(ranked_column), compare_columns);
    }
    for (int64_t i = 0; i < stats->k; i++) {
        ((int32_t *)factor->order.data)[i] = ranked[i].column;
    }
    dpq_free(ranked);
    return DPQ_OK;
}

typedef struct {
    const dpq_tensor *from;
    const int32_t *order;
    dpq_tensor *to;
} gather_job;

static dpq_status gather_rows(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    (void)ws;
    const gather_job *job = context;
    int64_t k = job->from->dim[0];
    int64_t end = (tile + 1) * GATHER_ROWS < k ? (tile + 1) * GATHER_ROWS : k;
    for (int64_t i = tile * GATHER_ROWS; i < end; i++) {
        int64_t source = (int64_t)job->order[i] * k;
        if (job->from->dtype == DPQ_DTYPE_F32) {
            const float *from = (const float *)job->from->data + source;
            float *to = (float *)job->to->data + i * k;
            for (int64_t j = 0; j < k; j++) {
                to[j] = from[job->order[j]];
            }
        } else {
            const double *from = (const double *)job->from->data + source;
            double *to = (double *)job->to->data + i * k;
            for (int64_t j = 0; j < k; j++) {
                to[j] = from[job->order[j]];
            }
        }
    }
    return DPQ_OK;
}

/* *h = to[i][j] = h[order[i]][order[j]] */
static dpq_status permute(dpq_backend *be, const int32_t *order, dpq_tensor *h)
{
    dpq_tensor to = {0};
    int64_t k = h->dim[0];
    DPQ_TRY(dpq_tensor_create_2d(h->dtype, k, k, &to));
    gather_job job = {.from = h, .order = order, .to = &to};
    dpq_status st = dpq_backend_parallel(be, (k + GATHER_ROWS - 1) / GATHER_ROWS, gather_rows, &job);
    if (st != DPQ_OK) {
        dpq_tensor_fini(&to);
        return st;
    }
    dpq_tensor_fini(h);
    *h = to;
    return DPQ_OK;
}

static double get_entry(const dpq_tensor *h, int64_t i, int64_t j)
{
    int64_t at = i * h->dim[1] + j;
    return h->dtype == DPQ_DTYPE_F32 ? (double)((const float *)h->data)[at] : ((const double *)h->data)[at];
}

static void set_entry(dpq_tensor *h, int64_t i, int64_t j, double value)
{
    int64_t at = i * h->dim[1] + j;
    if (h->dtype == DPQ_DTYPE_F32) {
        ((float *)h->data)[at] = (float)value;
    } else {
        ((double *)h->data)[at] = value;
    }
}

/* Dead columns become rows of the identity; then SHARE of the mean diagonal is added to the diagonal. */
static void dampen(dpq_tensor *h, const dpq_factor *factor, double share)
{
    const int32_t *order = factor->order.data;
    const float *importance = factor->importance.data;
    int64_t k = h->dim[0];
    double sum = 0.0;
    for (int64_t i = 0; i < k; i++) {
        if (importance[order[i]] == 0.0f) {
            for (int64_t j = 0; j < k; j++) {
                set_entry(h, i, j, 0.0);
                set_entry(h, j, i, 0.0);
            }
            set_entry(h, i, i, 1.0);
        }
        sum += get_entry(h, i, i);
    }
    double added = share * (sum / (double)k);
    for (int64_t i = 0; i < k; i++) {
        set_entry(h, i, i, get_entry(h, i, i) + added);
    }
}

/* One attempt in DTYPE with damping SHARE; on success factor->u is the factor in F32. */
static dpq_status attempt(dpq_backend *be, const dpq_stage_stats *stats, bool permuted, dpq_dtype dtype, double share,
                          dpq_factor *factor, bool *positive)
{
    dpq_status st = DPQ_OK;
    dpq_tensor h = {0};
    int64_t k = stats->k;
    *positive = false;
    DPQ_TRY_GOTO(st, dpq_tensor_create_2d(dtype, k, k, &h), done);
    DPQ_TRY_GOTO(st, dpq_op_xtx_expand(be, stats->xtx, stats->exponent, stage_scale(stats), &h), done);
    if (permuted) {
        DPQ_TRY_GOTO(st, permute(be, factor->order.data, &h), done);
    }
    dampen(&h, factor, share);
    DPQ_TRY_GOTO(st, dpq_op_inverse_factor(be, &h, positive), done);
    if (!*positive) {
        goto done;
    }
    if (dtype == DPQ_DTYPE_F32) {
        factor->u = h;
        h = (dpq_tensor){0};
    } else {
        DPQ_TRY_GOTO(st, dpq_tensor_create_2d(DPQ_DTYPE_F32, k, k, &factor->u), done);
        DPQ_TRY_GOTO(st, dpq_convert(h.data, dtype, factor->u.data, DPQ_DTYPE_F32, k * k), done);
    }
    /* A pivot can leave the range of fp32 although it was positive. */
    for (int64_t i = 0; i < k; i++) {
        double d = get_entry(&factor->u, i, i);
        *positive = *positive && isfinite(d) && d > 0.0;
    }
done:
    if (st != DPQ_OK || !*positive) {
        dpq_tensor_fini(&factor->u);
    }
    dpq_tensor_fini(&h);
    return st;
}

dpq_status dpq_gptq_prepare(const dpq_algo_options *options, dpq_backend *be, const dpq_stage_stats *stats,
                            dpq_factor *factor)
{
    dpq_status st = DPQ_OK;
    bool positive = false;
    bool alive = false;
    bool permuted = options->gptq.order != DPQ_ORDER_NONE;
    double share = options->gptq.damping;
    *factor = (dpq_factor){0};
    if (!stats->xtx || !stats->exponent || stats->k < 1) {
        return DPQ_RAISE(DPQ_E_BUG, "gptq was given no Hessian sums (width %" PRId64 ")", stats->k);
    }
    DPQ_TRY_GOTO(st, dpq_tensor_create_1d(DPQ_DTYPE_I32, stats->k, &factor->order), done);
    DPQ_TRY_GOTO(st, dpq_tensor_create_1d(DPQ_DTYPE_F32, stats->k, &factor->importance), done);
    DPQ_TRY_GOTO(st, rank_columns(stats, options->gptq.order, factor, &alive), done);
    factor->outcome = DPQ_FACTOR_FAILED;
    factor->damping = share;
    if (!alive) { /* nothing was seen: a factor would only zero every weight */
        goto done;
    }
    DPQ_TRY_GOTO(st, attempt(be, stats, permuted, DPQ_DTYPE_F32, share, factor, &positive), done);
    if (positive) {
        factor->outcome = DPQ_FACTOR_OK;
        goto done;
    }
    DPQ_TRY_GOTO(st, attempt(be, stats, permuted, DPQ_DTYPE_F64, share, factor, &positive), done);
    if (positive) {
        factor->outcome = DPQ_FACTOR_OK_F64;
        goto done;
    }
    while (!positive && share < LADDER_LAST) {
        share = share * LADDER_FACTOR > LADDER_FIRST ? share * LADDER_FACTOR : LADDER_FIRST;
        share = share < LADDER_LAST ? share : LADDER_LAST;
        DPQ_TRY_GOTO(st, attempt(be, stats, permuted, DPQ_DTYPE_F64, share, factor, &positive), done);
    }
    if (positive) {
        factor->outcome = DPQ_FACTOR_DAMPED;
        factor->damping = share;
    }
done:
    if (st != DPQ_OK) {
        dpq_factor_fini(factor);
    }
    return st;
}
