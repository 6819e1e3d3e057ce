/* SPDX-License-Identifier: Apache-2.0 */
/* The linears of a quantized folder: which scheme how often, bits per weight as stored, what the scales are like. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/pack.h"
#include "inspect_priv.h"

typedef struct {
    dpq_scheme scheme;
    bool with_g_idx;
    int64_t modules, weights;
} scheme_count;

typedef struct {
    const dpq_model_folder *folder;
    const dpq_json *config;
    scheme_count *schemes;
    size_t n_schemes;
    int64_t dense_modules;
    uint64_t bytes; /* of all tensors of quantized linears, biases apart */
    int64_t scales, negative, not_finite;
    double smallest, largest; /* magnitudes */
} census;

static void count_scheme(census *s, const dpq_scheme *scheme, bool with_g_idx, int64_t weights)
{
    size_t i = 0;
    while (i < s->n_schemes &&
           !(dpq_scheme_equal(&s->schemes[i].scheme, scheme) && s->schemes[i].with_g_idx == with_g_idx)) {
        i++;
    }
    if (i == s->n_schemes) {
        s->schemes[i] = (scheme_count){.scheme = *scheme, .with_g_idx = with_g_idx};
        s->n_schemes++;
    }
    s->schemes[i].modules++;
    s->schemes[i].weights += weights;
}

static dpq_status count_scales(census *s, const char *name)
{
    dpq_status st = DPQ_OK;
    dpq_tensor source = {0}, values = {0};
    DPQ_TRY_GOTO(st, dpq_folder_read_tensor(s->folder, name, &source), done);
    int64_t n = dpq_tensor_count(&source);
    DPQ_TRY_GOTO(st, dpq_tensor_create_1d(DPQ_DTYPE_F32, n, &values), done);
    DPQ_TRY_GOTO(st, dpq_convert(source.data, source.dtype, values.data, DPQ_DTYPE_F32, n), done);
    for (int64_t i = 0; i < n; i++) {
        double v = (double)((const float *)values.data)[i];
        if (!isfinite(v)) {
            s->not_finite++;
            continue;
        }
        s->negative += v < 0.0 ? 1 : 0;
        s->smallest = fmin(s->smallest, fabs(v));
        s->largest = fmax(s->largest, fabs(v));
    }
    s->scales += n;
done:
    dpq_tensor_fini(&source);
    dpq_tensor_fini(&values);
    return st;
}

static dpq_status count_module(census *s, const char *module, int64_t weights)
{
    dpq_scheme scheme = {0};
    bool with_g_idx = false, found = false;
    char name[DPQ_NAME_BYTES + 32];
    static const char *const parts[] = {"packed", "scale", "shape", "zero_point", "g_idx"};
    DPQ_TRY(dpq_ct_config_lookup(s->config, s->folder->json_file, module, &scheme, &with_g_idx, &found));
    if (!found) {
        s->dense_modules++;
        return DPQ_OK;
    }
    count_scheme(s, &scheme, with_g_idx, weights);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(name, sizeof name, "%s.weight_%s", module, parts[i]);
        const dpq_st_entry *e = dpq_st_find(s->folder->store, name);
        s->bytes += e != NULL ? e->bytes : 0;
    }
    snprintf(name, sizeof name, "%s.weight_scale", module);
    return count_scales(s, name);
}

static dpq_status count_modules(census *s)
{
    const dpq_model_config *c = &s->folder->config;
    for (int64_t layer = 0; layer < c->n_layers; layer++) {
        for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
            char module[DPQ_NAME_BYTES];
            int64_t n = 0, k = 0;
            dpq_model_linear_name(c, layer, (dpq_linear_role)role, module);
            dpq_model_linear_shape(c, (dpq_linear_role)role, &n, &k);
            DPQ_TRY(count_module(s, module, n * k));
        }
    }
    return DPQ_OK;
}

static dpq_status append_census(const census *s, dpq_text *t)
{
    int64_t weights = 0;
    DPQ_TRY(dpq_text_append(t, "quantization     compressed-tensors pack-quantized\n"));
    for (size_t i = 0; i < s->n_schemes; i++) {
        const scheme_count *c = &s->schemes[i];
        char description[96];
        dpq_scheme_describe(&c->scheme, description, sizeof description);
        DPQ_TRY(dpq_text_append(t, "  %s%s: %" PRId64 " modules, %" PRId64 " weights\n", description,
                                c->with_g_idx ? " with column order" : "", c->modules, c->weights));
        weights += c->weights;
    }
    if (s->dense_modules > 0) {
        DPQ_TRY(dpq_text_append(t, "  dense: %" PRId64 " modules\n", s->dense_modules));
    }
    if (weights == 0 || s->scales == 0) {
        return DPQ_OK;
    }
    DPQ_TRY(dpq_text_append(t, "bits per weight  %.4f, scales and zero points included\n",
                            8.0 * (double)s->bytes / (double)weights));
    DPQ_TRY(dpq_text_append(t, "scales           %" PRId64 ", magnitudes %.6g to %.6g, %.2f %% negative", s->scales,
                            s->smallest, s->largest, 100.0 * (double)s->negative / (double)s->scales));
    return s->not_finite > 0 ? dpq_text_append(t, ", %" PRId64 " NOT FINITE\n", s->not_finite)
                             : dpq_text_append(t, "\n");
}

dpq_status dpq_inspect_quantized(const dpq_model_folder *folder, dpq_text *t)
{
    census s = {.folder = folder, .smallest = INFINITY};
    dpq_status st = DPQ_OK;
    void *memory = NULL;
    if (!folder->quantized) {
        return DPQ_OK;
    }
    s.config = dpq_json_member(folder->json, "quantization_config");
    s.config = s.config != NULL ? s.config : dpq_json_member(folder->json, "compression_config");
    DPQ_TRY(dpq_alloc_array(folder->config.n_layers * DPQ_LINEAR_COUNT, sizeof *s.schemes, &memory));
    s.schemes = memory;
    DPQ_TRY_GOTO(st, count_modules(&s), done);
    st = append_census(&s, t);
done:
    dpq_free(s.schemes);
    return st;
}
