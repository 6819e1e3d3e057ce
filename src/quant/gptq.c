/* SPDX-License-Identifier: Apache-2.0 */
/* GPTQ, the column loop (Frantar et al. 2022; formulas and deviations in docs/algorithms/gptq.md). A tile of rows is
 * solved by one thread: blocks of columns, transposed so that loops run over the rows, and a matrix product for the
 * columns to the right. */
#include <inttypes.h>

#include "quant_priv.h"

#define ROWS  DPQ_SOLVE_TILE_ROWS
#define BLOCK 128

static const char *const order_choices[] = {"static", "group", "none", NULL};
static const char *const group_scales_choices[] = {"static", "dynamic", NULL};
static const char *const search_choices[] = {"minmax", "mse", "importance", NULL};

#define AT(field) offsetof(dpq_algo_options, gptq.field)
const dpq_option dpq_gptq_option_table[] = {
    {"gptq.damping", DPQ_OPTION_REAL, AT(damping), 0.0, 1.0, NULL, "0.01", true,
     "share of the mean diagonal of the Hessian that is added to its diagonal"},
    {"gptq.order", DPQ_OPTION_ENUM, AT(order), 0, 0, order_choices, "static", true,
     "order of columns: static and group: by descending diagonal, with groups of neighbours or of columns solved "
     "together"},
    {"gptq.true_sequential", DPQ_OPTION_BOOL, AT(true_sequential), 0, 0, NULL, "true", true,
     "inputs of a stage are computed with the quantized weights of the stages before it in the block"},
    {"gptq.group_scales", DPQ_OPTION_ENUM, AT(group_scales), 0, 0, group_scales_choices, "static", true,
     "scales from the original weights, or from the updated ones when a group is reached (order group or none)"},
    {"gptq.scale_search", DPQ_OPTION_ENUM, AT(search.search), 0, 0, search_choices, "importance", true,
     "scale of a group: its range, or the factor on it with the smallest squared error, plain or weighted by the "
     "diagonal"},
    {"gptq.search_low", DPQ_OPTION_REAL, AT(search.low), 0.01, 4.0, NULL, "0.6", true,
     "smallest factor of the scale search"},
    {"gptq.search_high", DPQ_OPTION_REAL, AT(search.high), 0.01, 4.0, NULL, "1.1", true,
     "largest factor of the scale search"},
    {"gptq.search_steps", DPQ_OPTION_INT, AT(search.steps), 1, 10000, NULL, "51", true,
     "number of evenly spaced factors, both ends included"},
};
const size_t dpq_gptq_option_count = DPQ_COUNT_OF(dpq_gptq_option_table);
#undef AT

/* What all tiles of a solve share. "Position" is a place in the order of processing. */
typedef struct {
    const dpq_search_options *search;
    dpq_backend *be;
    const dpq_solve_input *input;
    dpq_qweight *out;
    int64_t begin, end;
    int64_t width;           /* members of a group */
    const float *u;          /* (K,K) */
    const int32_t *order;    /* (K) position -> column */
    const float *importance; /* (K) by column */
    float *importance_at;    /* (K) by position */
    int32_t *group_at;       /* (K) by position */
    bool by_position;        /* groups are runs of positions, else of columns */
    bool dynamic;            /* implies runs of positions */
} gptq_job;

/* Memory of one tile. Loops always run over ROWS rows: missing ones are zero with scale 1, so a row's result does not
 * depend on where its range ends. */
typedef struct {
    float *w;       /* (ROWS,K) by position; updated from block to block */
    float *block;   /* (BLOCK,ROWS) columns of the block */
    float *e;       /* (BLOCK,ROWS) scaled errors of the block */
    float *e_rows;  /* (ROWS,BLOCK) the same for the product */
    float *u_block; /* (BLOCK,BLOCK) u_block[i][t] = U[first + t][first + i] */
    float *scale;   /* (G,ROWS) */
    float *zero;    /* (G,ROWS) */
    int8_t *codes;  /* (K,ROWS) by position */
    double *loss;   /* (ROWS) */
    float *row;     /* (K) */
    float *work;    /* (3 * width) */
    int64_t first_row, rows;
} gptq_tile;

static dpq_status take(dpq_workspace *ws, int64_t count, size_t bytes, void *out)
{
    void *memory = NULL;
    DPQ_TRY(dpq_workspace_alloc(ws, count, bytes, &memory));
    memset(memory, 0, (size_t)count * bytes);
    memcpy(out, &memory, sizeof memory);
    return DPQ_OK;
}

