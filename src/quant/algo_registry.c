/* SPDX-License-Identifier: Apache-2.0 */
/* The list of per-linear algorithms, and what their solves share: argument checks and loading of a row. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "quant_priv.h"

static const dpq_linear_algo_ops *const algorithms[] = {&dpq_rtn_ops, &dpq_gptq_ops};

const dpq_linear_algo_ops *dpq_algo_at(int index)
{
    return index >= 0 && index < (int)DPQ_COUNT_OF(algorithms) ? algorithms[index] : NULL;
}

const dpq_linear_algo_ops *dpq_algo_find(const char *name)
{
    for (size_t i = 0; i < DPQ_COUNT_OF(algorithms); i++) {
        if (strcmp(algorithms[i]->name, name) == 0) {
            return algorithms[i];
        }
    }
    return NULL;
}

const char *dpq_method_name(dpq_method method)
{
    switch (method) {
    case DPQ_METHOD_RTN:
        return "rtn";
    case DPQ_METHOD_GPTQ:
        return "gptq";
    case DPQ_METHOD_RTN_FALLBACK:
        return "rtn-fallback";
    }
    return "unknown";
}

void dpq_factor_fini(dpq_factor *factor)
{
    dpq_tensor_fini(&factor->u);
    dpq_tensor_fini(&factor->order);
    dpq_tensor_fini(&factor->importance);
    *factor = (dpq_factor){0};
}

dpq_status dpq_algo_check_solve(const dpq_solve_input *input, int64_t begin, int64_t end, const dpq_qweight *out)
{
    const dpq_tensor *w = input->w;
    if (w->rank != 2 || w->dim[0] != out->n || w->dim[1] != out->k || (out->k > 1 && w->stride[1] != 1)) {
        return DPQ_RAISE(DPQ_E_SHAPE,
                         "%s: weight of rank %d, (%" PRId64 ", %" PRId64 "); expected row-major (%" PRId64 ", %" PRId64
                         ")",
                         input->module, w->rank, w->dim[0], w->dim[1], out->n, out->k);
    }
    if (w->dtype != DPQ_DTYPE_F32 && w->dtype != DPQ_DTYPE_F16 && w->dtype != DPQ_DTYPE_BF16) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: weight of type %s; expected F32, F16 or BF16", input->module,
                         dpq_dtype_name(w->dtype));
    }
    if (begin < 0 || end < begin || end > out->n || begin % DPQ_SOLVE_TILE_ROWS != 0) {
        return DPQ_RAISE(DPQ_E_SHAPE,
                         "%s: rows [%" PRId64 ", %" PRId64 ") of %" PRId64 "; expected a start at a multiple of %d",
                         input->module, begin, end, out->n, DPQ_SOLVE_TILE_ROWS);
    }
    return dpq_scheme_check(&out->scheme, input->module, out->k);
}

/* Are all exponents below the one of infinity and NaN? */
DPQ_HOT static bool all_finite(const float *restrict values, int64_t n)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest < 0x7f800000u;
}

dpq_status dpq_algo_load_row(const dpq_solve_input *input, int64_t row, float *dst)
{
    const dpq_tensor *w = input->w;
    const char *src = (const char *)w->data + (size_t)(row * w->stride[0]) * dpq_dtype_bytes(w->dtype);
    DPQ_TRY(dpq_convert(src, w->dtype, dst, DPQ_DTYPE_F32, w->dim[1]));
    if (all_finite(dst, w->dim[1])) {
        return DPQ_OK;
    }
    int64_t j = 0;
    while (isfinite(dst[j])) {
        j++;
    }
    return DPQ_RAISE(DPQ_E_NUMERIC, "%s: weight in row %" PRId64 ", column %" PRId64 " is %g; expected a finite value",
                     input->module, row, j, (double)dst[j]);
}
