/* SPDX-License-Identifier: Apache-2.0 */
/* An opened model folder: config.json, shards, the check that every tensor of the model is there (for quantized
 * folders: every tensor of each module's layout), and whole tensors by name. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/pack.h"
#include "loader_priv.h"

#define CONFIG_MAX_BYTES (16u << 20)

static bool is_float(dpq_dtype dtype)
{
    return dtype == DPQ_DTYPE_F32 || dtype == DPQ_DTYPE_F16 || dtype == DPQ_DTYPE_BF16;
}

static void describe_entry(const dpq_st_entry *entry, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "%s [", dpq_dtype_name(entry->dtype));
    for (int d = 0; d < entry->rank && used < size; d++) {
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, d > 0 ? "," : "", entry->dim[d]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
}

static dpq_status find_entry(const dpq_model_folder *folder, const char *name, const dpq_st_entry **out)
{
    *out = dpq_st_find(folder->store, name);
    if (*out == NULL) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s is missing", folder->dir, name);
    }
    return DPQ_OK;
}

dpq_status dpq_folder_module_scheme(const dpq_model_folder *folder, const char *module, dpq_scheme *scheme,
                                    bool *with_g_idx, bool *found)
{
    *found = false;
    if (!folder->quantized) {
        return DPQ_OK;
    }
    const dpq_json *config = dpq_json_member(folder->json, "quantization_config");
    config = config != NULL ? config : dpq_json_member(folder->json, "compression_config"); /* its older name */
    return dpq_ct_config_lookup(config, folder->json_file, module, scheme, with_g_idx, found);
}

/* ---- the check of a quantized folder ---- */

static dpq_status check_declared(const dpq_model_folder *folder, const dpq_st_decl *decl)
{
    const dpq_st_entry *entry = NULL;
    DPQ_TRY(find_entry(folder, decl->name, &entry));
    if (entry->dtype == decl->dtype && entry->rank == decl->rank &&
        memcmp(entry->dim, decl->dim, (size_t)decl->rank * sizeof entry->dim[0]) == 0) {
        return DPQ_OK;
    }
    char expected[256], found[256];
    dpq_st_entry wanted = {.dtype = decl->dtype, .rank = decl->rank};
    memcpy(wanted.dim, decl->dim, sizeof wanted.dim);
    describe_entry(&wanted, expected, sizeof expected);
    describe_entry(entry, found, sizeof found);
    return DPQ_RAISE(DPQ_E_INPUT, "%s/%s: tensor %s: expected %s, found %s", folder->dir,
                     dpq_st_shard_name(folder->store, entry->shard), decl->name, expected, found);
}

static dpq_status check_dense_module(const dpq_model_folder *folder, const char *module, int64_t n, int64_t k)
{
    char name[DPQ_NAME_BYTES + 16];
    const dpq_st_entry *entry = NULL;
    snprintf(name, sizeof name, "%s.weight", module);
    DPQ_TRY(find_entry(folder, name, &entry));
    if (entry->rank != 2 || entry->dim[0] != n || entry->dim[1] != k || !is_float(entry->dtype)) {
        char found[256];
        describe_entry(entry, found, sizeof found);
        return DPQ_RAISE(DPQ_E_INPUT, "%s/%s: tensor %s: expected F32, F16 or BF16 [%" PRId64 ",%" PRId64 "], found %s",
                         folder->dir, dpq_st_shard_name(folder->store, entry->shard), name, n, k, found);
    }
    return DPQ_OK;
}

static dpq_status check_quantized_module(const dpq_model_folder *folder, const char *module, const dpq_scheme *scheme,
                                         bool with_g_idx, int64_t n, int64_t k)
{
    char name[DPQ_NAME_BYTES + 16];
    dpq_ct_decls decls;
    const dpq_st_entry *scale = NULL;
    DPQ_TRY(dpq_scheme_check(scheme, module, k));
    snprintf(name, sizeof name, "%s.weight_scale", module);
    DPQ_TRY(find_entry(folder, name, &scale));
    dpq_dtype scale_dtype = is_float(scale->dtype) ? scale->dtype : DPQ_DTYPE_BF16;
    dpq_ct_declare(module, scheme, n, k, scale_dtype, with_g_idx, &decls);
    for (int i = 0; i < decls.count; i++) {
        DPQ_TRY(check_declared(folder, &decls.decls[i]));
    }
    return DPQ_OK;
}

