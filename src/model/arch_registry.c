/* SPDX-License-Identifier: Apache-2.0 */
/* The list of architectures; one line a family. */
#include "dpquant/option.h"
#include "model_priv.h"

static const dpq_arch_ops *const architectures[] = {&dpq_arch_llama, &dpq_arch_mistral, &dpq_arch_qwen2,
                                                    &dpq_arch_qwen3};

const dpq_arch_ops *dpq_arch_at(int index)
{
    return index >= 0 && (size_t)index < DPQ_COUNT_OF(architectures) ? architectures[index] : NULL;
}
