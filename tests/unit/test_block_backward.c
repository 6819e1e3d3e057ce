/* SPDX-License-Identifier: Apache-2.0 */
/* Backward pass of a block: weight gradients of a made-up block with every option against central differences of its
 * forward pass in double; on the tiny model, bf16 against fp32, equal bits for any number of threads, and the same
 * forward bits with and without a tape. */
#include "block_cases.h"

#include "dpquant/block_grad.h"

static const dpq_linear_role order[DPQ_LINEAR_COUNT] = {DPQ_LINEAR_DOWN, DPQ_LINEAR_GATE, DPQ_LINEAR_UP, DPQ_LINEAR_O,
                                                        DPQ_LINEAR_V,    DPQ_LINEAR_K,    DPQ_LINEAR_Q};

/* Weight gradients d_out^T x in double, by role, and the calls so far. */
typedef struct {
    double *gradient[DPQ_LINEAR_COUNT];
    int calls, fail_at;
} collected;

static void widen(const dpq_tensor *t, float *out)
{
    for (int64_t i = 0; i < t->dim[0]; i++) {
        const char *row = (const char *)t->data + (size_t)(i * t->stride[0]) * dpq_dtype_bytes(t->dtype);
        expect_ok(dpq_convert(row, t->dtype, out + i * t->dim[1], DPQ_DTYPE_F32, t->dim[1]));
    }
}

static dpq_status collect(void *context, dpq_linear_role role, const dpq_tensor *d_out, const dpq_tensor *x)
{
    collected *c = context;
    assert_true(c->calls < DPQ_LINEAR_COUNT);
    assert_int_equal(role, order[c->calls]);
    assert_int_equal(d_out->dim[0], x->dim[0]);
    if (c->calls++ == c->fail_at) {
        return DPQ_RAISE(DPQ_E_NUMERIC, "made to fail at %s", dpq_linear_role_name(role));
    }
    int64_t t = x->dim[0], n = d_out->dim[1], k = x->dim[1];
    float *d = malloc((size_t)(t * n) * sizeof *d), *in = malloc((size_t)(t * k) * sizeof *in);
    double *sum = calloc((size_t)(n * k), sizeof *sum);
    widen(d_out, d);
    widen(x, in);
    for (int64_t s = 0; s < t; s++) {
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < k; j++) {
                sum[i * k + j] += (double)d[s * n + i] * (double)in[s * k + j];
            }
        }
    }
    free(d);
    free(in);
    c->gradient[role] = sum;
    return DPQ_OK;
}

static void free_collected(collected *c)
{
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        free(c->gradient[role]);
    }
}

static double distance(const double *a, const double *b, int64_t n)
{
    double difference = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / size);
}

/* ---- finite differences ---- */

/* sum of dy * block(h), in double. */
static double plain_loss(const dpq_block_weights *w, const float *h, const float *dy)
{
    static double y[T * C];
    double loss = 0.0;
    for (int i = 0; i < T * C; i++) {
        y[i] = (double)h[i];
    }
    ref_block(&made_up_config, w, y);
    for (int i = 0; i < T * C; i++) {
        loss += (double)dy[i] * y[i];
    }
    return loss;
}

