/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluation on the tiny model: logits and likelihoods against torch's, a model against itself, quantized folders, and
 * what is refused. */
#include "../../src/eval/eval_priv.h"
#include "dpquant/h5.h"
#include "dpquant/token_data.h"
#include "tiny_folder.h"

#define WINDOWS 16

static dpq_comm *comm;
static dpq_backend *backend;

static int start_all(void **state)
{
    (void)state;
    static const char *const launch[] = {"OMPI_COMM_WORLD_SIZE", "PMI_RANK",      "PMI_SIZE",     "PMIX_RANK",
                                         "SLURM_PROCID",         "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_NTASKS",
                                         "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof launch / sizeof launch[0]; i++) {
        unsetenv(launch[i]);
    }
    return dpq_comm_open(NULL, NULL, &comm) == DPQ_OK && dpq_backend_create("cpu", 2, &backend) == DPQ_OK ? 0 : -1;
}

static int stop_all(void **state)
{
    (void)state;
    dpq_backend_destroy(&backend);
    dpq_comm_close(&comm);
    return 0;
}

/* Relative Frobenius distance of our logits to golden.h5's. */
static double logits_error(bool bf16, dpq_compute compute)
{
    dpq_spans spans = {0};
    dpq_calibset set = {0};
    char file[] = TINY "/golden.h5";
    dpq_h5 *golden = NULL;
    dpq_calibset_options options = {.data = file};
    expect_ok(dpq_token_data_read(comm, &options, 2048, &set));
    assert_int_equal(set.n, 2);
    dpq_eval_context ctx = {.comm = comm,
                            .be = backend,
                            .spans = &spans,
                            .set = &set,
                            .act = bf16 ? DPQ_DTYPE_BF16 : DPQ_DTYPE_F32,
                            .compute = compute,
                            .total = 100};
    dpq_eval_model model = {0};
    expect_ok(dpq_model_folder_open(TINY, true, &model.folder));
    expect_ok(dpq_eval_model_run(&ctx, &model));
    expect_ok(dpq_eval_model_read_head(&ctx, &model));
    int64_t tokens = set.start[1];
    dpq_tensor logits;
    float *expected = malloc((size_t)tokens * 2048 * sizeof *expected);
    double error = 0.0, signal = 0.0;
    expect_ok(dpq_tensor_create_2d(DPQ_DTYPE_F32, tokens, 2048, &logits));
    expect_ok(dpq_h5_open(file, &golden));
    for (int64_t s = 0; s < set.n; s++) {
        expect_ok(dpq_eval_logits(&ctx, &model, s, 0, tokens, &logits));
        expect_ok(dpq_h5_read_rows_f32(golden, "logits", s, s + 1, expected));
        for (int64_t i = 0; i < tokens * 2048; i++) {
            double d = (double)((const float *)logits.data)[i] - (double)expected[i];
            error += d * d;
            signal += (double)expected[i] * (double)expected[i];
        }
    }
    dpq_h5_close(&golden);
    free(expected);
    dpq_tensor_fini(&logits);
    dpq_eval_model_fini(&model);
    dpq_calibset_fini(&set);
    return sqrt(error / signal);
}

static void test_logits_fp32(void **state)
{
    (void)state;
    double error = logits_error(false, DPQ_COMPUTE_F32);
    print_message("logits, fp32: relative error %.3g\n", error);
    assert_true(error <= 1e-5);
}

static void test_logits_bf16(void **state)
{
    (void)state;
    double widened = logits_error(true, DPQ_COMPUTE_F32);
    double narrow = logits_error(true, DPQ_COMPUTE_BF16);
    print_message("logits, bf16: relative error %.3g (products in fp32), %.3g (in bf16)\n", widened, narrow);
    assert_true(widened <= 1e-2 && narrow <= 1e-2);
    assert_true(widened > 1e-5); /* it was bf16 */
}

static char heldout[] = TINY "/heldout.h5";

static dpq_eval_options plain_options(void)
{
    return (dpq_eval_options){.model = TINY, .data = {.data = heldout, .samples = WINDOWS}, .compute = DPQ_COMPUTE_F32};
}

static double golden_perplexity(void)
{
    dpq_h5 *golden = NULL;
    float *nll = malloc(WINDOWS * 511 * sizeof *nll);
    double sum = 0.0;
    expect_ok(dpq_h5_open(TINY "/golden.h5", &golden));
    expect_ok(dpq_h5_read_rows_f32(golden, "heldout_nll", 0, WINDOWS, nll));
    for (int i = 0; i < WINDOWS * 511; i++) {
        sum += (double)nll[i];
    }
    dpq_h5_close(&golden);
    free(nll);
    return exp(sum / (WINDOWS * 511));
}

static void test_perplexity(void **state)
{
    (void)state;
    dpq_eval_options options = plain_options();
    dpq_eval_figures f;
    dpq_spans spans = {0};
    double expected = golden_perplexity();
    expect_ok(dpq_eval_run(comm, backend, &options, &spans, &f));
    print_message("perplexity %.8f, torch %.8f\n", f.perplexity, expected);
    assert_true(f.done && !f.has_reference);
    assert_int_equal(f.tokens, WINDOWS * 511);
    assert_int_equal(f.windows, WINDOWS);
    assert_true(fabs(f.perplexity / expected - 1.0) <= 1e-4);
    assert_true(spans.seconds[DPQ_SPAN_EVAL] > 0.0);
    options.bf16 = true;
    expect_ok(dpq_eval_run(comm, backend, &options, NULL, &f));
    assert_true(fabs(f.perplexity / expected - 1.0) <= 1e-3);
}

