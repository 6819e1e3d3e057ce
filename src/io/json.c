/* SPDX-License-Identifier: Apache-2.0 */
/* Reading JSON. jansson does the grammar (UTF-8, surrogates, duplicate keys); a pass before it caps the depth and turns
 * what jansson refuses but Python writes into what it accepts; afterwards the tree is copied into flat nodes, because
 * jansson finds the i-th member of an object in O(i) and vocabularies have 10^5 members. */
#include "dpquant/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/file.h"
#include "json_priv.h"

#if JANSSON_VERSION_HEX < 0x020b00
#error "jansson 2.11 or later is needed: error codes, and members that iterate in the order of the file"
#endif

#define MAX_DEPTH 64
/* Objects with fewer members are searched from the front. */
#define SORT_FROM_MEMBERS 12

struct dpq_json {
    dpq_json_kind kind;
    uint32_t count;  /* items or members */
    const char *key; /* in its object, owned by the jansson tree; NULL elsewhere */
    union {
        int64_t integer;
        double real;
        bool boolean;
        const char *string; /* owned by the jansson tree */
        struct {
            dpq_json *items;         /* COUNT nodes, in file order */
            const dpq_json **sorted; /* the same by key; NULL for arrays and small objects */
        } many;
    } u;
};

typedef struct {
    dpq_json root; /* first member: a pointer to the root is a pointer to the document */
    json_t *tree;
    dpq_json *nodes;
    const dpq_json **sorted;
    size_t nodes_used;
    size_t sorted_used;
} document;

const char *dpq_json_printable(const char *text, char *buffer, size_t buffer_bytes)
{
    size_t n = 0;
    for (; text[n] != '\0' && n + 1 < buffer_bytes; n++) {
        unsigned char c = (unsigned char)text[n];
        buffer[n] = text[n];
        if (c < 0x20 || c == 0x7f) {
            buffer[n] = '?';
        }
    }
    buffer[n] = '\0';
    return buffer;
}

/* ---- the pass before jansson ---- */

typedef struct {
    const char *src;
    size_t size;
    char *dst;
    size_t length;
} prepass;

/* Copies a string literal starting at AT, returns the position after it. */
static size_t copy_string(prepass *p, size_t at)
{
    bool escaped = false;
    size_t i = at;
    p->dst[p->length++] = p->src[i++];
    while (i < p->size) {
        char c = p->src[i++];
        p->dst[p->length++] = c;
        if (!escaped && c == '"') {
            break;
        }
        escaped = !escaped && c == '\\';
    }
    return i;
}

