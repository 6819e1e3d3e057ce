/* SPDX-License-Identifier: Apache-2.0 */
/* From weights as read to weights as the products take them: moved where the type already fits, else converted. */
#include <string.h>

#include "dpquant/loader.h"

dpq_status dpq_weight_prepare(dpq_tensor *w, dpq_dtype act, dpq_compute compute, dpq_weight *out)
{
    dpq_status st = DPQ_OK;
    memset(out, 0, sizeof *out);
    dpq_dtype product = dpq_product_dtype(w->dtype, act, compute);
    if (product == w->dtype) {
        out->w = *w;
        memset(w, 0, sizeof *w);
        return DPQ_OK;
    }
    DPQ_TRY_GOTO(st, dpq_tensor_create(product, w->rank, w->dim, &out->w), done);
    st = dpq_convert(w->data, w->dtype, out->w.data, product, dpq_tensor_count(w));
done:
    dpq_tensor_fini(w);
    if (st != DPQ_OK) {
        dpq_weight_fini(out);
    }
    return st;
}

static void move_tensor(dpq_tensor *from, dpq_tensor *to)
{
    *to = *from;
    memset(from, 0, sizeof *from);
}

dpq_status dpq_block_source_prepare(dpq_block_source *source, dpq_dtype act, dpq_compute compute,
                                    dpq_block_weights *out)
{
    memset(out, 0, sizeof *out);
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        dpq_status st = dpq_weight_prepare(&source->w[role], act, compute, &out->linear[role]);
        if (st != DPQ_OK) {
            dpq_block_weights_fini(out);
            return st;
        }
        move_tensor(&source->bias[role], &out->linear[role].bias);
    }
    for (int role = 0; role < DPQ_NORM_COUNT; role++) {
        move_tensor(&source->norm[role], &out->norm[role]);
    }
    return DPQ_OK;
}
