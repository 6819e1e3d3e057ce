/* SPDX-License-Identifier: Apache-2.0 */
/* Dense bit stream: word values worked out by hand, round trips of all widths and odd lengths, padding, bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "dpquant/pack.h"

#define GUARD 0xdeadbeefu

/* Pack, compare with WORDS and the untouched word behind them, unpack, compare with CODES. */
static void check_words(const uint8_t *codes, int64_t n, int bits, const uint32_t *words, int64_t n_words)
{
    uint32_t packed[16];
    uint8_t back[64];
    assert_int_equal(dpq_bits_words(n, bits), n_words);
    for (int i = 0; i < 16; i++) {
        packed[i] = GUARD;
    }
    dpq_bits_pack(codes, n, bits, packed);
    for (int64_t w = 0; w < n_words; w++) {
        assert_int_equal(packed[w], words[w]);
    }
    assert_int_equal(packed[n_words], GUARD);
    memset(back, 0xa5, sizeof back);
    dpq_bits_unpack(packed, n, bits, back);
    assert_memory_equal(back, codes, (size_t)n);
    assert_int_equal(back[n], 0xa5);
}

static void test_signed_codes(void **state)
{
    (void)state;
    const uint8_t four[8] = {0, 1, 7, 8, 9, 10, 15, 5}; /* -8 -7 -1 0 1 2 7 -3 */
    const uint8_t eight[4] = {0, 127, 128, 255};        /* -128 -1 0 127 */
    const uint8_t two[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
    const uint8_t zeros[8] = {0, 8, 11, 15, 7, 6, 9, 10};
    check_words(four, 8, 4, (const uint32_t[]){0x5FA98710u}, 1);
    check_words(eight, 4, 8, (const uint32_t[]){0xFF807F00u}, 1);
    check_words(two, 16, 2, (const uint32_t[]){0xE4E4E4E4u}, 1);
    check_words(zeros, 8, 4, (const uint32_t[]){0xA967FB80u}, 1);
}

static void test_straddling_codes(void **state)
{
    (void)state;
    uint8_t codes[32];
    for (int i = 0; i < 32; i++) {
        codes[i] = (uint8_t)(i % 8);
    }
    check_words(codes, 32, 3, (const uint32_t[]){0x88FAC688u, 0xC688FAC6u, 0xFAC688FAu}, 3);
    for (int i = 0; i < 32; i++) {
        codes[i] = (uint8_t)i;
    }
    check_words(codes, 32, 5, (const uint32_t[]){0x8A418820u, 0xC5A92839u, 0xCA307B9Au, 0x38BDAB49u, 0xFFBBCDEBu}, 5);
    check_words(codes, 16, 6, (const uint32_t[]){0x440C2040u, 0xA2481C61u, 0x3CE34C2Cu}, 3);
}

static void test_padding_is_zero(void **state)
{
    (void)state;
    const uint8_t ones[11] = {7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7};
    check_words(ones, 1, 3, (const uint32_t[]){0x7u}, 1);
    check_words(ones, 10, 3, (const uint32_t[]){0x3FFFFFFFu}, 1);
    check_words(ones, 11, 3, (const uint32_t[]){0xFFFFFFFFu, 0x1u}, 2);
    const uint8_t five[5] = {15, 15, 15, 15, 15};
    check_words(five, 5, 4, (const uint32_t[]){0x000FFFFFu}, 1);
}

static void test_word_counts(void **state)
{
    (void)state;
    assert_int_equal(dpq_bits_words(0, 4), 0);
    assert_int_equal(dpq_bits_words(8, 4), 1);
    assert_int_equal(dpq_bits_words(9, 4), 2);
    assert_int_equal(dpq_bits_words(32, 3), 3);
    assert_int_equal(dpq_bits_words(33, 3), 4);
    assert_int_equal(dpq_bits_words(INT64_C(1) << 40, 8), INT64_C(1) << 38);
}

static void test_empty_line(void **state)
{
    (void)state;
    uint32_t word = GUARD;
    uint8_t code = 0x5a;
    dpq_bits_pack(&code, 0, 5, &word);
    assert_int_equal(word, GUARD);
    dpq_bits_unpack(&word, 0, 5, &code);
    assert_int_equal(code, 0x5a);
}

/* Bits of a code above its width must not reach its neighbours. */
static void test_wide_code_is_cut(void **state)
{
    (void)state;
    const uint8_t codes[2] = {0xff, 0x01};
    uint32_t word = 0;
    dpq_bits_pack(codes, 2, 4, &word);
    assert_int_equal(word, 0x1f);
}

/* Bit t of the stream, by the definition. */
static int stream_bit(const uint32_t *words, int64_t t)
{
    return (int)(words[t / 32] >> (t % 32) & 1u);
}

static void test_round_trip(void **state)
{
    (void)state;
    uint8_t codes[131], back[132];
    uint32_t words[64];
    uint64_t seed = 7;
    for (int bits = 1; bits <= 8; bits++) {
        for (int64_t n = 1; n <= 131; n++) {
            for (int64_t i = 0; i < n; i++) {
                seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
                codes[i] = (uint8_t)(seed >> 40 & ((1u << bits) - 1u));
            }
            int64_t count = dpq_bits_words(n, bits);
            for (int w = 0; w < 64; w++) {
                words[w] = GUARD;
            }
            dpq_bits_pack(codes, n, bits, words);
            assert_int_equal(words[count], GUARD);
            for (int64_t i = 0; i < n; i++) {
                for (int b = 0; b < bits; b++) {
                    assert_int_equal(stream_bit(words, i * bits + b), codes[i] >> b & 1);
                }
            }
            for (int64_t t = n * bits; t < count * 32; t++) {
                assert_int_equal(stream_bit(words, t), 0);
            }
            back[n] = 0xa5;
            dpq_bits_unpack(words, n, bits, back);
            assert_memory_equal(back, codes, (size_t)n);
            assert_int_equal(back[n], 0xa5);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signed_codes),    cmocka_unit_test(test_straddling_codes),
        cmocka_unit_test(test_padding_is_zero), cmocka_unit_test(test_word_counts),
        cmocka_unit_test(test_empty_line),      cmocka_unit_test(test_wide_code_is_cut),
        cmocka_unit_test(test_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
