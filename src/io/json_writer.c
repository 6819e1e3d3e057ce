/* SPDX-License-Identifier: Apache-2.0 */
/* Writing JSON: a streaming writer with two-space indent, and appending one member to a text that otherwise stays as it
 * is. */
#include "dpquant/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "json_priv.h"

#define MAX_DEPTH 64

struct dpq_json_writer {
    dpq_text text;
    dpq_status status; /* the first error; later calls do nothing */
    dpq_error_record error;
    int depth;
    bool root_written;
    struct {
        bool is_object;
        size_t members;
    } level[MAX_DEPTH];
};

/* Bytes of the UTF-8 sequence at S, 0 when there is none (overlong, surrogate, above U+10FFFF, cut off). */
static size_t utf8_sequence(const unsigned char *s)
{
    if (s[0] < 0x80) {
        return 1;
    }
    size_t n = s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) { /* also stops at the terminating NUL */
            return 0;
        }
    }
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f)) {
        return 0;
    }
    return n;
}

dpq_status dpq_json_append_quoted(dpq_text *text, const char *value)
{
    const unsigned char *s = (const unsigned char *)value;
    DPQ_TRY(dpq_text_append_bytes(text, "\"", 1));
    while (*s != '\0') {
        const unsigned char *begin = s; /* a run that is copied as it is */
        size_t n = 0;
        while (*s >= 0x20 && *s != '"' && *s != '\\' && (n = utf8_sequence(s)) > 0) {
            s += n;
        }
        if (s > begin) {
            DPQ_TRY(dpq_text_append_bytes(text, (const char *)begin, (size_t)(s - begin)));
        }
        if (*s == '\0') {
            break;
        }
        if (*s == '"' || *s == '\\') {
            DPQ_TRY(dpq_text_append(text, "\\%c", *s));
        } else if (*s == '\n' || *s == '\t' || *s == '\r') {
            DPQ_TRY(dpq_text_append_bytes(text, *s == '\n' ? "\\n" : *s == '\t' ? "\\t" : "\\r", 2));
        } else {
            DPQ_TRY(dpq_text_append(text, "\\u%04x", *s < 0x20 ? (unsigned)*s : 0xfffdu));
        }
        s++;
    }
    return dpq_text_append_bytes(text, "\"", 1);
}

dpq_status dpq_json_writer_create(dpq_json_writer **out)
{
    void *memory = NULL;
    *out = NULL;
    DPQ_TRY(dpq_alloc(sizeof(dpq_json_writer), &memory));
    *out = memory;
    return DPQ_OK;
}

static void keep_error(dpq_json_writer *w, dpq_status st)
{
    if (st != DPQ_OK && w->status == DPQ_OK) {
        w->status = st;
        w->error = *dpq_error_last();
    }
}

static dpq_status new_line(dpq_json_writer *w)
{
    static const char blanks[2 * MAX_DEPTH + 2] = "\n"
                                                  "                                                                "
                                                  "                                                                ";
    return dpq_text_append_bytes(&w->text, blanks, 1 + 2 * (size_t)w->depth);
}

/* Comma, line and key before a value. */
static dpq_status lead_in(dpq_json_writer *w, const char *key)
{
    if (w->depth == 0) {
        if (w->root_written || key != NULL) {
            return DPQ_RAISE(DPQ_E_BUG, "JSON writer: the root is one value without a key");
        }
        w->root_written = true;
        return DPQ_OK;
    }
    bool is_object = w->level[w->depth - 1].is_object;
    if (is_object != (key != NULL)) {
        return DPQ_RAISE(DPQ_E_BUG, "JSON writer: %s", is_object ? "member without a key" : "array item with a key");
    }
    if (w->level[w->depth - 1].members++ > 0) {
        DPQ_TRY(dpq_text_append_bytes(&w->text, ",", 1));
    }
    DPQ_TRY(new_line(w));
    if (key != NULL) {
        DPQ_TRY(dpq_json_append_quoted(&w->text, key));
        DPQ_TRY(dpq_text_append_bytes(&w->text, ": ", 2));
    }
    return DPQ_OK;
}

