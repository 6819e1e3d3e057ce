/* SPDX-License-Identifier: Apache-2.0 */
/* Files: positioned full reads and writes, reserved space, durable small files, copies. Folders and paths are in
 * path.c. Reading faults are DPQ_E_INPUT, writing faults DPQ_E_DISK; every message carries the path and the system's
 * own words. */
#include "dpquant/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dpquant/alloc.h"

/* Linux moves at most 0x7ffff000 bytes a call; a smaller power of two keeps every call aligned. */
#define IO_CHUNK_BYTES   ((size_t)1 << 30)
#define COPY_CHUNK_BYTES ((size_t)1 << 20)

static dpq_status check_range(dpq_status code, const char *path, size_t bytes, uint64_t offset)
{
    if (offset > (uint64_t)INT64_MAX || bytes > (uint64_t)INT64_MAX - offset) {
        return DPQ_RAISE(code, "%s: %zu bytes at offset %llu are out of the range of a file", path, bytes,
                         (unsigned long long)offset);
    }
    return DPQ_OK;
}

dpq_status dpq_file_open_read(const char *path, int *fd, uint64_t *size)
{
    *fd = -1;
    *size = 0;
    /* O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever; it has no effect on regular files. */
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f < 0) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: cannot open for reading: %s", path, strerror(errno));
    }
    struct stat info;
    if (fstat(f, &info) != 0) {
        int e = errno;
        close(f);
        return DPQ_RAISE(DPQ_E_INPUT, "%s: cannot stat: %s", path, strerror(e));
    }
    if (!S_ISREG(info.st_mode)) {
        close(f);
        return DPQ_RAISE(DPQ_E_INPUT, "%s: not a regular file", path);
    }
    *fd = f;
    *size = (uint64_t)info.st_size;
    return DPQ_OK;
}

dpq_status dpq_file_pread(int fd, const char *path, void *dst, size_t bytes, uint64_t offset)
{
    DPQ_TRY(check_range(DPQ_E_INPUT, path, bytes, offset));
    char *at = dst;
    size_t left = bytes;
    while (left > 0) {
        ssize_t got = pread(fd, at, left < IO_CHUNK_BYTES ? left : IO_CHUNK_BYTES, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: reading %zu bytes at offset %llu: %s", path, left,
                             (unsigned long long)offset, strerror(errno));
        }
        if (got == 0) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: file ends at offset %llu, %zu bytes early", path,
                             (unsigned long long)offset, left);
        }
        at += got;
        left -= (size_t)got;
        offset += (uint64_t)got;
    }
    return DPQ_OK;
}

dpq_status dpq_file_read_all(const char *path, size_t max_bytes, char **bytes, size_t *size)
{
    dpq_status st = DPQ_OK;
    int fd = -1;
    uint64_t file_bytes = 0;
    void *memory = NULL;
    *bytes = NULL;
    *size = 0;
    DPQ_TRY_GOTO(st, dpq_file_open_read(path, &fd, &file_bytes), done);
    if (file_bytes > max_bytes || file_bytes >= SIZE_MAX) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: %llu bytes, expected at most %zu", path, (unsigned long long)file_bytes,
                       max_bytes);
        goto done;
    }
    DPQ_TRY_GOTO(st, dpq_alloc((size_t)file_bytes + 1, &memory), done);
    DPQ_TRY_GOTO(st, dpq_file_pread(fd, path, memory, (size_t)file_bytes, 0), done);
    ((char *)memory)[file_bytes] = '\0';
    *bytes = memory;
    *size = (size_t)file_bytes;
    memory = NULL;
done:
    dpq_free(memory);
    dpq_file_close_quiet(fd);
    return st;
}

/* Reserve BYTES so that a full disk or quota shows now. fallocate and not posix_fallocate: where the file system cannot
 * reserve, the C library would emulate it by writing every block, which is slow on network storage. */
static int reserve(int fd, uint64_t bytes)
{
    int rc;
    if (bytes == 0) {
        return 0;
    }
    if (bytes > (uint64_t)INT64_MAX) {
        return EFBIG;
    }
    do {
        rc = fallocate(fd, 0, 0, (off_t)bytes);
    } while (rc != 0 && errno == EINTR);
    if (rc != 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)) {
        rc = ftruncate(fd, (off_t)bytes);
    }
    return rc == 0 ? 0 : errno;
}

