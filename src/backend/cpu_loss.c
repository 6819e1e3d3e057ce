/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of the CPU backend over rows of fp32 logits: negative log likelihood with the top token, and KL divergence.
 * Exponentials are fp32, sums fp64 in DPQ_LANES lanes; one row is one thread's work. NaN logits give NaN. */
#include <math.h>

#include "cpu_kernels.h"

#define ROW_TILE 4

/* Largest value; NaN is passed over (the sums that follow meet it again). -infinity when there is nothing else. */
DPQ_INLINE float row_maximum(const float *row, int64_t n)
{
    float lanes[DPQ_LANES];
    for (int l = 0; l < DPQ_LANES; l++) {
        lanes[l] = -INFINITY;
    }
    int64_t i = 0;
    for (; i + DPQ_LANES <= n; i += DPQ_LANES) {
        for (int l = 0; l < DPQ_LANES; l++) {
            lanes[l] = row[i + l] > lanes[l] ? row[i + l] : lanes[l];
        }
    }
    float maximum = lanes[0];
    for (int l = 1; l < DPQ_LANES; l++) {
        maximum = lanes[l] > maximum ? lanes[l] : maximum;
    }
    for (; i < n; i++) {
        maximum = row[i] > maximum ? row[i] : maximum;
    }
    return maximum;
}

static int32_t first_index_of(float value, const float *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (row[i] == value) {
            return (int32_t)i;
        }
    }
    return 0; /* only NaN */
}

/* ---- nll ---- */

typedef struct {
    const dpq_tensor *logits;
    const int32_t *target;
    double *nll;
    int32_t *top;
} nll_job;

/* sum_i exp(row_i - *maximum) */
DPQ_HOT static double sum_exponentials(const float *row, int64_t n, float *maximum)
{
    float largest = row_maximum(row, n);
    double lanes[DPQ_LANES] = {0};
    int64_t i = 0;
    for (; i + DPQ_LANES <= n; i += DPQ_LANES) {
        for (int l = 0; l < DPQ_LANES; l++) {
            lanes[l] += (double)dpq_exp_f32(row[i + l] - largest);
        }
    }
    for (int l = 0; i + l < n; l++) {
        lanes[l] += (double)dpq_exp_f32(row[i + l] - largest);
    }
    *maximum = largest;
    return dpq_lanes_total_f64(lanes);
}

static dpq_status nll_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    (void)ws;
    const nll_job *job = context;
    int64_t n = job->logits->dim[1];
    for (int64_t t = tile * ROW_TILE; t < (tile + 1) * ROW_TILE && t < job->logits->dim[0]; t++) {
        const float *row = dpq_row_at(job->logits, t);
        float maximum;
        double sum = sum_exponentials(row, n, &maximum);
        job->nll[t] = log(sum) + ((double)maximum - (double)row[job->target[t]]);
        job->top[t] = first_index_of(maximum, row, n);
    }
    return DPQ_OK;
}

dpq_status dpq_nll_cpu(dpq_backend *be, const dpq_tensor *logits, const int32_t *target, double *nll, int32_t *top)
{
    nll_job job = {.logits = logits, .target = target, .nll = nll, .top = top};
    return dpq_backend_parallel(be, dpq_tile_count(logits->dim[0], ROW_TILE), nll_tile, &job);
}

/* ---- kl ---- */

typedef struct {
    const dpq_tensor *reference, *model;
    double *kl;
} kl_job;

typedef struct {
    double reference[DPQ_LANES]; /* sum exp(a) */
    double model[DPQ_LANES];     /* sum exp(b) */
    double cross[DPQ_LANES];     /* sum exp(a) (a - b) */
} kl_lanes;

/* A, b: logits less their maximum. A token of probability 0 adds nothing, however small its probability in the model.
 */
DPQ_INLINE void kl_add(kl_lanes *sums, int lane, float a, float b)
{
    double p = (double)dpq_exp_f32(a);
    double difference = (double)a - (double)b;
    sums->reference[lane] += p;
    sums->model[lane] += (double)dpq_exp_f32(b);
    sums->cross[lane] += p == 0.0 ? 0.0 : p * difference;
}

/* With a and b less their maxima and A = sum e^a, B = sum e^b: KL = (sum e^a (a - b)) / A - log A + log B. */
DPQ_HOT static double kl_row(const float *reference, const float *model, int64_t n)
{
    float max_reference = row_maximum(reference, n);
    float max_model = row_maximum(model, n);
    kl_lanes sums = {0};
    int64_t i = 0;
    for (; i + DPQ_LANES <= n; i += DPQ_LANES) {
        for (int l = 0; l < DPQ_LANES; l++) {
            kl_add(&sums, l, reference[i + l] - max_reference, model[i + l] - max_model);
        }
    }
    for (int l = 0; i + l < n; l++) {
        kl_add(&sums, l, reference[i + l] - max_reference, model[i + l] - max_model);
    }
    double a = dpq_lanes_total_f64(sums.reference);
    double b = dpq_lanes_total_f64(sums.model);
    double kl = dpq_lanes_total_f64(sums.cross) / a - log(a) + log(b);
    return kl < 0.0 ? 0.0 : kl; /* below zero by rounding only; NaN stays */
}

static dpq_status kl_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    (void)ws;
    const kl_job *job = context;
    int64_t n = job->reference->dim[1];
    for (int64_t t = tile * ROW_TILE; t < (tile + 1) * ROW_TILE && t < job->reference->dim[0]; t++) {
        job->kl[t] = kl_row(dpq_row_at(job->reference, t), dpq_row_at(job->model, t), n);
    }
    return DPQ_OK;
}

dpq_status dpq_kl_cpu(dpq_backend *be, const dpq_tensor *reference, const dpq_tensor *model, double *kl)
{
    kl_job job = {.reference = reference, .model = model, .kl = kl};
    return dpq_backend_parallel(be, dpq_tile_count(reference->dim[0], ROW_TILE), kl_tile, &job);
}
