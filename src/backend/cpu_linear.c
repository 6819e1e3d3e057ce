/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers on the CPU: tiles of the output, each one product and one pass that adds bias and residual and rounds
 * once. */
#include "cpu_gemm.h"
#include "cpu_kernels.h"

/* Tile of the output. Fixed, so that threads never shape a product. */
#define TILE_ROWS 256
#define TILE_COLS 192 /* at most */

typedef struct {
    dpq_backend *be;
    const void *x; /* (T,K) contiguous rows of ldx, in the product's type */
    int64_t ldx;
    const dpq_weight *weight;
    bool accumulate;
    dpq_tensor *y;
    int64_t tile_cols, tiles_n;
} linear_job;

DPQ_HOT
static void store_tile_row(const float *restrict c, const float *restrict bias, bool accumulate, int64_t n,
                           dpq_dtype dtype, void *restrict y)
{
    float row[TILE_COLS];
    if (accumulate) {
        dpq_row_load(y, dtype, n, row);
    } else {
        memset(row, 0, sizeof row);
    }
    for (int64_t j = 0; j < n; j++) {
        row[j] += c[j];
    }
    if (bias != NULL) {
        for (int64_t j = 0; j < n; j++) {
            row[j] += bias[j];
        }
    }
    dpq_row_store(row, n, dtype, y);
}

static dpq_status linear_tile(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const linear_job *job = context;
    const dpq_tensor *w = &job->weight->w;
    int64_t row0 = i / job->tiles_n * TILE_ROWS;
    int64_t col0 = i % job->tiles_n * job->tile_cols;
    int64_t rows = job->y->dim[0] - row0 < TILE_ROWS ? job->y->dim[0] - row0 : TILE_ROWS;
    int64_t cols = w->dim[0] - col0 < job->tile_cols ? w->dim[0] - col0 : job->tile_cols;
    size_t elem = dpq_dtype_bytes(w->dtype);
    void *memory;
    DPQ_TRY(dpq_workspace_alloc(ws, rows * cols, sizeof(float), &memory));
    float *c = memory;
    const dpq_gemm_shape shape = {.m = rows,
                                  .n = cols,
                                  .k = w->dim[1],
                                  .lda = job->ldx,
                                  .ldb = w->stride[0],
                                  .ldc = cols,
                                  .b_transposed = true,
                                  .dtype = w->dtype};
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &shape, (const char *)job->x + (size_t)(row0 * job->ldx) * elem,
                         dpq_row_at(w, col0), c));
    const float *bias = job->weight->bias.data;
    for (int64_t r = 0; r < rows; r++) {
        char *y = (char *)dpq_row_at(job->y, row0 + r) + (size_t)col0 * dpq_dtype_bytes(job->y->dtype);
        store_tile_row(c + r * cols, bias == NULL ? NULL : bias + col0, job->accumulate, cols, job->y->dtype, y);
    }
    return DPQ_OK;
}

dpq_status dpq_widen_cpu(dpq_backend *be, const dpq_tensor *x, float **out)
{
    void *memory;
    DPQ_TRY(dpq_workspace_alloc(be->workspace[0], x->dim[0] * x->dim[1], sizeof(float), &memory));
    for (int64_t t = 0; t < x->dim[0]; t++) {
        DPQ_TRY(dpq_convert(dpq_row_at(x, t), x->dtype, (float *)memory + t * x->dim[1], DPQ_DTYPE_F32, x->dim[1]));
    }
    *out = memory;
    return DPQ_OK;
}

dpq_status dpq_operand_cpu(dpq_backend *be, const dpq_tensor *x, dpq_dtype dtype, const void **data, int64_t *ld)
{
    *data = x->data;
    *ld = x->stride[0];
    if (x->dtype != dtype) {
        float *wide;
        DPQ_TRY(dpq_widen_cpu(be, x, &wide));
        *data = wide;
        *ld = x->dim[1];
    }
    return DPQ_OK;
}

dpq_status dpq_linear_cpu(dpq_backend *be, const dpq_tensor *x, const dpq_weight *weight, bool accumulate,
                          dpq_tensor *y)
{
    linear_job job = {.be = be, .weight = weight, .accumulate = accumulate, .y = y};
    dpq_workspace_mark mark = dpq_workspace_get_mark(be->workspace[0]);
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_operand_cpu(be, x, weight->w.dtype, &job.x, &job.ldx), done);
    job.tile_cols = dpq_tile_even(weight->w.dim[0], TILE_COLS);
    job.tiles_n = dpq_tile_count(weight->w.dim[0], job.tile_cols);
    st = dpq_backend_parallel(be, dpq_tile_count(x->dim[0], TILE_ROWS) * job.tiles_n, linear_tile, &job);
done:
    dpq_workspace_release(be->workspace[0], mark);
    return st;
}
