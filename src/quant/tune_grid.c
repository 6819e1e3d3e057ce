/* SPDX-License-Identifier: Apache-2.0 */
/* The tunable quantizer of one group, forward and backward. Forward and backward share one inlined rounding, so that
 * the gradient always belongs to the codes that were used. */
#include <math.h>

#include "tune_priv.h"

#define LANES 16 /* independent fp32 sums of a group, added up in a fixed tree */

/* A scale before and after rounding; false when its guard changed it: then no gradient passes. */
static bool round_scale(float raw, dpq_dtype dtype, float *scale)
{
    *scale = dpq_grid_round_scale(raw, dtype);
    /* rounding alone moves a normal number by less than a hundredth */
    return fabsf(*scale - raw) <= 0.01f * fabsf(raw);
}

/* Scale from the larger end of the range; both ends share the gradient when they are equal. */
static void set_symmetric(tune_grid *grid, const tune_quantizer *quantizer, float low, float high, float min_scale,
                          float max_scale)
{
    bool with_sign = quantizer->form == TUNE_FORM_SIGNED;
    float lo = -(low * min_scale);
    float hi = high * max_scale;
    float levels = with_sign ? (float)(1 << (quantizer->bits - 1)) : (float)((1 << quantizer->bits) - 1) / 2.0f;
    float sign = with_sign && lo < hi ? -1.0f : 1.0f;
    if (!round_scale(sign * (lo >= hi ? lo : hi) / levels, quantizer->scale_dtype, &grid->scale)) {
        return;
    }
    float share = lo == hi ? 0.5f : 1.0f;
    grid->by_min = lo >= hi ? share * (sign * -low / levels) : 0.0f;
    grid->by_max = hi >= lo ? share * (sign * high / levels) : 0.0f;
}

static void set_range(tune_grid *grid, const tune_quantizer *quantizer, float low, float high, float min_scale,
                      float max_scale, float code_min, float code_max)
{
    float levels = code_max - code_min;
    float lower = low * min_scale;
    if (round_scale((high * max_scale - lower) / levels, quantizer->scale_dtype, &grid->scale)) {
        grid->by_min = -low / levels;
        grid->by_max = high / levels;
    }
    float zero = code_min - lower / grid->scale;
    grid->zero_follows = zero >= code_min && zero <= code_max;
    grid->zero = quant_round(quant_clamp(zero, code_min, code_max));
    grid->low_ratio = grid->zero_follows ? lower / grid->scale : 0.0f;
}

tune_grid dpq_tune_grid(const tune_quantizer *quantizer, float low, float high, float min_scale, float max_scale)
{
    float code_min = -(float)(1 << (quantizer->bits - 1));
    float code_max = -code_min - 1.0f;
    tune_grid grid = {.scale = 1.0f, .frozen = low == 0.0f && high == 0.0f};
    if (!grid.frozen) {
        switch (quantizer->form) {
        case TUNE_FORM_SCALE:
            grid.by_max = round_scale(high * max_scale, quantizer->scale_dtype, &grid.scale) ? high : 0.0f;
            break;
        case TUNE_FORM_SIGNED:
        case TUNE_FORM_PLAIN:
            set_symmetric(&grid, quantizer, low, high, min_scale, max_scale);
            break;
        case TUNE_FORM_RANGE:
            set_range(&grid, quantizer, low, high, min_scale, max_scale, code_min, code_max);
            break;
        }
    }
    grid.code_min = code_min - grid.zero;
    grid.code_max = code_max - grid.zero;
    return grid;
}

/* code - zero of a weight: rne(position) held to the bounds, which are integers. *excess is not 0 when it was beyond
 * one: the first clamp leaves one step of room, so that rounding decides. */
QUANT_INLINE float round_position(float position, float code_min, float code_max, float *excess)
{
    float rounded = quant_round(quant_clamp(position, code_min - 1.0f, code_max + 1.0f));
    float code = quant_clamp(rounded, code_min, code_max);
    *excess = rounded - code;
    return code;
}

