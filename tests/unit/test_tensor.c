/* SPDX-License-Identifier: Apache-2.0 */
/* Element types, tensor creation and its limits, row views, contiguity. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "dpquant/tensor.h"

static void test_dtypes(void **state)
{
    (void)state;
    for (int i = 0; i < DPQ_DTYPE_COUNT; i++) {
        dpq_dtype found = DPQ_DTYPE_COUNT;
        assert_true(dpq_dtype_from_name(dpq_dtype_name((dpq_dtype)i), &found));
        assert_int_equal(found, i);
    }
    assert_string_equal(dpq_dtype_name(DPQ_DTYPE_F8_E4M3), "F8_E4M3");
    assert_int_equal(dpq_dtype_bytes(DPQ_DTYPE_F64), 8);
    assert_int_equal(dpq_dtype_bytes(DPQ_DTYPE_BF16), 2);
    assert_int_equal(dpq_dtype_bytes(DPQ_DTYPE_BOOL), 1);
    dpq_dtype unused;
    assert_false(dpq_dtype_from_name("bf16", &unused));
    assert_false(dpq_dtype_from_name("", &unused));
    assert_false(dpq_dtype_from_name("F32 ", &unused));
}

static void test_create(void **state)
{
    (void)state;
    const int64_t dim[3] = {2, 3, 5};
    dpq_tensor t;
    assert_int_equal(dpq_tensor_create(DPQ_DTYPE_F32, 3, dim, &t), DPQ_OK);
    assert_true(t.owner && t.space == DPQ_SPACE_HOST && t.rank == 3);
    assert_int_equal(t.stride[0], 15);
    assert_int_equal(t.stride[1], 5);
    assert_int_equal(t.stride[2], 1);
    assert_int_equal(dpq_tensor_count(&t), 30);
    assert_int_equal(dpq_tensor_bytes(&t), 120);
    assert_true(dpq_tensor_is_contiguous(&t));
    assert_int_equal((uintptr_t)t.data % 64, 0);
    for (int i = 0; i < 30; i++) {
        assert_true(((float *)t.data)[i] == 0.0f);
    }
    dpq_tensor_fini(&t);
    const dpq_tensor zero = {0};
    assert_memory_equal(&t, &zero, sizeof t);
    dpq_tensor_fini(&t);
}

static void test_create_odd_shapes(void **state)
{
    (void)state;
    dpq_tensor t;
    assert_int_equal(dpq_tensor_create(DPQ_DTYPE_U8, 0, NULL, &t), DPQ_OK);
    assert_int_equal(dpq_tensor_count(&t), 1);
    dpq_tensor_fini(&t);
    assert_int_equal(dpq_tensor_count(&t), 0);
    assert_int_equal(dpq_tensor_bytes(&t), 0);
    assert_int_equal(dpq_tensor_create_2d(DPQ_DTYPE_BF16, 0, 7, &t), DPQ_OK);
    assert_non_null(t.data);
    assert_int_equal(dpq_tensor_count(&t), 0);
    assert_true(dpq_tensor_is_contiguous(&t));
    dpq_tensor_fini(&t);
    assert_int_equal(dpq_tensor_create_1d(DPQ_DTYPE_I64, 1, &t), DPQ_OK);
    assert_int_equal(dpq_tensor_bytes(&t), 8);
    dpq_tensor_fini(&t);
}

static void test_create_refuses(void **state)
{
    (void)state;
    dpq_tensor t = {.rank = 99};
    const int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    assert_int_equal(dpq_tensor_create(DPQ_DTYPE_F32, 9, nine, &t), DPQ_E_SHAPE);
    assert_int_equal(t.rank, 0);
    assert_int_equal(dpq_tensor_create(DPQ_DTYPE_F32, -1, nine, &t), DPQ_E_SHAPE);
    assert_int_equal(dpq_tensor_create_2d(DPQ_DTYPE_F32, 3, -1, &t), DPQ_E_SHAPE);
    assert_non_null(strstr(dpq_error_last()->text, "-1"));
    assert_int_equal(dpq_tensor_create_2d(DPQ_DTYPE_F32, INT64_MAX, 2, &t), DPQ_E_MEMORY);
    const int64_t hidden[3] = {INT64_MAX, INT64_MAX, 0}; /* empty, but its strides overflow */
    assert_int_equal(dpq_tensor_create(DPQ_DTYPE_F32, 3, hidden, &t), DPQ_E_MEMORY);
    assert_null(t.data);
}

static void test_rows_and_strides(void **state)
{
    (void)state;
    float data[24];
    for (int i = 0; i < 24; i++) {
        data[i] = (float)i;
    }
    dpq_tensor t = dpq_tensor_wrap_2d(data, DPQ_DTYPE_F32, 4, 6);
    assert_false(t.owner);
    dpq_tensor rows = dpq_tensor_rows(&t, 1, 3);
    assert_int_equal(rows.dim[0], 2);
    assert_int_equal(dpq_tensor_count(&rows), 12);
    assert_true(*(float *)rows.data == 6.0f);
    assert_true(dpq_tensor_is_contiguous(&rows));
    assert_true(!dpq_tensor_same_shape(&t, &rows) && dpq_tensor_same_shape(&t, &t));
    dpq_tensor none = dpq_tensor_rows(&t, 4, 4);
    assert_int_equal(dpq_tensor_count(&none), 0);

    dpq_tensor left = t; /* the first two columns */
    left.dim[1] = 2;
    assert_false(dpq_tensor_is_contiguous(&left));
    dpq_tensor lower = dpq_tensor_rows(&left, 3, 4);
    assert_true(*(float *)lower.data == 18.0f);
    assert_true(dpq_tensor_is_contiguous(&lower)); /* one row: its row stride is never used */

    dpq_tensor vector = dpq_tensor_wrap_1d(data, DPQ_DTYPE_F32, 24);
    assert_false(dpq_tensor_same_shape(&vector, &t));
    dpq_tensor borrowed = dpq_tensor_rows(&vector, 23, 24);
    dpq_tensor_fini(&borrowed); /* must not free the array */
    assert_true(data[23] == 23.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_create_odd_shapes),
        cmocka_unit_test(test_create_refuses),
        cmocka_unit_test(test_rows_and_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
