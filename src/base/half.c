/* SPDX-License-Identifier: Apache-2.0 */
/* fp16 conversion in integer arithmetic: the result depends on no floating-point mode. */
#include "dpquant/half.h"

#define F16_NAN_OR_INF 0x7c00u
#define F32_INF        0x7f800000u

static float bits_to_f32(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float dpq_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 0x1f) {
        return bits_to_f32(sign | F32_INF | mantissa << 13);
    }
    if (exponent != 0) {
        return bits_to_f32(sign | (exponent + 112) << 23 | mantissa << 13);
    }
    if (mantissa == 0) {
        return bits_to_f32(sign);
    }
    /* Subnormal, mantissa * 2^-24: move the leading one to bit 10 and let the exponent pay. */
    uint32_t shift = (uint32_t)__builtin_clz(mantissa) - 21;
    return bits_to_f32(sign | (113 - shift) << 23 | ((mantissa << shift) & 0x3ffu) << 13);
}

uint16_t dpq_f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > F32_INF) {
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    }
    if (magnitude >= 0x477ff000u) { /* 65520, half way from the largest value to 2^16, and all above */
        return (uint16_t)(sign | F16_NAN_OR_INF);
    }
    if (magnitude >= 0x38800000u) { /* 2^-14: normal; a carry out of the mantissa raises the exponent as it should */
        uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
        return (uint16_t)(sign | (rounded - 0x38000000u) >> 13);
    }
    if (magnitude < 0x33000000u) { /* below 2^-25, half of the smallest subnormal */
        return (uint16_t)sign;
    }
    /* Subnormal result in units of 2^-24: mantissa * 2^(exponent - 126), exponent 102..112. */
    uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t shift = 126 - (magnitude >> 23);
    uint32_t quotient = mantissa >> shift;
    uint32_t rest = mantissa & ((1u << shift) - 1);
    uint32_t half = 1u << (shift - 1);
    quotient += rest > half || (rest == half && (quotient & 1u));
    return (uint16_t)(sign | quotient);
}
