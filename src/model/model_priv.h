/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that read a model's config.json: checked keys, rope settings, sliding windows, the architectures.
 */
#ifndef DPQUANT_MODEL_PRIV_H
#define DPQUANT_MODEL_PRIV_H

#include "dpquant/model.h"

/* Sizes stay below this so that the product of any two fits an int64. */
#define DPQ_MODEL_MAX_SIZE   INT32_MAX
#define DPQ_MODEL_MAX_LAYERS 100000

/* Integer member of 1..MAX; absent or null leaves *out alone and sets *found to false.
 * Errors: DPQ_E_INPUT with file, key, expected, found. */
DPQ_MUST_USE dpq_status dpq_model_read_size(const dpq_json *json, const char *file, const char *key, int64_t max,
                                            int64_t *out, bool *found);

/* Rope settings of either spelling; config->head_dim and max_positions are known. Errors: DPQ_E_INPUT,
 * DPQ_E_UNSUPPORTED. */
DPQ_MUST_USE dpq_status dpq_rope_config_read(const dpq_json *json, const char *file, const dpq_model_config *config,
                                             dpq_rope_config *out);

/* config->window from sliding layers [FIRST, n_layers) of WINDOW (0: none in use); layer_types, when present, decides
 * layer by layer instead. Errors: DPQ_E_INPUT, DPQ_E_UNSUPPORTED for other kinds of attention. */
DPQ_MUST_USE dpq_status dpq_model_read_windows(const dpq_json *json, const char *file, int64_t window, int64_t first,
                                               dpq_model_config *config);
/* The rule Qwen2 and Qwen3 share: only with use_sliding_window, from layer max_window_layers on. */
DPQ_MUST_USE dpq_status dpq_model_read_qwen_windows(const dpq_json *json, const char *file, dpq_model_config *config);
/* sliding_window: class default when the key is absent, 0 when it is null. */
DPQ_MUST_USE dpq_status dpq_model_read_sliding_window(const dpq_json *json, const char *file, int64_t class_default,
                                                      int64_t *window);

extern const dpq_arch_ops dpq_arch_llama, dpq_arch_mistral, dpq_arch_qwen2, dpq_arch_qwen3;

#endif