static void test_finite_differences(void **state)
{
    (void)state;
    const dpq_model_config c = made_up_config;
    dpq_block_weights w;
    dpq_tensor cos_table, sin_table, h, y, dy;
    dpq_block_tape tape;
    dpq_backend *be = NULL;
    dpq_workspace *ws = NULL;
    noise_state = 4321;
    make_block(&c, &w);
    expect_ok(dpq_rope_tables(&c.rope, T + 3, &cos_table, &sin_table));
    expect_ok(dpq_backend_create("cpu", 2, &be));
    expect_ok(dpq_workspace_create(&ws));
    expect_ok(dpq_tensor_create_2d(DPQ_DTYPE_F32, T, C, &h));
    expect_ok(dpq_tensor_create_2d(DPQ_DTYPE_F32, T, C, &y));
    expect_ok(dpq_tensor_create_2d(DPQ_DTYPE_F32, T, C, &dy));
    expect_ok(dpq_block_tape_create(&c, DPQ_DTYPE_F32, T + 2, &tape));
    fill(&h, 0.0);
    fill(&dy, 0.0);
    const dpq_forward f = {
        .backend = be, .config = &c, .cos = &cos_table, .sin = &sin_table, .compute = DPQ_COMPUTE_F32};
    collected got = {.fail_at = -1};
    expect_ok(dpq_block_forward_tape(&f, 1, &w, &h, &tape, &y, ws));
    expect_ok(dpq_block_backward(&f, 1, &w, &tape, &dy, collect, &got, ws));
    assert_int_equal(got.calls, DPQ_LINEAR_COUNT);
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        float *weight = w.linear[role].w.data;
        int64_t count = dpq_tensor_count(&w.linear[role].w);
        double *want = malloc((size_t)count * sizeof *want);
        for (int64_t i = 0; i < count; i++) {
            const float old = weight[i], high = old + 0x1p-12f, low = old - 0x1p-12f;
            weight[i] = high;
            want[i] = plain_loss(&w, h.data, dy.data);
            weight[i] = low;
            want[i] -= plain_loss(&w, h.data, dy.data);
            want[i] /= (double)high - (double)low;
            weight[i] = old;
        }
        double error = distance(got.gradient[role], want, count);
        print_message("%s: relative error %.2e\n", dpq_linear_role_name((dpq_linear_role)role), error);
        assert_true(error <= 3e-6);
        free(want);
    }
    free_collected(&got);
    dpq_block_tape_fini(&tape);
    assert_null(tape.memory);
    dpq_tensor_fini(&h);
    dpq_tensor_fini(&y);
    dpq_tensor_fini(&dy);
    dpq_tensor_fini(&cos_table);
    dpq_tensor_fini(&sin_table);
    dpq_block_weights_fini(&w);
    dpq_workspace_destroy(&ws);
    dpq_backend_destroy(&be);
}

/* ---- the tiny model ---- */

typedef struct {
    tiny_model m;
    dpq_forward f;
    dpq_backend *be;
    dpq_workspace *ws;
    dpq_block_tape tape;
    dpq_tensor h, y, dy; /* TOKENS rows */
} tiny_case;

static void open_tiny(tiny_case *t, dpq_dtype act, dpq_compute compute, int threads)
{
    memset(t, 0, sizeof *t);
    load_tiny(&t->m, act, compute);
    expect_ok(dpq_backend_create("cpu", threads, &t->be));
    expect_ok(dpq_workspace_create(&t->ws));
    t->f =
        (dpq_forward){.backend = t->be, .config = &t->m.config, .cos = &t->m.cos, .sin = &t->m.sin, .compute = compute};
    expect_ok(dpq_block_tape_create(&t->m.config, act, TOKENS, &t->tape));
    load_embeddings(0, act, &t->h);
    expect_ok(dpq_tensor_create_2d(act, TOKENS, WIDTH, &t->y));
    expect_ok(dpq_tensor_create_2d(act, TOKENS, WIDTH, &t->dy));
    noise_state = 99;
    for (int64_t i = 0; i < (int64_t)TOKENS * WIDTH; i++) {
        float value = dpq_bf16_to_f32(dpq_f32_to_bf16(noise())); /* the same gradient in every type */
        expect_ok(dpq_convert(&value, DPQ_DTYPE_F32, (char *)t->dy.data + (size_t)i * dpq_dtype_bytes(act), act, 1));
    }
}

static void close_tiny(tiny_case *t)
{
    dpq_tensor_fini(&t->h);
    dpq_tensor_fini(&t->y);
    dpq_tensor_fini(&t->dy);
    dpq_block_tape_fini(&t->tape);
    dpq_workspace_destroy(&t->ws);
    dpq_backend_destroy(&t->be);
    free_tiny(&t->m);
}

