/* SPDX-License-Identifier: Apache-2.0 */
/* Calibration and evaluation samples from an HDF5 file, checked token by token, in an order that follows from the
 * options alone. */
#include "dpquant/calibset.h"

#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/file.h"
#include "dpquant/h5.h"
#include "dpquant/rng.h"

#define IDS            "input_ids"
#define MASK           "attention_mask"
#define SHUFFLE_STREAM 0x63616c6962ULL /* keeps the order apart from other uses of the same seed */
#define MIN_TOKENS     2               /* one to see and one to predict */

typedef struct {
    const dpq_calibset_options *options;
    dpq_h5 *file;
    bool masked;
    int64_t rows, length, vocab_size;
    int64_t *order;
    int64_t *ids, *mask; /* one row */
} reader;

static dpq_status check_dataset(const reader *r, const char *dataset, int64_t dim[3])
{
    int rank = 0;
    bool integer = false;
    DPQ_TRY(dpq_h5_shape(r->file, dataset, &rank, dim, &integer));
    if (rank != 2) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: %s: expected 2 dimensions (samples, length), found %d", r->options->data,
                         dataset, rank);
    }
    if (!integer) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: %s: expected an integer type, found another class", r->options->data,
                         dataset);
    }
    return DPQ_OK;
}

static dpq_status check_file(reader *r)
{
    const char *path = r->options->data;
    int64_t dim[3] = {0};
    if (!dpq_h5_has(r->file, IDS)) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: " IDS ": expected an integer dataset (samples, length), found none", path);
    }
    DPQ_TRY(check_dataset(r, IDS, dim));
    r->rows = dim[0];
    r->length = dim[1];
    if (r->rows < 1 || r->length < MIN_TOKENS) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: " IDS ": expected at least 1 row of at least %d tokens, found %lld of %lld",
                         path, MIN_TOKENS, (long long)r->rows, (long long)r->length);
    }
    r->masked = dpq_h5_has(r->file, MASK);
    if (r->masked) {
        DPQ_TRY(check_dataset(r, MASK, dim));
        if (dim[0] != r->rows || dim[1] != r->length) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: " MASK ": expected the shape of " IDS " (%lld,%lld), found (%lld,%lld)",
                             path, (long long)r->rows, (long long)r->length, (long long)dim[0], (long long)dim[1]);
        }
    }
    if (r->options->samples > r->rows) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: " IDS ": expected at least %lld rows (samples asked for), found %lld", path,
                         (long long)r->options->samples, (long long)r->rows);
    }
    return DPQ_OK;
}

static dpq_status check_options(const dpq_calibset_options *o, int64_t vocab_size)
{
    if (!o->data) {
        return DPQ_RAISE(DPQ_E_INPUT, "no file of token windows is named; expected an HDF5 file with the dataset " IDS);
    }
    if (o->samples < 0) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: samples: expected 0 (all) or more, found %lld", o->data,
                         (long long)o->samples);
    }
    if (o->seqlen < 0 || (o->seqlen > 0 && o->seqlen < MIN_TOKENS)) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: seqlen: expected 0 (as they are) or at least %d, found %lld", o->data,
                         MIN_TOKENS, (long long)o->seqlen);
    }
    DPQ_ASSERT(vocab_size > 0 && vocab_size <= INT32_MAX);
    return DPQ_OK;
}

/* Fisher-Yates over all rows, so that more samples with the same seed only add to fewer. */
static dpq_status make_order(reader *r)
{
    void *memory = NULL;
    DPQ_TRY(dpq_alloc_array(r->rows, sizeof *r->order, &memory));
    r->order = memory;
    for (int64_t i = 0; i < r->rows; i++) {
        r->order[i] = i;
    }
    for (int64_t i = r->rows - 1; r->options->shuffle && i > 0; i--) {
        int64_t j = (int64_t)dpq_rng_below((uint64_t)r->options->seed, SHUFFLE_STREAM, (uint64_t)i, (uint64_t)i + 1);
        int64_t kept = r->order[i];
        r->order[i] = r->order[j];
        r->order[j] = kept;
    }
    return DPQ_OK;
}

/* The run [*begin, *end) of real tokens of the row in r->mask. */
static dpq_status find_run(const reader *r, int64_t row, int64_t *begin, int64_t *end)
{
    const char *path = r->options->data;
    *begin = 0;
    *end = r->length;
    if (!r->masked) {
        return DPQ_OK;
    }
    int64_t ones = 0;
    int64_t first = r->length;
    int64_t last = -1;
    for (int64_t i = 0; i < r->length; i++) {
        if (r->mask[i] != 0 && r->mask[i] != 1) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: " MASK ": row %lld, token %lld: expected 0 or 1, found %lld", path,
                             (long long)row, (long long)i, (long long)r->mask[i]);
        }
        if (r->mask[i] == 1) {
            ones++;
            first = i < first ? i : first;
            last = i;
        }
    }
    if (ones < MIN_TOKENS) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: " MASK ": row %lld: expected at least %d tokens, found %lld", path,
                         (long long)row, MIN_TOKENS, (long long)ones);
    }
    if (last - first + 1 != ones) {
        return DPQ_RAISE(DPQ_E_INPUT,
                         "%s: " MASK ": row %lld: expected one run of ones, found zeros between tokens %lld and %lld",
                         path, (long long)row, (long long)first, (long long)last);
    }
    *begin = first;
    *end = last + 1;
    return DPQ_OK;
}

