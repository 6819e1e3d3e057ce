/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a quantized linear as a loader will see them: rounded to the model's type. */
#include "engine_priv.h"

#define TILE_ROWS 64

typedef struct {
    const dpq_qweight *q;
    dpq_tensor *dst;
} dequantize_job;

static dpq_status dequantize_tile(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const dequantize_job *job = context;
    (void)thread;
    int64_t begin = i * TILE_ROWS;
    int64_t end = begin + TILE_ROWS < job->q->n ? begin + TILE_ROWS : job->q->n;
    dpq_tensor rows = dpq_tensor_rows(job->dst, begin, end);
    if (rows.dtype != DPQ_DTYPE_F16) {
        return dpq_qweight_dequantize(job->q, begin, end, &rows);
    }
    void *wide;
    DPQ_TRY(dpq_workspace_alloc(ws, (end - begin) * job->q->k, sizeof(float), &wide));
    dpq_tensor values = dpq_tensor_wrap_2d(wide, DPQ_DTYPE_F32, end - begin, job->q->k);
    DPQ_TRY(dpq_qweight_dequantize(job->q, begin, end, &values));
    return dpq_convert(wide, DPQ_DTYPE_F32, rows.data, DPQ_DTYPE_F16, dpq_tensor_count(&rows));
}

dpq_status dpq_engine_dequantize(dpq_backend *be, const dpq_qweight *q, dpq_tensor *dst)
{
    dequantize_job job = {.q = q, .dst = dst};
    return dpq_backend_parallel(be, (q->n + TILE_ROWS - 1) / TILE_ROWS, dequantize_tile, &job);
}
