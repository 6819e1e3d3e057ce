/* SPDX-License-Identifier: Apache-2.0 */
/* What this build is. The Makefile passes the values. */
#ifndef DPQUANT_VERSION_H
#define DPQUANT_VERSION_H

const char *dpq_version(void);  /* "0.1.0" */
const char *dpq_build(void);    /* git commit, or "unknown" */
const char *dpq_compiler(void); /* compiler and flags */

#endif
