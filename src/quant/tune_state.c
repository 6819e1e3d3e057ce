/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of block tuning and the passes over them: initial scales, quantized weights, one step, best and final
 * codes. Rows are independent and are computed whole by one thread, in tiles that follow from the shape. */
#include <inttypes.h>
#include <math.h>

#include "tune_priv.h"

#define TILE_ROWS 16

typedef struct {
    dpq_tune_linear source;
    tune_quantizer quantizer;
    int64_t n, k, groups, width;
    double lr, minmax_lr;
    bool range_tuning, min_tuning;
    float scale_limit;                             /* scales are held to [0, scale_limit] */
    double first_unit;                             /* unit of the first gradient; 0 before it */
    float *low, *high;                             /* (N,G) constants of the groups */
    tune_parameter rounding, max_scale, min_scale; /* (N,K), (N,G), (N,G) */
    dpq_qweight best;                              /* row_error unused; codes.data NULL: no snapshot yet */
} tune_linear;

struct dpq_block_state {
    dpq_tune_options options;
    const tune_rule *rule;
    dpq_backend *be;
    int n;
    tune_linear *linears;
};

/* A pass over the rows of one linear. */
typedef struct {
    const dpq_block_state *state;
    tune_linear *linear;
    const float *importance; /* (K) or NULL */
    dpq_tensor *wq;
    dpq_qweight *codes;
    const int32_t *sum;
    float unit, lr, minmax_lr;
    int step;
    dpq_status (*row)(const void *pass, int64_t row, dpq_workspace *ws);
} row_pass;

static dpq_status run_tile(void *context, int64_t tile, int thread, dpq_workspace *ws)
{
    (void)thread;
    const row_pass *pass = context;
    int64_t last = (tile + 1) * TILE_ROWS < pass->linear->n ? (tile + 1) * TILE_ROWS : pass->linear->n;
    for (int64_t row = tile * TILE_ROWS; row < last; row++) {
        dpq_workspace_mark mark = dpq_workspace_get_mark(ws);
        DPQ_TRY(pass->row(pass, row, ws));
        dpq_workspace_release(ws, mark);
    }
    return DPQ_OK;
}

static dpq_status run_pass(row_pass *pass)
{
    return dpq_backend_parallel(pass->state->be, (pass->linear->n + TILE_ROWS - 1) / TILE_ROWS, run_tile, pass);
}

static dpq_status row_floats(dpq_workspace *ws, int64_t count, float **out)
{
    void *memory = NULL;
    DPQ_TRY(dpq_workspace_alloc(ws, count, sizeof(float), &memory));
    *out = memory;
    return DPQ_OK;
}

/* Row of the source weights as fp32: finite, as create has checked. */
static dpq_status load_row(const tune_linear *l, int64_t row, dpq_workspace *ws, float **out)
{
    const dpq_tensor *w = l->source.w;
    const char *src = (const char *)w->data + (size_t)(row * w->stride[0]) * dpq_dtype_bytes(w->dtype);
    DPQ_TRY(row_floats(ws, l->k, out));
    return dpq_convert(src, w->dtype, *out, DPQ_DTYPE_F32, l->k);
}

static tune_grid grid_of(const tune_linear *l, int64_t at)
{
    return dpq_tune_grid(&l->quantizer, l->low[at], l->high[at], l->min_scale.value[at], l->max_scale.value[at]);
}

/* ---- initial scales */

static void set_range_of_values(tune_linear *l, int64_t at, const float *w)
{
    float low = 0.0f;
    float high = 0.0f;
    for (int64_t j = 0; j < l->width; j++) {
        low = w[j] < low ? w[j] : low;
        high = w[j] > high ? w[j] : high;
    }
    l->low[at] = low;
    l->high[at] = high;
}

/* The best grid of the search: its scale, or (asymmetric) the range that its codes reach, so that both scales at 1 give
 * this grid back. */
