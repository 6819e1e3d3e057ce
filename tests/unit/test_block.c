/* SPDX-License-Identifier: Apache-2.0 */
/* The block's forward pass: the tiny model against stored hidden states, a made-up block with every option against
 * plain loops in double, stages against the whole, and equal bits for any number of threads. */
#include "block_cases.h"

static double golden_error(const dpq_tensor *h, int index, int sample)
{
    static float expected[TOKENS * WIDTH], found[TOKENS * WIDTH];
    static double wide[TOKENS * WIDTH];
    golden(index, sample, expected);
    for (int64_t i = 0; i < (int64_t)TOKENS * WIDTH; i++) {
        wide[i] = (double)expected[i];
    }
    expect_ok(dpq_convert(h->data, h->dtype, found, DPQ_DTYPE_F32, (int64_t)TOKENS * WIDTH));
    return relative_error(found, wide, (int64_t)TOKENS * WIDTH);
}

static void run_golden(dpq_dtype act, dpq_compute compute, double bound, int first_checked)
{
    tiny_model m;
    dpq_backend *be = NULL;
    dpq_workspace *ws = NULL;
    load_tiny(&m, act, compute);
    expect_ok(dpq_backend_create("cpu", 2, &be));
    expect_ok(dpq_workspace_create(&ws));
    const dpq_forward f = {.backend = be, .config = &m.config, .cos = &m.cos, .sin = &m.sin, .compute = compute};
    for (int sample = 0; sample < 2; sample++) {
        dpq_tensor h;
        load_embeddings(sample, act, &h);
        for (int64_t layer = 0; layer < LAYERS; layer++) {
            expect_ok(dpq_block_forward(&f, layer, &m.weights[layer], &h, ws));
            double error = golden_error(&h, (int)layer + 1, sample);
            print_message("sample %d, after block %d: relative error %.2e\n", sample, (int)layer, error);
            if (layer + 1 >= first_checked) {
                assert_true(error <= bound);
            }
        }
        dpq_tensor_fini(&h);
    }
    dpq_workspace_destroy(&ws);
    dpq_backend_destroy(&be);
    free_tiny(&m);
}

static void test_golden_f32(void **state)
{
    (void)state;
    run_golden(DPQ_DTYPE_F32, DPQ_COMPUTE_F32, 1e-5, 1);
}

static void test_golden_bf16_f32(void **state)
{
    (void)state;
    run_golden(DPQ_DTYPE_BF16, DPQ_COMPUTE_F32, 1e-2, LAYERS);
}

static void test_golden_bf16_bf16(void **state)
{
    (void)state;
    run_golden(DPQ_DTYPE_BF16, DPQ_COMPUTE_BF16, 1e-2, LAYERS);
}

/* All blocks by single stages, each into a buffer of its own. */
static void run_stages(const tiny_model *m, const dpq_forward *f, dpq_tensor *h, dpq_workspace *ws)
{
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        dpq_tensor x;
        expect_ok(dpq_tensor_create_2d(h->dtype, h->dim[0], WIDTH, &x));
        expect_ok(dpq_block_enter(f, &m->weights[layer], h, &x));
        for (int stage = 0; stage < DPQ_STAGE_COUNT; stage++) {
            dpq_tensor next = {0};
            bool last = stage == DPQ_STAGE_COUNT - 1;
            if (!last) {
                expect_ok(
                    dpq_tensor_create_2d(h->dtype, h->dim[0], dpq_model_stage_inputs(f->config, stage + 1), &next));
            }
            expect_ok(dpq_block_advance(f, layer, &m->weights[layer], stage, &x, h, last ? NULL : &next, ws));
            dpq_tensor_fini(&x);
            x = next;
        }
    }
}

