/* SPDX-License-Identifier: Apache-2.0 */
/* Squared error of one sample and its gradient on the CPU, without its largest elements when asked. Which elements
 * these are is found exactly: magnitudes are ordered as their bits are, so three rounds of counts (11, 10 and 10 bits)
 * give the smallest magnitude that is dropped, and the last counts say how many equal ones each tile of rows holds. */
#include <math.h>

#include "cpu_kernels.h"

#define ROW_TILE 16
#define MAX_BINS 2048

typedef struct {
    const dpq_tensor *y, *target;
    int64_t rows, tiles; /* rows that count, and tiles of them */
    float factor;
    dpq_tensor *dy;
    double *row_loss; /* of every row that counts */
    /* selection */
    bool selecting;
    uint32_t prefix;  /* the bits known so far; in the end the smallest magnitude dropped */
    int shift, width; /* bits looked at in this round */
    int32_t *counts;  /* MAX_BINS a tile */
    int64_t *ties;    /* a tile: elements equal to PREFIX that are dropped, the first ones */
} error_job;

/* Differences y - target of one row, in fp32. SCRATCH holds another N floats. */
DPQ_HOT static void difference_row(const void *y, dpq_dtype y_dtype, const void *target, dpq_dtype target_dtype,
                                   int64_t n, float *restrict difference, float *restrict scratch)
{
    dpq_row_load(y, y_dtype, n, difference);
    dpq_row_load(target, target_dtype, n, scratch);
    for (int64_t i = 0; i < n; i++) {
        difference[i] -= scratch[i];
    }
}

/* Magnitudes as integers. What is not finite comes last in order: it is never an outlier to drop, the loss shows it. */
DPQ_HOT static void key_row(const float *restrict difference, int64_t n, uint32_t *restrict key)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &difference[i], sizeof bits);
        bits &= 0x7fffffffu;
        key[i] = bits < 0x7f800000u ? bits : 0;
    }
}

DPQ_HOT static double loss_row(const float *restrict difference, int64_t n)
{
    double lanes[DPQ_LANES] = {0};
    int64_t i = 0;
    for (; i + DPQ_LANES <= n; i += DPQ_LANES) {
        for (int l = 0; l < DPQ_LANES; l++) {
            lanes[l] += (double)difference[i + l] * (double)difference[i + l];
        }
    }
    for (int l = 0; i + l < n; l++) {
        lanes[l] += (double)difference[i + l] * (double)difference[i + l];
    }
    return dpq_lanes_total_f64(lanes);
}

DPQ_HOT static void gradient_row(float *restrict difference, float factor, int64_t n, dpq_dtype dtype, void *dy)
{
    for (int64_t i = 0; i < n; i++) {
        difference[i] *= factor;
    }
    dpq_row_store(difference, n, dtype, dy);
}

/* Zero the differences whose key is above PREFIX, and the first *TIES of those equal to it. */
static void drop_row(float *difference, const uint32_t *key, uint32_t prefix, int64_t n, int64_t *ties)
{
    for (int64_t i = 0; i < n; i++) {
        if (key[i] < prefix || !isfinite(difference[i])) {
            continue;
        }
        if (key[i] > prefix) {
            difference[i] = 0.0f;
        } else if (*ties > 0) {
            difference[i] = 0.0f;
            (*ties)--;
        }
    }
}

static dpq_status borrow_rows(const error_job *job, dpq_workspace *ws, float **difference, float **scratch,
                              uint32_t **key)
{
    int64_t n = job->y->dim[1];
    void *memory;
    DPQ_TRY(dpq_workspace_alloc(ws, 3 * n, sizeof(float), &memory));
    *difference = memory;
    *scratch = *difference + n;
    *key = (uint32_t *)memory + 2 * n;
    return DPQ_OK;
}

/* Counts of the bits looked at, among the elements of this tile that have the known ones. */
static dpq_status count_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    const error_job *job = context;
    int64_t n = job->y->dim[1];
    int32_t *counts = job->counts + tile * MAX_BINS;
    float *difference, *scratch;
    uint32_t *key;
    DPQ_TRY(borrow_rows(job, ws, &difference, &scratch, &key));
    memset(counts, 0, MAX_BINS * sizeof *counts);
    uint32_t mask = (1u << job->width) - 1;
    int known = job->shift + job->width;
    for (int64_t t = tile * ROW_TILE; t < (tile + 1) * ROW_TILE && t < job->rows; t++) {
        difference_row(dpq_row_at(job->y, t), job->y->dtype, dpq_row_at(job->target, t), job->target->dtype, n,
                       difference, scratch);
        key_row(difference, n, key);
        for (int64_t i = 0; i < n; i++) {
            if (isfinite(difference[i]) && key[i] >> known == job->prefix >> known) {
                counts[(key[i] >> job->shift) & mask]++;
            }
        }
    }
    return DPQ_OK;
}

