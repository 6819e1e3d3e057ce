/* SPDX-License-Identifier: Apache-2.0 */
/* Status records, size arithmetic and memory, workspace, strings, strict numbers, clock, log lines. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dpquant/alloc.h"
#include "dpquant/clock.h"
#include "dpquant/log.h"
#include "dpquant/str.h"

static void test_status_table(void **state)
{
    (void)state;
    assert_string_equal(dpq_status_name(DPQ_E_INPUT), "DPQ_E_INPUT");
    assert_string_equal(dpq_status_text(DPQ_E_INPUT), "bad input");
    assert_int_equal(dpq_status_exit_code(DPQ_OK), 0);
    assert_int_equal(dpq_status_exit_code(DPQ_E_CONFIG), 2);
    assert_int_equal(dpq_status_exit_code(DPQ_E_BUG), 70);
    assert_int_equal(dpq_status_exit_code(DPQ_E_INTERRUPTED), 75);
    assert_non_null(dpq_status_name((dpq_status)999));
    assert_int_equal(dpq_status_exit_code((dpq_status)-1), 70);
}

static dpq_status fail_with(int value)
{
    return DPQ_RAISE(DPQ_E_INPUT, "value is %d", value);
}

static dpq_status pass_on(int value, bool *reached)
{
    DPQ_TRY(fail_with(value));
    *reached = true;
    return DPQ_OK;
}

static void test_error_record(void **state)
{
    (void)state;
    bool reached = false;
    dpq_error_clear();
    dpq_error_add_context("nothing to add to");
    assert_int_equal(dpq_error_last()->code, DPQ_OK);
    assert_string_equal(dpq_error_last()->text, "");
    assert_int_equal(pass_on(3, &reached), DPQ_E_INPUT);
    assert_false(reached);
    dpq_error_add_context("layer %d", 7);
    assert_string_equal(dpq_error_last()->text, "layer 7: value is 3");
    assert_non_null(strstr(dpq_error_last()->origin, "fail_with"));
    /* The old text may be an argument of the new error. */
    assert_int_equal(DPQ_RAISE(DPQ_E_BUG, "again: %s", dpq_error_last()->text), DPQ_E_BUG);
    assert_string_equal(dpq_error_last()->text, "again: layer 7: value is 3");
    dpq_error_clear();
    assert_int_equal(dpq_error_last()->code, DPQ_OK);
}

static void test_error_long_text(void **state)
{
    (void)state;
    static char big[3 * DPQ_ERROR_TEXT_BYTES];
    memset(big, 'x', sizeof big - 1);
    assert_int_equal(DPQ_RAISE(DPQ_E_FAIL, "%s", big), DPQ_E_FAIL);
    size_t length = strlen(dpq_error_last()->text);
    assert_int_equal(length, DPQ_ERROR_TEXT_BYTES - 1);
    assert_string_equal(dpq_error_last()->text + length - 3, "...");
    dpq_error_add_context("%s", big);
    dpq_error_add_context("file %s", "a");
    assert_true(dpq_str_starts_with(dpq_error_last()->text, "file a: xxx"));
    assert_true(strlen(dpq_error_last()->text) < DPQ_ERROR_TEXT_BYTES);
}

static void test_error_set(void **state)
{
    (void)state;
    static dpq_error_record record;
    memset(&record, 'y', sizeof record); /* no terminator, as from a broken peer */
    record.code = DPQ_E_COMM;
    dpq_error_set(&record);
    assert_int_equal(dpq_error_last()->code, DPQ_E_COMM);
    assert_true(strlen(dpq_error_last()->text) < DPQ_ERROR_TEXT_BYTES);
    dpq_error_set(dpq_error_last());
    assert_int_equal(dpq_error_last()->code, DPQ_E_COMM);
}

static void *raise_in_thread(void *argument)
{
    (void)argument;
    return (void *)(intptr_t)(dpq_error_last()->code == DPQ_OK && fail_with(9) == DPQ_E_INPUT);
}