static void set_range_of_search(tune_linear *l, const dpq_tune_options *options, int64_t at, const float *w,
                                const float *importance, float *work)
{
    set_range_of_values(l, at, w);
    if (l->low[at] == 0.0f && l->high[at] == 0.0f) {
        return;
    }
    const dpq_scheme *scheme = &l->source.scheme;
    const dpq_search_options search = {.search = DPQ_SEARCH_IMPORTANCE,
                                       .low = options->search_low,
                                       .high = options->search_high,
                                       .steps = options->search_steps};
    dpq_grid grid = dpq_grid_choose(scheme, &search, l->quantizer.scale_dtype, w, importance, l->width, work);
    if (l->quantizer.form == TUNE_FORM_SCALE) {
        l->low[at] = 0.0f;
        l->high[at] = grid.scale;
    } else {
        l->low[at] = dpq_grid_value(grid, quant_code_min(scheme));
        l->high[at] = dpq_grid_value(grid, quant_code_max(scheme));
    }
}

static dpq_status start_row(const void *context, int64_t row, dpq_workspace *ws)
{
    const row_pass *pass = context;
    tune_linear *l = pass->linear;
    const dpq_solve_input input = {.module = l->source.module, .w = l->source.w};
    float *w = NULL;
    float *work = NULL;
    DPQ_TRY(row_floats(ws, l->k, &w));
    DPQ_TRY(row_floats(ws, 3 * l->width, &work));
    DPQ_TRY(dpq_algo_load_row(&input, row, w));
    for (int64_t g = 0; g < l->groups; g++) {
        int64_t at = row * l->groups + g;
        l->max_scale.value[at] = 1.0f;
        l->min_scale.value[at] = 1.0f;
        if (pass->state->options.init_scale == DPQ_INIT_SCALE_SEARCH) {
            set_range_of_search(l, &pass->state->options, at, w + g * l->width,
                                pass->importance ? pass->importance + g * l->width : NULL, work);
        } else {
            set_range_of_values(l, at, w + g * l->width);
        }
    }
    return DPQ_OK;
}

/* Importance relative to the largest, so that no sum leaves the range of fp32; a constant factor changes no argmin. */
static dpq_status start_scales(dpq_block_state *state, tune_linear *l)
{
    void *memory = NULL;
    const double *sumsq = l->source.sumsq;
    if (sumsq) {
        double largest = 0.0;
        for (int64_t j = 0; j < l->k; j++) {
            if (!isfinite(sumsq[j]) || sumsq[j] < 0.0) {
                return DPQ_RAISE(DPQ_E_NUMERIC, "%s: sum of squared inputs of column %" PRId64 " is %g",
                                 l->source.module, j, sumsq[j]);
            }
            largest = sumsq[j] > largest ? sumsq[j] : largest;
        }
        DPQ_TRY(dpq_alloc_array(l->k, sizeof(float), &memory));
        for (int64_t j = 0; j < l->k; j++) {
            ((float *)memory)[j] = largest > 0.0 ? (float)(sumsq[j] / largest) : 1.0f;
        }
    }
    row_pass pass = {.state = state, .linear = l, .importance = memory, .row = start_row};
    dpq_status st = run_pass(&pass);
    dpq_free(memory);
    return st;
}

/* ---- memory */

static dpq_status alloc_floats(int64_t count, float **out)
{
    void *memory = NULL;
    DPQ_TRY(dpq_alloc_array(count, sizeof(float), &memory));
    *out = memory;
    return DPQ_OK;
}

static dpq_status alloc_parameter(int64_t count, int moments, tune_parameter *out)
{
    DPQ_TRY(alloc_floats(count, &out->value));
    if (moments > 0) {
        DPQ_TRY(alloc_floats(count, &out->first));
    }
    return moments > 1 ? alloc_floats(count, &out->second) : DPQ_OK;
}

static void free_parameter(tune_parameter *p)
{
    dpq_free(p->value);
    dpq_free(p->first);
    dpq_free(p->second);
}

