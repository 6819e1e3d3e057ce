/* SPDX-License-Identifier: Apache-2.0 */
/* The list of algorithms that tune a whole block. */
#include "tune_priv.h"

static const dpq_block_algo_ops *const algorithms[] = {&dpq_signround_ops, &dpq_adaround_ops};

const dpq_block_algo_ops *dpq_block_algo_at(int index)
{
    return index >= 0 && index < (int)DPQ_COUNT_OF(algorithms) ? algorithms[index] : NULL;
}

const dpq_block_algo_ops *dpq_block_algo_find(const char *name)
{
    for (size_t i = 0; i < DPQ_COUNT_OF(algorithms); i++) {
        if (strcmp(algorithms[i]->name, name) == 0) {
            return algorithms[i];
        }
    }
    return NULL;
}