static const struct {
    dpq_dtype act;
    dpq_compute compute;
} kinds[] = {{DPQ_DTYPE_F32, DPQ_COMPUTE_F32}, {DPQ_DTYPE_BF16, DPQ_COMPUTE_F32}, {DPQ_DTYPE_BF16, DPQ_COMPUTE_BF16}};

/* Same bits as the forward pass without a tape, for samples of different lengths in one tape, and in place. */
static void test_forward_bits(void **state)
{
    (void)state;
    static const int64_t lengths[] = {TOKENS, 1, 77, TOKENS};
    for (int kind = 0; kind < 3; kind++) {
        tiny_case t;
        open_tiny(&t, kinds[kind].act, kinds[kind].compute, 2);
        for (int i = 0; i < 4; i++) {
            size_t bytes = (size_t)(lengths[i] * WIDTH) * dpq_dtype_bytes(t.h.dtype);
            dpq_tensor h = dpq_tensor_rows(&t.h, 0, lengths[i]), y = dpq_tensor_rows(&t.y, 0, lengths[i]), plain;
            expect_ok(dpq_tensor_create_2d(h.dtype, lengths[i], WIDTH, &plain));
            memcpy(plain.data, h.data, bytes);
            expect_ok(dpq_block_forward_tape(&t.f, i, &t.m.weights[i], &h, &t.tape, &y, t.ws));
            assert_int_equal(t.tape.x[3].dim[0], lengths[i]);
            expect_ok(dpq_block_forward(&t.f, i, &t.m.weights[i], &plain, t.ws));
            assert_memory_equal(y.data, plain.data, bytes);
            expect_ok(dpq_block_forward_tape(&t.f, i, &t.m.weights[i], &h, &t.tape, &h, t.ws));
            assert_memory_equal(h.data, plain.data, bytes);
            dpq_tensor_fini(&plain);
        }
        close_tiny(&t);
    }
}

static void run_tiny(int kind, int threads, int64_t tokens, collected *out)
{
    tiny_case t;
    open_tiny(&t, kinds[kind].act, kinds[kind].compute, threads);
    dpq_tensor h = dpq_tensor_rows(&t.h, 0, tokens), y = dpq_tensor_rows(&t.y, 0, tokens),
               dy = dpq_tensor_rows(&t.dy, 0, tokens);
    *out = (collected){.fail_at = -1};
    expect_ok(dpq_block_forward_tape(&t.f, 1, &t.m.weights[1], &h, &t.tape, &y, t.ws));
    expect_ok(dpq_block_backward(&t.f, 1, &t.m.weights[1], &t.tape, &dy, collect, out, t.ws));
    dpq_workspace_mark mark = dpq_workspace_get_mark(t.ws);
    assert_true(mark.chunk == 0 && mark.used == 0);
    close_tiny(&t);
}

static int64_t weight_count(int role)
{
    int64_t n, k;
    dpq_model_config c;
    bool quantized;
    expect_ok(dpq_model_config_read(TINY, &c, &quantized));
    dpq_model_linear_shape(&c, (dpq_linear_role)role, &n, &k);
    dpq_model_config_fini(&c);
    return n * k;
}

/* Activations and gradients in bf16 (8 bits) cost about a percent of a gradient. */
static void test_bf16_against_f32(void **state)
{
    (void)state;
    collected exact;
    run_tiny(0, 2, TOKENS, &exact);
    for (int kind = 1; kind < 3; kind++) {
        collected got;
        run_tiny(kind, 2, TOKENS, &got);
        for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
            double error = distance(got.gradient[role], exact.gradient[role], weight_count(role));
            print_message("compute %s, %s: relative error %.2e\n", kind == 1 ? "f32" : "bf16",
                          dpq_linear_role_name((dpq_linear_role)role), error);
            assert_true(error <= 2e-2);
        }
        free_collected(&got);
    }
    free_collected(&exact);
}