static void test_equal_bits(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 8};
    static const dpq_compute computes[] = {DPQ_COMPUTE_F32, DPQ_COMPUTE_F32, DPQ_COMPUTE_BF16};
    static const dpq_dtype acts[] = {DPQ_DTYPE_F32, DPQ_DTYPE_BF16, DPQ_DTYPE_BF16};
    for (int kind = 0; kind < 3; kind++) {
        tiny_model m;
        dpq_tensor first = {0};
        load_tiny(&m, acts[kind], computes[kind]);
        for (int i = 0; i < 3; i++) {
            dpq_backend *be = NULL;
            dpq_workspace *ws = NULL;
            dpq_tensor h, by_stage;
            expect_ok(dpq_backend_create("cpu", threads[i], &be));
            assert_int_equal(dpq_backend_threads(be), threads[i]);
            expect_ok(dpq_workspace_create(&ws));
            const dpq_forward f = {
                .backend = be, .config = &m.config, .cos = &m.cos, .sin = &m.sin, .compute = computes[kind]};
            load_embeddings(1, acts[kind], &h);
            load_embeddings(1, acts[kind], &by_stage);
            for (int64_t layer = 0; layer < LAYERS; layer++) {
                expect_ok(dpq_block_forward(&f, layer, &m.weights[layer], &h, ws));
            }
            run_stages(&m, &f, &by_stage, ws);
            assert_memory_equal(h.data, by_stage.data, dpq_tensor_bytes(&h));
            dpq_workspace_mark mark = dpq_workspace_get_mark(ws);
            assert_true(mark.chunk == 0 && mark.used == 0); /* all temporaries are given back */
            if (i == 0) {
                first = h;
            } else {
                assert_memory_equal(h.data, first.data, dpq_tensor_bytes(&h));
                dpq_tensor_fini(&h);
            }
            dpq_tensor_fini(&by_stage);
            dpq_workspace_destroy(&ws);
            dpq_backend_destroy(&be);
        }
        dpq_tensor_fini(&first);
        free_tiny(&m);
    }
}

static void test_every_option(void **state)
{
    (void)state;
    static double expected[T * C];
    const dpq_model_config c = made_up_config;
    dpq_block_weights w;
    dpq_tensor cos_table, sin_table, h, x;
    dpq_backend *be = NULL;
    dpq_workspace *ws = NULL;
    noise_state = 12345;
    make_block(&c, &w);
    expect_ok(dpq_rope_tables(&c.rope, T + 3, &cos_table, &sin_table)); /* longer than the sample */
    expect_ok(dpq_backend_create("cpu", 2, &be));
    expect_ok(dpq_workspace_create(&ws));
    expect_ok(dpq_tensor_create_2d(DPQ_DTYPE_F32, T, C, &h));
    fill(&h, 0.0);
    for (int i = 0; i < T * C; i++) {
        expected[i] = (double)((float *)h.data)[i];
    }
    const dpq_forward f = {
        .backend = be, .config = &c, .cos = &cos_table, .sin = &sin_table, .compute = DPQ_COMPUTE_F32};
    ref_block(&c, &w, expected);
    expect_ok(dpq_block_forward(&f, 1, &w, &h, ws));
    double error = relative_error(h.data, expected, T * C);
    print_message("relative error %.2e\n", error);
    assert_true(error <= 2e-6);

    /* wrong widths and types are refused, and the workspace is left as it was */
    expect_ok(dpq_tensor_create_2d(DPQ_DTYPE_F32, T, C + 1, &x));
    expect_error(dpq_block_advance(&f, 1, &w, 3, &x, &h, NULL, ws), DPQ_E_SHAPE, "stage 3");
    dpq_tensor other = dpq_tensor_wrap_2d(x.data, DPQ_DTYPE_F32, T - 1, C);
    expect_error(dpq_block_advance(&f, 1, &w, 0, &other, &h, &x, ws), DPQ_E_SHAPE, "residual");
    other = dpq_tensor_wrap_2d(x.data, DPQ_DTYPE_BF16, T, C);
    expect_error(dpq_block_advance(&f, 1, &w, 0, &other, &h, &x, ws), DPQ_E_SHAPE, "residual");
    assert_int_equal(dpq_workspace_get_mark(ws).used, 0);
    dpq_tensor_fini(&x);
    dpq_tensor_fini(&h);
    dpq_tensor_fini(&cos_table);
    dpq_tensor_fini(&sin_table);
    dpq_block_weights_fini(&w);
    assert_null(w.linear[DPQ_LINEAR_DOWN].w.data);
    dpq_workspace_destroy(&ws);
    dpq_backend_destroy(&be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_f32),       cmocka_unit_test(test_golden_bf16_f32),
        cmocka_unit_test(test_golden_bf16_bf16), cmocka_unit_test(test_equal_bits),
        cmocka_unit_test(test_every_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
