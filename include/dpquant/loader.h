/* SPDX-License-Identifier: Apache-2.0 */
/* Streams a model's weights block by block: positioned reads, the next block prefetched by a thread while this one is
 * worked on. Dense folders and our own quantized folders (dequantized on load) look alike. */
#ifndef DPQUANT_LOADER_H
#define DPQUANT_LOADER_H

#include <stdint.h>

#include "dpquant/backend.h"
#include "dpquant/json.h"
#include "dpquant/model.h"
#include "dpquant/safetensors.h"
#include "dpquant/status.h"

/* An opened model folder. */
typedef struct {
    char *dir;
    dpq_model_config config;
    dpq_st_store *store;
    bool quantized;
    dpq_json *json; /* of config.json, for quantization_config; NULL when dense */
    char *json_file;
} dpq_model_folder;

/* Read config.json, open the shards, check every tensor. ALLOW_QUANTIZED: compressed-tensors folders are fine (eval),
 * else refused by name. Collective: no (each rank opens for itself).  Errors: those of config, safetensors,
 * compressed-tensors. */
DPQ_MUST_USE dpq_status dpq_model_folder_open(const char *dir, bool allow_quantized, dpq_model_folder *out);
void dpq_model_folder_close(dpq_model_folder *folder);

/* One block as read: weights in their source type (quantized ones: values in F32, or rounded to BF16 when ROUND_BF16),
 * biases and norms F32. */
typedef struct {
    dpq_tensor w[DPQ_LINEAR_COUNT];
    dpq_tensor bias[DPQ_LINEAR_COUNT];
    dpq_tensor norm[DPQ_NORM_COUNT];
} dpq_block_source;
void dpq_block_source_fini(dpq_block_source *source);
size_t dpq_block_source_bytes(const dpq_model_config *config, dpq_dtype dtype);

typedef struct dpq_loader dpq_loader;
/* FOLDER is borrowed. ROUND_BF16: dequantized weights are rounded to BF16 as loaders with a bf16 model do. */
DPQ_MUST_USE dpq_status dpq_loader_create(const dpq_model_folder *folder, bool round_bf16, dpq_loader **out);
void dpq_loader_destroy(dpq_loader **loader);
/* Take block LAYER (waits for its prefetch, or reads it now) and begin to prefetch LAYER + 1. *out is the caller's. */
DPQ_MUST_USE dpq_status dpq_loader_take(dpq_loader *loader, int64_t layer, dpq_block_source *out);

/* A whole tensor by name in its source type. */
DPQ_MUST_USE dpq_status dpq_folder_read_tensor(const dpq_model_folder *folder, const char *name, dpq_tensor *out);
/* A vector (norm, bias) as F32. */
DPQ_MUST_USE dpq_status dpq_folder_read_vector(const dpq_model_folder *folder, const char *name, dpq_tensor *out);

/* Weights ready for products, from SOURCE: where the product's type is the source's, the tensor is MOVED out of SOURCE,
 * else converted. Norms and biases are moved. */
DPQ_MUST_USE dpq_status dpq_block_source_prepare(dpq_block_source *source, dpq_dtype act, dpq_compute compute,
                                                 dpq_block_weights *out);
/* The same for one weight (N,K); W is moved or released. */
DPQ_MUST_USE dpq_status dpq_weight_prepare(dpq_tensor *w, dpq_dtype act, dpq_compute compute, dpq_weight *out);

#endif