static void test_equal_bits(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 8};
    for (int kind = 0; kind < 3; kind++) {
        collected first;
        run_tiny(kind, threads[0], 77, &first);
        for (int i = 1; i < 3; i++) {
            collected got;
            run_tiny(kind, threads[i], 77, &got);
            for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
                assert_memory_equal(got.gradient[role], first.gradient[role],
                                    (size_t)weight_count(role) * sizeof(double));
            }
            free_collected(&got);
        }
        free_collected(&first);
    }
}

static void test_refused(void **state)
{
    (void)state;
    tiny_case t;
    open_tiny(&t, DPQ_DTYPE_BF16, DPQ_COMPUTE_F32, 1);
    collected got = {.fail_at = -1};
    const dpq_block_weights *w = &t.m.weights[0];
    expect_error(dpq_block_backward(&t.f, 0, w, &t.tape, &t.dy, collect, &got, t.ws), DPQ_E_SHAPE, "found none");
    dpq_tensor wide, other = dpq_tensor_wrap_2d(t.h.data, DPQ_DTYPE_F32, TOKENS / 2, WIDTH);
    expect_ok(dpq_tensor_create_2d(DPQ_DTYPE_BF16, TOKENS + 1, WIDTH, &wide));
    expect_error(dpq_block_forward_tape(&t.f, 0, w, &wide, &t.tape, &wide, t.ws), DPQ_E_SHAPE, "at most 128,256");
    expect_error(dpq_block_forward_tape(&t.f, 0, w, &other, &t.tape, &other, t.ws), DPQ_E_SHAPE, "input F32");
    expect_error(dpq_block_forward_tape(&t.f, 0, w, &t.h, &t.tape, &wide, t.ws), DPQ_E_SHAPE, "same shape");
    expect_ok(dpq_block_forward_tape(&t.f, 0, w, &t.h, &t.tape, &t.y, t.ws));
    expect_error(dpq_block_backward(&t.f, 0, w, &t.tape, &wide, collect, &got, t.ws), DPQ_E_SHAPE,
                 "gradient BF16 (129,256)");
    assert_int_equal(got.calls, 0);

    /* an error of the callback ends the pass, which has used the tape up */
    for (int at = 0; at < DPQ_LINEAR_COUNT; at++) {
        collected failing = {.fail_at = at};
        expect_ok(dpq_block_forward_tape(&t.f, 0, w, &t.h, &t.tape, &t.y, t.ws));
        expect_error(dpq_block_backward(&t.f, 0, w, &t.tape, &t.dy, collect, &failing, t.ws), DPQ_E_NUMERIC,
                     dpq_linear_role_name(order[at]));
        assert_int_equal(failing.calls, at + 1);
        assert_int_equal(dpq_workspace_get_mark(t.ws).used, 0);
        expect_error(dpq_block_backward(&t.f, 0, w, &t.tape, &t.dy, collect, &failing, t.ws), DPQ_E_SHAPE,
                     "found none");
        free_collected(&failing);
    }
    dpq_tensor_fini(&wide);
    close_tiny(&t);
}

static void test_bytes(void **state)
{
    (void)state;
    dpq_model_config c = made_up_config;
    c.hidden_size = 64;
    c.intermediate_size = 128;
    c.n_heads = 4;
    c.n_kv_heads = 2;
    c.head_dim = 16;
    c.qk_norm = false;
    /* x: 64 + 64 + 64 + 128, q 64, k and v 32, h1 64, gate and up 128 */
    assert_int_equal(dpq_block_tape_bytes(&c, DPQ_DTYPE_BF16, 10), 10 * 2 * (320 + 128 + 64 + 256));
    c.qk_norm = true;
    assert_int_equal(dpq_block_tape_bytes(&c, DPQ_DTYPE_F32, 10), 10 * 4 * (320 + 128 + 64 + 256 + 96));
    assert_true(dpq_block_backward_bytes(&c, DPQ_DTYPE_F32, 20, 1) <
                dpq_block_backward_bytes(&c, DPQ_DTYPE_F32, 20, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_forward_bits),
        cmocka_unit_test(test_bf16_against_f32),
        cmocka_unit_test(test_equal_bits),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