/* Append the real tokens of ROW to the set. */
static dpq_status read_sample(reader *r, int64_t row, dpq_calibset *set)
{
    int64_t begin = 0;
    int64_t end = 0;
    DPQ_TRY(dpq_h5_read_rows_i64(r->file, IDS, row, row + 1, r->ids));
    if (r->masked) {
        DPQ_TRY(dpq_h5_read_rows_i64(r->file, MASK, row, row + 1, r->mask));
    }
    DPQ_TRY(find_run(r, row, &begin, &end));
    for (int64_t i = begin; i < end; i++) { /* padding may hold anything */
        if (r->ids[i] < 0 || r->ids[i] >= r->vocab_size) {
            return DPQ_RAISE(
                DPQ_E_INPUT, "%s: " IDS ": row %lld, token %lld: expected 0..%lld (the model's vocabulary), found %lld",
                r->options->data, (long long)row, (long long)i, (long long)r->vocab_size - 1, (long long)r->ids[i]);
        }
    }
    int64_t seqlen = r->options->seqlen;
    int64_t used = seqlen > 0 && end - begin > seqlen ? seqlen : end - begin;
    int32_t *dst = set->ids + set->start[set->n];
    for (int64_t i = 0; i < used; i++) {
        dst[i] = (int32_t)r->ids[begin + i];
    }
    set->start[set->n + 1] = set->start[set->n] + used;
    set->n++;
    set->max_length = used > set->max_length ? used : set->max_length;
    set->tokens_read += r->length;
    set->tokens_masked += r->length - (end - begin);
    set->tokens_cut += end - begin - used;
    return DPQ_OK;
}

static dpq_status allocate(reader *r, int64_t samples, dpq_calibset *set)
{
    int64_t seqlen = r->options->seqlen;
    int64_t longest = seqlen > 0 && seqlen < r->length ? seqlen : r->length;
    size_t count = 0;
    void *memory = NULL;
    DPQ_TRY(dpq_alloc_array(r->length, sizeof *r->ids, &memory));
    r->ids = memory;
    if (r->masked) {
        DPQ_TRY(dpq_alloc_array(r->length, sizeof *r->mask, &memory));
        r->mask = memory;
    }
    DPQ_TRY(dpq_alloc_array(samples + 1, sizeof *set->start, &memory));
    set->start = memory;
    DPQ_TRY(dpq_mul_size((size_t)samples, (size_t)longest, &count));
    if (count > (size_t)INT64_MAX) {
        return DPQ_RAISE(DPQ_E_MEMORY, "no memory for %zu tokens", count);
    }
    DPQ_TRY(dpq_alloc_array((int64_t)count, sizeof *set->ids, &memory));
    set->ids = memory;
    return DPQ_OK;
}

/* Sample count, then length and ids of each sample, as they lie in memory. */
static void compute_digest(dpq_calibset *set)
{
    dpq_sha256 sha;
    dpq_sha256_init(&sha);
    dpq_sha256_update(&sha, &set->n, sizeof set->n);
    for (int64_t i = 0; i < set->n; i++) {
        int64_t length = set->start[i + 1] - set->start[i];
        dpq_sha256_update(&sha, &length, sizeof length);
        dpq_sha256_update(&sha, set->ids + set->start[i], (size_t)length * sizeof *set->ids);
    }
    dpq_sha256_hex(&sha, set->digest);
}

dpq_status dpq_calibset_read(const dpq_calibset_options *options, int64_t vocab_size, dpq_calibset *out)
{
    dpq_status st = DPQ_OK;
    reader r = {.options = options, .vocab_size = vocab_size};
    memset(out, 0, sizeof *out);
    DPQ_TRY_GOTO(st, check_options(options, vocab_size), done);
    DPQ_TRY_GOTO(st, dpq_h5_open(options->data, &r.file), done);
    DPQ_TRY_GOTO(st, check_file(&r), done);
    int64_t samples = options->samples > 0 ? options->samples : r.rows;
    out->rows_in_file = r.rows;
    DPQ_TRY_GOTO(st, make_order(&r), done);
    DPQ_TRY_GOTO(st, allocate(&r, samples, out), done);
    for (int64_t i = 0; i < samples; i++) {
        DPQ_TRY_GOTO(st, read_sample(&r, r.order[i], out), done);
    }
    compute_digest(out);
done:
    dpq_h5_close(&r.file);
    dpq_free(r.order);
    dpq_free(r.ids);
    dpq_free(r.mask);
    if (st != DPQ_OK) {
        dpq_calibset_fini(out);
    }
    return st;
}

void dpq_calibset_fini(dpq_calibset *set)
{
    dpq_free(set->start);
    dpq_free(set->ids);
    memset(set, 0, sizeof *set);
}
