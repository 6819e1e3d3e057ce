/* SPDX-License-Identifier: Apache-2.0 */
/* The quantized form of a linear: storage, values of its codes, and the check before anything is written. */
#include <inttypes.h>
#include <math.h>

#include "dpquant/half.h"
#include "quant_priv.h"

dpq_status dpq_qweight_create(const dpq_scheme *scheme, int64_t n, int64_t k, dpq_dtype scale_dtype, bool with_g_idx,
                              dpq_qweight *out)
{
    dpq_status st = DPQ_OK;
    *out = (dpq_qweight){0};
    if (scale_dtype != DPQ_DTYPE_BF16 && scale_dtype != DPQ_DTYPE_F16 && scale_dtype != DPQ_DTYPE_F32) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "scales of type %s; expected BF16, F16 or F32",
                         dpq_dtype_name(scale_dtype));
    }
    DPQ_TRY(dpq_scheme_check(scheme, "quantized weight", k));
    dpq_qweight q = {
        .scheme = *scheme, .n = n, .k = k, .groups = dpq_scheme_groups(scheme, k), .scale_dtype = scale_dtype};
    DPQ_TRY_GOTO(st, dpq_tensor_create_2d(DPQ_DTYPE_I8, n, k, &q.codes), done);
    DPQ_TRY_GOTO(st, dpq_tensor_create_2d(DPQ_DTYPE_F32, n, q.groups, &q.scale), done);
    DPQ_TRY_GOTO(st, dpq_tensor_create_2d(DPQ_DTYPE_I8, n, q.groups, &q.zero), done);
    DPQ_TRY_GOTO(st, dpq_tensor_create_2d(DPQ_DTYPE_F64, n, 2, &q.row_error), done);
    if (with_g_idx) {
        DPQ_TRY_GOTO(st, dpq_tensor_create_1d(DPQ_DTYPE_I32, k, &q.g_idx), done);
    }
    *out = q;
    return DPQ_OK;
done:
    dpq_qweight_fini(&q);
    return st;
}

void dpq_qweight_fini(dpq_qweight *q)
{
    dpq_tensor_fini(&q->codes);
    dpq_tensor_fini(&q->scale);
    dpq_tensor_fini(&q->zero);
    dpq_tensor_fini(&q->row_error);
    dpq_tensor_fini(&q->g_idx);
    *q = (dpq_qweight){0};
}

/* One group of contiguous columns; exactly one of f32 and bf16 is given. */
DPQ_HOT static void group_values_f32(const int8_t *restrict codes, int32_t zero, float scale, int64_t width,
                                     float *restrict f32)
{
    for (int64_t j = 0; j < width; j++) {
        f32[j] = (float)(codes[j] - zero) * scale;
    }
}

DPQ_HOT static void group_values_bf16(const int8_t *restrict codes, int32_t zero, float scale, int64_t width,
                                      uint16_t *restrict bf16)
{
    for (int64_t j = 0; j < width; j++) {
        float value = quant_round_bf16((float)(codes[j] - zero) * scale);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        bf16[j] = (uint16_t)(bits >> 16);
    }
}

/* Columns of a group lie anywhere. */
static void scattered_row(const int8_t *codes, const int8_t *zero, const float *scale, const int32_t *g_idx, int64_t k,
                          float *f32, uint16_t *bf16)
{
    for (int64_t j = 0; j < k; j++) {
        float value = (float)(codes[j] - zero[g_idx[j]]) * scale[g_idx[j]];
        if (f32) {
            f32[j] = value;
        } else {
            bf16[j] = dpq_f32_to_bf16(value);
        }
    }
}

