/* SPDX-License-Identifier: Apache-2.0 */
/* Does a checkpoint hold the tensors its config.json promises? Asked before any work starts. */
#include <stdio.h>

#include "model_priv.h"

static void describe_shape(int rank, const int64_t *dim, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < rank && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i > 0 ? "," : "", (long long)dim[i]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
}

static bool is_float(dpq_dtype dtype)
{
    return dtype == DPQ_DTYPE_F32 || dtype == DPQ_DTYPE_F16 || dtype == DPQ_DTYPE_BF16;
}

static dpq_status check_tensor(const dpq_st_store *store, const char *name, int rank, const int64_t *dim)
{
    char expected[64];
    char found[DPQ_TENSOR_MAX_RANK * 24];
    describe_shape(rank, dim, expected, sizeof expected);
    const dpq_st_entry *entry = dpq_st_find(store, name);
    if (!entry) {
        return DPQ_RAISE(DPQ_E_INPUT, "tensor %s: expected a float tensor of shape %s, found none", name, expected);
    }
    describe_shape(entry->rank, entry->dim, found, sizeof found);
    bool same = entry->rank == rank;
    for (int i = 0; same && i < rank; i++) {
        same = entry->dim[i] == dim[i];
    }
    if (!same) {
        return DPQ_RAISE(DPQ_E_INPUT, "tensor %s (%s): expected shape %s from config.json, found %s", name,
                         dpq_st_shard_name(store, entry->shard), expected, found);
    }
    if (!is_float(entry->dtype)) {
        return DPQ_RAISE(DPQ_E_INPUT, "tensor %s (%s): expected type F32, F16 or BF16, found %s", name,
                         dpq_st_shard_name(store, entry->shard), dpq_dtype_name(entry->dtype));
    }
    return DPQ_OK;
}

static dpq_status check_matrix(const dpq_st_store *store, const char *name, int64_t rows, int64_t cols)
{
    const int64_t dim[2] = {rows, cols};
    return check_tensor(store, name, 2, dim);
}

static dpq_status check_linear(const dpq_model_config *c, const dpq_st_store *store, int64_t layer,
                               dpq_linear_role role, bool dense)
{
    char module[DPQ_NAME_BYTES];
    char name[DPQ_NAME_BYTES + 8];
    int64_t n = 0;
    int64_t k = 0;
    dpq_model_linear_name(c, layer, role, module);
    dpq_model_linear_shape(c, role, &n, &k);
    if (dense) {
        snprintf(name, sizeof name, "%s.weight", module);
        DPQ_TRY(check_matrix(store, name, n, k));
    }
    snprintf(name, sizeof name, "%s.bias", module);
    if (dpq_model_linear_has_bias(c, role)) {
        return check_tensor(store, name, 1, &n);
    }
    if (dense && dpq_st_find(store, name)) { /* leaving it out would compute another model than the one trained */
        return DPQ_RAISE(DPQ_E_INPUT, "tensor %s: expected none (config.json gives this linear no bias), found one",
                         name);
    }
    return DPQ_OK;
}

dpq_status dpq_model_check_tensors(const dpq_model_config *c, const dpq_st_store *store, bool dense)
{
    DPQ_TRY(check_matrix(store, dpq_model_embed_name(c), c->vocab_size, c->hidden_size));
    for (int64_t layer = 0; layer < c->n_layers; layer++) {
        for (int role = 0; role < DPQ_NORM_COUNT; role++) {
            if (dpq_model_has_norm(c, (dpq_norm_role)role)) {
                char name[DPQ_NAME_BYTES];
                int64_t size = dpq_model_norm_size(c, (dpq_norm_role)role);
                dpq_model_norm_name(c, layer, (dpq_norm_role)role, name);
                DPQ_TRY(check_tensor(store, name, 1, &size));
            }
        }
        for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
            DPQ_TRY(check_linear(c, store, layer, (dpq_linear_role)role, dense));
        }
    }
    DPQ_TRY(check_tensor(store, dpq_model_final_norm_name(c), 1, &c->hidden_size));
    return check_matrix(store, dpq_model_head_name(c), c->vocab_size, c->hidden_size);
}
