/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's table. */
#include "cpu_kernels.h"

const dpq_backend_ops dpq_backend_cpu_ops = {
    .name = "cpu",
    .linear = dpq_linear_cpu,
    .rmsnorm = dpq_rmsnorm_cpu,
    .rope = dpq_rope_cpu,
    .attention = dpq_attention_cpu,
    .silu_mul = dpq_silu_mul_cpu,
    .gather_rows = dpq_gather_rows_cpu,
    .column_sumsq = dpq_column_sumsq_cpu,
    .xtx_accumulate = dpq_xtx_accumulate_cpu,
    .xtx_expand = dpq_xtx_expand_cpu,
    .inverse_factor = dpq_inverse_factor_cpu,
    .subtract_product = dpq_subtract_product_cpu,
    .nll = dpq_nll_cpu,
    .kl = dpq_kl_cpu,
    .linear_backward = dpq_linear_backward_cpu,
    .weight_gradient = dpq_weight_gradient_cpu,
    .rmsnorm_backward = dpq_rmsnorm_backward_cpu,
    .attention_backward = dpq_attention_backward_cpu,
    .silu_mul_backward = dpq_silu_mul_backward_cpu,
    .squared_error = dpq_squared_error_cpu,
};
