/* SPDX-License-Identifier: Apache-2.0 */
/* Writing safetensors. The layout (shards, headers, offsets) is a pure function of the declarations and complete before
 * the first file is created, so tensors may arrive in any order and the needed space is known beforehand. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dpquant/alloc.h"
#include "dpquant/json.h"
#include "dpquant/str.h"
#include "json_priv.h"
#include "safetensors_priv.h"

typedef struct {
    char *name;
    dpq_dtype dtype;
    int rank;
    int64_t dim[DPQ_TENSOR_MAX_RANK];
    int shard;
    uint64_t bytes;
    uint64_t begin; /* in the data buffer of its shard */
    bool written;
} slot;

typedef struct {
    char *name;
    uint64_t data_bytes;
    dpq_text header; /* padded with blanks: 8 + its length is a multiple of 8 */
    size_t tensors;
} shard_plan;

typedef struct {
    slot *slots; /* sorted by name */
    size_t count;
    shard_plan *shards;
    int shard_count;
    uint64_t data_bytes; /* of all shards */
} layout;

struct dpq_st_writer {
    char *dir;
    layout plan;
    char **paths; /* one a shard; NULL while the file is not created */
    int *fds;     /* -1 when closed */
};

static void layout_fini(layout *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        dpq_free(plan->slots[i].name);
    }
    for (int i = 0; i < plan->shard_count; i++) {
        dpq_free(plan->shards[i].name);
        dpq_text_fini(&plan->shards[i].header);
    }
    dpq_free(plan->slots);
    dpq_free(plan->shards);
    memset(plan, 0, sizeof *plan);
}

/* ---- layout ---- */

static dpq_status check_name(const char *name)
{
    char text[200];
    bool is_bad = name == NULL || name[0] == '\0' || strcmp(name, DPQ_ST_METADATA) == 0;
    for (const char *c = name; !is_bad && *c != '\0'; c++) {
        is_bad = (unsigned char)*c < 0x20 || *c == 0x7f;
    }
    if (is_bad) {
        return DPQ_RAISE(DPQ_E_BUG, "tensor name \"%s\" cannot be written",
                         name == NULL ? "(null)" : dpq_json_printable(name, text, sizeof text));
    }
    return DPQ_OK;
}

static dpq_status fill_slot(const dpq_st_decl *decl, slot *s)
{
    DPQ_TRY(check_name(decl->name));
    if (decl->rank < 0 || decl->rank > DPQ_TENSOR_MAX_RANK || (unsigned)decl->dtype >= DPQ_DTYPE_COUNT) {
        return DPQ_RAISE(DPQ_E_BUG, "tensor %.200s: rank %d, dtype number %d", decl->name, decl->rank,
                         (int)decl->dtype);
    }
    s->dtype = decl->dtype;
    s->rank = decl->rank;
    s->bytes = dpq_dtype_bytes(decl->dtype);
    for (int i = 0; i < decl->rank; i++) {
        s->dim[i] = decl->dim[i];
        if (decl->dim[i] < 0 || __builtin_mul_overflow(s->bytes, (uint64_t)decl->dim[i], &s->bytes)) {
            return DPQ_RAISE(DPQ_E_BUG, "tensor %.200s: dimension %d is %lld: negative, or the size overflows",
                             decl->name, i, (long long)decl->dim[i]);
        }
    }
    return dpq_str_dup(decl->name, &s->name);
}

/* Slots and their shards: a new shard begins where the next tensor would exceed the limit. */
static dpq_status assign_shards(layout *plan, const dpq_st_decl *decls, size_t n, uint64_t shard_bytes)
{
    void *memory = NULL;
    uint64_t filled = 0;
    size_t in_shard = 0;
    DPQ_TRY(dpq_alloc_array((int64_t)n, sizeof *plan->slots, &memory));
    plan->slots = memory;
    int shard = 0;
    for (size_t i = 0; i < n; i++) {
        slot *s = plan->slots + i;
        DPQ_TRY(fill_slot(decls + i, s));
        plan->count++;
        if (__builtin_add_overflow(plan->data_bytes, s->bytes, &plan->data_bytes) ||
            plan->data_bytes > (uint64_t)INT64_MAX) {
            return DPQ_RAISE(DPQ_E_BUG, "tensor %.200s: the sizes of all tensors overflow 63 bits", s->name);
        }
        bool fits = s->bytes == 0 || (filled <= shard_bytes && s->bytes <= shard_bytes - filled);
        if (in_shard > 0 && !fits) {
            shard++;
            filled = 0;
            in_shard = 0;
        }
        s->shard = shard;
        filled += s->bytes;
        in_shard++;
    }
    DPQ_TRY(dpq_alloc_array(shard + 1, sizeof *plan->shards, &memory));
    plan->shards = memory;
    plan->shard_count = shard + 1;
    for (int i = 0; i < plan->shard_count; i++) {
        if (plan->shard_count == 1) {
            DPQ_TRY(dpq_str_dup(DPQ_ST_SINGLE_NAME, &plan->shards[i].name));
        } else {
            DPQ_TRY(
                dpq_str_format(&plan->shards[i].name, "model-%05d-of-%05d" DPQ_ST_SUFFIX, i + 1, plan->shard_count));
        }
    }
    return DPQ_OK;
}

