/* SPDX-License-Identifier: Apache-2.0 */
/* HDF5 datasets, read-only. The library is not made for hostile files, so only the plainest kind of dataset passes:
 * reached over hard links, stored in this file, numbers of known size, a short list of filters, sizes that the file can
 * justify. */
#include "dpquant/h5.h"

#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/file.h"
#include "dpquant/str.h"

#define MAX_RANK            3
#define MAX_COMPONENT_BYTES 256
/* Deflate makes at most 1032 bytes from one. */
#define MAX_EXPANSION   1040
#define MAX_CHUNK_BYTES ((uint64_t)1 << 30)

struct dpq_h5 {
    hid_t file;
    char *path;
    uint64_t file_bytes;
};

typedef struct {
    hid_t id;
    int rank;
    hsize_t dim[MAX_RANK];
    H5T_class_t class;
} dataset;

/* The innermost entries of the library's error stack. */
typedef struct {
    char text[400];
} h5_words;

static herr_t collect_word(unsigned n, const H5E_error2_t *error, void *data)
{
    h5_words *words = data;
    size_t used = strlen(words->text);
    if (error->desc != NULL && n < 3 && used + 4 < sizeof words->text) {
        snprintf(words->text + used, sizeof words->text - used, "%s%s", used > 0 ? "; " : "", error->desc);
    }
    return 0;
}

static const char *library_words(h5_words *words)
{
    words->text[0] = '\0';
    if (H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect_word, words) < 0 || words->text[0] == '\0') {
        snprintf(words->text, sizeof words->text, "no reason given");
    }
    return words->text;
}

/* A failed library call, with the library's own words. */
#define RAISE_H5(what_fmt, ...) raise_h5(__LINE__, __func__, what_fmt, __VA_ARGS__)

static dpq_status raise_h5(int line, const char *func, const char *fmt, ...) DPQ_PRINTF(3, 4);
static dpq_status raise_h5(int line, const char *func, const char *fmt, ...)
{
    h5_words words;
    char what[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    return dpq_error_raise(DPQ_E_INPUT, __FILE__, line, func, "%s: HDF5: %s", what, library_words(&words));
}

static void close_quiet(hid_t id)
{
    if (id >= 0) {
        H5Idec_ref(id); /* closes an identifier of any kind */
    }
}

/* ---- file ---- */

static dpq_status prepare_library(const char *path)
{
    if (H5open() < 0 || H5Eset_auto2(H5E_DEFAULT, NULL, NULL) < 0) {
        return RAISE_H5("%s: cannot start the library", path);
    }
    /* A filter named in a file must not load code from a plug-in folder. */
    if (H5PLset_loading_state(0) < 0) {
        return RAISE_H5("%s: cannot switch plug-ins off", path);
    }
    return DPQ_OK;
}

const char *dpq_h5_library(void)
{
    static char text[48];
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    snprintf(text, sizeof text, "HDF5 %u.%u.%u", major, minor, release);
    return text;
}

dpq_status dpq_h5_open(const char *path, dpq_h5 **out)
{
    dpq_status st = DPQ_OK;
    dpq_h5 *h = NULL;
    hid_t access = -1;
    void *memory = NULL;
    int fd = -1;
    *out = NULL;
#if !H5_VERSION_GE(1, 10, 7)
    setenv("HDF5_USE_FILE_LOCKING", "FALSE", 0); /* read when the library starts; later releases have a property */
#endif
    DPQ_TRY_GOTO(st, dpq_alloc(sizeof *h, &memory), done);
    h = memory;
    h->file = -1;
    DPQ_TRY_GOTO(st, dpq_str_dup(path, &h->path), done);
    DPQ_TRY_GOTO(st, dpq_file_open_read(path, &fd, &h->file_bytes), done);
    DPQ_TRY_GOTO(st, prepare_library(path), done);
    access = H5Pcreate(H5P_FILE_ACCESS);
    if (access < 0 || H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) < 0) {
        st = RAISE_H5("%s: cannot set up access", path);
        goto done;
    }
#if H5_VERSION_GE(1, 10, 7)
    /* Locks are refused by some network file systems, and a reader needs none. */
    if (H5Pset_file_locking(access, 0, 1) < 0) {
        st = RAISE_H5("%s: cannot switch locking off", path);
        goto done;
    }
#endif
    h->file = H5Fopen(path, H5F_ACC_RDONLY, access);
    if (h->file < 0) {
        st = RAISE_H5("%s: cannot open", path);
        goto done;
    }
    *out = h;
    h = NULL;
done:
    dpq_file_close_quiet(fd);
    close_quiet(access);
    dpq_h5_close(&h);
    return st;
}

