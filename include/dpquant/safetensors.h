/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors: validated headers, an index over shards, positioned reads of tensors (safetensors.c); a writer whose
 * whole layout is known before the first byte, so that tensors can be written in any order (safetensors_write.c). */
#ifndef DPQUANT_SAFETENSORS_H
#define DPQUANT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "dpquant/status.h"
#include "dpquant/tensor.h"

typedef struct {
    char *name;
    dpq_dtype dtype;
    int rank;
    int64_t dim[DPQ_TENSOR_MAX_RANK];
    int shard;       /* index into the store's shard names */
    uint64_t offset; /* of the first byte in the shard file */
    uint64_t bytes;
} dpq_st_entry;

typedef struct dpq_st_store dpq_st_store;

/* Open a model folder: model.safetensors.index.json when there is one, else model.safetensors, else the single
 * *.safetensors (several without index: error). pytorch_model*.bin only: refused by name. Every header check of the
 * format is made (docs/FORMATS.md), each with its own message naming file and tensor: header length, UTF-8/JSON,
 * duplicate names, dtype, shape product, holes, overlap, trailing bytes, index names that are no plain file name,
 * tensors missing from or doubled over shards. Files stay open. Collective: no.  Errors: DPQ_E_INPUT, DPQ_E_MEMORY. */
DPQ_MUST_USE dpq_status dpq_st_open(const char *dir, dpq_st_store **out);
void dpq_st_close(dpq_st_store **store);

size_t dpq_st_count(const dpq_st_store *store);
const dpq_st_entry *dpq_st_at(const dpq_st_store *store, size_t index);       /* sorted by name */
const dpq_st_entry *dpq_st_find(const dpq_st_store *store, const char *name); /* NULL when absent */
size_t dpq_st_shard_count(const dpq_st_store *store);
const char *dpq_st_shard_name(const dpq_st_store *store, int shard);
/* SHA-256 over all shard headers and sizes (not the data): the model's identity in a report. */
const char *dpq_st_digest(const dpq_st_store *store);

/* Read the whole tensor (entry->bytes) into DST. Thread safe. Errors: DPQ_E_INPUT with file and tensor. */
DPQ_MUST_USE dpq_status dpq_st_read(const dpq_st_store *store, const dpq_st_entry *entry, void *dst);
/* Rows [begin, end) of a tensor of rank >= 1. */
DPQ_MUST_USE dpq_status dpq_st_read_rows(const dpq_st_store *store, const dpq_st_entry *entry, int64_t begin,
                                         int64_t end, void *dst);

/* ---- writing ---- */
typedef struct dpq_st_writer dpq_st_writer;

/* One tensor to be written; names are copied. */
typedef struct {
    const char *name;
    dpq_dtype dtype;
    int rank;
    int64_t dim[DPQ_TENSOR_MAX_RANK];
} dpq_st_decl;

/* Lay out N tensors over shards of at most SHARD_BYTES of data each (at least one tensor a shard), in the given order
 * over the shards; inside a shard sorted by element size (largest first), then name. One shard: model.safetensors
 * without index; several: model-%05d-of-%05d.safetensors and model.safetensors.index.json. Creates the files in DIR
 * (which exists), writes headers, reserves the data. The layout is a pure function of the declarations.  Errors:
 * DPQ_E_DISK; DPQ_E_BUG for repeated names. */
DPQ_MUST_USE dpq_status dpq_st_writer_create(const char *dir, const dpq_st_decl *decls, size_t n, uint64_t shard_bytes,
                                             dpq_st_writer **out);
/* Total bytes of the files that would be written (headers included), without creating anything. */
DPQ_MUST_USE dpq_status dpq_st_layout_bytes(const dpq_st_decl *decls, size_t n, uint64_t shard_bytes, uint64_t *bytes,
                                            int *shards);
/* Write one declared tensor; BYTES must equal the declared size; each tensor once. Errors: DPQ_E_BUG (unknown, twice,
 * size), DPQ_E_DISK. */
DPQ_MUST_USE dpq_status dpq_st_writer_put(dpq_st_writer *w, const char *name, const void *data, size_t bytes);
/* Check that every tensor was put, sync and close all files, write the index. Destroys the writer (on error too). */
DPQ_MUST_USE dpq_status dpq_st_writer_finish(dpq_st_writer **w);
void dpq_st_writer_abandon(dpq_st_writer **w);

#endif
