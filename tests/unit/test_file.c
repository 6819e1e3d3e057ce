/* SPDX-License-Identifier: Apache-2.0 */
/* Files, paths and folders, SHA-256. */
#include "io_test.h"

#include <fcntl.h>
#include <sys/stat.h>

static void read_all_gives_bytes_and_nul(void **state)
{
    const char *path = in_folder(state, "a");
    char *bytes = NULL;
    size_t size = 0;
    put_file(path, "ab\0cd", 5);
    expect_ok(dpq_file_read_all(path, 5, &bytes, &size));
    assert_int_equal(size, 5);
    assert_memory_equal(bytes, "ab\0cd", 6);
    dpq_free(bytes);
    expect_error(dpq_file_read_all(path, 4, &bytes, &size), DPQ_E_INPUT, "5 bytes, expected at most 4");
    assert_null(bytes);
    put_file(path, "", 0);
    expect_ok(dpq_file_read_all(path, 0, &bytes, &size));
    assert_int_equal(size, 0);
    assert_int_equal(bytes[0], 0);
    dpq_free(bytes);
}

static void only_regular_files_are_read(void **state)
{
    char *bytes = NULL;
    size_t size = 0;
    int fd = -1;
    uint64_t length = 0;
    expect_error(dpq_file_read_all(in_folder(state, "none"), 10, &bytes, &size), DPQ_E_INPUT, "No such file");
    expect_error(dpq_file_read_all(*state, 10, &bytes, &size), DPQ_E_INPUT, "not a regular file");
    const char *fifo = in_folder(state, "fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0); /* must not block */
    expect_error(dpq_file_open_read(fifo, &fd, &length), DPQ_E_INPUT, "not a regular file");
    assert_int_equal(fd, -1);
    const char *target = in_folder(state, "target");
    const char *link = in_folder(state, "link");
    put_file(target, "xyz", 3);
    assert_int_equal(symlink("target", link), 0);
    expect_ok(dpq_file_open_read(link, &fd, &length));
    assert_int_equal(length, 3);
    dpq_file_close_quiet(fd);
}

static void pread_is_exact(void **state)
{
    const char *path = in_folder(state, "a");
    char buffer[8] = "";
    int fd = -1;
    uint64_t size = 0;
    put_file(path, "0123456789", 10);
    expect_ok(dpq_file_open_read(path, &fd, &size));
    expect_ok(dpq_file_pread(fd, path, buffer, 4, 6));
    assert_memory_equal(buffer, "6789", 4);
    expect_ok(dpq_file_pread(fd, path, buffer, 0, 10));
    expect_error(dpq_file_pread(fd, path, buffer, 5, 6), DPQ_E_INPUT, "file ends at offset 10, 1 bytes early");
    expect_error(dpq_file_pread(fd, path, buffer, 5, UINT64_MAX - 2), DPQ_E_INPUT, "out of the range");
    dpq_file_close_quiet(fd);
    expect_error(dpq_file_pread(-1, path, buffer, 1, 0), DPQ_E_INPUT, "Bad file descriptor");
}

static void create_reserves_and_never_overwrites(void **state)
{
    const char *path = in_folder(state, "a");
    int fd = -1;
    struct stat info;
    mode_t mask = umask(027);
    expect_ok(dpq_file_create(path, 100, &fd));
    umask(mask);
    assert_int_equal(fstat(fd, &info), 0);
    assert_int_equal(info.st_size, 100);
    assert_int_equal(info.st_mode & 0777, 0640);
    expect_ok(dpq_file_pwrite(fd, path, "end", 3, 97));
    expect_ok(dpq_file_sync_close(fd, path));
    expect_error(dpq_file_create(path, 1, &fd), DPQ_E_DISK, "File exists");
    assert_int_equal(fd, -1);
    expect_error(dpq_file_create(in_folder(state, "no/a"), 1, &fd), DPQ_E_DISK, "No such file");
    const char *huge = in_folder(state, "huge");
    expect_error(dpq_file_create(huge, UINT64_MAX, &fd), DPQ_E_DISK, "cannot reserve");
    assert_false(dpq_path_exists(huge));
    expect_error(dpq_file_sync_close(-1, path), DPQ_E_DISK, "cannot sync");
    expect_error(dpq_file_pwrite(-1, path, "x", 1, 0), DPQ_E_DISK, "writing 1 bytes");
}

static void a_full_device_is_an_error(void **state)
{
    (void)state;
    int fd = open("/dev/full", O_WRONLY);
    if (fd < 0) {
        skip();
    }
    expect_error(dpq_file_pwrite(fd, "/dev/full", "abc", 3, 0), DPQ_E_DISK, "No space left");
    dpq_file_close_quiet(fd);
}

static void text_is_replaced_as_a_whole(void **state)
{
    const char *path = in_folder(state, "a");
    const char *temporary = in_folder(state, "a.tmp");
    char *bytes = NULL;
    size_t size = 0;
    put_file(path, "old text", 8);
    put_file(temporary, "left by a killed run", 20);
    expect_ok(dpq_file_write_text(path, "new", 3));
    expect_ok(dpq_file_read_all(path, 100, &bytes, &size));
    assert_string_equal(bytes, "new");
    dpq_free(bytes);
    assert_false(dpq_path_exists(temporary));
    /* A folder is in the way: the rename fails and nothing stays behind. */
    const char *busy = in_folder(state, "busy");
    expect_ok(dpq_dir_create(busy));
    expect_error(dpq_file_write_text(busy, "new", 3), DPQ_E_DISK, "cannot rename");
    assert_false(dpq_path_exists(in_folder(state, "busy.tmp")));
}

static void copy_is_equal(void **state)
{
    const char *src = in_folder(state, "src");
    const char *dst = in_folder(state, "dst");
    size_t n = (2u << 20) + 17; /* more than two chunks */
    char *bytes = malloc(n);
    char *back = NULL;
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (char)(i * 31 >> 3);
    }
    put_file(src, bytes, n);
    expect_ok(dpq_file_copy(src, dst));
    expect_ok(dpq_file_read_all(dst, n, &back, &size));
    assert_int_equal(size, n);
    assert_memory_equal(bytes, back, n);
    dpq_free(back);
    free(bytes);
    expect_error(dpq_file_copy(src, dst), DPQ_E_DISK, "File exists");
    expect_error(dpq_file_copy(in_folder(state, "none"), in_folder(state, "x")), DPQ_E_INPUT, "No such file");
    assert_false(dpq_path_exists(in_folder(state, "x")));
}

