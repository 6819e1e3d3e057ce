/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of weight gradients of a step: the same integers for any number of ranks as one rank finds alone, steps repeated
 * for their exponents on all ranks alike, both ways to travel. Run under mpirun with 1 to 4 ranks; a failed check on
 * any rank makes all return 1. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/engine/gradient_sum.h"
#include "dpquant/rng.h"

enum { N = 5, K = 7, T = 3, SAMPLES = 6 };

static long n_failed;

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "test_gradient_sum: line %d: %s\n", __LINE__, #condition);                                 \
            n_failed++;                                                                                                \
        }                                                                                                              \
    } while (0)

static void must(dpq_comm *comm, dpq_status st)
{
    if (st != DPQ_OK) {
        dpq_comm_abort(comm, st);
    }
}

/* Made-up gradient of an output and input of a linear for one sample. */
static void fill(float *values, int64_t n, uint64_t stream, float scale)
{
    for (int64_t i = 0; i < n; i++) {
        values[i] = scale * ((float)(dpq_rng_u64(3, stream, (uint64_t)i) >> 40) / 8388608.0f - 1.0f);
    }
}

static void add_sample(dpq_comm *comm, dpq_backend *be, dpq_gradient_sum *sum, int64_t sample, float scale)
{
    float d_out[T * N], x[T * K];
    fill(d_out, T * N, (uint64_t)(2 * sample), scale);
    fill(x, T * K, (uint64_t)(2 * sample + 1), 1.0f);
    dpq_tensor d = dpq_tensor_wrap_2d(d_out, DPQ_DTYPE_F32, T, N), in = dpq_tensor_wrap_2d(x, DPQ_DTYPE_F32, T, K);
    must(comm, dpq_gradient_sum_add(sum, be, DPQ_LINEAR_O, &d, &in, DPQ_COMPUTE_F32));
}

/* One step over all samples, repeated as long as asked; OUT the sums, *unit their unit. Returns how often it was
 * repeated. */
static int64_t run_step(dpq_comm *comm, dpq_backend *be, dpq_gradient_sum *sum, float scale, int32_t *out, double *unit)
{
    bool repeat = true;
    int64_t before = dpq_gradient_sum_repeats(sum);
    for (int tries = 0; repeat && tries < 4; tries++) {
        dpq_gradient_sum_begin(sum);
        for (int64_t s = 0; s < SAMPLES; s++) {
            if (s % dpq_comm_size(comm) == dpq_comm_rank(comm)) {
                add_sample(comm, be, sum, s, scale);
            }
        }
        for (int role = DPQ_LINEAR_COUNT - 1; role >= 0; role--) {
            must(comm, dpq_gradient_sum_send(sum, comm, (dpq_linear_role)role));
            CHECK(dpq_gradient_sum_sent(sum, (dpq_linear_role)role));
        }
        must(comm, dpq_gradient_sum_finish(sum, comm, NULL, &repeat));
    }
    CHECK(!repeat);
    memcpy(out, dpq_gradient_sum_values(sum, DPQ_LINEAR_O, unit), N * K * sizeof *out);
    return dpq_gradient_sum_repeats(sum) - before;
}

/* The sum in fp64, for the rounding: each sample is off by half a unit and its own fp32 rounding at most. */
static void check_values(const int32_t *sums, double unit, float scale)
{
    double exact[N * K] = {0};
    for (int64_t s = 0; s < SAMPLES; s++) {
        float d_out[T * N], x[T * K];
        fill(d_out, T * N, (uint64_t)(2 * s), scale);
        fill(x, T * K, (uint64_t)(2 * s + 1), 1.0f);
        for (int64_t i = 0; i < N * K; i++) {
            for (int64_t t = 0; t < T; t++) {
                exact[i] += (double)d_out[t * N + i / K] * (double)x[t * K + i % K];
            }
        }
    }
    for (int64_t i = 0; i < N * K; i++) {
        CHECK(fabs(exact[i] - sums[i] * unit) <= SAMPLES * (0.5 * unit + 4.0 * T * fabs((double)scale) * 0x1p-24));
    }
}

static void test_transport(dpq_comm *comm, dpq_comm *self, dpq_backend *be, dpq_transport transport)
{
    const int64_t n[DPQ_LINEAR_COUNT] = {[DPQ_LINEAR_O] = N}, k[DPQ_LINEAR_COUNT] = {[DPQ_LINEAR_O] = K};
    static const float scales[] = {1e-3f, 1.1e-3f, 5.0f, 5.0f, 1e-9f};
    dpq_gradient_sum *shared = NULL, *alone = NULL;
    must(comm, dpq_gradient_sum_create(n, k, SAMPLES, transport, &shared));
    must(comm, dpq_gradient_sum_create(n, k, SAMPLES, transport, &alone));
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        int32_t a[N * K], b[N * K];
        double unit_a, unit_b;
        int64_t repeats = run_step(comm, be, shared, scales[i], a, &unit_a);
        CHECK(repeats == run_step(self, be, alone, scales[i], b, &unit_b));
        CHECK(repeats == (i == 1 || i == 3 ? 0 : 1)); /* first step, far larger, far smaller: repeated once */
        CHECK(unit_a == unit_b && memcmp(a, b, sizeof a) == 0);
        check_values(a, unit_a, scales[i]);
    }
    dpq_gradient_sum_destroy(&shared);
    dpq_gradient_sum_destroy(&alone);
    CHECK(shared == NULL && alone == NULL);
}

int main(int argc, char **argv)
{
    dpq_comm *comm = NULL, *self = NULL;
    dpq_backend *be = NULL;
    if (dpq_comm_open(&argc, &argv, &comm) != DPQ_OK) {
        fprintf(stderr, "test_gradient_sum: %s\n", dpq_error_last()->text);
        return 1;
    }
    /* every rank alone: one after the other leaves the rest with an empty part */
    for (int r = 0; r < dpq_comm_size(comm); r++) {
        dpq_comm *part = NULL;
        must(comm, dpq_comm_subset(comm, dpq_comm_rank(comm) == r, &part));
        self = part != NULL ? part : self;
    }
    must(comm, dpq_backend_create("cpu", 1, &be));
    test_transport(comm, self, be, DPQ_TRANSPORT_INT32);
    test_transport(comm, self, be, DPQ_TRANSPORT_INT16);
    dpq_backend_destroy(&be);
    dpq_comm_close(&self);
    dpq_tensor t = dpq_tensor_wrap_1d(&n_failed, DPQ_DTYPE_I64, 1);
    must(comm, dpq_comm_allreduce(comm, &t, DPQ_REDUCE_SUM));
    if (dpq_comm_rank(comm) == 0 && n_failed == 0) {
        printf("test_gradient_sum: %d ranks ok\n", dpq_comm_size(comm));
    }
    dpq_comm_close(&comm);
    return n_failed == 0 ? 0 : 1;
}
