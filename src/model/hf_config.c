/* SPDX-License-Identifier: Apache-2.0 */
/* The model description from a Hugging Face config.json. What is not understood is refused by name; absent keys get the
 * defaults of the model's class, never a guess. */
#include <stdio.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/str.h"
#include "model_priv.h"

#define CONFIG_MAX_BYTES ((size_t)16 << 20)
#define CLASS_RMS_EPS    1e-6 /* of all four classes */

dpq_status dpq_model_read_size(const dpq_json *json, const char *file, const char *key, int64_t max, int64_t *out,
                               bool *found)
{
    int64_t value = 0;
    bool present = false;
    DPQ_TRY(dpq_json_opt_int(json, file, key, &value, &present));
    if (found) {
        *found = present;
    }
    if (!present) {
        return DPQ_OK;
    }
    if (value < 1 || value > max) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: %s: expected an integer of 1..%lld, found %lld", file, key, (long long)max,
                         (long long)value);
    }
    *out = value;
    return DPQ_OK;
}

static dpq_status require_size(const dpq_json *json, const char *file, const char *key, int64_t max, int64_t *out)
{
    bool found = false;
    DPQ_TRY(dpq_model_read_size(json, file, key, max, out, &found));
    if (!found) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: %s: expected a positive integer, found none", file, key);
    }
    return DPQ_OK;
}

static void list_architectures(char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; dpq_arch_at(i) && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", dpq_arch_at(i)->architecture);
    }
}

/* architectures[0] decides, model_type where there is none; where both are given they must belong together. */
static dpq_status find_architecture(const dpq_json *json, const char *file, const dpq_arch_ops **out)
{
    *out = NULL;
    const char *architecture = NULL;
    const char *model_type = NULL;
    char known[512];
    list_architectures(known, sizeof known);
    const dpq_json *list = dpq_json_member(json, "architectures");
    if (list && dpq_json_get_kind(list) != DPQ_JSON_NULL) {
        const dpq_json *first = dpq_json_get_kind(list) == DPQ_JSON_ARRAY ? dpq_json_item(list, 0) : NULL;
        if (!first || dpq_json_get_kind(first) != DPQ_JSON_STRING) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: architectures: expected a list with one name", file);
        }
        architecture = dpq_json_string(first);
    }
    DPQ_TRY(dpq_json_opt_string(json, file, "model_type", &model_type, NULL));
    if (!architecture && !model_type) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: architectures: expected one of %s, found none", file, known);
    }
    const dpq_arch_ops *found = NULL;
    for (int i = 0; !found && dpq_arch_at(i); i++) {
        const dpq_arch_ops *ops = dpq_arch_at(i);
        bool same =
            architecture ? strcmp(ops->architecture, architecture) == 0 : strcmp(ops->model_type, model_type) == 0;
        found = same ? ops : NULL;
    }
    if (!found) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: %s: expected one of %s, found '%s'", file,
                         architecture ? "architectures" : "model_type", known,
                         architecture ? architecture : model_type);
    }
    if (model_type && strcmp(found->model_type, model_type) != 0) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: model_type: expected '%s' (architecture %s), found '%s'", file,
                         found->model_type, found->architecture, model_type);
    }
    *out = found;
    return DPQ_OK;
}

static dpq_status read_dtype(const dpq_json *json, const char *file, dpq_dtype *out)
{
    static const struct {
        const char *name;
        dpq_dtype dtype;
    } names[] = {{"bfloat16", DPQ_DTYPE_BF16}, {"float16", DPQ_DTYPE_F16}, {"float32", DPQ_DTYPE_F32}};
    const char *key = "dtype";
    const char *text = NULL;
    bool found = false;
    *out = DPQ_DTYPE_F32;
    DPQ_TRY(dpq_json_opt_string(json, file, key, &text, &found));
    if (!found) {
        key = "torch_dtype";
        DPQ_TRY(dpq_json_opt_string(json, file, key, &text, &found));
    }
    if (!found) {
        return DPQ_OK;
    }
    const char *bare = dpq_str_starts_with(text, "torch.") ? text + strlen("torch.") : text;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].name, bare) == 0) {
            *out = names[i].dtype;
            return DPQ_OK;
        }
    }
    return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: %s: expected bfloat16, float16 or float32, found '%s'", file, key, text);
}

static dpq_status read_activation(const dpq_json *json, const char *file)
{
    const char *act = "silu";
    DPQ_TRY(dpq_json_opt_string(json, file, "hidden_act", &act, NULL));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: hidden_act: expected silu or swish, found '%s'", file, act);
    }
    return DPQ_OK;
}

