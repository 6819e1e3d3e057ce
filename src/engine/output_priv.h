/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that write the output folder share. */
#ifndef DPQUANT_OUTPUT_PRIV_H
#define DPQUANT_OUTPUT_PRIV_H

#include "dpquant/plan.h"
#include "dpquant/status.h"

#define DPQ_RESULT_FILE "dpquant.json"
#define DPQ_RUN_FILE    "dpquant-run.json"

/* output_place.c. Is OUTPUT given, and is there a folder to hold it? Missing ones are created when writing begins. */
DPQ_MUST_USE dpq_status dpq_output_check_parents(const char *output, bool *exist);
/* Heap strings. Check that OUTPUT may be written for MODEL; canonical final path. */
DPQ_MUST_USE dpq_status dpq_output_check_place(const char *output, const char *model, bool overwrite,
                                               char **final_path);
/* Create FINAL.partial for BYTES of files. */
DPQ_MUST_USE dpq_status dpq_output_open_place(const char *final_path, uint64_t bytes, char **partial);
/* Sync, replace an old output, rename. */
DPQ_MUST_USE dpq_status dpq_output_publish(const char *partial, const char *final_path);

/* side_files.c: copy tokenizer and other files of the source; write config.json with the quantization block. */
DPQ_MUST_USE dpq_status dpq_output_copy_side_files(const char *model, const char *partial);
DPQ_MUST_USE dpq_status dpq_output_write_config(const dpq_plan *plan, const char *partial);

/* output_verify.c: read the folder back: every tensor of the source accounted for, copies byte-equal, quantized linears
 * well-formed. */
DPQ_MUST_USE dpq_status dpq_output_verify(const dpq_plan *plan, const char *partial);

#endif
