/* SPDX-License-Identifier: Apache-2.0 */
/* How dispatch files look at arguments. */
#ifndef DPQUANT_DISPATCH_CHECK_H
#define DPQUANT_DISPATCH_CHECK_H

#include "backend_ops.h"

static inline bool is_act(dpq_dtype dtype)
{
    return dtype == DPQ_DTYPE_BF16 || dtype == DPQ_DTYPE_F32;
}

/* Rank 2, unit column stride, rows that do not overlap. */
static inline bool is_matrix(const dpq_tensor *t)
{
    return t->rank == 2 && t->dim[0] >= 0 && t->dim[1] >= 1 && (t->dim[0] == 0 || t->data != NULL) &&
           t->stride[1] == 1 && t->stride[0] >= t->dim[1];
}

#define DPQ_REQUIRE(condition, op)                                                                                     \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            return DPQ_RAISE(DPQ_E_SHAPE, "%s: argument check failed: %s", (op), #condition);                          \
        }                                                                                                              \
    } while (0)

#endif
