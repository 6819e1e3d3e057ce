/* SPDX-License-Identifier: Apache-2.0 */
/* The header of one safetensors file and every check of the format. The invariant behind them: the bytes that the
 * header claims are exactly the bytes of the file, by checked 64-bit arithmetic, before anything of their size is
 * allocated. */
#include "safetensors_priv.h"

#include <stdlib.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/json.h"
#include "json_priv.h"

/* Names in messages are cut to this. */
#define NAME_TEXT_BYTES 200

/* What a check needs to name the culprit. */
typedef struct {
    const char *path;
    char name[NAME_TEXT_BYTES];
    uint64_t data_begin; /* of the data buffer in the file: 8 + header length */
    uint64_t data_bytes;
} place;

void dpq_st_list_fini(dpq_st_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        dpq_free(list->items[i].name);
    }
    dpq_free(list->items);
    memset(list, 0, sizeof *list);
}

static dpq_status read_dtype(const place *at, const dpq_json *info, dpq_st_entry *entry)
{
    const dpq_json *dtype = dpq_json_member(info, "dtype");
    if (dtype == NULL || dpq_json_get_kind(dtype) != DPQ_JSON_STRING) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: \"dtype\" is %s", at->path, at->name,
                         dtype == NULL ? "missing" : "not a string");
    }
    if (!dpq_dtype_from_name(dpq_json_string(dtype), &entry->dtype)) {
        char text[32];
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: dtype \"%s\" is unknown", at->path, at->name,
                         dpq_json_printable(dpq_json_string(dtype), text, sizeof text));
    }
    return DPQ_OK;
}

static dpq_status read_shape(const place *at, const dpq_json *info, dpq_st_entry *entry)
{
    const dpq_json *shape = dpq_json_member(info, "shape");
    if (shape == NULL || dpq_json_get_kind(shape) != DPQ_JSON_ARRAY) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: \"shape\" is %s", at->path, at->name,
                         shape == NULL ? "missing" : "not an array");
    }
    size_t rank = dpq_json_size(shape);
    if (rank > DPQ_TENSOR_MAX_RANK) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: %zu dimensions, expected at most %d", at->path, at->name, rank,
                         DPQ_TENSOR_MAX_RANK);
    }
    for (size_t i = 0; i < rank; i++) {
        const dpq_json *dim = dpq_json_item(shape, i);
        if (dpq_json_get_kind(dim) != DPQ_JSON_INT || dpq_json_int(dim) < 0) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: dimension %zu is not a whole number from 0 to 2^63-1",
                             at->path, at->name, i);
        }
        entry->dim[i] = dpq_json_int(dim);
    }
    entry->rank = (int)rank;
    return DPQ_OK;
}

/* Shape and type give SIZE bytes; 0 for an empty tensor even when other dimensions would overflow together. */
static dpq_status shape_bytes(const place *at, const dpq_st_entry *entry, uint64_t *size)
{
    *size = dpq_dtype_bytes(entry->dtype);
    for (int i = 0; i < entry->rank; i++) {
        if (entry->dim[i] == 0) {
            *size = 0;
            return DPQ_OK;
        }
    }
    for (int i = 0; i < entry->rank; i++) {
        if (__builtin_mul_overflow(*size, (uint64_t)entry->dim[i], size)) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: the product of its dimensions overflows 64 bits", at->path,
                             at->name);
        }
    }
    return DPQ_OK;
}

