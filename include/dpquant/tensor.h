/* SPDX-License-Identifier: Apache-2.0 */
/* Element types and tensors: shape, strides, type, memory space, owner flag. */
#ifndef DPQUANT_TENSOR_H
#define DPQUANT_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "dpquant/status.h"

/* name as in safetensors, bits per element */
#define DPQ_DTYPE_LIST(X)                                                                                              \
    X(F64, 64)                                                                                                         \
    X(F32, 32) X(F16, 16) X(BF16, 16) X(I64, 64) X(U64, 64) X(I32, 32) X(U32, 32) X(I16, 16) X(U16, 16) X(I8, 8)       \
        X(U8, 8) X(BOOL, 8) X(F8_E4M3, 8) X(F8_E5M2, 8)
#define DPQ_DTYPE_ENUM(name, bits) DPQ_DTYPE_##name,
typedef enum { DPQ_DTYPE_LIST(DPQ_DTYPE_ENUM) DPQ_DTYPE_COUNT } dpq_dtype;
#undef DPQ_DTYPE_ENUM

const char *dpq_dtype_name(dpq_dtype dtype);
size_t dpq_dtype_bytes(dpq_dtype dtype);
/* false when NAME is no known type. */
bool dpq_dtype_from_name(const char *name, dpq_dtype *out);

typedef enum { DPQ_SPACE_HOST, DPQ_SPACE_PINNED, DPQ_SPACE_DEVICE } dpq_space;

#define DPQ_TENSOR_MAX_RANK 8

/* Plain data. Strides in elements. A zeroed tensor is valid and empty. */
typedef struct {
    void *data;
    dpq_dtype dtype;
    dpq_space space;
    bool owner; /* data is freed by dpq_tensor_fini */
    int rank;
    int64_t dim[DPQ_TENSOR_MAX_RANK];
    int64_t stride[DPQ_TENSOR_MAX_RANK];
} dpq_tensor;

/* A zeroed, contiguous host tensor that owns its memory. Errors: DPQ_E_MEMORY, DPQ_E_SHAPE (rank, negative size). */
DPQ_MUST_USE dpq_status dpq_tensor_create(dpq_dtype dtype, int rank, const int64_t *dim, dpq_tensor *out);
DPQ_MUST_USE dpq_status dpq_tensor_create_1d(dpq_dtype dtype, int64_t n, dpq_tensor *out);
DPQ_MUST_USE dpq_status dpq_tensor_create_2d(dpq_dtype dtype, int64_t rows, int64_t cols, dpq_tensor *out);
/* Free owned memory and zero the struct. */
void dpq_tensor_fini(dpq_tensor *t);

/* Contiguous tensor over memory of the caller; does not own it. */
dpq_tensor dpq_tensor_wrap(void *data, dpq_dtype dtype, int rank, const int64_t *dim);
dpq_tensor dpq_tensor_wrap_1d(void *data, dpq_dtype dtype, int64_t n);
dpq_tensor dpq_tensor_wrap_2d(void *data, dpq_dtype dtype, int64_t rows, int64_t cols);
/* Rows [begin, end) of a tensor of rank >= 1; borrowed. Asserts the bounds. */
dpq_tensor dpq_tensor_rows(const dpq_tensor *t, int64_t begin, int64_t end);

int64_t dpq_tensor_count(const dpq_tensor *t); /* number of elements; 1 for rank 0 with data */
size_t dpq_tensor_bytes(const dpq_tensor *t);  /* count * element bytes */
bool dpq_tensor_is_contiguous(const dpq_tensor *t);
bool dpq_tensor_same_shape(const dpq_tensor *a, const dpq_tensor *b);

/* N elements converted between memory types through f32 (F32, BF16, F16; F64 source too). No overlap.
 * Errors: DPQ_E_UNSUPPORTED for other types. */
DPQ_MUST_USE dpq_status dpq_convert(const void *src, dpq_dtype src_dtype, void *dst, dpq_dtype dst_dtype, int64_t n);

#endif