static void canonical_paths(void **state)
{
    char *root = NULL;
    char *path = NULL;
    char expected[600];
    expect_ok(dpq_path_canonical(*state, &root));
    snprintf(expected, sizeof expected, "%s/new", root);
    expect_ok(dpq_path_canonical(in_folder(state, "./new//"), &path));
    assert_string_equal(path, expected);
    dpq_free(path);
    expect_ok(dpq_dir_create(expected));
    assert_int_equal(symlink("new", in_folder(state, "link")), 0);
    expect_ok(dpq_path_canonical(in_folder(state, "link/../link"), &path));
    assert_string_equal(path, expected);
    dpq_free(path);
    assert_int_equal(symlink("nowhere", in_folder(state, "dangling")), 0);
    expect_error(dpq_path_canonical(in_folder(state, "dangling"), &path), DPQ_E_INPUT, "symbolic link");
    expect_error(dpq_path_canonical(in_folder(state, "no/where"), &path), DPQ_E_INPUT, "its folder");
    expect_error(dpq_path_canonical("", &path), DPQ_E_INPUT, "does not exist");
    assert_null(path);
    dpq_free(root);
}

static void folders(void **state)
{
    dpq_str_list names = {0};
    put_file(in_folder(state, "b"), "", 0);
    put_file(in_folder(state, "B"), "", 0);
    put_file(in_folder(state, ".hidden"), "", 0);
    expect_ok(dpq_dir_create(in_folder(state, "a")));
    expect_error(dpq_dir_create(in_folder(state, "a")), DPQ_E_DISK, "File exists");
    expect_ok(dpq_dir_list(*state, &names));
    assert_int_equal(names.count, 4);
    const char *const sorted[] = {".hidden", "B", "a", "b"};
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(names.items[i], sorted[i]);
    }
    dpq_str_list_fini(&names);
    expect_error(dpq_dir_list(in_folder(state, "b"), &names), DPQ_E_INPUT, "Not a directory");
    assert_true(dpq_path_is_dir(in_folder(state, "a")));
    assert_false(dpq_path_is_dir(in_folder(state, "b")));
    assert_false(dpq_path_is_dir(in_folder(state, "c")));
    expect_ok(dpq_dir_sync(*state));
    expect_error(dpq_dir_sync(in_folder(state, "c")), DPQ_E_DISK, "No such file");
    uint64_t bytes = 0;
    expect_ok(dpq_disk_free_bytes(*state, &bytes));
    assert_true(bytes > 0);
    expect_error(dpq_disk_free_bytes(in_folder(state, "c"), &bytes), DPQ_E_DISK, "free space");
}