static dpq_status take_tile(dpq_workspace *ws, const gptq_job *job, gptq_tile *tile)
{
    int64_t k = job->out->k;
    int64_t groups = job->out->groups;
    DPQ_TRY(take(ws, ROWS * k, sizeof(float), &tile->w));
    DPQ_TRY(take(ws, BLOCK * ROWS, sizeof(float), &tile->block));
    DPQ_TRY(take(ws, BLOCK * ROWS, sizeof(float), &tile->e));
    DPQ_TRY(take(ws, ROWS * BLOCK, sizeof(float), &tile->e_rows));
    DPQ_TRY(take(ws, BLOCK * BLOCK, sizeof(float), &tile->u_block));
    DPQ_TRY(take(ws, groups * ROWS, sizeof(float), &tile->scale));
    DPQ_TRY(take(ws, groups * ROWS, sizeof(float), &tile->zero));
    DPQ_TRY(take(ws, k * ROWS, sizeof(int8_t), &tile->codes));
    DPQ_TRY(take(ws, ROWS, sizeof(double), &tile->loss));
    DPQ_TRY(take(ws, k, sizeof(float), &tile->row));
    DPQ_TRY(take(ws, 3 * job->width, sizeof(float), &tile->work));
    for (int64_t i = 0; i < groups * ROWS; i++) {
        tile->scale[i] = 1.0f;
    }
    return DPQ_OK;
}

/* Grid of group G of row R from the group's weights W and importance. */
static void choose_grid(const gptq_job *job, gptq_tile *tile, int64_t g, int64_t r, const float *w,
                        const float *importance)
{
    dpq_grid grid =
        dpq_grid_choose(&job->out->scheme, job->search, job->out->scale_dtype, w, importance, job->width, tile->work);
    tile->scale[g * ROWS + r] = grid.scale;
    tile->zero[g * ROWS + r] = (float)grid.zero;
}

/* Rows of the tile by position, dead columns zeroed; their signal; their grids unless those come later. */
static dpq_status load_rows(const gptq_job *job, gptq_tile *tile)
{
    int64_t k = job->out->k;
    for (int64_t r = 0; r < tile->rows; r++) {
        float *w = tile->w + r * k;
        float *row = tile->row;
        double signal = 0.0;
        DPQ_TRY(dpq_algo_load_row(job->input, tile->first_row + r, row));
        for (int64_t j = 0; j < k; j++) {
            row[j] = job->importance[j] == 0.0f ? 0.0f : row[j];
            signal += (double)job->importance[j] * (double)row[j] * (double)row[j];
        }
        ((double *)job->out->row_error.data)[2 * (tile->first_row + r) + 1] = signal;
        for (int64_t i = 0; i < k; i++) {
            w[i] = row[job->order[i]];
        }
        for (int64_t g = 0; g < job->out->groups && !job->dynamic; g++) {
            const float *members = job->by_position ? w : row;
            const float *importance = job->by_position ? job->importance_at : job->importance;
            choose_grid(job, tile, g, r, members + g * job->width, importance + g * job->width);
        }
    }
    return DPQ_OK;
}

/* column -= e[t] * u[t] for t in [from, to), one after the other. */
DPQ_HOT static void update_column(float *restrict column, const float *restrict e, const float *restrict u,
                                  int64_t from, int64_t to)
{
    for (int64_t t = from; t < to; t++) {
        for (int64_t r = 0; r < ROWS; r++) {
            column[r] -= e[t * ROWS + r] * u[t];
        }
    }
}

typedef struct {
    float low, high; /* codes */
    float d;         /* diagonal of U */
    bool bf16;       /* loaders round values to bf16 */
} column_rule;

/* Codes of one column; e = (w - value) / d; loss += e^2. */
DPQ_HOT static void quantize_column(const float *restrict w, const float *restrict scale, const float *restrict zero,
                                    column_rule rule, float *restrict e, int8_t *restrict codes, double *restrict loss)
{
    for (int64_t r = 0; r < ROWS; r++) {
        float q = quant_code(w[r], scale[r], zero[r], rule.low, rule.high);
        float value = (q - zero[r]) * scale[r];
        value = rule.bf16 ? quant_round_bf16(value) : value;
        e[r] = (w[r] - value) / rule.d;
        codes[r] = (int8_t)(int32_t)q;
    }
    for (int64_t r = 0; r < ROWS; r++) {
        loss[r] += (double)e[r] * (double)e[r];
    }
}

/* End of the block that starts at position FIRST. With dynamic scales a group that does not fit into what is left of a
 * block starts a new one, so that all its columns are up to date when it is reached. */
static int64_t block_end(const gptq_job *job, int64_t first)
{
    int64_t k = job->out->k;
    int64_t end = first + BLOCK < k ? first + BLOCK : k;
    int64_t last_group = (end - 1) / job->width * job->width;
    return job->dynamic && last_group > first && last_group + job->width > end ? last_group : end;
}

