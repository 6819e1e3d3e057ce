/* SPDX-License-Identifier: Apache-2.0 */
/* quantization_config of a compressed-tensors checkpoint: the text we write, and the scheme of a module in one that is
 * read. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/json.h"
#include "dpquant/pack.h"
#include "dpquant/pattern.h"

#define METHOD       "compressed-tensors"
#define FORMAT       "pack-quantized"
#define VERSION      "0.18.0"
#define LINEAR_CLASS "Linear"

/* ---- writing ---- */

/* Modules share a config group when a reader sees no difference: the sign of a scale is not part of the scheme on disk.
 */
static bool same_on_disk(const dpq_ct_module *a, const dpq_ct_module *b)
{
    return a->scheme.bits == b->scheme.bits && a->scheme.group_size == b->scheme.group_size &&
           a->scheme.symmetric == b->scheme.symmetric && a->with_g_idx == b->with_g_idx;
}

static void put_group(dpq_json_writer *w, const char *name, const dpq_ct_module *modules, size_t n, size_t first,
                      bool is_only, bool actorder_static)
{
    const dpq_ct_module *m = &modules[first];
    bool by_group = m->scheme.group_size > 0;
    dpq_json_begin_object(w, name);
    dpq_json_begin_array(w, "targets");
    if (is_only) {
        dpq_json_put_string(w, NULL, LINEAR_CLASS);
    } else {
        for (size_t i = first; i < n; i++) {
            if (same_on_disk(m, &modules[i])) {
                dpq_json_put_string(w, NULL, modules[i].module);
            }
        }
    }
    dpq_json_end(w);
    dpq_json_put_string(w, "format", FORMAT);
    dpq_json_begin_object(w, "weights");
    dpq_json_put_int(w, "num_bits", m->scheme.bits);
    dpq_json_put_string(w, "type", "int");
    dpq_json_put_bool(w, "symmetric", m->scheme.symmetric);
    dpq_json_put_string(w, "strategy", by_group ? "group" : "channel");
    if (by_group) {
        dpq_json_put_int(w, "group_size", m->scheme.group_size);
    } else {
        dpq_json_put_null(w, "group_size");
    }
    dpq_json_put_null(w, "block_structure");
    dpq_json_put_bool(w, "dynamic", false);
    /* "weight" is the spelling all versions know; "static" is a later alias. */
    dpq_json_put_string(w, "actorder", m->with_g_idx ? "group" : actorder_static ? "weight" : NULL);
    dpq_json_put_string(w, "observer", "minmax");
    dpq_json_begin_object(w, "observer_kwargs");
    dpq_json_end(w);
    dpq_json_end(w);
    dpq_json_put_null(w, "input_activations");
    dpq_json_put_null(w, "output_activations");
    dpq_json_end(w);
}

static size_t first_alike(const dpq_ct_module *modules, size_t i)
{
    size_t first = 0;
    while (!same_on_disk(&modules[first], &modules[i])) {
        first++;
    }
    return first;
}

dpq_status dpq_ct_config_text(const dpq_ct_module *modules, size_t n, const dpq_str_list *ignore, bool actorder_static,
                              char **out)
{
    dpq_json_writer *w = NULL;
    size_t size = 0;
    size_t alike = 0;
    int groups = 0;
    *out = NULL;
    if (n == 0) {
        return DPQ_RAISE(DPQ_E_CONFIG, "no linear is quantized: every one is ignored");
    }
    for (size_t i = 0; i < n; i++) {
        alike += same_on_disk(&modules[0], &modules[i]);
    }
    DPQ_TRY(dpq_json_writer_create(&w));
    dpq_json_begin_object(w, NULL);
    dpq_json_put_string(w, "quant_method", METHOD);
    dpq_json_put_string(w, "version", VERSION);
    dpq_json_put_string(w, "format", FORMAT);
    dpq_json_put_string(w, "quantization_status", "compressed");
    dpq_json_put_null(w, "global_compression_ratio");
    dpq_json_put_null(w, "kv_cache_scheme");
    dpq_json_begin_object(w, "sparsity_config");
    dpq_json_end(w);
    dpq_json_begin_object(w, "transform_config");
    dpq_json_end(w);
    dpq_json_begin_array(w, "ignore");
    for (size_t i = 0; i < ignore->count; i++) {
        dpq_json_put_string(w, NULL, ignore->items[i]);
    }
    dpq_json_end(w);
    dpq_json_begin_object(w, "config_groups");
    for (size_t i = 0; i < n; i++) {
        if (first_alike(modules, i) == i) {
            char name[32];
            snprintf(name, sizeof name, "group_%d", groups++);
            put_group(w, name, modules, n, i, alike == n, actorder_static);
        }
    }
    dpq_json_end(w);
    dpq_json_end(w);
    return dpq_json_writer_finish(&w, out, &size);
}