static dpq_status read_offsets(const place *at, const dpq_json *info, dpq_st_entry *entry)
{
    const dpq_json *offsets = dpq_json_member(info, "data_offsets");
    if (offsets == NULL || dpq_json_get_kind(offsets) != DPQ_JSON_ARRAY || dpq_json_size(offsets) != 2) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: \"data_offsets\" is %s", at->path, at->name,
                         offsets == NULL ? "missing" : "not an array of two");
    }
    uint64_t bound[2];
    for (size_t i = 0; i < 2; i++) {
        const dpq_json *value = dpq_json_item(offsets, i);
        if (dpq_json_get_kind(value) != DPQ_JSON_INT || dpq_json_int(value) < 0) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: data offset %zu is not a whole number from 0 to 2^63-1",
                             at->path, at->name, i);
        }
        bound[i] = (uint64_t)dpq_json_int(value);
    }
    if (bound[0] > bound[1]) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: data ends at %llu before it begins at %llu", at->path, at->name,
                         (unsigned long long)bound[1], (unsigned long long)bound[0]);
    }
    if (bound[1] > at->data_bytes) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: data ends at %llu, the file has %llu bytes of data", at->path,
                         at->name, (unsigned long long)bound[1], (unsigned long long)at->data_bytes);
    }
    uint64_t expected = 0;
    DPQ_TRY(shape_bytes(at, entry, &expected));
    if (bound[1] - bound[0] != expected) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: shape and dtype %s need %llu bytes, data_offsets give %llu",
                         at->path, at->name, dpq_dtype_name(entry->dtype), (unsigned long long)expected,
                         (unsigned long long)(bound[1] - bound[0]));
    }
    entry->offset = at->data_begin + bound[0];
    entry->bytes = expected;
    return DPQ_OK;
}

static dpq_status read_entry(place *at, const char *name, const dpq_json *info, dpq_st_entry *entry)
{
    dpq_json_printable(name, at->name, sizeof at->name);
    if (name[0] == '\0') {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: a tensor has an empty name", at->path);
    }
    for (const char *c = name; *c != '\0'; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: control character in the name", at->path, at->name);
        }
    }
    if (dpq_json_get_kind(info) != DPQ_JSON_OBJECT) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: its header entry is not an object", at->path, at->name);
    }
    DPQ_TRY(read_dtype(at, info, entry));
    DPQ_TRY(read_shape(at, info, entry));
    DPQ_TRY(read_offsets(at, info, entry));
    return dpq_str_dup(name, &entry->name);
}

static dpq_status check_metadata(const char *path, const dpq_json *metadata)
{
    if (dpq_json_get_kind(metadata) != DPQ_JSON_OBJECT) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: " DPQ_ST_METADATA " is not an object", path);
    }
    for (size_t i = 0; i < dpq_json_size(metadata); i++) {
        const dpq_json *value = NULL;
        const char *key = dpq_json_key(metadata, i, &value);
        if (dpq_json_get_kind(value) != DPQ_JSON_STRING) {
            char text[NAME_TEXT_BYTES];
            return DPQ_RAISE(DPQ_E_INPUT, "%s: " DPQ_ST_METADATA " key \"%s\" is not a string", path,
                             dpq_json_printable(key, text, sizeof text));
        }
    }
    return DPQ_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const dpq_st_entry *x = a;
    const dpq_st_entry *y = b;
    if (x->offset != y->offset) {
        return x->offset < y->offset ? -1 : 1;
    }
    if (x->bytes != y->bytes) { /* empty tensors sit before the one that begins at the same place */
        return x->bytes < y->bytes ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

/* Sorted by offset, tensors touch each other, the first begins the data buffer and the last ends the file. */
static dpq_status check_tiling(place *at, dpq_st_list *list)
{
    uint64_t next = at->data_begin;
    if (list->count > 1) {
        qsort(list->items, list->count, sizeof list->items[0], compare_offsets);
    }
    for (size_t i = 0; i < list->count; i++) {
        const dpq_st_entry *entry = list->items + i;
        dpq_json_printable(entry->name, at->name, sizeof at->name);
        if (entry->offset < next) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: overlaps the tensor before it by %llu bytes", at->path,
                             at->name, (unsigned long long)(next - entry->offset));
        }
        if (entry->offset > next) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s: a hole of %llu bytes before it", at->path, at->name,
                             (unsigned long long)(entry->offset - next));
        }
        next = entry->offset + entry->bytes;
    }
    uint64_t file_bytes = at->data_begin + at->data_bytes;
    if (next != file_bytes) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: %llu bytes after the last tensor", at->path,
                         (unsigned long long)(file_bytes - next));
    }
    return DPQ_OK;
}

