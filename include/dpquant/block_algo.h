/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms that tune a whole block by gradient steps, written as single-process code: they know nothing of ranks,
 * samples' owners, files or models. The engine runs the samples of a step forward and backward on all ranks, adds the
 * gradients of the quantized weights exactly, and hands the sum back: create -> { weights -> (engine: forward, loss,
 * backward, exact sum) -> end_step, step }* -> finish A new gradient algorithm is a new table; it gets the distribution
 * for nothing. */
#ifndef DPQUANT_BLOCK_ALGO_H
#define DPQUANT_BLOCK_ALGO_H

#include <stdint.h>

#include "dpquant/backend.h"
#include "dpquant/option.h"
#include "dpquant/scheme.h"
#include "dpquant/status.h"
#include "dpquant/tensor.h"

typedef enum { DPQ_INIT_SCALE_MINMAX, DPQ_INIT_SCALE_SEARCH } dpq_init_scale;
typedef enum { DPQ_BEST_STEP_BATCH, DPQ_BEST_STEP_FIXED, DPQ_BEST_STEP_LAST } dpq_best_step;

/* Shared by all tuning algorithms: the keys "signround.iterations" ... are read by signround and adaround alike. */
typedef struct {
    int64_t iterations, batch, accumulate; /* accumulate: micro-batches a step */
    double lr,
        minmax_lr; /* 0: 1/iterations but at most 0.02, 2/iterations from 1000 iterations at 3 bits or fewer (lr), lr (minmax_lr) */
    bool minmax_tuning;
    double momentum;        /* of the sign steps; adaround: its first decay rate, 0: 0.9 */
    int init_scale;         /* dpq_init_scale */
    int best_step;          /* dpq_best_step */
    double fixed_share;     /* share of the samples that best_step fixed looks at */
    int64_t early_stop;     /* steps without improvement before a block stops; 0: never */
    bool suppress_outliers; /* below 4 bits: drop the largest thousandth of each sample's errors from the loss */
    int64_t seed;
    double search_low, search_high; /* init_scale search: factors on the range */
    int64_t search_steps;
} dpq_tune_options;
extern const dpq_option dpq_signround_option_table[];
extern const size_t dpq_signround_option_count;

/* One linear of the block as the algorithm sees it. Borrowed for the life of the state. */
typedef struct {
    const char *module;
    dpq_scheme scheme;
    const dpq_tensor *w; /* (N,K) source weights, source type */
    const double *sumsq; /* (K) importance of inputs, or NULL */
} dpq_tune_linear;

typedef struct dpq_block_state dpq_block_state;

typedef struct {
    const char *name, *help;
    /* State for N linears. Rows are spread over the backend's threads in fixed tiles. */
    dpq_status (*create)(const dpq_tune_options *options, dpq_backend *be, const dpq_tune_linear *linears, int n,
                         dpq_block_state **out);
    void (*destroy)(dpq_block_state **state);
    /* Bytes of state a linear of N x K, G groups, needs (for the plan). */
    size_t (*state_bytes)(const dpq_tune_options *options, int64_t n, int64_t k, int64_t groups);
    /* wq (N,K) BF16 or F32, row-major = quantized-dequantized weights of linear I at the present parameters, rounded to
     * SOURCE type first as loaders see them. Once a step. */
    dpq_status (*weights)(dpq_block_state *state, int i, dpq_tensor *wq);
    /* Keep the present parameters as the best so far (called before the step is taken). */
    dpq_status (*snapshot)(dpq_block_state *state);
    /* One update of linear I from the exact sum of gradients of its quantized weights: gradient = sum[j] * unit, sum
     * (N,K). STEP counts from 0 and must be below iterations. Only the direction of the gradient matters, not its size.
     * Errors: DPQ_E_NUMERIC for a unit that is not positive. */
    dpq_status (*step)(dpq_block_state *state, int step, int i, const int32_t *sum, double unit);
    /* Codes, scale, zero of linear I into *out (created by the caller for this linear, scale type = type of w, no
     * g_idx), from the snapshot (BEST; DPQ_E_BUG without one) or the present parameters. row_error: squared weight
     * error and signal. */
    dpq_status (*finish)(dpq_block_state *state, bool best, int i, dpq_qweight *out);
} dpq_block_algo_ops;

const dpq_block_algo_ops *dpq_block_algo_at(int index);          /* NULL past the end */
const dpq_block_algo_ops *dpq_block_algo_find(const char *name); /* "signround", "adaround"; NULL when unknown */

/* Samples of micro-batch STEP (step t with accumulate a: micro-batches t a ... t a + a - 1), a pure function of seed,
 * n, batch: samples[c] is one of the residue class c modulo BATCH (BATCH of them, c ascending), so that any number of
 * ranks that divides the batch gets equal shares. Each class is gone through whole, in an order drawn anew each time,
 * before it starts again; when BATCH does not divide N the classes differ by one member and a member of a larger class
 * comes that much more rarely. n >= batch >= 1. */
void dpq_tune_schedule(int64_t seed, int64_t n, int64_t batch, int64_t step, int64_t *samples);

#endif