/* ---- reading ---- */

/* Does TEXT (a target or ignore entry) name MODULE, which is a linear? RANK orders kinds of match as compressed-tensors
 * does: 0 exact name, 1 regular expression, 2 class. */
static dpq_status entry_matches(const char *text, const char *module, const char *file, bool *matches, int *rank)
{
    *matches = strcmp(text, module) == 0;
    *rank = 0;
    if (*matches) {
        return DPQ_OK;
    }
    if (strcmp(text, LINEAR_CLASS) == 0) {
        *matches = true;
        *rank = 2;
        return DPQ_OK;
    }
    if (dpq_str_starts_with(text, "re:")) {
        dpq_pattern *pattern = NULL;
        dpq_status st = dpq_pattern_compile(text, &pattern);
        if (st != DPQ_OK) { /* the text came from a file here, not from a recipe */
            dpq_error_record record = *dpq_error_last();
            return DPQ_RAISE(DPQ_E_INPUT, "%s: quantization_config: %s", file, record.text);
        }
        *matches = dpq_pattern_matches(pattern, module);
        *rank = 1;
        dpq_pattern_destroy(&pattern);
    }
    return DPQ_OK;
}

/* Item I of the list of strings KEY. */
static dpq_status string_item(const dpq_json *list, size_t i, const char *file, const char *key, const char **out)
{
    const dpq_json *item = dpq_json_item(list, i);
    if (dpq_json_get_kind(item) != DPQ_JSON_STRING) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: quantization_config: %s[%zu]: expected a string", file, key, i);
    }
    *out = dpq_json_string(item);
    return DPQ_OK;
}

static bool is_present(const dpq_json *value)
{
    return value != NULL && dpq_json_get_kind(value) != DPQ_JSON_NULL;
}

static dpq_status list_member(const dpq_json *object, const char *file, const char *key, const dpq_json **out)
{
    *out = dpq_json_member(object, key);
    if (!is_present(*out)) {
        *out = NULL;
    } else if (dpq_json_get_kind(*out) != DPQ_JSON_ARRAY) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: quantization_config: %s: expected a list of strings", file, key);
    }
    return DPQ_OK;
}

static dpq_status is_ignored(const dpq_json *config, const char *file, const char *module, bool *ignored)
{
    const dpq_json *list;
    *ignored = false;
    DPQ_TRY(list_member(config, file, "ignore", &list));
    size_t n = list == NULL ? 0 : dpq_json_size(list);
    for (size_t i = 0; i < n && !*ignored; i++) {
        const char *text = NULL;
        int rank;
        DPQ_TRY(string_item(list, i, file, "ignore", &text));
        DPQ_TRY(entry_matches(text, module, file, ignored, &rank));
    }
    return DPQ_OK;
}

/* The group that decides over MODULE: exact names before regular expressions (in alphabetical order) before classes;
 * the later of equals. */
