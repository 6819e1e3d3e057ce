/* SPDX-License-Identifier: Apache-2.0 */
/* JSON through jansson: duplicate keys refused, size and depth capped, Python's NaN and Infinity words accepted on
 * request. The only module that includes jansson.h; others hold dpq_json handles. Integers stay integers, reals keep
 * their spelling when a document is re-emitted unchanged (dpq_json_append_member works on text). */
#ifndef DPQUANT_JSON_H
#define DPQUANT_JSON_H

#include <stddef.h>
#include <stdint.h>

#include "dpquant/status.h"
#include "dpquant/str.h"

typedef struct dpq_json dpq_json; /* any JSON value; borrowed unless it came from parse or a _new call */

typedef enum {
    DPQ_JSON_NULL,
    DPQ_JSON_BOOL,
    DPQ_JSON_INT,
    DPQ_JSON_REAL,
    DPQ_JSON_STRING,
    DPQ_JSON_ARRAY,
    DPQ_JSON_OBJECT
} dpq_json_kind;

/* Parse one document (NAME in messages: "NAME:line:column: ..."). Depth at most 64. Words NaN, Infinity, -Infinity as
 * Python emits them are read as null. Errors: DPQ_E_INPUT. */
DPQ_MUST_USE dpq_status dpq_json_parse(const char *bytes, size_t size, const char *name, dpq_json **out);
DPQ_MUST_USE dpq_status dpq_json_read_file(const char *path, size_t max_bytes, dpq_json **out);
void dpq_json_destroy(dpq_json **doc);

dpq_json_kind dpq_json_get_kind(const dpq_json *value);
const dpq_json *dpq_json_member(const dpq_json *object, const char *key); /* NULL when absent or not an object */
size_t dpq_json_size(const dpq_json *value);                              /* items of an array or object */
const dpq_json *dpq_json_item(const dpq_json *array, size_t index);
/* Members in file order: index-th key and value. */
const char *dpq_json_key(const dpq_json *object, size_t index, const dpq_json **value);

/* Typed members. Absent (or null) -> DPQ_OK and *out unchanged, *found false. Wrong type -> DPQ_E_INPUT naming NAME,
 * key, expected, found. found may be NULL. Strings are borrowed. A real accepts an integer. */
DPQ_MUST_USE dpq_status dpq_json_opt_int(const dpq_json *object, const char *name, const char *key, int64_t *out,
                                         bool *found);
DPQ_MUST_USE dpq_status dpq_json_opt_real(const dpq_json *object, const char *name, const char *key, double *out,
                                          bool *found);
DPQ_MUST_USE dpq_status dpq_json_opt_bool(const dpq_json *object, const char *name, const char *key, bool *out,
                                          bool *found);
DPQ_MUST_USE dpq_status dpq_json_opt_string(const dpq_json *object, const char *name, const char *key, const char **out,
                                            bool *found);
/* The bare values (assert the kind). */
int64_t dpq_json_int(const dpq_json *value);
double dpq_json_real(const dpq_json *value);
bool dpq_json_bool(const dpq_json *value);
const char *dpq_json_string(const dpq_json *value);

/* Streaming writer of JSON text, two-space indent, keys in the order given; errors are kept and returned by finish. */
typedef struct dpq_json_writer dpq_json_writer;
DPQ_MUST_USE dpq_status dpq_json_writer_create(dpq_json_writer **out);
/* KEY is NULL inside arrays and for the root. */
void dpq_json_begin_object(dpq_json_writer *w, const char *key);
void dpq_json_begin_array(dpq_json_writer *w, const char *key);
void dpq_json_end(dpq_json_writer *w);
void dpq_json_put_string(dpq_json_writer *w, const char *key, const char *value); /* NULL value -> null */
void dpq_json_put_int(dpq_json_writer *w, const char *key, int64_t value);
void dpq_json_put_real(dpq_json_writer *w, const char *key,
                       double value); /* %.17g shortest that reads back; NaN/Inf -> null */
void dpq_json_put_bool(dpq_json_writer *w, const char *key, bool value);
void dpq_json_put_null(dpq_json_writer *w, const char *key);
/* The text (heap, caller frees with dpq_free), newline at the end; destroys the writer, also on error. */
DPQ_MUST_USE dpq_status dpq_json_writer_finish(dpq_json_writer **w, char **text, size_t *size);

/* SOURCE (text of a JSON object) with the member KEY: VALUE_TEXT appended as last member; all other bytes unchanged.
 * Heap text. Errors: DPQ_E_INPUT when SOURCE is no object. */
DPQ_MUST_USE dpq_status dpq_json_append_member(const char *source, const char *key, const char *value_text, char **out);

#endif
