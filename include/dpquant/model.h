/* SPDX-License-Identifier: Apache-2.0 */
/* Decoder-only models of the Llama family: the description read from config.json, tensor names, and the forward pass of
 * one block as a chain of four stages that end where a linear's input is known: stage 0  norm -> [q,k,v]      stage 1
 * attention -> [o]      stage 2  norm -> [gate,up]      stage 3  activation -> [down]  */
#ifndef DPQUANT_MODEL_H
#define DPQUANT_MODEL_H

#include <stdint.h>

#include "dpquant/backend.h"
#include "dpquant/json.h"
#include "dpquant/safetensors.h"
#include "dpquant/status.h"
#include "dpquant/tensor.h"

typedef enum {
    DPQ_LINEAR_Q,
    DPQ_LINEAR_K,
    DPQ_LINEAR_V,
    DPQ_LINEAR_O,
    DPQ_LINEAR_GATE,
    DPQ_LINEAR_UP,
    DPQ_LINEAR_DOWN,
    DPQ_LINEAR_COUNT
} dpq_linear_role;
#define DPQ_STAGE_COUNT 4

typedef enum { DPQ_ROPE_DEFAULT, DPQ_ROPE_LINEAR, DPQ_ROPE_LLAMA3, DPQ_ROPE_YARN } dpq_rope_type;
typedef struct {
    dpq_rope_type type;
    double theta, factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_max_position;             /* llama3, yarn */
    double beta_fast, beta_slow;              /* yarn */
    bool truncate;                            /* yarn */
    double attention_factor;                  /* multiplies cos and sin; 1 unless yarn */
    int64_t rotary_dim;                       /* elements of a head that rotate (partial_rotary_factor) */
} dpq_rope_config;

typedef struct {
    char architecture[64]; /* "LlamaForCausalLM" */
    char model_type[32];
    int64_t hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim, vocab_size, max_positions;
    double rms_eps;
    bool tied_embeddings;
    bool qkv_bias, o_bias, mlp_bias, qk_norm;
    dpq_rope_config rope;
    int64_t *window; /* n_layers: sliding window of each layer, 0 = full; owned */
    dpq_dtype dtype; /* of config.json (dtype or torch_dtype), F32 when absent */
} dpq_model_config;

/* Read DIR/config.json. Everything not understood is refused by name: architecture, rope type (dynamic, longrope,
 * mrope...), hidden_act other than silu/swish, non-positive or inconsistent sizes, attention kinds in layer_types.
 * Accepts both spellings of the rope keys (rope_theta + rope_scaling with type or rope_type; rope_parameters). Sets
 * *quantized when a quantization_config is present (the caller decides whether that is allowed). Text models only: a
 * nested text_config is refused. Errors: DPQ_E_INPUT, DPQ_E_UNSUPPORTED with file, key, expected, found. */
DPQ_MUST_USE dpq_status dpq_model_config_read(const char *dir, dpq_model_config *out, bool *quantized);
void dpq_model_config_fini(dpq_model_config *config);

/* One architecture: names and flags (arch_llama.c, ...). The block itself is written once (block.c). */
typedef struct {
    const char *architecture; /* architectures[0] */
    const char *model_type;
    const char *help; /* one line for `dpquant list` */
    /* Fill what differs from the common keys: biases, q/k norms, windows, class defaults of absent keys. */
    dpq_status (*read)(const dpq_json *json, const char *file, dpq_model_config *config);
} dpq_arch_ops;
const dpq_arch_ops *dpq_arch_at(int index); /* NULL past the end */

/* Shape of a linear: outputs N and inputs K; stage it belongs to; whether it has a bias. */
void dpq_model_linear_shape(const dpq_model_config *c, dpq_linear_role role, int64_t *n, int64_t *k);
int dpq_model_linear_stage(dpq_linear_role role);
bool dpq_model_linear_has_bias(const dpq_model_config *c, dpq_linear_role role);
/* Linears of a stage in order, and their count. */
int dpq_model_stage_linears(int stage, dpq_linear_role roles[3]);
int64_t dpq_model_stage_inputs(const dpq_model_config *c, int stage); /* K of the stage */
const char *dpq_linear_role_name(dpq_linear_role role);               /* "q_proj" */
/* "model.layers.3.self_attn.q_proj" (module, without ".weight"). */
#define DPQ_NAME_BYTES 160
void dpq_model_linear_name(const dpq_model_config *c, int64_t layer, dpq_linear_role role, char name[DPQ_NAME_BYTES]);

/* Names of the other tensors of a block, and of the model. */
typedef enum { DPQ_NORM_INPUT, DPQ_NORM_POST, DPQ_NORM_Q, DPQ_NORM_K, DPQ_NORM_COUNT } dpq_norm_role;
void dpq_model_norm_name(const dpq_model_config *c, int64_t layer, dpq_norm_role role, char name[DPQ_NAME_BYTES]);
bool dpq_model_has_norm(const dpq_model_config *c, dpq_norm_role role);
int64_t dpq_model_norm_size(const dpq_model_config *c, dpq_norm_role role);
const char *dpq_model_embed_name(const dpq_model_config *c); /* "model.embed_tokens.weight" */
const char *dpq_model_final_norm_name(const dpq_model_config *c);
const char *dpq_model_head_name(const dpq_model_config *c); /* lm_head.weight, or the embedding's name when tied */
/* Check that the store holds every tensor the model needs, with the right shape and a float type; dense linears only
 * when DENSE. Errors: DPQ_E_INPUT with tensor, expected, found. */
DPQ_MUST_USE dpq_status dpq_model_check_tensors(const dpq_model_config *c, const dpq_st_store *store, bool dense);

/* cos, sin (T, rotary_dim/2) F32, computed in fp64 frequencies as the HF rules give in fp32, times attention_factor. */
DPQ_MUST_USE dpq_status dpq_rope_tables(const dpq_rope_config *rope, int64_t t, dpq_tensor *cos, dpq_tensor *sin);

/* Weights of one block, ready for products. */
typedef struct {
    dpq_weight linear[DPQ_LINEAR_COUNT];
    dpq_tensor norm[DPQ_NORM_COUNT]; /* F32; empty where the model has none */
} dpq_block_weights;
void dpq_block_weights_fini(dpq_block_weights *weights);

/* What a block's forward needs besides weights. Borrowed. */
typedef struct {
    dpq_backend *backend;
    const dpq_model_config *config;
    const dpq_tensor *cos, *sin; /* rows for the longest sample */
    dpq_compute compute;         /* F32 or BF16 */
} dpq_forward;

/* Input of stage 0: x (T,C) = norm(h (T,C)). */
DPQ_MUST_USE dpq_status dpq_block_enter(const dpq_forward *f, const dpq_block_weights *w, const dpq_tensor *h,
                                        dpq_tensor *x);
/* Compute the linears of STAGE on its input x (T, inputs of stage), update the residual h (T,C) where the block does,
 * and write the input of the next stage to NEXT (T, inputs of stage+1; unused and may be NULL for the last stage, after
 * which h is the block's output). NEXT may not overlap x. Temporary memory from WS. */
DPQ_MUST_USE dpq_status dpq_block_advance(const dpq_forward *f, int64_t layer, const dpq_block_weights *w, int stage,
                                          const dpq_tensor *x, dpq_tensor *h, dpq_tensor *next, dpq_workspace *ws);
/* The whole block on h in place. */
DPQ_MUST_USE dpq_status dpq_block_forward(const dpq_forward *f, int64_t layer, const dpq_block_weights *w,
                                          dpq_tensor *h, dpq_workspace *ws);

#endif