void dpq_h5_close(dpq_h5 **file)
{
    if (file == NULL || *file == NULL) {
        return;
    }
    if ((*file)->file >= 0) {
        H5Fclose((*file)->file);
    }
    dpq_free((*file)->path);
    dpq_free(*file);
    *file = NULL;
}

/* ---- walking a path ---- */

/* Copies the next component of *AT and moves behind it; false at the end of the path or when it is too long. */
static bool next_component(const char **at, char component[MAX_COMPONENT_BYTES])
{
    const char *s = *at;
    while (*s == '/') {
        s++;
    }
    size_t n = strcspn(s, "/");
    if (n == 0 || n >= MAX_COMPONENT_BYTES) {
        return false;
    }
    memcpy(component, s, n);
    component[n] = '\0';
    *at = s + n;
    while (**at == '/') {
        (*at)++;
    }
    return true;
}

static dpq_status check_link(const dpq_h5 *h, hid_t from, const char *path, const char *component)
{
    H5L_info_t info;
    htri_t exists = H5Lexists(from, component, H5P_DEFAULT);
    if (exists < 0) {
        return RAISE_H5("%s: dataset %s: cannot look up \"%s\"", h->path, path, component);
    }
    if (exists == 0) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: there is no \"%s\"", h->path, path, component);
    }
    if (H5Lget_info(from, component, &info, H5P_DEFAULT) < 0) {
        return RAISE_H5("%s: dataset %s: cannot look up \"%s\"", h->path, path, component);
    }
    if (info.type != H5L_TYPE_HARD) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: \"%s\" is %s link, only hard links are followed", h->path, path,
                         component,
                         info.type == H5L_TYPE_SOFT       ? "a soft"
                         : info.type == H5L_TYPE_EXTERNAL ? "an external"
                                                          : "a user-defined");
    }
    return DPQ_OK;
}

/* Component by component, so that no link on the way leads elsewhere. */
static dpq_status walk(const dpq_h5 *h, const char *path, hid_t *out)
{
    char component[MAX_COMPONENT_BYTES];
    const char *at = path;
    dpq_status st = DPQ_OK;
    hid_t here = H5Gopen2(h->file, "/", H5P_DEFAULT);
    *out = -1;
    if (here < 0) {
        return RAISE_H5("%s: cannot open the root group", h->path);
    }
    bool more = true;
    while (more) {
        if (!next_component(&at, component)) {
            st = DPQ_RAISE(DPQ_E_INPUT, "%s: dataset name \"%.200s\" has an empty or too long part", h->path, path);
            goto done;
        }
        more = *at != '\0';
        DPQ_TRY_GOTO(st, check_link(h, here, path, component), done);
        hid_t next = H5Oopen(here, component, H5P_DEFAULT);
        if (next < 0) {
            st = RAISE_H5("%s: dataset %s: cannot open \"%s\"", h->path, path, component);
            goto done;
        }
        close_quiet(here);
        here = next;
        if (H5Iget_type(here) != (more ? H5I_GROUP : H5I_DATASET)) {
            st = DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: \"%s\" is not a %s", h->path, path, component,
                           more ? "group" : "dataset");
            goto done;
        }
    }
    *out = here;
    here = -1;
done:
    close_quiet(here);
    return st;
}

/* True for a name that is occupied by anything, so that opening it tells what is wrong with it. */
bool dpq_h5_has(const dpq_h5 *file, const char *dataset_name)
{
    char component[MAX_COMPONENT_BYTES];
    const char *at = dataset_name;
    hid_t here = H5Gopen2(file->file, "/", H5P_DEFAULT);
    bool found = here >= 0;
    bool more = true;
    while (found && more) {
        H5L_info_t info;
        found = next_component(&at, component) && H5Lexists(here, component, H5P_DEFAULT) > 0 &&
                H5Lget_info(here, component, &info, H5P_DEFAULT) >= 0;
        more = found && *at != '\0' && info.type == H5L_TYPE_HARD;
        if (more) {
            hid_t next = H5Oopen(here, component, H5P_DEFAULT);
            close_quiet(here);
            here = next;
            found = here >= 0 && H5Iget_type(here) == H5I_GROUP;
        }
    }
    close_quiet(here);
    return found;
}