static tune_form form_of(const dpq_scheme *scheme, int init_scale)
{
    if (!scheme->symmetric) {
        return TUNE_FORM_RANGE;
    }
    return init_scale == DPQ_INIT_SCALE_SEARCH ? TUNE_FORM_SCALE
           : scheme->signed_scale              ? TUNE_FORM_SIGNED
                                               : TUNE_FORM_PLAIN;
}

/* Steps that add up to about half a code: 1/iterations (2/iterations for long runs at few bits). Short runs would take
 * steps so long that rounding becomes noise; there the length is capped (docs/algorithms/signround.md has the figures).
 */
#define LONGEST_DEFAULT_STEP 0.02

static double default_lr(int64_t iterations, int bits)
{
    if (iterations == 0) {
        return 0.0;
    }
    double lr = (iterations >= 1000 && bits <= 3 ? 2.0 : 1.0) / (double)iterations;
    return lr < LONGEST_DEFAULT_STEP ? lr : LONGEST_DEFAULT_STEP;
}

static dpq_status create_linear(dpq_block_state *state, const dpq_tune_linear *source, tune_linear *l)
{
    const dpq_tune_options *o = &state->options;
    const dpq_tensor *w = source->w;
    if (w->rank != 2 || (w->dim[1] > 1 && w->stride[1] != 1)) {
        return DPQ_RAISE(DPQ_E_SHAPE, "%s: weight of rank %d; expected row-major rank 2", source->module, w->rank);
    }
    if (w->dtype != DPQ_DTYPE_F32 && w->dtype != DPQ_DTYPE_F16 && w->dtype != DPQ_DTYPE_BF16) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: weight of type %s; expected F32, F16 or BF16", source->module,
                         dpq_dtype_name(w->dtype));
    }
    DPQ_TRY(dpq_scheme_check(&source->scheme, source->module, w->dim[1]));
    l->source = *source;
    l->n = w->dim[0];
    l->k = w->dim[1];
    l->groups = dpq_scheme_groups(&source->scheme, l->k);
    l->width = dpq_scheme_group_width(&source->scheme, l->k);
    l->quantizer = (tune_quantizer){
        .form = form_of(&source->scheme, o->init_scale), .bits = source->scheme.bits, .scale_dtype = w->dtype};
    l->lr = o->lr > 0.0 ? o->lr : default_lr(o->iterations, source->scheme.bits);
    l->minmax_lr = o->minmax_lr > 0.0 ? o->minmax_lr : l->lr;
    l->range_tuning = o->minmax_tuning;
    l->min_tuning = o->minmax_tuning && l->quantizer.form != TUNE_FORM_SCALE;
    l->scale_limit = o->init_scale == DPQ_INIT_SCALE_SEARCH ? 2.0f : 1.0f;
    int moments = state->rule->moments(o);
    int64_t n_groups = l->n * l->groups;
    DPQ_TRY(alloc_floats(n_groups, &l->low));
    DPQ_TRY(alloc_floats(n_groups, &l->high));
    DPQ_TRY(alloc_parameter(l->n * l->k, moments, &l->rounding));
    DPQ_TRY(alloc_parameter(n_groups, moments, &l->max_scale));
    DPQ_TRY(alloc_parameter(n_groups, moments, &l->min_scale));
    return start_scales(state, l);
}

dpq_status dpq_tune_create(const tune_rule *rule, const dpq_tune_options *options, dpq_backend *be,
                           const dpq_tune_linear *linears, int n, dpq_block_state **out)
{
    *out = NULL;
    void *memory = NULL;
    DPQ_TRY(dpq_alloc(sizeof(dpq_block_state), &memory));
    dpq_block_state *state = memory;
    *state = (dpq_block_state){.options = *options, .rule = rule, .be = be, .n = n};
    dpq_status st = dpq_alloc_array(n, sizeof(tune_linear), &memory);
    if (st == DPQ_OK) {
        state->linears = memory;
    }
    for (int i = 0; st == DPQ_OK && i < n; i++) {
        st = create_linear(state, &linears[i], &state->linears[i]);
    }
    if (st != DPQ_OK) {
        dpq_tune_destroy(&state);
    }
    *out = state;
    return st;
}

