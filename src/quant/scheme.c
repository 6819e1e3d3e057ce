/* SPDX-License-Identifier: Apache-2.0 */
/* Named weight schemes, their texts, and the check of a scheme against the width of a linear. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "dpquant/scheme.h"

#define LOADERS_ALL      "vLLM, SGLang, transformers"
#define LOADERS_ODD      "transformers (compressed-tensors 0.18.0 or newer), vLLM from mid-2026 on (CUDA)"
#define LOADERS_ODD_ASYM "transformers (compressed-tensors 0.18.0 or newer)"
#define LOADERS_8_ASYM   "transformers; vLLM where its Machete or Conch kernel runs (CUDA)"

#define SYMMETRIC(b)                                                                                                   \
    {                                                                                                                  \
        .bits = (b), .group_size = 128, .symmetric = true, .signed_scale = true                                        \
    }
#define ASYMMETRIC(b)                                                                                                  \
    {                                                                                                                  \
        .bits = (b), .group_size = 128, .symmetric = false, .signed_scale = false                                      \
    }

static const dpq_named_scheme named_schemes[] = {
    {"W2A16", SYMMETRIC(2), LOADERS_ODD},
    {"W3A16", SYMMETRIC(3), LOADERS_ODD},
    {"W4A16", SYMMETRIC(4), LOADERS_ALL},
    {"W5A16", SYMMETRIC(5), LOADERS_ODD},
    {"W6A16", SYMMETRIC(6), LOADERS_ODD},
    {"W7A16", SYMMETRIC(7), LOADERS_ODD},
    {"W8A16", SYMMETRIC(8), LOADERS_ALL},
    {"W2A16_ASYM", ASYMMETRIC(2), LOADERS_ODD_ASYM},
    {"W3A16_ASYM", ASYMMETRIC(3), LOADERS_ODD_ASYM},
    {"W4A16_ASYM", ASYMMETRIC(4), LOADERS_ALL},
    {"W5A16_ASYM", ASYMMETRIC(5), LOADERS_ODD_ASYM},
    {"W6A16_ASYM", ASYMMETRIC(6), LOADERS_ODD_ASYM},
    {"W7A16_ASYM", ASYMMETRIC(7), LOADERS_ODD_ASYM},
    {"W8A16_ASYM", ASYMMETRIC(8), LOADERS_8_ASYM},
};

#define NAMED_SCHEMES ((int)(sizeof named_schemes / sizeof named_schemes[0]))

const dpq_named_scheme *dpq_scheme_at(int index)
{
    return index >= 0 && index < NAMED_SCHEMES ? &named_schemes[index] : NULL;
}

const dpq_named_scheme *dpq_scheme_find(const char *name)
{
    for (int i = 0; i < NAMED_SCHEMES; i++) {
        if (strcmp(named_schemes[i].name, name) == 0) {
            return &named_schemes[i];
        }
    }
    return NULL;
}

int64_t dpq_scheme_group_width(const dpq_scheme *scheme, int64_t k)
{
    return scheme->group_size > 0 ? scheme->group_size : k;
}

int64_t dpq_scheme_groups(const dpq_scheme *scheme, int64_t k)
{
    return scheme->group_size > 0 ? k / scheme->group_size : 1;
}

void dpq_scheme_describe(const dpq_scheme *scheme, char *text, size_t size)
{
    const char *symmetry = scheme->symmetric ? "symmetric" : "asymmetric";
    if (scheme->group_size > 0) {
        (void)snprintf(text, size, "W%d group %" PRId64 " %s", scheme->bits, scheme->group_size, symmetry);
    } else {
        (void)snprintf(text, size, "W%d whole rows %s", scheme->bits, symmetry);
    }
}

bool dpq_scheme_equal(const dpq_scheme *a, const dpq_scheme *b)
{
    /* The sign of the scale means nothing to an asymmetric scheme. */
    return a->bits == b->bits && a->group_size == b->group_size && a->symmetric == b->symmetric &&
           (!a->symmetric || a->signed_scale == b->signed_scale);
}

dpq_status dpq_scheme_check(const dpq_scheme *scheme, const char *module, int64_t k)
{
    if (scheme->bits < 2 || scheme->bits > 8) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: %d bits; expected 2 to 8", module, scheme->bits);
    }
    if (scheme->group_size == 0 || scheme->group_size < -1) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED,
                         "%s: group size %" PRId64 "; expected a positive divisor of %" PRId64 ", or -1", module,
                         scheme->group_size, k);
    }
    if (scheme->group_size == -1 || (k > 0 && k % scheme->group_size == 0)) {
        return DPQ_OK;
    }
    static const int64_t common[] = {32, 64, 128, 256};
    char fitting[64];
    size_t length = 0;
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        if (k > 0 && k % common[i] == 0) {
            length += (size_t)snprintf(fitting + length, sizeof fitting - length, "%" PRId64 ", ", common[i]);
        }
    }
    (void)snprintf(fitting + length, sizeof fitting - length, "-1");
    return DPQ_RAISE(DPQ_E_UNSUPPORTED,
                     "%s: group size %" PRId64 " does not divide the input width %" PRId64 "; group sizes that do: %s",
                     module, scheme->group_size, k, fitting);
}
