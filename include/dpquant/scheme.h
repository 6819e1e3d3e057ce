/* SPDX-License-Identifier: Apache-2.0 */
/* Integer weight schemes and the quantized form of a linear. Letters: N outputs, K inputs, G = groups along K. */
#ifndef DPQUANT_SCHEME_H
#define DPQUANT_SCHEME_H

#include <stdint.h>

#include "dpquant/status.h"
#include "dpquant/tensor.h"

/* Codes are signed, -2^(b-1) .. 2^(b-1)-1; value = (q - zero) * scale. */
typedef struct {
    int bits;           /* 2..8 */
    int64_t group_size; /* > 0 divides K; -1: one group a row */
    bool symmetric;     /* zero == 0 */
    bool signed_scale;  /* symmetric only: the scale takes the sign that puts the extreme of largest magnitude on code
                           -2^(b-1) */
} dpq_scheme;

typedef struct {
    const char *name; /* "W4A16", "W4A16_ASYM", "W3A16", "W8A16", ... */
    dpq_scheme scheme;
    const char *loaders; /* who takes it, for `dpquant list` */
} dpq_named_scheme;
const dpq_named_scheme *dpq_scheme_at(int index); /* NULL past the end */
const dpq_named_scheme *dpq_scheme_find(const char *name);

int64_t dpq_scheme_groups(const dpq_scheme *scheme, int64_t k);
/* Members of a group: group_size, or k for whole rows. */
int64_t dpq_scheme_group_width(const dpq_scheme *scheme, int64_t k);
/* "W4 group 128 symmetric" */
void dpq_scheme_describe(const dpq_scheme *scheme, char *text, size_t size);
bool dpq_scheme_equal(const dpq_scheme *a, const dpq_scheme *b);
/* Errors: DPQ_E_UNSUPPORTED when the group size does not divide K: text names MODULE, K, and the common group sizes
 * that would do. */
DPQ_MUST_USE dpq_status dpq_scheme_check(const dpq_scheme *scheme, const char *module, int64_t k);

/* A quantized linear. Rows may be filled by different ranks. scale holds values that are exactly representable in
 * scale_dtype. */
typedef struct {
    dpq_scheme scheme;
    int64_t n, k, groups;
    dpq_dtype scale_dtype; /* BF16, F16 or F32: the source weight's type */
    dpq_tensor codes;      /* (N,K) I8 */
    dpq_tensor scale;      /* (N,G) F32 */
    dpq_tensor zero;       /* (N,G) I8; all zero when symmetric */
    dpq_tensor row_error;  /* (N,2) F64: error and signal of each row in the algorithm's own measure (importance- or
                              Hessian-weighted) */
    dpq_tensor g_idx;      /* (K) I32 group of each column, or empty: column / group width */
} dpq_qweight;
DPQ_MUST_USE dpq_status dpq_qweight_create(const dpq_scheme *scheme, int64_t n, int64_t k, dpq_dtype scale_dtype,
                                           bool with_g_idx, dpq_qweight *out);
void dpq_qweight_fini(dpq_qweight *q);
/* Square root of error / signal of the whole linear, rows added in order; 0 without signal. */
double dpq_qweight_relative_error(const dpq_qweight *q);
/* Rows [begin,end) as values in dst (end-begin, K) F32 or BF16 (rounded once from the fp32 product, as loaders do). */
DPQ_MUST_USE dpq_status dpq_qweight_dequantize(const dpq_qweight *q, int64_t begin, int64_t end, dpq_tensor *dst);
/* Every scale finite, non-zero, positive unless signed_scale; zero points and codes in range. Errors: DPQ_E_NUMERIC
 * naming MODULE, row, group, value. */
DPQ_MUST_USE dpq_status dpq_qweight_check(const dpq_qweight *q, const char *module);

#endif
