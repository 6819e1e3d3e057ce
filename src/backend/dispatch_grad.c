/* SPDX-License-Identifier: Apache-2.0 */
/* Argument checks of the backward operations, once for all backends, and the call into the table. */
#include <math.h>

#include "dispatch_check.h"

#define MAX_EXPONENT 252 /* 2^-exponent is applied as two factors that are normal fp32 numbers */
#define MAX_LIMIT    0x1p30

dpq_status dpq_op_linear_backward(dpq_backend *be, const dpq_tensor *dy, const dpq_weight *weight, bool accumulate,
                                  dpq_tensor *dx)
{
    const dpq_tensor *w = &weight->w;
    DPQ_REQUIRE(is_matrix(dy) && is_matrix(w) && is_matrix(dx), "linear_backward");
    DPQ_REQUIRE(is_act(dy->dtype) && is_act(w->dtype) && is_act(dx->dtype), "linear_backward");
    DPQ_REQUIRE(dy->dim[1] == w->dim[0] && dx->dim[0] == dy->dim[0] && dx->dim[1] == w->dim[1], "linear_backward");
    DPQ_REQUIRE(w->dtype == DPQ_DTYPE_F32 || dy->dtype == w->dtype, "linear_backward");
    DPQ_REQUIRE(dy->data != dx->data, "linear_backward");
    return be->ops->linear_backward(be, dy, weight, accumulate, dx);
}

dpq_status dpq_op_weight_gradient(dpq_backend *be, const dpq_tensor *dy, const dpq_tensor *x, dpq_compute compute,
                                  int exponent, double limit, int32_t *sums, double *peak)
{
    *peak = 0.0;
    DPQ_REQUIRE(is_matrix(dy) && is_matrix(x) && is_act(x->dtype) && dy->dtype == x->dtype, "weight_gradient");
    DPQ_REQUIRE(x->dim[0] >= 1 && dy->dim[0] == x->dim[0], "weight_gradient");
    DPQ_REQUIRE(compute == DPQ_COMPUTE_F32 || compute == DPQ_COMPUTE_BF16, "weight_gradient");
    DPQ_REQUIRE(exponent >= -MAX_EXPONENT && exponent <= MAX_EXPONENT, "weight_gradient");
    DPQ_REQUIRE(limit >= 1 && limit <= MAX_LIMIT && exp2(rint(log2(limit))) == limit, "weight_gradient");
    return be->ops->weight_gradient(be, dy, x, compute, exponent, limit, sums, peak);
}

dpq_status dpq_op_rmsnorm_backward(dpq_backend *be, const dpq_tensor *x, const dpq_tensor *gamma, double eps,
                                   int64_t groups, const dpq_tensor *dy, bool accumulate, dpq_tensor *dx)
{
    DPQ_REQUIRE(is_matrix(x) && is_matrix(dy) && is_matrix(dx) && is_act(x->dtype), "rmsnorm_backward");
    DPQ_REQUIRE(dy->dtype == x->dtype && dx->dtype == x->dtype, "rmsnorm_backward");
    DPQ_REQUIRE(dpq_tensor_same_shape(x, dy) && dpq_tensor_same_shape(x, dx), "rmsnorm_backward");
    DPQ_REQUIRE(groups >= 1 && x->dim[1] % groups == 0, "rmsnorm_backward");
    DPQ_REQUIRE(gamma->rank == 1 && gamma->dtype == DPQ_DTYPE_F32 && gamma->dim[0] == x->dim[1] / groups,
                "rmsnorm_backward");
    DPQ_REQUIRE(eps >= 0 && dx->data != x->data && !(accumulate && dx->data == dy->data), "rmsnorm_backward");
    return be->ops->rmsnorm_backward(be, x, gamma, eps, groups, dy, accumulate, dx);
}

