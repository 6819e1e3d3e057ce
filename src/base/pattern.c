/* SPDX-License-Identifier: Apache-2.0 */
/* Module patterns: exact names, and regular expressions through PCRE2 with limits on the work of one match. */
#include "dpquant/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/log.h"
#include "dpquant/str.h"

/* Module names are short: an expression that needs more is a trap (nested quantifiers). Memory in KiB. */
#define MATCH_LIMIT    100000
#define DEPTH_LIMIT    1000
#define HEAP_LIMIT_KIB 4096

struct dpq_pattern {
    char *name;       /* the text after "re:", or the exact name */
    pcre2_code *code; /* NULL for an exact name */
    pcre2_match_context *limits;
};

dpq_status dpq_pattern_compile(const char *text, dpq_pattern **out)
{
    dpq_status st = DPQ_OK;
    dpq_pattern *p = NULL;
    void *memory = NULL;
    bool is_regex = dpq_str_starts_with(text, "re:");
    const char *body = is_regex ? text + 3 : text;
    *out = NULL;
    DPQ_TRY(dpq_alloc(sizeof *p, &memory));
    p = memory;
    DPQ_TRY_GOTO(st, dpq_str_dup(body, &p->name), done);
    if (is_regex) {
        int error = 0;
        PCRE2_SIZE position = 0;
        p->code =
            pcre2_compile((PCRE2_SPTR)body, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED | PCRE2_UTF, &error, &position, NULL);
        if (p->code == NULL) {
            PCRE2_UCHAR words[256];
            pcre2_get_error_message(error, words, sizeof words);
            st = DPQ_RAISE(DPQ_E_CONFIG, "regular expression \"%s\", character %zu: %s", body, (size_t)position + 1,
                           (const char *)words);
            goto done;
        }
        p->limits = pcre2_match_context_create(NULL);
        if (p->limits == NULL) {
            st = DPQ_RAISE(DPQ_E_MEMORY, "regular expression \"%s\": no memory for its limits", body);
            goto done;
        }
        pcre2_set_match_limit(p->limits, MATCH_LIMIT);
        pcre2_set_depth_limit(p->limits, DEPTH_LIMIT);
        pcre2_set_heap_limit(p->limits, HEAP_LIMIT_KIB);
    }
    *out = p;
    p = NULL;
done:
    dpq_pattern_destroy(&p);
    return st;
}

void dpq_pattern_destroy(dpq_pattern **pattern)
{
    dpq_pattern *p = *pattern;
    if (p != NULL) {
        pcre2_match_context_free(p->limits);
        pcre2_code_free(p->code);
        dpq_free(p->name);
        dpq_free(p);
        *pattern = NULL;
    }
}

bool dpq_pattern_matches(const dpq_pattern *pattern, const char *name)
{
    if (pattern->code == NULL) {
        return strcmp(pattern->name, name) == 0;
    }
    int result = PCRE2_ERROR_NOMEMORY;
    pcre2_match_data *match =
        pcre2_match_data_create(1, NULL); /* one a call: a pattern may be used by several threads */
    if (match != NULL) {
        result = pcre2_match(pattern->code, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, match, pattern->limits);
        pcre2_match_data_free(match);
    }
    if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR words[256];
        pcre2_get_error_message(result, words, sizeof words);
        dpq_log(DPQ_LOG_WARNING, "pattern", "regular expression \"%s\" taken as not matching \"%s\": %s", pattern->name,
                name, (const char *)words);
    }
    return result >= 0;
}
