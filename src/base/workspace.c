/* SPDX-License-Identifier: Apache-2.0 */
/* Stack-like temporary memory. Chunks below and at the current one hold live data; those above it are spare. */
#include <string.h>

#include "dpquant/alloc.h"

#define CHUNK_MIN_BYTES ((size_t)1 << 20)
#define CHUNK_MAX_BYTES ((size_t)32 << 20)

typedef struct {
    char *memory;
    size_t bytes;
    size_t used; /* multiple of DPQ_ALIGNMENT_BYTES */
} chunk;

struct dpq_workspace {
    chunk *chunks;
    size_t n_chunks;
    size_t capacity;
    size_t current; /* chunk that serves the next request */
};

dpq_status dpq_workspace_create(dpq_workspace **out)
{
    *out = NULL;
    void *memory = NULL;
    DPQ_TRY(dpq_alloc(sizeof(dpq_workspace), &memory));
    *out = memory;
    return DPQ_OK;
}

void dpq_workspace_destroy(dpq_workspace **ws)
{
    if (!*ws) {
        return;
    }
    for (size_t i = 0; i < (*ws)->n_chunks; i++) {
        dpq_free((*ws)->chunks[i].memory);
    }
    dpq_free((*ws)->chunks);
    dpq_free(*ws);
    *ws = NULL;
}

/* Index of the first spare chunk: the current one is spare itself only when there is none at all. */
static size_t first_spare(const dpq_workspace *ws)
{
    return ws->n_chunks == 0 ? 0 : ws->current + 1;
}

static dpq_status push_chunk(dpq_workspace *ws, size_t bytes)
{
    if (ws->n_chunks == ws->capacity) {
        size_t capacity = ws->capacity ? 2 * ws->capacity : 8;
        void *chunks = NULL;
        DPQ_TRY(dpq_alloc_array((int64_t)capacity, sizeof(chunk), &chunks));
        if (ws->n_chunks) {
            memcpy(chunks, ws->chunks, ws->n_chunks * sizeof(chunk));
        }
        dpq_free(ws->chunks);
        ws->chunks = chunks;
        ws->capacity = capacity;
    }
    void *memory = NULL;
    DPQ_TRY(dpq_alloc(bytes, &memory));
    ws->chunks[ws->n_chunks++] = (chunk){.memory = memory, .bytes = bytes};
    return DPQ_OK;
}

/* Make the chunk after the current one hold at least BYTES and make it current: a spare one when one is large enough,
 * else a new one that replaces all spare ones, so that growing requests do not pile up memory. */
static dpq_status next_chunk(dpq_workspace *ws, size_t bytes)
{
    size_t spare = first_spare(ws);
    size_t total = 0;
    for (size_t i = 0; i < ws->n_chunks; i++) {
        total += ws->chunks[i].bytes;
    }
    for (size_t i = spare; i < ws->n_chunks; i++) {
        if (ws->chunks[i].bytes >= bytes) {
            chunk found = ws->chunks[i];
            ws->chunks[i] = ws->chunks[spare];
            ws->chunks[spare] = found;
            ws->chunks[spare].used = 0;
            ws->current = spare;
            return DPQ_OK;
        }
    }
    while (ws->n_chunks > spare) {
        ws->n_chunks--;
        dpq_free(ws->chunks[ws->n_chunks].memory);
    }
    size_t grow = total / 2;
    grow = grow < CHUNK_MIN_BYTES ? CHUNK_MIN_BYTES : grow > CHUNK_MAX_BYTES ? CHUNK_MAX_BYTES : grow;
    DPQ_TRY(push_chunk(ws, bytes > grow ? bytes : grow));
    ws->current = spare;
    return DPQ_OK;
}

dpq_status dpq_workspace_alloc(dpq_workspace *ws, int64_t count, size_t elem_bytes, void **out)
{
    *out = NULL;
    if (count < 0) {
        return DPQ_RAISE(DPQ_E_MEMORY, "negative element count %lld", (long long)count);
    }
    size_t bytes = 0;
    DPQ_TRY(dpq_mul_size((size_t)count, elem_bytes, &bytes));
    DPQ_TRY(dpq_add_size(bytes ? bytes : 1, DPQ_ALIGNMENT_BYTES - 1, &bytes));
    bytes -= bytes % DPQ_ALIGNMENT_BYTES;
    if (ws->n_chunks == 0 || ws->chunks[ws->current].bytes - ws->chunks[ws->current].used < bytes) {
        DPQ_TRY(next_chunk(ws, bytes));
    }
    chunk *top = &ws->chunks[ws->current];
    *out = top->memory + top->used;
    top->used += bytes;
    return DPQ_OK;
}

dpq_workspace_mark dpq_workspace_get_mark(const dpq_workspace *ws)
{
    return (dpq_workspace_mark){.chunk = ws->current, .used = ws->n_chunks ? ws->chunks[ws->current].used : 0};
}

void dpq_workspace_release(dpq_workspace *ws, dpq_workspace_mark mark)
{
    if (ws->n_chunks == 0) {
        DPQ_ASSERT(mark.chunk == 0 && mark.used == 0);
        return;
    }
    DPQ_ASSERT(mark.chunk <= ws->current && mark.used <= ws->chunks[mark.chunk].used);
    ws->current = mark.chunk;
    ws->chunks[mark.chunk].used = mark.used;
}
