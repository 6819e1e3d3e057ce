/* SPDX-License-Identifier: Apache-2.0 */
/* Scale and zero point of one group: min-max, or the best of evenly spaced factors on the range. */
#include <float.h>
#include <math.h>

#include "dpquant/grid.h"
#include "dpquant/half.h"
#include "quant_priv.h"

#define LANES      16 /* independent fp32 sums of an error, added up in a fixed tree */
#define CANDIDATES 64 /* factors judged in one pass over a group */
#define F16_MIN    0x1p-14f
#define F16_MAX    65504.0f
#define BF16_MAX   0x1.fep127f

/* One factor of the search, as the inner loop wants it: code - zero is clamp(rne(w * inverse), low, high). */
typedef struct {
    float scale, inverse, low, high;
} candidate;

float dpq_grid_round_scale(float s, dpq_dtype dtype)
{
    float smallest = FLT_MIN;
    float largest = FLT_MAX;
    float rounded = s;
    if (dtype == DPQ_DTYPE_BF16) {
        largest = BF16_MAX;
        rounded = dpq_bf16_to_f32(dpq_f32_to_bf16(s));
    } else if (dtype == DPQ_DTYPE_F16) {
        smallest = F16_MIN;
        largest = F16_MAX;
        rounded = dpq_f16_to_f32(dpq_f32_to_f16(s));
    }
    float magnitude = fabsf(rounded);
    if (magnitude < smallest) {
        return copysignf(smallest, s);
    }
    return magnitude > largest ? copysignf(largest, s) : rounded;
}

/* Smallest and largest weight, zero included. */
DPQ_HOT static void find_range(const float *restrict w, int64_t width, float *low, float *high)
{
    float lows[LANES] = {0};
    float highs[LANES] = {0};
    int64_t j = 0;
    for (; j + LANES <= width; j += LANES) {
        for (int l = 0; l < LANES; l++) {
            lows[l] = w[j + l] < lows[l] ? w[j + l] : lows[l];
            highs[l] = w[j + l] > highs[l] ? w[j + l] : highs[l];
        }
    }
    for (; j < width; j++) {
        lows[0] = w[j] < lows[0] ? w[j] : lows[0];
        highs[0] = w[j] > highs[0] ? w[j] : highs[0];
    }
    for (int l = 1; l < LANES; l++) {
        lows[0] = lows[l] < lows[0] ? lows[l] : lows[0];
        highs[0] = highs[l] > highs[0] ? highs[l] : highs[0];
    }
    *low = lows[0];
    *high = highs[0];
}

QUANT_INLINE void add_errors(const candidate *c, const float *restrict w, const float *restrict importance,
                             float *restrict lanes)
{
    for (int l = 0; l < LANES; l++) {
        float r = quant_round(quant_clamp(w[l] * c->inverse, c->low, c->high));
        float d = w[l] - r * c->scale;
        lanes[l] += (importance[l] * d) * d;
    }
}

/* error[i] = sum over j of importance_j (w_j - value_j)^2 for each candidate. */
DPQ_HOT static void candidate_errors(const candidate *restrict c, int64_t n, const float *restrict w,
                                     const float *restrict importance, int64_t width, float *restrict error)
{
    int64_t whole = width - width % LANES;
    float last_w[LANES] = {0};
    float last_importance[LANES] = {0};
    for (int64_t j = whole; j < width; j++) {
        last_w[j - whole] = w[j];
        last_importance[j - whole] = importance[j];
    }
    for (int64_t i = 0; i < n; i++) {
        const candidate now = c[i];
        float lanes[LANES] = {0};
        for (int64_t j = 0; j < whole; j += LANES) {
            add_errors(&now, w + j, importance + j, lanes);
        }
        if (whole < width) {
            add_errors(&now, last_w, last_importance, lanes);
        }
        for (int half = LANES / 2; half > 0; half /= 2) {
            for (int l = 0; l < half; l++) {
                lanes[l] += lanes[l + half];
            }
        }
        error[i] = lanes[0];
    }
}

/* Importance scaled by powers of two so that neither the largest importance nor the largest weight can push an error
 * out of the range of fp32; an argmin does not see it. Without importance, or when all of it is zero, every weight
 * counts the same. */
