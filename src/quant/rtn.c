/* SPDX-License-Identifier: Apache-2.0 */
/* Round to nearest, group by group (docs/algorithms/rtn.md): the scale from min-max or from a search over factors on
 * the range, by plain or importance-weighted squared error. */
#include <inttypes.h>

#include "quant_priv.h"

static const char *const search_choices[] = {"minmax", "shrink", NULL};

#define AT(field) offsetof(dpq_algo_options, rtn.field)
const dpq_option dpq_rtn_option_table[] = {
    {"rtn.importance", DPQ_OPTION_BOOL, AT(importance), 0, 0, NULL, "true", true,
     "weight the shrink search by the sum of squared inputs of each column (needs calibration data)"},
    {"rtn.search", DPQ_OPTION_ENUM, AT(search.search), 0, 0, search_choices, "shrink", true,
     "scale of a group: its range as it is, or the factor on the range with the smallest squared error"},
    {"rtn.search_low", DPQ_OPTION_REAL, AT(search.low), 0.01, 4.0, NULL, "0.6", true,
     "smallest factor of the shrink search"},
    {"rtn.search_high", DPQ_OPTION_REAL, AT(search.high), 0.01, 4.0, NULL, "1.1", true,
     "largest factor of the shrink search"},
    {"rtn.search_steps", DPQ_OPTION_INT, AT(search.steps), 1, 10000, NULL, "51", true,
     "number of evenly spaced factors, both ends included"},
};
const size_t dpq_rtn_option_count = DPQ_COUNT_OF(dpq_rtn_option_table);
#undef AT

typedef struct {
    const dpq_search_options *search;
    const float *importance; /* (K) or NULL */
    const dpq_solve_input *input;
    int64_t begin, end;
    dpq_qweight *out;
} rtn_job;

/* Codes of one group, and its error and signal. */
DPQ_HOT static void round_group(const float *restrict w, int64_t width, float scale, float zero, float low, float high,
                                int8_t *restrict codes)
{
    for (int64_t j = 0; j < width; j++) {
        codes[j] = (int8_t)(int32_t)quant_code(w[j], scale, zero, low, high);
    }
}

static void add_group_error(const rtn_job *job, const float *w, const float *importance, const int8_t *codes,
                            dpq_grid grid, int64_t width, double *row_error)
{
    bool bf16 = job->out->scale_dtype == DPQ_DTYPE_BF16;
    for (int64_t j = 0; j < width; j++) {
        float value = dpq_grid_value(grid, codes[j]);
        double d = (double)w[j] - (double)(bf16 ? quant_round_bf16(value) : value);
        double weight = importance ? (double)importance[j] : 1.0;
        row_error[0] += weight * d * d;
        row_error[1] += weight * (double)w[j] * (double)w[j];
    }
}

static dpq_status solve_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    const rtn_job *job = context;
    dpq_qweight *out = job->out;
    const dpq_scheme *scheme = &out->scheme;
    int64_t width = dpq_scheme_group_width(scheme, out->k);
    void *row_memory = NULL;
    void *work_memory = NULL;
    DPQ_TRY(dpq_workspace_alloc(ws, out->k, sizeof(float), &row_memory));
    DPQ_TRY(dpq_workspace_alloc(ws, 3 * width, sizeof(float), &work_memory));
    float *w = row_memory;
    int64_t first = job->begin + tile * DPQ_SOLVE_TILE_ROWS;
    int64_t last = first + DPQ_SOLVE_TILE_ROWS < job->end ? first + DPQ_SOLVE_TILE_ROWS : job->end;
    for (int64_t row = first; row < last; row++) {
        DPQ_TRY(dpq_algo_load_row(job->input, row, w));
        int8_t *codes = (int8_t *)out->codes.data + row * out->k;
        double *row_error = (double *)out->row_error.data + 2 * row;
        row_error[0] = 0.0;
        row_error[1] = 0.0;
        for (int64_t g = 0; g < out->groups; g++) {
            int64_t at = g * width;
            const float *importance = job->importance ? job->importance + at : NULL;
            dpq_grid grid =
                dpq_grid_choose(scheme, job->search, out->scale_dtype, w + at, importance, width, work_memory);
            round_group(w + at, width, grid.scale, (float)grid.zero, (float)quant_code_min(scheme),
                        (float)quant_code_max(scheme), codes + at);
            add_group_error(job, w + at, importance, codes + at, grid, width, row_error);
            ((float *)out->scale.data)[row * out->groups + g] = grid.scale;
            ((int8_t *)out->zero.data)[row * out->groups + g] = (int8_t)grid.zero;
        }
    }
    return DPQ_OK;
}