/* Grids of the group whose first column is number I of the block, from its weights with all updates so far. Columns of
 * the group inside the block get their updates from the columns before I here. */
static void choose_dynamic(const gptq_job *job, gptq_tile *tile, int64_t first, int64_t i, int64_t columns)
{
    int64_t k = job->out->k;
    int64_t inside = i + job->width < columns ? job->width : columns - i;
    for (int64_t c = i; c < i + inside; c++) {
        update_column(tile->block + c * ROWS, tile->e, tile->u_block + c * BLOCK, 0, i);
    }
    for (int64_t r = 0; r < tile->rows; r++) {
        for (int64_t c = 0; c < job->width; c++) {
            tile->row[c] = c < inside ? tile->block[(i + c) * ROWS + r] : tile->w[r * k + first + i + c];
        }
        choose_grid(job, tile, (first + i) / job->width, r, tile->row, job->importance_at + first + i);
    }
}

static void solve_block(const gptq_job *job, gptq_tile *tile, int64_t first, int64_t columns)
{
    int64_t k = job->out->k;
    column_rule rule = {.low = (float)quant_code_min(&job->out->scheme),
                        .high = (float)quant_code_max(&job->out->scheme),
                        .bf16 = job->out->scale_dtype == DPQ_DTYPE_BF16};
    for (int64_t i = 0; i < columns; i++) {
        for (int64_t r = 0; r < ROWS; r++) {
            tile->block[i * ROWS + r] = tile->w[r * k + first + i];
        }
        for (int64_t t = 0; t < i; t++) {
            tile->u_block[i * BLOCK + t] = job->u[(first + t) * k + first + i];
        }
    }
    /* Each column takes its updates when it is reached: per element the same subtractions in the same order as updating
     * all later columns at once, but nothing is stored in between. */
    int64_t applied = 0;
    for (int64_t i = 0; i < columns; i++) {
        if (job->dynamic && (first + i) % job->width == 0) {
            choose_dynamic(job, tile, first, i, columns);
            applied = i;
        }
        int64_t g = job->group_at[first + i];
        float *column = tile->block + i * ROWS;
        update_column(column, tile->e, tile->u_block + i * BLOCK, applied, i);
        rule.d = job->u[(first + i) * k + first + i];
        quantize_column(column, tile->scale + g * ROWS, tile->zero + g * ROWS, rule, tile->e + i * ROWS,
                        tile->codes + (first + i) * ROWS, tile->loss);
    }
}

/* Columns right of the block: W -= E U. */
static dpq_status update_rest(const gptq_job *job, gptq_tile *tile, int thread, int64_t first, int64_t columns)
{
    int64_t k = job->out->k;
    int64_t end = first + columns;
    if (end == k) {
        return DPQ_OK;
    }
    for (int64_t i = 0; i < columns; i++) {
        for (int64_t r = 0; r < ROWS; r++) {
            tile->e_rows[r * columns + i] = tile->e[i * ROWS + r];
        }
    }
    dpq_tensor a = dpq_tensor_wrap_2d(tile->e_rows, DPQ_DTYPE_F32, ROWS, columns);
    dpq_tensor b = dpq_tensor_wrap_2d((float *)job->u + first * k + end, DPQ_DTYPE_F32, columns, k - end);
    dpq_tensor c = dpq_tensor_wrap_2d(tile->w + end, DPQ_DTYPE_F32, ROWS, k - end);
    b.stride[0] = k;
    c.stride[0] = k;
    return dpq_op_subtract_product(job->be, thread, &a, &b, &c);
}

static void store_rows(const gptq_job *job, const gptq_tile *tile)
{
    dpq_qweight *out = job->out;
    for (int64_t r = 0; r < tile->rows; r++) {
        int64_t row = tile->first_row + r;
        int8_t *codes = (int8_t *)out->codes.data + row * out->k;
        for (int64_t i = 0; i < out->k; i++) {
            codes[job->order[i]] = tile->codes[i * ROWS + r];
        }
        for (int64_t g = 0; g < out->groups; g++) {
            ((float *)out->scale.data)[row * out->groups + g] = tile->scale[g * ROWS + r];
            ((int8_t *)out->zero.data)[row * out->groups + g] = (int8_t)tile->zero[g * ROWS + r];
        }
        ((double *)out->row_error.data)[2 * row] = tile->loss[r];
    }
}