static void test_error_is_per_thread(void **state)
{
    (void)state;
    dpq_error_clear();
    pthread_t thread;
    void *result = NULL;
    assert_int_equal(DPQ_RAISE(DPQ_E_DISK, "mine"), DPQ_E_DISK);
    assert_int_equal(pthread_create(&thread, NULL, raise_in_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_int_equal((intptr_t)result, 1);
    assert_string_equal(dpq_error_last()->text, "mine");
}

static void test_sizes(void **state)
{
    (void)state;
    size_t out = 1;
    assert_int_equal(dpq_mul_size(6, 7, &out), DPQ_OK);
    assert_int_equal(out, 42);
    assert_int_equal(dpq_mul_size(SIZE_MAX, 2, &out), DPQ_E_MEMORY);
    assert_int_equal(out, 0);
    assert_int_equal(dpq_add_size(SIZE_MAX - 1, 1, &out), DPQ_OK);
    assert_true(out == SIZE_MAX);
    assert_int_equal(dpq_add_size(SIZE_MAX, 1, &out), DPQ_E_MEMORY);
}

static void test_alloc(void **state)
{
    (void)state;
    void *memory = NULL;
    assert_int_equal(dpq_alloc(1000, &memory), DPQ_OK);
    assert_int_equal((uintptr_t)memory % DPQ_ALIGNMENT_BYTES, 0);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(((char *)memory)[i], 0);
    }
    dpq_free(memory);
    assert_int_equal(dpq_alloc(0, &memory), DPQ_OK);
    assert_non_null(memory);
    dpq_free(memory);
    dpq_free(NULL);
    assert_int_equal(dpq_alloc_array(-1, 4, &memory), DPQ_E_MEMORY);
    assert_null(memory);
    assert_int_equal(dpq_alloc_array(INT64_MAX, 4, &memory), DPQ_E_MEMORY);
    assert_int_equal(dpq_alloc(SIZE_MAX, &memory), DPQ_E_MEMORY);
    assert_non_null(strstr(dpq_error_last()->text, "18446744073709551615"));
    assert_null(memory);
}

static void test_host_memory(void **state)
{
    (void)state;
    size_t available = dpq_memory_available_bytes();
    assert_true(available > ((size_t)1 << 20) && available < ((size_t)1 << 50));
    size_t before = dpq_memory_peak_bytes();
    assert_true(before > 100000);
    void *memory = NULL;
    size_t bytes = before + ((size_t)32 << 20);
    assert_int_equal(dpq_alloc(bytes, &memory), DPQ_OK);
    dpq_free(memory);
    assert_true(dpq_memory_peak_bytes() >= bytes);
}

static void test_workspace(void **state)
{
    (void)state;
    dpq_workspace *ws = NULL;
    assert_int_equal(dpq_workspace_create(&ws), DPQ_OK);
    dpq_workspace_mark start = dpq_workspace_get_mark(ws);
    dpq_workspace_release(ws, start);
    void *a = NULL, *b = NULL, *big = NULL, *again = NULL;
    assert_int_equal(dpq_workspace_alloc(ws, 10, 4, &a), DPQ_OK);
    memset(a, 1, 40);
    dpq_workspace_mark mark = dpq_workspace_get_mark(ws);
    assert_int_equal(dpq_workspace_alloc(ws, 0, 4, &b), DPQ_OK);
    assert_ptr_not_equal(a, b);
    assert_int_equal((uintptr_t)b % DPQ_ALIGNMENT_BYTES, 0);
    assert_int_equal(dpq_workspace_alloc(ws, 5000000, 1, &big), DPQ_OK); /* another chunk */
    memset(big, 2, 5000000);
    dpq_workspace_release(ws, mark);
    assert_int_equal(dpq_workspace_alloc(ws, 1, 1, &again), DPQ_OK);
    assert_ptr_equal(again, b); /* the place is given out again */
    for (int i = 0; i < 40; i++) {
        assert_int_equal(((char *)a)[i], 1);
    }
    dpq_workspace_release(ws, start);
    assert_int_equal(dpq_workspace_alloc(ws, 10, 4, &again), DPQ_OK);
    assert_ptr_equal(again, a);
    assert_int_equal(dpq_workspace_alloc(ws, -1, 4, &again), DPQ_E_MEMORY);
    assert_int_equal(dpq_workspace_alloc(ws, INT64_MAX, 4, &again), DPQ_E_MEMORY);
    assert_int_equal(dpq_workspace_alloc(ws, INT64_MAX, 2, &again), DPQ_E_MEMORY);
    assert_null(again);
    dpq_workspace_destroy(&ws);
    assert_null(ws);
    dpq_workspace_destroy(&ws);
}

/* Nested marks with growing requests: every live block keeps its bytes, and peak memory stays bounded. */
static void test_workspace_nested(void **state)
{
    (void)state;
    enum { LEVELS = 12 };
    dpq_workspace *ws = NULL;
    assert_int_equal(dpq_workspace_create(&ws), DPQ_OK);
    for (int round = 1; round <= 6; round++) {
        dpq_workspace_mark marks[LEVELS];
        unsigned char *blocks[LEVELS];
        int64_t sizes[LEVELS];
        for (int i = 0; i < LEVELS; i++) {
            void *block = NULL;
            marks[i] = dpq_workspace_get_mark(ws);
            sizes[i] = (int64_t)round * 100003 * (i % 5 + 1) + 1;
            assert_int_equal(dpq_workspace_alloc(ws, sizes[i], 1, &block), DPQ_OK);
            blocks[i] = block;
            memset(block, i + 1, (size_t)sizes[i]);
        }
        for (int i = LEVELS - 1; i >= 0; i--) {
            assert_int_equal(blocks[i][0], i + 1);
            assert_int_equal(blocks[i][sizes[i] - 1], i + 1);
            dpq_workspace_release(ws, marks[i]);
        }
    }
    dpq_workspace_destroy(&ws);
}

static void test_text(void **state)
{
    (void)state;
    dpq_text t = {0};
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(dpq_text_append(&t, "%d,", i % 10), DPQ_OK);
    }
    assert_int_equal(t.length, 2000);
    assert_int_equal(strlen(t.text), 2000);
    assert_int_equal(dpq_text_append_bytes(&t, "a\0b", 3), DPQ_OK);
    assert_int_equal(t.length, 2003);
    assert_memory_equal(t.text + 2000, "a\0b\0", 4);
    dpq_text_fini(&t);
    assert_null(t.text);
    assert_int_equal(dpq_text_append_bytes(&t, NULL, 0), DPQ_OK);
    assert_string_equal(t.text, "");
    dpq_text_fini(&t);
}