void dpq_tune_destroy(dpq_block_state **state)
{
    if (!state || !*state) {
        return;
    }
    for (int i = 0; (*state)->linears && i < (*state)->n; i++) {
        tune_linear *l = &(*state)->linears[i];
        dpq_free(l->low);
        dpq_free(l->high);
        free_parameter(&l->rounding);
        free_parameter(&l->max_scale);
        free_parameter(&l->min_scale);
        dpq_qweight_fini(&l->best);
    }
    dpq_free((*state)->linears);
    dpq_free(*state);
    *state = NULL;
}

size_t dpq_tune_state_bytes(const tune_rule *rule, const dpq_tune_options *options, int64_t n, int64_t k,
                            int64_t groups)
{
    size_t copies = 1 + (size_t)rule->moments(options);
    size_t weights = (size_t)n * (size_t)k;
    size_t ranges = (size_t)n * (size_t)groups;
    size_t bytes = sizeof(float) * (copies * (weights + 2 * ranges) + 2 * ranges);
    if (options->best_step != DPQ_BEST_STEP_LAST) {
        bytes += weights + ranges * (sizeof(float) + 1) + (size_t)n * 2 * sizeof(double);
    }
    return bytes;
}

/* ---- quantized weights and codes */

static dpq_status weights_row(const void *context, int64_t row, dpq_workspace *ws)
{
    const row_pass *pass = context;
    const tune_linear *l = pass->linear;
    dpq_tensor *wq = pass->wq;
    dpq_dtype source = l->source.w->dtype;
    float *w = NULL;
    float *values = wq->dtype == DPQ_DTYPE_F32 ? (float *)wq->data + row * wq->stride[0] : NULL;
    DPQ_TRY(load_row(l, row, ws, &w));
    if (!values) {
        DPQ_TRY(row_floats(ws, l->k, &values));
    }
    for (int64_t g = 0; g < l->groups; g++) {
        int64_t at = g * l->width;
        tune_grid grid = grid_of(l, row * l->groups + g);
        dpq_tune_values(&grid, w + at, l->rounding.value + row * l->k + at, l->width, values + at);
    }
    if (source == DPQ_DTYPE_F16) { /* w is done with: its memory takes the rounded row */
        DPQ_TRY(dpq_convert(values, DPQ_DTYPE_F32, w, DPQ_DTYPE_F16, l->k));
        DPQ_TRY(dpq_convert(w, DPQ_DTYPE_F16, values, DPQ_DTYPE_F32, l->k));
    }
    if (wq->dtype == DPQ_DTYPE_BF16) {
        dpq_tune_store_bf16(values, l->k, (uint16_t *)wq->data + row * wq->stride[0]);
    } else if (source == DPQ_DTYPE_BF16) {
        dpq_tune_round_bf16(values, l->k);
    }
    return DPQ_OK;
}

static tune_linear *linear_at(dpq_block_state *state, int i)
{
    DPQ_ASSERT(i >= 0 && i < state->n);
    return &state->linears[i];
}

dpq_status dpq_tune_weights(dpq_block_state *state, int i, dpq_tensor *wq)
{
    tune_linear *l = linear_at(state, i);
    bool fits = wq->rank == 2 && wq->dim[0] == l->n && wq->dim[1] == l->k && (l->k == 1 || wq->stride[1] == 1);
    if (!fits || (wq->dtype != DPQ_DTYPE_F32 && wq->dtype != DPQ_DTYPE_BF16)) {
        return DPQ_RAISE(DPQ_E_SHAPE,
                         "%s: quantized weights into type %s, rank %d, (%" PRId64 ", %" PRId64
                         "); expected F32 or BF16, row-major (%" PRId64 ", %" PRId64 ")",
                         l->source.module, dpq_dtype_name(wq->dtype), wq->rank, wq->dim[0], wq->dim[1], l->n, l->k);
    }
    row_pass pass = {.state = state, .linear = l, .wq = wq, .row = weights_row};
    return run_pass(&pass);
}

