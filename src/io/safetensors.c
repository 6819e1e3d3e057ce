/* SPDX-License-Identifier: Apache-2.0 */
/* A model folder as one sorted list of tensors: which files belong to it, the index over shards, reads of whole tensors
 * and of rows. Reads use pread into the caller's memory: a mapped file on failing storage would end in SIGBUS. */
#include "dpquant/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/file.h"
#include "dpquant/json.h"
#include "dpquant/log.h"
#include "json_priv.h"
#include "safetensors_priv.h"

#define INDEX_MAX_BYTES ((size_t)256 << 20)
#define NAME_TEXT_BYTES 200

typedef struct {
    char *path;
    int fd;
    dpq_st_list list; /* emptied when the entries move to the store */
} shard_file;

struct dpq_st_store {
    dpq_str_list names; /* of the shards, sorted */
    shard_file *shards; /* one for each name */
    dpq_st_entry *entries;
    size_t count;
    char digest[65];
};

void dpq_st_close(dpq_st_store **store)
{
    if (store == NULL || *store == NULL) {
        return;
    }
    dpq_st_store *s = *store;
    for (size_t i = 0; s->shards != NULL && i < s->names.count; i++) {
        dpq_file_close_quiet(s->shards[i].fd);
        dpq_st_list_fini(&s->shards[i].list);
        dpq_free(s->shards[i].path);
    }
    for (size_t i = 0; i < s->count; i++) {
        dpq_free(s->entries[i].name);
    }
    dpq_free(s->entries);
    dpq_free(s->shards);
    dpq_str_list_fini(&s->names);
    dpq_free(s);
    *store = NULL;
}

/* ---- which files ---- */

/* A plain name in the folder of the index: a path could lead out of the model. */
static dpq_status check_shard_name(const char *index_path, const char *name)
{
    char text[NAME_TEXT_BYTES];
    dpq_json_printable(name, text, sizeof text);
    if (name[0] == '\0' || name[0] == '.' || strpbrk(name, "/\\") != NULL) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: shard \"%s\" is not a plain file name", index_path, text);
    }
    if (!dpq_str_ends_with(name, DPQ_ST_SUFFIX)) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: shard \"%s\" does not end in " DPQ_ST_SUFFIX, index_path, text);
    }
    return DPQ_OK;
}

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The shard names of a weight map, each once, sorted. */
static dpq_status names_of_map(const char *index_path, const dpq_json *map, dpq_str_list *names)
{
    dpq_status st = DPQ_OK;
    const char **all = NULL;
    void *memory = NULL;
    size_t n = dpq_json_size(map);
    DPQ_TRY(dpq_alloc_array((int64_t)n, sizeof *all, &memory));
    all = memory;
    for (size_t i = 0; i < n; i++) {
        const dpq_json *value = NULL;
        const char *key = dpq_json_key(map, i, &value);
        if (dpq_json_get_kind(value) != DPQ_JSON_STRING) {
            char text[NAME_TEXT_BYTES];
            st = DPQ_RAISE(DPQ_E_INPUT, "%s: weight_map key \"%s\": expected a file name", index_path,
                           dpq_json_printable(key, text, sizeof text));
            goto done;
        }
        all[i] = dpq_json_string(value);
    }
    qsort(all, n, sizeof *all, compare_strings);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(all[i], all[i - 1]) != 0) {
            DPQ_TRY_GOTO(st, check_shard_name(index_path, all[i]), done);
            DPQ_TRY_GOTO(st, dpq_str_list_append(names, all[i]), done);
        }
    }
done:
    dpq_free(all);
    return st;
}

static dpq_status read_index(const char *path, dpq_json **index, const dpq_json **map, dpq_str_list *names)
{
    DPQ_TRY(dpq_json_read_file(path, INDEX_MAX_BYTES, index));
    if (dpq_json_get_kind(*index) != DPQ_JSON_OBJECT) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: the index is not a JSON object", path);
    }
    *map = dpq_json_member(*index, "weight_map");
    if (*map == NULL || dpq_json_get_kind(*map) != DPQ_JSON_OBJECT) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: \"weight_map\" is %s", path, *map == NULL ? "missing" : "not an object");
    }
    if (dpq_json_size(*map) == 0) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: \"weight_map\" is empty", path);
    }
    return names_of_map(path, *map, names);
}

