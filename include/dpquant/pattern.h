/* SPDX-License-Identifier: Apache-2.0 */
/* Module patterns of recipes and quantization configs: an exact name, or "re:" and a regular expression matched from
 * the start of the name (no implied end anchor). Through PCRE2, with match limits. */
#ifndef DPQUANT_PATTERN_H
#define DPQUANT_PATTERN_H

#include "dpquant/status.h"

typedef struct dpq_pattern dpq_pattern;
/* Errors: DPQ_E_CONFIG with the expression, position and PCRE2's words. */
DPQ_MUST_USE dpq_status dpq_pattern_compile(const char *text, dpq_pattern **out);
void dpq_pattern_destroy(dpq_pattern **pattern);
bool dpq_pattern_matches(const dpq_pattern *pattern, const char *name);

#endif