static bool is_number_char(char c)
{
    return (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.' || c == 'e' || c == 'E';
}

/* Copies a number; an integer outside int64 (Python has no limit) becomes a real by an exponent. 19 digits always hold
 * at least 10^18, so the 2 added bytes are covered by the spare capacity. */
static size_t copy_number(prepass *p, size_t at)
{
    size_t end = at;
    bool is_integer = true;
    while (end < p->size && is_number_char(p->src[end])) {
        if (end > at && (p->src[end] < '0' || p->src[end] > '9')) {
            is_integer = false;
        }
        end++;
    }
    size_t n = end - at;
    memcpy(p->dst + p->length, p->src + at, n);
    p->length += n;
    bool negative = p->src[at] == '-';
    size_t digits = negative ? n - 1 : n;
    if (is_integer && digits >= 19) {
        const char *limit = negative ? "9223372036854775808" : "9223372036854775807";
        if (digits > 19 || memcmp(p->src + at + (negative ? 1 : 0), limit, 19) > 0) {
            memcpy(p->dst + p->length, "e0", 2);
            p->length += 2;
        }
    }
    return end;
}

/* Replaces WORD at AT by "null" padded with blanks to the same length (so that columns stay right). */
static bool replace_word(prepass *p, size_t *at, const char *word)
{
    size_t n = strlen(word);
    if (p->size - *at < n || memcmp(p->src + *at, word, n) != 0) {
        return false;
    }
    memset(p->dst + p->length, ' ', n > 4 ? n : 4);
    memcpy(p->dst + p->length, "null", 4);
    p->length += n > 4 ? n : 4;
    *at += n;
    return true;
}

static dpq_status run_prepass(prepass *p, const char *name)
{
    int depth = 0;
    size_t line = 1;
    for (size_t i = 0; i < p->size;) {
        char c = p->src[i];
        if (c == '"') {
            i = copy_string(p, i);
            continue;
        }
        if (replace_word(p, &i, "NaN") || replace_word(p, &i, "Infinity") || replace_word(p, &i, "-Infinity")) {
            continue;
        }
        if (c == '-' || (c >= '0' && c <= '9')) {
            i = copy_number(p, i);
            continue;
        }
        if (c == '{' || c == '[') {
            if (++depth > MAX_DEPTH) {
                return DPQ_RAISE(DPQ_E_INPUT, "%s:%zu: JSON nested more than %d deep", name, line, MAX_DEPTH);
            }
        } else if (c == '}' || c == ']') {
            depth--;
        } else if (c == '\n') {
            line++;
        }
        p->dst[p->length++] = c;
        i++;
    }
    return DPQ_OK;
}

/* ---- flat nodes ---- */

static size_t count_nodes(const json_t *value, size_t *sorted)
{
    size_t total = 0;
    if (json_is_object(value)) {
        void *at = json_object_iter((json_t *)value);
        for (; at != NULL; at = json_object_iter_next((json_t *)value, at)) {
            total += 1 + count_nodes(json_object_iter_value(at), sorted);
        }
        size_t n = json_object_size(value);
        *sorted += n >= SORT_FROM_MEMBERS ? n : 0;
    } else if (json_is_array(value)) {
        size_t n = json_array_size(value);
        for (size_t i = 0; i < n; i++) {
            total += 1 + count_nodes(json_array_get(value, i), sorted);
        }
    }
    return total;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp((*(const dpq_json *const *)a)->key, (*(const dpq_json *const *)b)->key);
}

static void fill_node(document *doc, dpq_json *node, const json_t *value);

static void fill_object(document *doc, dpq_json *node, const json_t *value)
{
    size_t i = 0;
    for (void *at = json_object_iter((json_t *)value); at != NULL; at = json_object_iter_next((json_t *)value, at)) {
        dpq_json *item = node->u.many.items + i++;
        item->key = json_object_iter_key(at);
        fill_node(doc, item, json_object_iter_value(at));
    }
    if (node->count >= SORT_FROM_MEMBERS) {
        node->u.many.sorted = doc->sorted + doc->sorted_used;
        doc->sorted_used += node->count;
        for (i = 0; i < node->count; i++) {
            node->u.many.sorted[i] = node->u.many.items + i;
        }
        qsort(node->u.many.sorted, node->count, sizeof node->u.many.sorted[0], compare_keys);
    }
}

static void fill_node(document *doc, dpq_json *node, const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        node->kind = json_is_object(value) ? DPQ_JSON_OBJECT : DPQ_JSON_ARRAY;
        node->count = (uint32_t)(json_is_object(value) ? json_object_size(value) : json_array_size(value));
        node->u.many.items = doc->nodes + doc->nodes_used;
        doc->nodes_used += node->count;
        if (node->kind == DPQ_JSON_OBJECT) {
            fill_object(doc, node, value);
        } else {
            for (size_t i = 0; i < node->count; i++) {
                fill_node(doc, node->u.many.items + i, json_array_get(value, i));
            }
        }
        break;
    case JSON_STRING:
        node->kind = DPQ_JSON_STRING;
        node->u.string = json_string_value(value);
        break;
    case JSON_INTEGER:
        node->kind = DPQ_JSON_INT;
        node->u.integer = (int64_t)json_integer_value(value);
        break;
    case JSON_REAL:
        node->kind = DPQ_JSON_REAL;
        node->u.real = json_real_value(value);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        node->kind = DPQ_JSON_BOOL;
        node->u.boolean = json_is_true(value);
        break;
    case JSON_NULL:
        node->kind = DPQ_JSON_NULL;
        break;
    }
}

/* Takes TREE, on failure too. */
static dpq_status flatten_take(json_t *tree, const char *name, dpq_json **out)
{
    dpq_status st = DPQ_OK;
    document *doc = NULL;
    void *memory = NULL;
    size_t sorted = 0;
    size_t nodes = count_nodes(tree, &sorted);
    if (nodes > UINT32_MAX) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: %zu JSON values, expected at most %u", name, nodes, UINT32_MAX);
        goto done;
    }
    DPQ_TRY_GOTO(st, dpq_alloc(sizeof *doc, &memory), done);
    doc = memory;
    DPQ_TRY_GOTO(st, dpq_alloc_array((int64_t)nodes, sizeof *doc->nodes, &memory), done);
    doc->nodes = memory;
    DPQ_TRY_GOTO(st, dpq_alloc_array((int64_t)sorted, sizeof *doc->sorted, &memory), done);
    doc->sorted = memory;
    doc->tree = tree;
    tree = NULL;
    fill_node(doc, &doc->root, doc->tree);
    *out = &doc->root;
    doc = NULL;