/* Without an index: model.safetensors, else the only *.safetensors of the folder. */
static dpq_status find_single(const char *dir, const dpq_str_list *files, dpq_str_list *names)
{
    const char *only = NULL;
    const char *pickle = NULL;
    size_t found = 0;
    if (dpq_str_list_contains(files, DPQ_ST_SINGLE_NAME)) {
        return dpq_str_list_append(names, DPQ_ST_SINGLE_NAME);
    }
    for (size_t i = 0; i < files->count; i++) {
        const char *name = files->items[i];
        if (dpq_str_ends_with(name, DPQ_ST_SUFFIX)) {
            only = name;
            found++;
        } else if (pickle == NULL && (dpq_str_ends_with(name, ".bin") || dpq_str_ends_with(name, ".pth") ||
                                      dpq_str_ends_with(name, ".pt"))) {
            pickle = name;
        }
    }
    if (found > 1) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: %zu *" DPQ_ST_SUFFIX " files but no " DPQ_ST_INDEX_NAME, dir, found);
    }
    if (found == 1) {
        return dpq_str_list_append(names, only);
    }
    if (pickle != NULL) {
        return DPQ_RAISE(DPQ_E_INPUT,
                         "%s: the weights are in %s, a pickle file that can run code when it is read; convert them to "
                         "safetensors first",
                         dir, pickle);
    }
    return DPQ_RAISE(DPQ_E_INPUT, "%s: no *" DPQ_ST_SUFFIX " file", dir);
}

static void warn_of_strangers(const char *dir, const dpq_str_list *files, const dpq_str_list *names)
{
    for (size_t i = 0; i < files->count; i++) {
        if (dpq_str_ends_with(files->items[i], DPQ_ST_SUFFIX) && !dpq_str_list_contains(names, files->items[i])) {
            dpq_log(DPQ_LOG_WARNING, "io", "%s: %s is not in the index and is left out", dir, files->items[i]);
        }
    }
}

/* ---- opening ---- */

static dpq_status open_shards(dpq_st_store *s, const char *dir)
{
    void *memory = NULL;
    dpq_sha256 digest;
    dpq_sha256_init(&digest);
    DPQ_TRY(dpq_alloc_array((int64_t)s->names.count, sizeof *s->shards, &memory));
    s->shards = memory;
    for (size_t i = 0; i < s->names.count; i++) {
        s->shards[i].fd = -1;
    }
    for (size_t i = 0; i < s->names.count; i++) {
        shard_file *shard = s->shards + i;
        uint64_t size = 0;
        DPQ_TRY(dpq_path_join(dir, s->names.items[i], &shard->path));
        DPQ_TRY(dpq_file_open_read(shard->path, &shard->fd, &size));
        unsigned char size_bytes[8];
        for (int b = 0; b < 8; b++) {
            size_bytes[b] = (unsigned char)(size >> (8 * b));
        }
        dpq_sha256_update(&digest, s->names.items[i], strlen(s->names.items[i]) + 1);
        dpq_sha256_update(&digest, size_bytes, sizeof size_bytes);
        DPQ_TRY(dpq_st_header_read(shard->fd, shard->path, size, (int)i, &digest, &shard->list));
    }
    dpq_sha256_hex(&digest, s->digest);
    return DPQ_OK;
}

static int compare_entries(const void *a, const void *b)
{
    const dpq_st_entry *x = a;
    const dpq_st_entry *y = b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x->shard > y->shard) - (x->shard < y->shard);
}

/* The entries of all shards in one list by name. */
static dpq_status merge_shards(dpq_st_store *s, const char *dir)
{
    void *memory = NULL;
    size_t total = 0;
    for (size_t i = 0; i < s->names.count; i++) {
        total += s->shards[i].list.count;
    }
    DPQ_TRY(dpq_alloc_array((int64_t)total, sizeof *s->entries, &memory));
    s->entries = memory;
    for (size_t i = 0; i < s->names.count; i++) {
        dpq_st_list *list = &s->shards[i].list;
        if (list->count > 0) {
            memcpy(s->entries + s->count, list->items, list->count * sizeof *list->items);
        }
        s->count += list->count;
        list->count = 0; /* the names moved along */
        dpq_st_list_fini(list);
    }
    if (total > 1) {
        qsort(s->entries, total, sizeof *s->entries, compare_entries);
    }
    for (size_t i = 1; i < total; i++) {
        const dpq_st_entry *e = s->entries + i;
        if (strcmp(e[-1].name, e->name) == 0) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %.200s is in two shards, %s and %s", dir, e->name,
                             s->names.items[e[-1].shard], s->names.items[e->shard]);
        }
    }
    return DPQ_OK;
}

/* Map and shards name the same tensors in the same files. */
static dpq_status check_index(const dpq_st_store *s, const char *path, const dpq_json *index, const dpq_json *map)
{
    uint64_t total = 0;
    for (size_t i = 0; i < dpq_json_size(map); i++) {
        const dpq_json *value = NULL;
        const char *name = dpq_json_key(map, i, &value);
        const dpq_st_entry *entry = dpq_st_find(s, name);
        if (entry == NULL || strcmp(s->names.items[entry->shard], dpq_json_string(value)) != 0) {
            char text[NAME_TEXT_BYTES];
            return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %s is not in shard %s but %s", path,
                             dpq_json_printable(name, text, sizeof text), dpq_json_string(value),
                             entry == NULL ? "nowhere" : s->names.items[entry->shard]);
        }
    }
    for (size_t i = 0; i < s->count; i++) {
        const dpq_st_entry *entry = s->entries + i;
        if (dpq_json_member(map, entry->name) == NULL) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor %.200s of shard %s is missing in the index", path, entry->name,
                             s->names.items[entry->shard]);
        }
        total += entry->bytes; /* cannot overflow: the bytes are in files */
    }
    int64_t stated = 0;
    bool found = false;
    const dpq_json *metadata = dpq_json_member(index, "metadata");
    const dpq_json *size = dpq_json_member(metadata, "total_size");
    if (size != NULL && dpq_json_get_kind(size) == DPQ_JSON_INT) {
        stated = dpq_json_int(size);
        found = true;
    }
    if (found && (stated < 0 || (uint64_t)stated != total)) {
        dpq_log(DPQ_LOG_WARNING, "io", "%s: total_size is %lld, the shards have %llu bytes", path, (long long)stated,
                (unsigned long long)total);
    }
    return DPQ_OK;
}

