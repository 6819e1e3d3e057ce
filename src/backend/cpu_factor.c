/* SPDX-License-Identifier: Apache-2.0 */
/* Factor of the inverse Hessian on the CPU: U with U^T U = inv(h), upper. With P the reversal of the order, P h P = L
 * L^T and U = P inv(L) P, so one factorisation and one triangular inverse do, a third of the work of inverting h and
 * factoring again. Fixed tiles; the library's single-threaded routine inside a tile; threads over tiles: the bits do
 * not depend on threads. */
#include <cblas.h>
#include <lapacke.h>
#include <math.h>

#include "cpu_gemm.h"
#include "cpu_kernels.h"

#define TILE 128

typedef struct {
    dpq_tensor *h;
    int64_t n, tiles;
    int64_t step; /* tile column being worked on */
    void *column; /* copy of the tile column below the diagonal, (n, TILE) */
    size_t elem;
} factor_job;

static int64_t tile_size(const factor_job *job, int64_t tile)
{
    int64_t rest = job->n - tile * TILE;
    return rest < TILE ? rest : TILE;
}

static void *tile_at(const factor_job *job, int64_t row, int64_t col)
{
    return (char *)dpq_row_at(job->h, row * TILE) + (size_t)(col * TILE) * job->elem;
}

/* c = beta c + alpha a b(^T) in h's type. */
static dpq_status tile_product(const factor_job *job, bool b_transposed, int64_t m, int64_t n, int64_t k, double alpha,
                               const void *a, int64_t lda, const void *b, int64_t ldb, double beta, void *c,
                               int64_t ldc)
{
    if (job->elem == sizeof(float)) {
        return dpq_sgemm(false, b_transposed, m, n, k, (float)alpha, a, lda, b, ldb, (float)beta, c, ldc);
    }
    cblas_dgemm(CblasRowMajor, CblasNoTrans, b_transposed ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a,
                (int)lda, b, (int)ldb, beta, c, (int)ldc);
    return DPQ_OK;
}

/* Reverse rows and columns: the flat order of a contiguous square matrix read backwards. */
static void reverse_f32(float *x, int64_t count)
{
    for (int64_t i = 0, j = count - 1; i < j; i++, j--) {
        float t = x[i];
        x[i] = x[j];
        x[j] = t;
    }
}

static void reverse_f64(double *x, int64_t count)
{
    for (int64_t i = 0, j = count - 1; i < j; i++, j--) {
        double t = x[i];
        x[i] = x[j];
        x[j] = t;
    }
}

static void reverse(const factor_job *job)
{
    if (job->elem == sizeof(float)) {
        reverse_f32(job->h->data, job->n * job->n);
    } else {
        reverse_f64(job->h->data, job->n * job->n);
    }
}

/* Lower factor of a diagonal tile. Row-major lower is column-major upper: no transposed copies. */
static bool factor_diagonal(const factor_job *job, int64_t tile)
{
    int n = (int)tile_size(job, tile), ld = (int)job->n;
    void *a = tile_at(job, tile, tile);
    int info = job->elem == sizeof(float) ? LAPACKE_spotrf_work(LAPACK_COL_MAJOR, 'U', n, a, ld)
                                          : LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', n, a, ld);
    for (int i = 0; i < n && info == 0; i++) {
        double pivot =
            job->elem == sizeof(float) ? (double)((float *)a)[(int64_t)i * ld + i] : ((double *)a)[(int64_t)i * ld + i];
        info = isfinite(pivot) && pivot > 0 ? 0 : 1;
    }
    return info == 0;
}

/* Tile row i of the panel: A_ik inv(L_kk)^T. */
static dpq_status panel_tile(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const factor_job *job = context;
    (void)thread;
    (void)ws;
    int64_t row = job->step + 1 + i;
    int m = (int)tile_size(job, row), n = (int)tile_size(job, job->step), ld = (int)job->n;
    if (job->elem == sizeof(float)) {
        cblas_strsm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, m, n, 1.0f,
                    tile_at(job, job->step, job->step), ld, tile_at(job, row, job->step), ld);
    } else {
        cblas_dtrsm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, m, n, 1.0,
                    tile_at(job, job->step, job->step), ld, tile_at(job, row, job->step), ld);
    }
    return DPQ_OK;
}

/* Tile i of the trailing lower triangle: A_rc -= L_rk L_ck^T. */
static dpq_status update_tile(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const factor_job *job = context;
    (void)thread;
    (void)ws;
    int64_t r = 0;
    while ((r + 1) * (r + 2) / 2 <= i) {
        r++;
    }
    int64_t row = job->step + 1 + r, col = job->step + 1 + i - r * (r + 1) / 2;
    return tile_product(job, true, tile_size(job, row), tile_size(job, col), tile_size(job, job->step), -1.0,
                        tile_at(job, row, job->step), job->n, tile_at(job, col, job->step), job->n, 1.0,
                        tile_at(job, row, col), job->n);
}

