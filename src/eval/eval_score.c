/* SPDX-License-Identifier: Apache-2.0 */
/* From hidden states to per-token values: logits of a chunk of tokens of both models, and what is measured on them. The
 * logits of a whole sample are never held. */
#include <math.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/log.h"
#include "dpquant/shard.h"
#include "eval_priv.h"

#define CHUNK_TOKENS 64

typedef struct {
    dpq_eval_context *ctx;
    const dpq_eval_model *model, *reference; /* reference may be NULL */
    dpq_tensor logits, reference_logits;     /* (CHUNK_TOKENS, V) F32 */
    int32_t top[CHUNK_TOKENS], reference_top[CHUNK_TOKENS];
    dpq_eval_tokens *out;
} scorer;

static dpq_status scorer_init(scorer *s)
{
    int64_t v = s->model->folder.config.vocab_size;
    DPQ_TRY(dpq_tensor_create_2d(DPQ_DTYPE_F32, CHUNK_TOKENS, v, &s->logits));
    return s->reference != NULL ? dpq_tensor_create_2d(DPQ_DTYPE_F32, CHUNK_TOKENS, v, &s->reference_logits) : DPQ_OK;
}

static dpq_status check_finite(const dpq_eval_model *model, int64_t sample, int64_t position, const double *nll,
                               int64_t n)
{
    for (int64_t t = 0; t < n; t++) {
        if (!isfinite(nll[t])) {
            return DPQ_RAISE(DPQ_E_NUMERIC, "%s: sample %lld, token %lld: its negative log likelihood is %g",
                             model->folder.dir, (long long)sample, (long long)(position + t + 1), nll[t]);
        }
    }
    return DPQ_OK;
}

/* Tokens [begin, begin + n) of own sample I (SAMPLE of all) predict the token after each. */
static dpq_status score_chunk(scorer *s, int64_t i, int64_t sample, int64_t begin, int64_t n)
{
    const dpq_calibset *set = s->ctx->set;
    const int32_t *target = set->ids + set->start[sample] + begin + 1;
    dpq_backend *be = s->ctx->be;
    double *value[DPQ_EVAL_VALUES];
    for (int v = 0; v < DPQ_EVAL_VALUES; v++) {
        value[v] = s->out->value[v] != NULL ? s->out->value[v] + i * s->out->width + begin : NULL;
    }
    dpq_tensor logits = dpq_tensor_rows(&s->logits, 0, n);
    DPQ_TRY(dpq_eval_logits(s->ctx, s->model, i, begin, begin + n, &logits));
    DPQ_TRY(dpq_op_nll(be, &logits, target, value[DPQ_EVAL_NLL], s->top));
    DPQ_TRY(check_finite(s->model, sample, begin, value[DPQ_EVAL_NLL], n));
    if (s->reference == NULL) {
        return DPQ_OK;
    }
    dpq_tensor other = dpq_tensor_rows(&s->reference_logits, 0, n);
    DPQ_TRY(dpq_eval_logits(s->ctx, s->reference, i, begin, begin + n, &other));
    DPQ_TRY(dpq_op_nll(be, &other, target, value[DPQ_EVAL_REFERENCE_NLL], s->reference_top));
    DPQ_TRY(check_finite(s->reference, sample, begin, value[DPQ_EVAL_REFERENCE_NLL], n));
    DPQ_TRY(dpq_op_kl(be, &other, &logits, value[DPQ_EVAL_KL]));
    DPQ_TRY(check_finite(s->model, sample, begin, value[DPQ_EVAL_KL], n));
    for (int64_t t = 0; t < n; t++) {
        value[DPQ_EVAL_AGREE][t] = s->top[t] == s->reference_top[t] ? 1.0 : 0.0;
    }
    return DPQ_OK;
}

dpq_status dpq_eval_score(dpq_eval_context *ctx, const dpq_eval_model *model, const dpq_eval_model *reference,
                          dpq_eval_tokens *out)
{
    dpq_status st = DPQ_OK;
    int rank = dpq_comm_rank(ctx->comm);
    int size = dpq_comm_size(ctx->comm);
    int64_t own = dpq_shard_sample_count(ctx->set->n, rank, size);
    scorer s = {.ctx = ctx, .model = model, .reference = reference, .out = out};
    memset(out, 0, sizeof *out);
    DPQ_TRY_GOTO(st, dpq_eval_tokens_create(own, ctx->set->max_length - 1, reference != NULL, out), done);
    DPQ_TRY_GOTO(st, scorer_init(&s), done);
    for (int64_t i = 0; i < own; i++) {
        int64_t sample = dpq_shard_sample(i, rank, size);
        int64_t predicted = ctx->set->start[sample + 1] - ctx->set->start[sample] - 1;
        for (int64_t begin = 0; begin < predicted; begin += CHUNK_TOKENS) {
            int64_t n = predicted - begin < CHUNK_TOKENS ? predicted - begin : CHUNK_TOKENS;
            DPQ_TRY_GOTO(st, score_chunk(&s, i, sample, begin, n), done);
        }
        if (i < own - 1) { /* the end of the bar is reached after the agreement */
            ctx->done++;
            dpq_progress("eval", ctx->done, ctx->total);
        }
    }
done:
    dpq_tensor_fini(&s.logits);
    dpq_tensor_fini(&s.reference_logits);
    if (st != DPQ_OK) {
        dpq_eval_tokens_fini(out);
    }
    return st;
}
