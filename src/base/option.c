/* SPDX-License-Identifier: Apache-2.0 */
/* Option descriptors: defaults, typed setters from text, search by key, and values back to text. */
#include "dpquant/option.h"

#include <stdio.h>
#include <string.h>

#include "dpquant/alloc.h"

/* Ranges that reach this far on one side are open there. */
#define OPEN_RANGE 9e15

static void *field_of(const dpq_option_set *set, const dpq_option *option)
{
    return (char *)set->target + option->offset;
}

static bool has_range(const dpq_option *option)
{
    return option->min != 0 || option->max != 0;
}

static void mark_set(const dpq_option_set *set, const dpq_option *option)
{
    if (set->was_set) {
        set->was_set[option - set->options] = true;
    }
}

static dpq_status raise_bad_value(const dpq_option *option, const char *text, const char *where)
{
    char *expected = NULL;
    DPQ_TRY(dpq_option_describe(option, &expected));
    const char *nearest = NULL;
    if (option->type == DPQ_OPTION_ENUM) {
        size_t n_choices = 0;
        while (option->choices[n_choices]) {
            n_choices++;
        }
        nearest = dpq_str_nearest(text, option->choices, n_choices);
    }
    dpq_status st =
        DPQ_RAISE(DPQ_E_CONFIG, "%s%s%s: expected %s, found \"%.80s\"%s%s", where ? where : "", where ? ": " : "",
                  option->key, expected, text, nearest ? "; nearest is " : "", nearest ? nearest : "");
    dpq_free(expected);
    return st;
}

static bool parse_enum(const dpq_option *option, const char *text, int *out)
{
    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], text) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

/* Bool, number or choice into FIELD. False when TEXT is none or out of range; FIELD is then unchanged. */
static bool parse_plain(const dpq_option *option, const char *text, void *field)
{
    if (option->type == DPQ_OPTION_BOOL) {
        return dpq_parse_bool(text, field);
    }
    if (option->type == DPQ_OPTION_ENUM) {
        return parse_enum(option, text, field);
    }
    double real = 0;
    int64_t integer = 0;
    bool ok = false;
    if (option->type == DPQ_OPTION_REAL) {
        ok = dpq_parse_double(text, &real);
    } else {
        ok = option->type == DPQ_OPTION_BYTES ? dpq_parse_bytes(text, &integer) : dpq_parse_int64(text, &integer);
        real = (double)integer;
    }
    if (!ok || (has_range(option) && !(real >= option->min && real <= option->max))) {
        return false;
    }
    if (option->type == DPQ_OPTION_REAL) {
        memcpy(field, &real, sizeof real);
    } else {
        memcpy(field, &integer, sizeof integer);
    }
    return true;
}

/* "null" unsets, so that a printed value reads back as itself; a file of that name is "./null". */
static dpq_status set_string(const dpq_option *option, const char *text, const char *base_dir, const char *where,
                             char **field)
{
    char *value = NULL;
    if (strcmp(text, "null") != 0) {
        if (option->type == DPQ_OPTION_PATH && text[0] == '\0') {
            return raise_bad_value(option, text, where);
        }
        if (option->type == DPQ_OPTION_PATH && base_dir) {
            DPQ_TRY(dpq_path_join(base_dir, text, &value));
        } else {
            DPQ_TRY(dpq_str_dup(text, &value));
        }
    }
    dpq_free(*field);
    *field = value;
    return DPQ_OK;
}

/* The items between commas of "a, b" or "[a, b]", blanks around them dropped. An empty item is an error, an empty
 * text the empty list. */
static dpq_status split_list(const dpq_option *option, const char *text, const char *where, dpq_str_list *out)
{
    dpq_status st = DPQ_OK;
    dpq_str_list list = {0};
    char *copy = NULL;
    DPQ_TRY_GOTO(st, dpq_str_dup(text, &copy), done);
    char *rest = copy;
    size_t length = strlen(rest);
    if (length >= 2 && rest[0] == '[' && rest[length - 1] == ']') {
        rest[length - 1] = '\0';
        rest++;
    }
    bool more = rest[strspn(rest, " ")] != '\0';
    while (more) {
        char *item = rest + strspn(rest, " ");
        size_t n = strcspn(item, ",");
        more = item[n] == ',';
        rest = item + n + (more ? 1 : 0);
        while (n > 0 && item[n - 1] == ' ') {
            n--;
        }
        item[n] = '\0';
        if (n == 0) {
            st = raise_bad_value(option, text, where);
            goto done;
        }
        DPQ_TRY_GOTO(st, dpq_str_list_append(&list, item), done);
    }
    *out = list;
    memset(&list, 0, sizeof list);
done:
    dpq_str_list_fini(&list);
    dpq_free(copy);
    return st;
}

