/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the input files of the command lists: token windows of any length, ragged ones, broken ones, and a value poked
 * into a weight.
 *
 *   make_cases windows SOURCE.h5 OUT.h5 ROWS LENGTH      windows glued from the tokens of SOURCE, which is repeated
 * when it is too short make_cases ragged SOURCE.h5 OUT.h5 ROWS LENGTH       the same with padding left and right in
 * turn; numbers of real tokens differ make_cases filled OUT.h5 DATASET int|float ROWS LENGTH VALUE make_cases poke
 * MODEL_DIR TENSOR ELEMENT BITS        16-bit element of a tensor, BITS in hexadecimal */
#include <fcntl.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dpquant/alloc.h"
#include "dpquant/h5.h"
#include "dpquant/safetensors.h"

static int fail(const char *what)
{
    fprintf(stderr, "make_cases: %s: %s\n", what, dpq_error_last()->text);
    return 1;
}

static int put_dataset(hid_t file, const char *name, hid_t type, hsize_t rows, hsize_t cols, const int64_t *values)
{
    const hsize_t dims[2] = {rows, cols};
    hid_t space = H5Screate_simple(2, dims, NULL);
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    herr_t rc = H5Dwrite(set, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    H5Dclose(set);
    H5Sclose(space);
    return rc < 0;
}

/* Ids (ROWS x LENGTH) from the rows of SOURCE, one after the other. Heap. */
static int64_t *glue(const char *source, int64_t rows, int64_t length)
{
    dpq_h5 *file = NULL;
    int64_t dim[3] = {0};
    int rank;
    bool integer;
    if (dpq_h5_open(source, &file) != DPQ_OK || dpq_h5_shape(file, "input_ids", &rank, dim, &integer) != DPQ_OK) {
        return NULL;
    }
    int64_t have = dim[0] * dim[1];
    int64_t *ids = malloc((size_t)(rows * length) * sizeof *ids), *all = malloc((size_t)have * sizeof *all);
    if (ids != NULL && all != NULL && dpq_h5_read_rows_i64(file, "input_ids", 0, dim[0], all) == DPQ_OK) {
        for (int64_t i = 0; i < rows * length; i++) {
            ids[i] = all[i % have];
        }
    }
    free(all);
    dpq_h5_close(&file);
    return ids;
}

/* Row r keeps an odd number of real tokens between 3 and LENGTH - 1; padding holds an id outside of every vocabulary.
 */
static void pad(int64_t rows, int64_t length, int64_t *ids, int64_t *mask)
{
    for (int64_t r = 0; r < rows; r++) {
        int64_t kept = (length - 1 - r * 97 % (length - 4)) | 1;
        int64_t first = r % 2 == 0 ? 0 : length - kept;
        for (int64_t i = 0; i < length; i++) {
            bool real = i >= first && i < first + kept;
            mask[r * length + i] = real ? 1 : 0;
            ids[r * length + i] = real ? ids[r * length + i] : -1;
        }
    }
}

static int make_windows(char **arg, bool ragged)
{
    int64_t rows = strtoll(arg[2], NULL, 10), length = strtoll(arg[3], NULL, 10);
    int64_t *ids = glue(arg[0], rows, length);
    if (ids == NULL) {
        return fail(arg[0]);
    }
    hid_t file = H5Fcreate(arg[1], H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    int rc = file < 0;
    if (rc == 0 && ragged) {
        int64_t *mask = calloc((size_t)(rows * length), sizeof *mask);
        pad(rows, length, ids, mask);
        rc = put_dataset(file, "attention_mask", H5T_STD_U8LE, (hsize_t)rows, (hsize_t)length, mask);
        free(mask);
    }
    rc = rc == 0 ? put_dataset(file, "input_ids", H5T_STD_I32LE, (hsize_t)rows, (hsize_t)length, ids) : rc;
    H5Fclose(file);
    free(ids);
    return rc;
}

static int make_filled(char **arg)
{
    int64_t rows = strtoll(arg[3], NULL, 10), length = strtoll(arg[4], NULL, 10), value = strtoll(arg[5], NULL, 10);
    int64_t *ids = malloc((size_t)(rows * length) * sizeof *ids);
    for (int64_t i = 0; i < rows * length; i++) {
        ids[i] = value;
    }
    hid_t file = H5Fcreate(arg[0], H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    int rc = file < 0 || put_dataset(file, arg[1], strcmp(arg[2], "float") == 0 ? H5T_IEEE_F32LE : H5T_STD_I64LE,
                                     (hsize_t)rows, (hsize_t)length, ids);
    H5Fclose(file);
    free(ids);
    return rc;
}

static int poke(char **arg)
{
    dpq_st_store *store = NULL;
    char path[4096];
    uint16_t bits = (uint16_t)strtoul(arg[3], NULL, 16);
    if (dpq_st_open(arg[0], &store) != DPQ_OK) {
        return fail(arg[0]);
    }
    const dpq_st_entry *entry = dpq_st_find(store, arg[1]);
    uint64_t at = strtoull(arg[2], NULL, 10) * sizeof bits;
    if (entry == NULL || at + sizeof bits > entry->bytes) {
        return fail(arg[1]);
    }
    snprintf(path, sizeof path, "%s/%s", arg[0], dpq_st_shard_name(store, entry->shard));
    at += entry->offset;
    dpq_st_close(&store);
    int file = open(path, O_WRONLY);
    int rc = file < 0 || pwrite(file, &bits, sizeof bits, (off_t)at) != (ssize_t)sizeof bits;
    return file < 0 || close(file) != 0 || rc;
}

int main(int argc, char **argv)
{
    if (argc == 6 && (strcmp(argv[1], "windows") == 0 || strcmp(argv[1], "ragged") == 0)) {
        return make_windows(argv + 2, argv[1][0] == 'r');
    }
    if (argc == 8 && strcmp(argv[1], "filled") == 0) {
        return make_filled(argv + 2);
    }
    if (argc == 6 && strcmp(argv[1], "poke") == 0) {
        return poke(argv + 2);
    }
    fprintf(stderr, "usage: make_cases windows|ragged|filled|poke ... (see the top of tests/cli/make_cases.c)\n");
    return 2;
}
