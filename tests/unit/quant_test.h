/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the quantization algorithms share: weights from counter-based random numbers, and comparison of
 * results. */
#ifndef DPQUANT_QUANT_TEST_H
#define DPQUANT_QUANT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "dpquant/algo.h"
#include "dpquant/half.h"
#include "dpquant/rng.h"

/* Uniform in [-1, 1). */
static inline double random_unit(uint64_t stream, uint64_t counter)
{
    return (double)(int64_t)dpq_rng_u64(7, stream, counter) * 0x1p-63;
}

/* Bell-shaped around 0, with a rare large one. */
static inline float random_weight(uint64_t stream, uint64_t counter)
{
    double sum = 0.0;
    for (uint64_t i = 0; i < 4; i++) {
        sum += random_unit(stream, 4 * counter + i);
    }
    return (float)(0.02 * sum * (counter % 97 == 5 ? 4.0 : 1.0));
}

static inline dpq_tensor random_weights(dpq_dtype dtype, int64_t n, int64_t k, uint64_t stream)
{
    dpq_tensor w;
    float *values = malloc((size_t)(n * k) * sizeof(float));
    assert_non_null(values);
    for (int64_t i = 0; i < n * k; i++) {
        values[i] = random_weight(stream, (uint64_t)i);
    }
    assert_int_equal(dpq_tensor_create_2d(dtype, n, k, &w), DPQ_OK);
    assert_int_equal(dpq_convert(values, DPQ_DTYPE_F32, w.data, dtype, n * k), DPQ_OK);
    free(values);
    return w;
}

static inline void weights_as_f32(const dpq_tensor *w, float *dst)
{
    assert_int_equal(dpq_convert(w->data, w->dtype, dst, DPQ_DTYPE_F32, dpq_tensor_count(w)), DPQ_OK);
}

static inline void assert_tensor_bytes_equal(const dpq_tensor *a, const dpq_tensor *b)
{
    assert_int_equal(dpq_tensor_bytes(a), dpq_tensor_bytes(b));
    if (a->data) {
        assert_memory_equal(a->data, b->data, dpq_tensor_bytes(a));
    }
}

static inline void assert_qweights_equal(const dpq_qweight *a, const dpq_qweight *b)
{
    assert_tensor_bytes_equal(&a->codes, &b->codes);
    assert_tensor_bytes_equal(&a->scale, &b->scale);
    assert_tensor_bytes_equal(&a->zero, &b->zero);
    assert_tensor_bytes_equal(&a->row_error, &b->row_error);
    assert_int_equal(a->g_idx.data != NULL, b->g_idx.data != NULL);
    if (a->g_idx.data) {
        assert_tensor_bytes_equal(&a->g_idx, &b->g_idx);
    }
}

static inline dpq_algo_options default_options(void)
{
    dpq_algo_options options;
    memset(&options, 0, sizeof options);
    dpq_option_set rtn = {dpq_rtn_option_table, dpq_rtn_option_count, &options, NULL};
    dpq_option_set gptq = {dpq_gptq_option_table, dpq_gptq_option_count, &options, NULL};
    assert_int_equal(dpq_option_set_defaults(&rtn), DPQ_OK);
    assert_int_equal(dpq_option_set_defaults(&gptq), DPQ_OK);
    return options;
}

#endif