DPQ_HOT void dpq_tune_values(const tune_grid *grid, const float *restrict w, const float *restrict v, int64_t width,
                             float *restrict values)
{
    const tune_grid g = *grid;
    for (int64_t j = 0; j < width; j++) {
        float excess;
        values[j] = round_position(w[j] / g.scale + v[j], g.code_min, g.code_max, &excess) * g.scale;
    }
}

DPQ_HOT void dpq_tune_codes(const tune_grid *grid, const float *restrict w, const float *restrict v, int64_t width,
                            int8_t *restrict codes)
{
    const tune_grid g = *grid;
    for (int64_t j = 0; j < width; j++) {
        float excess;
        float code = round_position(w[j] / g.scale + v[j], g.code_min, g.code_max, &excess) + g.zero;
        codes[j] = (int8_t)(int32_t)code;
    }
}

/* With u = w / s, r = code - zero and g the gradient of the value r * s:
 *   within the bounds   d v = g s   d s += g (r - u)              (the zero point cancels)
 *   at a bound          d v = 0     d s += g (r - lower / s)      d lower += g        (the last two: through the zero)
 */
QUANT_INLINE void gradient_of_lanes(const tune_grid *g, const float *restrict w, const float *restrict v,
                                    const int32_t *restrict sum, float unit, float *restrict gradient_v,
                                    float *restrict scale, float *restrict low)
{
    float position[LANES];
    float code[LANES];
    float excess[LANES]; /* not 0 at a bound */
    for (int l = 0; l < LANES; l++) {
        position[l] = w[l] / g->scale;
        code[l] = round_position(position[l] + v[l], g->code_min, g->code_max, &excess[l]);
    }
    for (int l = 0; l < LANES; l++) {
        float gradient = (float)sum[l] * unit;
        float held = excess[l] != 0.0f ? g->low_ratio : position[l];
        float bound_gradient = excess[l] != 0.0f ? gradient : 0.0f;
        gradient_v[l] = (gradient - bound_gradient) * g->scale; /* one of the two is 0 */
        scale[l] += gradient * (code[l] - held);
        low[l] += bound_gradient;
    }
}

DPQ_HOT tune_range_gradient dpq_tune_gradient(const tune_grid *grid, const float *restrict w, const float *restrict v,
                                              const int32_t *restrict sum, float unit, int64_t width,
                                              float *restrict gradient_v)
{
    const tune_grid g = *grid;
    float scale[LANES] = {0};
    float low[LANES] = {0};
    int64_t j = 0;
    for (; j + LANES <= width; j += LANES) {
        gradient_of_lanes(&g, w + j, v + j, sum + j, unit, gradient_v + j, scale, low);
    }
    if (j < width) { /* lanes without a member have gradient 0 */
        size_t rest = (size_t)(width - j);
        float last_w[LANES] = {0};
        float last_v[LANES] = {0};
        int32_t last_sum[LANES] = {0};
        float last_gradient[LANES];
        memcpy(last_w, w + j, rest * sizeof *w);
        memcpy(last_v, v + j, rest * sizeof *v);
        memcpy(last_sum, sum + j, rest * sizeof *sum);
        gradient_of_lanes(&g, last_w, last_v, last_sum, unit, last_gradient, scale, low);
        memcpy(gradient_v + j, last_gradient, rest * sizeof *gradient_v);
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) {
            scale[l] += scale[l + half];
            low[l] += low[l + half];
        }
    }
    return (tune_range_gradient){.scale = scale[0], .low = g.zero_follows ? low[0] : 0.0f};
}

DPQ_HOT void dpq_tune_store_bf16(const float *restrict values, int64_t n, uint16_t *restrict dst)
{
    for (int64_t j = 0; j < n; j++) {
        float value = quant_round_bf16(values[j]);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        dst[j] = (uint16_t)(bits >> 16);
    }
}

DPQ_HOT void dpq_tune_round_bf16(float *restrict values, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        values[j] = quant_round_bf16(values[j]);
    }
}
