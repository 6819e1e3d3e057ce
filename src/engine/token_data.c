/* SPDX-License-Identifier: Apache-2.0 */
/* One reader of the token file: rank 0 reads and checks it, the other ranks receive the finished set. */
#include "dpquant/token_data.h"

#include <string.h>

#include "dpquant/alloc.h"

enum { SAMPLES, MAX_LENGTH, ROWS_IN_FILE, TOKENS_READ, TOKENS_MASKED, TOKENS_CUT, TOKENS_USED, COUNTS };

static void counts_of(const dpq_calibset *set, int64_t counts[COUNTS])
{
    counts[SAMPLES] = set->n;
    counts[MAX_LENGTH] = set->max_length;
    counts[ROWS_IN_FILE] = set->rows_in_file;
    counts[TOKENS_READ] = set->tokens_read;
    counts[TOKENS_MASKED] = set->tokens_masked;
    counts[TOKENS_CUT] = set->tokens_cut;
    counts[TOKENS_USED] = set->start[set->n];
}

static dpq_status allocate_set(const int64_t counts[COUNTS], dpq_calibset *out)
{
    void *memory = NULL;
    out->n = counts[SAMPLES];
    out->max_length = counts[MAX_LENGTH];
    out->rows_in_file = counts[ROWS_IN_FILE];
    out->tokens_read = counts[TOKENS_READ];
    out->tokens_masked = counts[TOKENS_MASKED];
    out->tokens_cut = counts[TOKENS_CUT];
    DPQ_TRY(dpq_alloc_array(out->n + 1, sizeof *out->start, &memory));
    out->start = memory;
    DPQ_TRY(dpq_alloc_array(counts[TOKENS_USED], sizeof *out->ids, &memory));
    out->ids = memory;
    return DPQ_OK;
}

static dpq_status broadcast_set(dpq_comm *comm, int64_t tokens, dpq_calibset *set)
{
    dpq_tensor start = dpq_tensor_wrap_1d(set->start, DPQ_DTYPE_I64, set->n + 1);
    dpq_tensor ids = dpq_tensor_wrap_1d(set->ids, DPQ_DTYPE_I32, tokens);
    dpq_tensor digest = dpq_tensor_wrap_1d(set->digest, DPQ_DTYPE_U8, (int64_t)sizeof set->digest);
    DPQ_TRY(dpq_comm_broadcast(comm, &start, 0));
    DPQ_TRY(dpq_comm_broadcast(comm, &ids, 0));
    return dpq_comm_broadcast(comm, &digest, 0);
}

dpq_status dpq_token_data_read(dpq_comm *comm, const dpq_calibset_options *options, int64_t vocab_size,
                               dpq_calibset *out)
{
    dpq_status st = DPQ_OK;
    bool reader = dpq_comm_rank(comm) == 0;
    int64_t counts[COUNTS] = {0};
    memset(out, 0, sizeof *out);
    if (reader) {
        st = dpq_calibset_read(options, vocab_size, out);
    }
    DPQ_TRY_GOTO(st, dpq_comm_agree(comm, st, NULL), done);
    if (reader) {
        counts_of(out, counts);
    }
    dpq_tensor header = dpq_tensor_wrap_1d(counts, DPQ_DTYPE_I64, COUNTS);
    DPQ_TRY_GOTO(st, dpq_comm_broadcast(comm, &header, 0), done);
    if (!reader) {
        st = allocate_set(counts, out);
    }
    DPQ_TRY_GOTO(st, dpq_comm_agree(comm, st, NULL), done);
    st = broadcast_set(comm, counts[TOKENS_USED], out);
done:
    if (st != DPQ_OK) {
        dpq_calibset_fini(out);
    }
    return st;
}
