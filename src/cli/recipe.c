/* SPDX-License-Identifier: Apache-2.0 */
/* From a recipe file and --set to settings: joins the YAML reader with the option tables, and reads quantize.overrides.
 */
#include <stdio.h>
#include <string.h>

#include "cli_priv.h"
#include "dpquant/alloc.h"
#include "dpquant/config.h"
#include "dpquant/file.h"

#define MAX_RECIPE_BYTES (1u << 20)

static dpq_status override_error(const char *name, const dpq_yaml *at, const char *expected)
{
    return DPQ_RAISE(DPQ_E_CONFIG, "%s:%d:%d: quantize.overrides: expected %s%s%s", name, at->line, at->column,
                     expected, at->kind == DPQ_YAML_SCALAR ? ", found " : "",
                     at->kind == DPQ_YAML_SCALAR ? at->text : "");
}

static dpq_status override_field(dpq_override *o, const char *key, const dpq_yaml *value, const char *name, int line,
                                 int column)
{
    if (value->kind != DPQ_YAML_SCALAR) {
        return override_error(name, value, "a plain value");
    }
    if (strcmp(key, "match") == 0) {
        if (o->match != NULL || value->text[0] == '\0') {
            return override_error(name, value, "one module name or re: pattern");
        }
        return dpq_str_dup(value->text, &o->match);
    }
    if (strcmp(key, "bits") == 0) {
        o->has_bits = true;
        return dpq_parse_int64(value->text, &o->bits) && o->bits >= 2 && o->bits <= 8
                   ? DPQ_OK
                   : override_error(name, value, "bits: integer 2..8");
    }
    if (strcmp(key, "group_size") == 0) {
        o->has_group_size = true;
        return dpq_parse_int64(value->text, &o->group_size) && (o->group_size == -1 || o->group_size > 0)
                   ? DPQ_OK
                   : override_error(name, value, "group_size: a positive integer or -1");
    }
    if (strcmp(key, "symmetric") == 0) {
        o->has_symmetric = true;
        return dpq_parse_bool(value->text, &o->symmetric) ? DPQ_OK
                                                          : override_error(name, value, "symmetric: true or false");
    }
    if (strcmp(key, "ignore") == 0) {
        return dpq_parse_bool(value->text, &o->ignore) ? DPQ_OK : override_error(name, value, "ignore: true or false");
    }
    return DPQ_RAISE(DPQ_E_CONFIG,
                     "%s:%d:%d: quantize.overrides: unknown key %s; known: match, bits, group_size, symmetric, ignore",
                     name, line, column, key);
}

/* quantize.overrides is a list of mappings, which option tables do not describe. */
static dpq_status read_overrides(void *context, const char *key, const dpq_yaml *value, const char *name, bool *handled)
{
    dpq_settings *settings = context;
    *handled = strcmp(key, "quantize.overrides") == 0;
    if (!*handled) {
        return DPQ_OK;
    }
    if (value->kind == DPQ_YAML_SCALAR && value->is_null) {
        return DPQ_OK;
    }
    if (value->kind != DPQ_YAML_SEQUENCE) {
        return override_error(name, value, "a list of mappings");
    }
    for (size_t i = 0; i < value->count; i++) {
        const dpq_yaml *item = value->items[i];
        dpq_override *o;
        if (item->kind != DPQ_YAML_MAPPING) {
            return override_error(name, item, "a mapping with match and what to change");
        }
        DPQ_TRY(dpq_settings_add_override(settings, &o));
        for (size_t j = 0; j < item->count; j++) {
            DPQ_TRY(override_field(o, item->keys[j], item->items[j], name, item->key_lines[j], item->key_columns[j]));
        }
        if (o->match == NULL) {
            return override_error(name, item, "a key match");
        }
    }
    return DPQ_OK;
}

/* The file's bytes on every rank. */
static dpq_status share_file(dpq_comm *comm, const char *path, char **bytes, int64_t *size)
{
    size_t length = 0;
    dpq_status local = DPQ_OK;
    *bytes = NULL;
    if (dpq_comm_rank(comm) == 0) {
        local = dpq_file_read_all(path, MAX_RECIPE_BYTES, bytes, &length);
        if (local == DPQ_E_INPUT) {
            local = DPQ_RAISE(DPQ_E_CONFIG, "recipe %s cannot be read: missing, no regular file, or over 1 MiB", path);
        }
    }
    DPQ_TRY(dpq_comm_agree(comm, local, NULL));
    *size = (int64_t)length;
    dpq_tensor t = dpq_tensor_wrap_1d(size, DPQ_DTYPE_I64, 1);
    DPQ_TRY(dpq_comm_broadcast(comm, &t, 0));
    if (*bytes == NULL) {
        local = dpq_alloc((size_t)*size + 1, (void **)bytes);
    }
    DPQ_TRY(dpq_comm_agree(comm, local, NULL));
    t = dpq_tensor_wrap_1d(*bytes, DPQ_DTYPE_U8, *size);
    return dpq_comm_broadcast(comm, &t, 0);
}

dpq_status dpq_recipe_load(dpq_comm *comm, const char *path, dpq_settings *settings)
{
    char *bytes = NULL, *folder = NULL;
    int64_t size = 0;
    dpq_yaml *tree = NULL;
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, share_file(comm, path, &bytes, &size), done);
    DPQ_TRY_GOTO(st, dpq_path_dirname(path, &folder), done);
    DPQ_TRY_GOTO(st, dpq_yaml_parse(bytes, (size_t)size, path, &tree), done);
    st = dpq_config_apply(tree, path, folder, settings->sets, settings->n_sets, read_overrides, settings);
done:
    dpq_yaml_destroy(&tree);
    dpq_free(bytes);
    dpq_free(folder);
    return st;
}

dpq_status dpq_recipe_set(const char *assignment, dpq_settings *settings)
{
    DPQ_TRY(dpq_config_set(assignment, settings->sets, settings->n_sets));
    size_t length = strcspn(assignment, "=");
    char key[128];
    snprintf(key, sizeof key, "%.*s", (int)(length < sizeof key ? length : sizeof key - 1), assignment);
    dpq_settings_note_set(settings, key);
    return DPQ_OK;
}
