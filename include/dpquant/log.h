/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines to stderr: [seconds level rank/size subsystem] text. Rank 0 from info, others from warning. */
#ifndef DPQUANT_LOG_H
#define DPQUANT_LOG_H

#include "dpquant/status.h"

typedef enum { DPQ_LOG_ERROR, DPQ_LOG_WARNING, DPQ_LOG_INFO, DPQ_LOG_DEBUG, DPQ_LOG_TRACE } dpq_log_level;

/* Sets what every line carries. Called once after the communicator is open. LEVEL is for rank 0; other ranks print
 * from warning up, or all when LEVEL is debug or more. */
void dpq_log_setup(int rank, int size, dpq_log_level level);
dpq_log_level dpq_log_current_level(void);
bool dpq_log_enabled(dpq_log_level level);
/* One whole line in one write. SUBSYSTEM is a short word ("engine", "io"). Preserves errno. */
void dpq_log(dpq_log_level level, const char *subsystem, const char *fmt, ...) DPQ_PRINTF(3, 4);
/* A line from this rank whatever its level rule (start banner: one line a rank). */
void dpq_log_every_rank(const char *subsystem, const char *fmt, ...) DPQ_PRINTF(2, 3);
/* Warn once for KEY (a string literal), with the rank. */
void dpq_log_warn_once(const char *key, const char *subsystem, const char *fmt, ...) DPQ_PRINTF(3, 4);

/* Progress on rank 0: a bar with rate and ETA on a terminal, nothing otherwise. done == total ends the line.
 * Any log line first clears the bar. */
void dpq_progress(const char *what, long done, long total);

#endif