/* Inside a shard the largest element size first, so that every tensor is aligned to its own elements. */
static int compare_in_file(const void *a, const void *b)
{
    const slot *x = a;
    const slot *y = b;
    size_t x_size = dpq_dtype_bytes(x->dtype);
    size_t y_size = dpq_dtype_bytes(y->dtype);
    if (x->shard != y->shard) {
        return x->shard < y->shard ? -1 : 1;
    }
    if (x_size != y_size) {
        return x_size > y_size ? -1 : 1;
    }
    return strcmp(x->name, y->name);
}

static int compare_by_name(const void *a, const void *b)
{
    return strcmp(((const slot *)a)->name, ((const slot *)b)->name);
}

static dpq_status append_entry(dpq_text *header, const slot *s)
{
    DPQ_TRY(dpq_text_append_bytes(header, ",", 1));
    DPQ_TRY(dpq_json_append_quoted(header, s->name));
    DPQ_TRY(dpq_text_append(header, ":{\"dtype\":\"%s\",\"shape\":[", dpq_dtype_name(s->dtype)));
    for (int i = 0; i < s->rank; i++) {
        DPQ_TRY(dpq_text_append(header, "%s%lld", i > 0 ? "," : "", (long long)s->dim[i]));
    }
    return dpq_text_append(header, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)s->begin,
                           (unsigned long long)(s->begin + s->bytes));
}

static dpq_status check_header_size(const shard_plan *shard)
{
    if (shard->header.length > DPQ_ST_HEADER_MAX_BYTES) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED,
                         "%s: the header would exceed %u bytes, the most a safetensors reader accepts; use smaller "
                         "shards",
                         shard->name, DPQ_ST_HEADER_MAX_BYTES);
    }
    return DPQ_OK;
}

/* Offsets and header texts of slots in file order. */
static dpq_status compose_headers(layout *plan)
{
    for (int i = 0; i < plan->shard_count; i++) {
        DPQ_TRY(dpq_text_append(&plan->shards[i].header, "{\"" DPQ_ST_METADATA "\":{\"format\":\"pt\"}"));
    }
    for (size_t i = 0; i < plan->count; i++) {
        slot *s = plan->slots + i;
        shard_plan *shard = plan->shards + s->shard;
        s->begin = shard->data_bytes;
        shard->data_bytes += s->bytes;
        shard->tensors++;
        DPQ_TRY(append_entry(&shard->header, s));
        DPQ_TRY(check_header_size(shard));
    }
    for (int i = 0; i < plan->shard_count; i++) {
        dpq_text *header = &plan->shards[i].header;
        DPQ_TRY(dpq_text_append_bytes(header, "}", 1));
        size_t padding = (8 - header->length % 8) % 8; /* the length field itself has 8 bytes */
        DPQ_TRY(dpq_text_append_bytes(header, "        ", padding));
        DPQ_TRY(check_header_size(plan->shards + i));
    }
    return DPQ_OK;
}

static dpq_status layout_init(layout *plan, const dpq_st_decl *decls, size_t n, uint64_t shard_bytes)
{
    memset(plan, 0, sizeof *plan);
    DPQ_TRY(assign_shards(plan, decls, n, shard_bytes));
    if (plan->count > 1) {
        qsort(plan->slots, plan->count, sizeof *plan->slots, compare_in_file);
    }
    DPQ_TRY(compose_headers(plan));
    if (plan->count > 1) {
        qsort(plan->slots, plan->count, sizeof *plan->slots, compare_by_name);
    }
    for (size_t i = 1; i < plan->count; i++) {
        if (strcmp(plan->slots[i - 1].name, plan->slots[i].name) == 0) {
            return DPQ_RAISE(DPQ_E_BUG, "tensor %.200s is declared twice", plan->slots[i].name);
        }
    }
    return DPQ_OK;
}