static void test_str_list(void **state)
{
    (void)state;
    dpq_str_list list = {0};
    for (int i = 0; i < 100; i++) {
        char word[16];
        snprintf(word, sizeof word, "w%d", i);
        assert_int_equal(dpq_str_list_append(&list, word), DPQ_OK);
    }
    assert_int_equal(list.count, 100);
    assert_string_equal(list.items[99], "w99");
    assert_true(dpq_str_list_contains(&list, "w42"));
    assert_false(dpq_str_list_contains(&list, "w100"));
    dpq_str_list_fini(&list);
    assert_int_equal(list.count, 0);
}

static void check_path(dpq_status (*function)(const char *, char **), const char *path, const char *expected)
{
    char *out = NULL;
    assert_int_equal(function(path, &out), DPQ_OK);
    assert_string_equal(out, expected);
    dpq_free(out);
}

static dpq_status join_to_a_b(const char *name, char **out)
{
    return dpq_path_join("a/b", name, out);
}

static void test_paths(void **state)
{
    (void)state;
    check_path(join_to_a_b, "c", "a/b/c");
    check_path(join_to_a_b, "/c", "/c");
    check_path(join_to_a_b, "../c", "a/b/../c");
    check_path(dpq_path_dirname, "a/b.yaml", "a");
    check_path(dpq_path_dirname, "b.yaml", ".");
    check_path(dpq_path_dirname, "/b.yaml", "/");
    check_path(dpq_path_dirname, "a//b", "a");
    check_path(dpq_path_dirname, "a/b/", "a");
    check_path(dpq_path_dirname, "/", "/");
    check_path(dpq_path_dirname, "", ".");
    char *out = NULL;
    assert_int_equal(dpq_path_join("/", "c", &out), DPQ_OK);
    assert_string_equal(out, "/c");
    dpq_free(out);
    assert_true(dpq_str_starts_with("re:x", "re:") && !dpq_str_starts_with("r", "re:"));
    assert_true(dpq_str_ends_with("a.h5", ".h5") && !dpq_str_ends_with("h5", ".h5"));
}

static void test_distance(void **state)
{
    (void)state;
    assert_int_equal(dpq_str_distance("", ""), 0);
    assert_int_equal(dpq_str_distance("abc", ""), 3);
    assert_int_equal(dpq_str_distance("kitten", "sitting"), 3);
    assert_int_equal(dpq_str_distance("bts", "bits"), 1);
    assert_int_equal(dpq_str_distance("ab", "ba"), 2);
    assert_int_equal(dpq_str_distance("aXbYc", "aYbXc"), 2);
    const char *const words[] = {"cuda", "cpu", "auto"};
    assert_string_equal(dpq_str_nearest("cpi", words, 3), "cpu");
    assert_string_equal(dpq_str_nearest("coda", words, 3), "cuda");
    assert_null(dpq_str_nearest("vulkan", words, 3));
    assert_null(dpq_str_nearest("cpu", words, 0));
    static char big[5000];
    memset(big, 'x', sizeof big - 1);
    assert_int_equal(dpq_str_distance(big, "y"), 4999);
}

