/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of weight gradients over the samples of a step, exact for any number of ranks (docs/algorithms/exactness.md):
 * each sample's gradient is rounded once to a multiple of 2^exponent and added as int32; the exponent comes from the
 * largest entry any sample had in an earlier step, which all ranks know. When a sample exceeds what the exponent
 * allows, or falls far below it, the step is repeated with the right one: the same for every number of ranks. */
#ifndef DPQUANT_GRADIENT_SUM_H
#define DPQUANT_GRADIENT_SUM_H

#include "dpquant/backend.h"
#include "dpquant/comm.h"
#include "dpquant/model.h"
#include "dpquant/settings.h"

typedef struct dpq_gradient_sum dpq_gradient_sum;

/* Room for the sums of linears with the given sizes (0: none), for steps of SAMPLES samples. One object serves all
 * blocks of a run. */
DPQ_MUST_USE dpq_status dpq_gradient_sum_create(const int64_t n[DPQ_LINEAR_COUNT], const int64_t k[DPQ_LINEAR_COUNT],
                                                int64_t samples, dpq_transport transport, dpq_gradient_sum **out);
void dpq_gradient_sum_destroy(dpq_gradient_sum **sum);

/* Clear the sums. */
void dpq_gradient_sum_begin(dpq_gradient_sum *sum);
/* Add one sample's gradient d_out (T,N)^T x (T,K) of ROLE. */
DPQ_MUST_USE dpq_status dpq_gradient_sum_add(dpq_gradient_sum *sum, dpq_backend *be, dpq_linear_role role,
                                             const dpq_tensor *d_out, const dpq_tensor *x, dpq_compute compute);
/* This rank's share of ROLE is complete: let it travel. Collective in the order of calls; every rank sends every role
 * once a step. */
DPQ_MUST_USE dpq_status dpq_gradient_sum_send(dpq_gradient_sum *sum, dpq_comm *comm, dpq_linear_role role);
bool dpq_gradient_sum_sent(const dpq_gradient_sum *sum, dpq_linear_role role);
/* Wait for all roles; *repeat when the step must be run again with the exponents chosen now. Collective. */
DPQ_MUST_USE dpq_status dpq_gradient_sum_finish(dpq_gradient_sum *sum, dpq_comm *comm, dpq_spans *spans, bool *repeat);
/* The sum of ROLE (N,K) and the value of its unit, valid until the next begin. */
const int32_t *dpq_gradient_sum_values(const dpq_gradient_sum *sum, dpq_linear_role role, double *unit);
/* Steps repeated so far, and bytes of the object. */
int64_t dpq_gradient_sum_repeats(const dpq_gradient_sum *sum);

#endif