static void removal_stays_inside(void **state)
{
    const char *keep = in_folder(state, "keep");
    put_file(keep, "x", 1);
    expect_ok(dpq_dir_create(in_folder(state, "outside")));
    put_file(in_folder(state, "outside/file"), "x", 1);
    expect_ok(dpq_dir_create(in_folder(state, "tree")));
    expect_ok(dpq_dir_create(in_folder(state, "tree/sub")));
    put_file(in_folder(state, "tree/sub/file"), "x", 1);
    assert_int_equal(symlink("../outside", in_folder(state, "tree/link")), 0);
    assert_int_equal(symlink("tree", in_folder(state, "tree_link")), 0);
    expect_error(dpq_dir_remove(in_folder(state, "tree_link")), DPQ_E_DISK, "not a folder");
    expect_error(dpq_dir_remove(in_folder(state, "keep")), DPQ_E_DISK, "not a folder");
    expect_error(dpq_dir_remove(in_folder(state, "none")), DPQ_E_DISK, "No such file");
    expect_ok(dpq_dir_remove(in_folder(state, "tree")));
    assert_false(dpq_path_exists(in_folder(state, "tree")));
    assert_true(dpq_path_exists(in_folder(state, "outside/file")));
    assert_true(dpq_path_exists(in_folder(state, "keep")));
}

static void digest_is(const char *text, size_t repeat, size_t piece, const char *expected)
{
    dpq_sha256 s;
    char hex[65];
    char block[256];
    size_t length = strlen(text);
    size_t total = length * repeat;
    dpq_sha256_init(&s);
    for (size_t at = 0; at < total;) {
        size_t n = total - at < piece ? total - at : piece;
        for (size_t i = 0; i < n; i++) {
            block[i] = text[(at + i) % length];
        }
        dpq_sha256_update(&s, block, n);
        at += n;
    }
    dpq_sha256_hex(&s, hex);
    assert_string_equal(hex, expected);
}

/* The examples of FIPS 180-4 and the lengths around a block. */
static void sha256_known_values(void **state)
{
    (void)state;
    digest_is("x", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    digest_is("abc", 1, 256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    digest_is("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, 7,
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    digest_is("a", 1000000, 201, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    for (size_t n = 50; n < 140; n++) { /* pieces do not matter */
        dpq_sha256 whole;
        char hex[65];
        char text[140];
        memset(text, 'q', sizeof text);
        dpq_sha256_init(&whole);
        dpq_sha256_update(&whole, text, n);
        dpq_sha256_hex(&whole, hex);
        digest_is("q", n, 1, hex);
        digest_is("q", n, 63, hex);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        folder_test(read_all_gives_bytes_and_nul),
        folder_test(only_regular_files_are_read),
        folder_test(pread_is_exact),
        folder_test(create_reserves_and_never_overwrites),
        cmocka_unit_test(a_full_device_is_an_error),
        folder_test(text_is_replaced_as_a_whole),
        folder_test(copy_is_equal),
        folder_test(canonical_paths),
        folder_test(folders),
        folder_test(removal_stays_inside),
        cmocka_unit_test(sha256_known_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
