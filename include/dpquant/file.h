/* SPDX-License-Identifier: Apache-2.0 */
/* Positioned full reads and writes, whole small files, durable renames, folders, digests. */
#ifndef DPQUANT_FILE_H
#define DPQUANT_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "dpquant/status.h"
#include "dpquant/str.h"

/* Whole file of at most MAX_BYTES, NUL-terminated copy (*size without the NUL). Errors: DPQ_E_INPUT (missing, too
 * large, not a regular file), with the path. */
DPQ_MUST_USE dpq_status dpq_file_read_all(const char *path, size_t max_bytes, char **bytes, size_t *size);

/* Open for reading; follows symbolic links; must be a regular file. */
DPQ_MUST_USE dpq_status dpq_file_open_read(const char *path, int *fd, uint64_t *size);
/* Read exactly BYTES at OFFSET (short reads continued, EINTR retried). Errors: DPQ_E_INPUT when the file ends early. */
DPQ_MUST_USE dpq_status dpq_file_pread(int fd, const char *path, void *dst, size_t bytes, uint64_t offset);
/* Create for writing (mode 0666 with umask; must not exist), reserving BYTES (posix_fallocate where supported, so that
 * a full disk is found now). Errors: DPQ_E_DISK. */
DPQ_MUST_USE dpq_status dpq_file_create(const char *path, uint64_t bytes, int *fd);
DPQ_MUST_USE dpq_status dpq_file_pwrite(int fd, const char *path, const void *src, size_t bytes, uint64_t offset);
/* fsync and close; a failed fsync is never retried. */
DPQ_MUST_USE dpq_status dpq_file_sync_close(int fd, const char *path);
void dpq_file_close_quiet(int fd);
/* Write TEXT to PATH through PATH.tmp, synced, renamed. */
DPQ_MUST_USE dpq_status dpq_file_write_text(const char *path, const char *text, size_t size);
/* Remove one file. */
DPQ_MUST_USE dpq_status dpq_file_remove(const char *path);
DPQ_MUST_USE dpq_status dpq_file_copy(const char *src, const char *dst);

bool dpq_path_exists(const char *path);
bool dpq_path_is_dir(const char *path);
/* Canonical absolute path of an existing path, or of a not yet existing one whose parent exists. Heap string. */
DPQ_MUST_USE dpq_status dpq_path_canonical(const char *path, char **out);
DPQ_MUST_USE dpq_status dpq_dir_create(const char *path);
/* Create the folders above PATH that are missing. */
DPQ_MUST_USE dpq_status dpq_dir_create_parents(const char *path);
/* Names in a folder, sorted by strcmp, without "." and "..". */
DPQ_MUST_USE dpq_status dpq_dir_list(const char *path, dpq_str_list *names);
/* Remove a folder and everything below it; does not follow links. */
DPQ_MUST_USE dpq_status dpq_dir_remove(const char *path);
DPQ_MUST_USE dpq_status dpq_dir_sync(const char *path);
DPQ_MUST_USE dpq_status dpq_path_rename(const char *from, const char *to);
/* Zeroed memory behind an unnamed file in DIR (NULL: TMPDIR, else /tmp), which the system may page out. Errors:
 * DPQ_E_DISK. */
DPQ_MUST_USE dpq_status dpq_file_map_scratch(const char *dir, size_t bytes, void **out);
void dpq_file_unmap_scratch(void *memory, size_t bytes);
/* Bytes free for this user on the file system that holds PATH. */
DPQ_MUST_USE dpq_status dpq_disk_free_bytes(const char *path, uint64_t *bytes);

/* FNV-1a 64-bit style digest is not enough for identities: SHA-256, hex text of 64 digits and a NUL. */
typedef struct {
    uint32_t state[8];
    uint64_t length;
    unsigned char buffer[64];
    size_t buffered;
} dpq_sha256;
void dpq_sha256_init(dpq_sha256 *s);
void dpq_sha256_update(dpq_sha256 *s, const void *bytes, size_t n);
void dpq_sha256_hex(dpq_sha256 *s, char hex[65]);

#endif
