/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of the calibration's phases for one decoder block of small Llama shapes: forward, Hessian sums, factor, GPTQ solve, each as
 * operations, bytes of its operands, seconds, GFLOP/s and share of this machine's measured matrix-product rate (the better of fp32 and bf16).
 *   bench_block [--threads N] [--tokens T] [--samples S] [--compute auto|fp32|bf16] */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpquant/algo.h"
#include "dpquant/alloc.h"
#include "dpquant/clock.h"
#include "dpquant/fixsum.h"
#include "dpquant/half.h"
#include "dpquant/model.h"
#include "dpquant/rng.h"

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
            fprintf(stderr, "bench_block: %s\n", dpq_error_last()->text);                                              \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void fill(dpq_tensor *t, uint64_t stream, float scale)
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

static void report(const bench *b, const char *phase, double flop, double bytes, double seconds)
{
    double rate = flop / seconds * 1e-9;
    printf("  %-22s %10.2f GFLOP %10.2f MB %9.4f s %9.1f GFLOP/s %6.1f %%\n", phase, flop * 1e-9, bytes * 1e-6, seconds, rate, 100.0 * rate / b->ceiling);
    fflush(stdout);
}

static void make_config(const shape *s, dpq_model_config *c)
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

static void make_weights(const bench *b, const dpq_model_config *c, dpq_block_weights *w)
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
static double forward_flop(const dpq_model_config *c, double tokens)
{
    double parameters = 0;
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        int64_t n, k;
        dpq_model_linear_shape(c, (dpq_linear_role)role, &n, &k);
        parameters += (double)(n * k);
    }
    return 2.0 * tokens * parameters + 2.0 * tokens * tokens * (double)(c->n_heads * c->head_dim);
}

static void bench_forward(const bench *b, const dpq_model_config *c)
{
    dpq_block_weights w;
    dpq_tensor cos, sin, h;
    dpq_workspace *ws;
    make_weights(b, c, &w);
    CHECK(dpq_rope_tables(&c->rope, b->tokens, &cos, &sin));
    CHECK(dpq_tensor_create_2d(DPQ_DTYPE_BF16, b->tokens, c->hidden_size, &h));
    CHECK(dpq_workspace_create(&ws));
    fill(&h, 99, 1.0f);
    dpq_forward f = {.backend = b->be, .config = c, .cos = &cos, .sin = &sin, .compute = b->compute};
    dpq_workspace_mark mark = dpq_workspace_get_mark(ws);
    CHECK(dpq_block_forward(&f, 0, &w, &h, ws));
    double start = dpq_clock_s();
    for (int64_t s = 0; s < b->samples; s++) {
        dpq_workspace_release(ws, mark);
        CHECK(dpq_block_forward(&f, 0, &w, &h, ws));
    }
    double flop = forward_flop(c, (double)b->tokens);
    report(b, "forward", flop * (double)b->samples, (double)b->samples * (double)b->tokens * (double)c->hidden_size * 4, dpq_clock_s() - start);
    dpq_workspace_destroy(&ws);
    dpq_block_weights_fini(&w);
    dpq_tensor_fini(&cos);
    dpq_tensor_fini(&sin);
    dpq_tensor_fini(&h);
}

