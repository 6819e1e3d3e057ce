/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors: creation, wrapping, row views, and what follows from shape and strides. */
#include "dpquant/tensor.h"

#include <string.h>

#include "dpquant/alloc.h"

/* Row-major strides of a contiguous tensor. A dimension of 0 counts as 1 so that no stride becomes 0. */
static void set_contiguous(dpq_tensor *t)
{
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        t->stride[i] = stride;
        stride *= t->dim[i] > 0 ? t->dim[i] : 1;
    }
}

/* Product of the dimensions in *count. A 0 does not excuse others that overflow: strides would. */
static dpq_status check_shape(dpq_dtype dtype, int rank, const int64_t *dim, int64_t *count)
{
    *count = 0;
    if (rank < 0 || rank > DPQ_TENSOR_MAX_RANK) {
        return DPQ_RAISE(DPQ_E_SHAPE, "tensor with %d dimensions; expected 0..%d", rank, DPQ_TENSOR_MAX_RANK);
    }
    size_t bytes = dpq_dtype_bytes(dtype);
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        if (dim[i] < 0) {
            return DPQ_RAISE(DPQ_E_SHAPE, "tensor dimension %d is %lld; expected 0 or more", i, (long long)dim[i]);
        }
        empty = empty || dim[i] == 0;
        DPQ_TRY(dpq_mul_size(bytes, dim[i] > 0 ? (size_t)dim[i] : 1, &bytes));
    }
    if (bytes > (size_t)PTRDIFF_MAX) {
        return DPQ_RAISE(DPQ_E_MEMORY, "no memory for %zu bytes", bytes);
    }
    *count = empty ? 0 : (int64_t)(bytes / dpq_dtype_bytes(dtype));
    return DPQ_OK;
}

dpq_status dpq_tensor_create(dpq_dtype dtype, int rank, const int64_t *dim, dpq_tensor *out)
{
    memset(out, 0, sizeof *out);
    int64_t count = 0;
    void *data = NULL;
    DPQ_TRY(check_shape(dtype, rank, dim, &count));
    DPQ_TRY(dpq_alloc_array(count, dpq_dtype_bytes(dtype), &data));
    *out = dpq_tensor_wrap(data, dtype, rank, dim);
    out->owner = true;
    return DPQ_OK;
}

dpq_status dpq_tensor_create_1d(dpq_dtype dtype, int64_t n, dpq_tensor *out)
{
    return dpq_tensor_create(dtype, 1, &n, out);
}

dpq_status dpq_tensor_create_2d(dpq_dtype dtype, int64_t rows, int64_t cols, dpq_tensor *out)
{
    const int64_t dim[2] = {rows, cols};
    return dpq_tensor_create(dtype, 2, dim, out);
}

void dpq_tensor_fini(dpq_tensor *t)
{
    if (t->owner) {
        DPQ_ASSERT(t->space == DPQ_SPACE_HOST); /* other memory is freed by the backend that gave it */
        dpq_free(t->data);
    }
    memset(t, 0, sizeof *t);
}

dpq_tensor dpq_tensor_wrap(void *data, dpq_dtype dtype, int rank, const int64_t *dim)
{
    DPQ_ASSERT(rank >= 0 && rank <= DPQ_TENSOR_MAX_RANK);
    dpq_tensor t = {.data = data, .dtype = dtype, .rank = rank};
    for (int i = 0; i < rank; i++) {
        DPQ_ASSERT(dim[i] >= 0);
        t.dim[i] = dim[i];
    }
    set_contiguous(&t);
    return t;
}

dpq_tensor dpq_tensor_wrap_1d(void *data, dpq_dtype dtype, int64_t n)
{
    return dpq_tensor_wrap(data, dtype, 1, &n);
}

dpq_tensor dpq_tensor_wrap_2d(void *data, dpq_dtype dtype, int64_t rows, int64_t cols)
{
    const int64_t dim[2] = {rows, cols};
    return dpq_tensor_wrap(data, dtype, 2, dim);
}

dpq_tensor dpq_tensor_rows(const dpq_tensor *t, int64_t begin, int64_t end)
{
    DPQ_ASSERT(t->rank >= 1 && begin >= 0 && begin <= end && end <= t->dim[0]);
    dpq_tensor view = *t;
    view.owner = false;
    view.dim[0] = end - begin;
    if (t->data && begin < end) {
        view.data = (char *)t->data + begin * t->stride[0] * (int64_t)dpq_dtype_bytes(t->dtype);
    }
    return view;
}

int64_t dpq_tensor_count(const dpq_tensor *t)
{
    if (t->rank == 0) {
        return t->data ? 1 : 0;
    }
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++) {
        count *= t->dim[i];
    }
    return count;
}

size_t dpq_tensor_bytes(const dpq_tensor *t)
{
    return (size_t)dpq_tensor_count(t) * dpq_dtype_bytes(t->dtype);
}

bool dpq_tensor_is_contiguous(const dpq_tensor *t)
{
    if (dpq_tensor_count(t) == 0) {
        return true;
    }
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        if (t->dim[i] != 1 && t->stride[i] != stride) { /* the stride of a single element is never used */
            return false;
        }
        stride *= t->dim[i];
    }
    return true;
}

bool dpq_tensor_same_shape(const dpq_tensor *a, const dpq_tensor *b)
{
    if (a->rank != b->rank) {
        return false;
    }
    for (int i = 0; i < a->rank; i++) {
        if (a->dim[i] != b->dim[i]) {
            return false;
        }
    }
    return true;
}
