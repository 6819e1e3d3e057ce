/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of dpquant inspect. Each appends lines to a text. */
#ifndef DPQUANT_INSPECT_PRIV_H
#define DPQUANT_INSPECT_PRIV_H

#include "dpquant/loader.h"
#include "dpquant/str.h"

/* inspect_model.c: sizes of the model, tensors and bytes by type. */
DPQ_MUST_USE dpq_status dpq_inspect_model(const dpq_model_folder *folder, dpq_text *t);
/* inspect_quantized.c: schemes with their modules, bits per weight, scales. Nothing for a dense folder. */
DPQ_MUST_USE dpq_status dpq_inspect_quantized(const dpq_model_folder *folder, dpq_text *t);
/* inspect_record.c: what dpquant.json says of the run, when there is one. */
DPQ_MUST_USE dpq_status dpq_inspect_record(const dpq_model_folder *folder, dpq_text *t);

#endif
