/* SPDX-License-Identifier: Apache-2.0 */
/* Where the output may go: OUT.partial beside OUT while it is written, one rename at the end; never over foreign files.
 */
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/file.h"
#include "output_priv.h"

#define MARKER "dpquant-partial"

/* PATH is DIR or lies below it; both canonical. */
static bool is_inside(const char *path, const char *dir)
{
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == '\0' || path[n] == '/' || (n > 0 && dir[n - 1] == '/'));
}

static dpq_status has_file(const char *dir, const char *name, bool *out)
{
    char *path;
    DPQ_TRY(dpq_path_join(dir, name, &path));
    *out = dpq_path_exists(path);
    dpq_free(path);
    return DPQ_OK;
}

/* A folder may be replaced only when dpquant wrote it. */
static dpq_status check_final(const char *path, bool overwrite)
{
    bool ours = false;
    if (!dpq_path_exists(path)) {
        return DPQ_OK;
    }
    if (dpq_path_is_dir(path)) {
        DPQ_TRY(has_file(path, DPQ_RESULT_FILE, &ours));
    }
    if (!ours) {
        return DPQ_RAISE(DPQ_E_CONFIG,
                         "output: %s exists and was not written by dpquant (it has no %s); choose another folder", path,
                         DPQ_RESULT_FILE);
    }
    if (!overwrite) {
        return DPQ_RAISE(DPQ_E_CONFIG, "output: %s exists; give --overwrite to replace it", path);
    }
    return DPQ_OK;
}

/* What an interrupted run left is removed when it carries our marker. */
static dpq_status clear_partial(const char *partial)
{
    bool ours = false;
    if (!dpq_path_exists(partial)) {
        return DPQ_OK;
    }
    DPQ_TRY(has_file(partial, MARKER, &ours));
    if (!ours) {
        return DPQ_RAISE(DPQ_E_CONFIG, "output: %s is in the way and was not written by dpquant", partial);
    }
    return dpq_dir_remove(partial);
}

static dpq_status write_marker(const char *partial)
{
    static const char text[] = "This folder is being written by dpquant; it is renamed when it is complete.\n";
    char *path;
    DPQ_TRY(dpq_path_join(partial, MARKER, &path));
    dpq_status st = dpq_file_write_text(path, text, sizeof text - 1);
    dpq_free(path);
    return st;
}

dpq_status dpq_output_check_parents(const char *output, bool *exist)
{
    char *folder = NULL;
    *exist = false;
    if (output == NULL) {
        return DPQ_RAISE(DPQ_E_CONFIG, "output: required: the folder to write (recipe key output, or --output)");
    }
    DPQ_TRY(dpq_path_dirname(output, &folder));
    *exist = dpq_path_is_dir(folder);
    dpq_free(folder);
    return DPQ_OK;
}

dpq_status dpq_output_check_place(const char *output, const char *model, bool overwrite, char **final_path)
{
    char *canonical = NULL, *source = NULL;
    dpq_status st = DPQ_OK;
    *final_path = NULL;
    DPQ_TRY_GOTO(st, dpq_path_canonical(output, &canonical), done);
    DPQ_TRY_GOTO(st, dpq_path_canonical(model, &source), done);
    if (is_inside(canonical, source) || is_inside(source, canonical)) {
        st = DPQ_RAISE(DPQ_E_CONFIG, "output: %s and the model folder %s must not be the same or lie in each other",
                       canonical, source);
        goto done;
    }
    DPQ_TRY_GOTO(st, check_final(canonical, overwrite), done);
    *final_path = canonical;
    canonical = NULL;
done:
    dpq_free(canonical);
    dpq_free(source);
    return st;
}

dpq_status dpq_output_open_place(const char *final_path, uint64_t bytes, char **partial)
{
    char *folder = NULL;
    uint64_t available = 0;
    dpq_status st = DPQ_OK;
    *partial = NULL;
    DPQ_TRY_GOTO(st, dpq_path_dirname(final_path, &folder), done);
    DPQ_TRY_GOTO(st, dpq_disk_free_bytes(folder, &available), done);
    if (available < bytes) {
        st = DPQ_RAISE(DPQ_E_DISK, "output: %s has %llu bytes free, the output needs %llu", folder,
                       (unsigned long long)available, (unsigned long long)bytes);
        goto done;
    }
    DPQ_TRY_GOTO(st, dpq_str_format(partial, "%s.partial", final_path), done);
    DPQ_TRY_GOTO(st, clear_partial(*partial), done);
    DPQ_TRY_GOTO(st, dpq_dir_create(*partial), done);
    st = write_marker(*partial);
done:
    dpq_free(folder);
    if (st != DPQ_OK) {
        dpq_free(*partial);
        *partial = NULL;
    }
    return st;
}

dpq_status dpq_output_publish(const char *partial, const char *final_path)
{
    char *marker = NULL, *old = NULL, *folder = NULL;
    dpq_status st = DPQ_OK;
    bool replace = dpq_path_exists(final_path);
    DPQ_TRY_GOTO(st, dpq_path_join(partial, MARKER, &marker), done);
    DPQ_TRY_GOTO(st, dpq_file_remove(marker), done);
    DPQ_TRY_GOTO(st, dpq_dir_sync(partial), done);
    if (replace) {
        DPQ_TRY_GOTO(st, dpq_str_format(&old, "%s.replaced", final_path), done);
        DPQ_TRY_GOTO(st, dpq_path_rename(final_path, old), done);
    }
    DPQ_TRY_GOTO(st, dpq_path_rename(partial, final_path), done);
    DPQ_TRY_GOTO(st, dpq_path_dirname(final_path, &folder), done);
    DPQ_TRY_GOTO(st, dpq_dir_sync(folder), done);
    if (replace) {
        st = dpq_dir_remove(old);
    }
done:
    dpq_free(marker);
    dpq_free(old);
    dpq_free(folder);
    return st;
}