static dpq_status set_list(const dpq_option *option, const char *text, bool append, const char *where,
                           dpq_str_list *field)
{
    if (append) {
        return dpq_str_list_append(field, text);
    }
    dpq_str_list list = {0};
    DPQ_TRY(split_list(option, text, where, &list));
    dpq_str_list_fini(field);
    *field = list;
    return DPQ_OK;
}

static dpq_status set_value(const dpq_option_set *set, const dpq_option *option, const char *text, bool append,
                            const char *base_dir, const char *where)
{
    void *field = field_of(set, option);
    switch (option->type) {
    case DPQ_OPTION_STRING:
    case DPQ_OPTION_PATH:
        return set_string(option, text, base_dir, where, field);
    case DPQ_OPTION_STRINGS:
        return set_list(option, text, append, where, field);
    default:
        return parse_plain(option, text, field) ? DPQ_OK : raise_bad_value(option, text, where);
    }
}

dpq_status dpq_option_parse(const dpq_option_set *set, const dpq_option *option, const char *text, bool append,
                            const char *base_dir, const char *where)
{
    DPQ_TRY(set_value(set, option, text, append, base_dir, where));
    mark_set(set, option);
    return DPQ_OK;
}

dpq_status dpq_option_set_defaults(dpq_option_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        const dpq_option *option = &set->options[i];
        if (set->was_set) {
            set->was_set[i] = false;
        }
        if (!option->default_text) {
            continue;
        }
        dpq_status st = set_value(set, option, option->default_text, false, NULL, "default");
        if (st == DPQ_E_CONFIG) {
            return DPQ_RAISE(DPQ_E_BUG, "option table: %s", dpq_error_last()->text);
        }
        DPQ_TRY(st);
    }
    return DPQ_OK;
}

void dpq_option_set_fini(dpq_option_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        const dpq_option *option = &set->options[i];
        if (option->type == DPQ_OPTION_STRING || option->type == DPQ_OPTION_PATH) {
            char **field = field_of(set, option);
            dpq_free(*field);
            *field = NULL;
        } else if (option->type == DPQ_OPTION_STRINGS) {
            dpq_str_list_fini(field_of(set, option));
        }
    }
}

void dpq_option_clear_list(const dpq_option_set *set, const dpq_option *option)
{
    DPQ_ASSERT(option->type == DPQ_OPTION_STRINGS);
    dpq_str_list_fini(field_of(set, option));
    mark_set(set, option);
}

const dpq_option *dpq_option_find(const dpq_option_set *sets, size_t n_sets, const char *key, size_t *set_index)
{
    for (size_t s = 0; s < n_sets; s++) {
        for (size_t i = 0; i < sets[s].count; i++) {
            if (strcmp(sets[s].options[i].key, key) == 0) {
                if (set_index) {
                    *set_index = s;
                }
                return &sets[s].options[i];
            }
        }
    }
    return NULL;
}

static const char *last_part(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

const char *dpq_option_nearest(const dpq_option_set *sets, size_t n_sets, const char *key)
{
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    const char *same_name = NULL; /* right name in the wrong section, or with none */
    for (size_t s = 0; s < n_sets; s++) {
        for (size_t i = 0; i < sets[s].count; i++) {
            const char *candidate = sets[s].options[i].key;
            const char *nearest = dpq_str_nearest(key, &candidate, 1);
            size_t distance = dpq_str_distance(key, candidate);
            if (nearest && distance < best_distance) {
                best = nearest;
                best_distance = distance;
            }
            if (!same_name && strcmp(last_part(key), last_part(candidate)) == 0) {
                same_name = candidate;
            }
        }
    }
    return best && (best_distance <= 2 || !same_name) ? best : same_name;
}

/* The fewest digits that read back as the same number. */
static dpq_status format_real(double value, char **out)
{
    char text[64];
    for (int digits = 1; digits <= 17; digits++) {
        double back = 0;
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (dpq_parse_double(text, &back) && back == value) {
            break;
        }
    }
    return dpq_str_dup(text, out);
}

static dpq_status format_list(const dpq_str_list *list, char **out)
{
    dpq_text text = {0};
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_text_append(&text, "["), done);
    for (size_t i = 0; i < list->count; i++) {
        DPQ_TRY_GOTO(st, dpq_text_append(&text, "%s%s", i ? ", " : "", list->items[i]), done);
    }
    DPQ_TRY_GOTO(st, dpq_text_append(&text, "]"), done);
    *out = text.text;
    return DPQ_OK;
done:
    dpq_text_fini(&text);
    return st;
}