static dpq_status compose_index(const layout *plan, char **text, size_t *size)
{
    dpq_json_writer *w = NULL;
    DPQ_TRY(dpq_json_writer_create(&w));
    dpq_json_begin_object(w, NULL);
    dpq_json_begin_object(w, "metadata");
    dpq_json_put_int(w, "total_size", (int64_t)plan->data_bytes);
    dpq_json_end(w);
    dpq_json_begin_object(w, "weight_map");
    for (size_t i = 0; i < plan->count; i++) {
        dpq_json_put_string(w, plan->slots[i].name, plan->shards[plan->slots[i].shard].name);
    }
    dpq_json_end(w);
    dpq_json_end(w);
    return dpq_json_writer_finish(&w, text, size);
}

static uint64_t shard_file_bytes(const shard_plan *shard)
{
    return DPQ_ST_LENGTH_BYTES + shard->header.length + shard->data_bytes;
}

dpq_status dpq_st_layout_bytes(const dpq_st_decl *decls, size_t n, uint64_t shard_bytes, uint64_t *bytes, int *shards)
{
    dpq_status st = DPQ_OK;
    layout plan;
    char *index = NULL;
    size_t index_bytes = 0;
    *bytes = 0;
    *shards = 0;
    DPQ_TRY_GOTO(st, layout_init(&plan, decls, n, shard_bytes), done);
    if (plan.shard_count > 1) {
        DPQ_TRY_GOTO(st, compose_index(&plan, &index, &index_bytes), done);
    }
    *bytes = index_bytes;
    for (int i = 0; i < plan.shard_count; i++) {
        *bytes += shard_file_bytes(plan.shards + i);
    }
    *shards = plan.shard_count;
done:
    dpq_free(index);
    layout_fini(&plan);
    return st;
}

/* ---- files ---- */

void dpq_st_writer_abandon(dpq_st_writer **w)
{
    if (w == NULL || *w == NULL) {
        return;
    }
    dpq_st_writer *writer = *w;
    for (int i = 0; i < writer->plan.shard_count; i++) {
        if (writer->fds != NULL) {
            dpq_file_close_quiet(writer->fds[i]);
        }
        if (writer->paths != NULL && writer->paths[i] != NULL) {
            unlink(writer->paths[i]); /* reserved but incomplete files look like a model */
            dpq_free(writer->paths[i]);
        }
    }
    dpq_free(writer->paths);
    dpq_free(writer->fds);
    dpq_free(writer->dir);
    layout_fini(&writer->plan);
    dpq_free(writer);
    *w = NULL;
}

static dpq_status create_shard(dpq_st_writer *w, int i)
{
    const shard_plan *shard = w->plan.shards + i;
    unsigned char length[DPQ_ST_LENGTH_BYTES];
    char *path = NULL;
    DPQ_TRY(dpq_path_join(w->dir, shard->name, &path));
    dpq_status st = dpq_file_create(path, shard_file_bytes(shard), &w->fds[i]);
    if (st != DPQ_OK) {
        dpq_free(path);
        return st;
    }
    w->paths[i] = path;
    for (size_t b = 0; b < sizeof length; b++) {
        length[b] = (unsigned char)((uint64_t)shard->header.length >> (8 * b));
    }
    DPQ_TRY(dpq_file_pwrite(w->fds[i], path, length, sizeof length, 0));
    return dpq_file_pwrite(w->fds[i], path, shard->header.text, shard->header.length, sizeof length);
}

dpq_status dpq_st_writer_create(const char *dir, const dpq_st_decl *decls, size_t n, uint64_t shard_bytes,
                                dpq_st_writer **out)
{
    dpq_status st = DPQ_OK;
    dpq_st_writer *w = NULL;
    void *memory = NULL;
    *out = NULL;
    DPQ_TRY_GOTO(st, dpq_alloc(sizeof *w, &memory), done);
    w = memory;
    DPQ_TRY_GOTO(st, dpq_str_dup(dir, &w->dir), done);
    DPQ_TRY_GOTO(st, layout_init(&w->plan, decls, n, shard_bytes), done);
    DPQ_TRY_GOTO(st, dpq_alloc_array(w->plan.shard_count, sizeof *w->fds, &memory), done);
    w->fds = memory;
    for (int i = 0; i < w->plan.shard_count; i++) {
        w->fds[i] = -1;
    }
    DPQ_TRY_GOTO(st, dpq_alloc_array(w->plan.shard_count, sizeof *w->paths, &memory), done);
    w->paths = memory;
    for (int i = 0; i < w->plan.shard_count; i++) {
        DPQ_TRY_GOTO(st, create_shard(w, i), done);
    }
    *out = w;
    w = NULL;
done:
    dpq_st_writer_abandon(&w);
    return st;
}