/* ---- checks of a dataset ---- */

static dpq_status check_filters(const dpq_h5 *h, const char *name, hid_t create, bool *deflate)
{
    int n = H5Pget_nfilters(create);
    if (n < 0) {
        return RAISE_H5("%s: dataset %s: cannot read its filters", h->path, name);
    }
    for (int i = 0; i < n; i++) {
        unsigned flags = 0;
        unsigned config = 0;
        size_t values = 0;
        char text[64] = "";
        H5Z_filter_t filter = H5Pget_filter2(create, (unsigned)i, &flags, &values, NULL, sizeof text, text, &config);
        if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32) {
            return DPQ_RAISE(DPQ_E_INPUT,
                             "%s: dataset %s: filter %d (%s), expected only deflate, shuffle or fletcher32", h->path,
                             name, (int)filter, text[0] != '\0' ? text : "no name");
        }
        *deflate = *deflate || filter == H5Z_FILTER_DEFLATE;
    }
    return DPQ_OK;
}

/* BYTES of the elements that a shape claims. */
static dpq_status claimed_bytes(const dpq_h5 *h, const char *name, int rank, const hsize_t *dim, size_t element,
                                uint64_t *bytes)
{
    *bytes = element;
    for (int i = 0; i < rank; i++) {
        if (dim[i] > (hsize_t)INT64_MAX || __builtin_mul_overflow(*bytes, (uint64_t)dim[i], bytes)) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: its size overflows 64 bits", h->path, name);
        }
    }
    return DPQ_OK;
}

static dpq_status check_chunk(const dpq_h5 *h, const char *name, hid_t create, size_t element)
{
    hsize_t chunk[MAX_RANK];
    uint64_t bytes = 0;
    int rank = H5Pget_chunk(create, MAX_RANK, chunk);
    if (rank < 1 || rank > MAX_RANK) {
        return RAISE_H5("%s: dataset %s: cannot read its chunk shape", h->path, name);
    }
    DPQ_TRY(claimed_bytes(h, name, rank, chunk, element, &bytes));
    if (bytes > MAX_CHUNK_BYTES) { /* the library allocates a whole chunk */
        return DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: chunks of %llu bytes, expected at most %llu", h->path, name,
                         (unsigned long long)bytes, (unsigned long long)MAX_CHUNK_BYTES);
    }
    return DPQ_OK;
}

/* The stored bytes are in the file and can hold what the shape claims. */
static dpq_status check_storage(const dpq_h5 *h, const char *name, const dataset *d, size_t element)
{
    dpq_status st = DPQ_OK;
    bool deflate = false;
    uint64_t claimed = 0;
    hid_t create = H5Dget_create_plist(d->id);
    if (create < 0) {
        return RAISE_H5("%s: dataset %s: cannot read its layout", h->path, name);
    }
    H5D_layout_t layout = H5Pget_layout(create);
    if (layout != H5D_COMPACT && layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: %s layout, expected compact, contiguous or chunked", h->path, name,
                       layout == H5D_VIRTUAL ? "virtual" : "unknown");
        goto done;
    }
    int external = H5Pget_external_count(create);
    if (external != 0) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: its data lies in other files", h->path, name);
        goto done;
    }
    DPQ_TRY_GOTO(st, check_filters(h, name, create, &deflate), done);
    if (layout == H5D_CHUNKED) {
        DPQ_TRY_GOTO(st, check_chunk(h, name, create, element), done);
    }
    DPQ_TRY_GOTO(st, claimed_bytes(h, name, d->rank, d->dim, element, &claimed), done);
    uint64_t stored = (uint64_t)H5Dget_storage_size(d->id);
    if (stored == 0 && H5Eget_num(H5E_DEFAULT) > 0) { /* 0 is also how a failure is told, for example a damaged index */
        st = RAISE_H5("%s: dataset %s: cannot find its stored size", h->path, name);
        goto done;
    }
    if (stored > h->file_bytes) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: %llu stored bytes in a file of %llu", h->path, name,
                       (unsigned long long)stored, (unsigned long long)h->file_bytes);
        goto done;
    }
    uint64_t expansion = deflate ? MAX_EXPANSION : 1;
    if (claimed / expansion > stored || (claimed > 0 && stored == 0)) {
        st =
            DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: its shape claims %llu bytes, %llu are stored: incomplete or forged",
                      h->path, name, (unsigned long long)claimed, (unsigned long long)stored);
        goto done;
    }
