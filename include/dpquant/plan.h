/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that is decided before the first byte of calibration: work list, output layout, memory, bytes, operations.
 * A pure function of model and settings; the number of ranks only divides activations. */
#ifndef DPQUANT_PLAN_H
#define DPQUANT_PLAN_H

#include <stdint.h>

#include "dpquant/algo.h"
#include "dpquant/loader.h"
#include "dpquant/pack.h"
#include "dpquant/report.h"
#include "dpquant/settings.h"
#include "dpquant/status.h"

typedef struct {
    char module[DPQ_NAME_BYTES];
    int64_t n, k;
    bool quantized, with_g_idx;
    dpq_scheme scheme;
    dpq_dtype dtype; /* of the source weight */
} dpq_work;

typedef struct {
    const dpq_settings *settings;
    const dpq_model_folder *folder;
    const char *algorithm;
    const dpq_linear_algo_ops *algo; /* linear by linear, or NULL */
    const dpq_block_algo_ops *tuner; /* whole blocks, or NULL */
    dpq_scheme scheme;               /* before overrides */
    bool mixed;                      /* quantized linears differ in scheme */
    unsigned stats;                  /* what a linear algorithm needs of stage inputs */
    bool needs_samples;
    bool replays;  /* each block is walked twice: statistics with the source weights, then the quantized ones */
    dpq_dtype act; /* activations */
    dpq_compute compute;
    dpq_work *work; /* n_layers * DPQ_LINEAR_COUNT, by layer, then role */
    size_t n_work, n_quantized;
    dpq_str_list ignored; /* dense linears, lm_head first */
    dpq_ct_decls *ct;     /* output tensors of each work item (count 0 when dense) */
    dpq_st_decl *decls;   /* every tensor of the output, in the order of the shards */
    size_t n_decls;
    uint64_t output_bytes;
    int shards;
} dpq_plan;

/* Estimates, in bytes of one rank unless said otherwise, and operations of the whole job. */
typedef struct {
    uint64_t weights, statistics, tuning, activations, embedding, evaluation, base, total;
    uint64_t reduced, gathered; /* over the whole run */
    double flop_forward, flop_statistics, flop_solve, flop_tuning, flop_eval;
} dpq_plan_cost;

/* Check every layer against the scheme: divisibility (with the widths and the group sizes that would do), fused sets
 * (q/k/v, gate/up share bits, group and ignore state), patterns that match nothing, formats. FOLDER and SETTINGS are
 * borrowed.  Errors: DPQ_E_CONFIG, DPQ_E_UNSUPPORTED. */
DPQ_MUST_USE dpq_status dpq_plan_create(const dpq_settings *settings, const dpq_model_folder *folder, dpq_plan **out);
void dpq_plan_destroy(dpq_plan **plan);
const dpq_work *dpq_plan_work(const dpq_plan *plan, int64_t layer, dpq_linear_role role);

/* Costs for samples of the given lengths dealt to SIZE ranks (the fullest rank counts). BASE: bytes the program
 * holds before it works (dpq_memory_peak_bytes at that time). */
void dpq_plan_estimate(const dpq_plan *plan, const dpq_calibset *samples, const dpq_calibset *eval, int size,
                       int threads, uint64_t base, dpq_plan_cost *out);
/* The plan as text: work list by scheme, memory, bytes, and (GFLOPS > 0) an estimate of time. Heap. */
DPQ_MUST_USE dpq_status dpq_plan_text(const dpq_plan *plan, const dpq_plan_cost *cost, int size, double gflops,
                                      char **out);

#endif