dpq_status dpq_st_open(const char *dir, dpq_st_store **out)
{
    dpq_status st = DPQ_OK;
    dpq_st_store *s = NULL;
    dpq_json *index = NULL;
    const dpq_json *map = NULL;
    dpq_str_list files = {0};
    char *index_path = NULL;
    void *memory = NULL;
    *out = NULL;
    DPQ_TRY_GOTO(st, dpq_alloc(sizeof *s, &memory), done);
    s = memory;
    DPQ_TRY_GOTO(st, dpq_dir_list(dir, &files), done);
    if (dpq_str_list_contains(&files, DPQ_ST_INDEX_NAME)) {
        DPQ_TRY_GOTO(st, dpq_path_join(dir, DPQ_ST_INDEX_NAME, &index_path), done);
        DPQ_TRY_GOTO(st, read_index(index_path, &index, &map, &s->names), done);
        warn_of_strangers(dir, &files, &s->names);
    } else {
        DPQ_TRY_GOTO(st, find_single(dir, &files, &s->names), done);
    }
    DPQ_TRY_GOTO(st, open_shards(s, dir), done);
    DPQ_TRY_GOTO(st, merge_shards(s, dir), done);
    if (index != NULL) {
        DPQ_TRY_GOTO(st, check_index(s, index_path, index, map), done);
    }
    *out = s;
    s = NULL;
done:
    dpq_st_close(&s);
    dpq_json_destroy(&index);
    dpq_str_list_fini(&files);
    dpq_free(index_path);
    return st;
}

/* ---- access ---- */

size_t dpq_st_count(const dpq_st_store *store)
{
    return store->count;
}

const dpq_st_entry *dpq_st_at(const dpq_st_store *store, size_t index)
{
    DPQ_ASSERT(index < store->count);
    return store->entries + index;
}

static int compare_name_to_entry(const void *name, const void *entry)
{
    return strcmp(name, ((const dpq_st_entry *)entry)->name);
}

const dpq_st_entry *dpq_st_find(const dpq_st_store *store, const char *name)
{
    return store->count == 0
               ? NULL
               : bsearch(name, store->entries, store->count, sizeof *store->entries, compare_name_to_entry);
}

size_t dpq_st_shard_count(const dpq_st_store *store)
{
    return store->names.count;
}

const char *dpq_st_shard_name(const dpq_st_store *store, int shard)
{
    DPQ_ASSERT(shard >= 0 && (size_t)shard < store->names.count);
    return store->names.items[shard];
}

const char *dpq_st_digest(const dpq_st_store *store)
{
    return store->digest;
}

/* The tensor is part of the text that names the file, so that a failed read names both. */
static dpq_status read_bytes(const dpq_st_store *store, const dpq_st_entry *entry, uint64_t skip, uint64_t bytes,
                             void *dst)
{
    const shard_file *shard = store->shards + entry->shard;
    char label[1024];
    snprintf(label, sizeof label, "%.600s: tensor %.300s", shard->path, entry->name);
    return dpq_file_pread(shard->fd, label, dst, (size_t)bytes, entry->offset + skip);
}

dpq_status dpq_st_read(const dpq_st_store *store, const dpq_st_entry *entry, void *dst)
{
    return read_bytes(store, entry, 0, entry->bytes, dst);
}

dpq_status dpq_st_read_rows(const dpq_st_store *store, const dpq_st_entry *entry, int64_t begin, int64_t end, void *dst)
{
    if (entry->rank < 1 || begin < 0 || begin > end || end > entry->dim[0]) {
        return DPQ_RAISE(DPQ_E_BUG, "tensor %.200s: rows [%lld, %lld) of %lld", entry->name, (long long)begin,
                         (long long)end, entry->rank < 1 ? 0LL : (long long)entry->dim[0]);
    }
    if (begin == end) {
        return DPQ_OK;
    }
    uint64_t row_bytes = entry->bytes / (uint64_t)entry->dim[0];
    return read_bytes(store, entry, (uint64_t)begin * row_bytes, (uint64_t)(end - begin) * row_bytes, dst);
}
