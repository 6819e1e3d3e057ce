/* SPDX-License-Identifier: Apache-2.0 */
/* What block tuning is made of (docs/algorithms/signround.md): the quantizer with tunable rounding and range
 * (tune_grid.c), its parameters and passes over the rows of a linear (tune_state.c), and the rule that moves the
 * parameters against their gradient, which is all that one tuning algorithm differs in from another. */
#ifndef DPQUANT_TUNE_PRIV_H
#define DPQUANT_TUNE_PRIV_H

#include "dpquant/block_algo.h"
#include "dpquant/grid.h"
#include "quant_priv.h"

/* How the scale follows from the parameters. */
typedef enum {
    TUNE_FORM_SIGNED, /* symmetric, range low..high, the scale takes the sign of the larger end */
    TUNE_FORM_PLAIN,  /* symmetric, range low..high, positive scale */
    TUNE_FORM_SCALE,  /* symmetric, scale = high * max_scale */
    TUNE_FORM_RANGE   /* asymmetric, range low..high */
} tune_form;

typedef struct {
    tune_form form;
    int bits;
    dpq_dtype scale_dtype;
} tune_quantizer;

/* The grid of one group at the present parameters, and the derivatives of its scale. low and high are the group's
 * constants; both 0 means that the group has only zeros: it is frozen. */
typedef struct {
    float scale, zero;        /* as stored */
    float code_min, code_max; /* bounds of code - zero */
    bool frozen;
    bool zero_follows;    /* the zero point moves with the range (it is not clamped, not symmetric) */
    float low_ratio;      /* lower end of the range / scale when the zero point follows, else 0 */
    float by_min, by_max; /* d scale / d min_scale, d scale / d max_scale; 0 while the scale is at its guard */
} tune_grid;

/* Sums over a group that the gradients of its range need. */
typedef struct {
    float scale; /* d loss / d scale, the effect of the scale on the zero point included */
    float low;   /* d loss / d lower end, through the zero point alone */
} tune_range_gradient;

tune_grid dpq_tune_grid(const tune_quantizer *quantizer, float low, float high, float min_scale, float max_scale);
/* Values, or codes, of one group: w weights, v the tuned shifts of their rounding. */
void dpq_tune_values(const tune_grid *grid, const float *w, const float *v, int64_t width, float *values);
void dpq_tune_codes(const tune_grid *grid, const float *w, const float *v, int64_t width, int8_t *codes);
/* From the gradient SUM * UNIT of the values: gradient of v, and the sums for the range. */
tune_range_gradient dpq_tune_gradient(const tune_grid *grid, const float *w, const float *v, const int32_t *sum,
                                      float unit, int64_t width, float *gradient_v);
/* VALUES rounded to bf16, as bf16 or as f32. */
void dpq_tune_store_bf16(const float *values, int64_t n, uint16_t *dst);
void dpq_tune_round_bf16(float *values, int64_t n);

/* One array of parameters with what a rule remembers of its gradients (NULL when it needs none). */
typedef struct {
    float *value, *first, *second;
} tune_parameter;

typedef struct {
    const char *name;
    int (*moments)(const dpq_tune_options *options); /* 0, 1 (first) or 2 (first, second) */
    /* One step of N parameters against their gradient. STEP counts from 0. */
    void (*update)(const dpq_tune_options *options, int64_t step, float lr, const float *gradient, int64_t n,
                   tune_parameter parameter);
} tune_rule;

/* The parts of a dpq_block_algo_ops that all rules share. */
DPQ_MUST_USE dpq_status dpq_tune_create(const tune_rule *rule, const dpq_tune_options *options, dpq_backend *be,
                                        const dpq_tune_linear *linears, int n, dpq_block_state **out);
void dpq_tune_destroy(dpq_block_state **state);
size_t dpq_tune_state_bytes(const tune_rule *rule, const dpq_tune_options *options, int64_t n, int64_t k,
                            int64_t groups);
DPQ_MUST_USE dpq_status dpq_tune_weights(dpq_block_state *state, int i, dpq_tensor *wq);
DPQ_MUST_USE dpq_status dpq_tune_snapshot(dpq_block_state *state);
DPQ_MUST_USE dpq_status dpq_tune_step(dpq_block_state *state, int step, int i, const int32_t *sum, double unit);
DPQ_MUST_USE dpq_status dpq_tune_finish(dpq_block_state *state, bool best, int i, dpq_qweight *out);

/* For tests and reports: the parameters of linear I. V (N,K), scales (N,G). */
typedef struct {
    const float *v, *max_scale, *min_scale;
} tune_view;
tune_view dpq_tune_view(const dpq_block_state *state, int i);

extern const dpq_block_algo_ops dpq_signround_ops; /* signround.c */
extern const dpq_block_algo_ops dpq_adaround_ops;  /* adaround.c */

#endif
