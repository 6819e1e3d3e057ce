/* SPDX-License-Identifier: Apache-2.0 */
/* JSON text helpers shared inside the io module. */
#ifndef DPQUANT_JSON_PRIV_H
#define DPQUANT_JSON_PRIV_H

#include "dpquant/status.h"
#include "dpquant/str.h"

/* Append VALUE as a JSON string with its quotes. Bytes that are no UTF-8 become U+FFFD. */
DPQ_MUST_USE dpq_status dpq_json_append_quoted(dpq_text *text, const char *value);

/* TEXT copied for a message: control bytes become '?', cut to the buffer. Returns BUFFER. */
const char *dpq_json_printable(const char *text, char *buffer, size_t buffer_bytes);

#endif
