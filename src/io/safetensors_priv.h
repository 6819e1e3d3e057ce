/* SPDX-License-Identifier: Apache-2.0 */
/* Header of one safetensors file, shared by the store over shards and by the writer's check of what it wrote. */
#ifndef DPQUANT_SAFETENSORS_PRIV_H
#define DPQUANT_SAFETENSORS_PRIV_H

#include "dpquant/file.h"
#include "dpquant/safetensors.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is little-endian and is used as it lies in the file"
#endif

#define DPQ_ST_HEADER_MAX_BYTES 100000000u
#define DPQ_ST_LENGTH_BYTES     8u
#define DPQ_ST_SINGLE_NAME      "model.safetensors"
#define DPQ_ST_INDEX_NAME       "model.safetensors.index.json"
#define DPQ_ST_SUFFIX           ".safetensors"
#define DPQ_ST_METADATA         "__metadata__"

/* The entries of one file, sorted by offset; names are owned by the list. */
typedef struct {
    dpq_st_entry *items;
    size_t count;
} dpq_st_list;

/* Read and check the header of the open file FD of FILE_BYTES bytes; every entry gets SHARD. The header's bytes are
 * added to DIGEST when it is not NULL. Errors: DPQ_E_INPUT, one text for each check. */
DPQ_MUST_USE dpq_status dpq_st_header_read(int fd, const char *path, uint64_t file_bytes, int shard, dpq_sha256 *digest,
                                           dpq_st_list *out);
void dpq_st_list_fini(dpq_st_list *list);

#endif
