/* SPDX-License-Identifier: Apache-2.0 */
/* Activations of this rank's samples: created from the embedding, then carried from stage to stage. */
#include "dpquant/shard.h"
#include "engine_priv.h"

static int64_t widest_input(const dpq_model_config *config)
{
    int64_t widest = 0;
    for (int stage = 0; stage < DPQ_STAGE_COUNT; stage++) {
        int64_t k = dpq_model_stage_inputs(config, stage);
        widest = k > widest ? k : widest;
    }
    return widest;
}

static dpq_status create_arrays(dpq_activations *a, bool keep_entry)
{
    void *memory;
    DPQ_TRY(dpq_alloc_array(a->n, sizeof *a->tokens, &memory));
    a->tokens = memory;
    DPQ_TRY(dpq_alloc_array(a->n, sizeof *a->h, &memory));
    a->h = memory;
    DPQ_TRY(dpq_alloc_array(a->n, sizeof *a->x, &memory));
    a->x = memory;
    DPQ_TRY(dpq_alloc_array(a->n, sizeof *a->buffer, &memory));
    a->buffer = memory;
    if (keep_entry) {
        DPQ_TRY(dpq_alloc_array(a->n, sizeof *a->saved, &memory));
        a->saved = memory;
    }
    return DPQ_OK;
}

static dpq_status embed_samples(dpq_activations *a, const dpq_model_folder *folder, dpq_backend *be,
                                const dpq_calibset *set, int rank, int size)
{
    const dpq_model_config *config = &folder->config;
    size_t elem = dpq_dtype_bytes(a->dtype);
    int64_t width = widest_input(config);
    dpq_tensor table = {0};
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_folder_read_tensor(folder, dpq_model_embed_name(config), &table), done);
    for (int64_t i = 0; i < a->n; i++) {
        int64_t sample = dpq_shard_sample(i, rank, size);
        a->tokens[i] = set->start[sample + 1] - set->start[sample];
        DPQ_TRY_GOTO(st, dpq_tensor_create_2d(a->dtype, a->tokens[i], config->hidden_size, &a->h[i]), done);
        DPQ_TRY_GOTO(st, dpq_op_gather_rows(be, &table, set->ids + set->start[sample], &a->h[i]), done);
    }
    dpq_tensor_fini(&table); /* before the large buffers: the table and they need not live at once */
    for (int64_t i = 0; i < a->n; i++) {
        if (a->saved != NULL) {
            DPQ_TRY_GOTO(st, dpq_tensor_create_2d(a->dtype, a->tokens[i], config->hidden_size, &a->saved[i]), done);
        }
        /* buffers change hands, so each must hold the longest sample */
        DPQ_TRY_GOTO(st, dpq_alloc_array(set->max_length * width, elem, &a->buffer[i]), done);
    }
    st = dpq_alloc_array(set->max_length * width, elem, &a->spare);
done:
    dpq_tensor_fini(&table);
    return st;
}

dpq_status dpq_activations_create(const dpq_model_folder *folder, dpq_backend *be, const dpq_calibset *set, int rank,
                                  int size, dpq_dtype dtype, bool keep_entry, dpq_activations **out)
{
    *out = NULL;
    void *memory;
    DPQ_TRY(dpq_alloc(sizeof(dpq_activations), &memory));
    dpq_activations *a = memory;
    a->n = dpq_shard_sample_count(set->n, rank, size);
    a->dtype = dtype;
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, create_arrays(a, keep_entry), fail);
    DPQ_TRY_GOTO(st, embed_samples(a, folder, be, set, rank, size), fail);
    *out = a;
    return DPQ_OK;
fail:
    dpq_activations_destroy(&a);
    return st;
}

void dpq_activations_destroy(dpq_activations **activations)
{
    dpq_activations *a = *activations;
    if (a == NULL) {
        return;
    }
    for (int64_t i = 0; i < a->n; i++) {
        if (a->h != NULL) {
            dpq_tensor_fini(&a->h[i]);
        }
        if (a->saved != NULL) {
            dpq_tensor_fini(&a->saved[i]);
        }
        if (a->buffer != NULL) {
            dpq_free(a->buffer[i]);
        }
    }
    dpq_free(a->spare);
    dpq_free(a->tokens);
    dpq_free(a->h);
    dpq_free(a->saved);
    dpq_free(a->x);
    dpq_free(a->buffer);
    dpq_free(a);
    *activations = NULL;
}

dpq_tensor dpq_activations_view(const dpq_activations *a, int64_t i, int64_t width)
{
    return dpq_tensor_wrap_2d(a->buffer[i], a->dtype, a->tokens[i], width);
}

dpq_tensor dpq_activations_spare(const dpq_activations *a, int64_t i, int64_t width)
{
    return dpq_tensor_wrap_2d(a->spare, a->dtype, a->tokens[i], width);
}

void dpq_activations_swap(dpq_activations *a, int64_t i, int64_t width)
{
    void *filled = a->spare;
    a->spare = a->buffer[i];
    a->buffer[i] = filled;
    a->x[i] = dpq_activations_view(a, i, width);
}