static dpq_status find_group(const dpq_json *groups, const char *file, const char *module, const dpq_json **out,
                             const char **name)
{
    const char *best_text = NULL;
    int best_rank = 0;
    *out = NULL;
    for (size_t g = 0; g < dpq_json_size(groups); g++) {
        const dpq_json *group, *targets;
        const char *key = dpq_json_key(groups, g, &group);
        if (dpq_json_get_kind(group) != DPQ_JSON_OBJECT) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: quantization_config: config_groups.%s: expected an object", file, key);
        }
        DPQ_TRY(list_member(group, file, "targets", &targets));
        size_t n = targets == NULL ? 0 : dpq_json_size(targets);
        for (size_t i = 0; i < n; i++) {
            const char *text = NULL;
            bool matches;
            int rank;
            DPQ_TRY(string_item(targets, i, file, "targets", &text));
            DPQ_TRY(entry_matches(text, module, file, &matches, &rank));
            if (matches &&
                (best_text == NULL || rank < best_rank || (rank == best_rank && strcmp(text, best_text) <= 0))) {
                best_text = text;
                best_rank = rank;
                *out = group;
                *name = key;
            }
        }
    }
    return DPQ_OK;
}

static dpq_status expect_word(const char *file, const char *key, const char *found, const char *expected)
{
    if (found == NULL || strcmp(found, expected) != 0) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: quantization_config: %s: expected \"%s\", found %s%s%s", file, key,
                         expected, found == NULL ? "" : "\"", found == NULL ? "nothing" : found,
                         found == NULL ? "" : "\"");
    }
    return DPQ_OK;
}

static dpq_status refuse_member(const dpq_json *object, const char *file, const char *key, const char *what)
{
    const dpq_json *value = dpq_json_member(object, key);
    bool is_empty_object =
        is_present(value) && dpq_json_get_kind(value) == DPQ_JSON_OBJECT && dpq_json_size(value) == 0;
    if (is_present(value) && !is_empty_object) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: quantization_config: %s: %s is not supported", file, key, what);
    }
    return DPQ_OK;
}

static dpq_status check_top_level(const dpq_json *config, const char *file)
{
    const char *word = NULL;
    bool found = false;
    if (dpq_json_get_kind(config) != DPQ_JSON_OBJECT) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: quantization_config: expected an object", file);
    }
    DPQ_TRY(dpq_json_opt_string(config, file, "quant_method", &word, NULL));
    DPQ_TRY(expect_word(file, "quant_method", word, METHOD));
    DPQ_TRY(dpq_json_opt_string(config, file, "quantization_status", &word, &found));
    if (found) {
        DPQ_TRY(expect_word(file, "quantization_status", word, "compressed"));
    }
    DPQ_TRY(refuse_member(config, file, "kv_cache_scheme", "a quantized key/value cache"));
    DPQ_TRY(refuse_member(config, file, "transform_config", "a transform of weights or activations"));
    const dpq_json *sparsity = dpq_json_member(config, "sparsity_config");
    const char *sparse_format = NULL;
    if (is_present(sparsity)) {
        DPQ_TRY(dpq_json_opt_string(sparsity, file, "format", &sparse_format, NULL));
    }
    if (sparse_format == NULL || strcmp(sparse_format, "dense") != 0) {
        DPQ_TRY(refuse_member(config, file, "sparsity_config", "sparsity"));
    }
    return DPQ_OK;
}

/* The group's own format, else the global one. */
static dpq_status check_format(const dpq_json *config, const dpq_json *group, const char *file)
{
    const char *format = NULL;
    DPQ_TRY(dpq_json_opt_string(config, file, "format", &format, NULL));
    DPQ_TRY(dpq_json_opt_string(group, file, "format", &format, NULL));
    return expect_word(file, "format", format, FORMAT);
}

static dpq_status read_actorder(const dpq_json *args, const char *file, bool *with_g_idx)
{
    const dpq_json *value = dpq_json_member(args, "actorder");
    const char *word = NULL;
    *with_g_idx = false;
    if (!is_present(value)) {
        return DPQ_OK;
    }
    if (dpq_json_get_kind(value) == DPQ_JSON_BOOL) {
        *with_g_idx = dpq_json_bool(value);
        return DPQ_OK;
    }
    DPQ_TRY(dpq_json_opt_string(args, file, "actorder", &word, NULL));
    *with_g_idx = strcmp(word, "group") == 0 || strcmp(word, "dynamic") == 0;
    if (!*with_g_idx && strcmp(word, "weight") != 0 && strcmp(word, "static") != 0) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED,
                         "%s: quantization_config: actorder: expected group, dynamic, weight or static, found \"%s\"",
                         file, word);
    }
    return DPQ_OK;
}

