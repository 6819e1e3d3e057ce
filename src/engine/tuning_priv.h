/* SPDX-License-Identifier: Apache-2.0 */
/* State of a run that tunes whole blocks. */
#ifndef DPQUANT_TUNING_PRIV_H
#define DPQUANT_TUNING_PRIV_H

#include "dpquant/block_algo.h"
#include "dpquant/block_grad.h"
#include "engine_priv.h"
#include "gradient_sum.h"

/* Two chains of activations (T,C) a local sample: TARGET is the source model's, INPUT the quantized model's so far. A
 * block's target is the source block's output on the source chain; what is tuned is the quantized block on the
 * quantized chain. */
struct dpq_tuning {
    int64_t n; /* local samples */
    dpq_tensor *target, *input;
    void *arena;
    size_t arena_bytes;
    bool mapped; /* arena is a scratch file */
    dpq_block_tape tape;
    dpq_tensor y, dy; /* (longest, C) */
    dpq_gradient_sum *gradients;
    int64_t batch;    /* samples of a step */
    int64_t *samples; /* (batch) */
    double *losses;   /* of a step's or an evaluation's samples */
};

/* One block being tuned. */
typedef struct {
    dpq_run *run;
    dpq_tuning *tuning;
    int64_t layer;
    const dpq_tune_options *options;
    const dpq_block_algo_ops *ops;
    dpq_forward forward;
    dpq_block_weights weights; /* at the present parameters */
    dpq_block_state *state;
    int count;                               /* linears that are tuned */
    dpq_linear_role roles[DPQ_LINEAR_COUNT]; /* of the state's linears */
    int index[DPQ_LINEAR_COUNT];             /* role -> state's linear, or -1 */
    int min_bits;
} dpq_block_tuning;

/* tune_step.c: gradients and losses of one step's samples, combined over all ranks; *loss is the mean squared error.
 * Collective. */
DPQ_MUST_USE dpq_status dpq_tune_gradients(dpq_block_tuning *t, int64_t step, double *loss);
/* Mean squared error of the first N samples at the present weights. Collective. */
DPQ_MUST_USE dpq_status dpq_tune_evaluate(dpq_block_tuning *t, int64_t n, double *loss);

#endif
