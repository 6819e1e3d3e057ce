/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes, the per-thread error record, and the macros that pass errors on (docs/STYLE.md, "Errors"). */
#ifndef DPQUANT_STATUS_H
#define DPQUANT_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* One list: code, exit code of the program, text. */
#define DPQ_STATUS_LIST(X)                                                                                             \
    X(DPQ_OK, 0, "ok")                                                                                                 \
    X(DPQ_E_FAIL, 1, "failure")                                                                                        \
    X(DPQ_E_USAGE, 2, "usage error")                                                                                   \
    X(DPQ_E_CONFIG, 2, "configuration error")                                                                          \
    X(DPQ_E_INPUT, 3, "bad input")                                                                                     \
    X(DPQ_E_SHAPE, 3, "shape mismatch")                                                                                \
    X(DPQ_E_UNSUPPORTED, 3, "not supported")                                                                           \
    X(DPQ_E_MEMORY, 4, "out of memory")                                                                                \
    X(DPQ_E_DISK, 4, "file system error")                                                                              \
    X(DPQ_E_COMM, 5, "communication error")                                                                            \
    X(DPQ_E_DEVICE, 5, "device error")                                                                                 \
    X(DPQ_E_NUMERIC, 6, "numeric error")                                                                               \
    X(DPQ_E_BUG, 70, "internal error")                                                                                 \
    X(DPQ_E_INTERRUPTED, 75, "stopped, can be resumed")

#define DPQ_STATUS_ENUM(code, exit_code, text) code,
typedef enum { DPQ_STATUS_LIST(DPQ_STATUS_ENUM) DPQ_STATUS_COUNT } dpq_status;
#undef DPQ_STATUS_ENUM

#define DPQ_MUST_USE                     __attribute__((warn_unused_result))
#define DPQ_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))

#define DPQ_ERROR_TEXT_BYTES 2048

/* What went wrong, where it was found, and the context lines added on the way up. Plain data: may be sent to other
 * ranks. */
typedef struct {
    dpq_status code;
    char text[DPQ_ERROR_TEXT_BYTES];
    char origin[160]; /* file:line function */
} dpq_error_record;

/* Short name ("DPQ_E_INPUT"), text ("bad input") and process exit code of a status. Never NULL. */
const char *dpq_status_name(dpq_status status);
const char *dpq_status_text(dpq_status status);
int dpq_status_exit_code(dpq_status status);

/* Fill this thread's record (an older record is replaced) and return CODE. Use DPQ_RAISE. */
dpq_status dpq_error_raise(dpq_status code, const char *file, int line, const char *func, const char *fmt, ...)
    DPQ_PRINTF(5, 6);

/* Prefix this thread's record with "<context>: ". Does nothing when no error is recorded. Use DPQ_CONTEXT. */
void dpq_error_add_context(const char *fmt, ...) DPQ_PRINTF(1, 2);

/* This thread's record (borrowed, valid until the next call on this thread); code is DPQ_OK when there is none. */
const dpq_error_record *dpq_error_last(void);
void dpq_error_clear(void);

/* Replace this thread's record by a copy of RECORD: carries an error from a worker thread or another rank. */
void dpq_error_set(const dpq_error_record *record);

#define DPQ_RAISE(code, ...) dpq_error_raise((code), __FILE__, __LINE__, __func__, __VA_ARGS__)

#define DPQ_TRY(call)                                                                                                  \
    do {                                                                                                               \
        dpq_status try_status_ = (call);                                                                               \
        if (try_status_ != DPQ_OK) {                                                                                   \
            return try_status_;                                                                                        \
        }                                                                                                              \
    } while (0)

#define DPQ_TRY_GOTO(st, call, label)                                                                                  \
    do {                                                                                                               \
        (st) = (call);                                                                                                 \
        if ((st) != DPQ_OK) {                                                                                          \
            goto label;                                                                                                \
        }                                                                                                              \
    } while (0)

/* Add one context line when ST is an error; used at two borders only: engine (layer, tensor) and cli (command). */
#define DPQ_CONTEXT(st, ...)                                                                                           \
    do {                                                                                                               \
        if ((st) != DPQ_OK) {                                                                                          \
            dpq_error_add_context(__VA_ARGS__);                                                                        \
        }                                                                                                              \
    } while (0)

/* Drop a must-use result on purpose, with the reason beside it. */
#define DPQ_IGNORE(call, reason)                                                                                       \
    do {                                                                                                               \
        (void)sizeof(reason);                                                                                          \
        if (call) {                                                                                                    \
        }                                                                                                              \
    } while (0)

/* For our own bugs, outside hot loops, in every build. CONDITION has no side effect. */
#define DPQ_ASSERT(condition)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            dpq_assert_fail(#condition, __FILE__, __LINE__);                                                           \
        }                                                                                                              \
    } while (0)
_Noreturn void dpq_assert_fail(const char *condition, const char *file, int line);

#endif
