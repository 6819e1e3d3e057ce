/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes and the error record of each thread. */
#include "dpquant/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *name;
    const char *text;
    int exit_code;
} status_info;

#define STATUS_ROW(code, exit_code, text) {#code, text, exit_code},
static const status_info status_table[] = {DPQ_STATUS_LIST(STATUS_ROW)};
#undef STATUS_ROW

static _Thread_local dpq_error_record last_error;

static const status_info *find_status(dpq_status status)
{
    static const status_info unknown = {"DPQ_E_UNKNOWN", "unknown status", 70};
    if ((int)status < 0 || status >= DPQ_STATUS_COUNT) {
        return &unknown;
    }
    return &status_table[status];
}

const char *dpq_status_name(dpq_status status)
{
    return find_status(status)->name;
}

const char *dpq_status_text(dpq_status status)
{
    return find_status(status)->text;
}

int dpq_status_exit_code(dpq_status status)
{
    return find_status(status)->exit_code;
}

/* Copy SOURCE, cut at the capacity of TARGET; a cut text ends in "...". */
static void copy_text(char *target, size_t capacity, const char *source)
{
    size_t length = strnlen(source, capacity);
    if (length < capacity) {
        memcpy(target, source, length + 1);
        return;
    }
    memcpy(target, source, capacity - 4);
    memcpy(target + capacity - 4, "...", 4);
}

dpq_status dpq_error_raise(dpq_status code, const char *file, int line, const char *func, const char *fmt, ...)
{
    /* Arguments may point into the record that is replaced, so the new text is built aside. */
    char text[DPQ_ERROR_TEXT_BYTES + 1];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    copy_text(last_error.text, sizeof last_error.text, length < 0 ? fmt : text);
    last_error.code = code;
    snprintf(last_error.origin, sizeof last_error.origin, "%s:%d %s", file, line, func);
    return code;
}

void dpq_error_add_context(const char *fmt, ...)
{
    if (last_error.code == DPQ_OK) {
        return;
    }
    char context[DPQ_ERROR_TEXT_BYTES / 2];
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(context, sizeof context, fmt, args);
    va_end(args);
    if (length < 0) {
        return;
    }
    char text[DPQ_ERROR_TEXT_BYTES + sizeof context + 3];
    snprintf(text, sizeof text, "%s: %s", context, last_error.text);
    copy_text(last_error.text, sizeof last_error.text, text);
}

const dpq_error_record *dpq_error_last(void)
{
    return &last_error;
}

void dpq_error_clear(void)
{
    memset(&last_error, 0, sizeof last_error);
}

void dpq_error_set(const dpq_error_record *record)
{
    if (record != &last_error) {
        last_error = *record;
    }
    /* A record from another rank came over a wire: never read past its arrays. */
    last_error.text[sizeof last_error.text - 1] = '\0';
    last_error.origin[sizeof last_error.origin - 1] = '\0';
}

_Noreturn void dpq_assert_fail(const char *condition, const char *file, int line)
{
    char text[512];
    int length =
        snprintf(text, sizeof text, "dpquant: internal error: %s does not hold at %s:%d\n", condition, file, line);
    if (length > 0) {
        size_t bytes = (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
        DPQ_IGNORE(write(STDERR_FILENO, text, bytes) < 0, "the process ends anyway");
    }
    abort();
}