static dpq_status solve_tile(void *context, int64_t index, int thread, dpq_workspace *ws)
{
    const gptq_job *job = context;
    gptq_tile tile = {.first_row = job->begin + index * ROWS};
    tile.rows = job->end - tile.first_row < ROWS ? job->end - tile.first_row : ROWS;
    DPQ_TRY(take_tile(ws, job, &tile));
    DPQ_TRY(load_rows(job, &tile));
    for (int64_t first = 0; first < job->out->k;) {
        int64_t columns = block_end(job, first) - first;
        solve_block(job, &tile, first, columns);
        DPQ_TRY(update_rest(job, &tile, thread, first, columns));
        first += columns;
    }
    store_rows(job, &tile);
    return DPQ_OK;
}

static unsigned gptq_stats(const dpq_algo_options *options)
{
    (void)options;
    return DPQ_STAT_XTX;
}

static bool gptq_with_g_idx(const dpq_algo_options *options, const dpq_scheme *scheme)
{
    return options->gptq.order == DPQ_ORDER_GROUP && scheme->group_size > 0;
}

static dpq_status check_factor(const dpq_solve_input *input, const dpq_qweight *out)
{
    const dpq_factor *factor = input->factor;
    if (!factor || factor->importance.dim[0] != out->k || factor->order.dim[0] != out->k ||
        (factor->outcome != DPQ_FACTOR_FAILED &&
         (factor->u.rank != 2 || factor->u.dim[0] != out->k || factor->u.dim[1] != out->k))) {
        return DPQ_RAISE(DPQ_E_SHAPE, "%s: the stage's factor does not have the width %" PRId64 " of the weight",
                         input->module, out->k);
    }
    return DPQ_OK;
}

/* Importance and group of each position, and the g_idx of the output when it has one. */
static void fill_positions(const gptq_job *job)
{
    for (int64_t i = 0; i < job->out->k; i++) {
        int64_t column = job->order[i];
        job->importance_at[i] = job->importance[column];
        job->group_at[i] = (int32_t)((job->by_position ? i : column) / job->width);
        if (job->out->g_idx.data) {
            ((int32_t *)job->out->g_idx.data)[column] = job->group_at[i];
        }
    }
}

static dpq_status gptq_solve(const dpq_algo_options *options, dpq_backend *be, const dpq_solve_input *input,
                             int64_t begin, int64_t end, dpq_qweight *out, dpq_method *method)
{
    dpq_status st = DPQ_OK;
    const dpq_gptq_options *gptq = &options->gptq;
    void *importance_at = NULL;
    void *group_at = NULL;
    DPQ_TRY(dpq_algo_check_solve(input, begin, end, out));
    DPQ_TRY(check_factor(input, out));
    const dpq_factor *factor = input->factor;
    if (factor->outcome == DPQ_FACTOR_FAILED) {
        dpq_search_options search = gptq->search;
        search.search = DPQ_SEARCH_IMPORTANCE;
        *method = DPQ_METHOD_RTN_FALLBACK;
        return dpq_rtn_solve_rows(be, &search, factor->importance.data, input, begin, end, out);
    }
    *method = DPQ_METHOD_GPTQ;
    bool by_position = gptq->order != DPQ_ORDER_STATIC || out->scheme.group_size < 0;
    if (gptq_with_g_idx(options, &out->scheme) != (out->g_idx.data != NULL)) {
        return DPQ_RAISE(DPQ_E_BUG, "%s: the output %s a group index, which does not fit the order of columns",
                         input->module, out->g_idx.data ? "has" : "lacks");
    }
    DPQ_TRY_GOTO(st, dpq_alloc_array(out->k, sizeof(float), &importance_at), done);
    DPQ_TRY_GOTO(st, dpq_alloc_array(out->k, sizeof(int32_t), &group_at), done);
    gptq_job job = {.search = &gptq->search,
                    .be = be,
                    .input = input,
                    .out = out,
                    .begin = begin,
                    .end = end,
                    .width = dpq_scheme_group_width(&out->scheme, out->k),
                    .u = factor->u.data,
                    .order = factor->order.data,
                    .importance = factor->importance.data,
                    .importance_at = importance_at,
                    .group_at = group_at,
                    .by_position = by_position,
                    .dynamic = by_position && gptq->group_scales == DPQ_GROUP_SCALES_DYNAMIC};
    fill_positions(&job);
    DPQ_TRY_GOTO(st, dpq_backend_parallel(be, (end - begin + ROWS - 1) / ROWS, solve_tile, &job), done);
done:
    dpq_free(group_at);
    dpq_free(importance_at);
    return st;
}

const dpq_linear_algo_ops dpq_gptq_ops = {
    .name = "gptq",
    .help = "second-order error compensation column by column",
    .stats = gptq_stats,
    .with_g_idx = gptq_with_g_idx,
    .prepare = dpq_gptq_prepare,
    .solve = gptq_solve,
};
