/* SPDX-License-Identifier: Apache-2.0 */
/* Llama: attention_bias puts a bias on q, k, v and o, mlp_bias on gate, up and down; full attention only. Key/value
 * heads default to heads, head width to hidden size over heads. */
#include "model_priv.h"

static dpq_status read_llama(const dpq_json *json, const char *file, dpq_model_config *config)
{
    bool attention_bias = false;
    DPQ_TRY(dpq_json_opt_bool(json, file, "attention_bias", &attention_bias, NULL));
    config->qkv_bias = attention_bias;
    config->o_bias = attention_bias;
    DPQ_TRY(dpq_json_opt_bool(json, file, "mlp_bias", &config->mlp_bias, NULL));
    return dpq_model_read_windows(json, file, 0, 0, config);
}

const dpq_arch_ops dpq_arch_llama = {
    .architecture = "LlamaForCausalLM",
    .model_type = "llama",
    .help = "Llama 1 to 3.3 and models of the same structure (dense)",
    .read = read_llama,
};
