/* SPDX-License-Identifier: Apache-2.0 */
/* Which layers attend through a sliding window, and how wide it is. Window W means: query q sees keys k with q - W < k
 * <= q. */
#include <string.h>

#include "model_priv.h"

#define QWEN_CLASS_WINDOW      4096
#define QWEN_CLASS_FULL_LAYERS 28

dpq_status dpq_model_read_sliding_window(const dpq_json *json, const char *file, int64_t class_default, int64_t *window)
{
    bool found = false;
    DPQ_TRY(dpq_model_read_size(json, file, "sliding_window", INT64_MAX, window, &found));
    if (!found) {
        *window = dpq_json_member(json, "sliding_window") ? 0 : class_default;
    }
    return DPQ_OK;
}

static dpq_status read_layer_types(const dpq_json *types, const char *file, int64_t window, dpq_model_config *config)
{
    if (dpq_json_get_kind(types) != DPQ_JSON_ARRAY) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: layer_types: expected a list", file);
    }
    if (dpq_json_size(types) != (size_t)config->n_layers) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: layer_types: expected %lld items (num_hidden_layers), found %zu", file,
                         (long long)config->n_layers, dpq_json_size(types));
    }
    for (int64_t i = 0; i < config->n_layers; i++) {
        const dpq_json *item = dpq_json_item(types, (size_t)i);
        if (dpq_json_get_kind(item) != DPQ_JSON_STRING) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: layer_types[%lld]: expected a string", file, (long long)i);
        }
        const char *kind = dpq_json_string(item);
        bool sliding = strcmp(kind, "sliding_attention") == 0;
        if (!sliding && strcmp(kind, "full_attention") != 0) {
            return DPQ_RAISE(DPQ_E_UNSUPPORTED,
                             "%s: layer_types[%lld]: expected full_attention or sliding_attention, found '%s'", file,
                             (long long)i, kind);
        }
        if (sliding && window == 0) {
            return DPQ_RAISE(DPQ_E_INPUT,
                             "%s: layer_types[%lld]: expected full_attention (%s has no sliding window in use here), "
                             "found sliding_attention",
                             file, (long long)i, config->architecture);
        }
        config->window[i] = sliding ? window : 0;
    }
    return DPQ_OK;
}

dpq_status dpq_model_read_windows(const dpq_json *json, const char *file, int64_t window, int64_t first,
                                  dpq_model_config *config)
{
    const dpq_json *types = dpq_json_member(json, "layer_types");
    if (types && dpq_json_get_kind(types) != DPQ_JSON_NULL) {
        return read_layer_types(types, file, window, config);
    }
    for (int64_t i = 0; i < config->n_layers; i++) {
        config->window[i] = i >= first ? window : 0;
    }
    return DPQ_OK;
}

dpq_status dpq_model_read_qwen_windows(const dpq_json *json, const char *file, dpq_model_config *config)
{
    bool use = false;
    int64_t window = 0;
    int64_t first = QWEN_CLASS_FULL_LAYERS;
    DPQ_TRY(dpq_json_opt_bool(json, file, "use_sliding_window", &use, NULL));
    DPQ_TRY(dpq_json_opt_int(json, file, "max_window_layers", &first, NULL));
    if (first < 0) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: max_window_layers: expected 0 or more, found %lld", file, (long long)first);
    }
    if (use) {
        DPQ_TRY(dpq_model_read_sliding_window(json, file, QWEN_CLASS_WINDOW, &window));
    }
    return dpq_model_read_windows(json, file, window, first, config);
}
