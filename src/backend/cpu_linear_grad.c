/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of linear layers on the CPU: of the input, in tiles of the result as in cpu_linear.c; of the weight, as
 * exact integer sums: one thread owns a tile, whose product is rounded and added while it is in cache. */
#include <float.h>
#include <math.h>

#include "cpu_gemm.h"
#include "cpu_kernels.h"

/* Tiles of a result. Fixed, so that threads never shape a product. */
#define TILE_TOKENS 256
#define TILE_COLS   192 /* at most */
#define TILE_ROWS   192 /* of a weight, at most */

/* ---- gradient of the input ---- */

typedef struct {
    dpq_backend *be;
    const void *dy; /* (T,N), rows of ldy, in the product's type */
    int64_t ldy;
    const dpq_tensor *w;
    bool accumulate;
    dpq_tensor *dx;
    int64_t tile_cols, tiles_k;
} backward_job;

DPQ_HOT
static void store_row(const float *restrict c, bool accumulate, int64_t n, dpq_dtype dtype, void *restrict dx)
{
    float row[TILE_COLS];
    if (accumulate) {
        dpq_row_load(dx, dtype, n, row);
        for (int64_t j = 0; j < n; j++) {
            row[j] += c[j];
        }
        dpq_row_store(row, n, dtype, dx);
    } else {
        dpq_row_store(c, n, dtype, dx);
    }
}

static dpq_status backward_tile(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const backward_job *job = context;
    const dpq_tensor *w = job->w;
    int64_t row0 = i / job->tiles_k * TILE_TOKENS;
    int64_t col0 = i % job->tiles_k * job->tile_cols;
    int64_t rows = job->dx->dim[0] - row0 < TILE_TOKENS ? job->dx->dim[0] - row0 : TILE_TOKENS;
    int64_t cols = w->dim[1] - col0 < job->tile_cols ? w->dim[1] - col0 : job->tile_cols;
    size_t elem = dpq_dtype_bytes(w->dtype);
    void *memory;
    DPQ_TRY(dpq_workspace_alloc(ws, rows * cols, sizeof(float), &memory));
    float *c = memory;
    const dpq_gemm_shape shape = {
        .m = rows, .n = cols, .k = w->dim[0], .lda = job->ldy, .ldb = w->stride[0], .ldc = cols, .dtype = w->dtype};
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &shape, (const char *)job->dy + (size_t)(row0 * job->ldy) * elem,
                         (const char *)w->data + (size_t)col0 * elem, c));
    for (int64_t r = 0; r < rows; r++) {
        char *dx = (char *)dpq_row_at(job->dx, row0 + r) + (size_t)col0 * dpq_dtype_bytes(job->dx->dtype);
        store_row(c + r * cols, job->accumulate, cols, job->dx->dtype, dx);
    }
    return DPQ_OK;
}

dpq_status dpq_linear_backward_cpu(dpq_backend *be, const dpq_tensor *dy, const dpq_weight *weight, bool accumulate,
                                   dpq_tensor *dx)
{
    backward_job job = {.be = be, .w = &weight->w, .accumulate = accumulate, .dx = dx};
    dpq_workspace_mark mark = dpq_workspace_get_mark(be->workspace[0]);
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_operand_cpu(be, dy, weight->w.dtype, &job.dy, &job.ldy), done);
    job.tile_cols = dpq_tile_even(weight->w.dim[1], TILE_COLS);
    job.tiles_k = dpq_tile_count(weight->w.dim[1], job.tile_cols);
    st = dpq_backend_parallel(be, dpq_tile_count(dy->dim[0], TILE_TOKENS) * job.tiles_k, backward_tile, &job);
done:
    dpq_workspace_release(be->workspace[0], mark);
    return st;
}

/* ---- gradient of the weight ---- */

typedef struct {
    dpq_backend *be;
    const void *dy, *x; /* (T,N), (T,K) in the product's type */
    int64_t ldy, ldx, tokens, n, k, tile_rows, tile_cols, tiles_k;
    dpq_dtype dtype;
    float unit[2]; /* their product is 2^-exponent */
    float limit;
    int32_t *sums;
    uint32_t *peak; /* bits of the largest magnitude of each tile */
} gradient_job;

/* sums += rint(c * 2^-exponent), clamped to the limit, beyond which the caller does not use them. Returns the bits of
 * the largest |c|: non-negative numbers are ordered as their bits are, infinity and NaN last. */
