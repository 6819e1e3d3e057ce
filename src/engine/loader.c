/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks one after the other: while one is worked on, a thread reads the next. That thread calls no communicator, and
 * its error, record included, is that of the take that asked for its block. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/log.h"
#include "dpquant/pack.h"
#include "loader_priv.h"

struct dpq_loader {
    const dpq_model_folder *folder;
    bool round_bf16;
    bool running; /* the thread exists and is not joined */
    pthread_t thread;
    /* written by the thread, read after the join */
    int64_t layer;
    dpq_block_source source;
    dpq_status status;
    dpq_error_record record;
};

void dpq_block_source_fini(dpq_block_source *source)
{
    for (int i = 0; i < DPQ_LINEAR_COUNT; i++) {
        dpq_tensor_fini(&source->w[i]);
        dpq_tensor_fini(&source->bias[i]);
    }
    for (int i = 0; i < DPQ_NORM_COUNT; i++) {
        dpq_tensor_fini(&source->norm[i]);
    }
}

size_t dpq_block_source_bytes(const dpq_model_config *config, dpq_dtype dtype)
{
    size_t bytes = 0;
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        int64_t n = 0, k = 0;
        dpq_model_linear_shape(config, (dpq_linear_role)role, &n, &k);
        bytes += (size_t)n * (size_t)k * dpq_dtype_bytes(dtype);
        bytes += dpq_model_linear_has_bias(config, (dpq_linear_role)role) ? (size_t)n * sizeof(float) : 0;
    }
    for (int role = 0; role < DPQ_NORM_COUNT; role++) {
        if (dpq_model_has_norm(config, (dpq_norm_role)role)) {
            bytes += (size_t)dpq_model_norm_size(config, (dpq_norm_role)role) * sizeof(float);
        }
    }
    return bytes;
}

/* ---- reading a block ---- */

static dpq_status read_quantized(const dpq_model_folder *folder, const char *module, const dpq_scheme *scheme,
                                 bool with_g_idx, dpq_dtype dtype, dpq_tensor *out)
{
    dpq_status st = DPQ_OK;
    dpq_qweight q = {0};
    DPQ_TRY_GOTO(st, dpq_ct_read(folder->store, module, scheme, with_g_idx, &q), done);
    DPQ_TRY_GOTO(st, dpq_tensor_create_2d(dtype, q.n, q.k, out), done);
    st = dpq_qweight_dequantize(&q, 0, q.n, out);
done:
    dpq_qweight_fini(&q);
    return st;
}

static dpq_status read_linear(const dpq_model_folder *folder, int64_t layer, dpq_linear_role role, bool round_bf16,
                              dpq_block_source *out)
{
    const dpq_model_config *c = &folder->config;
    char module[DPQ_NAME_BYTES];
    char name[DPQ_NAME_BYTES + 16];
    dpq_scheme scheme = {0};
    bool with_g_idx = false, quantized = false;
    int64_t n = 0, k = 0;
    dpq_model_linear_name(c, layer, role, module);
    dpq_model_linear_shape(c, role, &n, &k);
    DPQ_TRY(dpq_folder_module_scheme(folder, module, &scheme, &with_g_idx, &quantized));
    dpq_tensor *w = &out->w[role];
    if (quantized) {
        dpq_dtype dtype = round_bf16 ? DPQ_DTYPE_BF16 : DPQ_DTYPE_F32;
        DPQ_TRY(read_quantized(folder, module, &scheme, with_g_idx, dtype, w));
    } else {
        snprintf(name, sizeof name, "%s.weight", module);
        DPQ_TRY(dpq_folder_read_tensor(folder, name, w));
    }
    if (w->rank != 2 || w->dim[0] != n || w->dim[1] != k) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: weight of %s: expected [%lld,%lld], found [%lld,%lld]", folder->dir, module,
                         (long long)n, (long long)k, (long long)w->dim[0], (long long)w->dim[1]);
    }
    if (dpq_model_linear_has_bias(c, role)) {
        snprintf(name, sizeof name, "%s.bias", module);
        DPQ_TRY(dpq_folder_read_vector(folder, name, &out->bias[role]));
    }
    return DPQ_OK;
}

static dpq_status fill_block(const dpq_model_folder *folder, int64_t layer, bool round_bf16, dpq_block_source *out)
{
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        DPQ_TRY(read_linear(folder, layer, (dpq_linear_role)role, round_bf16, out));
    }
    for (int role = 0; role < DPQ_NORM_COUNT; role++) {
        if (dpq_model_has_norm(&folder->config, (dpq_norm_role)role)) {
            char name[DPQ_NAME_BYTES];
            dpq_model_norm_name(&folder->config, layer, (dpq_norm_role)role, name);
            DPQ_TRY(dpq_folder_read_vector(folder, name, &out->norm[role]));
        }
    }
    return DPQ_OK;
}

static dpq_status read_block(const dpq_model_folder *folder, int64_t layer, bool round_bf16, dpq_block_source *out)
{
    memset(out, 0, sizeof *out);
    dpq_status st = fill_block(folder, layer, round_bf16, out);
    if (st != DPQ_OK) {
        dpq_block_source_fini(out);
    }
    return st;
}

/* ---- prefetch ---- */

static void *prefetch(void *context)
{
    dpq_loader *loader = context;
    dpq_error_clear();
    loader->status = read_block(loader->folder, loader->layer, loader->round_bf16, &loader->source);
    loader->record = *dpq_error_last();
    return NULL;
}

static void start_prefetch(dpq_loader *loader, int64_t layer)
{
    if (layer >= loader->folder->config.n_layers) {
        return;
    }
    loader->layer = layer;
    int error = pthread_create(&loader->thread, NULL, prefetch, loader);
    loader->running = error == 0;
    if (error != 0) { /* the block is then read when it is taken */
        dpq_log_warn_once("loader-thread", "engine", "no thread to prefetch weights: %s", strerror(error));
    }
}

/* Wait for the thread. What it read stays in the loader. */
static void join(dpq_loader *loader)
{
    if (loader->running) {
        int error = pthread_join(loader->thread, NULL);
        DPQ_ASSERT(error == 0);
        loader->running = false;
    }
}

dpq_status dpq_loader_create(const dpq_model_folder *folder, bool round_bf16, dpq_loader **out)
{
    void *memory = NULL;
    *out = NULL;
    DPQ_TRY(dpq_alloc(sizeof(dpq_loader), &memory));
    dpq_loader *loader = memory;
    loader->folder = folder;
    loader->round_bf16 = round_bf16;
    loader->layer = -1;
    *out = loader;
    return DPQ_OK;
}

void dpq_loader_destroy(dpq_loader **loader)
{
    if (*loader == NULL) {
        return;
    }
    join(*loader);
    dpq_block_source_fini(&(*loader)->source);
    dpq_free(*loader);
    *loader = NULL;
}

dpq_status dpq_loader_take(dpq_loader *loader, int64_t layer, dpq_block_source *out)
{
    DPQ_ASSERT(layer >= 0 && layer < loader->folder->config.n_layers);
    memset(out, 0, sizeof *out);
    bool prefetched = loader->running && loader->layer == layer;
    join(loader);
    if (!prefetched) {
        dpq_block_source_fini(&loader->source); /* another block than the one expected was asked for */
        DPQ_TRY(read_block(loader->folder, layer, loader->round_bf16, out));
    } else if (loader->status != DPQ_OK) {
        dpq_error_set(&loader->record);
        return loader->status;
    } else {
        *out = loader->source;
        memset(&loader->source, 0, sizeof loader->source);
    }
    start_prefetch(loader, layer + 1);
    return DPQ_OK;
}