static dpq_status codes_row(const void *context, int64_t row, dpq_workspace *ws)
{
    const row_pass *pass = context;
    const tune_linear *l = pass->linear;
    float *w = NULL;
    DPQ_TRY(load_row(l, row, ws, &w));
    for (int64_t g = 0; g < l->groups; g++) {
        int64_t at = g * l->width;
        tune_grid grid = grid_of(l, row * l->groups + g);
        dpq_tune_codes(&grid, w + at, l->rounding.value + row * l->k + at, l->width,
                       (int8_t *)pass->codes->codes.data + row * l->k + at);
        ((float *)pass->codes->scale.data)[row * l->groups + g] = grid.scale;
        ((int8_t *)pass->codes->zero.data)[row * l->groups + g] = (int8_t)(int)grid.zero;
    }
    return DPQ_OK;
}

/* The best parameters are kept as the codes they give: a quarter of the memory. */
dpq_status dpq_tune_snapshot(dpq_block_state *state)
{
    for (int i = 0; i < state->n; i++) {
        tune_linear *l = &state->linears[i];
        if (!l->best.codes.data) {
            DPQ_TRY(dpq_qweight_create(&l->source.scheme, l->n, l->k, l->quantizer.scale_dtype, false, &l->best));
        }
        row_pass pass = {.state = state, .linear = l, .codes = &l->best, .row = codes_row};
        DPQ_TRY(run_pass(&pass));
    }
    return DPQ_OK;
}

/* Squared error of the values as a loader computes them, and the sum of squares of the weights, in column order. */
static dpq_status error_row(const void *context, int64_t row, dpq_workspace *ws)
{
    const row_pass *pass = context;
    const tune_linear *l = pass->linear;
    float *w = NULL;
    float *values = NULL;
    DPQ_TRY(load_row(l, row, ws, &w));
    DPQ_TRY(row_floats(ws, l->k, &values));
    dpq_tensor dst = dpq_tensor_wrap_2d(values, DPQ_DTYPE_F32, 1, l->k);
    DPQ_TRY(dpq_qweight_dequantize(pass->codes, row, row + 1, &dst));
    if (l->source.w->dtype == DPQ_DTYPE_BF16) {
        dpq_tune_round_bf16(values, l->k);
    }
    double *row_error = (double *)pass->codes->row_error.data + 2 * row;
    row_error[0] = 0.0;
    row_error[1] = 0.0;
    for (int64_t j = 0; j < l->k; j++) {
        double d = (double)w[j] - (double)values[j];
        row_error[0] += d * d;
        row_error[1] += (double)w[j] * (double)w[j];
    }
    return DPQ_OK;
}

dpq_status dpq_tune_finish(dpq_block_state *state, bool best, int i, dpq_qweight *out)
{
    tune_linear *l = linear_at(state, i);
    if (out->n != l->n || out->k != l->k || out->groups != l->groups || out->g_idx.data ||
        out->scale_dtype != l->quantizer.scale_dtype || !dpq_scheme_equal(&out->scheme, &l->source.scheme)) {
        return DPQ_RAISE(DPQ_E_SHAPE,
                         "%s: the quantized weight (%" PRId64 ", %" PRId64 "), %" PRId64
                         " groups, is not one for this linear (%" PRId64 ", %" PRId64 "), %" PRId64 " groups",
                         l->source.module, out->n, out->k, out->groups, l->n, l->k, l->groups);
    }
    if (best && !l->best.codes.data) {
        return DPQ_RAISE(DPQ_E_BUG, "%s: the best step was asked for, but none was kept", l->source.module);
    }
    row_pass pass = {.state = state, .linear = l, .codes = out, .row = codes_row};
    if (best) {
        memcpy(out->codes.data, l->best.codes.data, dpq_tensor_bytes(&out->codes));
        memcpy(out->scale.data, l->best.scale.data, dpq_tensor_bytes(&out->scale));
        memcpy(out->zero.data, l->best.zero.data, dpq_tensor_bytes(&out->zero));
    } else {
        DPQ_TRY(run_pass(&pass));
    }
    pass.row = error_row;
    return run_pass(&pass);
}