DPQ_HOT
static uint32_t add_rounded(const float *restrict c, float unit0, float unit1, float limit, int64_t n,
                            int32_t *restrict sums)
{
    uint32_t peak = 0;
    for (int64_t j = 0; j < n; j++) {
        float value = c[j] * unit0 * unit1; /* exact, or so small that it rounds to 0, or beyond the limit */
        uint32_t bits;
        memcpy(&bits, &c[j], sizeof bits);
        bits &= 0x7fffffffu;
        peak = bits > peak ? bits : peak;
        value = value < limit ? value : limit;
        value = value > -limit ? value : -limit;
        sums[j] = (int32_t)((uint32_t)sums[j] + (uint32_t)(int32_t)rintf(value));
    }
    return peak;
}

static dpq_status gradient_tile(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const gradient_job *job = context;
    int64_t row0 = i / job->tiles_k * job->tile_rows;
    int64_t col0 = i % job->tiles_k * job->tile_cols;
    int64_t rows = job->n - row0 < job->tile_rows ? job->n - row0 : job->tile_rows;
    int64_t cols = job->k - col0 < job->tile_cols ? job->k - col0 : job->tile_cols;
    size_t elem = dpq_dtype_bytes(job->dtype);
    void *memory;
    DPQ_TRY(dpq_workspace_alloc(ws, rows * cols, sizeof(float), &memory));
    float *c = memory;
    const dpq_gemm_shape shape = {.m = rows,
                                  .n = cols,
                                  .k = job->tokens,
                                  .lda = job->ldy,
                                  .ldb = job->ldx,
                                  .ldc = cols,
                                  .a_transposed = true,
                                  .dtype = job->dtype};
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &shape, (const char *)job->dy + (size_t)row0 * elem,
                         (const char *)job->x + (size_t)col0 * elem, c));
    uint32_t peak = 0, largest_finite;
    const float largest = FLT_MAX;
    memcpy(&largest_finite, &largest, sizeof largest_finite);
    for (int64_t r = 0; r < rows; r++) {
        uint32_t row = add_rounded(c + r * cols, job->unit[0], job->unit[1], job->limit, cols,
                                   job->sums + (row0 + r) * job->k + col0);
        if (row > largest_finite) {
            return DPQ_RAISE(DPQ_E_NUMERIC, "weight_gradient: gradient of output channel %lld is not finite",
                             (long long)(row0 + r));
        }
        peak = row > peak ? row : peak;
    }
    job->peak[i] = peak;
    return DPQ_OK;
}

dpq_status dpq_weight_gradient_cpu(dpq_backend *be, const dpq_tensor *dy, const dpq_tensor *x, dpq_compute compute,
                                   int exponent, double limit, int32_t *sums, double *peak)
{
    gradient_job job = {.be = be, .tokens = x->dim[0], .n = dy->dim[1], .k = x->dim[1], .sums = sums};
    dpq_workspace_mark mark = dpq_workspace_get_mark(be->workspace[0]);
    dpq_status st = DPQ_OK;
    job.dtype = dpq_product_dtype(x->dtype, x->dtype, compute);
    job.unit[0] = ldexpf(1.0f, -(exponent / 2));
    job.unit[1] = ldexpf(1.0f, -(exponent - exponent / 2));
    job.limit = (float)limit;
    job.tile_cols = dpq_tile_even(job.k, TILE_COLS);
    job.tile_rows = dpq_tile_even(job.n, TILE_ROWS);
    job.tiles_k = dpq_tile_count(job.k, job.tile_cols);
    int64_t tiles = dpq_tile_count(job.n, job.tile_rows) * job.tiles_k;
    void *memory;
    DPQ_TRY_GOTO(st, dpq_operand_cpu(be, dy, job.dtype, &job.dy, &job.ldy), done);
    DPQ_TRY_GOTO(st, dpq_operand_cpu(be, x, job.dtype, &job.x, &job.ldx), done);
    DPQ_TRY_GOTO(st, dpq_workspace_alloc(be->workspace[0], tiles, sizeof(uint32_t), &memory), done);
    job.peak = memory;
    DPQ_TRY_GOTO(st, dpq_backend_parallel(be, tiles, gradient_tile, &job), done);
    uint32_t all = 0;
    for (int64_t i = 0; i < tiles; i++) {
        all = job.peak[i] > all ? job.peak[i] : all;
    }
    float value;
    memcpy(&value, &all, sizeof value);
    *peak = (double)value;
done:
    dpq_workspace_release(be->workspace[0], mark);
    return st;
}
