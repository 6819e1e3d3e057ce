/* SPDX-License-Identifier: Apache-2.0 */
/* Guarded matrices, the table of bounds, and the runner over thread counts (op_case.h). */
#include "op_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpquant/half.h"

#define GUARD_ROWS 2
#define GUARD_BYTE 0xa5

#define STEP_F32  0x1p-24 /* largest relative error of rounding once to f32 */
#define STEP_F64  0x1p-53
#define STEP_BF16 0x1p-8
#define FLOOR     0x1p-120 /* results below may be lost to the end of the exponent range */

/* Steps of fp32 (fp64 for a matrix of F64) times the size of the terms, on top of one rounding to the stored type; and
 * steps of bf16 times the size of the terms where an intermediate is bf16. Raised only with a reason beside it. */
static const struct {
    double work, bf16;
} bounds[OP_COUNT] = {
    [OP_LINEAR] = {8, 0},      /* K up to 8192 in blocked fp32 sums */
    [OP_RMSNORM] = {4, 0},     /* factor and two products */
    [OP_ROPE] = {2, 0},        /* two products, one sum */
    [OP_ATTENTION] = {32, 1},  /* scores of size 10 are rounded before the exponential; probabilities as bf16 */
    [OP_SILU_MUL] = {6, 0},    /* exponential 2, sum, quotient, product */
    [OP_GATHER_ROWS] = {0, 0}, /* one rounding to the stored type */
    [OP_XTX] = {32, 0},        /* 4096 squares one after another in fp32: about sqrt(4096) / 4 = 16 steps are usual */
    [OP_FACTOR] = {64, 0},     /* of the identity's entries; condition below 100 */
    [OP_SUBTRACT_PRODUCT] = {8, 0}, /* as linear */
    [OP_NLL] = {1, 0},              /* difference from the maximum and exponential, averaged over the row */
    [OP_KL] = {1, 0},
    [OP_LINEAR_BACKWARD] = {8, 0},     /* as linear */
    [OP_WEIGHT_GRADIENT] = {8, 0},     /* as linear; the sum is over tokens */
    [OP_RMSNORM_BACKWARD] = {6, 0},    /* factor, two products, their difference, the sum */
    [OP_ATTENTION_BACKWARD] = {32, 1}, /* as attention; score gradients as bf16 */
    [OP_SILU_MUL_BACKWARD] = {10, 0},  /* as silu_mul, and four products */
    [OP_SQUARED_ERROR] = {2, 0},       /* factor and product */
};

double op_limit(op_id op, double ref, double magnitude, dpq_dtype dtype, bool bf16_inside)
{
    double work = dtype == DPQ_DTYPE_F64 && op == OP_FACTOR ? STEP_F64 : STEP_F32;
    double stored = dtype == DPQ_DTYPE_BF16 ? STEP_BF16 : dtype == DPQ_DTYPE_F32 ? STEP_F32 : 0.0;
    double inside = work * bounds[op].work * magnitude + (bf16_inside ? STEP_BF16 * bounds[op].bf16 * magnitude : 0.0);
    return inside + stored * (fabs(ref) + inside) + FLOOR;
}

/* ---- matrices ---- */

uint32_t op_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*seed >> 32);
}

double *op_doubles(int64_t n)
{
    double *p = calloc((size_t)(n > 0 ? n : 1), sizeof *p);
    assert_non_null(p);
    return p;
}

op_matrix op_matrix_create(dpq_dtype dtype, int64_t rows, int64_t cols, int64_t pad)
{
    op_matrix m = {.pad = pad};
    size_t elem = dpq_dtype_bytes(dtype), row = (size_t)(cols + pad) * elem;
    m.bytes = row * (size_t)(rows + 2 * GUARD_ROWS);
    m.memory = malloc(m.bytes);
    assert_non_null(m.memory);
    memset(m.memory, GUARD_BYTE, m.bytes);
    m.t = dpq_tensor_wrap_2d(m.memory + GUARD_ROWS * row, dtype, rows, cols);
    m.t.stride[0] = cols + pad;
    return m;
}

void op_matrix_free(op_matrix *m)
{
    free(m->memory);
    memset(m, 0, sizeof *m);
}

static void *element(const op_matrix *m, int64_t i, int64_t j)
{
    return (char *)m->t.data + (size_t)(i * m->t.stride[0] + j) * dpq_dtype_bytes(m->t.dtype);
}

double op_matrix_get(const op_matrix *m, int64_t i, int64_t j)
{
    const void *p = element(m, i, j);
    switch (m->t.dtype) {
    case DPQ_DTYPE_BF16:
        return (double)dpq_bf16_to_f32(*(const uint16_t *)p);
    case DPQ_DTYPE_F16:
        return (double)dpq_f16_to_f32(*(const uint16_t *)p);
    case DPQ_DTYPE_F32:
        return (double)*(const float *)p;
    default:
        assert_int_equal(m->t.dtype, DPQ_DTYPE_F64);
        return *(const double *)p;
    }
}

