/* SPDX-License-Identifier: Apache-2.0 */
/* Scale and zero point of one group (docs/algorithms/rtn.md), and rounding to its grid. Everything in fp32; the scale
 * is rounded to its stored type before it is used. */
#ifndef DPQUANT_GRID_H
#define DPQUANT_GRID_H

#include <stdint.h>

#include "dpquant/scheme.h"
#include "dpquant/status.h"

/* How a group's scale is chosen. */
typedef enum {
    DPQ_SEARCH_MINMAX,    /* the range as it is */
    DPQ_SEARCH_MSE,       /* factor on the range that minimises sum (w - q)^2 */
    DPQ_SEARCH_IMPORTANCE /* the same weighted by importance: sum imp_j (w_j - q_j)^2 */
} dpq_search;

typedef struct {
    dpq_search search;
    double low, high; /* factors on the range, evenly spaced, both ends included */
    int64_t steps;    /* number of factors */
} dpq_search_options;

typedef struct {
    float scale; /* representable in the stored type; never 0 or non-finite */
    int zero;    /* signed code range; 0 when symmetric */
} dpq_grid;

/* Grid of a group of WIDTH weights w; IMPORTANCE (WIDTH) or NULL (then all 1). Importance may contain zeros; all zero
 * counts as all 1. All-zero groups get scale 1 and zero 0. WORK: 3 * width floats at least. */
dpq_grid dpq_grid_choose(const dpq_scheme *scheme, const dpq_search_options *options, dpq_dtype scale_dtype,
                         const float *w, const float *importance, int64_t width, float *work);
/* Code of one value: clamp(rne(w / s) + z) to the signed range; rne ties to even. Value of a code: (q - z) * s. */
int dpq_grid_code(const dpq_scheme *scheme, dpq_grid grid, float w);
static inline float dpq_grid_value(dpq_grid grid, int code)
{
    return (float)(code - grid.zero) * grid.scale;
}
/* The fp32 value nearest to S in DTYPE, guarded: never zero, never infinite. */
float dpq_grid_round_scale(float s, dpq_dtype dtype);

#endif
