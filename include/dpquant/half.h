/* SPDX-License-Identifier: Apache-2.0 */
/* fp16 and bf16 as uint16_t bit patterns. Round to nearest, ties to even; NaN stays NaN; bit-exact reference. */
#ifndef DPQUANT_HALF_H
#define DPQUANT_HALF_H

#include <stdint.h>
#include <string.h>

static inline float dpq_bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Branch-free in the common case so that loops over it vectorise. */
static inline uint16_t dpq_f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

float dpq_f16_to_f32(uint16_t h);
uint16_t dpq_f32_to_f16(float f);

#endif