dpq_status dpq_file_create(const char *path, uint64_t bytes, int *fd)
{
    *fd = -1;
    /* Mode 0666 under the umask: other users of a shared model folder keep the access the umask grants. */
    int f = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f < 0) {
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot create: %s", path, strerror(errno));
    }
    int e = reserve(f, bytes);
    if (e != 0) {
        close(f);
        unlink(path);
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot reserve %llu bytes: %s", path, (unsigned long long)bytes, strerror(e));
    }
    *fd = f;
    return DPQ_OK;
}

dpq_status dpq_file_pwrite(int fd, const char *path, const void *src, size_t bytes, uint64_t offset)
{
    DPQ_TRY(check_range(DPQ_E_DISK, path, bytes, offset));
    const char *at = src;
    size_t left = bytes;
    while (left > 0) {
        ssize_t put = pwrite(fd, at, left < IO_CHUNK_BYTES ? left : IO_CHUNK_BYTES, (off_t)offset);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return DPQ_RAISE(DPQ_E_DISK, "%s: writing %zu bytes at offset %llu: %s", path, left,
                             (unsigned long long)offset, put < 0 ? strerror(errno) : "nothing was written");
        }
        at += put;
        left -= (size_t)put;
        offset += (uint64_t)put;
    }
    return DPQ_OK;
}

dpq_status dpq_file_sync_close(int fd, const char *path)
{
    /* Not retried: the kernel reports a write-back error once, a second fsync could succeed over lost data. */
    int sync_error = fsync(fd) == 0 ? 0 : errno;
    /* After EINTR the descriptor is gone on Linux; the data is already synced. */
    int close_error = close(fd) == 0 || errno == EINTR ? 0 : errno;
    if (sync_error != 0) {
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot sync to disk: %s", path, strerror(sync_error));
    }
    if (close_error != 0) {
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot close: %s", path, strerror(close_error));
    }
    return DPQ_OK;
}

void dpq_file_close_quiet(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

dpq_status dpq_file_write_text(const char *path, const char *text, size_t size)
{
    dpq_status st = DPQ_OK;
    char *temporary = NULL;
    char *folder = NULL;
    int fd = -1;
    bool created = false;
    DPQ_TRY_GOTO(st, dpq_str_format(&temporary, "%s.tmp", path), done);
    DPQ_TRY_GOTO(st, dpq_path_dirname(path, &folder), done);
    if (unlink(temporary) != 0 && errno != ENOENT) { /* left behind by a killed run */
        st = DPQ_RAISE(DPQ_E_DISK, "%s: cannot remove: %s", temporary, strerror(errno));
        goto done;
    }
    DPQ_TRY_GOTO(st, dpq_file_create(temporary, size, &fd), done);
    created = true;
    DPQ_TRY_GOTO(st, dpq_file_pwrite(fd, temporary, text, size, 0), done);
    int synced = fd;
    fd = -1;
    DPQ_TRY_GOTO(st, dpq_file_sync_close(synced, temporary), done);
    DPQ_TRY_GOTO(st, dpq_path_rename(temporary, path), done);
    created = false;
    DPQ_TRY_GOTO(st, dpq_dir_sync(folder), done);
done:
    dpq_file_close_quiet(fd);
    if (created) {
        unlink(temporary);
    }
    dpq_free(temporary);
    dpq_free(folder);
    return st;
}

dpq_status dpq_file_copy(const char *src, const char *dst)
{
    dpq_status st = DPQ_OK;
    int in = -1;
    int out = -1;
    uint64_t size = 0;
    void *chunk = NULL;
    bool created = false;
    DPQ_TRY_GOTO(st, dpq_file_open_read(src, &in, &size), done);
    DPQ_TRY_GOTO(st, dpq_alloc(COPY_CHUNK_BYTES, &chunk), done);
    DPQ_TRY_GOTO(st, dpq_file_create(dst, size, &out), done);
    created = true;
    for (uint64_t at = 0; at < size; at += COPY_CHUNK_BYTES) {
        size_t n = size - at < COPY_CHUNK_BYTES ? (size_t)(size - at) : COPY_CHUNK_BYTES;
        DPQ_TRY_GOTO(st, dpq_file_pread(in, src, chunk, n, at), done);
        DPQ_TRY_GOTO(st, dpq_file_pwrite(out, dst, chunk, n, at), done);
    }
    int synced = out;
    out = -1;
    DPQ_TRY_GOTO(st, dpq_file_sync_close(synced, dst), done);
    created = false;
done:
    dpq_file_close_quiet(in);
    dpq_file_close_quiet(out);
    if (created) {
        unlink(dst);
    }
    dpq_free(chunk);
    return st;
}