void op_matrix_set(op_matrix *m, int64_t i, int64_t j, double value)
{
    void *p = element(m, i, j);
    switch (m->t.dtype) {
    case DPQ_DTYPE_BF16:
        *(uint16_t *)p = dpq_f32_to_bf16((float)value);
        break;
    case DPQ_DTYPE_F16:
        *(uint16_t *)p = dpq_f32_to_f16((float)value);
        break;
    case DPQ_DTYPE_F32:
        *(float *)p = (float)value;
        break;
    default:
        assert_int_equal(m->t.dtype, DPQ_DTYPE_F64);
        *(double *)p = value;
    }
}

void op_matrix_fill(op_matrix *m, uint64_t seed, double scale)
{
    for (int64_t i = 0; i < m->t.dim[0]; i++) {
        for (int64_t j = 0; j < m->t.dim[1]; j++) {
            double sum = 0.0;
            for (int u = 0; u < 4; u++) {
                sum += (double)op_random(&seed) * 0x1p-31 - 1.0;
            }
            op_matrix_set(m, i, j, sum * sqrt(0.75) * scale);
        }
    }
}

double *op_matrix_values(const op_matrix *m)
{
    double *values = op_doubles(m->t.dim[0] * m->t.dim[1]);
    for (int64_t i = 0; i < m->t.dim[0]; i++) {
        for (int64_t j = 0; j < m->t.dim[1]; j++) {
            values[i * m->t.dim[1] + j] = op_matrix_get(m, i, j);
        }
    }
    return values;
}

/* ---- checks ---- */

void op_check_guards(const char *label, const op_matrix *m)
{
    size_t elem = dpq_dtype_bytes(m->t.dtype);
    size_t row = (size_t)(m->t.dim[1] + m->pad) * elem, used = (size_t)m->t.dim[1] * elem;
    size_t first = GUARD_ROWS * row, last = first + (size_t)m->t.dim[0] * row;
    for (size_t b = 0; b < m->bytes; b++) {
        bool inside = b >= first && b < last && (b - first) % row < used;
        if (!inside && m->memory[b] != GUARD_BYTE) {
            fail_msg("%s: byte %zd outside the result was written", label, (ssize_t)b - (ssize_t)first);
        }
    }
}

void op_check_close(op_id op, const char *label, const op_matrix *m, const double *ref, const double *magnitude,
                    bool bf16_inside)
{
    double worst = 0.0;
    int64_t cols = m->t.dim[1];
    for (int64_t i = 0; i < m->t.dim[0]; i++) {
        for (int64_t j = 0; j < cols; j++) {
            double got = op_matrix_get(m, i, j), want = ref[i * cols + j];
            double size = magnitude != NULL ? magnitude[i * cols + j] : fabs(want);
            double limit = op_limit(op, want, size, m->t.dtype, bf16_inside);
            bool same = isnan(want) ? isnan(got) : isinf(want) ? got == want : fabs(got - want) <= limit;
            if (!same) {
                fail_msg("%s: (%lld,%lld) is %.9g, expected %.9g, allowed error %.3g, found %.3g", label, (long long)i,
                         (long long)j, got, want, limit, fabs(got - want));
            }
            worst = isfinite(want) ? fmax(worst, fabs(got - want) / limit) : worst;
        }
    }
    if (getenv("DPQ_TEST_VERBOSE") != NULL) {
        printf("%s: largest error %.3f of the bound\n", label, worst);
    }
}

/* ---- backends ---- */

dpq_backend *op_backends[OP_BACKENDS];
static const int thread_counts[OP_BACKENDS] = {1, 2, 3, 8, 64};

int op_create_backends(void **state)
{
    (void)state;
    for (int b = 0; b < OP_BACKENDS; b++) {
        if (dpq_backend_create("cpu", thread_counts[b], &op_backends[b]) != DPQ_OK) {
            return 1;
        }
    }
    return 0;
}

int op_destroy_backends(void **state)
{
    (void)state;
    for (int b = 0; b < OP_BACKENDS; b++) {
        dpq_backend_destroy(&op_backends[b]);
    }
    return 0;
}

static op_matrix copy_of(const op_matrix *m)
{
    op_matrix copy = op_matrix_create(m->t.dtype, m->t.dim[0], m->t.dim[1], m->pad);
    memcpy(copy.memory, m->memory, m->bytes);
    return copy;
}

op_matrix op_run(const char *label, op_call call, void *context, const op_matrix *initial)
{
    op_matrix first = {0};
    for (int b = 0; b < OP_BACKENDS; b++) {
        op_matrix out = copy_of(initial);
        dpq_status st = call(op_backends[b], context, &out.t);
        if (st != DPQ_OK) {
            fail_msg("%s, %d threads: %s: %s", label, thread_counts[b], dpq_status_name(st), dpq_error_last()->text);
        }
        op_check_guards(label, &out);
        if (b == 0) {
            first = out;
            continue;
        }
        if (memcmp(out.memory, first.memory, out.bytes) != 0) {
            fail_msg("%s: %d threads give other bits than one", label, thread_counts[b]);
        }
        op_matrix_free(&out);
    }
    return first;
}
