/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of the CPU backend that touch each element once: norms, rotary embedding, gated activation, row gather,
 * column sums of squares. Tiles of ROW_TILE tokens (or COLUMN_TILE columns) are dealt to threads; arithmetic is fp32,
 * sums are fp64. */
#include <math.h>

#include "cpu_kernels.h"

#define ROW_TILE    16
#define COLUMN_TILE 256

static int64_t tile_end(int64_t tile, int64_t length, int64_t n)
{
    int64_t end = (tile + 1) * length;
    return end < n ? end : n;
}

/* ---- rmsnorm ---- */

typedef struct {
    const dpq_tensor *x;
    const float *gamma;
    double eps;
    int64_t groups;
    dpq_tensor *y;
} rmsnorm_job;

DPQ_HOT static double sum_of_squares(const float *x, int64_t n)
{
    double lanes[DPQ_LANES] = {0};
    int64_t i = 0;
    for (; i + DPQ_LANES <= n; i += DPQ_LANES) {
        for (int l = 0; l < DPQ_LANES; l++) {
            lanes[l] += (double)x[i + l] * (double)x[i + l];
        }
    }
    for (int l = 0; i + l < n; l++) {
        lanes[l] += (double)x[i + l] * (double)x[i + l];
    }
    return dpq_lanes_total_f64(lanes);
}

DPQ_HOT static void load_row(const void *row, dpq_dtype dtype, int64_t n, float *dst)
{
    dpq_row_load(row, dtype, n, dst);
}

/* x * factor * gamma, in this order; rounded to the type of y. SCALED: n floats of scratch. */
DPQ_HOT static void scale_row(const float *restrict x, float factor, const float *restrict gamma, int64_t n,
                              float *restrict scaled, dpq_dtype dtype, void *y)
{
    for (int64_t i = 0; i < n; i++) {
        scaled[i] = x[i] * factor * gamma[i];
    }
    dpq_row_store(scaled, n, dtype, y);
}

static dpq_status rmsnorm_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    const rmsnorm_job *job = context;
    int64_t columns = job->x->dim[1];
    int64_t width = columns / job->groups;
    void *memory;
    DPQ_TRY(dpq_workspace_alloc(ws, columns + width, sizeof(float), &memory));
    float *row = memory;
    float *scaled = row + columns;
    int64_t end = tile_end(tile, ROW_TILE, job->x->dim[0]);
    for (int64_t t = tile * ROW_TILE; t < end; t++) {
        load_row(dpq_row_at(job->x, t), job->x->dtype, columns, row);
        char *out = dpq_row_at(job->y, t);
        for (int64_t g = 0; g < job->groups; g++) {
            const float *x = row + g * width;
            double mean = sum_of_squares(x, width) / (double)width;
            float factor = (float)(1.0 / sqrt(mean + job->eps));
            scale_row(x, factor, job->gamma, width, scaled, job->y->dtype,
                      out + (size_t)(g * width) * dpq_dtype_bytes(job->y->dtype));
        }
    }
    return DPQ_OK;
}

dpq_status dpq_rmsnorm_cpu(dpq_backend *be, const dpq_tensor *x, const dpq_tensor *gamma, double eps, int64_t groups,
                           dpq_tensor *y)
{
    rmsnorm_job job = {.x = x, .gamma = gamma->data, .eps = eps, .groups = groups, .y = y};
    return dpq_backend_parallel(be, dpq_tile_count(x->dim[0], ROW_TILE), rmsnorm_tile, &job);
}

/* ---- rope ---- */

typedef struct {
    dpq_tensor *x;
    int64_t heads;
    const dpq_tensor *cos, *sin;
} rope_job;

/* One head: (x_i, x_{i+half}) turned by the angle of column i. HEAD: 4 * half floats of scratch. */
DPQ_HOT static void rotate_head(void *head, dpq_dtype dtype, const float *restrict cos, const float *restrict sin,
                                int64_t half, float *scratch)
{
    float *restrict x = scratch;
    float *restrict y = scratch + 2 * half;
    dpq_row_load(head, dtype, 2 * half, x);
    for (int64_t i = 0; i < half; i++) {
        y[i] = x[i] * cos[i] - x[half + i] * sin[i];
        y[half + i] = x[half + i] * cos[i] + x[i] * sin[i];
    }
    dpq_row_store(y, 2 * half, dtype, head);
}

static dpq_status rope_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    const rope_job *job = context;
    int64_t half = job->cos->dim[1];
    size_t head_bytes = (size_t)(job->x->dim[1] / job->heads) * dpq_dtype_bytes(job->x->dtype);
    void *scratch;
    DPQ_TRY(dpq_workspace_alloc(ws, 4 * half, sizeof(float), &scratch));
    int64_t end = tile_end(tile, ROW_TILE, job->x->dim[0]);
    for (int64_t t = tile * ROW_TILE; t < end; t++) {
        char *row = dpq_row_at(job->x, t);
        const float *cos = dpq_row_at(job->cos, t);
        const float *sin = dpq_row_at(job->sin, t);
        for (int64_t h = 0; h < job->heads; h++) {
            rotate_head(row + (size_t)h * head_bytes, job->x->dtype, cos, sin, half, scratch);
        }
    }
    return DPQ_OK;
}