done:
    close_quiet(create);
    return st;
}

static dpq_status check_type(const dpq_h5 *h, const char *name, dataset *d, size_t *element)
{
    hid_t type = H5Dget_type(d->id);
    if (type < 0) {
        return RAISE_H5("%s: dataset %s: cannot read its element type", h->path, name);
    }
    d->class = H5Tget_class(type);
    *element = H5Tget_size(type);
    close_quiet(type);
    bool is_integer = d->class == H5T_INTEGER && (*element == 1 || *element == 2 || *element == 4 || *element == 8);
    bool is_float = d->class == H5T_FLOAT && (*element == 2 || *element == 4 || *element == 8);
    if (!is_integer && !is_float) {
        return DPQ_RAISE(DPQ_E_INPUT,
                         "%s: dataset %s: element class %d of %zu bytes, expected integers of 1 to 8 or floats of 2 to "
                         "8 bytes",
                         h->path, name, (int)d->class, *element);
    }
    return DPQ_OK;
}

static dpq_status check_space(const dpq_h5 *h, const char *name, dataset *d)
{
    hid_t space = H5Dget_space(d->id);
    if (space < 0) {
        return RAISE_H5("%s: dataset %s: cannot read its shape", h->path, name);
    }
    bool is_simple = H5Sget_simple_extent_type(space) == H5S_SIMPLE;
    d->rank = H5Sget_simple_extent_ndims(space);
    bool is_good = is_simple && d->rank >= 1 && d->rank <= MAX_RANK;
    if (is_good) {
        is_good = H5Sget_simple_extent_dims(space, d->dim, NULL) == d->rank;
    }
    close_quiet(space);
    if (!is_good) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: rank %d, expected an array of 1 to %d dimensions", h->path, name,
                         d->rank, MAX_RANK);
    }
    return DPQ_OK;
}

static dpq_status open_dataset(const dpq_h5 *h, const char *name, dataset *d)
{
    dpq_status st = DPQ_OK;
    size_t element = 0;
    memset(d, 0, sizeof *d);
    DPQ_TRY(walk(h, name, &d->id));
    DPQ_TRY_GOTO(st, check_space(h, name, d), done);
    DPQ_TRY_GOTO(st, check_type(h, name, d, &element), done);
    DPQ_TRY_GOTO(st, check_storage(h, name, d, element), done);
done:
    if (st != DPQ_OK) {
        close_quiet(d->id);
        d->id = -1;
    }
    return st;
}

/* ---- reading ---- */

dpq_status dpq_h5_shape(const dpq_h5 *file, const char *dataset_name, int *rank, int64_t dim[3], bool *is_integer)
{
    dataset d;
    *rank = 0;
    *is_integer = false;
    memset(dim, 0, 3 * sizeof dim[0]);
    DPQ_TRY(open_dataset(file, dataset_name, &d));
    *rank = d.rank;
    for (int i = 0; i < d.rank; i++) {
        dim[i] = (int64_t)d.dim[i];
    }
    *is_integer = d.class == H5T_INTEGER;
    close_quiet(d.id);
    return DPQ_OK;
}

