/* SPDX-License-Identifier: Apache-2.0 */
/* Names, shapes and stages of the tensors of a Llama-like model; all architectures here spell them the same way. */
#include <stdio.h>

#include "model_priv.h"

typedef struct {
    const char *name, *parent;
    int stage;
} linear_info;

static const linear_info linear_table[DPQ_LINEAR_COUNT] = {
    [DPQ_LINEAR_Q] = {"q_proj", "self_attn", 0}, [DPQ_LINEAR_K] = {"k_proj", "self_attn", 0},
    [DPQ_LINEAR_V] = {"v_proj", "self_attn", 0}, [DPQ_LINEAR_O] = {"o_proj", "self_attn", 1},
    [DPQ_LINEAR_GATE] = {"gate_proj", "mlp", 2}, [DPQ_LINEAR_UP] = {"up_proj", "mlp", 2},
    [DPQ_LINEAR_DOWN] = {"down_proj", "mlp", 3},
};

static const char *const norm_table[DPQ_NORM_COUNT] = {
    [DPQ_NORM_INPUT] = "input_layernorm",
    [DPQ_NORM_POST] = "post_attention_layernorm",
    [DPQ_NORM_Q] = "self_attn.q_norm",
    [DPQ_NORM_K] = "self_attn.k_norm",
};

static const linear_info *find_linear(dpq_linear_role role)
{
    DPQ_ASSERT((int)role >= 0 && role < DPQ_LINEAR_COUNT);
    return &linear_table[role];
}

void dpq_model_linear_shape(const dpq_model_config *c, dpq_linear_role role, int64_t *n, int64_t *k)
{
    *k = dpq_model_stage_inputs(c, dpq_model_linear_stage(role));
    switch (role) {
    case DPQ_LINEAR_Q:
        *n = c->n_heads * c->head_dim;
        break;
    case DPQ_LINEAR_K:
    case DPQ_LINEAR_V:
        *n = c->n_kv_heads * c->head_dim;
        break;
    case DPQ_LINEAR_GATE:
    case DPQ_LINEAR_UP:
        *n = c->intermediate_size;
        break;
    default: /* o and down return to the residual */
        *n = c->hidden_size;
        break;
    }
}

int dpq_model_linear_stage(dpq_linear_role role)
{
    return find_linear(role)->stage;
}

bool dpq_model_linear_has_bias(const dpq_model_config *c, dpq_linear_role role)
{
    switch (find_linear(role)->stage) {
    case 0:
        return c->qkv_bias;
    case 1:
        return c->o_bias;
    default:
        return c->mlp_bias;
    }
}

int dpq_model_stage_linears(int stage, dpq_linear_role roles[3])
{
    DPQ_ASSERT(stage >= 0 && stage < DPQ_STAGE_COUNT);
    int count = 0;
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        if (linear_table[role].stage == stage) {
            roles[count++] = (dpq_linear_role)role;
        }
    }
    return count;
}

int64_t dpq_model_stage_inputs(const dpq_model_config *c, int stage)
{
    DPQ_ASSERT(stage >= 0 && stage < DPQ_STAGE_COUNT);
    switch (stage) {
    case 1:
        return c->n_heads * c->head_dim;
    case 3:
        return c->intermediate_size;
    default:
        return c->hidden_size;
    }
}

const char *dpq_linear_role_name(dpq_linear_role role)
{
    return find_linear(role)->name;
}

void dpq_model_linear_name(const dpq_model_config *c, int64_t layer, dpq_linear_role role, char name[DPQ_NAME_BYTES])
{
    (void)c;
    const linear_info *info = find_linear(role);
    snprintf(name, DPQ_NAME_BYTES, "model.layers.%lld.%s.%s", (long long)layer, info->parent, info->name);
}

void dpq_model_norm_name(const dpq_model_config *c, int64_t layer, dpq_norm_role role, char name[DPQ_NAME_BYTES])
{
    (void)c;
    DPQ_ASSERT((int)role >= 0 && role < DPQ_NORM_COUNT);
    snprintf(name, DPQ_NAME_BYTES, "model.layers.%lld.%s.weight", (long long)layer, norm_table[role]);
}

bool dpq_model_has_norm(const dpq_model_config *c, dpq_norm_role role)
{
    return role == DPQ_NORM_INPUT || role == DPQ_NORM_POST || c->qk_norm;
}

int64_t dpq_model_norm_size(const dpq_model_config *c, dpq_norm_role role)
{
    return role == DPQ_NORM_INPUT || role == DPQ_NORM_POST ? c->hidden_size : c->head_dim;
}

const char *dpq_model_embed_name(const dpq_model_config *c)
{
    (void)c;
    return "model.embed_tokens.weight";
}

const char *dpq_model_final_norm_name(const dpq_model_config *c)
{
    (void)c;
    return "model.norm.weight";
}

const char *dpq_model_head_name(const dpq_model_config *c)
{
    return c->tied_embeddings ? dpq_model_embed_name(c) : "lm_head.weight";
}