dpq_status dpq_op_attention_backward(dpq_backend *be, const dpq_tensor *q, const dpq_tensor *k, const dpq_tensor *v,
                                     const dpq_tensor *o, const dpq_tensor *d_o, const dpq_attention_shape *shape,
                                     dpq_tensor *dq, dpq_tensor *dk, dpq_tensor *dv)
{
    DPQ_REQUIRE(is_matrix(q) && is_matrix(k) && is_matrix(v) && is_matrix(o) && is_matrix(d_o), "attention_backward");
    DPQ_REQUIRE(is_matrix(dq) && is_matrix(dk) && is_matrix(dv) && is_act(q->dtype), "attention_backward");
    DPQ_REQUIRE(k->dtype == q->dtype && v->dtype == q->dtype && o->dtype == q->dtype && d_o->dtype == q->dtype,
                "attention_backward");
    DPQ_REQUIRE(dq->dtype == q->dtype && dk->dtype == q->dtype && dv->dtype == q->dtype, "attention_backward");
    DPQ_REQUIRE(shape->heads >= 1 && shape->kv_heads >= 1 && shape->heads % shape->kv_heads == 0, "attention_backward");
    DPQ_REQUIRE(shape->head_dim >= 1 && shape->head_dim <= 1024 && shape->window >= 0, "attention_backward");
    DPQ_REQUIRE(q->dim[1] == shape->heads * shape->head_dim && k->dim[1] == shape->kv_heads * shape->head_dim,
                "attention_backward");
    DPQ_REQUIRE(dpq_tensor_same_shape(q, o) && dpq_tensor_same_shape(q, d_o) && dpq_tensor_same_shape(q, dq),
                "attention_backward");
    DPQ_REQUIRE(dpq_tensor_same_shape(k, v) && dpq_tensor_same_shape(k, dk) && dpq_tensor_same_shape(k, dv),
                "attention_backward");
    DPQ_REQUIRE(k->dim[0] == q->dim[0], "attention_backward");
    const dpq_attention_operands in = {.q = q, .k = k, .v = v, .o = o, .d_o = d_o};
    const void *const read[] = {q->data, k->data, v->data, o->data, d_o->data};
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++) {
        DPQ_REQUIRE(dq->data != read[i] && dk->data != read[i] && dv->data != read[i], "attention_backward");
    }
    return be->ops->attention_backward(be, &in, shape, dq, dk, dv);
}

dpq_status dpq_op_silu_mul_backward(dpq_backend *be, const dpq_tensor *gate, const dpq_tensor *up, const dpq_tensor *dy,
                                    dpq_tensor *dgate, dpq_tensor *dup)
{
    const dpq_tensor *const others[] = {up, dy, dgate, dup};
    DPQ_REQUIRE(is_matrix(gate) && is_act(gate->dtype), "silu_mul_backward");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        DPQ_REQUIRE(is_matrix(others[i]) && others[i]->dtype == gate->dtype, "silu_mul_backward");
        DPQ_REQUIRE(dpq_tensor_same_shape(gate, others[i]), "silu_mul_backward");
    }
    DPQ_REQUIRE(dgate->data != dup->data, "silu_mul_backward");
    return be->ops->silu_mul_backward(be, gate, up, dy, dgate, dup);
}

dpq_status dpq_op_squared_error(dpq_backend *be, const dpq_tensor *y, const dpq_tensor *target, int64_t rows,
                                int64_t suppress, double factor, dpq_tensor *dy, double *loss)
{
    *loss = 0.0;
    DPQ_REQUIRE(is_matrix(y) && is_matrix(target) && is_matrix(dy), "squared_error");
    DPQ_REQUIRE(is_act(y->dtype) && is_act(target->dtype) && is_act(dy->dtype), "squared_error");
    DPQ_REQUIRE(dpq_tensor_same_shape(y, target) && dpq_tensor_same_shape(y, dy), "squared_error");
    DPQ_REQUIRE(rows >= 0 && rows <= y->dim[0], "squared_error");
    DPQ_REQUIRE(suppress >= 0 && suppress <= rows * y->dim[1], "squared_error");
    DPQ_REQUIRE(dy->data != y->data && dy->data != target->data, "squared_error");
    return be->ops->squared_error(be, y, target, rows, suppress, factor, dy, loss);
}
