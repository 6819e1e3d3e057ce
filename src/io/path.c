/* SPDX-License-Identifier: Apache-2.0 */
/* Paths and folders: existence, canonical names, sorted listings, removal that follows no link, durable renames. */
#include "dpquant/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "dpquant/alloc.h"

/* One descriptor is held for each level while a tree is removed. */
#define REMOVE_MAX_DEPTH 64

bool dpq_path_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0; /* a dangling link occupies the name too */
}

bool dpq_path_is_dir(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* realpath's result moved to memory that dpq_free releases. */
static dpq_status adopt_realpath(char *resolved, char **out)
{
    dpq_status st = dpq_str_dup(resolved, out);
    free(resolved);
    return st;
}

dpq_status dpq_path_canonical(const char *path, char **out)
{
    dpq_status st = DPQ_OK;
    char *trimmed = NULL;
    char *folder = NULL;
    char *parent = NULL;
    *out = NULL;
    char *resolved = realpath(path, NULL);
    if (resolved != NULL) {
        return adopt_realpath(resolved, out);
    }
    if (errno != ENOENT) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: cannot resolve: %s", path, strerror(errno));
    }
    DPQ_TRY_GOTO(st, dpq_str_dup(path, &trimmed), done);
    for (size_t n = strlen(trimmed); n > 1 && trimmed[n - 1] == '/'; n--) {
        trimmed[n - 1] = '\0';
    }
    const char *slash = strrchr(trimmed, '/');
    const char *base = slash != NULL ? slash + 1 : trimmed;
    if (base[0] == '\0' || strcmp(base, ".") == 0 || strcmp(base, "..") == 0) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: does not exist and names no new file or folder", path);
        goto done;
    }
    if (dpq_path_exists(trimmed)) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: symbolic link to something that does not exist", trimmed);
        goto done;
    }
    DPQ_TRY_GOTO(st, dpq_path_dirname(trimmed, &folder), done);
    resolved = realpath(folder, NULL);
    if (resolved == NULL) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: its folder %s cannot be resolved: %s", path, folder, strerror(errno));
        goto done;
    }
    DPQ_TRY_GOTO(st, adopt_realpath(resolved, &parent), done);
    DPQ_TRY_GOTO(st, dpq_path_join(parent, base, out), done);
done:
    dpq_free(trimmed);
    dpq_free(folder);
    dpq_free(parent);
    return st;
}

dpq_status dpq_dir_create(const char *path)
{
    if (mkdir(path, 0777) != 0) {
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot create folder: %s", path, strerror(errno));
    }
    return DPQ_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_dot_name(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

dpq_status dpq_dir_list(const char *path, dpq_str_list *names)
{
    dpq_status st = DPQ_OK;
    DIR *dir = opendir(path);
    if (dir == NULL) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: cannot open folder: %s", path, strerror(errno));
    }
    for (;;) {
        errno = 0;
        const struct dirent *item = readdir(dir);
        if (item == NULL) {
            break;
        }
        if (!is_dot_name(item->d_name)) {
            DPQ_TRY_GOTO(st, dpq_str_list_append(names, item->d_name), done);
        }
    }
    if (errno != 0) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: cannot read folder: %s", path, strerror(errno));
        goto done;
    }
    if (names->count > 1) {
        qsort(names->items, names->count, sizeof names->items[0], compare_names);
    }
done:
    closedir(dir);
    return st;
}

static dpq_status remove_at(int parent, const char *name, const char *path, int depth);

/* Empty the folder open as DIR (whose path is only for messages). */
static dpq_status remove_content(DIR *dir, const char *path, int depth)
{
    for (;;) {
        errno = 0;
        const struct dirent *item = readdir(dir);
        if (item == NULL) {
            break;
        }
        if (!is_dot_name(item->d_name)) {
            char *child = NULL;
            DPQ_TRY(dpq_path_join(path, item->d_name, &child));
            dpq_status st = remove_at(dirfd(dir), item->d_name, child, depth + 1);
            dpq_free(child);
            DPQ_TRY(st);
        }
    }
    if (errno != 0) {
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot read folder: %s", path, strerror(errno));
    }
    return DPQ_OK;
}

/* Relative to an open parent and without following links, so that nothing outside the tree can be reached. */
static dpq_status remove_at(int parent, const char *name, const char *path, int depth)
{
    struct stat info;
    if (fstatat(parent, name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot stat: %s", path, strerror(errno));
    }
    if (!S_ISDIR(info.st_mode)) {
        if (depth == 0) {
            return DPQ_RAISE(DPQ_E_DISK, "%s: cannot remove: not a folder", path);
        }
        if (unlinkat(parent, name, 0) != 0) {
            return DPQ_RAISE(DPQ_E_DISK, "%s: cannot remove: %s", path, strerror(errno));
        }
        return DPQ_OK;
    }
    if (depth > REMOVE_MAX_DEPTH) {
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot remove: more than %d folders deep", path, REMOVE_MAX_DEPTH);
    }
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        int e = errno;
        dpq_file_close_quiet(fd);
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot open folder: %s", path, strerror(e));
    }
    dpq_status st = remove_content(dir, path, depth);
    closedir(dir);
    DPQ_TRY(st);
    if (unlinkat(parent, name, AT_REMOVEDIR) != 0) {
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot remove: %s", path, strerror(errno));
    }
    return DPQ_OK;
}

dpq_status dpq_dir_remove(const char *path)
{
    return remove_at(AT_FDCWD, path, path, 0);
}

dpq_status dpq_dir_create_parents(const char *path)
{
    char *folder = NULL;
    dpq_status st = DPQ_OK;
    DPQ_TRY(dpq_path_dirname(path, &folder));
    if (!dpq_path_is_dir(folder)) {
        DPQ_TRY_GOTO(st, dpq_dir_create_parents(folder), done);
        st = dpq_dir_create(folder);
    }
done:
    dpq_free(folder);
    return st;
}

dpq_status dpq_dir_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot open folder: %s", path, strerror(errno));
    }
    int e = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    if (e != 0 && e != EINVAL) { /* EINVAL: this file system has no sync of folders */
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot sync folder to disk: %s", path, strerror(e));
    }
    return DPQ_OK;
}

dpq_status dpq_file_remove(const char *path)
{
    if (unlink(path) != 0) {
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot remove: %s", path, strerror(errno));
    }
    return DPQ_OK;
}

dpq_status dpq_path_rename(const char *from, const char *to)
{
    if (rename(from, to) != 0) {
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot rename to %s: %s", from, to, strerror(errno));
    }
    return DPQ_OK;
}

dpq_status dpq_disk_free_bytes(const char *path, uint64_t *bytes)
{
    struct statvfs info;
    *bytes = 0;
    if (statvfs(path, &info) != 0) {
        return DPQ_RAISE(DPQ_E_DISK, "%s: cannot ask for free space: %s", path, strerror(errno));
    }
    if (__builtin_mul_overflow((uint64_t)info.f_bavail, (uint64_t)info.f_frsize, bytes)) {
        *bytes = UINT64_MAX;
    }
    return DPQ_OK;
}