done:
    if (doc != NULL) {
        dpq_free(doc->sorted);
        dpq_free(doc->nodes);
        dpq_free(doc);
    }
    json_decref(tree);
    return st;
}

dpq_status dpq_json_parse(const char *bytes, size_t size, const char *name, dpq_json **out)
{
    dpq_status st = DPQ_OK;
    json_error_t error;
    prepass p = {.src = bytes, .size = size};
    void *memory = NULL;
    size_t capacity = 0;
    *out = NULL;
    /* Growth: "NaN" to "null" 4/3, a long integer 21/19. */
    DPQ_TRY_GOTO(st, dpq_add_size(size, size / 3 + 16, &capacity), done);
    DPQ_TRY_GOTO(st, dpq_alloc(capacity, &memory), done);
    p.dst = memory;
    DPQ_TRY_GOTO(st, run_prepass(&p, name), done);
    memset(&error, 0, sizeof error);
    json_t *tree = json_loadb(p.dst, p.length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (tree == NULL) {
        char text[sizeof error.text];
        dpq_json_printable(error.text, text, sizeof text);
        bool no_memory = json_error_code(&error) == json_error_out_of_memory;
        st = DPQ_RAISE(no_memory ? DPQ_E_MEMORY : DPQ_E_INPUT, "%s:%d:%d: %s", name, error.line, error.column, text);
        goto done;
    }
    DPQ_TRY_GOTO(st, flatten_take(tree, name, out), done);
done:
    dpq_free(memory);
    return st;
}

dpq_status dpq_json_read_file(const char *path, size_t max_bytes, dpq_json **out)
{
    char *bytes = NULL;
    size_t size = 0;
    *out = NULL;
    DPQ_TRY(dpq_file_read_all(path, max_bytes, &bytes, &size));
    dpq_status st = dpq_json_parse(bytes, size, path, out);
    dpq_free(bytes);
    return st;
}

void dpq_json_destroy(dpq_json **doc)
{
    if (doc == NULL || *doc == NULL) {
        return;
    }
    document *d = (document *)*doc;
    json_decref(d->tree);
    dpq_free(d->sorted);
    dpq_free(d->nodes);
    dpq_free(d);
    *doc = NULL;
}

/* ---- access ---- */

dpq_json_kind dpq_json_get_kind(const dpq_json *value)
{
    return value->kind;
}

static bool is_container(const dpq_json *value)
{
    return value != NULL && (value->kind == DPQ_JSON_OBJECT || value->kind == DPQ_JSON_ARRAY);
}

const dpq_json *dpq_json_member(const dpq_json *object, const char *key)
{
    if (object == NULL || object->kind != DPQ_JSON_OBJECT) {
        return NULL;
    }
    if (object->u.many.sorted != NULL) {
        dpq_json wanted = {.key = key};
        const dpq_json *pointer = &wanted;
        const dpq_json *const *hit =
            bsearch(&pointer, object->u.many.sorted, object->count, sizeof object->u.many.sorted[0], compare_keys);
        return hit != NULL ? *hit : NULL;
    }
    for (size_t i = 0; i < object->count; i++) {
        if (strcmp(object->u.many.items[i].key, key) == 0) {
            return object->u.many.items + i;
        }
    }
    return NULL;
}

size_t dpq_json_size(const dpq_json *value)
{
    return is_container(value) ? value->count : 0;
}

const dpq_json *dpq_json_item(const dpq_json *array, size_t index)
{
    if (array == NULL || array->kind != DPQ_JSON_ARRAY || index >= array->count) {
        return NULL;
    }
    return array->u.many.items + index;
}

const char *dpq_json_key(const dpq_json *object, size_t index, const dpq_json **value)
{
    if (value != NULL) {
        *value = NULL;
    }
    if (object == NULL || object->kind != DPQ_JSON_OBJECT || index >= object->count) {
        return NULL;
    }
    if (value != NULL) {
        *value = object->u.many.items + index;
    }
    return object->u.many.items[index].key;
}

int64_t dpq_json_int(const dpq_json *value)
{
    DPQ_ASSERT(value->kind == DPQ_JSON_INT);
    return value->u.integer;
}

double dpq_json_real(const dpq_json *value)
{
    DPQ_ASSERT(value->kind == DPQ_JSON_REAL || value->kind == DPQ_JSON_INT);
    return value->kind == DPQ_JSON_INT ? (double)value->u.integer : value->u.real;
}

bool dpq_json_bool(const dpq_json *value)
{
    DPQ_ASSERT(value->kind == DPQ_JSON_BOOL);
    return value->u.boolean;
}

const char *dpq_json_string(const dpq_json *value)
{
    DPQ_ASSERT(value->kind == DPQ_JSON_STRING);
    return value->u.string;
}

/* ---- typed members ---- */

static void describe(const dpq_json *value, char *buffer, size_t bytes)
{
    char text[64];
    switch (value->kind) {
    case DPQ_JSON_NULL:
        snprintf(buffer, bytes, "null");
        break;
    case DPQ_JSON_BOOL:
        snprintf(buffer, bytes, "%s", value->u.boolean ? "true" : "false");
        break;
    case DPQ_JSON_INT:
        snprintf(buffer, bytes, "integer %lld", (long long)value->u.integer);
        break;
    case DPQ_JSON_REAL:
        snprintf(buffer, bytes, "real number %.17g", value->u.real);
        break;
    case DPQ_JSON_STRING:
        snprintf(buffer, bytes, "string \"%s\"", dpq_json_printable(value->u.string, text, sizeof text));
        break;
    case DPQ_JSON_ARRAY:
        snprintf(buffer, bytes, "array of %u", (unsigned)value->count);
        break;
    case DPQ_JSON_OBJECT:
        snprintf(buffer, bytes, "object of %u members", (unsigned)value->count);
        break;
    }
}

/* The member as one of two kinds; NULL in *MEMBER when absent or null. */
static dpq_status typed_member(const dpq_json *object, const char *name, const char *key, dpq_json_kind kind,
                               dpq_json_kind other, const char *expected, const dpq_json **member, bool *found)
{
    const dpq_json *value = dpq_json_member(object, key);
    if (value != NULL && value->kind == DPQ_JSON_NULL) {
        value = NULL;
    }
    *member = NULL;
    if (found != NULL) {
        *found = false;
    }
    if (value != NULL && value->kind != kind && value->kind != other) {
        char text[128];
        describe(value, text, sizeof text);
        return DPQ_RAISE(DPQ_E_INPUT, "%s: key \"%s\": expected %s, found %s", name, key, expected, text);
    }
    *member = value;
    if (found != NULL) {
        *found = value != NULL;
    }
    return DPQ_OK;
}

dpq_status dpq_json_opt_int(const dpq_json *object, const char *name, const char *key, int64_t *out, bool *found)
{
    const dpq_json *value = NULL;
    DPQ_TRY(typed_member(object, name, key, DPQ_JSON_INT, DPQ_JSON_INT, "an integer", &value, found));
    if (value != NULL) {
        *out = value->u.integer;
    }
    return DPQ_OK;
}

dpq_status dpq_json_opt_real(const dpq_json *object, const char *name, const char *key, double *out, bool *found)
{
    const dpq_json *value = NULL;
    DPQ_TRY(typed_member(object, name, key, DPQ_JSON_REAL, DPQ_JSON_INT, "a number", &value, found));
    if (value != NULL) {
        *out = dpq_json_real(value);
    }
    return DPQ_OK;
}

dpq_status dpq_json_opt_bool(const dpq_json *object, const char *name, const char *key, bool *out, bool *found)
{
    const dpq_json *value = NULL;
    DPQ_TRY(typed_member(object, name, key, DPQ_JSON_BOOL, DPQ_JSON_BOOL, "true or false", &value, found));
    if (value != NULL) {
        *out = value->u.boolean;
    }
    return DPQ_OK;
}

dpq_status dpq_json_opt_string(const dpq_json *object, const char *name, const char *key, const char **out, bool *found)
{
    const dpq_json *value = NULL;
    DPQ_TRY(typed_member(object, name, key, DPQ_JSON_STRING, DPQ_JSON_STRING, "a string", &value, found));
    if (value != NULL) {
        *out = value->u.string;
    }
    return DPQ_OK;
}
