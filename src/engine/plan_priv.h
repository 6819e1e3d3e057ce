/* SPDX-License-Identifier: Apache-2.0 */
/* What the plan's files share. */
#ifndef DPQUANT_PLAN_PRIV_H
#define DPQUANT_PLAN_PRIV_H

#include <stdio.h>

#include "dpquant/plan.h"

/* plan_work.c: schemes of all linears, checked. */
DPQ_MUST_USE dpq_status dpq_plan_assign_work(dpq_plan *plan);
/* plan_layout.c: tensors of the output. */
DPQ_MUST_USE dpq_status dpq_plan_lay_out(dpq_plan *plan);
/* Does this tensor of the source become a quantized one (index of the work item), or is it copied (-1)? */
int64_t dpq_plan_replaces(const dpq_plan *plan, const char *tensor);

#endif
