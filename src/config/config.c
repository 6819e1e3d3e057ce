/* SPDX-License-Identifier: Apache-2.0 */
/* Recipe trees and --set assignments into option structs, by descriptor. */
#include "dpquant/config.h"

#include <string.h>

#include "dpquant/alloc.h"

/* What every step of one dpq_config_apply needs. */
typedef struct {
    const char *name;
    const char *base_dir;
    const dpq_option_set *sets;
    size_t n_sets;
    dpq_config_handler handler;
    void *context;
    dpq_str_list applied; /* keys set by this tree: "a.b: 1" and "a: {b: 1}" are the same key */
} application;

static const char *kind_name(const dpq_yaml *value)
{
    switch (value->kind) {
    case DPQ_YAML_SEQUENCE:
        return "a sequence";
    case DPQ_YAML_MAPPING:
        return "a mapping";
    default:
        return value->is_null ? "nothing" : "a single value";
    }
}

/* True when some option key lies below SECTION. */
static bool is_section(const dpq_option_set *sets, size_t n_sets, const char *section)
{
    size_t length = strlen(section);
    for (size_t s = 0; s < n_sets; s++) {
        for (size_t i = 0; i < sets[s].count; i++) {
            const char *key = sets[s].options[i].key;
            if (strncmp(key, section, length) == 0 && key[length] == '.') {
                return true;
            }
        }
    }
    return false;
}

/* The section whose name is nearest to KEY among those that options have, as a heap string, or NULL. Freed by the
 * caller, on failure too. */
static dpq_status nearest_section(const dpq_option_set *sets, size_t n_sets, const char *key, char **out)
{
    *out = NULL;
    size_t best_distance = SIZE_MAX;
    for (size_t s = 0; s < n_sets; s++) {
        for (size_t i = 0; i < sets[s].count; i++) {
            const char *option_key = sets[s].options[i].key;
            for (const char *dot = strchr(option_key, '.'); dot; dot = strchr(dot + 1, '.')) {
                char *section = NULL;
                DPQ_TRY(dpq_str_format(&section, "%.*s", (int)(dot - option_key), option_key));
                const char *candidate = section;
                size_t distance = dpq_str_distance(key, section);
                if (distance < best_distance && dpq_str_nearest(key, &candidate, 1)) {
                    best_distance = distance;
                    dpq_free(*out);
                    *out = section;
                } else {
                    dpq_free(section);
                }
            }
        }
    }
    return DPQ_OK;
}

static dpq_status raise_unknown(const dpq_option_set *sets, size_t n_sets, const char *where, const char *key,
                                bool want_section)
{
    char *section = NULL;
    const char *nearest = NULL;
    if (want_section) {
        dpq_status search = nearest_section(sets, n_sets, key, &section);
        if (search != DPQ_OK) {
            dpq_free(section);
            return search;
        }
        nearest = section;
    }
    if (!nearest) {
        nearest = dpq_option_nearest(sets, n_sets, key);
    }
    dpq_status st = DPQ_RAISE(DPQ_E_CONFIG, "%s: %.200s: unknown key%s%s", where, key, nearest ? "; nearest is " : "",
                              nearest ? nearest : "");
    dpq_free(section);
    return st;
}

static dpq_status raise_kind(const char *where, const char *key, const dpq_option *option, const dpq_yaml *value)
{
    char *expected = NULL;
    if (option) {
        DPQ_TRY(dpq_option_describe(option, &expected));
    }
    dpq_status st = DPQ_RAISE(DPQ_E_CONFIG, "%s: %s: expected %s, found %s", where, key,
                              expected ? expected : "a mapping of options", kind_name(value));
    dpq_free(expected);
    return st;
}

static dpq_status format_where(const application *app, int line, int column, char **out)
{
    return dpq_str_format(out, "%s:%d:%d", app->name, line, column);
}

/* A sequence of scalars replaces the list. */
static dpq_status apply_sequence(const application *app, const dpq_option_set *set, const dpq_option *option,
                                 const dpq_yaml *value)
{
    dpq_option_clear_list(set, option);
    for (size_t i = 0; i < value->count; i++) {
        const dpq_yaml *item = value->items[i];
        char *where = NULL;
        DPQ_TRY(format_where(app, item->line, item->column, &where));
        dpq_status st = DPQ_OK;
        if (item->kind != DPQ_YAML_SCALAR || item->is_null) {
            st = DPQ_RAISE(DPQ_E_CONFIG, "%s: %s: expected text as item %zu, found %s", where, option->key, i + 1,
                           kind_name(item));
        } else {
            st = dpq_option_parse(set, option, item->text, true, app->base_dir, where);
        }
        dpq_free(where);
        DPQ_TRY(st);
    }
    return DPQ_OK;
}

