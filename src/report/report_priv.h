/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the two files of a report. */
#ifndef DPQUANT_REPORT_PRIV_H
#define DPQUANT_REPORT_PRIV_H

#include "dpquant/json.h"
#include "dpquant/report.h"

/* "settings": the options of all sets that shape the result, or all others, by dotted key. */
void dpq_report_put_settings(dpq_json_writer *w, const dpq_report *report, bool shapes_result);
/* KEY: the figures as an object, null when there are none. */
void dpq_report_put_eval(dpq_json_writer *w, const char *key, const dpq_eval_figures *figures);

#endif
