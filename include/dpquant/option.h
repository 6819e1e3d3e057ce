/* SPDX-License-Identifier: Apache-2.0 */
/* Option descriptors: every setting of the program is one row of a table that names its key, type, range, default,
 * help, and whether it shapes the result (exactness contract, settings of two kinds). Each module exports its table and
 * reads a filled struct; the recipe reader, --set, the settings printout, docs/CONFIG.md and dpquant.json all walk the
 * tables. */
#ifndef DPQUANT_OPTION_H
#define DPQUANT_OPTION_H

#include <stddef.h>
#include <stdint.h>

#include "dpquant/status.h"
#include "dpquant/str.h"

typedef enum {
    DPQ_OPTION_BOOL,   /* bool */
    DPQ_OPTION_INT,    /* int64_t, min..max */
    DPQ_OPTION_REAL,   /* double, min..max */
    DPQ_OPTION_BYTES,  /* int64_t, dpq_parse_bytes */
    DPQ_OPTION_ENUM,   /* int, index into choices */
    DPQ_OPTION_STRING, /* char *, heap, NULL = unset */
    DPQ_OPTION_PATH, /* as STRING; relative to the recipe's folder when set in a recipe, to the working folder otherwise
                      */
    DPQ_OPTION_STRINGS /* dpq_str_list */
} dpq_option_type;

typedef struct {
    const char *key; /* dotted: "quantize.bits" */
    dpq_option_type type;
    size_t offset;              /* of the field in the module's option struct */
    double min, max;            /* INT, REAL, BYTES; min == max == 0: no range */
    const char *const *choices; /* ENUM: NULL-terminated names */
    const char *default_text;   /* parsed like a user's value; NULL: unset/empty */
    bool shapes_result;         /* goes to dpquant.json; otherwise to dpquant-run.json only */
    const char *help;
} dpq_option;

/* A table bound to the struct it fills. LISTED_AS names the module for docs/CONFIG.md. */
typedef struct {
    const dpq_option *options;
    size_t count;
    void *target;
    bool *was_set; /* count flags: set by the user (recipe, flag, --set), or NULL */
} dpq_option_set;

/* Fill TARGET from default_text. Errors: DPQ_E_BUG for a bad default. */
DPQ_MUST_USE dpq_status dpq_option_set_defaults(dpq_option_set *set);
/* Free strings and lists in TARGET and zero those fields. */
void dpq_option_set_fini(dpq_option_set *set);

/* Set one option from text. WHERE is put in front of errors ("recipe.yaml:3:9", "--set"). BASE_DIR resolves paths
 * (NULL: none). A later setting replaces an earlier one. For STRINGS, TEXT is one item appended when APPEND, else the
 * list is replaced by the comma-separated items. Errors: DPQ_E_CONFIG with key, expected (type, range or choices),
 * found. */
DPQ_MUST_USE dpq_status dpq_option_parse(const dpq_option_set *set, const dpq_option *option, const char *text,
                                         bool append, const char *base_dir, const char *where);
void dpq_option_clear_list(const dpq_option_set *set, const dpq_option *option);

/* The option named KEY in any of the sets (index of the set in *set_index), or NULL. */
const dpq_option *dpq_option_find(const dpq_option_set *sets, size_t n_sets, const char *key, size_t *set_index);
/* Nearest key over all sets, or NULL. */
const char *dpq_option_nearest(const dpq_option_set *sets, size_t n_sets, const char *key);
/* Current value as text, as a user would write it (reals shortest form that reads back equal; unset: "null";
 * lists: [a, b]). Heap string. */
DPQ_MUST_USE dpq_status dpq_option_format(const dpq_option_set *set, const dpq_option *option, char **out);
/* Expected values as text: "integer 2..8", "one of: cpu, cuda", "true or false". Heap string. */
DPQ_MUST_USE dpq_status dpq_option_describe(const dpq_option *option, char **out);

#define DPQ_COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

#endif
