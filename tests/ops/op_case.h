/* SPDX-License-Identifier: Apache-2.0 */
/* What the operation tests share: matrices with guard bands, inputs from a fixed generator, one table of bounds, and
 * running an operation on backends with different numbers of threads. Failures end the running cmocka test. */
#ifndef DPQUANT_OP_CASE_H
#define DPQUANT_OP_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dpquant/backend.h"

/* A matrix inside a larger area: guard rows before and after, PAD guard elements behind each row. */
typedef struct {
    dpq_tensor t;
    unsigned char *memory;
    size_t bytes;
    int64_t pad;
} op_matrix;

op_matrix op_matrix_create(dpq_dtype dtype, int64_t rows, int64_t cols, int64_t pad);
void op_matrix_free(op_matrix *m);
/* Fill with numbers of about normal distribution (sum of four uniforms, variance 1) times SCALE, rounded to the type.
 */
void op_matrix_fill(op_matrix *m, uint64_t seed, double scale);
double op_matrix_get(const op_matrix *m, int64_t i, int64_t j);
void op_matrix_set(op_matrix *m, int64_t i, int64_t j, double value);
/* All values, contiguous, on the heap (free). */
double *op_matrix_values(const op_matrix *m);
double *op_doubles(int64_t n);
uint32_t op_random(uint64_t *seed);

/* Bounds, in rounding steps (op_case.c). */
typedef enum {
    OP_LINEAR,
    OP_RMSNORM,
    OP_ROPE,
    OP_ATTENTION,
    OP_SILU_MUL,
    OP_GATHER_ROWS,
    OP_XTX,
    OP_FACTOR,
    OP_SUBTRACT_PRODUCT,
    OP_NLL,
    OP_KL,
    OP_LINEAR_BACKWARD,
    OP_WEIGHT_GRADIENT,
    OP_RMSNORM_BACKWARD,
    OP_ATTENTION_BACKWARD,
    OP_SILU_MUL_BACKWARD,
    OP_SQUARED_ERROR,
    OP_COUNT
} op_id;
/* Largest error allowed for a result REF stored as DTYPE whose terms have size MAGNITUDE; BF16_INSIDE: an intermediate
 * is rounded to bf16. */
double op_limit(op_id op, double ref, double magnitude, dpq_dtype dtype, bool bf16_inside);
/* M against REF and MAGNITUDE (|REF| when NULL), element by element; NaN and infinities must match. */
void op_check_close(op_id op, const char *label, const op_matrix *m, const double *ref, const double *magnitude,
                    bool bf16_inside);

/* Backends with 1, 2, 3, 8 and 64 threads, for cmocka group setup and teardown. */
#define OP_BACKENDS 5
extern dpq_backend *op_backends[OP_BACKENDS];
int op_create_backends(void **state);
int op_destroy_backends(void **state);

/* Run CALL on a copy of INITIAL with every backend; guard bands must be whole and all results have the same bits.
 * Returns the result. */
typedef dpq_status (*op_call)(dpq_backend *be, void *context, dpq_tensor *out);
op_matrix op_run(const char *label, op_call call, void *context, const op_matrix *initial);
/* The guard bands of M are as created. */
void op_check_guards(const char *label, const op_matrix *m);

#endif