/* Hessian sums of one stage input of width K, one triangle; then factor and solve of an (N,K) linear. */
static void bench_stage(const bench *b, int64_t k, int64_t n)
{
    void *x_memory, *exponent, *sumsq, *sums;
    char name[64];
    CHECK(dpq_alloc_array(b->samples, sizeof(dpq_tensor), &x_memory));
    CHECK(dpq_alloc_array(k, sizeof(int32_t), &exponent));
    CHECK(dpq_alloc_array(k, sizeof(double), &sumsq));
    CHECK(dpq_alloc_array(dpq_xtx_count(k), sizeof(int64_t), &sums));
    dpq_tensor *x = x_memory;
    for (int64_t s = 0; s < b->samples; s++) {
        CHECK(dpq_tensor_create_2d(DPQ_DTYPE_BF16, b->tokens, k, &x[s]));
        fill(&x[s], (uint64_t)s, 1.0f);
    }
    CHECK(dpq_op_column_sumsq(b->be, &x[0], sumsq));
    for (int64_t j = 0; j < k; j++) {
        ((double *)sumsq)[j] *= 2.0;
    }
    CHECK(dpq_fixsum_exponents(sumsq, k, b->samples, exponent));
    CHECK(dpq_op_xtx_accumulate(b->be, x, 1, exponent, b->compute, sums));
    memset(sums, 0, (size_t)dpq_xtx_count(k) * sizeof(int64_t));
    double start = dpq_clock_s();
    CHECK(dpq_op_xtx_accumulate(b->be, x, b->samples, exponent, b->compute, sums));
    double tokens = (double)(b->samples * b->tokens);
    snprintf(name, sizeof name, "Hessian %lld", (long long)k);
    report(b, name, tokens * (double)k * (double)(k + 1), tokens * (double)k * 2 + (double)dpq_xtx_count(k) * 8, dpq_clock_s() - start);

    const dpq_linear_algo_ops *gptq = dpq_algo_find("gptq");
    dpq_algo_options options = {.gptq = {.damping = 0.01, .search = {DPQ_SEARCH_IMPORTANCE, 0.6, 1.1, 51}}};
    const dpq_stage_stats stats = {.k = k, .tokens = b->samples * b->tokens, .xtx = sums, .exponent = exponent};
    dpq_factor factor = {0};
    start = dpq_clock_s();
    CHECK(gptq->prepare(&options, b->be, &stats, &factor));
    snprintf(name, sizeof name, "factor %lld", (long long)k);
    report(b, name, 2.0 / 3.0 * (double)k * (double)k * (double)k, (double)(k * k) * 4, dpq_clock_s() - start);

    dpq_tensor w;
    dpq_qweight q;
    dpq_method method;
    const dpq_scheme scheme = {.bits = 4, .group_size = 64, .symmetric = true, .signed_scale = true};
    CHECK(dpq_tensor_create_2d(DPQ_DTYPE_BF16, n, k, &w));
    fill(&w, 1234, 0.05f);
    CHECK(dpq_qweight_create(&scheme, n, k, DPQ_DTYPE_BF16, false, &q));
    const dpq_solve_input input = {.module = "bench", .w = &w, .factor = &factor};
    start = dpq_clock_s();
    CHECK(gptq->solve(&options, b->be, &input, 0, n, &q, &method));
    snprintf(name, sizeof name, "solve %lld x %lld", (long long)n, (long long)k);
    report(b, name, (double)n * (double)k * (double)k, (double)(n * k) * 3, dpq_clock_s() - start);
    dpq_tensor_fini(&w);
    dpq_qweight_fini(&q);
    dpq_factor_fini(&factor);
    for (int64_t s = 0; s < b->samples; s++) {
        dpq_tensor_fini(&x[s]);
    }
    dpq_free(x_memory);
    dpq_free(exponent);
    dpq_free(sumsq);
    dpq_free(sums);
}

static void parse(int argc, char **argv, bench *b, int64_t *threads)
{
    static const struct option options[] = {
        {"threads", required_argument, NULL, 't'}, {"tokens", required_argument, NULL, 'T'}, {"samples", required_argument, NULL, 's'},
        {"compute", required_argument, NULL, 'c'}, {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        bool good = c == 't'   ? dpq_parse_int64(optarg, threads)
                    : c == 'T' ? dpq_parse_int64(optarg, &b->tokens) && b->tokens > 0
                    : c == 's' ? dpq_parse_int64(optarg, &b->samples) && b->samples > 0
                    : c == 'c' ? true
                               : false;
        if (!good) {
            fprintf(stderr, "usage: bench_block [--threads N] [--tokens T] [--samples S] [--compute auto|fp32|bf16]\n");
            exit(2);
        }
        if (c == 'c' && strcmp(optarg, "auto") != 0) {
            b->compute = strcmp(optarg, "bf16") == 0 ? DPQ_COMPUTE_BF16 : DPQ_COMPUTE_F32;
        }
    }
}

int main(int argc, char **argv)
{
    bench b = {.compute = dpq_backend_auto_compute(), .tokens = 512, .samples = 16};
    int64_t threads = 0;
    double f32, bf16;
    parse(argc, argv, &b, &threads);
    CHECK(dpq_backend_create("cpu", dpq_backend_choose_threads(threads, 1), &b.be));
    CHECK(dpq_backend_measure_gflops(b.be, DPQ_COMPUTE_F32, 0.5, &f32));
    CHECK(dpq_backend_measure_gflops(b.be, DPQ_COMPUTE_BF16, 0.5, &bf16));
    b.ceiling = f32 > bf16 ? f32 : bf16;
    printf("%s, %d thread%s; measured products: fp32 %.1f, bf16 %.1f GFLOP/s; computing in %s, %lld samples of %lld tokens\n",
           dpq_backend_isa(), dpq_backend_threads(b.be), dpq_backend_threads(b.be) == 1 ? "" : "s", f32, bf16,
           b.compute == DPQ_COMPUTE_BF16 ? "bf16" : "fp32", (long long)b.samples, (long long)b.tokens);
    for (size_t i = 0; i < DPQ_COUNT_OF(shapes); i++) {
        dpq_model_config c;
        make_config(&shapes[i], &c);
        printf("width %lld, feed-forward %lld, %lld heads over %lld\n", (long long)shapes[i].width, (long long)shapes[i].inner,
               (long long)shapes[i].heads, (long long)shapes[i].kv_heads);
        bench_forward(&b, &c);
        bench_stage(&b, shapes[i].width, shapes[i].inner);
        bench_stage(&b, shapes[i].inner, shapes[i].width);
    }
    dpq_backend_destroy(&b.be);
    return 0;
}
