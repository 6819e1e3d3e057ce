/* SPDX-License-Identifier: Apache-2.0 */
/* State of a run, shared by the engine's files. The flow: pipeline.c loads a block; stage_walk.c takes its stages in
 * turn: observe (stage_stats.c), factor and solve (stage_solve.c), compute with quantized weights; output.c writes the
 * block. */
#ifndef DPQUANT_ENGINE_PRIV_H
#define DPQUANT_ENGINE_PRIV_H

#include "dpquant/algo.h"
#include "dpquant/backend.h"
#include "dpquant/calibset.h"
#include "dpquant/clock.h"
#include "dpquant/comm.h"
#include "dpquant/loader.h"
#include "dpquant/model.h"
#include "dpquant/plan.h"
#include "dpquant/report.h"
#include "dpquant/safetensors.h"
#include "dpquant/shard.h"

/* ---- activations of this rank's samples (activations.c) ---- */

/* For each local sample the residual h (T,C) and the input x (T, inputs) of the stage being worked on. Every x buffer
 * is wide enough for all stages; SPARE takes the next stage's input of one sample and then changes places with its
 * buffer. */
typedef struct {
    int64_t n; /* local samples */
    dpq_dtype dtype;
    int64_t *tokens;
    dpq_tensor *h;
    dpq_tensor *saved; /* h at the block's entry, when the block is walked twice; else NULL */
    dpq_tensor *x;     /* view of the current width */
    void **buffer;     /* of x */
    void *spare;
} dpq_activations;

/* Embed the samples of RANK; KEEP_ENTRY: room for a second walk. */
DPQ_MUST_USE dpq_status dpq_activations_create(const dpq_model_folder *folder, dpq_backend *be, const dpq_calibset *set,
                                               int rank, int size, dpq_dtype dtype, bool keep_entry,
                                               dpq_activations **out);
void dpq_activations_destroy(dpq_activations **activations);
/* View of sample I's buffer / of the spare one as (T, WIDTH). */
dpq_tensor dpq_activations_view(const dpq_activations *a, int64_t i, int64_t width);
dpq_tensor dpq_activations_spare(const dpq_activations *a, int64_t i, int64_t width);
/* The spare buffer, now holding sample I's next input of WIDTH, becomes its x. */
void dpq_activations_swap(dpq_activations *a, int64_t i, int64_t width);

/* ---- statistics of a stage (stage_stats.c) ---- */

typedef struct {
    int64_t k;
    int32_t *exponent; /* (K) */
    double *sumsq;     /* (K), on all ranks, when asked for */
    int64_t *xtx;      /* tiles, combined on the owner, when asked for */
} dpq_stage_sums;
void dpq_stage_sums_fini(dpq_stage_sums *sums);

typedef struct dpq_output dpq_output;
typedef struct dpq_tuning dpq_tuning;

typedef struct {
    dpq_comm *comm;
    dpq_backend *backend;
    const dpq_settings *settings;
    const dpq_model_folder *folder;
    const dpq_plan *plan;
    const dpq_calibset *samples; /* NULL: no calibration */
    dpq_tensor cos, sin;
    dpq_activations *activations; /* of a linear algorithm with calibration, or NULL */
    dpq_tuning *tuning;           /* of a block algorithm, or NULL */
    dpq_output *output;           /* rank 0 */
    dpq_workspace *workspace;     /* temporaries of the forward */
    dpq_spans spans;
    dpq_module_record *modules; /* one for each work item */
    dpq_block_record *blocks;
    int64_t fallbacks;
} dpq_run;

/* Combine WANTED statistics of the current stage input over all samples of all ranks. Collective. xtx arrives at OWNER
 * only. */
DPQ_MUST_USE dpq_status dpq_stage_combine(dpq_run *run, int64_t k, unsigned wanted, int owner, dpq_stage_sums *out);

/* Exponents of K channels from the sums of squares of the local samples (n_local, K), and with SUMSQ their exact total
 * over all ranks. Collective. */
DPQ_MUST_USE dpq_status dpq_squares_combine(dpq_run *run, int64_t k, int64_t n_local, const double *sample_sumsq,
                                            int32_t *exponent, double *sumsq);

/* ---- solving (stage_solve.c) ---- */

/* Quantize the linears of one stage from the sums of its input (SUMS NULL: no statistics). W holds the source weights
 * of the block; quantized[role] is created for each quantized linear of the stage, complete on all ranks. Collective.
 */
DPQ_MUST_USE dpq_status dpq_stage_solve(dpq_run *run, int64_t layer, int stage, const dpq_tensor *w,
                                        dpq_stage_sums *sums, dpq_qweight *quantized);

/* DST (N,K) in the source's type = values of Q rounded to it (dequantize.c). */
DPQ_MUST_USE dpq_status dpq_engine_dequantize(dpq_backend *be, const dpq_qweight *q, dpq_tensor *dst);

/* ---- one block (stage_walk.c) ---- */

/* Walk the stages of a block with calibration: observe, solve, compute with the quantized weights. SOURCE is consumed.
 * Collective. */
DPQ_MUST_USE dpq_status dpq_stage_walk(dpq_run *run, int64_t layer, dpq_block_source *source, dpq_qweight *quantized);
/* All linears of a block without any forward. Collective. */
DPQ_MUST_USE dpq_status dpq_stage_walk_data_free(dpq_run *run, int64_t layer, const dpq_block_source *source,
                                                 dpq_qweight *quantized);

/* ---- tuning of whole blocks (tuning.c, block_tune.c) ---- */

/* Everything that lives through the blocks: both chains of activations, the tape, gradient sums. Rank-local. */
DPQ_MUST_USE dpq_status dpq_tuning_create(dpq_run *run, dpq_tuning **out);
void dpq_tuning_destroy(dpq_tuning **tuning);
/* Tune one block; quantized[role] complete on all ranks; both chains move on. SOURCE is consumed. Collective. */
DPQ_MUST_USE dpq_status dpq_block_tune(dpq_run *run, int64_t layer, dpq_block_source *source, dpq_qweight *quantized);

/* ---- the output folder (output.c), rank 0 only ---- */

/* Check the place, create OUT.partial, lay out the shards. */
DPQ_MUST_USE dpq_status dpq_output_create(const dpq_plan *plan, dpq_output **out);
/* Write the quantized linears of a block, and the block's tensors that stay as they are. */
DPQ_MUST_USE dpq_status dpq_output_put_block(dpq_output *o, int64_t layer, const dpq_qweight *quantized);
/* Write the tensors outside of blocks, side files and config.json; sync; read everything back and check it. */
DPQ_MUST_USE dpq_status dpq_output_complete(dpq_output *o);
/* Folder being written. */
const char *dpq_output_dir(const dpq_output *o);
/* Write a report file into it. */
DPQ_MUST_USE dpq_status dpq_output_put_text(dpq_output *o, const char *name, const char *text, size_t size);
/* Rename to the final name. Destroys the object, also on error. */
DPQ_MUST_USE dpq_status dpq_output_commit(dpq_output **o);
/* Close files; the partial folder is removed. */
void dpq_output_abandon(dpq_output **o);

/* ---- the whole calibration (pipeline.c) ---- */
/* Block after block: load, walk, compare over ranks, write. Collective. */
DPQ_MUST_USE dpq_status dpq_pipeline_run(dpq_run *run);

#endif
