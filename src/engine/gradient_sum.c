/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums of weight gradients; see gradient_sum.h. */
#include "gradient_sum.h"

#include <math.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/backend_grad.h"

#define MARGIN_BITS 2  /* a sample may grow this much over the step that chose the exponent */
#define SLACK_BITS  10 /* a step whose largest entry fell below the limit by more than this is repeated for precision  \
                        */

typedef struct {
    int64_t n, k;
    int32_t *sums;
    int32_t *packed; /* int16 transport: two sums in one integer */
    int exponent, used_exponent;
    double peak;
    bool sent;
    dpq_comm_request *request;
} slot;

struct dpq_gradient_sum {
    slot slots[DPQ_LINEAR_COUNT];
    dpq_transport transport;
    double limit; /* power of two that each sample's rounded entry stays below */
    int64_t repeats;
};

static int64_t packed_count(const slot *s)
{
    return (s->n * s->k + 1) / 2;
}

dpq_status dpq_gradient_sum_create(const int64_t n[DPQ_LINEAR_COUNT], const int64_t k[DPQ_LINEAR_COUNT],
                                   int64_t samples, dpq_transport transport, dpq_gradient_sum **out)
{
    void *memory;
    int bits = transport == DPQ_TRANSPORT_INT16 ? 14 : 30;
    *out = NULL;
    DPQ_TRY(dpq_alloc(sizeof(dpq_gradient_sum), &memory));
    dpq_gradient_sum *sum = memory;
    sum->transport = transport;
    while (((int64_t)1 << bits) > 1 && samples > 1) {
        samples = (samples + 1) / 2; /* ceil(log2(samples)) bits for the sum */
        bits--;
    }
    sum->limit = ldexp(1.0, bits);
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        slot *s = &sum->slots[role];
        s->n = n[role];
        s->k = k[role];
        dpq_status st = dpq_alloc_array(s->n * s->k, sizeof(int32_t), &memory);
        s->sums = st == DPQ_OK ? memory : NULL;
        if (st == DPQ_OK && transport == DPQ_TRANSPORT_INT16) {
            st = dpq_alloc_array(packed_count(s), sizeof(int32_t), &memory);
            s->packed = st == DPQ_OK ? memory : NULL;
        }
        if (st != DPQ_OK) {
            dpq_gradient_sum_destroy(&sum);
            return st;
        }
    }
    *out = sum;
    return DPQ_OK;
}

void dpq_gradient_sum_destroy(dpq_gradient_sum **sum)
{
    if (*sum == NULL) {
        return;
    }
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        dpq_free((*sum)->slots[role].sums);
        dpq_free((*sum)->slots[role].packed);
    }
    dpq_free(*sum);
    *sum = NULL;
}

void dpq_gradient_sum_begin(dpq_gradient_sum *sum)
{
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        slot *s = &sum->slots[role];
        memset(s->sums, 0, (size_t)(s->n * s->k) * sizeof *s->sums);
        s->used_exponent = s->exponent;
        s->peak = 0.0;
        s->sent = false;
    }
}

dpq_status dpq_gradient_sum_add(dpq_gradient_sum *sum, dpq_backend *be, dpq_linear_role role, const dpq_tensor *d_out,
                                const dpq_tensor *x, dpq_compute compute)
{
    slot *s = &sum->slots[role];
    double peak = 0.0;
    DPQ_TRY(dpq_op_weight_gradient(be, d_out, x, compute, s->used_exponent, sum->limit, s->sums, &peak));
    s->peak = peak > s->peak ? peak : s->peak;
    return DPQ_OK;
}

/* Two sums of at most 15 bits and a sign share an integer: high * 2^16 + low. Packed sums add like plain ones. */
static void pack(slot *s)
{
    int64_t count = s->n * s->k;
    for (int64_t i = 0; i < packed_count(s); i++) {
        int32_t high = 2 * i + 1 < count ? s->sums[2 * i + 1] : 0;
        s->packed[i] = (int32_t)((uint32_t)high << 16) + s->sums[2 * i];
    }
}

