/* SPDX-License-Identifier: Apache-2.0 */
/* One YAML document, from libyaml events to a tree with positions. Scalars stay text: their type comes from the option
 * they are for. What YAML offers beyond plain nesting (anchors, tags, merge keys) is refused. */
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "dpquant/alloc.h"
#include "dpquant/config.h"

#define MAX_BYTES ((size_t)1 << 20)
#define MAX_DEPTH 32
#define MAX_NODES 100000

typedef struct {
    yaml_parser_t parser;
    const char *name;
    const char *bytes;
    size_t size;
    size_t n_nodes;
} reader;

static int line_of(yaml_mark_t mark)
{
    return (int)mark.line + 1;
}

static int column_of(yaml_mark_t mark)
{
    return (int)mark.column + 1;
}

/* Raise with the position of a mark; FMT and its arguments follow it. */
#define RAISE_AT(r, mark, fmt, ...)                                                                                    \
    DPQ_RAISE(DPQ_E_CONFIG, "%s:%d:%d: " fmt, (r)->name, line_of(mark), column_of(mark), ##__VA_ARGS__)

static dpq_status raise_parser_error(const reader *r)
{
    const yaml_parser_t *parser = &r->parser;
    if (parser->error == YAML_MEMORY_ERROR) {
        return DPQ_RAISE(DPQ_E_MEMORY, "%s: no memory to parse YAML", r->name);
    }
    const char *problem = parser->problem ? parser->problem : "not valid YAML";
    if (parser->error == YAML_READER_ERROR) { /* no mark for bytes that are no text: count the lines before them */
        int line = 1;
        int column = 1;
        for (size_t i = 0; i < parser->problem_offset && i < r->size; i++) {
            column = r->bytes[i] == '\n' ? 1 : column + 1;
            line += r->bytes[i] == '\n';
        }
        return DPQ_RAISE(DPQ_E_CONFIG, "%s:%d:%d: %s", r->name, line, column, problem);
    }
    return RAISE_AT(r, parser->problem_mark, "%s%s%s", problem, parser->context ? ", " : "",
                    parser->context ? parser->context : "");
}

static dpq_status next_event(reader *r, yaml_event_t *event)
{
    memset(event, 0, sizeof *event);
    return yaml_parser_parse(&r->parser, event) ? DPQ_OK : raise_parser_error(r);
}

static dpq_status check_properties(const reader *r, yaml_mark_t mark, const yaml_char_t *anchor, const yaml_char_t *tag)
{
    if (anchor) {
        return RAISE_AT(r, mark, "anchors are not supported (&%.80s)", (const char *)anchor);
    }
    if (tag) {
        return RAISE_AT(r, mark, "tags are not supported (%.80s)", (const char *)tag);
    }
    return DPQ_OK;
}

/* Grow the pointer array *ARRAY (elements of ELEM_BYTES) so that element COUNT fits. Capacities are powers of two from
 * 8 on, so they follow from the count. */
static dpq_status grow(void **array, size_t count, size_t elem_bytes)
{
    if (count != 0 && (count < 8 || (count & (count - 1)) != 0)) {
        return DPQ_OK;
    }
    void *larger = NULL;
    DPQ_TRY(dpq_alloc_array((int64_t)(count ? 2 * count : 8), elem_bytes, &larger));
    if (count) {
        memcpy(larger, *array, count * elem_bytes);
    }
    dpq_free(*array);
    *array = larger;
    return DPQ_OK;
}

static dpq_status new_node(reader *r, dpq_yaml_kind kind, yaml_mark_t mark, dpq_yaml **out)
{
    *out = NULL;
    if (++r->n_nodes > MAX_NODES) {
        return RAISE_AT(r, mark, "more than %d values", MAX_NODES);
    }
    void *memory = NULL;
    DPQ_TRY(dpq_alloc(sizeof(dpq_yaml), &memory));
    *out = memory;
    (*out)->kind = kind;
    (*out)->line = line_of(mark);
    (*out)->column = column_of(mark);
    return DPQ_OK;
}

static dpq_status copy_scalar(const reader *r, const yaml_event_t *event, char **out)
{
    *out = NULL;
    const char *value = (const char *)event->data.scalar.value;
    if (strlen(value) != event->data.scalar.length) {
        return RAISE_AT(r, event->start_mark, "text with a NUL character");
    }
    return dpq_str_dup(value, out);
}

static bool is_plain_null(const yaml_event_t *event)
{
    const char *value = (const char *)event->data.scalar.value;
    return event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (value[0] == '\0' || strcmp(value, "~") == 0 || strcmp(value, "null") == 0);
}

static dpq_status read_node(reader *r, const yaml_event_t *event, int depth, dpq_yaml **out);

static dpq_status read_sequence(reader *r, int depth, dpq_yaml *node)
{
    dpq_status st = DPQ_OK;
    bool more = true;
    while (st == DPQ_OK && more) {
        yaml_event_t event;
        DPQ_TRY(next_event(r, &event));
        more = event.type != YAML_SEQUENCE_END_EVENT;
        if (more) {
            void *items = node->items;
            st = grow(&items, node->count, sizeof *node->items);
            node->items = items;
        }
        if (st == DPQ_OK && more) {
            st = read_node(r, &event, depth + 1, &node->items[node->count]);
            node->count += st == DPQ_OK;
        }
        yaml_event_delete(&event);
    }
    return st;
}

/* Make room for one more pair in all four arrays. On failure each holds at least COUNT pairs, as before. */
static dpq_status grow_mapping(dpq_yaml *node)
{
    void *keys = node->keys;
    void *lines = node->key_lines;
    void *columns = node->key_columns;
    void *items = node->items;
    dpq_status st = grow(&keys, node->count, sizeof *node->keys);
    node->keys = keys;
    if (st == DPQ_OK) {
        st = grow(&lines, node->count, sizeof *node->key_lines);
        node->key_lines = lines;
    }
    if (st == DPQ_OK) {
        st = grow(&columns, node->count, sizeof *node->key_columns);
        node->key_columns = columns;
    }
    if (st == DPQ_OK) {
        st = grow(&items, node->count, sizeof *node->items);
        node->items = items;
    }
    return st;
}

static dpq_status read_key(reader *r, const yaml_event_t *event, dpq_yaml *node)
{
    yaml_mark_t mark = event->start_mark;
    if (event->type == YAML_ALIAS_EVENT) {
        return RAISE_AT(r, mark, "aliases are not supported (*%.80s)", (const char *)event->data.alias.anchor);
    }
    if (event->type != YAML_SCALAR_EVENT) {
        return RAISE_AT(r, mark, "a key must be a single word, found a %s",
                        event->type == YAML_MAPPING_START_EVENT ? "mapping" : "sequence");
    }
    DPQ_TRY(check_properties(r, mark, event->data.scalar.anchor, event->data.scalar.tag));
    bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (plain && strcmp((const char *)event->data.scalar.value, "<<") == 0) {
        return RAISE_AT(r, mark, "merge keys are not supported (<<)");
    }
    DPQ_TRY(grow_mapping(node));
    node->key_lines[node->count] = line_of(mark);
    node->key_columns[node->count] = column_of(mark);
    return copy_scalar(r, event, &node->keys[node->count]);
}

typedef struct {
    const char *key;
    size_t index;
} key_place;

static int compare_keys(const void *a, const void *b)
{
    const key_place *x = a;
    const key_place *y = b;
    int order = strcmp(x->key, y->key);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

/* The repeated key that comes first in the text is reported. Sorted, because a hostile file can hold many keys. */
static dpq_status check_repeated_keys(const reader *r, const dpq_yaml *node)
{
    void *memory = NULL;
    DPQ_TRY(dpq_alloc_array((int64_t)node->count, sizeof(key_place), &memory));
    key_place *places = memory;
    for (size_t i = 0; i < node->count; i++) {
        places[i] = (key_place){node->keys[i], i};
    }
    qsort(places, node->count, sizeof *places, compare_keys);
    size_t first = 0;
    size_t second = SIZE_MAX;
    for (size_t i = 1; i < node->count; i++) {
        if (strcmp(places[i - 1].key, places[i].key) == 0 && places[i].index < second) {
            first = places[i - 1].index;
            second = places[i].index;
        }
    }
    dpq_status st = DPQ_OK;
    if (second != SIZE_MAX) {
        st = DPQ_RAISE(DPQ_E_CONFIG, "%s:%d:%d: repeated key %.80s, first on line %d", r->name, node->key_lines[second],
                       node->key_columns[second], node->keys[second], node->key_lines[first]);
    }
    dpq_free(places);
    return st;
}

static dpq_status read_mapping(reader *r, int depth, dpq_yaml *node)
{
    for (;;) {
        yaml_event_t event;
        DPQ_TRY(next_event(r, &event));
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            return check_repeated_keys(r, node);
        }
        dpq_status st = read_key(r, &event, node);
        yaml_event_delete(&event);
        DPQ_TRY(st);
        /* From here on the key belongs to the node; a missing value is a NULL item until it is read. */
        size_t index = node->count++;
        DPQ_TRY(next_event(r, &event));
        st = read_node(r, &event, depth + 1, &node->items[index]);
        yaml_event_delete(&event);
        DPQ_TRY(st);
    }
}

/* EVENT begins the node; the events up to its end are read here. */
static dpq_status read_node(reader *r, const yaml_event_t *event, int depth, dpq_yaml **out)
{
    *out = NULL;
    dpq_status st = DPQ_OK;
    dpq_yaml *node = NULL;
    yaml_mark_t mark = event->start_mark;
    if (depth > MAX_DEPTH) {
        return RAISE_AT(r, mark, "nested deeper than %d levels", MAX_DEPTH);
    }
    if (event->type == YAML_SCALAR_EVENT) {
        DPQ_TRY_GOTO(st, check_properties(r, mark, event->data.scalar.anchor, event->data.scalar.tag), done);
        DPQ_TRY_GOTO(st, new_node(r, DPQ_YAML_SCALAR, mark, &node), done);
        DPQ_TRY_GOTO(st, copy_scalar(r, event, &node->text), done);
        node->is_null = is_plain_null(event);
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        DPQ_TRY_GOTO(st, check_properties(r, mark, event->data.sequence_start.anchor, event->data.sequence_start.tag),
                     done);
        DPQ_TRY_GOTO(st, new_node(r, DPQ_YAML_SEQUENCE, mark, &node), done);
        DPQ_TRY_GOTO(st, read_sequence(r, depth, node), done);
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        DPQ_TRY_GOTO(st, check_properties(r, mark, event->data.mapping_start.anchor, event->data.mapping_start.tag),
                     done);
        DPQ_TRY_GOTO(st, new_node(r, DPQ_YAML_MAPPING, mark, &node), done);
        DPQ_TRY_GOTO(st, read_mapping(r, depth, node), done);
    } else if (event->type == YAML_ALIAS_EVENT) {
        st = RAISE_AT(r, mark, "aliases are not supported (*%.80s)", (const char *)event->data.alias.anchor);
    } else {
        st = RAISE_AT(r, mark, "unexpected YAML event %d", (int)event->type);
    }
done:
    if (st != DPQ_OK) {
        dpq_yaml_destroy(&node);
    }
    *out = node;
    return st;
}

static dpq_status read_document(reader *r, dpq_yaml **out)
{
    yaml_event_t event;
    DPQ_TRY(next_event(r, &event));
    dpq_status st = read_node(r, &event, 1, out);
    yaml_event_delete(&event);
    DPQ_TRY(st);
    DPQ_TRY(next_event(r, &event)); /* document end */
    yaml_event_delete(&event);
    return DPQ_OK;
}

static dpq_status read_stream(reader *r, dpq_yaml **out)
{
    yaml_event_t event = {0};
    do {
        yaml_event_delete(&event);
        DPQ_TRY(next_event(r, &event));
        dpq_status st = DPQ_OK;
        if (event.type == YAML_DOCUMENT_START_EVENT) {
            const yaml_tag_directive_t *tags = event.data.document_start.tag_directives.start;
            bool has_tags = tags != event.data.document_start.tag_directives.end;
            if (*out) {
                st = RAISE_AT(r, event.start_mark, "more than one document");
            } else if (has_tags) {
                st = RAISE_AT(r, event.start_mark, "tags are not supported");
            } else {
                st = read_document(r, out);
            }
        }
        if (st != DPQ_OK) {
            yaml_event_delete(&event);
            return st;
        }
    } while (event.type != YAML_STREAM_END_EVENT);
    yaml_event_delete(&event);
    return DPQ_OK;
}

dpq_status dpq_yaml_parse(const char *bytes, size_t size, const char *name, dpq_yaml **out)
{
    *out = NULL;
    if (size > MAX_BYTES) {
        return DPQ_RAISE(DPQ_E_CONFIG, "%s:1:1: %zu bytes; expected at most %zu", name, size, MAX_BYTES);
    }
    if (size >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) { /* byte order mark */
        bytes += 3;
        size -= 3;
    }
    dpq_status st = DPQ_OK;
    dpq_yaml *tree = NULL;
    reader r = {.name = name, .bytes = bytes, .size = size};
    if (!yaml_parser_initialize(&r.parser)) {
        return DPQ_RAISE(DPQ_E_MEMORY, "%s: no memory to parse YAML", name);
    }
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)bytes, size);
    DPQ_TRY_GOTO(st, read_stream(&r, &tree), done);
    if (!tree || (tree->kind == DPQ_YAML_SCALAR && tree->is_null && tree->text[0] == '\0')) {
        dpq_yaml_destroy(&tree);
        DPQ_TRY_GOTO(st, new_node(&r, DPQ_YAML_MAPPING, (yaml_mark_t){0}, &tree), done);
    }
    *out = tree;
    tree = NULL;
done:
    dpq_yaml_destroy(&tree);
    yaml_parser_delete(&r.parser);
    return st;
}

void dpq_yaml_destroy(dpq_yaml **tree)
{
    dpq_yaml *node = *tree;
    if (!node) {
        return;
    }
    for (size_t i = 0; i < node->count; i++) {
        dpq_yaml_destroy(&node->items[i]);
        if (node->keys) {
            dpq_free(node->keys[i]);
        }
    }
    dpq_free(node->text);
    dpq_free(node->keys);
    dpq_free(node->key_lines);
    dpq_free(node->key_columns);
    dpq_free(node->items);
    dpq_free(node);
    *tree = NULL;
}

const dpq_yaml *dpq_yaml_get(const dpq_yaml *mapping, const char *key)
{
    if (mapping->kind != DPQ_YAML_MAPPING) {
        return NULL;
    }
    for (size_t i = 0; i < mapping->count; i++) {
        if (strcmp(mapping->keys[i], key) == 0) {
            return mapping->items[i];
        }
    }
    return NULL;
}
