/* SPDX-License-Identifier: Apache-2.0 */
/* "Did any rank fail?" at the end of a phase: one tiny reduction when all is well, and on failure a broadcast of the
 * error record of the lowest failing rank. The same reduction finds ranks that issued different lists of collectives.
 */
#include <stdio.h>
#include <string.h>

#include "comm_priv.h"
#include "dpquant/log.h"

void dpq_comm_format_prefix(const dpq_comm *comm, char prefix[DPQ_COMM_PREFIX_BYTES])
{
    snprintf(prefix, DPQ_COMM_PREFIX_BYTES, "rank %d of %d (%.*s): ", comm->rank, comm->size, DPQ_COMM_NAME_BYTES - 1,
             comm->host);
}

bool dpq_comm_text_is_agreed(const dpq_comm *comm, const char *text)
{
    return comm->agreed[0] != '\0' && strstr(text, comm->agreed) != NULL;
}

/* The record of the error LOCAL on this thread; made up from the status when the caller raised none. */
static dpq_error_record local_record(dpq_status local)
{
    dpq_error_record record;
    memset(&record, 0, sizeof record); /* sent as bytes: the padding too */
    const dpq_error_record *last = dpq_error_last();
    record.code = local;
    if (last->code == local) {
        memcpy(record.text, last->text, sizeof record.text);
        memcpy(record.origin, last->origin, sizeof record.origin);
    } else if (local != DPQ_OK) {
        snprintf(record.text, sizeof record.text, "%s", dpq_status_text(local));
    }
    return record;
}

static void add_prefix(const char *prefix, char text[DPQ_ERROR_TEXT_BYTES])
{
    static const char cut[] = "...";
    size_t prefix_length = strlen(prefix);
    size_t text_length = strnlen(text, DPQ_ERROR_TEXT_BYTES - 1);
    size_t room = DPQ_ERROR_TEXT_BYTES - 1 - prefix_length;
    bool too_long = text_length > room;
    memmove(text + prefix_length, text, too_long ? room : text_length);
    memcpy(text, prefix, prefix_length);
    text[prefix_length + (too_long ? room : text_length)] = '\0';
    if (too_long) {
        memcpy(text + DPQ_ERROR_TEXT_BYTES - sizeof cut, cut, sizeof cut);
    }
}

/* Every rank gets RECORD of rank WINNER, naming where it came from. */
static dpq_status share_record(dpq_comm *comm, int winner, dpq_error_record *record)
{
    struct {
        dpq_error_record record;
        char prefix[DPQ_COMM_PREFIX_BYTES];
    } message;
    memset(&message, 0, sizeof message);
    if (comm->rank == winner) {
        memcpy(message.prefix, comm->agreed, sizeof message.prefix);
        message.record = *record;
        if (!dpq_comm_text_is_agreed(comm, record->text)) {
            memset(message.prefix, 0, sizeof message.prefix);
            dpq_comm_format_prefix(comm, message.prefix);
            add_prefix(message.prefix, message.record.text);
        }
    } else if (record->code != DPQ_OK && !dpq_comm_text_is_agreed(comm, record->text)) {
        dpq_log(DPQ_LOG_DEBUG, "comm", "failed as well, rank %d is reported: %s", winner, record->text);
    }
    DPQ_TRY(comm->ops->broadcast(comm, &message, sizeof message, winner));
    memcpy(comm->agreed, message.prefix, sizeof comm->agreed);
    *record = message.record;
    dpq_error_set(record);
    return DPQ_OK;
}

/* *record is this rank's own on entry and the agreed one on return; the status says whether agreeing worked. */
static dpq_status agree_over_ranks(dpq_comm *comm, dpq_error_record *record)
{
    /* Votes for a minimum: the lowest failing rank; the digest of the collectives since the last agree and its
     * negative, whose minimum is minus the maximum: both are equal only when all digests are. */
    int64_t digest = (int64_t)(comm->sequence >> 1);
    int64_t votes[3] = {record->code == DPQ_OK ? comm->size : comm->rank, digest, -digest};
    DPQ_TRY(comm->ops->reduce(comm, votes, 3, DPQ_DTYPE_I64, DPQ_REDUCE_MIN, DPQ_COMM_ALL_RANKS));
    comm->sequence = 0;
    if (votes[0] < comm->size) {
        return share_record(comm, (int)votes[0], record);
    }
    if (votes[1] != -votes[2]) {
        return DPQ_RAISE(DPQ_E_BUG, "the ranks issued different lists of collectives since they last agreed");
    }
    return DPQ_OK;
}

dpq_status dpq_comm_agree(dpq_comm *comm, dpq_status local, dpq_spans *spans)
{
    DPQ_TRY(dpq_comm_check_caller(comm, "agree"));
    comm->stats.calls++;
    dpq_error_record own = local_record(local);
    if (comm->size == 1) {
        if (local != DPQ_OK) {
            dpq_error_set(&own);
        }
        return local;
    }
    double start_s = dpq_clock_s();
    dpq_error_record record = own;
    dpq_status st = agree_over_ranks(comm, &record);
    if (spans != NULL) {
        dpq_spans_add(spans, DPQ_SPAN_WAIT, &start_s);
    }
    if (st != DPQ_OK && local != DPQ_OK) {
        dpq_error_set(&own); /* the first error wins over that of the communication which was to spread it */
        return local;
    }
    return st != DPQ_OK ? st : record.code;
}