static void test_model_against_itself(void **state)
{
    (void)state;
    dpq_eval_options options = plain_options();
    dpq_eval_figures f;
    options.reference = TINY;
    options.data.samples = 3;
    options.data.seqlen = 65; /* 64 predicted tokens: one whole chunk */
    expect_ok(dpq_eval_run(comm, backend, &options, NULL, &f));
    assert_true(f.has_reference);
    assert_int_equal(f.tokens, 3 * 64);
    assert_true(f.kl_mean == 0.0 && f.kl_max == 0.0 && f.top1 == 1.0);
    assert_true(f.perplexity == f.reference_perplexity);
}

static void test_threads_do_not_matter(void **state)
{
    (void)state;
    dpq_eval_options options = plain_options();
    dpq_eval_figures f, g;
    dpq_backend *single = NULL;
    options.data.samples = 2;
    options.data.seqlen = 131;
    expect_ok(dpq_backend_create("cpu", 1, &single));
    expect_ok(dpq_eval_run(comm, backend, &options, NULL, &f));
    expect_ok(dpq_eval_run(comm, single, &options, NULL, &g));
    assert_true(f.perplexity == g.perplexity);
    dpq_backend_destroy(&single);
}

static void test_quantized_folder(void **state)
{
    const char *dir = in_folder(state, "w8");
    const char *coarse = in_folder(state, "w3");
    dpq_eval_options options = plain_options();
    dpq_eval_figures fine, rough;
    tiny_folder(dir, &(tiny_recipe){.quantize = true, .scheme = {8, 64, true, true}});
    tiny_folder(coarse, &(tiny_recipe){.quantize = true, .scheme = {3, 64, true, true}});
    options.reference = TINY;
    options.data.samples = 2;
    options.model = dir;
    expect_ok(dpq_eval_run(comm, backend, &options, NULL, &fine));
    options.model = coarse;
    expect_ok(dpq_eval_run(comm, backend, &options, NULL, &rough));
    print_message("KL at 8 bits %.3g, at 3 bits %.3g\n", fine.kl_mean, rough.kl_mean);
    assert_true(fine.kl_mean > 0.0 && fine.kl_mean < 1e-3);
    assert_true(rough.kl_mean > 20.0 * fine.kl_mean && rough.top1 < fine.top1);
    assert_true(fine.kl_median <= fine.kl_p90 && fine.kl_p90 <= fine.kl_p99 && fine.kl_p99 <= fine.kl_p999 &&
                fine.kl_p999 <= fine.kl_max);
}

static void test_refused(void **state)
{
    char file[512];
    dpq_eval_options options = plain_options();
    dpq_eval_figures f;
    options.model = in_folder(state, "none");
    expect_error(dpq_eval_run(comm, backend, &options, NULL, &f), DPQ_E_INPUT, "none/config.json");
    assert_false(f.done);
    options = plain_options();
    options.data.samples = 100000;
    expect_error(dpq_eval_run(comm, backend, &options, NULL, &f), DPQ_E_INPUT, "100000");
    snprintf(file, sizeof file, "%s", in_folder(state, "absent.h5"));
    options.data.data = file;
    expect_error(dpq_eval_run(comm, backend, &options, NULL, &f), DPQ_E_INPUT, "absent.h5");
}

/* The same model with a vocabulary cut to 2000. */
static void test_vocabularies_differ(void **state)
{
    const char *dir = in_folder(state, "cut");
    dpq_st_store *store = NULL;
    dpq_st_writer *writer = NULL;
    dpq_st_decl decls[64];
    char path[600], *text = NULL;
    size_t size = 0;
    expect_ok(dpq_st_open(TINY, &store));
    size_t n = dpq_st_count(store);
    assert_in_range(n, 1, 64);
    for (size_t i = 0; i < n; i++) {
        const dpq_st_entry *e = dpq_st_at(store, i);
        decls[i] = (dpq_st_decl){.name = e->name, .dtype = e->dtype, .rank = e->rank, .dim = {e->dim[0], e->dim[1]}};
        decls[i].dim[0] = strstr(e->name, "embed") != NULL ? 2000 : e->dim[0];
    }
    expect_ok(dpq_dir_create(dir));
    expect_ok(dpq_st_writer_create(dir, decls, n, (uint64_t)1 << 40, &writer));
    for (size_t i = 0; i < n; i++) {
        const dpq_st_entry *e = dpq_st_at(store, i);
        void *data = malloc((size_t)e->bytes);
        expect_ok(dpq_st_read(store, e, data));
        expect_ok(
            dpq_st_writer_put(writer, e->name, data, (size_t)e->bytes / (size_t)e->dim[0] * (size_t)decls[i].dim[0]));
        free(data);
    }
    expect_ok(dpq_st_writer_finish(&writer));
    dpq_st_close(&store);
    expect_ok(dpq_file_read_all(TINY "/config.json", 1 << 20, &text, &size));
    char *at = strstr(text, "\"vocab_size\": 2048");
    assert_non_null(at);
    memcpy(at, "\"vocab_size\": 2000", strlen("\"vocab_size\": 2000"));
    snprintf(path, sizeof path, "%s/config.json", dir);
    put_file(path, text, size);
    dpq_free(text);
    dpq_eval_options options = plain_options();
    dpq_eval_figures f;
    options.model = dir;
    options.reference = TINY;
    expect_error(dpq_eval_run(comm, backend, &options, NULL, &f), DPQ_E_INPUT, "expected 2048");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_fp32),
        cmocka_unit_test(test_logits_bf16),
        cmocka_unit_test(test_perplexity),
        cmocka_unit_test(test_model_against_itself),
        cmocka_unit_test(test_threads_do_not_matter),
        folder_test(test_quantized_folder),
        folder_test(test_refused),
        folder_test(test_vocabularies_differ),
    };
    return cmocka_run_group_tests(tests, start_all, stop_all);
}
