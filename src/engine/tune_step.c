/* SPDX-License-Identifier: Apache-2.0 */
/* The samples of one tuning step: each rank runs its own forward and backward; the sum of a linear's gradients travels
 * while earlier linears are still being computed. Losses are gathered in sample order. */
#include <string.h>

#include "dpquant/backend_grad.h"
#include "tuning_priv.h"

/* Order in which the backward pass ends with the linears, and so in which sums are sent on every rank. */
static const dpq_linear_role backward_order[DPQ_LINEAR_COUNT] = {
    DPQ_LINEAR_DOWN, DPQ_LINEAR_GATE, DPQ_LINEAR_UP, DPQ_LINEAR_O, DPQ_LINEAR_V, DPQ_LINEAR_K, DPQ_LINEAR_Q};

typedef struct {
    dpq_block_tuning *t;
    bool last; /* this rank's last sample of the step */
} gradient_context;

static dpq_status on_gradient(void *context, dpq_linear_role role, const dpq_tensor *d_out, const dpq_tensor *x)
{
    const gradient_context *c = context;
    dpq_gradient_sum *gradients = c->t->tuning->gradients;
    if (c->t->index[role] >= 0) {
        DPQ_TRY(dpq_gradient_sum_add(gradients, c->t->run->backend, role, d_out, x, c->t->forward.compute));
    }
    return c->last ? dpq_gradient_sum_send(gradients, c->t->run->comm, role) : DPQ_OK;
}

/* Local index of a sample, or -1 when another rank has it. */
static int64_t local_index(const dpq_run *run, int64_t sample)
{
    int size = dpq_comm_size(run->comm);
    return sample % size == dpq_comm_rank(run->comm) ? sample / size : -1;
}

/* The last position of a sample has no successor to predict and does not count; below 4 bits neither do the largest
 * errors. */
static dpq_status sample_loss(dpq_block_tuning *t, int64_t local, const dpq_tensor *y, dpq_tensor *dy, double *loss)
{
    int64_t rows = y->dim[0] - 1;
    int64_t elements = rows * y->dim[1];
    bool suppress = t->options->suppress_outliers && t->min_bits < 4;
    int64_t dropped = suppress ? (elements >= 1000 ? elements / 1000 : 1) : 0;
    return dpq_op_squared_error(t->run->backend, y, &t->tuning->target[local], rows, dropped, 1.0, dy, loss);
}

static dpq_status run_sample(dpq_block_tuning *t, int64_t local, bool last, double *loss)
{
    dpq_run *run = t->run;
    dpq_tuning *g = t->tuning;
    int64_t rows = g->input[local].dim[0];
    dpq_tensor y = dpq_tensor_rows(&g->y, 0, rows), dy = dpq_tensor_rows(&g->dy, 0, rows);
    gradient_context context = {.t = t, .last = last};
    dpq_workspace_mark mark = dpq_workspace_get_mark(run->workspace);
    double clock = dpq_clock_s();
    dpq_status st =
        dpq_block_forward_tape(&t->forward, t->layer, &t->weights, &g->input[local], &g->tape, &y, run->workspace);
    dpq_spans_add(&run->spans, DPQ_SPAN_FORWARD, &clock);
    if (st == DPQ_OK) {
        st = sample_loss(t, local, &y, &dy, loss);
    }
    if (st == DPQ_OK) {
        st = dpq_block_backward(&t->forward, t->layer, &t->weights, &g->tape, &dy, on_gradient, &context,
                                run->workspace);
    }
    dpq_spans_add(&run->spans, DPQ_SPAN_BACKWARD, &clock);
    dpq_workspace_release(run->workspace, mark);
    return st;
}

/* This rank's samples among the step's. Every role is sent once, also when this rank has no sample or failed: the
 * others wait for it. */