static int compare_name_to_slot(const void *name, const void *item)
{
    return strcmp(name, ((const slot *)item)->name);
}

dpq_status dpq_st_writer_put(dpq_st_writer *w, const char *name, const void *data, size_t bytes)
{
    slot *s = w->plan.count == 0
                  ? NULL
                  : bsearch(name, w->plan.slots, w->plan.count, sizeof *w->plan.slots, compare_name_to_slot);
    if (s == NULL) {
        return DPQ_RAISE(DPQ_E_BUG, "tensor %.200s was not declared", name);
    }
    if (s->written) {
        return DPQ_RAISE(DPQ_E_BUG, "tensor %.200s is written twice", name);
    }
    if (bytes != s->bytes) {
        return DPQ_RAISE(DPQ_E_BUG, "tensor %.200s: %zu bytes given, %llu declared", name, bytes,
                         (unsigned long long)s->bytes);
    }
    uint64_t data_begin = DPQ_ST_LENGTH_BYTES + w->plan.shards[s->shard].header.length;
    DPQ_TRY(dpq_file_pwrite(w->fds[s->shard], w->paths[s->shard], data, bytes, data_begin + s->begin));
    s->written = true;
    return DPQ_OK;
}

/* Sync, close, then read the header back with the reader's own checks: a short or changed file shows here. */
static dpq_status close_shard(dpq_st_writer *w, int i)
{
    dpq_st_list list = {0};
    uint64_t size = 0;
    int fd = w->fds[i];
    w->fds[i] = -1;
    DPQ_TRY(dpq_file_sync_close(fd, w->paths[i]));
    DPQ_TRY(dpq_file_open_read(w->paths[i], &fd, &size));
    dpq_status st = dpq_st_header_read(fd, w->paths[i], size, i, NULL, &list);
    if (st == DPQ_OK && (list.count != w->plan.shards[i].tensors || size != shard_file_bytes(w->plan.shards + i))) {
        st = DPQ_RAISE(DPQ_E_DISK, "%s: read back %zu tensors and %llu bytes, wrote %zu and %llu", w->paths[i],
                       list.count, (unsigned long long)size, w->plan.shards[i].tensors,
                       (unsigned long long)shard_file_bytes(w->plan.shards + i));
    }
    dpq_st_list_fini(&list);
    dpq_file_close_quiet(fd);
    return st;
}

dpq_status dpq_st_writer_finish(dpq_st_writer **w)
{
    dpq_status st = DPQ_OK;
    dpq_st_writer *writer = *w;
    char *index_path = NULL;
    char *index = NULL;
    size_t index_bytes = 0;
    for (size_t i = 0; i < writer->plan.count; i++) {
        if (!writer->plan.slots[i].written) {
            st = DPQ_RAISE(DPQ_E_BUG, "tensor %.200s was declared but not written", writer->plan.slots[i].name);
            goto done;
        }
    }
    for (int i = 0; i < writer->plan.shard_count; i++) {
        DPQ_TRY_GOTO(st, close_shard(writer, i), done);
    }
    if (writer->plan.shard_count > 1) {
        DPQ_TRY_GOTO(st, compose_index(&writer->plan, &index, &index_bytes), done);
        DPQ_TRY_GOTO(st, dpq_path_join(writer->dir, DPQ_ST_INDEX_NAME, &index_path), done);
        DPQ_TRY_GOTO(st, dpq_file_write_text(index_path, index, index_bytes), done);
    }
    DPQ_TRY_GOTO(st, dpq_dir_sync(writer->dir), done);
    for (int i = 0; i < writer->plan.shard_count; i++) {
        dpq_free(writer->paths[i]); /* complete: not removed below */
        writer->paths[i] = NULL;
    }
done:
    dpq_free(index);
    dpq_free(index_path);
    dpq_st_writer_abandon(w);
    return st;
}