static dpq_status check_modules(const dpq_model_folder *folder)
{
    const dpq_model_config *c = &folder->config;
    for (int64_t layer = 0; layer < c->n_layers; layer++) {
        for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
            char module[DPQ_NAME_BYTES];
            dpq_scheme scheme = {0};
            bool with_g_idx = false, found = false;
            int64_t n = 0, k = 0;
            dpq_model_linear_name(c, layer, (dpq_linear_role)role, module);
            dpq_model_linear_shape(c, (dpq_linear_role)role, &n, &k);
            DPQ_TRY(dpq_folder_module_scheme(folder, module, &scheme, &with_g_idx, &found));
            DPQ_TRY(found ? check_quantized_module(folder, module, &scheme, with_g_idx, n, k)
                          : check_dense_module(folder, module, n, k));
        }
    }
    return DPQ_OK;
}

/* ---- open and close ---- */

static dpq_status refuse_quantized(const char *config_file)
{
    return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: quantization_config: expected none (an unquantized model), found one",
                     config_file);
}

static dpq_status open_folder(const char *dir, bool allow_quantized, dpq_model_folder *f)
{
    DPQ_TRY(dpq_str_dup(dir, &f->dir));
    DPQ_TRY(dpq_path_join(dir, "config.json", &f->json_file));
    DPQ_TRY(dpq_model_config_read(dir, &f->config, &f->quantized));
    if (f->quantized) {
        if (!allow_quantized) {
            return refuse_quantized(f->json_file);
        }
        DPQ_TRY(dpq_json_read_file(f->json_file, CONFIG_MAX_BYTES, &f->json));
    }
    DPQ_TRY(dpq_st_open(dir, &f->store));
    DPQ_TRY(dpq_model_check_tensors(&f->config, f->store, !f->quantized));
    return f->quantized ? check_modules(f) : DPQ_OK;
}

dpq_status dpq_model_folder_open(const char *dir, bool allow_quantized, dpq_model_folder *out)
{
    memset(out, 0, sizeof *out);
    dpq_status st = open_folder(dir, allow_quantized, out);
    if (st != DPQ_OK) {
        dpq_model_folder_close(out);
    }
    return st;
}

void dpq_model_folder_close(dpq_model_folder *folder)
{
    dpq_st_close(&folder->store);
    dpq_json_destroy(&folder->json);
    dpq_model_config_fini(&folder->config);
    dpq_free(folder->json_file);
    dpq_free(folder->dir);
    memset(folder, 0, sizeof *folder);
}

/* ---- tensors by name ---- */

dpq_status dpq_folder_read_tensor(const dpq_model_folder *folder, const char *name, dpq_tensor *out)
{
    const dpq_st_entry *entry = NULL;
    memset(out, 0, sizeof *out);
    DPQ_TRY(find_entry(folder, name, &entry));
    DPQ_TRY(dpq_tensor_create(entry->dtype, entry->rank, entry->dim, out));
    dpq_status st = dpq_st_read(folder->store, entry, out->data);
    if (st != DPQ_OK) {
        dpq_tensor_fini(out);
    }
    return st;
}

dpq_status dpq_folder_read_vector(const dpq_model_folder *folder, const char *name, dpq_tensor *out)
{
    dpq_status st = DPQ_OK;
    dpq_tensor source = {0};
    memset(out, 0, sizeof *out);
    DPQ_TRY_GOTO(st, dpq_folder_read_tensor(folder, name, &source), done);
    if (source.rank != 1) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: expected 1 dimension, found %d", folder->dir, name, source.rank);
        goto done;
    }
    if (source.dtype == DPQ_DTYPE_F32) {
        *out = source;
        memset(&source, 0, sizeof source);
        goto done;
    }
    DPQ_TRY_GOTO(st, dpq_tensor_create_1d(DPQ_DTYPE_F32, source.dim[0], out), done);
    st = dpq_convert(source.data, source.dtype, out->data, DPQ_DTYPE_F32, source.dim[0]);
done:
    dpq_tensor_fini(&source);
    if (st != DPQ_OK) {
        dpq_tensor_fini(out);
    }
    return st;
}