static void test_parse_int64(void **state)
{
    (void)state;
    int64_t v = 77;
    assert_true(dpq_parse_int64("9223372036854775807", &v) && v == INT64_MAX);
    assert_true(dpq_parse_int64("-9223372036854775808", &v) && v == INT64_MIN);
    assert_true(dpq_parse_int64("007", &v) && v == 7);
    assert_true(dpq_parse_int64("+5", &v) && v == 5);
    v = 77;
    const char *const bad[] = {"",
                               "-",
                               " 1",
                               "1 ",
                               "1.0",
                               "1e3",
                               "0x10",
                               "1_0",
                               "--1",
                               "9223372036854775808",
                               "-9223372036854775809",
                               "99999999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(dpq_parse_int64(bad[i], &v));
    }
    assert_int_equal(v, 77);
}

static void test_parse_double(void **state)
{
    (void)state;
    double v = 77;
    assert_true(dpq_parse_double("1e-3", &v) && v == 1e-3);
    assert_true(dpq_parse_double("2e-5", &v) && v == 2e-5);
    assert_true(dpq_parse_double(".5", &v) && v == 0.5);
    assert_true(dpq_parse_double("-3.", &v) && v == -3.0);
    assert_true(dpq_parse_double("1E+2", &v) && v == 100.0);
    v = 77;
    const char *const bad[] = {"",      ".",     "e3",  "1e", "1e+", "nan", "inf",  "infinity",
                               "0x1p3", "1e999", "1,5", " 1", "1 ",  "1f",  "1.2.3"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(dpq_parse_double(bad[i], &v));
    }
    assert_true(v == 77);
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8")) { /* only where that locale is installed */
        assert_true(dpq_parse_double("1.5", &v) && v == 1.5);
        setlocale(LC_NUMERIC, "C");
    }
}

static void test_parse_bool_and_bytes(void **state)
{
    (void)state;
    bool flag = false;
    assert_true(dpq_parse_bool("true", &flag) && flag);
    assert_true(dpq_parse_bool("false", &flag) && !flag);
    assert_false(dpq_parse_bool("no", &flag) || dpq_parse_bool("True", &flag) || dpq_parse_bool("1", &flag));
    int64_t v = 0;
    assert_true(dpq_parse_bytes("4096", &v) && v == 4096);
    assert_true(dpq_parse_bytes("512M", &v) && v == 512LL << 20);
    assert_true(dpq_parse_bytes("5G", &v) && v == 5LL << 30);
    assert_true(dpq_parse_bytes("5GB", &v) && v == 5000000000LL);
    assert_true(dpq_parse_bytes("1.5GiB", &v) && v == 3LL << 29);
    assert_true(dpq_parse_bytes("2T", &v) && v == 2LL << 40);
    assert_true(dpq_parse_bytes("8KB", &v) && v == 8000);
    assert_true(dpq_parse_bytes("7B", &v) && v == 7);
    const char *const bad[] = {"",
                               "G",
                               "-1",
                               "1.5",
                               "1.G",
                               ".5G",
                               "1 G",
                               "1g",
                               "1Gb",
                               "1GiBB",
                               "9000000T",
                               "1.0000001G",
                               "99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(dpq_parse_bytes(bad[i], &v));
    }
}

static void test_clock(void **state)
{
    (void)state;
    dpq_spans spans = {0};
    double start = dpq_clock_s();
    double begin = start;
    usleep(20000);
    dpq_spans_add(&spans, DPQ_SPAN_SOLVE, &start);
    assert_true(spans.seconds[DPQ_SPAN_SOLVE] >= 0.02 && start >= begin + 0.02);
    assert_true(spans.seconds[DPQ_SPAN_LOAD] == 0);
    for (int i = 0; i < DPQ_SPAN_COUNT; i++) {
        assert_true(strlen(dpq_span_name((dpq_span)i)) > 0);
    }
    assert_string_equal(dpq_span_name(DPQ_SPAN_EVAL), "eval");
}

/* Run ACT with stderr in a file; the text it wrote is in TEXT. */
static void capture_stderr(void (*act)(void), char *text, size_t bytes)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    act();
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    size_t n = fread(text, 1, bytes - 1, file);
    text[n] = '\0';
    fclose(file);
}