/* Reads length and text of the header; *text is the caller's. */
static dpq_status read_text(int fd, const char *path, uint64_t file_bytes, char **text, uint64_t *text_bytes)
{
    unsigned char length[DPQ_ST_LENGTH_BYTES];
    void *memory = NULL;
    uint64_t n = 0;
    if (file_bytes < sizeof length) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: %llu bytes, too short for the 8-byte header length", path,
                         (unsigned long long)file_bytes);
    }
    DPQ_TRY(dpq_file_pread(fd, path, length, sizeof length, 0));
    for (size_t i = 0; i < sizeof length; i++) {
        n |= (uint64_t)length[i] << (8 * i);
    }
    if (n < 2) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: header length %llu is too small for \"{}\"", path, (unsigned long long)n);
    }
    if (n > DPQ_ST_HEADER_MAX_BYTES) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: header length %llu, expected at most %u", path, (unsigned long long)n,
                         DPQ_ST_HEADER_MAX_BYTES);
    }
    if (n > file_bytes - sizeof length) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: header length %llu reaches past the end of the file of %llu bytes", path,
                         (unsigned long long)n, (unsigned long long)file_bytes);
    }
    DPQ_TRY(dpq_alloc((size_t)n, &memory));
    dpq_status st = dpq_file_pread(fd, path, memory, (size_t)n, sizeof length);
    if (st == DPQ_OK && *(char *)memory != '{') {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: header begins with byte 0x%02x, expected '{'", path, *(unsigned char *)memory);
    }
    if (st != DPQ_OK) {
        dpq_free(memory);
        return st;
    }
    *text = memory;
    *text_bytes = n;
    return DPQ_OK;
}

dpq_status dpq_st_header_read(int fd, const char *path, uint64_t file_bytes, int shard, dpq_sha256 *digest,
                              dpq_st_list *out)
{
    dpq_status st = DPQ_OK;
    place at = {.path = path};
    dpq_st_list list = {0};
    dpq_json *header = NULL;
    char *label = NULL;
    char *text = NULL;
    void *memory = NULL;
    uint64_t text_bytes = 0;
    memset(out, 0, sizeof *out);
    DPQ_TRY_GOTO(st, read_text(fd, path, file_bytes, &text, &text_bytes), done);
    if (digest != NULL) {
        dpq_sha256_update(digest, text, (size_t)text_bytes);
    }
    at.data_begin = DPQ_ST_LENGTH_BYTES + text_bytes;
    at.data_bytes = file_bytes - at.data_begin;
    DPQ_TRY_GOTO(st, dpq_str_format(&label, "%s: header", path), done);
    DPQ_TRY_GOTO(st, dpq_json_parse(text, (size_t)text_bytes, label, &header), done);
    size_t members = dpq_json_size(header);
    DPQ_TRY_GOTO(st, dpq_alloc_array((int64_t)members, sizeof *list.items, &memory), done);
    list.items = memory;
    for (size_t i = 0; i < members; i++) {
        const dpq_json *value = NULL;
        const char *name = dpq_json_key(header, i, &value);
        if (strcmp(name, DPQ_ST_METADATA) == 0) {
            DPQ_TRY_GOTO(st, check_metadata(path, value), done);
            continue;
        }
        dpq_st_entry *entry = list.items + list.count;
        entry->shard = shard;
        DPQ_TRY_GOTO(st, read_entry(&at, name, value, entry), done);
        list.count++;
    }
    DPQ_TRY_GOTO(st, check_tiling(&at, &list), done);
    *out = list;
    memset(&list, 0, sizeof list);
done:
    dpq_st_list_fini(&list);
    dpq_json_destroy(&header);
    dpq_free(label);
    dpq_free(text);
    return st;
}
