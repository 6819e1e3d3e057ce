/* SPDX-License-Identifier: Apache-2.0 */
/* Units of order-free integer sums: exponents from the largest sum of squares any sample has in a channel. */
#include <inttypes.h>
#include <math.h>

#include "dpquant/fixsum.h"

static int ceil_log2(int64_t n)
{
    int bits = 0;
    while (bits < 62 && ((int64_t)1 << bits) < n) {
        bits++;
    }
    return bits;
}

/* ceil(x / 2) for either sign */
static int ceil_half(int x)
{
    return x >= 0 ? (x + 1) / 2 : -(-x / 2);
}

int dpq_fixsum_channel_exponent(double max_sumsq, int64_t n_samples)
{
    DPQ_ASSERT(isfinite(max_sumsq) && max_sumsq >= 0.0);
    if (max_sumsq == 0.0) {
        return 0;
    }
    /* An entry may reach 2^(61 - ceil(log2 n)) units, half of the limit, so each of its two channels gets B bits:
     * sqrt(max_sumsq) <= 2^(e + B). frexp gives max_sumsq < 2^x, hence e + B = ceil(x / 2) will do. */
    int bits = 61 - ceil_log2(n_samples);
    int half_bits = bits > 0 ? bits / 2 : 0;
    int x = 0;
    (void)frexp(max_sumsq, &x);
    return ceil_half(x) - half_bits;
}

dpq_status dpq_fixsum_exponents(const double *max_sumsq, int64_t k, int64_t n_samples, int32_t *exponent)
{
    for (int64_t i = 0; i < k; i++) {
        if (!isfinite(max_sumsq[i]) || max_sumsq[i] < 0.0) {
            return DPQ_RAISE(DPQ_E_NUMERIC, "channel %" PRId64 ": sum of squares is %g; expected a finite value >= 0",
                             i, max_sumsq[i]);
        }
        exponent[i] = dpq_fixsum_channel_exponent(max_sumsq[i], n_samples);
    }
    return DPQ_OK;
}
