/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of norms and of the gated activation on the CPU. Tiles of ROW_TILE tokens, fp32 arithmetic, fp64 sums. */
#include <math.h>

#include "cpu_kernels.h"

#define ROW_TILE 16

static int64_t tile_end(int64_t tile, int64_t n)
{
    int64_t end = (tile + 1) * ROW_TILE;
    return end < n ? end : n;
}

/* ---- rmsnorm ---- */

typedef struct {
    const dpq_tensor *x, *dy;
    const float *gamma;
    double eps;
    int64_t groups;
    bool accumulate;
    dpq_tensor *dx;
} rmsnorm_job;

/* One vector: r = rsqrt(mean(x^2) + eps), t = gamma dy, dx = r t - x r^3 mean(t x). x, dy, old are rows in fp32; the
 * result takes the place of t in dy. OLD is NULL or added. */
DPQ_HOT static void rmsnorm_vector(const float *restrict x, float *restrict dy, const float *restrict old,
                                   const float *restrict gamma, double eps, int64_t n)
{
    double squares[DPQ_LANES] = {0}, products[DPQ_LANES] = {0};
    for (int64_t i = 0; i < n; i++) {
        dy[i] *= gamma[i];
    }
    int64_t i = 0;
    for (; i + DPQ_LANES <= n; i += DPQ_LANES) {
        for (int l = 0; l < DPQ_LANES; l++) {
            squares[l] += (double)x[i + l] * (double)x[i + l];
            products[l] += (double)x[i + l] * (double)dy[i + l];
        }
    }
    for (int l = 0; i + l < n; l++) {
        squares[l] += (double)x[i + l] * (double)x[i + l];
        products[l] += (double)x[i + l] * (double)dy[i + l];
    }
    double r = 1.0 / sqrt(dpq_lanes_total_f64(squares) / (double)n + eps);
    float factor = (float)r;
    float along = (float)(r * r * r * (dpq_lanes_total_f64(products) / (double)n));
    for (int64_t j = 0; j < n; j++) {
        dy[j] = factor * dy[j] - x[j] * along;
    }
    if (old != NULL) {
        for (int64_t j = 0; j < n; j++) {
            dy[j] += old[j];
        }
    }
}

DPQ_HOT static void load_row(const void *row, dpq_dtype dtype, int64_t n, float *dst)
{
    dpq_row_load(row, dtype, n, dst);
}

DPQ_HOT static void store_row(const float *src, int64_t n, dpq_dtype dtype, void *row)
{
    dpq_row_store(src, n, dtype, row);
}

static dpq_status rmsnorm_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    const rmsnorm_job *job = context;
    int64_t columns = job->x->dim[1], width = columns / job->groups;
    dpq_dtype dtype = job->x->dtype;
    void *memory;
    DPQ_TRY(dpq_workspace_alloc(ws, 3 * columns, sizeof(float), &memory));
    float *x = memory, *dy = x + columns, *old = dy + columns;
    int64_t end = tile_end(tile, job->x->dim[0]);
    for (int64_t t = tile * ROW_TILE; t < end; t++) {
        load_row(dpq_row_at(job->x, t), dtype, columns, x);
        load_row(dpq_row_at(job->dy, t), dtype, columns, dy);
        if (job->accumulate) {
            load_row(dpq_row_at(job->dx, t), dtype, columns, old);
        }
        for (int64_t at = 0; at < columns; at += width) {
            rmsnorm_vector(x + at, dy + at, job->accumulate ? old + at : NULL, job->gamma, job->eps, width);
        }
        store_row(dy, columns, dtype, dpq_row_at(job->dx, t));
    }
    return DPQ_OK;
}

dpq_status dpq_rmsnorm_backward_cpu(dpq_backend *be, const dpq_tensor *x, const dpq_tensor *gamma, double eps,
                                    int64_t groups, const dpq_tensor *dy, bool accumulate, dpq_tensor *dx)
{
    rmsnorm_job job = {
        .x = x, .dy = dy, .gamma = gamma->data, .eps = eps, .groups = groups, .accumulate = accumulate, .dx = dx};
    return dpq_backend_parallel(be, dpq_tile_count(x->dim[0], ROW_TILE), rmsnorm_tile, &job);
}

/* ---- silu(gate) * up ---- */

typedef struct {
    const dpq_tensor *gate, *up, *dy;
    dpq_tensor *dgate, *dup;
} silu_job;

/* SCRATCH: 3 * n floats; the gradients may take the place of gate and up. */
DPQ_HOT static void silu_row(const void *gate, const void *up, const void *dy, int64_t n, dpq_dtype dtype,
                             float *scratch, void *dgate, void *dup)
{
    float *restrict g = scratch;
    float *restrict u = scratch + n;
    float *restrict d = scratch + 2 * n;
    dpq_row_load(gate, dtype, n, g);
    dpq_row_load(up, dtype, n, u);
    dpq_row_load(dy, dtype, n, d);
    for (int64_t i = 0; i < n; i++) {
        /* sigmoid of g and of -g, both without cancellation */
        float small = dpq_exp_f32(-fabsf(g[i]));
        float above = 1.0f / (1.0f + small), below = small * above;
        float sigmoid = g[i] < 0.0f ? below : above, rest = g[i] < 0.0f ? above : below;
        float through_gate = d[i] * u[i] * sigmoid * (1.0f + g[i] * rest);
        u[i] = d[i] * (g[i] * sigmoid);
        g[i] = through_gate;
    }
    dpq_row_store(g, n, dtype, dgate);
    dpq_row_store(u, n, dtype, dup);
}

static dpq_status silu_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    const silu_job *job = context;
    int64_t columns = job->gate->dim[1];
    void *scratch;
    DPQ_TRY(dpq_workspace_alloc(ws, 3 * columns, sizeof(float), &scratch));
    int64_t end = tile_end(tile, job->gate->dim[0]);
    for (int64_t t = tile * ROW_TILE; t < end; t++) {
        silu_row(dpq_row_at(job->gate, t), dpq_row_at(job->up, t), dpq_row_at(job->dy, t), columns, job->gate->dtype,
                 scratch, dpq_row_at(job->dgate, t), dpq_row_at(job->dup, t));
    }
    return DPQ_OK;
}

dpq_status dpq_silu_mul_backward_cpu(dpq_backend *be, const dpq_tensor *gate, const dpq_tensor *up,
                                     const dpq_tensor *dy, dpq_tensor *dgate, dpq_tensor *dup)
{
    silu_job job = {.gate = gate, .up = up, .dy = dy, .dgate = dgate, .dup = dup};
    return dpq_backend_parallel(be, dpq_tile_count(gate->dim[0], ROW_TILE), silu_tile, &job);
}
