/* SPDX-License-Identifier: Apache-2.0 */
/* Cosine and sine tables of rotary embeddings. Every step is rounded to fp32 where the Hugging Face code works in fp32,
 * because the rounding of position * frequency decides the angle at long positions; only powers, sines and cosines are
 * taken in double and then rounded, which is their best possible fp32 value. */
#include <math.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "model_priv.h"

#define TWO_PI 6.283185307179586

/* theta^(2i/d) in fp32 steps; the frequency is its reciprocal. */
static float position_frequency_inverse(const dpq_rope_config *rope, int64_t i)
{
    float exponent = (float)(2 * i) / (float)rope->rotary_dim;
    return (float)pow((double)(float)rope->theta, (double)exponent);
}

/* Long waves are stretched by factor, short ones kept, those between blended. */
static float llama3_frequency(const dpq_rope_config *rope, float frequency)
{
    float wavelength = (float)TWO_PI / frequency;
    float low = (float)(rope->original_max_position / rope->low_freq_factor);
    float high = (float)(rope->original_max_position / rope->high_freq_factor);
    float factor = (float)rope->factor;
    if (wavelength > low) {
        return frequency / factor;
    }
    if (wavelength < high) {
        return frequency;
    }
    float smooth = (float)rope->original_max_position / wavelength - (float)rope->low_freq_factor;
    smooth = smooth / (float)(rope->high_freq_factor - rope->low_freq_factor);
    return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

/* Index at which a frequency turns ROTATIONS times over the original context. */
static double yarn_dimension(const dpq_rope_config *rope, double rotations)
{
    double turns = rope->original_max_position / (rotations * TWO_PI);
    return ((double)rope->rotary_dim * log(turns)) / (2.0 * log(rope->theta));
}

static float yarn_frequency(const dpq_rope_config *rope, int64_t i, float inverse)
{
    double low = yarn_dimension(rope, rope->beta_fast);
    double high = yarn_dimension(rope, rope->beta_slow);
    if (rope->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, (double)(rope->rotary_dim - 1));
    if (low == high) {
        high += 0.001;
    }
    float ramp = ((float)i - (float)low) / (float)(high - low);
    ramp = fminf(fmaxf(ramp, 0.0f), 1.0f);
    float keep = 1.0f - ramp;
    float kept = 1.0f / inverse;
    float stretched = 1.0f / ((float)rope->factor * inverse);
    return stretched * (1.0f - keep) + kept * keep;
}

static float rope_frequency(const dpq_rope_config *rope, int64_t i)
{
    float inverse = position_frequency_inverse(rope, i);
    float frequency = 1.0f / inverse;
    switch (rope->type) {
    case DPQ_ROPE_LINEAR:
        return frequency / (float)rope->factor;
    case DPQ_ROPE_LLAMA3:
        return llama3_frequency(rope, frequency);
    case DPQ_ROPE_YARN:
        return yarn_frequency(rope, i, inverse);
    default:
        return frequency;
    }
}

dpq_status dpq_rope_tables(const dpq_rope_config *rope, int64_t t, dpq_tensor *cos_out, dpq_tensor *sin_out)
{
    dpq_status st = DPQ_OK;
    void *memory = NULL;
    int64_t half = rope->rotary_dim / 2;
    memset(cos_out, 0, sizeof *cos_out);
    memset(sin_out, 0, sizeof *sin_out);
    DPQ_TRY_GOTO(st, dpq_alloc_array(half, sizeof(float), &memory), done);
    DPQ_TRY_GOTO(st, dpq_tensor_create_2d(DPQ_DTYPE_F32, t, half, cos_out), done);
    DPQ_TRY_GOTO(st, dpq_tensor_create_2d(DPQ_DTYPE_F32, t, half, sin_out), done);
    float *frequency = memory;
    float *c = cos_out->data;
    float *s = sin_out->data;
    float scale = (float)rope->attention_factor;
    for (int64_t i = 0; i < half; i++) {
        frequency[i] = rope_frequency(rope, i);
    }
    for (int64_t pos = 0; pos < t; pos++) {
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)pos * frequency[i];
            c[pos * half + i] = (float)cos((double)angle) * scale;
            s[pos * half + i] = (float)sin((double)angle) * scale;
        }
    }
done:
    dpq_free(memory);
    if (st != DPQ_OK) {
        dpq_tensor_fini(cos_out);
        dpq_tensor_fini(sin_out);
    }
    return st;
}
