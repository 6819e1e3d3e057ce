/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen2 and Qwen2.5: bias on q, k and v always, none on o and the feed-forward; 32 key/value heads when the key is
 * absent. */
#include "model_priv.h"

#define CLASS_KV_HEADS 32

static dpq_status read_qwen2(const dpq_json *json, const char *file, dpq_model_config *config)
{
    if (!dpq_json_member(json, "num_key_value_heads")) {
        config->n_kv_heads = CLASS_KV_HEADS;
    }
    config->qkv_bias = true;
    return dpq_model_read_qwen_windows(json, file, config);
}

const dpq_arch_ops dpq_arch_qwen2 = {
    .architecture = "Qwen2ForCausalLM",
    .model_type = "qwen2",
    .help = "Qwen2, Qwen2.5 (dense, text)",
    .read = read_qwen2,
};