static dpq_status cholesky(dpq_backend *be, factor_job *job, bool *positive)
{
    *positive = true;
    for (job->step = 0; job->step < job->tiles; job->step++) {
        int64_t below = job->tiles - job->step - 1;
        if (!factor_diagonal(job, job->step)) {
            *positive = false;
            return DPQ_OK;
        }
        DPQ_TRY(dpq_backend_parallel(be, below, panel_tile, job));
        DPQ_TRY(dpq_backend_parallel(be, below * (below + 1) / 2, update_tile, job));
    }
    return DPQ_OK;
}

/* Tile row i below the diagonal of the column being inverted: -(sum_k X_ik L_kj) X_jj, X the inverse found so far. */
static dpq_status inverse_tile(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const factor_job *job = context;
    (void)thread;
    int64_t row = job->step + 1 + i, rows = tile_size(job, row), cols = tile_size(job, job->step);
    int64_t inner = row * TILE + rows - (job->step + 1) * TILE;
    void *sum;
    DPQ_TRY(dpq_workspace_alloc(ws, rows * cols, job->elem, &sum));
    DPQ_TRY(tile_product(job, false, rows, cols, inner, 1.0, tile_at(job, row, job->step + 1), job->n, job->column,
                         TILE, 0.0, sum, cols));
    return tile_product(job, false, rows, cols, cols, -1.0, sum, cols, tile_at(job, job->step, job->step), job->n, 0.0,
                        tile_at(job, row, job->step), job->n);
}

/* What is left of the upper half of a diagonal tile is cleared: products read whole tiles. */
static void clear_upper(const factor_job *job, int64_t tile)
{
    for (int64_t r = 0; r < tile_size(job, tile); r++) {
        int64_t row = tile * TILE + r;
        memset((char *)dpq_row_at(job->h, row) + (size_t)(row + 1) * job->elem, 0,
               (size_t)(job->n - row - 1) * job->elem);
    }
}

/* L to inv(L) in place, tile columns from the last to the first. */
static dpq_status triangular_inverse(dpq_backend *be, factor_job *job)
{
    for (job->step = job->tiles - 1; job->step >= 0; job->step--) {
        int n = (int)tile_size(job, job->step), ld = (int)job->n;
        clear_upper(job, job->step);
        for (int64_t row = (job->step + 1) * TILE; row < job->n; row++) {
            memcpy((char *)job->column + (size_t)((row - (job->step + 1) * TILE) * TILE) * job->elem,
                   (char *)dpq_row_at(job->h, row) + (size_t)(job->step * TILE) * job->elem, (size_t)n * job->elem);
        }
        void *diagonal = tile_at(job, job->step, job->step);
        int info = job->elem == sizeof(float) ? LAPACKE_strtri_work(LAPACK_COL_MAJOR, 'U', 'N', n, diagonal, ld)
                                              : LAPACKE_dtrtri_work(LAPACK_COL_MAJOR, 'U', 'N', n, diagonal, ld);
        if (info != 0) {
            return DPQ_RAISE(DPQ_E_BUG, "triangular inverse: LAPACK info %d", info);
        }
        DPQ_TRY(dpq_backend_parallel(be, job->tiles - job->step - 1, inverse_tile, job));
    }
    return DPQ_OK;
}

dpq_status dpq_inverse_factor_cpu(dpq_backend *be, dpq_tensor *h, bool *positive)
{
    factor_job job = {
        .h = h, .n = h->dim[0], .tiles = dpq_tile_count(h->dim[0], TILE), .elem = dpq_dtype_bytes(h->dtype)};
    dpq_status st = DPQ_OK;
    DPQ_TRY(dpq_alloc_array(job.n * TILE, job.elem, &job.column));
    reverse(&job);
    DPQ_TRY_GOTO(st, cholesky(be, &job, positive), done);
    if (*positive) {
        DPQ_TRY_GOTO(st, triangular_inverse(be, &job), done);
        reverse(&job);
    }
done:
    dpq_free(job.column);
    return st;
}

dpq_status dpq_subtract_product_cpu(dpq_backend *be, int thread, const dpq_tensor *a, const dpq_tensor *b,
                                    dpq_tensor *c)
{
    (void)be;
    (void)thread;
    return dpq_sgemm(false, false, a->dim[0], b->dim[1], a->dim[1], -1.0f, a->data, a->stride[0], b->data, b->stride[0],
                     1.0f, c->data, c->stride[0]);
}
