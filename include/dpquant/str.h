/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded strings, a growing text buffer, path helpers, nearest-word search; strict number parsing (number.c). */
#ifndef DPQUANT_STR_H
#define DPQUANT_STR_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "dpquant/status.h"

/* Heap copy / formatted heap string; the caller frees with dpq_free. Errors: DPQ_E_MEMORY. */
DPQ_MUST_USE dpq_status dpq_str_dup(const char *text, char **out);
DPQ_MUST_USE dpq_status dpq_str_format(char **out, const char *fmt, ...) DPQ_PRINTF(2, 3);

/* Growing text. Init with {0}; text is NUL-terminated after the first append. */
typedef struct {
    char *text;
    size_t length;
    size_t capacity;
} dpq_text;
DPQ_MUST_USE dpq_status dpq_text_append(dpq_text *t, const char *fmt, ...) DPQ_PRINTF(2, 3);
DPQ_MUST_USE dpq_status dpq_text_append_bytes(dpq_text *t, const char *bytes, size_t n);
void dpq_text_fini(dpq_text *t);

/* Growing list of heap strings owned by the list. Init with {0}. */
typedef struct {
    char **items;
    size_t count;
    size_t capacity;
} dpq_str_list;
DPQ_MUST_USE dpq_status dpq_str_list_append(dpq_str_list *list, const char *text);
bool dpq_str_list_contains(const dpq_str_list *list, const char *text);
void dpq_str_list_fini(dpq_str_list *list);

bool dpq_str_starts_with(const char *text, const char *prefix);
bool dpq_str_ends_with(const char *text, const char *suffix);

/* DIR/NAME; NAME itself when absolute. Heap string. */
DPQ_MUST_USE dpq_status dpq_path_join(const char *dir, const char *name, char **out);
/* The folder part of PATH ("." when there is none). Heap string. */
DPQ_MUST_USE dpq_status dpq_path_dirname(const char *path, char **out);

/* Edit distance, and the candidate nearest to WORD (NULL when none is within a third of its length). */
size_t dpq_str_distance(const char *a, const char *b);
const char *dpq_str_nearest(const char *word, const char *const *candidates, size_t count);

/* Whole text must be the number; no locale, no leading or trailing blanks. false on junk or overflow. */
bool dpq_parse_int64(const char *text, int64_t *out);
bool dpq_parse_double(const char *text, double *out); /* finite only; 1e-3, 2e-5, .5 accepted */
bool dpq_parse_bool(const char *text, bool *out);     /* true | false only */
/* Bytes with an optional unit: 4096, 512M, 5G, 5GB, 1.5GiB; powers of 1024 for K M G T and KiB..., powers of 1000 for
 * KB... */
bool dpq_parse_bytes(const char *text, int64_t *out);

#endif
