/* SPDX-License-Identifier: Apache-2.0 */
/* Hessian sums x^T x in exact integers (docs/algorithms/exactness.md): one thread owns a tile of the lower triangle and
 * walks over the samples; each sample's product is rounded once, to a multiple of 2^(e_i + e_j), and added while it is
 * in cache. */
#include <math.h>

#include "cpu_gemm.h"
#include "cpu_kernels.h"

int64_t dpq_xtx_tiles_per_edge(int64_t k)
{
    return dpq_tile_count(k, DPQ_XTX_TILE);
}

int64_t dpq_xtx_count(int64_t k)
{
    int64_t edge = dpq_xtx_tiles_per_edge(k);
    return edge * (edge + 1) / 2 * DPQ_XTX_TILE * DPQ_XTX_TILE;
}

/* Row and column of tile INDEX in the order (0,0) (1,0) (1,1) (2,0) ... */
static void tile_position(int64_t index, int64_t *row, int64_t *col)
{
    int64_t i = 0;
    while ((i + 1) * (i + 2) / 2 <= index) {
        i++;
    }
    *row = i;
    *col = index - i * (i + 1) / 2;
}

/* sums += round(c * unit_row * unit_col), |value| < 2^62. The value is split at 2^24 into two parts that each fit the
 * integers a double holds in its low mantissa bits; both roundings are exact or the one that is wanted. Returns false
 * when a value is not finite. */
DPQ_HOT
static bool add_rounded(const float *restrict c, double unit_row, const double *restrict unit_col, int64_t n,
                        int64_t *restrict sums)
{
    const double split = 0x1p24, low_bits = 0x1.8p52;
    const uint64_t low_pattern = 0x4338000000000000;
    float poison = 0.0f;
    for (int64_t j = 0; j < n; j++) {
        double value = (double)c[j] * unit_row * unit_col[j];
        double high = rint(value * 0x1p-24);
        double low = rint(value - high * split) + low_bits;
        high += low_bits;
        uint64_t high_word, low_word; /* unsigned: what a non-finite value leaves here may wrap */
        memcpy(&high_word, &high, sizeof high);
        memcpy(&low_word, &low, sizeof low);
        sums[j] = (int64_t)((uint64_t)sums[j] + ((high_word - low_pattern) << 24) + (low_word - low_pattern));
    }
    for (int64_t j = 0; j < n; j++) {
        poison = c[j] - c[j] == 0.0f ? poison : 1.0f;
    }
    return poison == 0.0f;
}

/* Samples are packed a few at a time: each into panels of DPQ_XTX_TILE columns, contiguous and in the product's type,
 * so that tiles read dense memory and a widening is done once. */
#define PACK_BYTES (16 << 20)

typedef struct {
    dpq_backend *be;
    const dpq_tensor *x; /* samples of this round */
    int64_t n, k, panels;
    const int32_t *exponent;
    dpq_dtype dtype;
    char *packed;
    int64_t sample_elems; /* room of one sample in packed */
    int64_t *sums;
} xtx_job;

static int64_t panel_width(const xtx_job *job, int64_t panel)
{
    int64_t rest = job->k - panel * DPQ_XTX_TILE;
    return rest < DPQ_XTX_TILE ? rest : DPQ_XTX_TILE;
}

static char *panel_at(const xtx_job *job, int64_t sample, int64_t panel)
{
    int64_t before = sample * job->sample_elems + panel * DPQ_XTX_TILE * job->x[sample].dim[0];
    return job->packed + (size_t)before * dpq_dtype_bytes(job->dtype);
}

static dpq_status pack_panel(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const xtx_job *job = context;
    (void)thread;
    (void)ws;
    int64_t sample = i / job->panels, panel = i % job->panels, width = panel_width(job, panel);
    const dpq_tensor *x = &job->x[sample];
    char *to = panel_at(job, sample, panel);
    size_t from_elem = dpq_dtype_bytes(x->dtype), to_elem = dpq_dtype_bytes(job->dtype);
    for (int64_t t = 0; t < x->dim[0]; t++) {
        const char *row = (const char *)dpq_row_at(x, t) + (size_t)(panel * DPQ_XTX_TILE) * from_elem;
        if (x->dtype == job->dtype) {
            memcpy(to + (size_t)(t * width) * to_elem, row, (size_t)width * to_elem);
        } else {
            dpq_row_load(row, x->dtype, width, (float *)to + t * width);
        }
    }
    return DPQ_OK;
}

static dpq_status add_sample(const xtx_job *job, int64_t sample, int64_t row, int64_t col, const double *unit_row,
                             const double *unit_col, int thread, float *c, int64_t *sums)
{
    int64_t rows = panel_width(job, row), cols = panel_width(job, col);
    const dpq_gemm_shape shape = {.m = rows,
                                  .n = cols,
                                  .k = job->x[sample].dim[0],
                                  .lda = rows,
                                  .ldb = cols,
                                  .ldc = cols,
                                  .a_transposed = true,
                                  .dtype = job->dtype};
    DPQ_TRY(dpq_gemm_run(job->be->gemm[thread], &shape, panel_at(job, sample, row), panel_at(job, sample, col), c));
    for (int64_t r = 0; r < rows; r++) {
        if (!add_rounded(c + r * cols, unit_row[r], unit_col, cols, sums + r * DPQ_XTX_TILE)) {
            return DPQ_RAISE(DPQ_E_NUMERIC, "sum of products of input channel %lld is not finite",
                             (long long)(row * DPQ_XTX_TILE + r));
        }
    }
    return DPQ_OK;
}