static dpq_status begin(dpq_json_writer *w, const char *key, bool is_object)
{
    if (w->depth >= MAX_DEPTH) {
        return DPQ_RAISE(DPQ_E_BUG, "JSON writer: nested more than %d deep", MAX_DEPTH);
    }
    DPQ_TRY(lead_in(w, key));
    w->level[w->depth].is_object = is_object;
    w->level[w->depth].members = 0;
    w->depth++;
    return dpq_text_append_bytes(&w->text, is_object ? "{" : "[", 1);
}

void dpq_json_begin_object(dpq_json_writer *w, const char *key)
{
    if (w->status == DPQ_OK) {
        keep_error(w, begin(w, key, true));
    }
}

void dpq_json_begin_array(dpq_json_writer *w, const char *key)
{
    if (w->status == DPQ_OK) {
        keep_error(w, begin(w, key, false));
    }
}

static dpq_status end(dpq_json_writer *w)
{
    if (w->depth == 0) {
        return DPQ_RAISE(DPQ_E_BUG, "JSON writer: end without begin");
    }
    w->depth--;
    if (w->level[w->depth].members > 0) {
        DPQ_TRY(new_line(w));
    }
    return dpq_text_append_bytes(&w->text, w->level[w->depth].is_object ? "}" : "]", 1);
}

void dpq_json_end(dpq_json_writer *w)
{
    if (w->status == DPQ_OK) {
        keep_error(w, end(w));
    }
}

static dpq_status put_word(dpq_json_writer *w, const char *key, const char *word)
{
    DPQ_TRY(lead_in(w, key));
    return dpq_text_append_bytes(&w->text, word, strlen(word));
}

static dpq_status put_quoted(dpq_json_writer *w, const char *key, const char *value)
{
    DPQ_TRY(lead_in(w, key));
    return dpq_json_append_quoted(&w->text, value);
}

void dpq_json_put_string(dpq_json_writer *w, const char *key, const char *value)
{
    if (w->status == DPQ_OK) {
        keep_error(w, value == NULL ? put_word(w, key, "null") : put_quoted(w, key, value));
    }
}

void dpq_json_put_int(dpq_json_writer *w, const char *key, int64_t value)
{
    char word[32];
    snprintf(word, sizeof word, "%lld", (long long)value);
    if (w->status == DPQ_OK) {
        keep_error(w, put_word(w, key, word));
    }
}

void dpq_json_put_real(dpq_json_writer *w, const char *key, double value)
{
    char word[48] = "null";
    if (isfinite(value)) {
        /* The fewest digits that read back as the same value; 17 always do. */
        for (int digits = 1; digits <= 17; digits++) {
            snprintf(word, sizeof word - 2, "%.*g", digits, value);
            if (strtod(word, NULL) == value) {
                break;
            }
        }
        for (char *c = word; *c != '\0'; c++) { /* a locale may have another decimal point */
            if (strchr("0123456789+-e", *c) == NULL) {
                *c = '.';
            }
        }
        if (strpbrk(word, ".e") == NULL) {
            strcat(word, ".0"); /* stays a real for the reader */
        }
    }
    if (w->status == DPQ_OK) {
        keep_error(w, put_word(w, key, word));
    }
}

void dpq_json_put_bool(dpq_json_writer *w, const char *key, bool value)
{
    if (w->status == DPQ_OK) {
        keep_error(w, put_word(w, key, value ? "true" : "false"));
    }
}

void dpq_json_put_null(dpq_json_writer *w, const char *key)
{
    if (w->status == DPQ_OK) {
        keep_error(w, put_word(w, key, "null"));
    }
}

