/* SPDX-License-Identifier: Apache-2.0 */
/* Quantize the linears of a stage: its owner factors once and sends the factor to all; rows are dealt to the ranks in
 * whole tiles and gathered. */
#include <string.h>

#include "dpquant/log.h"
#include "dpquant/shard.h"
#include "engine_priv.h"

/* The small part of a factor, sent ahead of its tensors. */
typedef struct {
    double damping;
    int64_t outcome, k, has_u;
} factor_head;

static dpq_status send_tensor(dpq_run *run, dpq_tensor *t, dpq_dtype dtype, int64_t rows, int64_t cols, bool owner,
                              int root)
{
    dpq_status local = DPQ_OK;
    if (!owner) {
        local = cols > 0 ? dpq_tensor_create_2d(dtype, rows, cols, t) : dpq_tensor_create_1d(dtype, rows, t);
    }
    DPQ_TRY(dpq_comm_agree(run->comm, local, &run->spans));
    return dpq_comm_broadcast(run->comm, t, root);
}

static dpq_status share_factor(dpq_run *run, int owner, dpq_factor *factor)
{
    bool mine = dpq_comm_rank(run->comm) == owner;
    factor_head head = {factor->damping, factor->outcome, factor->order.dim[0], factor->u.data != NULL};
    dpq_tensor t = dpq_tensor_wrap_1d(&head, DPQ_DTYPE_U8, sizeof head);
    double clock = dpq_clock_s();
    DPQ_TRY(dpq_comm_broadcast(run->comm, &t, owner));
    factor->damping = head.damping;
    factor->outcome = (int32_t)head.outcome;
    DPQ_TRY(send_tensor(run, &factor->order, DPQ_DTYPE_I32, head.k, 0, mine, owner));
    DPQ_TRY(send_tensor(run, &factor->importance, DPQ_DTYPE_F32, head.k, 0, mine, owner));
    if (head.has_u) {
        DPQ_TRY(send_tensor(run, &factor->u, DPQ_DTYPE_F32, head.k, head.k, mine, owner));
    }
    dpq_spans_add(&run->spans, DPQ_SPAN_REDUCE, &clock);
    return DPQ_OK;
}

static dpq_status make_factor(dpq_run *run, int owner, dpq_stage_sums *sums, dpq_factor *factor)
{
    dpq_status local = DPQ_OK;
    double clock = dpq_clock_s();
    if (dpq_comm_rank(run->comm) == owner) {
        const dpq_stage_stats stats = {.k = sums->k,
                                       .tokens = run->samples->start[run->samples->n],
                                       .sumsq = sums->sumsq,
                                       .xtx = sums->xtx,
                                       .exponent = sums->exponent};
        local = run->plan->algo->prepare(&run->settings->algo, run->backend, &stats, factor);
        dpq_free(sums->xtx);
        sums->xtx = NULL;
    }
    dpq_spans_add(&run->spans, DPQ_SPAN_FACTOR, &clock);
    DPQ_TRY(dpq_comm_agree(run->comm, local, &run->spans));
    return share_factor(run, owner, factor);
}

static dpq_status gather_linear(dpq_run *run, dpq_qweight *q, const int64_t *row_start)
{
    DPQ_TRY(dpq_comm_allgather_rows(run->comm, &q->codes, row_start));
    DPQ_TRY(dpq_comm_allgather_rows(run->comm, &q->scale, row_start));
    if (!q->scheme.symmetric) {
        DPQ_TRY(dpq_comm_allgather_rows(run->comm, &q->zero, row_start));
    }
    return dpq_comm_allgather_rows(run->comm, &q->row_error, row_start);
}

static void record(dpq_run *run, int64_t item, const dpq_qweight *q, const dpq_factor *factor, dpq_method method)
{
    dpq_module_record *m = &run->modules[item];
    m->method = dpq_method_name(method);
    m->relative_error = dpq_qweight_relative_error(q);
    m->damping = factor != NULL ? factor->damping : 0.0;
    m->fallback = method == DPQ_METHOD_RTN_FALLBACK;
    run->fallbacks += m->fallback ? 1 : 0;
    if (m->fallback) {
        dpq_log(DPQ_LOG_WARNING, "engine", "%s: Hessian is not positive definite at any damping; rounded to nearest",
                m->module);
    }
}

static dpq_status solve_linear(dpq_run *run, int64_t item, const dpq_tensor *w, const dpq_stage_sums *sums,
                               const dpq_factor *factor, const int64_t *row_start, dpq_qweight *q)
{
    const dpq_work *work = &run->plan->work[item];
    int rank = dpq_comm_rank(run->comm);
    dpq_method method = DPQ_METHOD_RTN;
    double clock = dpq_clock_s();
    dpq_status local = dpq_qweight_create(&work->scheme, work->n, work->k, work->dtype, work->with_g_idx, q);
    if (local == DPQ_OK) {
        const dpq_solve_input input = {
            .module = work->module, .w = w, .sumsq = sums != NULL ? sums->sumsq : NULL, .factor = factor};
        local = run->plan->algo->solve(&run->settings->algo, run->backend, &input, row_start[rank], row_start[rank + 1],
                                       q, &method);
    }
    dpq_spans_add(&run->spans, DPQ_SPAN_SOLVE, &clock);
    DPQ_TRY(dpq_comm_agree(run->comm, local, &run->spans));
    clock = dpq_clock_s();
    DPQ_TRY(gather_linear(run, q, row_start));
    dpq_spans_add(&run->spans, DPQ_SPAN_REDUCE, &clock);
    DPQ_TRY(dpq_qweight_check(q, work->module));
    record(run, item, q, factor, method);
    return DPQ_OK;
}

dpq_status dpq_stage_solve(dpq_run *run, int64_t layer, int stage, const dpq_tensor *w, dpq_stage_sums *sums,
                           dpq_qweight *quantized)
{
    int size = dpq_comm_size(run->comm);
    int owner = dpq_shard_owner(layer, stage, size);
    dpq_linear_role roles[3];
    int count = dpq_model_stage_linears(stage, roles);
    dpq_factor factor = {0};
    bool has_factor = run->plan->algo->prepare != NULL && sums != NULL;
    void *row_start = NULL;
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_comm_agree(run->comm, dpq_alloc_array(size + 1, sizeof(int64_t), &row_start), &run->spans),
                 done);
    if (has_factor) {
        DPQ_TRY_GOTO(st, make_factor(run, owner, sums, &factor), done);
    }
    for (int i = 0; i < count; i++) {
        int64_t item = layer * DPQ_LINEAR_COUNT + (int64_t)roles[i];
        if (!run->plan->work[item].quantized) {
            continue;
        }
        dpq_shard_rows(run->plan->work[item].n, DPQ_SOLVE_TILE_ROWS, size, row_start);
        DPQ_TRY_GOTO(
            st,
            solve_linear(run, item, &w[roles[i]], sums, has_factor ? &factor : NULL, row_start, &quantized[roles[i]]),
            done);
    }
done:
    DPQ_CONTEXT(st, "stage %d", stage);
    dpq_factor_fini(&factor);
    dpq_free(row_start);
    return st;
}