/* Rows [begin, end) along the first dimension, every row flattened. */
static dpq_status read_rows(const dpq_h5 *h, const char *name, const dataset *d, int64_t begin, int64_t end,
                            hid_t memory_type, void *dst)
{
    dpq_status st = DPQ_OK;
    hid_t file_space = -1;
    hid_t memory_space = -1;
    hsize_t start[MAX_RANK] = {0};
    hsize_t count[MAX_RANK] = {0};
    bool is_empty = begin == end;
    if (begin < 0 || begin > end || (hsize_t)end > d->dim[0]) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: rows [%lld, %lld) asked for, it has %llu", h->path, name,
                         (long long)begin, (long long)end, (unsigned long long)d->dim[0]);
    }
    for (int i = 0; i < d->rank; i++) {
        count[i] = d->dim[i];
        is_empty = is_empty || d->dim[i] == 0;
    }
    if (is_empty) {
        return DPQ_OK;
    }
    start[0] = (hsize_t)begin;
    count[0] = (hsize_t)(end - begin);
    file_space = H5Dget_space(d->id);
    memory_space = H5Screate_simple(d->rank, count, NULL);
    if (file_space < 0 || memory_space < 0 ||
        H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, count, NULL) < 0) {
        st = RAISE_H5("%s: dataset %s: cannot select rows", h->path, name);
        goto done;
    }
    if (H5Dread(d->id, memory_type, memory_space, file_space, H5P_DEFAULT, dst) < 0) {
        st = RAISE_H5("%s: dataset %s: cannot read rows [%lld, %lld)", h->path, name, (long long)begin, (long long)end);
        goto done;
    }
done:
    close_quiet(memory_space);
    close_quiet(file_space);
    return st;
}

dpq_status dpq_h5_read_rows_i64(const dpq_h5 *file, const char *dataset_name, int64_t begin, int64_t end, int64_t *dst)
{
    dpq_status st = DPQ_OK;
    dataset d;
    DPQ_TRY(open_dataset(file, dataset_name, &d));
    if (d.class != H5T_INTEGER || d.rank != 2) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: %d dimensions of %s, expected 2 of integers", file->path,
                       dataset_name, d.rank, d.class == H5T_INTEGER ? "integers" : "floats");
        goto done;
    }
    DPQ_TRY_GOTO(st, read_rows(file, dataset_name, &d, begin, end, H5T_NATIVE_INT64, dst), done);
done:
    close_quiet(d.id);
    return st;
}

dpq_status dpq_h5_read_rows_f32(const dpq_h5 *file, const char *dataset_name, int64_t begin, int64_t end, float *dst)
{
    dpq_status st = DPQ_OK;
    dataset d;
    DPQ_TRY(open_dataset(file, dataset_name, &d));
    if (d.class != H5T_FLOAT) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: dataset %s: integers, expected floats", file->path, dataset_name);
        goto done;
    }
    DPQ_TRY_GOTO(st, read_rows(file, dataset_name, &d, begin, end, H5T_NATIVE_FLOAT, dst), done);
done:
    close_quiet(d.id);
    return st;
}

dpq_status dpq_h5_attr_f64(const dpq_h5 *file, const char *name, double *out)
{
    dpq_status st = DPQ_OK;
    hid_t attribute = -1;
    hid_t space = -1;
    hid_t type = -1;
    double value = 0;
    *out = 0;
    htri_t exists = H5Aexists(file->file, name);
    if (exists < 0) {
        return RAISE_H5("%s: attribute %s: cannot look it up", file->path, name);
    }
    if (exists == 0) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: there is no attribute %s", file->path, name);
    }
    attribute = H5Aopen(file->file, name, H5P_DEFAULT);
    space = attribute >= 0 ? H5Aget_space(attribute) : -1;
    type = attribute >= 0 ? H5Aget_type(attribute) : -1;
    if (space < 0 || type < 0) {
        st = RAISE_H5("%s: attribute %s: cannot open", file->path, name);
        goto done;
    }
    H5T_class_t class = H5Tget_class(type);
    if ((class != H5T_FLOAT && class != H5T_INTEGER) || H5Sget_simple_extent_npoints(space) != 1) {
        st = DPQ_RAISE(DPQ_E_INPUT, "%s: attribute %s: expected one number", file->path, name);
        goto done;
    }
    if (H5Aread(attribute, H5T_NATIVE_DOUBLE, &value) < 0) {
        st = RAISE_H5("%s: attribute %s: cannot read", file->path, name);
        goto done;
    }
    *out = value;
done:
    close_quiet(type);
    close_quiet(space);
    close_quiet(attribute);
    return st;
}