dpq_status dpq_json_writer_finish(dpq_json_writer **w, char **text, size_t *size)
{
    dpq_json_writer *writer = *w;
    *w = NULL;
    *text = NULL;
    *size = 0;
    dpq_status st = writer->status;
    if (st != DPQ_OK) {
        dpq_error_set(&writer->error);
    } else if (writer->depth != 0 || !writer->root_written) {
        st = DPQ_RAISE(DPQ_E_BUG, "JSON writer: finished with %d open values and %s root", writer->depth,
                       writer->root_written ? "a" : "no");
    } else {
        st = dpq_text_append_bytes(&writer->text, "\n", 1);
    }
    if (st == DPQ_OK) {
        *text = writer->text.text;
        *size = writer->text.length;
    } else {
        dpq_text_fini(&writer->text);
    }
    dpq_free(writer);
    return st;
}

/* ---- appending a member ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* VALUE without blanks at its end; each of its lines is indented by INDENT (line breaks occur outside strings only). */
static dpq_status append_indented(dpq_text *out, const char *value, const char *indent, size_t indent_bytes)
{
    size_t n = strlen(value);
    while (n > 0 && is_blank(value[n - 1])) {
        n--;
    }
    size_t begin_at = 0;
    for (size_t i = 0; i < n; i++) {
        if (value[i] == '\n') {
            DPQ_TRY(dpq_text_append_bytes(out, value + begin_at, i + 1 - begin_at));
            DPQ_TRY(dpq_text_append_bytes(out, indent, indent_bytes));
            begin_at = i + 1;
        }
    }
    return dpq_text_append_bytes(out, value + begin_at, n - begin_at);
}

dpq_status dpq_json_append_member(const char *source, const char *key, const char *value_text, char **out)
{
    dpq_status st = DPQ_OK;
    dpq_json *doc = NULL;
    dpq_text text = {0};
    size_t n = strlen(source);
    *out = NULL;
    DPQ_TRY_GOTO(st, dpq_json_parse(source, n, "JSON text", &doc), done);
    if (dpq_json_get_kind(doc) != DPQ_JSON_OBJECT) {
        st = DPQ_RAISE(DPQ_E_INPUT, "cannot add key \"%s\": the JSON text is no object", key);
        goto done;
    }
    if (dpq_json_member(doc, key) != NULL) {
        st = DPQ_RAISE(DPQ_E_INPUT, "cannot add key \"%s\": the JSON text has it already", key);
        goto done;
    }
    bool is_empty = dpq_json_size(doc) == 0;
    dpq_json_destroy(&doc);
    /* The text is valid, so its last non-blank byte is the closing brace and its first the opening one. */
    size_t close_at = n;
    while (source[--close_at] != '}') {
    }
    size_t last = close_at;
    while (last > 0 && is_blank(source[last - 1])) {
        last--;
    }
    const char *lead = strchr(source, '{') + 1; /* the blanks before the first member are repeated before the new one */
    size_t lead_bytes = 0;
    while (!is_empty && is_blank(lead[lead_bytes])) {
        lead_bytes++;
    }
    size_t indent_at = lead_bytes;
    while (indent_at > 0 && lead[indent_at - 1] != '\n') {
        indent_at--;
    }
    DPQ_TRY_GOTO(st, dpq_text_append_bytes(&text, source, last), done);
    if (!is_empty) {
        DPQ_TRY_GOTO(st, dpq_text_append_bytes(&text, ",", 1), done);
        const char *between = lead_bytes > 0 ? lead : " ";
        DPQ_TRY_GOTO(st, dpq_text_append_bytes(&text, between, lead_bytes > 0 ? lead_bytes : 1), done);
    }
    DPQ_TRY_GOTO(st, dpq_json_append_quoted(&text, key), done);
    DPQ_TRY_GOTO(st, dpq_text_append_bytes(&text, ": ", 2), done);
    DPQ_TRY_GOTO(st, append_indented(&text, value_text, lead + indent_at, indent_at > 0 ? lead_bytes - indent_at : 0),
                 done);
    DPQ_TRY_GOTO(st, dpq_text_append_bytes(&text, source + last, n - last), done);
    DPQ_TRY_GOTO(st, dpq_json_parse(text.text, text.length, "JSON text with the added member", &doc), done);
    *out = text.text;
    memset(&text, 0, sizeof text);
done:
    dpq_json_destroy(&doc);
    dpq_text_fini(&text);
    return st;
}