dpq_status dpq_qweight_dequantize(const dpq_qweight *q, int64_t begin, int64_t end, dpq_tensor *dst)
{
    bool f32 = dst->dtype == DPQ_DTYPE_F32;
    if (begin < 0 || end < begin || end > q->n || dst->rank != 2 || dst->dim[0] != end - begin || dst->dim[1] != q->k ||
        (q->k > 1 && dst->stride[1] != 1)) {
        return DPQ_RAISE(DPQ_E_SHAPE,
                         "dequantize: rows [%" PRId64 ", %" PRId64 ") of a (%" PRId64 ", %" PRId64
                         ") weight into a tensor of rank %d with dimensions %" PRId64 ", %" PRId64,
                         begin, end, q->n, q->k, dst->rank, dst->dim[0], dst->dim[1]);
    }
    if (!f32 && dst->dtype != DPQ_DTYPE_BF16) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "dequantize to %s; expected F32 or BF16", dpq_dtype_name(dst->dtype));
    }
    int64_t width = dpq_scheme_group_width(&q->scheme, q->k);
    for (int64_t row = begin; row < end; row++) {
        const int8_t *codes = (const int8_t *)q->codes.data + row * q->k;
        const int8_t *zero = (const int8_t *)q->zero.data + row * q->groups;
        const float *scale = (const float *)q->scale.data + row * q->groups;
        int64_t first = (row - begin) * dst->stride[0];
        float *row_f32 = f32 ? (float *)dst->data + first : NULL;
        uint16_t *row_bf16 = f32 ? NULL : (uint16_t *)dst->data + first;
        if (q->g_idx.data) {
            scattered_row(codes, zero, scale, q->g_idx.data, q->k, row_f32, row_bf16);
            continue;
        }
        for (int64_t g = 0; g < q->groups; g++) {
            if (f32) {
                group_values_f32(codes + g * width, zero[g], scale[g], width, row_f32 + g * width);
            } else {
                group_values_bf16(codes + g * width, zero[g], scale[g], width, row_bf16 + g * width);
            }
        }
    }
    return DPQ_OK;
}

static dpq_status check_group_index(const dpq_qweight *q, const char *module)
{
    const int32_t *g_idx = q->g_idx.data;
    int64_t width = dpq_scheme_group_width(&q->scheme, q->k);
    void *memory = NULL;
    DPQ_TRY(dpq_alloc_array(q->groups, sizeof(int64_t), &memory));
    int64_t *members = memory;
    dpq_status st = DPQ_OK;
    for (int64_t j = 0; j < q->k; j++) {
        if (g_idx[j] < 0 || g_idx[j] >= q->groups) {
            st = DPQ_RAISE(DPQ_E_NUMERIC, "%s: column %" PRId64 " is in group %" PRId32 "; expected 0 to %" PRId64,
                           module, j, g_idx[j], q->groups - 1);
            goto done;
        }
        members[g_idx[j]]++;
    }
    for (int64_t g = 0; g < q->groups; g++) {
        if (members[g] != width) {
            st = DPQ_RAISE(DPQ_E_NUMERIC, "%s: group %" PRId64 " has %" PRId64 " columns; expected %" PRId64, module, g,
                           members[g], width);
            goto done;
        }
    }
done:
    dpq_free(members);
    return st;
}

dpq_status dpq_qweight_check(const dpq_qweight *q, const char *module)
{
    int low = quant_code_min(&q->scheme);
    int high = quant_code_max(&q->scheme);
    bool any_sign = q->scheme.symmetric && q->scheme.signed_scale;
    const int8_t *codes = q->codes.data;
    const int8_t *zero = q->zero.data;
    const float *scale = q->scale.data;
    for (int64_t row = 0; row < q->n; row++) {
        for (int64_t g = 0; g < q->groups; g++) {
            float s = scale[row * q->groups + g];
            int z = zero[row * q->groups + g];
            if (!isfinite(s) || s == 0.0f || (s < 0.0f && !any_sign)) {
                return DPQ_RAISE(DPQ_E_NUMERIC,
                                 "%s: row %" PRId64 ", group %" PRId64 ": scale is %g; expected finite and %s", module,
                                 row, g, (double)s, any_sign ? "not zero" : "positive");
            }
            if (z < low || z > high || (q->scheme.symmetric && z != 0)) {
                return DPQ_RAISE(DPQ_E_NUMERIC,
                                 "%s: row %" PRId64 ", group %" PRId64 ": zero point is %d; expected %d to %d", module,
                                 row, g, z, q->scheme.symmetric ? 0 : low, q->scheme.symmetric ? 0 : high);
            }
        }
        int smallest = 0;
        int largest = 0;
        for (int64_t j = 0; j < q->k; j++) {
            int code = codes[row * q->k + j];
            smallest = code < smallest ? code : smallest;
            largest = code > largest ? code : largest;
        }
        if (smallest < low || largest > high) {
            return DPQ_RAISE(DPQ_E_NUMERIC, "%s: row %" PRId64 " has the code %d; expected %d to %d", module, row,
                             smallest < low ? smallest : largest, low, high);
        }
    }
    return q->g_idx.data ? check_group_index(q, module) : DPQ_OK;
}

double dpq_qweight_relative_error(const dpq_qweight *q)
{
    const double *row = q->row_error.data;
    double error = 0, signal = 0;
    for (int64_t n = 0; n < q->n; n++) {
        error += row[2 * n];
        signal += row[2 * n + 1];
    }
    return signal > 0 ? sqrt(error / signal) : 0.0;
}
