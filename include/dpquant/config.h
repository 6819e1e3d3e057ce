/* SPDX-License-Identifier: Apache-2.0 */
/* Recipes: YAML events to a tree with positions (yaml.c), and the tree into option structs by descriptor (config.c). */
#ifndef DPQUANT_CONFIG_H
#define DPQUANT_CONFIG_H

#include <stddef.h>

#include "dpquant/option.h"
#include "dpquant/status.h"

typedef enum { DPQ_YAML_SCALAR, DPQ_YAML_SEQUENCE, DPQ_YAML_MAPPING } dpq_yaml_kind;

typedef struct dpq_yaml dpq_yaml;
struct dpq_yaml {
    dpq_yaml_kind kind;
    int line, column; /* from 1 */
    char *text;       /* SCALAR: the value as written, NUL-terminated (no NUL inside) */
    bool is_null;     /* SCALAR: plain ~, null or empty */
    size_t count;     /* SEQUENCE: items; MAPPING: pairs */
    char **keys;      /* MAPPING */
    int *key_lines, *key_columns;
    dpq_yaml **items; /* SEQUENCE items or MAPPING values */
};

/* Parse SIZE bytes of one YAML document. NAME is used in messages. Accepts CRLF and a byte order mark. Limits: 1 MiB,
 * depth 32, 100000 nodes. Errors (DPQ_E_CONFIG, "NAME:line:column: ..."): syntax, anchors, aliases, tags, merge keys,
 * repeated keys, keys that are no scalars, more than one document, limits. An empty document is an empty mapping. */
DPQ_MUST_USE dpq_status dpq_yaml_parse(const char *bytes, size_t size, const char *name, dpq_yaml **out);
void dpq_yaml_destroy(dpq_yaml **tree);
/* Value of KEY in a mapping, or NULL. */
const dpq_yaml *dpq_yaml_get(const dpq_yaml *mapping, const char *key);

/* Apply a recipe tree to the option sets: nested mappings become dotted keys, scalars and sequences of scalars values.
 * Subtrees for which HANDLER (may be NULL) returns *handled = true are its own (lists of mappings such as
 * quantize.overrides). Unknown keys: error with line, column and the nearest valid key. BASE_DIR resolves PATH options.
 */
typedef dpq_status (*dpq_config_handler)(void *context, const char *key, const dpq_yaml *value, const char *name,
                                         bool *handled);
DPQ_MUST_USE dpq_status dpq_config_apply(const dpq_yaml *tree, const char *name, const char *base_dir,
                                         const dpq_option_set *sets, size_t n_sets, dpq_config_handler handler,
                                         void *context);
/* Apply "key=value" of --set. For STRINGS the value is a comma-separated list. Errors as above with "--set". */
DPQ_MUST_USE dpq_status dpq_config_set(const char *assignment, const dpq_option_set *sets, size_t n_sets);

#endif