/* Keys all four classes share. Head counts and widths that are absent stay 0 for the class to fill. */
static dpq_status read_common(const dpq_json *json, const char *file, dpq_model_config *c)
{
    const int64_t max = DPQ_MODEL_MAX_SIZE;
    DPQ_TRY(require_size(json, file, "hidden_size", max, &c->hidden_size));
    DPQ_TRY(require_size(json, file, "intermediate_size", max, &c->intermediate_size));
    DPQ_TRY(require_size(json, file, "num_hidden_layers", DPQ_MODEL_MAX_LAYERS, &c->n_layers));
    DPQ_TRY(require_size(json, file, "num_attention_heads", max, &c->n_heads));
    DPQ_TRY(require_size(json, file, "vocab_size", max, &c->vocab_size));
    DPQ_TRY(require_size(json, file, "max_position_embeddings", max, &c->max_positions));
    DPQ_TRY(dpq_model_read_size(json, file, "num_key_value_heads", max, &c->n_kv_heads, NULL));
    DPQ_TRY(dpq_model_read_size(json, file, "head_dim", max, &c->head_dim, NULL));
    c->rms_eps = CLASS_RMS_EPS;
    DPQ_TRY(dpq_json_opt_real(json, file, "rms_norm_eps", &c->rms_eps, NULL));
    if (!(c->rms_eps > 0.0 && c->rms_eps < 1.0)) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: rms_norm_eps: expected a number above 0 and below 1, found %g", file,
                         c->rms_eps);
    }
    DPQ_TRY(dpq_json_opt_bool(json, file, "tie_word_embeddings", &c->tied_embeddings, NULL));
    DPQ_TRY(read_activation(json, file));
    return read_dtype(json, file, &c->dtype);
}

/* After the class has filled its defaults: what is still open follows from other sizes, and all must fit together. */
static dpq_status finish_heads(const char *file, dpq_model_config *c)
{
    if (c->n_kv_heads == 0) {
        c->n_kv_heads = c->n_heads;
    }
    if (c->n_heads % c->n_kv_heads != 0) {
        return DPQ_RAISE(DPQ_E_INPUT,
                         "%s: num_key_value_heads: expected a divisor of num_attention_heads (%lld), found %lld", file,
                         (long long)c->n_heads, (long long)c->n_kv_heads);
    }
    if (c->head_dim == 0) {
        if (c->hidden_size % c->n_heads != 0) {
            return DPQ_RAISE(
                DPQ_E_INPUT,
                "%s: head_dim is absent: expected hidden_size to be a multiple of num_attention_heads (%lld), "
                "found %lld",
                file, (long long)c->n_heads, (long long)c->hidden_size);
        }
        c->head_dim = c->hidden_size / c->n_heads;
    }
    if (c->head_dim > DPQ_MODEL_MAX_SIZE / c->n_heads) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: head_dim: expected at most %lld with %lld heads, found %lld", file,
                         (long long)(DPQ_MODEL_MAX_SIZE / c->n_heads), (long long)c->n_heads, (long long)c->head_dim);
    }
    return DPQ_OK;
}

static bool has_object(const dpq_json *json, const char *key)
{
    const dpq_json *member = dpq_json_member(json, key);
    return member && dpq_json_get_kind(member) != DPQ_JSON_NULL;
}

static dpq_status read_config(const dpq_json *json, const char *file, dpq_model_config *c)
{
    const dpq_arch_ops *arch = NULL;
    void *window = NULL;
    if (dpq_json_get_kind(json) != DPQ_JSON_OBJECT) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: expected a JSON object", file);
    }
    if (has_object(json, "text_config")) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: text_config: expected a text-only model, found a nested text model",
                         file);
    }
    DPQ_TRY(find_architecture(json, file, &arch));
    snprintf(c->architecture, sizeof c->architecture, "%s", arch->architecture);
    snprintf(c->model_type, sizeof c->model_type, "%s", arch->model_type);
    DPQ_TRY(read_common(json, file, c));
    DPQ_TRY(dpq_alloc_array(c->n_layers, sizeof *c->window, &window));
    c->window = window;
    DPQ_TRY(arch->read(json, file, c));
    DPQ_TRY(finish_heads(file, c));
    return dpq_rope_config_read(json, file, c, &c->rope);
}

dpq_status dpq_model_config_read(const char *dir, dpq_model_config *out, bool *quantized)
{
    dpq_status st = DPQ_OK;
    char *file = NULL;
    dpq_json *json = NULL;
    memset(out, 0, sizeof *out);
    *quantized = false;
    DPQ_TRY_GOTO(st, dpq_path_join(dir, "config.json", &file), done);
    DPQ_TRY_GOTO(st, dpq_json_read_file(file, CONFIG_MAX_BYTES, &json), done);
    DPQ_TRY_GOTO(st, read_config(json, file, out), done);
    *quantized = has_object(json, "quantization_config") || has_object(json, "compression_config");
done:
    dpq_json_destroy(&json);
    dpq_free(file);
    if (st != DPQ_OK) {
        dpq_model_config_fini(out);
    }
    return st;
}

void dpq_model_config_fini(dpq_model_config *config)
{
    dpq_free(config->window);
    memset(config, 0, sizeof *config);
}
