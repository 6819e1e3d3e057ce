/* SPDX-License-Identifier: Apache-2.0 */
/* Heap strings, growing text and string lists, path helpers, edit distance. */
#include "dpquant/str.h"

#include <stdio.h>
#include <string.h>

#include "dpquant/alloc.h"

/* Words longer than this are not compared letter by letter. */
#define DISTANCE_MAX_LENGTH 255

dpq_status dpq_str_dup(const char *text, char **out)
{
    *out = NULL;
    size_t bytes = strlen(text) + 1;
    void *memory = NULL;
    DPQ_TRY(dpq_alloc(bytes, &memory));
    memcpy(memory, text, bytes);
    *out = memory;
    return DPQ_OK;
}

/* At least ROOM bytes behind the text, at least doubling, so appending stays linear. */
static dpq_status reserve_text(dpq_text *t, size_t room)
{
    size_t need = 0;
    DPQ_TRY(dpq_add_size(t->length, room, &need));
    if (need <= t->capacity) {
        return DPQ_OK;
    }
    size_t capacity = t->capacity > SIZE_MAX / 2 ? need : 2 * t->capacity;
    capacity = capacity < need ? need : capacity;
    void *memory = NULL;
    DPQ_TRY(dpq_alloc(capacity < 64 ? 64 : capacity, &memory));
    if (t->length) {
        memcpy(memory, t->text, t->length);
    }
    dpq_free(t->text);
    t->text = memory;
    t->capacity = capacity < 64 ? 64 : capacity;
    return DPQ_OK;
}

static dpq_status append_formatted(dpq_text *t, const char *fmt, va_list args) __attribute__((format(printf, 2, 0)));
static dpq_status append_formatted(dpq_text *t, const char *fmt, va_list args)
{
    va_list again;
    va_copy(again, args);
    dpq_status st = DPQ_OK;
    int length = vsnprintf(NULL, 0, fmt, args);
    if (length < 0) {
        st = DPQ_RAISE(DPQ_E_BUG, "cannot format \"%s\"", fmt);
        goto done;
    }
    DPQ_TRY_GOTO(st, reserve_text(t, (size_t)length + 1), done);
    vsnprintf(t->text + t->length, (size_t)length + 1, fmt, again);
    t->length += (size_t)length;
done:
    va_end(again);
    return st;
}

dpq_status dpq_text_append(dpq_text *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    dpq_status st = append_formatted(t, fmt, args);
    va_end(args);
    return st;
}

dpq_status dpq_text_append_bytes(dpq_text *t, const char *bytes, size_t n)
{
    size_t room = 0;
    DPQ_TRY(dpq_add_size(n, 1, &room));
    DPQ_TRY(reserve_text(t, room));
    if (n) {
        memcpy(t->text + t->length, bytes, n);
    }
    t->length += n;
    t->text[t->length] = '\0';
    return DPQ_OK;
}

void dpq_text_fini(dpq_text *t)
{
    dpq_free(t->text);
    memset(t, 0, sizeof *t);
}

dpq_status dpq_str_format(char **out, const char *fmt, ...)
{
    *out = NULL;
    dpq_text text = {0};
    va_list args;
    va_start(args, fmt);
    dpq_status st = append_formatted(&text, fmt, args);
    va_end(args);
    if (st != DPQ_OK) {
        dpq_text_fini(&text);
        return st;
    }
    *out = text.text;
    return DPQ_OK;
}

dpq_status dpq_str_list_append(dpq_str_list *list, const char *text)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 8;
        void *items = NULL;
        DPQ_TRY(dpq_alloc_array((int64_t)capacity, sizeof(char *), &items));
        if (list->count) {
            memcpy(items, list->items, list->count * sizeof(char *));
        }
        dpq_free(list->items);
        list->items = items;
        list->capacity = capacity;
    }
    DPQ_TRY(dpq_str_dup(text, &list->items[list->count]));
    list->count++;
    return DPQ_OK;
}

bool dpq_str_list_contains(const dpq_str_list *list, const char *text)
{
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->items[i], text) == 0) {
            return true;
        }
    }
    return false;
}

void dpq_str_list_fini(dpq_str_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        dpq_free(list->items[i]);
    }
    dpq_free(list->items);
    memset(list, 0, sizeof *list);
}

bool dpq_str_starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

bool dpq_str_ends_with(const char *text, const char *suffix)
{
    size_t text_length = strlen(text);
    size_t suffix_length = strlen(suffix);
    return text_length >= suffix_length && strcmp(text + text_length - suffix_length, suffix) == 0;
}

dpq_status dpq_path_join(const char *dir, const char *name, char **out)
{
    *out = NULL;
    if (name[0] == '/' || dir[0] == '\0') {
        return dpq_str_dup(name, out);
    }
    return dpq_str_format(out, "%s%s%s", dir, dpq_str_ends_with(dir, "/") ? "" : "/", name);
}

dpq_status dpq_path_dirname(const char *path, char **out)
{
    *out = NULL;
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        length--; /* "a/b/" lies in "a", as "a/b" does */
    }
    while (length > 0 && path[length - 1] != '/') {
        length--;
    }
    if (length == 0) {
        return dpq_str_dup(".", out);
    }
    while (length > 1 && path[length - 1] == '/') {
        length--;
    }
    return dpq_str_format(out, "%.*s", (int)length, path);
}

/* Levenshtein distance, one row at a time: row[j] is the distance of the first i letters of A to the first j of B.
 * What both have in common at the ends does not count; beyond DISTANCE_MAX_LENGTH nothing is taken as alike. */
size_t dpq_str_distance(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    size_t n = strlen(a);
    size_t m = strlen(b);
    while (n && m && a[n - 1] == b[m - 1]) {
        n--;
        m--;
    }
    if (n == 0 || m == 0 || n > DISTANCE_MAX_LENGTH || m > DISTANCE_MAX_LENGTH) {
        return n > m ? n : m;
    }
    size_t row[DISTANCE_MAX_LENGTH + 1];
    for (size_t j = 0; j <= m; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

const char *dpq_str_nearest(const char *word, const char *const *candidates, size_t count)
{
    /* A third of the length, rounded up: one wrong letter in a word of two or three is still recognised. */
    size_t best_distance = (strlen(word) + 2) / 3 + 1;
    const char *best = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t distance = dpq_str_distance(word, candidates[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = candidates[i];
        }
    }
    return best;
}
