/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of an evaluation against values computed by hand: percentiles, perplexity, divergence, windows of unequal
 * length. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../../src/eval/eval_priv.h"

static void assert_close(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-12 * fmax(1.0, fabs(expected)))) {
        print_error("expected %.17g, found %.17g\n", expected, found);
        fail();
    }
}

static void test_percentiles_by_hand(void **state)
{
    (void)state;
    const double one[] = {3.0};
    const double four[] = {1.0, 2.0, 4.0, 8.0};
    assert_close(dpq_percentile(one, 1, 0.5), 3.0);
    assert_close(dpq_percentile(one, 1, 1.0), 3.0);
    assert_close(dpq_percentile(four, 4, 0.0), 1.0);
    assert_close(dpq_percentile(four, 4, 0.5), 3.0); /* position 1.5 */
    assert_close(dpq_percentile(four, 4, 0.9), 6.8); /* position 2.7 */
    assert_close(dpq_percentile(four, 4, 1.0), 8.0);
    double eleven[11];
    for (int i = 0; i < 11; i++) {
        eleven[i] = i;
    }
    assert_close(dpq_percentile(eleven, 11, 0.9), 9.0); /* exactly on a value */
    assert_close(dpq_percentile(eleven, 11, 0.999), 9.99);
}

/* Two windows of 3 and 2 tokens: 2 + 1 predicted ones. The padding must not count. */
static int64_t start[] = {0, 3, 5};
static dpq_calibset windows(void)
{
    dpq_calibset set = {.n = 2, .start = start, .max_length = 3};
    memset(set.digest, 'a', 64);
    return set;
}

static void test_perplexity_alone(void **state)
{
    (void)state;
    dpq_calibset set = windows();
    double nll[] = {1.0, 2.0, 6.0, 1e300};
    dpq_eval_tokens tokens = {.rows = 2, .width = 2, .value = {nll}};
    dpq_eval_figures f;
    assert_int_equal(dpq_eval_compute_figures(&set, &tokens, &f), DPQ_OK);
    assert_true(f.done);
    assert_false(f.has_reference);
    assert_int_equal(f.tokens, 3);
    assert_int_equal(f.windows, 2);
    assert_close(f.perplexity, exp(3.0));
    assert_string_equal(f.data_digest, set.digest);
}

static void test_divergence(void **state)
{
    (void)state;
    dpq_calibset set = windows();
    double nll[] = {1.0, 2.0, 6.0, NAN};
    double reference[] = {1.0, 1.0, 1.0, NAN};
    double kl[] = {0.4, 0.1, 0.7, NAN};
    double agree[] = {1.0, 0.0, 1.0, 1.0};
    dpq_eval_tokens tokens = {.rows = 2, .width = 2, .value = {nll, reference, kl, agree}};
    dpq_eval_figures f;
    assert_int_equal(dpq_eval_compute_figures(&set, &tokens, &f), DPQ_OK);
    assert_true(f.has_reference);
    assert_close(f.reference_perplexity, exp(1.0));
    assert_close(f.kl_mean, 0.4);
    assert_close(f.kl_median, 0.4);
    assert_close(f.kl_p90, 0.64); /* position 1.8 of 0.1 0.4 0.7 */
    assert_close(f.kl_p99, 0.694);
    assert_close(f.kl_p999, 0.6994);
    assert_close(f.kl_max, 0.7);
    assert_close(f.top1, 2.0 / 3.0);
    assert_close(kl[0], 0.4); /* sorted in a copy */
}

static void test_tokens_memory(void **state)
{
    (void)state;
    dpq_eval_tokens tokens;
    assert_int_equal(dpq_eval_tokens_create(3, 4, false, &tokens), DPQ_OK);
    assert_non_null(tokens.value[DPQ_EVAL_NLL]);
    assert_null(tokens.value[DPQ_EVAL_KL]);
    dpq_eval_tokens_fini(&tokens);
    assert_int_equal(dpq_eval_tokens_create(0, 4, true, &tokens), DPQ_OK); /* a rank without samples */
    assert_non_null(tokens.value[DPQ_EVAL_AGREE]);
    dpq_eval_tokens_fini(&tokens);
    assert_int_equal(dpq_eval_tokens_create(INT64_MAX / 2, 16, true, &tokens), DPQ_E_MEMORY);
    assert_null(tokens.value[DPQ_EVAL_NLL]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_percentiles_by_hand),
        cmocka_unit_test(test_perplexity_alone),
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_tokens_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
