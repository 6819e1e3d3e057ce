/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3: q and k are normalised head by head before the rotation; attention_bias (default false) covers q, k, v and o;
 * head width 128 and 32 key/value heads when the keys are absent. */
#include "model_priv.h"

#define CLASS_KV_HEADS 32
#define CLASS_HEAD_DIM 128

static dpq_status read_qwen3(const dpq_json *json, const char *file, dpq_model_config *config)
{
    if (!dpq_json_member(json, "num_key_value_heads")) {
        config->n_kv_heads = CLASS_KV_HEADS;
    }
    if (!dpq_json_member(json, "head_dim")) {
        config->head_dim = CLASS_HEAD_DIM;
    }
    bool attention_bias = false;
    DPQ_TRY(dpq_json_opt_bool(json, file, "attention_bias", &attention_bias, NULL));
    config->qkv_bias = attention_bias;
    config->o_bias = attention_bias;
    config->qk_norm = true;
    return dpq_model_read_qwen_windows(json, file, config);
}

const dpq_arch_ops dpq_arch_qwen3 = {
    .architecture = "Qwen3ForCausalLM",
    .model_type = "qwen3",
    .help = "Qwen3 (dense)",
    .read = read_qwen3,
};
