/* SPDX-License-Identifier: Apache-2.0 */
/* Rate of one tuning step of a decoder block of small Llama shapes: forward with tape, backward with exact weight
 * gradients, quantize-dequantize and sign step, each as operations, bytes of its results, seconds, GFLOP/s and share of
 * this machine's measured matrix-product rate (the better of fp32 and bf16). bench_tune [--threads N] [--tokens T]
 * [--samples S] [--compute auto|fp32|bf16] */
#include "bench_common.h"
#include "dpquant/block_algo.h"
#include "dpquant/block_grad.h"

typedef struct {
    const bench *b;
    int32_t *sums[DPQ_LINEAR_COUNT];
} gradient_sink;

static dpq_status on_gradient(void *context, dpq_linear_role role, const dpq_tensor *d_out, const dpq_tensor *x)
{
    const gradient_sink *sink = context;
    double peak;
    return dpq_op_weight_gradient(sink->b->be, d_out, x, sink->b->compute, 0, 0x1p26, sink->sums[role], &peak);
}

/* Input gradients of o, gate, up and down; attention's five products over the causal half beside its two of the forward
 * pass. */
static double backward_flop(const dpq_model_config *c, double tokens)
{
    double weights = 0, inputs = 0, attention = 2.0 * tokens * tokens * (double)(c->n_heads * c->head_dim);
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        int64_t n, k;
        dpq_model_linear_shape(c, (dpq_linear_role)role, &n, &k);
        weights += 2.0 * tokens * (double)(n * k);
        inputs += role > DPQ_LINEAR_V ? 2.0 * tokens * (double)(n * k) : 0.0;
    }
    return weights + inputs + 2.5 * attention;
}

typedef struct {
    dpq_block_weights weights;
    dpq_tensor source[DPQ_LINEAR_COUNT], cos, sin, h, y, dy;
    dpq_block_tape tape;
    dpq_workspace *ws;
    dpq_block_state *state;
    gradient_sink sink;
    double parameters;
} fixture;

static void make_fixture(const bench *b, const dpq_model_config *c, fixture *f)
{
    static const dpq_scheme scheme = {.bits = 4, .group_size = 64, .symmetric = true, .signed_scale = true};
    static const dpq_tune_options options = {
        .iterations = 200, .batch = 8, .accumulate = 1, .minmax_tuning = true, .best_step = DPQ_BEST_STEP_LAST};
    dpq_tune_linear linears[DPQ_LINEAR_COUNT];
    memset(f, 0, sizeof *f);
    make_weights(b, c, &f->weights);
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        int64_t n, k;
        void *sums;
        dpq_model_linear_shape(c, (dpq_linear_role)role, &n, &k);
        CHECK(dpq_tensor_create_2d(DPQ_DTYPE_BF16, n, k, &f->source[role]));
        fill(&f->source[role], (uint64_t)role, 0.05f);
        CHECK(dpq_alloc_array(n * k, sizeof(int32_t), &sums));
        f->sink.sums[role] = sums;
        linears[role] = (dpq_tune_linear){.module = "bench", .scheme = scheme, .w = &f->source[role]};
        f->parameters += (double)(n * k);
    }
    f->sink.b = b;
    CHECK(dpq_block_algo_find("signround")->create(&options, b->be, linears, DPQ_LINEAR_COUNT, &f->state));
    CHECK(dpq_rope_tables(&c->rope, b->tokens, &f->cos, &f->sin));
    CHECK(dpq_tensor_create_2d(DPQ_DTYPE_BF16, b->tokens, c->hidden_size, &f->h));
    CHECK(dpq_tensor_create_2d(DPQ_DTYPE_BF16, b->tokens, c->hidden_size, &f->y));
    CHECK(dpq_tensor_create_2d(DPQ_DTYPE_BF16, b->tokens, c->hidden_size, &f->dy));
    CHECK(dpq_block_tape_create(c, DPQ_DTYPE_BF16, b->tokens, &f->tape));
    CHECK(dpq_workspace_create(&f->ws));
    fill(&f->h, 99, 1.0f);
    fill(&f->dy, 98, 0.01f);
}

static void free_fixture(fixture *f)
{
    dpq_block_algo_find("signround")->destroy(&f->state);
    dpq_workspace_destroy(&f->ws);
    dpq_block_tape_fini(&f->tape);
    dpq_block_weights_fini(&f->weights);
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        dpq_tensor_fini(&f->source[role]);
        dpq_free(f->sink.sums[role]);
    }
    dpq_tensor_fini(&f->cos);
    dpq_tensor_fini(&f->sin);
    dpq_tensor_fini(&f->h);
    dpq_tensor_fini(&f->y);
    dpq_tensor_fini(&f->dy);
}

static void bench_step(const bench *b, const dpq_model_config *c)
{
    fixture f;
    double forward_s = 0, backward_s = 0, tokens = (double)b->tokens, samples = (double)b->samples;
    const dpq_block_algo_ops *ops = dpq_block_algo_find("signround");
    make_fixture(b, c, &f);
    const dpq_forward forward = {.backend = b->be, .config = c, .cos = &f.cos, .sin = &f.sin, .compute = b->compute};
    dpq_workspace_mark mark = dpq_workspace_get_mark(f.ws);
    for (int64_t s = -1; s < b->samples; s++) { /* the first one warms up */
        double begin = dpq_clock_s();
        CHECK(dpq_block_forward_tape(&forward, 0, &f.weights, &f.h, &f.tape, &f.y, f.ws));
        double middle = dpq_clock_s();
        CHECK(dpq_block_backward(&forward, 0, &f.weights, &f.tape, &f.dy, on_gradient, &f.sink, f.ws));
        forward_s += s >= 0 ? middle - begin : 0.0;
        backward_s += s >= 0 ? dpq_clock_s() - middle : 0.0;
        dpq_workspace_release(f.ws, mark);
    }
    double begin = dpq_clock_s();
    for (int i = 0; i < DPQ_LINEAR_COUNT; i++) {
        CHECK(ops->step(f.state, 0, i, f.sink.sums[i], 1.0));
        CHECK(ops->weights(f.state, i, &f.weights.linear[i].w));
    }
    double update_s = dpq_clock_s() - begin;
    double forward_work = samples * forward_flop(c, tokens), backward_work = samples * backward_flop(c, tokens);
    report(b, "forward with tape", forward_work, samples * tokens * (double)c->hidden_size * 2, forward_s);
    report(b, "backward", backward_work, f.parameters * 4, backward_s);
    report(b, "update", 20.0 * f.parameters, f.parameters * 14, update_s);
    report(b, "step", forward_work + backward_work, f.parameters * 14, forward_s + backward_s + update_s);
    free_fixture(&f);
}

int main(int argc, char **argv)
{
    bench b = {.compute = dpq_backend_auto_compute(), .tokens = 512, .samples = 8};
    int64_t threads = 0;
    parse(argc, argv, &b, &threads);
    start(&b, threads);
    for (size_t i = 0; i < DPQ_COUNT_OF(shapes); i++) {
        dpq_model_config c;
        make_config(&shapes[i], &c);
        printf("width %lld, feed-forward %lld, %lld heads over %lld\n", (long long)shapes[i].width,
               (long long)shapes[i].inner, (long long)shapes[i].heads, (long long)shapes[i].kv_heads);
        bench_step(&b, &c);
    }
    dpq_backend_destroy(&b.be);
    return 0;
}
