/* SPDX-License-Identifier: Apache-2.0 */
/* Calibration algorithms that work linear by linear, written as single-process code: they know nothing of ranks, files
 * or models. An algorithm declares which statistics of a stage's input it needs; the engine computes them over the
 * samples of all ranks and combines them exactly. `prepare` runs once a stage on one rank (the owner), its result is
 * sent to all; `solve` fills any range of rows of a linear and may run on any rank. */
#ifndef DPQUANT_ALGO_H
#define DPQUANT_ALGO_H

#include <stdint.h>

#include "dpquant/alloc.h"
#include "dpquant/backend.h"
#include "dpquant/grid.h"
#include "dpquant/option.h"
#include "dpquant/scheme.h"
#include "dpquant/status.h"
#include "dpquant/tensor.h"

/* Statistics of a stage input x (all tokens of all samples, K). */
enum {
    DPQ_STAT_NONE = 0,
    DPQ_STAT_SUMSQ = 1, /* (K) F64: sum over tokens of x^2 */
    DPQ_STAT_XTX = 2    /* (K,K): sum over tokens of x x^T, exact integers */
};

typedef enum { DPQ_ORDER_STATIC, DPQ_ORDER_GROUP, DPQ_ORDER_NONE } dpq_gptq_order;
typedef enum { DPQ_GROUP_SCALES_STATIC, DPQ_GROUP_SCALES_DYNAMIC } dpq_group_scales;

typedef struct {
    bool importance;           /* rtn.importance: search weighted by sum of squared inputs; needs calibration */
    dpq_search_options search; /* rtn.search, rtn.search_low, rtn.search_high, rtn.search_steps */
} dpq_rtn_options;

typedef struct {
    double damping; /* share of the mean diagonal added to it */
    dpq_gptq_order order;
    bool true_sequential; /* read by the engine */
    dpq_group_scales group_scales;
    dpq_search_options search;
} dpq_gptq_options;

typedef struct {
    dpq_rtn_options rtn;
    dpq_gptq_options gptq;
} dpq_algo_options;

/* Descriptor tables; offsets are into dpq_algo_options. */
extern const dpq_option dpq_rtn_option_table[];
extern const size_t dpq_rtn_option_count;
extern const dpq_option dpq_gptq_option_table[];
extern const size_t dpq_gptq_option_count;

/* Combined statistics of a stage; what was not asked for is NULL. Borrowed. */
typedef struct {
    int64_t k, tokens;
    const double *sumsq;     /* (K) */
    const int64_t *xtx;      /* tiles, dpq_xtx_count(k) */
    const int32_t *exponent; /* (K), for xtx */
} dpq_stage_stats;

/* What prepare found out and all solves of the stage need. Flat tensors, so that the engine can send it. */
typedef enum { DPQ_FACTOR_OK, DPQ_FACTOR_OK_F64, DPQ_FACTOR_DAMPED, DPQ_FACTOR_FAILED } dpq_factor_outcome;
typedef struct {
    dpq_tensor u;     /* (K,K) F32: upper factor of the inverse, columns in the order of `order`; empty when FAILED */
    dpq_tensor order; /* (K) I32: order[i] = source column of position i */
    dpq_tensor importance; /* (K) F32: diagonal of the undamped Hessian in source order */
    int32_t outcome;       /* dpq_factor_outcome */
    double damping;        /* the share that succeeded */
} dpq_factor;
void dpq_factor_fini(dpq_factor *factor);

/* How a linear was solved, for the report. */
typedef enum { DPQ_METHOD_RTN, DPQ_METHOD_GPTQ, DPQ_METHOD_RTN_FALLBACK } dpq_method;
const char *dpq_method_name(dpq_method method);

typedef struct {
    const char *module;       /* name, for messages */
    const dpq_tensor *w;      /* (N,K) F32, F16 or BF16 source weights */
    const double *sumsq;      /* (K) or NULL */
    const dpq_factor *factor; /* or NULL */
} dpq_solve_input;

#define DPQ_SOLVE_TILE_ROWS 64

typedef struct {
    const char *name, *help;
    /* Statistics this run needs (DPQ_STAT_*); NONE: no calibration forward at all. */
    unsigned (*stats)(const dpq_algo_options *options);
    /* Does the linear get a g_idx (columns of a group are not contiguous)? */
    bool (*with_g_idx)(const dpq_algo_options *options, const dpq_scheme *scheme);
    /* Once a stage, from combined statistics; fills *factor. NULL when the algorithm has none. Not positive definite is
     * no error: the documented ladder runs and outcome says what happened. STATS->xtx may be consumed (its memory is
     * not needed after). */
    dpq_status (*prepare)(const dpq_algo_options *options, dpq_backend *be, const dpq_stage_stats *stats,
                          dpq_factor *factor);
    /* Fill codes, scale, zero, row_error of rows [begin, end) (and g_idx, equal whoever computes it). begin is a
     * multiple of DPQ_SOLVE_TILE_ROWS. Uses the backend's threads over tiles of rows. *method says what was done. */
    dpq_status (*solve)(const dpq_algo_options *options, dpq_backend *be, const dpq_solve_input *input, int64_t begin,
                        int64_t end, dpq_qweight *out, dpq_method *method);
} dpq_linear_algo_ops;

const dpq_linear_algo_ops *dpq_algo_at(int index); /* NULL past the end */
const dpq_linear_algo_ops *dpq_algo_find(const char *name);

#endif
