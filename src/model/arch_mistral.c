/* SPDX-License-Identifier: Apache-2.0 */
/* Mistral: no biases, 8 key/value heads unless told, and a sliding window of 4096 on every layer unless sliding_window
 * says otherwise (null: full attention). */
#include "model_priv.h"

#define CLASS_KV_HEADS 8
#define CLASS_WINDOW   4096

static dpq_status read_mistral(const dpq_json *json, const char *file, dpq_model_config *config)
{
    if (!dpq_json_member(json, "num_key_value_heads")) {
        config->n_kv_heads = CLASS_KV_HEADS;
    }
    int64_t window = 0;
    DPQ_TRY(dpq_model_read_sliding_window(json, file, CLASS_WINDOW, &window));
    return dpq_model_read_windows(json, file, window, 0, config);
}

const dpq_arch_ops dpq_arch_mistral = {
    .architecture = "MistralForCausalLM",
    .model_type = "mistral",
    .help = "Mistral 7B, Nemo, Small, Large (dense, text)",
    .read = read_mistral,
};
