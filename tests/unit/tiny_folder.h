/* SPDX-License-Identifier: Apache-2.0 */
/* Model folders made from tests/models/tiny for tests: dense copies, copies with a tensor left out, and quantized ones
 * whose codes follow from a plain rule that a test can repeat. */
#ifndef DPQUANT_TINY_FOLDER_H
#define DPQUANT_TINY_FOLDER_H

#include <math.h>

#include "dpquant/half.h"
#include "dpquant/json.h"
#include "dpquant/model.h"
#include "dpquant/pack.h"
#include "dpquant/safetensors.h"
#include "io_test.h"

#define TINY         "tests/models/tiny"
#define TINY_LINEARS 28

typedef struct {
    bool quantize;
    dpq_scheme scheme;
    const char *dense; /* module that stays dense, or NULL */
    const char *omit;  /* tensor left out, or NULL */
} tiny_recipe;

/* The rule: scale = largest magnitude / (2^(b-1) - 1) as bf16, code = w / scale rounded, shifted by the zero point -1
 * when asymmetric; clamped. Returns the value of column J of a group. */
static inline float tiny_value(const dpq_scheme *scheme, const float *group, int64_t width, int64_t j, float *scale,
                               int *code)
{
    int top = (1 << (scheme->bits - 1)) - 1;
    int zero = scheme->symmetric ? 0 : -1;
    float largest = 0.0f;
    for (int64_t i = 0; i < width; i++) {
        largest = fmaxf(largest, fabsf(group[i]));
    }
    *scale = dpq_bf16_to_f32(dpq_f32_to_bf16(largest > 0.0f ? largest / (float)top : 1.0f));
    int q = (int)lrintf(group[j] / *scale) + zero;
    *code = q < -top - 1 ? -top - 1 : q > top ? top : q;
    return (float)(*code - zero) * *scale;
}

static inline void tiny_quantize(const tiny_recipe *recipe, const uint16_t *w, int64_t n, int64_t k, dpq_qweight *q)
{
    float *row = malloc((size_t)k * sizeof *row);
    int64_t width = dpq_scheme_group_width(&recipe->scheme, k);
    expect_ok(dpq_qweight_create(&recipe->scheme, n, k, DPQ_DTYPE_BF16, false, q));
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < k; j++) {
            row[j] = dpq_bf16_to_f32(w[i * k + j]);
        }
        for (int64_t j = 0; j < k; j++) {
            int code = 0;
            float scale = 0.0f;
            (void)tiny_value(&recipe->scheme, row + j / width * width, width, j % width, &scale, &code);
            ((int8_t *)q->codes.data)[i * k + j] = (int8_t)code;
            ((float *)q->scale.data)[i * q->groups + j / width] = scale;
            ((int8_t *)q->zero.data)[i * q->groups + j / width] = recipe->scheme.symmetric ? 0 : -1;
        }
    }
    free(row);
}

/* "model.layers.0.mlp.up_proj" of an entry to be quantized, else "". */
static inline void tiny_module(const tiny_recipe *recipe, const dpq_st_entry *e, char module[DPQ_NAME_BYTES])
{
    module[0] = '\0';
    if (recipe->quantize && e->rank == 2 && strstr(e->name, "_proj.weight") != NULL) {
        snprintf(module, DPQ_NAME_BYTES, "%.*s", (int)(strlen(e->name) - strlen(".weight")), e->name);
        if (recipe->dense != NULL && strcmp(module, recipe->dense) == 0) {
            module[0] = '\0';
        }
    }
}

