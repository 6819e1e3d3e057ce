/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of an evaluation: a model streamed to its last hidden states, and figures from gathered tokens.
 */
#ifndef DPQUANT_EVAL_PRIV_H
#define DPQUANT_EVAL_PRIV_H

#include "dpquant/eval.h"
#include "dpquant/loader.h"

/* What every step needs. Borrowed. */
typedef struct {
    dpq_comm *comm;
    dpq_backend *be;
    dpq_spans *spans;
    const dpq_calibset *set;
    dpq_dtype act;       /* F32 or BF16 */
    dpq_compute compute; /* F32 when act is */
    long done, total;    /* of the progress bar */
} dpq_eval_context;

/* A model and what it makes of this rank's samples. */
typedef struct {
    dpq_model_folder folder;
    dpq_tensor *hidden; /* of each sample of this rank: (T,C) act, after the final norm */
    int64_t n_hidden;
    dpq_weight head; /* (V,C) */
} dpq_eval_model;

void dpq_eval_model_fini(dpq_eval_model *model);
/* Hidden states of this rank's samples through all blocks. Collective: over COMM. Errors: agreed. */
DPQ_MUST_USE dpq_status dpq_eval_model_run(dpq_eval_context *ctx, dpq_eval_model *model);
/* The head, ready for products. Collective: no. */
DPQ_MUST_USE dpq_status dpq_eval_model_read_head(const dpq_eval_context *ctx, dpq_eval_model *model);
/* logits (end - begin, V) F32 of tokens [begin, end) of this rank's I-th sample. Collective: no. */
DPQ_MUST_USE dpq_status dpq_eval_logits(const dpq_eval_context *ctx, const dpq_eval_model *model, int64_t i,
                                        int64_t begin, int64_t end, dpq_tensor *logits);

/* Per-token values of samples, one row of WIDTH a sample; predicted tokens of a sample: its length - 1, the rest is
 * padding. */
typedef enum { DPQ_EVAL_NLL, DPQ_EVAL_REFERENCE_NLL, DPQ_EVAL_KL, DPQ_EVAL_AGREE, DPQ_EVAL_VALUES } dpq_eval_value;
typedef struct {
    int64_t rows, width;
    double *value[DPQ_EVAL_VALUES]; /* (rows, width); only NLL without a reference */
} dpq_eval_tokens;
DPQ_MUST_USE dpq_status dpq_eval_tokens_create(int64_t rows, int64_t width, bool has_reference, dpq_eval_tokens *out);
void dpq_eval_tokens_fini(dpq_eval_tokens *tokens);

/* Values of this rank's samples. REFERENCE may be NULL. Collective: no. Errors: DPQ_E_NUMERIC naming model, sample and
 * position of a likelihood that is not finite. */
DPQ_MUST_USE dpq_status dpq_eval_score(dpq_eval_context *ctx, const dpq_eval_model *model,
                                       const dpq_eval_model *reference, dpq_eval_tokens *out);

/* Figures of all samples, whose values are in sample order; sums run in that order. */
DPQ_MUST_USE dpq_status dpq_eval_compute_figures(const dpq_calibset *set, const dpq_eval_tokens *tokens,
                                                 dpq_eval_figures *out);

#endif
