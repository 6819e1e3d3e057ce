/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of an evaluation from per-token values in sample order: perplexity = exp(sum nll / tokens), mean and
 * percentiles of the divergence, share of equal top tokens. Every sum runs over samples, then tokens, and so is the
 * same for any dealing of samples to ranks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "eval_priv.h"

double dpq_percentile(const double *sorted, int64_t n, double fraction)
{
    DPQ_ASSERT(n > 0 && fraction >= 0.0 && fraction <= 1.0);
    double position = fraction * (double)(n - 1);
    int64_t below = (int64_t)position;
    if (below >= n - 1) {
        return sorted[n - 1];
    }
    double weight = position - (double)below;
    return sorted[below] + weight * (sorted[below + 1] - sorted[below]);
}

static int64_t predicted_tokens(const dpq_calibset *set, int64_t sample)
{
    return set->start[sample + 1] - set->start[sample] - 1;
}

static double sum_values(const dpq_calibset *set, const double *values, int64_t width)
{
    double sum = 0.0;
    for (int64_t s = 0; s < set->n; s++) {
        for (int64_t t = 0; t < predicted_tokens(set, s); t++) {
            sum += values[s * width + t];
        }
    }
    return sum;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Values of all tokens, close together and ascending. Heap. */
static dpq_status sorted_values(const dpq_calibset *set, const double *values, int64_t width, int64_t tokens,
                                double **out)
{
    void *memory = NULL;
    int64_t n = 0;
    *out = NULL;
    DPQ_TRY(dpq_alloc_array(tokens, sizeof(double), &memory));
    double *sorted = memory;
    for (int64_t s = 0; s < set->n; s++) {
        for (int64_t t = 0; t < predicted_tokens(set, s); t++) {
            sorted[n++] = values[s * width + t];
        }
    }
    qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    *out = sorted;
    return DPQ_OK;
}

static dpq_status divergence_figures(const dpq_calibset *set, const dpq_eval_tokens *tokens, dpq_eval_figures *out)
{
    double *sorted = NULL;
    const double *kl = tokens->value[DPQ_EVAL_KL];
    double n = (double)out->tokens;
    DPQ_TRY(sorted_values(set, kl, tokens->width, out->tokens, &sorted));
    out->has_reference = true;
    out->reference_perplexity = exp(sum_values(set, tokens->value[DPQ_EVAL_REFERENCE_NLL], tokens->width) / n);
    out->kl_mean = sum_values(set, kl, tokens->width) / n;
    out->kl_median = dpq_percentile(sorted, out->tokens, 0.5);
    out->kl_p90 = dpq_percentile(sorted, out->tokens, 0.9);
    out->kl_p99 = dpq_percentile(sorted, out->tokens, 0.99);
    out->kl_p999 = dpq_percentile(sorted, out->tokens, 0.999);
    out->kl_max = sorted[out->tokens - 1];
    out->top1 = sum_values(set, tokens->value[DPQ_EVAL_AGREE], tokens->width) / n;
    dpq_free(sorted);
    return DPQ_OK;
}

dpq_status dpq_eval_compute_figures(const dpq_calibset *set, const dpq_eval_tokens *tokens, dpq_eval_figures *out)
{
    memset(out, 0, sizeof *out);
    DPQ_ASSERT(tokens->rows == set->n && set->n > 0);
    out->windows = set->n;
    out->tokens = set->start[set->n] - set->n; /* the first token of a sample is given, not predicted */
    memcpy(out->data_digest, set->digest, sizeof out->data_digest);
    out->perplexity = exp(sum_values(set, tokens->value[DPQ_EVAL_NLL], tokens->width) / (double)out->tokens);
    if (tokens->value[DPQ_EVAL_KL] != NULL) {
        DPQ_TRY(divergence_figures(set, tokens, out));
    }
    out->done = true;
    return DPQ_OK;
}

dpq_status dpq_eval_tokens_create(int64_t rows, int64_t width, bool has_reference, dpq_eval_tokens *out)
{
    size_t count = 0;
    memset(out, 0, sizeof *out);
    DPQ_TRY(dpq_mul_size((size_t)rows, (size_t)width, &count));
    out->rows = rows;
    out->width = width;
    for (int v = 0; v < (has_reference ? DPQ_EVAL_VALUES : 1); v++) {
        void *memory = NULL;
        dpq_status st = dpq_alloc_array((int64_t)count, sizeof(double), &memory);
        if (st != DPQ_OK) {
            dpq_eval_tokens_fini(out);
            return st;
        }
        out->value[v] = memory;
    }
    return DPQ_OK;
}

void dpq_eval_tokens_fini(dpq_eval_tokens *tokens)
{
    for (int v = 0; v < DPQ_EVAL_VALUES; v++) {
        dpq_free(tokens->value[v]);
    }
    memset(tokens, 0, sizeof *tokens);
}
