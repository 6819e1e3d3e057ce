/* SPDX-License-Identifier: Apache-2.0 */
/* Every key of a recipe as text; list_config.c. */
#ifndef DPQUANT_LIST_PRIV_H
#define DPQUANT_LIST_PRIV_H

#include "dpquant/str.h"

/* Append keys, values, defaults and help from the option tables: plain, or as the page docs/CONFIG.md. */
DPQ_MUST_USE dpq_status dpq_list_config(dpq_text *t, bool markdown);

#endif
