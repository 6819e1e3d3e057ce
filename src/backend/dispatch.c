/* SPDX-License-Identifier: Apache-2.0 */
/* Argument checks, once for all backends, and the call into the table. */
#include "dispatch_check.h"

dpq_dtype dpq_product_dtype(dpq_dtype source, dpq_dtype act, dpq_compute compute)
{
    bool bf16 = source == DPQ_DTYPE_BF16 && act == DPQ_DTYPE_BF16 && compute == DPQ_COMPUTE_BF16;
    return bf16 ? DPQ_DTYPE_BF16 : DPQ_DTYPE_F32;
}

void dpq_weight_fini(dpq_weight *weight)
{
    dpq_tensor_fini(&weight->w);
    dpq_tensor_fini(&weight->bias);
}

dpq_status dpq_op_linear(dpq_backend *be, const dpq_tensor *x, const dpq_weight *weight, bool accumulate, dpq_tensor *y)
{
    const dpq_tensor *w = &weight->w, *bias = &weight->bias;
    DPQ_REQUIRE(is_matrix(x) && is_matrix(w) && is_matrix(y), "linear");
    DPQ_REQUIRE(is_act(x->dtype) && is_act(w->dtype) && is_act(y->dtype), "linear");
    DPQ_REQUIRE(x->dim[1] == w->dim[1] && y->dim[0] == x->dim[0] && y->dim[1] == w->dim[0], "linear");
    DPQ_REQUIRE(w->dtype == DPQ_DTYPE_F32 || x->dtype == w->dtype, "linear");
    DPQ_REQUIRE(bias->data == NULL || (bias->rank == 1 && bias->dim[0] == w->dim[0] && bias->dtype == DPQ_DTYPE_F32),
                "linear");
    DPQ_REQUIRE(x->data != y->data, "linear");
    return be->ops->linear(be, x, weight, accumulate, y);
}

dpq_status dpq_op_rmsnorm(dpq_backend *be, const dpq_tensor *x, const dpq_tensor *gamma, double eps, int64_t groups,
                          dpq_tensor *y)
{
    DPQ_REQUIRE(is_matrix(x) && is_matrix(y) && is_act(x->dtype) && x->dtype == y->dtype, "rmsnorm");
    DPQ_REQUIRE(x->dim[0] == y->dim[0] && x->dim[1] == y->dim[1], "rmsnorm");
    DPQ_REQUIRE(groups >= 1 && x->dim[1] % groups == 0, "rmsnorm");
    DPQ_REQUIRE(gamma->rank == 1 && gamma->dtype == DPQ_DTYPE_F32 && gamma->dim[0] == x->dim[1] / groups, "rmsnorm");
    DPQ_REQUIRE(eps >= 0, "rmsnorm");
    return be->ops->rmsnorm(be, x, gamma, eps, groups, y);
}

dpq_status dpq_op_rope(dpq_backend *be, dpq_tensor *x, int64_t heads, const dpq_tensor *cos, const dpq_tensor *sin)
{
    DPQ_REQUIRE(is_matrix(x) && is_act(x->dtype) && heads >= 1 && x->dim[1] % heads == 0, "rope");
    DPQ_REQUIRE(is_matrix(cos) && is_matrix(sin) && cos->dtype == DPQ_DTYPE_F32 && sin->dtype == DPQ_DTYPE_F32, "rope");
    DPQ_REQUIRE(dpq_tensor_same_shape(cos, sin) && cos->dim[0] >= x->dim[0], "rope");
    DPQ_REQUIRE(2 * cos->dim[1] <= x->dim[1] / heads, "rope");
    return be->ops->rope(be, x, heads, cos, sin);
}

dpq_status dpq_op_attention(dpq_backend *be, const dpq_tensor *q, const dpq_tensor *k, const dpq_tensor *v,
                            const dpq_attention_shape *shape, dpq_tensor *o)
{
    DPQ_REQUIRE(is_matrix(q) && is_matrix(k) && is_matrix(v) && is_matrix(o), "attention");
    DPQ_REQUIRE(is_act(q->dtype) && k->dtype == q->dtype && v->dtype == q->dtype && o->dtype == q->dtype, "attention");
    DPQ_REQUIRE(shape->heads >= 1 && shape->kv_heads >= 1 && shape->heads % shape->kv_heads == 0, "attention");
    DPQ_REQUIRE(shape->head_dim >= 1 && shape->head_dim <= 1024 && shape->window >= 0, "attention");
    DPQ_REQUIRE(q->dim[1] == shape->heads * shape->head_dim && dpq_tensor_same_shape(q, o), "attention");
    DPQ_REQUIRE(k->dim[1] == shape->kv_heads * shape->head_dim && dpq_tensor_same_shape(k, v), "attention");
    DPQ_REQUIRE(k->dim[0] == q->dim[0] && o->data != q->data && o->data != k->data && o->data != v->data, "attention");
    return be->ops->attention(be, q, k, v, shape, o);
}