static inline void tiny_put_config(const char *dir, const tiny_recipe *recipe, dpq_ct_module *modules, size_t n)
{
    char *source = NULL, *block = NULL, *text = NULL, *path = NULL;
    size_t size = 0;
    dpq_str_list ignore = {0};
    expect_ok(dpq_file_read_all(TINY "/config.json", 1 << 20, &source, &size));
    expect_ok(dpq_path_join(dir, "config.json", &path));
    if (recipe->quantize) {
        expect_ok(dpq_str_list_append(&ignore, "lm_head"));
        if (recipe->dense != NULL) {
            expect_ok(dpq_str_list_append(&ignore, recipe->dense));
        }
        expect_ok(dpq_ct_config_text(modules, n, &ignore, false, &block));
        expect_ok(dpq_json_append_member(source, "quantization_config", block, &text));
    } else {
        expect_ok(dpq_str_dup(source, &text));
    }
    put_file(path, text, strlen(text));
    dpq_str_list_fini(&ignore);
    dpq_free(path);
    dpq_free(text);
    dpq_free(block);
    dpq_free(source);
}

static inline void tiny_put_tensors(const tiny_recipe *recipe, const dpq_st_store *store, dpq_st_writer *writer)
{
    for (size_t i = 0; i < dpq_st_count(store); i++) {
        const dpq_st_entry *e = dpq_st_at(store, i);
        char module[DPQ_NAME_BYTES];
        if (recipe->omit != NULL && strcmp(recipe->omit, e->name) == 0) {
            continue;
        }
        void *data = malloc((size_t)e->bytes);
        expect_ok(dpq_st_read(store, e, data));
        tiny_module(recipe, e, module);
        if (module[0] != '\0') {
            dpq_qweight q = {0};
            tiny_quantize(recipe, data, e->dim[0], e->dim[1], &q);
            expect_ok(dpq_ct_write(writer, module, &q));
            dpq_qweight_fini(&q);
        } else {
            expect_ok(dpq_st_writer_put(writer, e->name, data, (size_t)e->bytes));
        }
        free(data);
    }
}

/* Write the folder DIR, which does not exist yet. */
static inline void tiny_folder(const char *dir, const tiny_recipe *recipe)
{
    dpq_st_store *store = NULL;
    dpq_st_writer *writer = NULL;
    dpq_st_decl decls[TINY_LINEARS * DPQ_CT_MAX_TENSORS + 64];
    dpq_ct_module modules[TINY_LINEARS];
    static char names[TINY_LINEARS][DPQ_NAME_BYTES];
    dpq_ct_decls *ct = calloc(TINY_LINEARS, sizeof *ct);
    size_t n = 0, n_modules = 0;
    expect_ok(dpq_st_open(TINY, &store));
    expect_ok(dpq_dir_create(dir));
    for (size_t i = 0; i < dpq_st_count(store); i++) {
        const dpq_st_entry *e = dpq_st_at(store, i);
        char module[DPQ_NAME_BYTES];
        tiny_module(recipe, e, module);
        if (recipe->omit != NULL && strcmp(recipe->omit, e->name) == 0) {
            continue;
        }
        if (module[0] != '\0') {
            assert_true(n_modules < TINY_LINEARS);
            snprintf(names[n_modules], DPQ_NAME_BYTES, "%s", module);
            dpq_ct_declare(module, &recipe->scheme, e->dim[0], e->dim[1], DPQ_DTYPE_BF16, false, &ct[n_modules]);
            memcpy(&decls[n], ct[n_modules].decls, (size_t)ct[n_modules].count * sizeof decls[0]);
            n += (size_t)ct[n_modules].count;
            modules[n_modules] = (dpq_ct_module){.module = names[n_modules], .scheme = recipe->scheme};
            n_modules++;
        } else {
            decls[n] = (dpq_st_decl){.name = e->name, .dtype = e->dtype, .rank = e->rank};
            memcpy(decls[n].dim, e->dim, sizeof e->dim);
            n++;
        }
    }
    expect_ok(dpq_st_writer_create(dir, decls, n, (uint64_t)1 << 40, &writer));
    tiny_put_tensors(recipe, store, writer);
    expect_ok(dpq_st_writer_finish(&writer));
    tiny_put_config(dir, recipe, modules, n_modules);
    free(ct);
    dpq_st_close(&store);
}

#endif