static dpq_status run_samples(dpq_block_tuning *t)
{
    dpq_tuning *g = t->tuning;
    int64_t last = -1;
    dpq_status local = DPQ_OK;
    for (int64_t j = 0; j < g->batch; j++) {
        g->losses[j] = 0.0;
        last = local_index(t->run, g->samples[j]) >= 0 ? j : last;
    }
    for (int64_t j = 0; j < g->batch && local == DPQ_OK; j++) {
        int64_t index = local_index(t->run, g->samples[j]);
        if (index >= 0) {
            local = run_sample(t, index, j == last, &g->losses[j]);
        }
    }
    for (int i = 0; i < DPQ_LINEAR_COUNT; i++) {
        if (!dpq_gradient_sum_sent(g->gradients, backward_order[i])) {
            DPQ_TRY(dpq_gradient_sum_send(g->gradients, t->run->comm, backward_order[i]));
        }
    }
    return local;
}

/* Losses of N samples, each known to one rank and zero elsewhere, on all ranks: their bits added as integers. */
static dpq_status share_losses(dpq_run *run, double *losses, int64_t n)
{
    dpq_tensor t = dpq_tensor_wrap_1d(losses, DPQ_DTYPE_U64, n);
    return dpq_comm_allreduce(run->comm, &t, DPQ_REDUCE_SUM);
}

/* Sum in sample order over the elements that count. */
static double mean_loss(const dpq_run *run, const int64_t *samples, const double *losses, int64_t n)
{
    double sum = 0, elements = 0;
    for (int64_t j = 0; j < n; j++) {
        int64_t s = samples != NULL ? samples[j] : j;
        sum += losses[j];
        elements +=
            (double)((run->samples->start[s + 1] - run->samples->start[s] - 1) * run->folder->config.hidden_size);
    }
    return elements > 0 ? sum / elements : 0.0;
}

dpq_status dpq_tune_gradients(dpq_block_tuning *t, int64_t step, double *loss)
{
    dpq_run *run = t->run;
    dpq_tuning *g = t->tuning;
    bool repeat = true;
    int64_t parts = t->options->accumulate, micro = g->batch / parts;
    for (int64_t part = 0; part < parts; part++) {
        dpq_tune_schedule(t->options->seed, run->samples->n, micro, step * parts + part, g->samples + part * micro);
    }
    for (int tries = 0; repeat; tries++) {
        if (tries > 2) {
            return DPQ_RAISE(DPQ_E_BUG, "step %lld: gradient exponents do not settle", (long long)step);
        }
        dpq_gradient_sum_begin(g->gradients);
        dpq_status local = run_samples(t);
        DPQ_TRY(dpq_gradient_sum_finish(g->gradients, run->comm, &run->spans, &repeat));
        DPQ_TRY(dpq_comm_agree(run->comm, local, &run->spans));
    }
    double clock = dpq_clock_s();
    DPQ_TRY(share_losses(run, g->losses, g->batch));
    dpq_spans_add(&run->spans, DPQ_SPAN_REDUCE, &clock);
    *loss = mean_loss(run, g->samples, g->losses, g->batch);
    return DPQ_OK;
}

dpq_status dpq_tune_evaluate(dpq_block_tuning *t, int64_t n, double *loss)
{
    dpq_run *run = t->run;
    dpq_tuning *g = t->tuning;
    dpq_status local = DPQ_OK;
    double clock = dpq_clock_s();
    for (int64_t s = 0; s < n && local == DPQ_OK; s++) {
        int64_t index = local_index(run, s);
        g->losses[s] = 0.0;
        if (index < 0) {
            continue;
        }
        dpq_tensor y = dpq_tensor_rows(&g->y, 0, g->input[index].dim[0]),
                   dy = dpq_tensor_rows(&g->dy, 0, g->input[index].dim[0]);
        dpq_workspace_mark mark = dpq_workspace_get_mark(run->workspace);
        memcpy(y.data, g->input[index].data, dpq_tensor_bytes(&y));
        local = dpq_block_forward(&t->forward, t->layer, &t->weights, &y, run->workspace);
        dpq_workspace_release(run->workspace, mark);
        local = local == DPQ_OK ? sample_loss(t, index, &y, &dy, &g->losses[s]) : local;
    }
    dpq_spans_add(&run->spans, DPQ_SPAN_FORWARD, &clock);
    DPQ_TRY(dpq_comm_agree(run->comm, local, &run->spans));
    DPQ_TRY(share_losses(run, g->losses, n));
    *loss = mean_loss(run, NULL, g->losses, n);
    return DPQ_OK;
}
