/* SPDX-License-Identifier: Apache-2.0 */
/* Squared error with its gradient and its selection of outliers against the fp64 definition; the idle callback. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "dpquant/backend_grad.h"
#include "op_case.h"
#include "ref_grad.h"

#define COUNT(a) ((int64_t)(sizeof(a) / sizeof(a)[0]))
#define F32      DPQ_DTYPE_F32
#define BF16     DPQ_DTYPE_BF16

static const int64_t token_counts[] = {1, 7, 65, 300};

/* ---- squared_error ---- */

typedef struct {
    const dpq_tensor *y, *target;
    int64_t rows, suppress;
    double loss[OP_BACKENDS];
    int calls;
} error_context;

static dpq_status call_squared_error(dpq_backend *be, void *context, dpq_tensor *dy)
{
    error_context *c = context;
    return dpq_op_squared_error(be, c->y, c->target, c->rows, c->suppress, 0.37, dy, &c->loss[c->calls++]);
}

/* COARSE: few distinct differences, so that equal ones have to be told apart by their place. */
static void check_squared_error(dpq_dtype dtype, int64_t t, int64_t n, int64_t rows, int64_t suppress, bool coarse)
{
    char label[128];
    snprintf(label, sizeof label, "squared_error %s T=%lld C=%lld rows %lld suppress %lld", dpq_dtype_name(dtype),
             (long long)t, (long long)n, (long long)rows, (long long)suppress);
    op_matrix y = op_matrix_create(dtype, t, n, 1), target = op_matrix_create(F32, t, n, 2),
              dy = op_matrix_create(dtype, t, n, 3);
    op_matrix_fill(&y, 51, 1.0);
    op_matrix_fill(&target, 52, 1.0);
    for (int64_t i = 0; coarse && i < t * n; i++) {
        op_matrix_set(&y, i / n, i % n, rint(op_matrix_get(&y, i / n, i % n)));
        op_matrix_set(&target, i / n, i % n, rint(op_matrix_get(&target, i / n, i % n)));
    }
    double *yd = op_matrix_values(&y), *td = op_matrix_values(&target), *want = op_doubles(t * n);
    double loss = ref_squared_error(yd, td, t, rows, n, suppress, 0.37, want);
    error_context c = {.y = &y.t, .target = &target.t, .rows = rows, .suppress = suppress};
    op_matrix out = op_run(label, call_squared_error, &c, &dy);
    op_check_close(OP_SQUARED_ERROR, label, &out, want, NULL, false);
    for (int b = 0; b < OP_BACKENDS; b++) {
        assert_true(fabs(c.loss[b] - loss) <= 1e-13 * loss && c.loss[b] == c.loss[0]);
    }
    op_matrix_free(&out);
    op_matrix_free(&y);
    op_matrix_free(&target);
    op_matrix_free(&dy);
    free(yd);
    free(td);
    free(want);
}

static void test_squared_error(void **state)
{
    (void)state;
    const int64_t widths[] = {1, 33, 257};
    for (int64_t t = 0; t < COUNT(token_counts); t++) {
        for (int64_t w = 0; w < COUNT(widths); w++) {
            int64_t rows = token_counts[t], all = rows * widths[w];
            const int64_t drop[] = {0, 1, all / 1000, all / 3, all - 1, all};
            for (int64_t i = 0; i < COUNT(drop); i++) {
                check_squared_error(i % 2 == 0 ? F32 : BF16, rows, widths[w], rows, drop[i], false);
                check_squared_error(i % 2 == 0 ? BF16 : F32, rows, widths[w], rows, drop[i], true);
            }
            check_squared_error(BF16, rows, widths[w], rows / 2, 0, false);
            check_squared_error(BF16, rows, widths[w], rows / 2, rows / 2 * widths[w] / 4, true);
        }
    }
}

/* A broken value is not an outlier to leave out. */
static void test_squared_error_shows_nan(void **state)
{
    (void)state;
    const double bad[] = {NAN, INFINITY};
    for (int64_t i = 0; i < COUNT(bad); i++) {
        op_matrix y = op_matrix_create(F32, 5, 8, 0), target = op_matrix_create(F32, 5, 8, 0),
                  dy = op_matrix_create(F32, 5, 8, 0);
        op_matrix_fill(&y, 53, 1.0);
        op_matrix_fill(&target, 54, 1.0);
        op_matrix_set(&y, 3, 2, bad[i]);
        for (int64_t suppress = 0; suppress <= 40; suppress += 20) {
            error_context c = {.y = &y.t, .target = &target.t, .rows = 5, .suppress = suppress};
            op_matrix out = op_run("squared_error of NaN", call_squared_error, &c, &dy);
            assert_false(isfinite(c.loss[0]));
            assert_false(isfinite(op_matrix_get(&out, 3, 2)));
            op_matrix_free(&out);
        }
        op_matrix_free(&y);
        op_matrix_free(&target);
        op_matrix_free(&dy);
    }
}

/* ---- idle ---- */

typedef struct {
    pthread_t caller;
    int calls, elsewhere;
} idle_record;

static void on_idle(void *context)
{
    idle_record *record = context;
    record->calls++;
    record->elsewhere += pthread_equal(pthread_self(), record->caller) ? 0 : 1;
}

static void test_idle(void **state)
{
    (void)state;
    op_matrix x = op_matrix_create(F32, 300, 400, 0), y = op_matrix_create(F32, 300, 400, 0);
    op_matrix_fill(&x, 61, 1.0);
    for (int b = 0; b < OP_BACKENDS; b++) {
        int64_t tiles = 19; /* 300 rows in tiles of 16 */
        idle_record record = {.caller = pthread_self()};
        dpq_backend_set_idle(op_backends[b], on_idle, &record);
        for (int i = 0; i < 20; i++) {
            assert_int_equal(dpq_op_silu_mul(op_backends[b], &x.t, &x.t, &y.t), DPQ_OK);
        }
        assert_int_equal(record.elsewhere, 0);
        assert_true(b == 0 ? record.calls == 20 * tiles : record.calls <= 20 * tiles);
        for (int i = 0; record.calls == 0 && i < 20000; i++) { /* on a busy machine the others may take every tile */
            assert_int_equal(dpq_op_silu_mul(op_backends[b], &x.t, &x.t, &y.t), DPQ_OK);
        }
        assert_true(record.calls > 0);
        int before = record.calls;
        dpq_backend_set_idle(op_backends[b], NULL, NULL);
        assert_int_equal(dpq_op_silu_mul(op_backends[b], &x.t, &x.t, &y.t), DPQ_OK);
        assert_int_equal(record.calls, before);
    }
    op_matrix_free(&x);
    op_matrix_free(&y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_squared_error),
        cmocka_unit_test(test_squared_error_shows_nan),
        cmocka_unit_test(test_idle),
    };
    return cmocka_run_group_tests(tests, op_create_backends, op_destroy_backends);
}
