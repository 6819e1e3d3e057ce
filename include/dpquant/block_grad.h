/* SPDX-License-Identifier: Apache-2.0 */
/* Forward pass of one block that keeps what the backward pass needs, and the backward pass up to the gradients of the
 * block's linears (docs/algorithms/backward.md). One sample at a time. */
#ifndef DPQUANT_BLOCK_GRAD_H
#define DPQUANT_BLOCK_GRAD_H

#include <stdint.h>

#include "dpquant/backend_grad.h"
#include "dpquant/model.h"

/* What the forward pass of one sample leaves. Buffers are made once for the longest sample; the tensors below are views
 * of them with the rows of the sample held, valid from dpq_block_forward_tape to dpq_block_backward. */
typedef struct {
    dpq_dtype dtype;
    int64_t max_tokens;
    bool filled;                   /* a forward pass is here that no backward pass has used up */
    dpq_tensor x[DPQ_STAGE_COUNT]; /* input of each stage; x[1] is the output of attention */
    dpq_tensor q, k, v;            /* as attention reads them */
    dpq_tensor q_linear, k_linear; /* before the norm of heads; empty where the model has none */
    dpq_tensor h1;                 /* residual after attention */
    dpq_tensor gate, up;           /* the backward pass puts their gradients here */
    void *memory;
} dpq_block_tape;

/* ACT: F32 or BF16. Errors: DPQ_E_MEMORY. */
DPQ_MUST_USE dpq_status dpq_block_tape_create(const dpq_model_config *c, dpq_dtype act, int64_t max_tokens,
                                              dpq_block_tape *out);
void dpq_block_tape_fini(dpq_block_tape *tape);
/* For the plan: bytes a tape of MAX_TOKENS holds; bytes of temporary memory a backward pass takes in its own workspace
 * and in the backend's (THREADS threads). */
size_t dpq_block_tape_bytes(const dpq_model_config *c, dpq_dtype act, int64_t max_tokens);
size_t dpq_block_backward_bytes(const dpq_model_config *c, dpq_dtype act, int64_t max_tokens, int threads);

/* y (T,C) = block of h (T,C), the same bits as dpq_block_forward; y may be h. Errors: DPQ_E_SHAPE when h does not fit
 * the tape. */
DPQ_MUST_USE dpq_status dpq_block_forward_tape(const dpq_forward *f, int64_t layer, const dpq_block_weights *w,
                                               const dpq_tensor *h, dpq_block_tape *tape, dpq_tensor *y,
                                               dpq_workspace *ws);

/* Gradient of the output, d_out (T,N), and input, x (T,K), of one linear: the gradient of its weight is d_out^T x.
 * Borrowed for the call. An error ends the backward pass. */
typedef dpq_status (*dpq_block_gradient)(void *context, dpq_linear_role role, const dpq_tensor *d_out,
                                         const dpq_tensor *x);

/* From dy (T,C), the gradient of the block's output: ON_GRADIENT once for each linear, in the order down, gate, up, o,
 * v, k, q, each as soon as it is known. WEIGHTS as in the forward pass. The gradient of the block's input is not
 * computed. Uses the tape up. Errors: DPQ_E_SHAPE when dy does not fit or the tape holds no forward pass. */
DPQ_MUST_USE dpq_status dpq_block_backward(const dpq_forward *f, int64_t layer, const dpq_block_weights *w,
                                           dpq_block_tape *tape, const dpq_tensor *dy, dpq_block_gradient on_gradient,
                                           void *context, dpq_workspace *ws);

#endif