dpq_status dpq_rope_cpu(dpq_backend *be, dpq_tensor *x, int64_t heads, const dpq_tensor *cos, const dpq_tensor *sin)
{
    rope_job job = {.x = x, .heads = heads, .cos = cos, .sin = sin};
    return dpq_backend_parallel(be, dpq_tile_count(x->dim[0], ROW_TILE), rope_tile, &job);
}

/* ---- silu(gate) * up ---- */

typedef struct {
    const dpq_tensor *gate, *up;
    dpq_tensor *y;
} silu_job;

DPQ_HOT static void silu_row(const void *gate, const void *up, int64_t n, dpq_dtype dtype, float *scratch, void *y)
{
    float *restrict g = scratch;
    float *restrict u = scratch + n;
    dpq_row_load(gate, dtype, n, g);
    dpq_row_load(up, dtype, n, u);
    for (int64_t i = 0; i < n; i++) {
        g[i] = g[i] / (1.0f + dpq_exp_f32(-g[i])) * u[i];
    }
    dpq_row_store(g, n, dtype, y);
}

static dpq_status silu_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    const silu_job *job = context;
    int64_t columns = job->y->dim[1];
    void *scratch;
    DPQ_TRY(dpq_workspace_alloc(ws, 2 * columns, sizeof(float), &scratch));
    int64_t end = tile_end(tile, ROW_TILE, job->y->dim[0]);
    for (int64_t t = tile * ROW_TILE; t < end; t++) {
        silu_row(dpq_row_at(job->gate, t), dpq_row_at(job->up, t), columns, job->y->dtype, scratch,
                 dpq_row_at(job->y, t));
    }
    return DPQ_OK;
}

dpq_status dpq_silu_mul_cpu(dpq_backend *be, const dpq_tensor *gate, const dpq_tensor *up, dpq_tensor *y)
{
    silu_job job = {.gate = gate, .up = up, .y = y};
    return dpq_backend_parallel(be, dpq_tile_count(y->dim[0], ROW_TILE), silu_tile, &job);
}

/* ---- gather ---- */

typedef struct {
    const dpq_tensor *table;
    const int32_t *ids;
    dpq_tensor *y;
} gather_job;

static dpq_status gather_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    (void)ws;
    const gather_job *job = context;
    int64_t end = tile_end(tile, ROW_TILE, job->y->dim[0]);
    for (int64_t t = tile * ROW_TILE; t < end; t++) {
        DPQ_TRY(dpq_convert(dpq_row_at(job->table, job->ids[t]), job->table->dtype, dpq_row_at(job->y, t),
                            job->y->dtype, job->y->dim[1]));
    }
    return DPQ_OK;
}

dpq_status dpq_gather_rows_cpu(dpq_backend *be, const dpq_tensor *table, const int32_t *ids, dpq_tensor *y)
{
    gather_job job = {.table = table, .ids = ids, .y = y};
    return dpq_backend_parallel(be, dpq_tile_count(y->dim[0], ROW_TILE), gather_tile, &job);
}

/* ---- column sums of squares ---- */

typedef struct {
    const dpq_tensor *x;
    double *sumsq;
} sumsq_job;

/* Squares of fp32 values are exact in fp64. */
DPQ_HOT static void add_squares_f32(const float *restrict x, int64_t n, double *restrict sums)
{
    for (int64_t i = 0; i < n; i++) {
        sums[i] += (double)x[i] * (double)x[i];
    }
}

DPQ_HOT static void add_squares_bf16(const uint16_t *restrict x, int64_t n, double *restrict sums)
{
    for (int64_t i = 0; i < n; i++) {
        double value = (double)dpq_bf16_to_f32(x[i]);
        sums[i] += value * value;
    }
}

static dpq_status sumsq_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    (void)ws;
    const sumsq_job *job = context;
    int64_t begin = tile * COLUMN_TILE;
    int64_t n = tile_end(tile, COLUMN_TILE, job->x->dim[1]) - begin;
    double sums[COLUMN_TILE] = {0};
    for (int64_t t = 0; t < job->x->dim[0]; t++) {
        const void *row = dpq_row_at(job->x, t);
        if (job->x->dtype == DPQ_DTYPE_BF16) {
            add_squares_bf16((const uint16_t *)row + begin, n, sums);
        } else {
            add_squares_f32((const float *)row + begin, n, sums);
        }
    }
    memcpy(job->sumsq + begin, sums, (size_t)n * sizeof(double));
    return DPQ_OK;
}

dpq_status dpq_column_sumsq_cpu(dpq_backend *be, const dpq_tensor *x, double *sumsq)
{
    sumsq_job job = {.x = x, .sumsq = sumsq};
    return dpq_backend_parallel(be, dpq_tile_count(x->dim[1], COLUMN_TILE), sumsq_tile, &job);
}