dpq_status dpq_option_format(const dpq_option_set *set, const dpq_option *option, char **out)
{
    *out = NULL;
    const void *field = field_of(set, option);
    switch (option->type) {
    case DPQ_OPTION_BOOL:
        return dpq_str_dup(*(const bool *)field ? "true" : "false", out);
    case DPQ_OPTION_INT:
    case DPQ_OPTION_BYTES:
        return dpq_str_format(out, "%lld", (long long)*(const int64_t *)field);
    case DPQ_OPTION_REAL:
        return format_real(*(const double *)field, out);
    case DPQ_OPTION_ENUM:
        return dpq_str_dup(option->choices[*(const int *)field], out);
    case DPQ_OPTION_STRING:
    case DPQ_OPTION_PATH: {
        const char *text = *(char *const *)field;
        return dpq_str_dup(text ? text : "null", out);
    }
    case DPQ_OPTION_STRINGS:
        return format_list(field, out);
    }
    return DPQ_RAISE(DPQ_E_BUG, "option %s has type %d", option->key, (int)option->type);
}

/* " 2..8", ", at least 1", ", at most 4" or "". Heap string. */
static dpq_status describe_range(const dpq_option *option, char **out)
{
    *out = NULL;
    char *low = NULL;
    char *high = NULL;
    dpq_status st = DPQ_OK;
    bool open_low = option->min <= -OPEN_RANGE;
    bool open_high = option->max >= OPEN_RANGE;
    if (!has_range(option) || (open_low && open_high)) {
        return dpq_str_dup("", out);
    }
    bool is_real = option->type == DPQ_OPTION_REAL;
    DPQ_TRY_GOTO(st, is_real ? format_real(option->min, &low) : dpq_str_format(&low, "%.0f", option->min), done);
    DPQ_TRY_GOTO(st, is_real ? format_real(option->max, &high) : dpq_str_format(&high, "%.0f", option->max), done);
    if (open_high) {
        st = dpq_str_format(out, ", at least %s", low);
    } else if (open_low) {
        st = dpq_str_format(out, ", at most %s", high);
    } else {
        st = dpq_str_format(out, " %s..%s", low, high);
    }
done:
    dpq_free(low);
    dpq_free(high);
    return st;
}

static dpq_status describe_choices(const dpq_option *option, char **out)
{
    dpq_text text = {0};
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_text_append(&text, "one of: "), done);
    for (int i = 0; option->choices[i]; i++) {
        DPQ_TRY_GOTO(st, dpq_text_append(&text, "%s%s", i ? ", " : "", option->choices[i]), done);
    }
    *out = text.text;
    return DPQ_OK;
done:
    dpq_text_fini(&text);
    return st;
}

dpq_status dpq_option_describe(const dpq_option *option, char **out)
{
    *out = NULL;
    const char *noun = NULL;
    switch (option->type) {
    case DPQ_OPTION_BOOL:
        return dpq_str_dup("true or false", out);
    case DPQ_OPTION_ENUM:
        return describe_choices(option, out);
    case DPQ_OPTION_STRING:
        return dpq_str_dup("text", out);
    case DPQ_OPTION_PATH:
        return dpq_str_dup("path", out);
    case DPQ_OPTION_STRINGS:
        return dpq_str_dup("list of texts", out);
    case DPQ_OPTION_INT:
        noun = "integer";
        break;
    case DPQ_OPTION_REAL:
        noun = "number";
        break;
    case DPQ_OPTION_BYTES:
        noun = "bytes (as 4096, 512M or 5GB)";
        break;
    }
    char *range = NULL;
    DPQ_TRY(describe_range(option, &range));
    dpq_status st = dpq_str_format(out, "%s%s", noun ? noun : "value", range);
    dpq_free(range);
    return st;
}