DPQ_HOT static void scale_importance(const float *restrict importance, int64_t width, float absmax,
                                     float *restrict scaled)
{
    float largest = 0.0f;
    for (int64_t j = 0; importance && j < width; j++) {
        largest = importance[j] > largest ? importance[j] : largest;
    }
    int exponent = 0;
    (void)frexpf(absmax, &exponent);
    exponent = exponent < -50 ? -50 : exponent > 50 ? 50 : exponent;
    float to_weights = ldexpf(1.0f, -2 * exponent);
    if (largest == 0.0f) {
        for (int64_t j = 0; j < width; j++) {
            scaled[j] = to_weights;
        }
        return;
    }
    (void)frexpf(largest, &exponent);
    float to_one = ldexpf(1.0f, exponent < -126 ? 126 : -exponent);
    for (int64_t j = 0; j < width; j++) {
        scaled[j] = (importance[j] * to_one) * to_weights;
    }
}

/* The grid of range [low, high] (low <= 0 <= high, not both 0) with FACTOR on the range. */
static dpq_grid grid_of_range(const dpq_scheme *scheme, dpq_dtype scale_dtype, float low, float high, float factor)
{
    dpq_grid grid = {.scale = 1.0f, .zero = 0};
    float levels = (float)((1 << scheme->bits) - 1);
    if (scheme->symmetric) {
        bool low_is_larger = -low >= high; /* equal: the scale is positive */
        float s = 0.0f;
        if (scheme->signed_scale) {
            s = -(low_is_larger ? low : high) * factor / (float)(1 << (scheme->bits - 1));
        } else {
            s = (low_is_larger ? -low : high) * factor / (levels / 2.0f);
        }
        grid.scale = dpq_grid_round_scale(s, scale_dtype);
        return grid;
    }
    float lower = low * factor;
    grid.scale = dpq_grid_round_scale((high * factor - lower) / levels, scale_dtype);
    float code_min = (float)quant_code_min(scheme);
    grid.zero = (int)rintf(quant_clamp(code_min - lower / grid.scale, code_min, (float)quant_code_max(scheme)));
    return grid;
}

static double factor_at(const dpq_search_options *options, int64_t i)
{
    return options->steps > 1 ? options->low + (options->high - options->low) * (double)i / (double)(options->steps - 1)
                              : options->low;
}

dpq_grid dpq_grid_choose(const dpq_scheme *scheme, const dpq_search_options *options, dpq_dtype scale_dtype,
                         const float *w, const float *importance, int64_t width, float *work)
{
    float low = 0.0f;
    float high = 0.0f;
    find_range(w, width, &low, &high);
    if (low == 0.0f && high == 0.0f) {
        return (dpq_grid){.scale = 1.0f, .zero = 0};
    }
    dpq_grid best = grid_of_range(scheme, scale_dtype, low, high, 1.0f);
    if (options->search == DPQ_SEARCH_MINMAX || options->steps < 1) {
        return best;
    }
    scale_importance(options->search == DPQ_SEARCH_IMPORTANCE ? importance : NULL, width, -low > high ? -low : high,
                     work);
    float best_error = INFINITY;
    double best_distance = INFINITY;
    for (int64_t first = 0; first < options->steps; first += CANDIDATES) {
        int64_t n = options->steps - first < CANDIDATES ? options->steps - first : CANDIDATES;
        dpq_grid grids[CANDIDATES];
        candidate candidates[CANDIDATES];
        float errors[CANDIDATES];
        for (int64_t i = 0; i < n; i++) {
            grids[i] = grid_of_range(scheme, scale_dtype, low, high, (float)factor_at(options, first + i));
            candidates[i] = (candidate){.scale = grids[i].scale,
                                        .inverse = 1.0f / grids[i].scale,
                                        .low = (float)(quant_code_min(scheme) - grids[i].zero),
                                        .high = (float)(quant_code_max(scheme) - grids[i].zero)};
        }
        candidate_errors(candidates, n, w, work, width, errors);
        for (int64_t i = 0; i < n; i++) {
            double distance = fabs(factor_at(options, first + i) - 1.0);
            if (errors[i] < best_error || (errors[i] == best_error && distance < best_distance)) {
                best = grids[i];
                best_error = errors[i];
                best_distance = distance;
            }
        }
    }
    return best;
}

int dpq_grid_code(const dpq_scheme *scheme, dpq_grid grid, float w)
{
    return (int)quant_code(w, grid.scale, (float)grid.zero, (float)quant_code_min(scheme),
                           (float)quant_code_max(scheme));
}