/* ---- one step */

static tune_parameter parameter_at(tune_parameter p, int64_t first)
{
    return (tune_parameter){.value = p.value + first,
                            .first = p.first ? p.first + first : NULL,
                            .second = p.second ? p.second + first : NULL};
}

static void update_scales(const row_pass *pass, const float *gradient, int64_t row, tune_parameter all)
{
    const tune_linear *l = pass->linear;
    tune_parameter p = parameter_at(all, row * l->groups);
    pass->state->rule->update(&pass->state->options, pass->step, pass->minmax_lr, gradient, l->groups, p);
    for (int64_t g = 0; g < l->groups; g++) {
        p.value[g] = quant_clamp(p.value[g], 0.0f, l->scale_limit);
    }
}

static dpq_status step_row(const void *context, int64_t row, dpq_workspace *ws)
{
    const row_pass *pass = context;
    const tune_linear *l = pass->linear;
    float *w = NULL;
    float *by_v = NULL;
    float *by_max = NULL;
    float *by_min = NULL;
    DPQ_TRY(load_row(l, row, ws, &w));
    DPQ_TRY(row_floats(ws, l->k, &by_v));
    DPQ_TRY(row_floats(ws, l->groups, &by_max));
    DPQ_TRY(row_floats(ws, l->groups, &by_min));
    for (int64_t g = 0; g < l->groups; g++) {
        int64_t at = row * l->k + g * l->width;
        int64_t range = row * l->groups + g;
        tune_grid grid = grid_of(l, range);
        if (grid.frozen) {
            memset(by_v + g * l->width, 0, (size_t)l->width * sizeof(float));
            by_max[g] = 0.0f;
            by_min[g] = 0.0f;
            continue;
        }
        tune_range_gradient sums = dpq_tune_gradient(&grid, w + g * l->width, l->rounding.value + at, pass->sum + at,
                                                     pass->unit, l->width, by_v + g * l->width);
        by_max[g] = sums.scale * grid.by_max;
        by_min[g] = sums.scale * grid.by_min + sums.low * l->low[range];
    }
    pass->state->rule->update(&pass->state->options, pass->step, pass->lr, by_v, l->k,
                              parameter_at(l->rounding, row * l->k));
    if (l->range_tuning) {
        update_scales(pass, by_max, row, l->max_scale);
    }
    if (l->min_tuning) {
        update_scales(pass, by_min, row, l->min_scale);
    }
    return DPQ_OK;
}

dpq_status dpq_tune_step(dpq_block_state *state, int step, int i, const int32_t *sum, double unit)
{
    tune_linear *l = linear_at(state, i);
    if (step < 0 || step >= state->options.iterations) {
        return DPQ_RAISE(DPQ_E_BUG, "%s: step %d of %" PRId64, l->source.module, step, state->options.iterations);
    }
    if (!isfinite(unit) || unit <= 0.0) {
        return DPQ_RAISE(DPQ_E_NUMERIC, "%s: unit of the gradient is %g; expected a positive number", l->source.module,
                         unit);
    }
    if (l->first_unit == 0.0) {
        l->first_unit = unit;
    }
    double rest = 1.0 - (double)step / (double)state->options.iterations;
    row_pass pass = {.state = state,
                     .linear = l,
                     .sum = sum,
                     .unit = (float)(unit / l->first_unit), /* no step depends on the gradient's size */
                     .lr = (float)(l->lr * rest),
                     .minmax_lr = (float)(l->minmax_lr * rest),
                     .step = step,
                     .row = step_row};
    return run_pass(&pass);
}

tune_view dpq_tune_view(const dpq_block_state *state, int i)
{
    const tune_linear *l = &state->linears[i];
    return (tune_view){.v = l->rounding.value, .max_scale = l->max_scale.value, .min_scale = l->min_scale.value};
}