static dpq_status xtx_tile(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const xtx_job *job = context;
    int64_t row, col;
    tile_position(i, &row, &col);
    double unit_row[DPQ_XTX_TILE], unit_col[DPQ_XTX_TILE];
    for (int64_t j = 0; j < DPQ_XTX_TILE; j++) {
        int64_t r = row * DPQ_XTX_TILE + j, c = col * DPQ_XTX_TILE + j;
        unit_row[j] = ldexp(1.0, r < job->k ? -job->exponent[r] : 0);
        unit_col[j] = ldexp(1.0, c < job->k ? -job->exponent[c] : 0);
    }
    void *product;
    DPQ_TRY(dpq_workspace_alloc(ws, DPQ_XTX_TILE * DPQ_XTX_TILE, sizeof(float), &product));
    for (int64_t s = 0; s < job->n; s++) {
        DPQ_TRY(add_sample(job, s, row, col, unit_row, unit_col, thread, product,
                           job->sums + i * DPQ_XTX_TILE * DPQ_XTX_TILE));
    }
    return DPQ_OK;
}

static int64_t longest(const dpq_tensor *x, int64_t n)
{
    int64_t most = 0;
    for (int64_t s = 0; s < n; s++) {
        most = x[s].dim[0] > most ? x[s].dim[0] : most;
    }
    return most;
}

dpq_status dpq_xtx_accumulate_cpu(dpq_backend *be, const dpq_tensor *x, int64_t n, const int32_t *exponent,
                                  dpq_compute compute, int64_t *sums)
{
    if (n == 0) {
        return DPQ_OK;
    }
    xtx_job job = {
        .be = be, .k = x[0].dim[1], .panels = dpq_xtx_tiles_per_edge(x[0].dim[1]), .exponent = exponent, .sums = sums};
    job.dtype = dpq_product_dtype(x[0].dtype, x[0].dtype, compute);
    job.sample_elems = longest(x, n) * job.k;
    int64_t round = PACK_BYTES / (job.sample_elems * (int64_t)dpq_dtype_bytes(job.dtype));
    round = round < 1 ? 1 : round < n ? round : n;
    dpq_workspace_mark mark = dpq_workspace_get_mark(be->workspace[0]);
    void *packed;
    DPQ_TRY(dpq_workspace_alloc(be->workspace[0], round * job.sample_elems, dpq_dtype_bytes(job.dtype), &packed));
    job.packed = packed;
    dpq_status st = DPQ_OK;
    for (int64_t done = 0; done < n && st == DPQ_OK; done += job.n) {
        job.x = x + done;
        job.n = n - done < round ? n - done : round;
        st = dpq_backend_parallel(be, job.n * job.panels, pack_panel, &job);
        if (st == DPQ_OK) {
            st = dpq_backend_parallel(be, job.panels * (job.panels + 1) / 2, xtx_tile, &job);
        }
    }
    dpq_workspace_release(be->workspace[0], mark);
    return st;
}

typedef struct {
    const int64_t *sums;
    const int32_t *exponent;
    double scale;
    dpq_tensor *h;
} expand_job;

static void put(dpq_tensor *h, int64_t i, int64_t j, double value)
{
    if (h->dtype == DPQ_DTYPE_F64) {
        ((double *)dpq_row_at(h, i))[j] = value;
    } else {
        ((float *)dpq_row_at(h, i))[j] = (float)value;
    }
}

static dpq_status expand_tile(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    const expand_job *job = context;
    (void)thread;
    (void)ws;
    int64_t row, col, k = job->h->dim[0];
    tile_position(i, &row, &col);
    for (int64_t r = 0; r < DPQ_XTX_TILE && row * DPQ_XTX_TILE + r < k; r++) {
        const int64_t *sums = job->sums + (i * DPQ_XTX_TILE + r) * DPQ_XTX_TILE;
        int64_t y = row * DPQ_XTX_TILE + r;
        for (int64_t c = 0; c < DPQ_XTX_TILE && col * DPQ_XTX_TILE + c <= y; c++) {
            int64_t x = col * DPQ_XTX_TILE + c;
            double value = ldexp((double)sums[c], job->exponent[y] + job->exponent[x]) * job->scale;
            put(job->h, y, x, value);
            put(job->h, x, y, value);
        }
    }
    return DPQ_OK;
}

dpq_status dpq_xtx_expand_cpu(dpq_backend *be, const int64_t *sums, const int32_t *exponent, double scale,
                              dpq_tensor *h)
{
    expand_job job = {.sums = sums, .exponent = exponent, .scale = scale, .h = h};
    int64_t edge = dpq_xtx_tiles_per_edge(h->dim[0]);
    return dpq_backend_parallel(be, edge * (edge + 1) / 2, expand_tile, &job);
}
