/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the io module: a temporary folder a test, files with given bytes, expected errors. */
#ifndef DPQUANT_IO_TEST_H
#define DPQUANT_IO_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "dpquant/alloc.h"
#include "dpquant/file.h"
#include "dpquant/status.h"

/* Path of NAME in the test's folder; four results stay valid. */
static inline const char *in_folder(void **state, const char *name)
{
    static char paths[4][512];
    static int next = 0;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", (const char *)*state, name);
    return path;
}

static inline int make_folder(void **state)
{
    const char *root = getenv("TMPDIR");
    char *path = malloc(300);
    snprintf(path, 300, "%.250s/dpquant_test_XXXXXX", root != NULL ? root : "/tmp");
    *state = path;
    return mkdtemp(path) != NULL ? 0 : -1;
}

static inline int remove_folder(void **state)
{
    int rc = dpq_dir_remove(*state) == DPQ_OK ? 0 : -1;
    free(*state);
    return rc;
}

static inline void put_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* ST is CODE and the recorded text contains PART. */
static inline void expect_error_at(dpq_status st, dpq_status code, const char *part, const char *file, int line)
{
    if (st != code || strstr(dpq_error_last()->text, part) == NULL) {
        print_error("expected %s with \"%s\", found %s: %s\n", dpq_status_name(code), part, dpq_status_name(st),
                    st == DPQ_OK ? "" : dpq_error_last()->text);
        _fail(file, line);
    }
}
#define expect_error(st, code, part) expect_error_at((st), (code), (part), __FILE__, __LINE__)

static inline void expect_ok_at(dpq_status st, const char *file, int line)
{
    if (st != DPQ_OK) {
        print_error("unexpected %s: %s\n", dpq_status_name(st), dpq_error_last()->text);
        _fail(file, line);
    }
}
#define expect_ok(st) expect_ok_at((st), __FILE__, __LINE__)

#define folder_test(function) cmocka_unit_test_setup_teardown(function, make_folder, remove_folder)

#endif
