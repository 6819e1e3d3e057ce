/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of the calibration's phases for one decoder block of small Llama shapes: forward, Hessian sums, factor, GPTQ
 * solve, each as operations, bytes of its operands, seconds, GFLOP/s and share of this machine's measured
 * matrix-product rate (the better of fp32 and bf16). bench_block [--threads N] [--tokens T] [--samples S] [--compute
 * auto|fp32|bf16] */
#include "bench_common.h"
#include "dpquant/algo.h"
#include "dpquant/fixsum.h"

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
    double begin = dpq_clock_s();
    for (int64_t s = 0; s < b->samples; s++) {
        dpq_workspace_release(ws, mark);
        CHECK(dpq_block_forward(&f, 0, &w, &h, ws));
    }
    double flop = forward_flop(c, (double)b->tokens);
    report(b, "forward", flop * (double)b->samples, (double)b->samples * (double)b->tokens * (double)c->hidden_size * 4,
           dpq_clock_s() - begin);
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
    double begin = dpq_clock_s();
    CHECK(dpq_op_xtx_accumulate(b->be, x, b->samples, exponent, b->compute, sums));
    double tokens = (double)(b->samples * b->tokens);
    snprintf(name, sizeof name, "Hessian %lld", (long long)k);
    report(b, name, tokens * (double)k * (double)(k + 1), tokens * (double)k * 2 + (double)dpq_xtx_count(k) * 8,
           dpq_clock_s() - begin);

    const dpq_linear_algo_ops *gptq = dpq_algo_find("gptq");
    dpq_algo_options options = {.gptq = {.damping = 0.01, .search = {DPQ_SEARCH_IMPORTANCE, 0.6, 1.1, 51}}};
    const dpq_stage_stats stats = {.k = k, .tokens = b->samples * b->tokens, .xtx = sums, .exponent = exponent};
    dpq_factor factor = {0};
    begin = dpq_clock_s();
    CHECK(gptq->prepare(&options, b->be, &stats, &factor));
    snprintf(name, sizeof name, "factor %lld", (long long)k);
    report(b, name, 2.0 / 3.0 * (double)k * (double)k * (double)k, (double)(k * k) * 4, dpq_clock_s() - begin);

    dpq_tensor w;
    dpq_qweight q;
    dpq_method method;
    const dpq_scheme scheme = {.bits = 4, .group_size = 64, .symmetric = true, .signed_scale = true};
    CHECK(dpq_tensor_create_2d(DPQ_DTYPE_BF16, n, k, &w));
    fill(&w, 1234, 0.05f);
    CHECK(dpq_qweight_create(&scheme, n, k, DPQ_DTYPE_BF16, false, &q));
    const dpq_solve_input input = {.module = "bench", .w = &w, .factor = &factor};
    begin = dpq_clock_s();
    CHECK(gptq->solve(&options, b->be, &input, 0, n, &q, &method));
    snprintf(name, sizeof name, "solve %lld x %lld", (long long)n, (long long)k);
    report(b, name, (double)n * (double)k * (double)k, (double)(n * k) * 3, dpq_clock_s() - begin);
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

int main(int argc, char **argv)
{
    bench b = {.compute = dpq_backend_auto_compute(), .tokens = 512, .samples = 16};
    int64_t threads = 0;
    parse(argc, argv, &b, &threads);
    start(&b, threads);
    for (size_t i = 0; i < DPQ_COUNT_OF(shapes); i++) {
        dpq_model_config c;
        make_config(&shapes[i], &c);
        printf("width %lld, feed-forward %lld, %lld heads over %lld\n", (long long)shapes[i].width,
               (long long)shapes[i].inner, (long long)shapes[i].heads, (long long)shapes[i].kv_heads);
        bench_forward(&b, &c);
        bench_stage(&b, shapes[i].width, shapes[i].inner);
        bench_stage(&b, shapes[i].inner, shapes[i].width);
    }
    dpq_backend_destroy(&b.be);
    return 0;
}