dpq_status dpq_rtn_solve_rows(dpq_backend *be, const dpq_search_options *search, const float *importance,
                              const dpq_solve_input *input, int64_t begin, int64_t end, dpq_qweight *out)
{
    DPQ_TRY(dpq_algo_check_solve(input, begin, end, out));
    int64_t width = dpq_scheme_group_width(&out->scheme, out->k);
    for (int64_t j = 0; out->g_idx.data && j < out->k; j++) {
        ((int32_t *)out->g_idx.data)[j] = (int32_t)(j / width);
    }
    rtn_job job = {.search = search, .importance = importance, .input = input, .begin = begin, .end = end, .out = out};
    int64_t tiles = (end - begin + DPQ_SOLVE_TILE_ROWS - 1) / DPQ_SOLVE_TILE_ROWS;
    return dpq_backend_parallel(be, tiles, solve_tile, &job);
}

static bool is_weighted(const dpq_algo_options *options)
{
    return options->rtn.importance && options->rtn.search.search != DPQ_SEARCH_MINMAX;
}

static unsigned rtn_stats(const dpq_algo_options *options)
{
    return is_weighted(options) ? DPQ_STAT_SUMSQ : DPQ_STAT_NONE;
}

static bool rtn_with_g_idx(const dpq_algo_options *options, const dpq_scheme *scheme)
{
    (void)options;
    (void)scheme;
    return false;
}

static dpq_status rtn_solve(const dpq_algo_options *options, dpq_backend *be, const dpq_solve_input *input,
                            int64_t begin, int64_t end, dpq_qweight *out, dpq_method *method)
{
    void *memory = NULL;
    dpq_search_options search = options->rtn.search;
    if (search.search != DPQ_SEARCH_MINMAX) {
        search.search = DPQ_SEARCH_MSE;
    }
    if (is_weighted(options)) {
        if (!input->sumsq) {
            return DPQ_RAISE(DPQ_E_BUG, "%s: rtn with importance was given no sums of squared inputs", input->module);
        }
        search.search = DPQ_SEARCH_IMPORTANCE;
        DPQ_TRY(dpq_alloc_array(out->k, sizeof(float), &memory));
        double largest = 0.0;
        for (int64_t j = 0; j < out->k; j++) {
            largest = input->sumsq[j] > largest ? input->sumsq[j] : largest;
        }
        /* Relative to the largest, so that no sum leaves the range of fp32; a constant factor changes no argmin. */
        for (int64_t j = 0; j < out->k; j++) {
            ((float *)memory)[j] = largest > 0.0 ? (float)(input->sumsq[j] / largest) : 1.0f;
        }
    }
    dpq_status st = dpq_rtn_solve_rows(be, &search, memory, input, begin, end, out);
    dpq_free(memory);
    *method = DPQ_METHOD_RTN;
    return st;
}

const dpq_linear_algo_ops dpq_rtn_ops = {
    .name = "rtn",
    .help = "round to nearest: min-max, shrink search, or shrink search weighted by squared inputs",
    .stats = rtn_stats,
    .with_g_idx = rtn_with_g_idx,
    .prepare = NULL,
    .solve = rtn_solve,
};
