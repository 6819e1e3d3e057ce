/* SPDX-License-Identifier: Apache-2.0 */
/* The table of element types, and conversion between the floating-point ones. */
#include <string.h>

#include "dpquant/half.h"
#include "dpquant/tensor.h"

#define CONVERT_BLOCK 1024

typedef struct {
    const char *name;
    size_t bits;
} dtype_info;

#define DTYPE_ROW(name, bits) {#name, bits},
static const dtype_info dtype_table[] = {DPQ_DTYPE_LIST(DTYPE_ROW)};
#undef DTYPE_ROW

static const dtype_info *find_dtype(dpq_dtype dtype)
{
    DPQ_ASSERT((int)dtype >= 0 && dtype < DPQ_DTYPE_COUNT);
    return &dtype_table[dtype];
}

const char *dpq_dtype_name(dpq_dtype dtype)
{
    return find_dtype(dtype)->name;
}

size_t dpq_dtype_bytes(dpq_dtype dtype)
{
    return find_dtype(dtype)->bits / 8;
}

bool dpq_dtype_from_name(const char *name, dpq_dtype *out)
{
    for (int i = 0; i < DPQ_DTYPE_COUNT; i++) {
        if (strcmp(dtype_table[i].name, name) == 0) {
            *out = (dpq_dtype)i;
            return true;
        }
    }
    return false;
}

static void bf16_to_f32_n(const uint16_t *restrict src, float *restrict dst, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dst[i] = dpq_bf16_to_f32(src[i]);
    }
}

static void f32_to_bf16_n(const float *restrict src, uint16_t *restrict dst, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        dst[i] = dpq_f32_to_bf16(src[i]);
    }
}

/* N elements of SRC from element FIRST on, widened to f32. */
static void load_f32(const void *src, dpq_dtype dtype, int64_t first, float *dst, int64_t n)
{
    if (dtype == DPQ_DTYPE_BF16) {
        bf16_to_f32_n((const uint16_t *)src + first, dst, n);
    } else if (dtype == DPQ_DTYPE_F16) {
        for (int64_t i = 0; i < n; i++) {
            dst[i] = dpq_f16_to_f32(((const uint16_t *)src)[first + i]);
        }
    } else if (dtype == DPQ_DTYPE_F64) {
        for (int64_t i = 0; i < n; i++) {
            dst[i] = (float)((const double *)src)[first + i];
        }
    } else {
        memcpy(dst, (const float *)src + first, (size_t)n * sizeof(float));
    }
}

static void store_f32(const float *src, void *dst, dpq_dtype dtype, int64_t first, int64_t n)
{
    if (dtype == DPQ_DTYPE_BF16) {
        f32_to_bf16_n(src, (uint16_t *)dst + first, n);
    } else if (dtype == DPQ_DTYPE_F16) {
        for (int64_t i = 0; i < n; i++) {
            ((uint16_t *)dst)[first + i] = dpq_f32_to_f16(src[i]);
        }
    } else {
        memcpy((float *)dst + first, src, (size_t)n * sizeof(float));
    }
}

dpq_status dpq_convert(const void *src, dpq_dtype src_dtype, void *dst, dpq_dtype dst_dtype, int64_t n)
{
    DPQ_ASSERT(n >= 0);
    bool dst_ok = dst_dtype == DPQ_DTYPE_F32 || dst_dtype == DPQ_DTYPE_BF16 || dst_dtype == DPQ_DTYPE_F16;
    bool src_ok = src_dtype == DPQ_DTYPE_F64 || src_dtype == DPQ_DTYPE_F32 || src_dtype == DPQ_DTYPE_BF16 ||
                  src_dtype == DPQ_DTYPE_F16;
    if (!dst_ok || !src_ok) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED,
                         "conversion from %s to %s; expected F64, F32, BF16 or F16 to F32, BF16 or F16",
                         dpq_dtype_name(src_dtype), dpq_dtype_name(dst_dtype));
    }
    if (n == 0) {
        return DPQ_OK;
    }
    if (src_dtype == dst_dtype) { /* a copy: also NaN keeps every bit */
        memcpy(dst, src, (size_t)n * dpq_dtype_bytes(src_dtype));
    } else if (dst_dtype == DPQ_DTYPE_F32) {
        load_f32(src, src_dtype, 0, dst, n);
    } else if (src_dtype == DPQ_DTYPE_F32) {
        store_f32(src, dst, dst_dtype, 0, n);
    } else {
        float block[CONVERT_BLOCK];
        for (int64_t first = 0; first < n; first += CONVERT_BLOCK) {
            int64_t count = n - first < CONVERT_BLOCK ? n - first : CONVERT_BLOCK;
            load_f32(src, src_dtype, first, block, count);
            store_f32(block, dst, dst_dtype, first, count);
        }
    }
    return DPQ_OK;
}