static void unpack(slot *s)
{
    int64_t count = s->n * s->k;
    for (int64_t i = 0; i < packed_count(s); i++) {
        int32_t low = (int16_t)(uint16_t)((uint32_t)s->packed[i] & 0xffffu);
        s->sums[2 * i] = low;
        if (2 * i + 1 < count) {
            s->sums[2 * i + 1] = (s->packed[i] - low) / 65536;
        }
    }
}

dpq_status dpq_gradient_sum_send(dpq_gradient_sum *sum, dpq_comm *comm, dpq_linear_role role)
{
    slot *s = &sum->slots[role];
    s->sent = true;
    if (s->n == 0) {
        return DPQ_OK;
    }
    dpq_tensor t = dpq_tensor_wrap_1d(s->sums, DPQ_DTYPE_I32, s->n * s->k);
    if (sum->transport == DPQ_TRANSPORT_INT16) {
        /* a step that will be repeated may hold sums that do not fit: they travel as zeros and are never read */
        if (s->peak * ldexp(1.0, -s->used_exponent) >= sum->limit) {
            memset(s->sums, 0, (size_t)(s->n * s->k) * sizeof *s->sums);
        }
        pack(s);
        t = dpq_tensor_wrap_1d(s->packed, DPQ_DTYPE_I32, packed_count(s));
    }
    return dpq_comm_start_allreduce(comm, &t, DPQ_REDUCE_SUM, &s->request);
}

bool dpq_gradient_sum_sent(const dpq_gradient_sum *sum, dpq_linear_role role)
{
    return sum->slots[role].sent;
}

/* Exponent that puts PEAK a margin below the limit. */
static int choose_exponent(const dpq_gradient_sum *sum, double peak)
{
    int log2_peak, log2_limit;
    frexp(peak, &log2_peak);        /* peak < 2^log2_peak */
    frexp(sum->limit, &log2_limit); /* limit = 2^(log2_limit - 1) */
    return log2_peak - (log2_limit - 1) + MARGIN_BITS;
}

dpq_status dpq_gradient_sum_finish(dpq_gradient_sum *sum, dpq_comm *comm, dpq_spans *spans, bool *repeat)
{
    double peaks[DPQ_LINEAR_COUNT];
    *repeat = false;
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        slot *s = &sum->slots[role];
        if (s->request != NULL) {
            DPQ_TRY(dpq_comm_wait(comm, &s->request, spans));
        }
        peaks[role] = s->peak;
    }
    dpq_tensor t = dpq_tensor_wrap_1d(peaks, DPQ_DTYPE_F64, DPQ_LINEAR_COUNT);
    DPQ_TRY(dpq_comm_allreduce(comm, &t, DPQ_REDUCE_MAX));
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        slot *s = &sum->slots[role];
        if (s->n == 0 || peaks[role] == 0.0) {
            continue;
        }
        double scaled = ldexp(peaks[role], -s->used_exponent);
        *repeat = *repeat || scaled >= sum->limit || scaled < ldexp(sum->limit, -SLACK_BITS);
        s->exponent = choose_exponent(sum, peaks[role]);
    }
    sum->repeats += *repeat ? 1 : 0;
    for (int role = 0; role < DPQ_LINEAR_COUNT && !*repeat; role++) {
        if (sum->transport == DPQ_TRANSPORT_INT16 && sum->slots[role].n > 0) {
            unpack(&sum->slots[role]);
        }
    }
    return DPQ_OK;
}

const int32_t *dpq_gradient_sum_values(const dpq_gradient_sum *sum, dpq_linear_role role, double *unit)
{
    *unit = ldexp(1.0, sum->slots[role].used_exponent);
    return sum->slots[role].sums;
}

int64_t dpq_gradient_sum_repeats(const dpq_gradient_sum *sum)
{
    return sum->repeats;
}