static void log_as_rank_0(void)
{
    dpq_log_setup(0, 4, DPQ_LOG_INFO);
    errno = 17;
    dpq_log(DPQ_LOG_INFO, "io", "name %s", "a\nb\x1b[2J");
    dpq_log(DPQ_LOG_DEBUG, "io", "hidden");
    dpq_progress("blocks", 1, 2); /* stderr is no terminal here */
    assert_int_equal(errno, 17);
    for (int i = 0; i < 3; i++) {
        dpq_log_warn_once("key-a", "engine", "twice");
    }
    dpq_log_warn_once("key-b", "engine", "other");
}

static void log_as_rank_2(void)
{
    dpq_log_setup(2, 4, DPQ_LOG_INFO);
    dpq_log(DPQ_LOG_INFO, "io", "hidden");
    dpq_log(DPQ_LOG_WARNING, "io", "seen");
    dpq_log_every_rank("cli", "banner");
    dpq_log_setup(2, 4, DPQ_LOG_DEBUG);
    dpq_log(DPQ_LOG_DEBUG, "io", "detail");
    dpq_log_setup(2, 4, DPQ_LOG_ERROR);
    dpq_log(DPQ_LOG_WARNING, "io", "hidden");
    dpq_log_every_rank("cli", "hidden");
    static char big[10000];
    memset(big, 'z', sizeof big - 1);
    dpq_log(DPQ_LOG_ERROR, "io", "%s", big);
    dpq_log_setup(0, 1, DPQ_LOG_INFO);
}

static size_t count_lines(const char *text)
{
    size_t n = 0;
    for (; *text; text++) {
        n += *text == '\n';
    }
    return n;
}

static void test_log(void **state)
{
    (void)state;
    static char text[20000];
    capture_stderr(log_as_rank_0, text, sizeof text);
    assert_int_equal(count_lines(text), 3);
    assert_non_null(strstr(text, " info 0/4 io] name a b [2J\n"));
    assert_non_null(strstr(text, " warning 0/4 engine] twice\n"));
    assert_null(strstr(text, "hidden"));
    capture_stderr(log_as_rank_2, text, sizeof text);
    assert_int_equal(count_lines(text), 4);
    assert_null(strstr(text, "hidden"));
    assert_non_null(strstr(text, " info 2/4 cli] banner\n"));
    assert_non_null(strstr(text, " debug 2/4 io] detail\n"));
    assert_true(dpq_str_ends_with(text, "zzz...\n"));
}

/* On a pseudo-terminal: the bar appears, redraws are limited, a log line clears it, the end closes the line. */
static void test_progress_on_terminal(void **state)
{
    (void)state;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
        skip();
    }
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY);
    assert_true(slave >= 0);
    int saved = dup(STDERR_FILENO);
    dup2(slave, STDERR_FILENO);
    dpq_log_setup(0, 1, DPQ_LOG_INFO);
    for (long i = 0; i < 500; i++) {
        dpq_progress("blocks", i, 500);
    }
    dpq_log(DPQ_LOG_INFO, "io", "line");
    dpq_progress("blocks", 500, 500);
    dpq_log(DPQ_LOG_INFO, "io", "after");
    dup2(saved, STDERR_FILENO);
    close(saved);
    static char text[65536];
    size_t length = 0;
    fcntl(master, F_SETFL, O_NONBLOCK);
    for (;;) {
        ssize_t n = read(master, text + length, sizeof text - 1 - length);
        if (n <= 0) {
            break;
        }
        length += (size_t)n;
    }
    text[length] = '\0';
    close(slave);
    close(master);
    size_t n_bars = 0;
    for (const char *at = text; (at = strstr(at, "blocks [")) != NULL; at++) {
        n_bars++;
    }
    assert_true(n_bars >= 2 && n_bars < 50);
    const char *line = strstr(text, " io] line");
    const char *last = strstr(text, "] 500/500 ");
    assert_true(line && last && line < last);
    const char *bracket = line;
    while (bracket > text && *bracket != '[') {
        bracket--;
    }
    assert_true(bracket - text >= 4 && memcmp(bracket - 4, "\r\033[K", 4) == 0);
    assert_non_null(strchr(last, '\n'));
    assert_non_null(strstr(last, "\n["));
}

static void test_assert_aborts(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        DPQ_ASSERT(1 + 1 == 3);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status_table),
        cmocka_unit_test(test_error_record),
        cmocka_unit_test(test_error_long_text),
        cmocka_unit_test(test_error_set),
        cmocka_unit_test(test_error_is_per_thread),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_workspace),
        cmocka_unit_test(test_workspace_nested),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_str_list),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_distance),
        cmocka_unit_test(test_parse_int64),
        cmocka_unit_test(test_parse_double),
        cmocka_unit_test(test_parse_bool_and_bytes),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_progress_on_terminal),
        cmocka_unit_test(test_assert_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
