/* SPDX-License-Identifier: Apache-2.0 */
/* Strict numbers: the whole text is the number, whatever the locale says. */
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dpquant/str.h"

static size_t count_digits(const char *text)
{
    return strspn(text, "0123456789");
}

bool dpq_parse_int64(const char *text, int64_t *out)
{
    const char *digits = text + (*text == '-' || *text == '+');
    size_t n_digits = count_digits(digits);
    if (n_digits == 0 || digits[n_digits] != '\0') {
        return false;
    }
    int64_t value = 0;
    for (size_t i = 0; i < n_digits; i++) {
        int digit = digits[i] - '0';
        /* Built towards the sign, so that the smallest value needs no special case. */
        if (__builtin_mul_overflow(value, (int64_t)10, &value) ||
            __builtin_add_overflow(value, (int64_t)(*text == '-' ? -digit : digit), &value)) {
            return false;
        }
    }
    *out = value;
    return true;
}

/* [+-] digits [. digits] [e [+-] digits], with a digit before or after the point. strtod alone takes more: hex, inf. */
static bool is_decimal(const char *text)
{
    text += *text == '-' || *text == '+';
    size_t whole = count_digits(text);
    text += whole;
    size_t fraction = 0;
    if (*text == '.') {
        text++;
        fraction = count_digits(text);
        text += fraction;
    }
    if (whole + fraction == 0) {
        return false;
    }
    if (*text == 'e' || *text == 'E') {
        text++;
        text += *text == '-' || *text == '+';
        size_t exponent = count_digits(text);
        if (exponent == 0) {
            return false;
        }
        text += exponent;
    }
    return *text == '\0';
}

bool dpq_parse_double(const char *text, double *out)
{
    if (!is_decimal(text)) {
        return false;
    }
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale == (locale_t)0) {
        return false;
    }
    double value = strtod_l(text, NULL, c_locale);
    freelocale(c_locale);
    if (!isfinite(value)) {
        return false;
    }
    *out = value;
    return true;
}

bool dpq_parse_bool(const char *text, bool *out)
{
    if (strcmp(text, "true") == 0) {
        *out = true;
        return true;
    }
    if (strcmp(text, "false") == 0) {
        *out = false;
        return true;
    }
    return false;
}

static bool find_unit(const char *text, int64_t *factor)
{
    if (*text == '\0' || strcmp(text, "B") == 0) {
        *factor = 1;
        return true;
    }
    const char letters[] = "KMGT";
    const char *letter = strchr(letters, *text);
    if (!letter) {
        return false;
    }
    int64_t base = 0;
    if (text[1] == '\0' || strcmp(text + 1, "iB") == 0) {
        base = 1024;
    } else if (strcmp(text + 1, "B") == 0) {
        base = 1000;
    } else {
        return false;
    }
    *factor = 1;
    for (ptrdiff_t i = 0; i <= letter - letters; i++) {
        *factor *= base;
    }
    return true;
}

/* At most six digits after the point (10^6 * 2^40 fits); a broken byte at the end is dropped. */
bool dpq_parse_bytes(const char *text, int64_t *out)
{
    size_t n_whole = count_digits(text);
    if (n_whole == 0) {
        return false;
    }
    int64_t whole = 0;
    for (size_t i = 0; i < n_whole; i++) {
        if (__builtin_mul_overflow(whole, (int64_t)10, &whole) ||
            __builtin_add_overflow(whole, (int64_t)(text[i] - '0'), &whole)) {
            return false;
        }
    }
    text += n_whole;
    int64_t fraction = 0;
    int64_t fraction_scale = 1;
    if (*text == '.') {
        text++;
        size_t n_fraction = count_digits(text);
        if (n_fraction == 0 || n_fraction > 6) {
            return false;
        }
        for (size_t i = 0; i < n_fraction; i++) {
            fraction = 10 * fraction + (text[i] - '0');
            fraction_scale *= 10;
        }
        text += n_fraction;
    }
    int64_t factor = 0;
    int64_t bytes = 0;
    if (!find_unit(text, &factor) || (factor == 1 && fraction_scale != 1) ||
        __builtin_mul_overflow(whole, factor, &bytes) ||
        __builtin_add_overflow(bytes, fraction * factor / fraction_scale, &bytes)) {
        return false;
    }
    *out = bytes;
    return true;
}