/* group or channel; a missing strategy follows from the group size, as the format defines. */
static dpq_status read_group_size(const dpq_json *args, const char *file, int64_t *out)
{
    const char *strategy = NULL;
    int64_t size = 0;
    bool has_size = false;
    DPQ_TRY(dpq_json_opt_string(args, file, "strategy", &strategy, NULL));
    DPQ_TRY(dpq_json_opt_int(args, file, "group_size", &size, &has_size));
    if (strategy == NULL) {
        strategy = !has_size ? "tensor" : size > 0 ? "group" : "channel";
    }
    if (strcmp(strategy, "group") == 0) {
        if (size < 1) {
            return DPQ_RAISE(DPQ_E_INPUT,
                             "%s: quantization_config: strategy group: expected group_size > 0, found %" PRId64, file,
                             size);
        }
        *out = size;
    } else if (strcmp(strategy, "channel") == 0) {
        if (has_size && size != -1) {
            return DPQ_RAISE(
                DPQ_E_INPUT,
                "%s: quantization_config: strategy channel: expected group_size null or -1, found %" PRId64, file,
                size);
        }
        *out = -1;
    } else {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED,
                         "%s: quantization_config: strategy: expected group or channel, found \"%s\"", file, strategy);
    }
    return DPQ_OK;
}

static dpq_status read_args(const dpq_json *args, const char *file, dpq_scheme *scheme, bool *with_g_idx)
{
    const char *type = "int";
    int64_t bits = 8;
    bool symmetric = true;
    const dpq_json *dynamic = dpq_json_member(args, "dynamic");
    DPQ_TRY(dpq_json_opt_string(args, file, "type", &type, NULL));
    DPQ_TRY(expect_word(file, "type", type, "int"));
    DPQ_TRY(dpq_json_opt_int(args, file, "num_bits", &bits, NULL));
    DPQ_TRY(dpq_json_opt_bool(args, file, "symmetric", &symmetric, NULL));
    if (bits < 2 || bits > 8) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: quantization_config: num_bits: expected 2 to 8, found %" PRId64, file,
                         bits);
    }
    if (is_present(dynamic) && (dpq_json_get_kind(dynamic) != DPQ_JSON_BOOL || dpq_json_bool(dynamic))) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: quantization_config: dynamic: expected false for weights", file);
    }
    scheme->bits = (int)bits;
    scheme->symmetric = symmetric;
    scheme->signed_scale = symmetric; /* not part of the format: a reader takes either sign */
    DPQ_TRY(read_group_size(args, file, &scheme->group_size));
    return read_actorder(args, file, with_g_idx);
}

dpq_status dpq_ct_config_lookup(const dpq_json *quantization_config, const char *file, const char *module,
                                dpq_scheme *scheme, bool *with_g_idx, bool *found)
{
    bool ignored = false;
    const dpq_json *group = NULL;
    const char *name = NULL;
    *found = false;
    DPQ_TRY(check_top_level(quantization_config, file));
    const dpq_json *groups = dpq_json_member(quantization_config, "config_groups");
    if (groups == NULL || dpq_json_get_kind(groups) != DPQ_JSON_OBJECT) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: quantization_config: config_groups: expected an object", file);
    }
    DPQ_TRY(is_ignored(quantization_config, file, module, &ignored));
    if (ignored) {
        return DPQ_OK;
    }
    DPQ_TRY(find_group(groups, file, module, &group, &name));
    if (group == NULL) {
        return DPQ_OK;
    }
    DPQ_TRY(check_format(quantization_config, group, file));
    DPQ_TRY(refuse_member(group, file, "input_activations", "quantization of activations"));
    DPQ_TRY(refuse_member(group, file, "output_activations", "quantization of activations"));
    const dpq_json *args = dpq_json_member(group, "weights");
    if (args == NULL || dpq_json_get_kind(args) != DPQ_JSON_OBJECT) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: quantization_config: config_groups.%s.weights: expected an object",
                         file, name);
    }
    *scheme = (dpq_scheme){0};
    DPQ_TRY(read_args(args, file, scheme, with_g_idx));
    *found = true;
    return DPQ_OK;
}
