/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines and the progress bar on stderr. The settings and the bar are the only process-wide state of dpquant. */
#include "dpquant/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dpquant/clock.h"

#define LINE_BYTES        4096
#define MAX_WARNED_KEYS   128
#define REDRAW_INTERVAL_S 0.1
#define BAR_CELLS         24

static const char clear_line[] = "\r\033[K";

static struct {
    pthread_mutex_t lock;
    int rank;
    int size;
    dpq_log_level level;
    double start_s;
    bool started;
    bool bar_visible;
    char bar_what[64];
    double bar_start_s;
    double bar_drawn_s;
    long bar_first; /* work done when the bar first appeared: what a resumed run had does not count for the rate */
    long bar_done;
    const char *warned[MAX_WARNED_KEYS];
    size_t n_warned;
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .size = 1, .level = DPQ_LOG_INFO};

static void start_clock(void)
{
    if (!state.started) {
        state.start_s = dpq_clock_s();
        state.started = true;
    }
}

void dpq_log_setup(int rank, int size, dpq_log_level level)
{
    pthread_mutex_lock(&state.lock);
    start_clock();
    state.rank = rank;
    state.size = size;
    state.level = level;
    pthread_mutex_unlock(&state.lock);
}

dpq_log_level dpq_log_current_level(void)
{
    return state.level;
}

bool dpq_log_enabled(dpq_log_level level)
{
    if (level > state.level) {
        return false;
    }
    return state.rank == 0 || level <= DPQ_LOG_WARNING || state.level >= DPQ_LOG_DEBUG;
}

static void write_all(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t written = write(STDERR_FILENO, text, length);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return; /* stderr is gone; there is no other place to tell */
        }
        text += written;
        length -= (size_t)written;
    }
}

static void write_line(const char *level, const char *subsystem, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));
static void write_line(const char *level, const char *subsystem, const char *fmt, va_list args)
{
    int saved_errno = errno;
    char line[LINE_BYTES];
    pthread_mutex_lock(&state.lock);
    start_clock();
    int head = snprintf(line, sizeof line, "%s[%.3f %s %d/%d %s] ", state.bar_visible ? clear_line : "",
                        dpq_clock_s() - state.start_s, level, state.rank, state.size, subsystem);
    size_t used = head < 0 ? 0 : (size_t)head < sizeof line ? (size_t)head : sizeof line - 1;
    size_t begin = used;
    int body = vsnprintf(line + used, sizeof line - used, fmt, args);
    if (body > 0) {
        used += (size_t)body;
    }
    if (used > sizeof line - 2) { /* keep room for the line end, and show the cut */
        used = sizeof line - 2;
        memcpy(line + used - 3, "...", 3);
    }
    for (size_t i = begin; i < used; i++) { /* names from files must not move the cursor or start a line */
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) {
            line[i] = ' ';
        }
    }
    line[used++] = '\n';
    write_all(line, used);
    state.bar_visible = false;
    pthread_mutex_unlock(&state.lock);
    errno = saved_errno;
}

static const char *level_name(dpq_log_level level)
{
    static const char *const names[] = {"error", "warning", "info", "debug", "trace"};
    return (int)level < 0 || level > DPQ_LOG_TRACE ? "?" : names[level];
}

void dpq_log(dpq_log_level level, const char *subsystem, const char *fmt, ...)
{
    if (!dpq_log_enabled(level)) {
        return;
    }
    va_list args;
    va_start(args, fmt);
    write_line(level_name(level), subsystem, fmt, args);
    va_end(args);
}

void dpq_log_every_rank(const char *subsystem, const char *fmt, ...)
{
    if (state.level < DPQ_LOG_INFO) {
        return;
    }
    va_list args;
    va_start(args, fmt);
    write_line(level_name(DPQ_LOG_INFO), subsystem, fmt, args);
    va_end(args);
}

/* True when KEY is new. A full table forgets nothing: what does not fit is printed each time. */
static bool remember_key(const char *key)
{
    bool is_new = true;
    pthread_mutex_lock(&state.lock);
    for (size_t i = 0; i < state.n_warned && is_new; i++) {
        is_new = strcmp(state.warned[i], key) != 0;
    }
    if (is_new && state.n_warned < MAX_WARNED_KEYS) {
        state.warned[state.n_warned++] = key;
    }
    pthread_mutex_unlock(&state.lock);
    return is_new;
}

void dpq_log_warn_once(const char *key, const char *subsystem, const char *fmt, ...)
{
    if (!dpq_log_enabled(DPQ_LOG_WARNING) || !remember_key(key)) {
        return;
    }
    va_list args;
    va_start(args, fmt);
    write_line(level_name(DPQ_LOG_WARNING), subsystem, fmt, args);
    va_end(args);
}

static void draw_bar(const char *what, long done, long total, double now_s)
{
    char cells[BAR_CELLS + 1];
    int n_full = (int)((double)BAR_CELLS * (double)done / (double)total);
    for (int i = 0; i < BAR_CELLS; i++) {
        cells[i] = i < n_full ? '#' : '.';
    }
    cells[BAR_CELLS] = '\0';
    double elapsed_s = now_s - state.bar_start_s;
    double rate = elapsed_s > 0 ? (double)(done - state.bar_first) / elapsed_s : 0;
    char rest[64] = "";
    if (done == total) {
        snprintf(rest, sizeof rest, "%.1f s", elapsed_s);
    } else if (rate > 0) {
        long eta_s = (long)((double)(total - done) / rate + 0.5);
        snprintf(rest, sizeof rest, "ETA %ld:%02ld:%02ld", eta_s / 3600, eta_s / 60 % 60, eta_s % 60);
    }
    char line[256];
    int length = snprintf(line, sizeof line, "%s%.20s [%s] %ld/%ld %.3g/s %s%s", clear_line, what, cells, done, total,
                          rate, rest, done == total ? "\n" : "");
    if (length > 0) {
        write_all(line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
    }
}

void dpq_progress(const char *what, long done, long total)
{
    if (state.rank != 0 || state.level < DPQ_LOG_INFO || total <= 0 || done < 0 || done > total) {
        return;
    }
    int saved_errno = errno;
    if (!isatty(STDERR_FILENO)) {
        errno = saved_errno;
        return;
    }
    pthread_mutex_lock(&state.lock);
    double now_s = dpq_clock_s();
    if (strncmp(state.bar_what, what, sizeof state.bar_what - 1) != 0 || done < state.bar_done) {
        snprintf(state.bar_what, sizeof state.bar_what, "%s", what);
        state.bar_start_s = now_s;
        state.bar_drawn_s = 0;
        state.bar_first = done;
    }
    state.bar_done = done;
    if (done == total || now_s - state.bar_drawn_s >= REDRAW_INTERVAL_S) {
        draw_bar(what, done, total, now_s);
        state.bar_drawn_s = now_s;
        state.bar_visible = done != total;
    }
    if (done == total) {
        state.bar_what[0] = '\0'; /* the next call starts a new bar, also for the same work */
    }
    pthread_mutex_unlock(&state.lock);
    errno = saved_errno;
}
