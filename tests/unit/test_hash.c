/* SPDX-License-Identifier: Apache-2.0 */
/* The fingerprint: every byte and the length count, pieces chain, alignment does not matter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "dpquant/hash.h"

static void every_byte_and_the_length_count(void **state)
{
    unsigned char bytes[77];
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)(i * 7);
    }
    uint64_t whole = dpq_hash64(0, bytes, sizeof bytes);
    assert_true(whole == dpq_hash64(0, bytes, sizeof bytes));
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] ^= 0x10;
        assert_true(whole != dpq_hash64(0, bytes, sizeof bytes));
        bytes[i] ^= 0x10;
        assert_true(whole != dpq_hash64(0, bytes, i));
    }
    memset(bytes, 0, sizeof bytes);
    assert_true(dpq_hash64(0, bytes, 32) != dpq_hash64(0, bytes, 33));
    assert_true(dpq_hash64(0, bytes, 0) != dpq_hash64(1, bytes, 0));
}

static void words_in_other_places_differ(void **state)
{
    uint64_t words[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    (void)state;
    uint64_t before = dpq_hash64(0, words, sizeof words);
    words[0] = 5;
    words[4] = 1; /* the same lane, swapped */
    assert_true(before != dpq_hash64(0, words, sizeof words));
}

static void alignment_does_not_matter(void **state)
{
    unsigned char at[80];
    (void)state;
    for (size_t offset = 0; offset < 8; offset++) {
        for (size_t i = 0; i < 64; i++) {
            at[offset + i] = (unsigned char)i;
        }
        assert_true(dpq_hash64(3, at + offset, 64) == dpq_hash64(3, memmove(at, at + offset, 64), 64));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_and_the_length_count),
        cmocka_unit_test(words_in_other_places_differ),
        cmocka_unit_test(alignment_does_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
