/* SPDX-License-Identifier: Apache-2.0 */
/* What the benchmark programs share: block shapes, made-up weights, measured ceilings, one output line a phase. */
#ifndef DPQUANT_BENCH_COMMON_H
#define DPQUANT_BENCH_COMMON_H

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/clock.h"
#include "dpquant/half.h"
#include "dpquant/model.h"
#include "dpquant/rng.h"
#include "dpquant/str.h"

typedef struct {
    int64_t width, inner, heads, kv_heads, head_dim;
} shape;

static const shape shapes[] = {{256, 640, 8, 4, 32}, {576, 1536, 9, 3, 64}, {1024, 2816, 16, 8, 64}};

typedef struct {
    dpq_backend *be;
    dpq_compute compute;
    int64_t tokens, samples;
    double ceiling; /* GFLOP/s */
} bench;

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        if ((call) != DPQ_OK) {                                                                                        \
            fprintf(stderr, "benchmark: %s\n", dpq_error_last()->text);                                                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static inline void fill(dpq_tensor *t, uint64_t stream, float scale)
{
    int64_t n = dpq_tensor_count(t);
    for (int64_t i = 0; i < n; i++) {
        float value = scale * ((float)(dpq_rng_u64(7, stream, (uint64_t)i) >> 40) / 8388608.0f - 1.0f);
        if (t->dtype == DPQ_DTYPE_BF16) {
            ((uint16_t *)t->data)[i] = dpq_f32_to_bf16(value);
        } else {
            ((float *)t->data)[i] = value;
        }
    }
}

static inline void report(const bench *b, const char *phase, double flop, double bytes, double seconds)
{
    double rate = flop / seconds * 1e-9;
    printf("  %-22s %10.2f GFLOP %10.2f MB %9.4f s %9.1f GFLOP/s %6.1f %%\n", phase, flop * 1e-9, bytes * 1e-6, seconds,
           rate, 100.0 * rate / b->ceiling);
    fflush(stdout);
}

static inline void make_config(const shape *s, dpq_model_config *c)
{
    memset(c, 0, sizeof *c);
    c->hidden_size = s->width;
    c->intermediate_size = s->inner;
    c->n_layers = 1;
    c->n_heads = s->heads;
    c->n_kv_heads = s->kv_heads;
    c->head_dim = s->head_dim;
    c->rms_eps = 1e-5;
    c->rope = (dpq_rope_config){.theta = 1e4, .attention_factor = 1, .rotary_dim = s->head_dim};
    static int64_t window = 0;
    c->window = &window;
}

static inline void make_weights(const bench *b, const dpq_model_config *c, dpq_block_weights *w)
{
    memset(w, 0, sizeof *w);
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        int64_t n, k;
        dpq_model_linear_shape(c, (dpq_linear_role)role, &n, &k);
        dpq_dtype dtype = dpq_product_dtype(DPQ_DTYPE_BF16, DPQ_DTYPE_BF16, b->compute);
        CHECK(dpq_tensor_create_2d(dtype, n, k, &w->linear[role].w));
        fill(&w->linear[role].w, (uint64_t)role, 0.05f);
    }
    for (int norm = DPQ_NORM_INPUT; norm <= DPQ_NORM_POST; norm++) {
        CHECK(dpq_tensor_create_1d(DPQ_DTYPE_F32, c->hidden_size, &w->norm[norm]));
        fill(&w->norm[norm], 50, 1.0f);
    }
}

/* Products of the linears and of attention over the causal half. */
static inline double forward_flop(const dpq_model_config *c, double tokens)
{
    double parameters = 0;
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        int64_t n, k;
        dpq_model_linear_shape(c, (dpq_linear_role)role, &n, &k);
        parameters += (double)(n * k);
    }
    return 2.0 * tokens * parameters + 2.0 * tokens * tokens * (double)(c->n_heads * c->head_dim);
}

static inline void parse(int argc, char **argv, bench *b, int64_t *threads)
{
    static const struct option options[] = {{"threads", required_argument, NULL, 't'},
                                            {"tokens", required_argument, NULL, 'T'},
                                            {"samples", required_argument, NULL, 's'},
                                            {"compute", required_argument, NULL, 'c'},
                                            {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        bool good = c == 't'   ? dpq_parse_int64(optarg, threads)
                    : c == 'T' ? dpq_parse_int64(optarg, &b->tokens) && b->tokens > 0
                    : c == 's' ? dpq_parse_int64(optarg, &b->samples) && b->samples > 0
                    : c == 'c' ? true
                               : false;
        if (!good) {
            fprintf(stderr, "usage: bench_NAME [--threads N] [--tokens T] [--samples S] [--compute auto|fp32|bf16]\n");
            exit(2);
        }
        if (c == 'c' && strcmp(optarg, "auto") != 0) {
            b->compute = strcmp(optarg, "bf16") == 0 ? DPQ_COMPUTE_BF16 : DPQ_COMPUTE_F32;
        }
    }
}

/* Backend and ceilings, and the line that names them. THREADS 0: all. */
static inline void start(bench *b, int64_t threads)
{
    double f32, bf16;
    CHECK(dpq_backend_create("cpu", dpq_backend_choose_threads(threads, 1), &b->be));
    CHECK(dpq_backend_measure_gflops(b->be, DPQ_COMPUTE_F32, 0.5, &f32));
    CHECK(dpq_backend_measure_gflops(b->be, DPQ_COMPUTE_BF16, 0.5, &bf16));
    b->ceiling = f32 > bf16 ? f32 : bf16;
    printf("%s, %d thread%s; measured products: fp32 %.1f, bf16 %.1f GFLOP/s; computing in %s, %lld samples of %lld "
           "tokens\n",
           dpq_backend_isa(), dpq_backend_threads(b->be), dpq_backend_threads(b->be) == 1 ? "" : "s", f32, bf16,
           b->compute == DPQ_COMPUTE_BF16 ? "bf16" : "fp32", (long long)b->samples, (long long)b->tokens);
}

#endif