/* Find the bits of this round: the highest bin at which *wanted elements are reached; *wanted is what is left in it. */
static dpq_status select_round(dpq_backend *be, error_job *job, int shift, int width, int64_t *wanted)
{
    job->shift = shift;
    job->width = width;
    DPQ_TRY(dpq_backend_parallel(be, job->tiles, count_tile, job));
    for (int64_t bin = ((int64_t)1 << width) - 1; bin >= 0; bin--) {
        int64_t count = 0;
        for (int64_t tile = 0; tile < job->tiles; tile++) {
            count += job->counts[tile * MAX_BINS + bin];
        }
        if (count >= *wanted || bin == 0) {
            job->prefix |= (uint32_t)bin << shift;
            return DPQ_OK;
        }
        *wanted -= count;
    }
    return DPQ_OK;
}

static dpq_status select_largest(dpq_backend *be, error_job *job, int64_t suppress)
{
    dpq_workspace *ws = be->workspace[0];
    void *counts, *ties;
    DPQ_TRY(dpq_workspace_alloc(ws, job->tiles * MAX_BINS, sizeof(int32_t), &counts));
    DPQ_TRY(dpq_workspace_alloc(ws, job->tiles, sizeof(int64_t), &ties));
    job->counts = counts;
    job->ties = ties;
    int64_t wanted = suppress;
    DPQ_TRY(select_round(be, job, 20, 11, &wanted));
    DPQ_TRY(select_round(be, job, 10, 10, &wanted));
    DPQ_TRY(select_round(be, job, 0, 10, &wanted));
    for (int64_t tile = 0; tile < job->tiles; tile++) {
        int64_t equal = job->counts[tile * MAX_BINS + (job->prefix & 1023u)];
        job->ties[tile] = equal < wanted ? equal : wanted;
        wanted -= job->ties[tile];
    }
    job->selecting = true;
    return DPQ_OK;
}

static dpq_status error_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    const error_job *job = context;
    int64_t n = job->y->dim[1];
    float *difference, *scratch;
    uint32_t *key;
    DPQ_TRY(borrow_rows(job, ws, &difference, &scratch, &key));
    int64_t ties = job->selecting && tile < job->tiles ? job->ties[tile] : 0;
    for (int64_t t = tile * ROW_TILE; t < (tile + 1) * ROW_TILE && t < job->y->dim[0]; t++) {
        if (t >= job->rows) {
            memset(dpq_row_at(job->dy, t), 0, (size_t)n * dpq_dtype_bytes(job->dy->dtype));
            continue;
        }
        difference_row(dpq_row_at(job->y, t), job->y->dtype, dpq_row_at(job->target, t), job->target->dtype, n,
                       difference, scratch);
        if (job->selecting) {
            key_row(difference, n, key);
            drop_row(difference, key, job->prefix, n, &ties);
        }
        job->row_loss[t] = loss_row(difference, n);
        gradient_row(difference, job->factor, n, job->dy->dtype, dpq_row_at(job->dy, t));
    }
    return DPQ_OK;
}

dpq_status dpq_squared_error_cpu(dpq_backend *be, const dpq_tensor *y, const dpq_tensor *target, int64_t rows,
                                 int64_t suppress, double factor, dpq_tensor *dy, double *loss)
{
    error_job job = {.y = y, .target = target, .rows = rows, .dy = dy, .factor = (float)(2.0 * factor)};
    dpq_workspace_mark mark = dpq_workspace_get_mark(be->workspace[0]);
    dpq_status st = DPQ_OK;
    void *memory;
    job.tiles = dpq_tile_count(rows, ROW_TILE);
    DPQ_TRY_GOTO(st, dpq_workspace_alloc(be->workspace[0], rows, sizeof(double), &memory), done);
    job.row_loss = memory;
    if (suppress > 0) {
        DPQ_TRY_GOTO(st, select_largest(be, &job, suppress), done);
    }
    DPQ_TRY_GOTO(st, dpq_backend_parallel(be, dpq_tile_count(y->dim[0], ROW_TILE), error_tile, &job), done);
    double sum = 0.0;
    for (int64_t t = 0; t < rows; t++) {
        sum += job.row_loss[t];
    }
    *loss = sum;
done:
    dpq_workspace_release(be->workspace[0], mark);
    return st;
}
