/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind an unnamed file: for data that need not stay resident. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dpquant/alloc.h"
#include "dpquant/file.h"

dpq_status dpq_file_map_scratch(const char *dir, size_t bytes, void **out)
{
    const char *fallback = getenv("TMPDIR");
    const char *folder = dir != NULL ? dir : fallback != NULL && fallback[0] != '\0' ? fallback : "/tmp";
    char *path = NULL;
    int fd = -1, error = 0;
    dpq_status st = DPQ_OK;
    *out = NULL;
    if (bytes == 0) {
        return DPQ_OK;
    }
    DPQ_TRY_GOTO(st, dpq_path_join(folder, "dpquant-scratch-XXXXXX", &path), done);
    fd = mkstemp(path);
    if (fd < 0) {
        st = DPQ_RAISE(DPQ_E_DISK, "%s: cannot create a scratch file: %s", folder, strerror(errno));
        goto done;
    }
    unlink(path);
    error = posix_fallocate(fd, 0, (off_t)bytes);
    if (error != 0) {
        st = DPQ_RAISE(DPQ_E_DISK, "%s: cannot reserve %zu bytes for a scratch file: %s", folder, bytes,
                       strerror(error));
        goto done;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        st = DPQ_RAISE(DPQ_E_DISK, "%s: cannot map a scratch file of %zu bytes: %s", folder, bytes, strerror(errno));
        goto done;
    }
    *out = memory;
done:
    if (fd >= 0) {
        close(fd);
    }
    dpq_free(path);
    return st;
}

void dpq_file_unmap_scratch(void *memory, size_t bytes)
{
    if (memory != NULL) {
        munmap(memory, bytes);
    }
}