static dpq_status apply_option(const application *app, const dpq_option_set *set, const dpq_option *option,
                               const dpq_yaml *value, const char *where)
{
    if (value->kind == DPQ_YAML_SEQUENCE && option->type == DPQ_OPTION_STRINGS) {
        return apply_sequence(app, set, option, value);
    }
    if (value->kind != DPQ_YAML_SCALAR) {
        return raise_kind(where, option->key, option, value);
    }
    if (!value->is_null) {
        return dpq_option_parse(set, option, value->text, false, app->base_dir, where);
    }
    switch (option->type) {
    case DPQ_OPTION_STRINGS:
        dpq_option_clear_list(set, option);
        return DPQ_OK;
    case DPQ_OPTION_STRING:
    case DPQ_OPTION_PATH:
        return dpq_option_parse(set, option, "null", false, NULL, where);
    default:
        return raise_kind(where, option->key, option, value);
    }
}

static dpq_status apply_mapping(application *app, const dpq_yaml *mapping, const char *prefix);

/* Note that the key of pair INDEX is now set. Errors: it was before, in another spelling. */
static dpq_status note_applied(application *app, const dpq_yaml *mapping, size_t index, const char *key)
{
    if (!dpq_str_list_contains(&app->applied, key)) {
        return dpq_str_list_append(&app->applied, key);
    }
    return DPQ_RAISE(DPQ_E_CONFIG, "%s:%d:%d: %s: repeated key", app->name, mapping->key_lines[index],
                     mapping->key_columns[index], key);
}

/* Pair INDEX of MAPPING, whose full key is KEY. WHERE is the place of the value. */
static dpq_status apply_pair(application *app, const dpq_yaml *mapping, size_t index, const char *key,
                             const char *where)
{
    const dpq_yaml *value = mapping->items[index];
    if (app->handler) {
        bool handled = false;
        DPQ_TRY(app->handler(app->context, key, value, app->name, &handled));
        if (handled) {
            return note_applied(app, mapping, index, key);
        }
    }
    size_t set_index = 0;
    const dpq_option *option = dpq_option_find(app->sets, app->n_sets, key, &set_index);
    bool section = is_section(app->sets, app->n_sets, key);
    if (section && (value->kind == DPQ_YAML_MAPPING || !option)) {
        if (value->kind == DPQ_YAML_MAPPING) {
            return apply_mapping(app, value, key);
        }
        /* "gptq:" with all its lines commented out says nothing, and that is fine. */
        return value->kind == DPQ_YAML_SCALAR && value->is_null ? DPQ_OK : raise_kind(where, key, NULL, value);
    }
    if (!option) {
        char *key_where = NULL;
        DPQ_TRY(format_where(app, mapping->key_lines[index], mapping->key_columns[index], &key_where));
        dpq_status st = raise_unknown(app->sets, app->n_sets, key_where, key, value->kind == DPQ_YAML_MAPPING);
        dpq_free(key_where);
        return st;
    }
    DPQ_TRY(note_applied(app, mapping, index, key));
    return apply_option(app, &app->sets[set_index], option, value, where);
}

static dpq_status apply_mapping(application *app, const dpq_yaml *mapping, const char *prefix)
{
    dpq_status st = DPQ_OK;
    for (size_t i = 0; i < mapping->count && st == DPQ_OK; i++) {
        const dpq_yaml *value = mapping->items[i];
        char *key = NULL;
        char *where = NULL;
        st = dpq_str_format(&key, "%s%s%s", prefix, prefix[0] ? "." : "", mapping->keys[i]);
        if (st == DPQ_OK) {
            st = format_where(app, value->line, value->column, &where);
        }
        if (st == DPQ_OK) {
            st = apply_pair(app, mapping, i, key, where);
        }
        dpq_free(where);
        dpq_free(key);
    }
    return st;
}

dpq_status dpq_config_apply(const dpq_yaml *tree, const char *name, const char *base_dir, const dpq_option_set *sets,
                            size_t n_sets, dpq_config_handler handler, void *context)
{
    if (tree->kind != DPQ_YAML_MAPPING) {
        return DPQ_RAISE(DPQ_E_CONFIG, "%s:%d:%d: expected a mapping of options, found %s", name, tree->line,
                         tree->column, kind_name(tree));
    }
    application app = {
        .name = name, .base_dir = base_dir, .sets = sets, .n_sets = n_sets, .handler = handler, .context = context};
    dpq_status st = apply_mapping(&app, tree, "");
    dpq_str_list_fini(&app.applied);
    return st;
}

dpq_status dpq_config_set(const char *assignment, const dpq_option_set *sets, size_t n_sets)
{
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment) {
        return DPQ_RAISE(DPQ_E_CONFIG, "--set: expected key=value, found \"%.80s\"", assignment);
    }
    char *key = NULL;
    dpq_status st = DPQ_OK;
    size_t set_index = 0;
    DPQ_TRY(dpq_str_format(&key, "%.*s", (int)(equals - assignment), assignment));
    const dpq_option *option = dpq_option_find(sets, n_sets, key, &set_index);
    if (option) {
        st = dpq_option_parse(&sets[set_index], option, equals + 1, false, NULL, "--set");
    } else {
        st = raise_unknown(sets, n_sets, "--set", key, false);
    }
    dpq_free(key);
    return st;
}