dpq_status dpq_op_silu_mul(dpq_backend *be, const dpq_tensor *gate, const dpq_tensor *up, dpq_tensor *y)
{
    DPQ_REQUIRE(is_matrix(gate) && is_matrix(up) && is_matrix(y) && is_act(gate->dtype), "silu_mul");
    DPQ_REQUIRE(up->dtype == gate->dtype && y->dtype == gate->dtype, "silu_mul");
    DPQ_REQUIRE(dpq_tensor_same_shape(gate, up) && dpq_tensor_same_shape(gate, y), "silu_mul");
    return be->ops->silu_mul(be, gate, up, y);
}

dpq_status dpq_op_gather_rows(dpq_backend *be, const dpq_tensor *table, const int32_t *ids, dpq_tensor *y)
{
    DPQ_REQUIRE(is_matrix(table) && is_matrix(y) && is_act(y->dtype) && table->dim[1] == y->dim[1], "gather_rows");
    DPQ_REQUIRE(is_act(table->dtype) || table->dtype == DPQ_DTYPE_F16, "gather_rows");
    for (int64_t t = 0; t < y->dim[0]; t++) {
        if (ids[t] < 0 || ids[t] >= table->dim[0]) {
            return DPQ_RAISE(DPQ_E_SHAPE, "gather_rows: id %d at position %lld, expected 0..%lld", ids[t], (long long)t,
                             (long long)table->dim[0] - 1);
        }
    }
    return be->ops->gather_rows(be, table, ids, y);
}

dpq_status dpq_op_column_sumsq(dpq_backend *be, const dpq_tensor *x, double *sumsq)
{
    DPQ_REQUIRE(is_matrix(x) && is_act(x->dtype) && sumsq != NULL, "column_sumsq");
    return be->ops->column_sumsq(be, x, sumsq);
}

dpq_status dpq_op_xtx_accumulate(dpq_backend *be, const dpq_tensor *x, int64_t n, const int32_t *exponent,
                                 dpq_compute compute, int64_t *sums)
{
    for (int64_t s = 0; s < n; s++) {
        DPQ_REQUIRE(is_matrix(&x[s]) && is_act(x[s].dtype), "xtx_accumulate");
        DPQ_REQUIRE(x[s].dim[1] == x[0].dim[1] && x[s].dtype == x[0].dtype && x[s].dim[0] >= 1, "xtx_accumulate");
    }
    return be->ops->xtx_accumulate(be, x, n, exponent, compute, sums);
}

static bool is_square_float(const dpq_tensor *h)
{
    return is_matrix(h) && h->dim[0] == h->dim[1] && h->stride[0] == h->dim[1] &&
           (h->dtype == DPQ_DTYPE_F32 || h->dtype == DPQ_DTYPE_F64);
}

dpq_status dpq_op_xtx_expand(dpq_backend *be, const int64_t *sums, const int32_t *exponent, double scale, dpq_tensor *h)
{
    DPQ_REQUIRE(is_square_float(h), "xtx_expand");
    return be->ops->xtx_expand(be, sums, exponent, scale, h);
}

dpq_status dpq_op_inverse_factor(dpq_backend *be, dpq_tensor *h, bool *positive)
{
    DPQ_REQUIRE(is_square_float(h), "inverse_factor");
    return be->ops->inverse_factor(be, h, positive);
}

dpq_status dpq_op_subtract_product(dpq_backend *be, int thread, const dpq_tensor *a, const dpq_tensor *b, dpq_tensor *c)
{
    DPQ_REQUIRE(is_matrix(a) && is_matrix(b) && is_matrix(c), "subtract_product");
    DPQ_REQUIRE(a->dtype == DPQ_DTYPE_F32 && b->dtype == DPQ_DTYPE_F32 && c->dtype == DPQ_DTYPE_F32,
                "subtract_product");
    DPQ_REQUIRE(a->dim[1] == b->dim[0] && c->dim[0] == a->dim[0] && c->dim[1] == b->dim[1], "subtract_product");
    DPQ_REQUIRE(thread >= 0 && thread < be->threads, "subtract_product");
    return be->ops->subtract_product(be, thread, a, b, c);
}

dpq_status dpq_op_nll(dpq_backend *be, const dpq_tensor *logits, const int32_t *target, double *nll, int32_t *top)
{
    DPQ_REQUIRE(is_matrix(logits) && logits->dtype == DPQ_DTYPE_F32, "nll");
    for (int64_t t = 0; t < logits->dim[0]; t++) {
        DPQ_REQUIRE(target[t] >= 0 && target[t] < logits->dim[1], "nll");
    }
    return be->ops->nll(be, logits, target, nll, top);
}

dpq_status dpq_op_kl(dpq_backend *be, const dpq_tensor *reference, const dpq_tensor *model, double *kl)
{
    DPQ_REQUIRE(is_matrix(reference) && is_matrix(model) && dpq_tensor_same_shape(reference, model), "kl");
    DPQ_REQUIRE(reference->dtype == DPQ_DTYPE_F32 && model->dtype == DPQ_DTYPE_F32, "kl");
    return be->ops->kl(be, reference, model, kl);
}
