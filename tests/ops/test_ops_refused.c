/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments that do not fit are refused with DPQ_E_SHAPE and the name of the operation; nothing is written. Also:
 * unknown backends, errors and order in the parallel loop, and the type of products. */
#include <math.h>
#include <string.h>

#include "op_case.h"

static dpq_backend *be;

static int create(void **state)
{
    int failed = op_create_backends(state);
    be = op_backends[1];
    return failed;
}

#define F32  DPQ_DTYPE_F32
#define BF16 DPQ_DTYPE_BF16

static float area[4096], untouched[4096];

/* A tensor over the test area; only its shape and type are looked at. */
static dpq_tensor shaped(dpq_dtype dtype, int64_t rows, int64_t cols)
{
    return dpq_tensor_wrap_2d(area, dtype, rows, cols);
}

/* The same over other memory, where an operation must not work in place. */
static dpq_tensor apart(dpq_dtype dtype, int64_t rows, int64_t cols)
{
    return dpq_tensor_wrap_2d(area + 2048, dtype, rows, cols);
}

static dpq_tensor vector(dpq_dtype dtype, int64_t n)
{
    return dpq_tensor_wrap_1d(area + 1024, dtype, n);
}

#define EXPECT_REFUSED(call, op)                                                                                       \
    do {                                                                                                               \
        dpq_error_clear();                                                                                             \
        assert_int_equal((call), DPQ_E_SHAPE);                                                                         \
        assert_non_null(strstr(dpq_error_last()->text, (op)));                                                         \
        assert_memory_equal(area, untouched, sizeof area);                                                             \
    } while (0)

static dpq_status linear(dpq_tensor x, dpq_tensor w, dpq_tensor bias, dpq_tensor y)
{
    const dpq_weight weight = {.w = w, .bias = bias};
    return dpq_op_linear(be, &x, &weight, false, &y);
}

static void test_linear(void **state)
{
    (void)state;
    const dpq_tensor none = {0};
    assert_int_equal(linear(shaped(F32, 4, 8), shaped(F32, 5, 8), vector(F32, 5), apart(F32, 4, 5)), DPQ_OK);
    EXPECT_REFUSED(linear(shaped(F32, 4, 8), shaped(F32, 5, 9), none, apart(F32, 4, 5)), "linear");
    EXPECT_REFUSED(linear(shaped(F32, 4, 8), shaped(F32, 5, 8), none, apart(F32, 3, 5)), "linear");
    EXPECT_REFUSED(linear(shaped(F32, 4, 8), shaped(F32, 5, 8), none, apart(F32, 4, 6)), "linear");
    EXPECT_REFUSED(linear(shaped(F32, 4, 8), shaped(BF16, 5, 8), none, apart(F32, 4, 5)), "linear");
    EXPECT_REFUSED(linear(shaped(DPQ_DTYPE_F16, 4, 8), shaped(F32, 5, 8), none, apart(F32, 4, 5)), "linear");
    EXPECT_REFUSED(linear(shaped(F32, 4, 8), shaped(DPQ_DTYPE_F64, 5, 8), none, apart(F32, 4, 5)), "linear");
    EXPECT_REFUSED(linear(shaped(F32, 4, 8), shaped(F32, 5, 8), none, apart(DPQ_DTYPE_I32, 4, 5)), "linear");
    EXPECT_REFUSED(linear(shaped(F32, 4, 8), shaped(F32, 5, 8), vector(F32, 4), apart(F32, 4, 5)), "linear");
    EXPECT_REFUSED(linear(shaped(F32, 4, 8), shaped(F32, 5, 8), vector(BF16, 5), apart(F32, 4, 5)), "linear");
    EXPECT_REFUSED(linear(shaped(F32, 4, 5), shaped(F32, 5, 5), none, shaped(F32, 4, 5)), "linear"); /* in place */
    EXPECT_REFUSED(linear(vector(F32, 8), shaped(F32, 5, 8), none, apart(F32, 1, 5)), "linear");
    dpq_tensor transposed = shaped(F32, 4, 8);
    transposed.stride[0] = 1;
    transposed.stride[1] = 4;
    EXPECT_REFUSED(linear(transposed, shaped(F32, 5, 8), none, apart(F32, 4, 5)), "linear");
    dpq_tensor overlapping = apart(F32, 4, 5);
    overlapping.stride[0] = 4;
    EXPECT_REFUSED(linear(shaped(F32, 4, 8), shaped(F32, 5, 8), none, overlapping), "linear");
}

static dpq_status rmsnorm(dpq_tensor x, dpq_tensor gamma, double eps, int64_t groups, dpq_tensor y)
{
    return dpq_op_rmsnorm(be, &x, &gamma, eps, groups, &y);
}

static dpq_status rope(dpq_tensor x, int64_t heads, dpq_tensor cosine, dpq_tensor sine)
{
    return dpq_op_rope(be, &x, heads, &cosine, &sine);
}

static dpq_status silu_mul(dpq_tensor gate, dpq_tensor up, dpq_tensor y)
{
    return dpq_op_silu_mul(be, &gate, &up, &y);
}

static void test_elementwise(void **state)
{
    (void)state;
    EXPECT_REFUSED(rmsnorm(shaped(F32, 4, 8), vector(F32, 7), 1e-6, 1, apart(F32, 4, 8)), "rmsnorm");
    EXPECT_REFUSED(rmsnorm(shaped(F32, 4, 8), vector(F32, 8), 1e-6, 2, apart(F32, 4, 8)), "rmsnorm");
    EXPECT_REFUSED(rmsnorm(shaped(F32, 4, 8), vector(F32, 2), 1e-6, 3, apart(F32, 4, 8)), "rmsnorm");
    EXPECT_REFUSED(rmsnorm(shaped(F32, 4, 8), vector(F32, 8), 1e-6, 0, apart(F32, 4, 8)), "rmsnorm");
    EXPECT_REFUSED(rmsnorm(shaped(F32, 4, 8), vector(BF16, 8), 1e-6, 1, apart(F32, 4, 8)), "rmsnorm");
    EXPECT_REFUSED(rmsnorm(shaped(F32, 4, 8), vector(F32, 8), 1e-6, 1, apart(BF16, 4, 8)), "rmsnorm");
    EXPECT_REFUSED(rmsnorm(shaped(F32, 4, 8), vector(F32, 8), 1e-6, 1, apart(F32, 5, 8)), "rmsnorm");
    EXPECT_REFUSED(rmsnorm(shaped(F32, 4, 8), vector(F32, 8), -1.0, 1, apart(F32, 4, 8)), "rmsnorm");
    EXPECT_REFUSED(rmsnorm(shaped(F32, 4, 8), vector(F32, 8), NAN, 1, apart(F32, 4, 8)), "rmsnorm");
    EXPECT_REFUSED(rope(shaped(F32, 4, 8), 3, apart(F32, 4, 1), apart(F32, 4, 1)), "rope");
    EXPECT_REFUSED(rope(shaped(F32, 4, 8), 0, apart(F32, 4, 1), apart(F32, 4, 1)), "rope");
    EXPECT_REFUSED(rope(shaped(F32, 4, 8), 2, apart(F32, 4, 3), apart(F32, 4, 3)), "rope");
    EXPECT_REFUSED(rope(shaped(F32, 4, 8), 2, apart(F32, 3, 2), apart(F32, 3, 2)), "rope");
    EXPECT_REFUSED(rope(shaped(F32, 4, 8), 2, apart(F32, 4, 2), apart(F32, 4, 1)), "rope");
    EXPECT_REFUSED(rope(shaped(F32, 4, 8), 2, apart(BF16, 4, 2), apart(BF16, 4, 2)), "rope");
    EXPECT_REFUSED(rope(shaped(DPQ_DTYPE_F64, 4, 8), 2, apart(F32, 4, 2), apart(F32, 4, 2)), "rope");
    EXPECT_REFUSED(silu_mul(shaped(F32, 4, 8), shaped(F32, 4, 7), apart(F32, 4, 8)), "silu_mul");
    EXPECT_REFUSED(silu_mul(shaped(F32, 4, 8), shaped(F32, 4, 8), apart(F32, 3, 8)), "silu_mul");
    EXPECT_REFUSED(silu_mul(shaped(F32, 4, 8), shaped(BF16, 4, 8), apart(F32, 4, 8)), "silu_mul");
    EXPECT_REFUSED(silu_mul(shaped(DPQ_DTYPE_F16, 4, 8), shaped(DPQ_DTYPE_F16, 4, 8), apart(DPQ_DTYPE_F16, 4, 8)),
                   "silu_mul");
}

static dpq_status attention(dpq_tensor q, dpq_tensor k, dpq_tensor v, dpq_attention_shape shape, dpq_tensor o)
{
    return dpq_op_attention(be, &q, &k, &v, &shape, &o);
}

static void test_attention(void **state)
{
    (void)state;
    const dpq_attention_shape good = {
        .heads = 4, .kv_heads = 2, .head_dim = 2, .scale = 1.0, .compute = DPQ_COMPUTE_F32};
    dpq_attention_shape shape = good;
    const dpq_tensor q = shaped(F32, 4, 8), kv = shaped(F32, 4, 4), o = apart(F32, 4, 8);
    assert_int_equal(attention(q, kv, kv, shape, o), DPQ_OK);
    EXPECT_REFUSED(attention(shaped(F32, 4, 6), kv, kv, shape, o), "attention");
    EXPECT_REFUSED(attention(q, shaped(F32, 4, 6), kv, shape, o), "attention");
    EXPECT_REFUSED(attention(q, shaped(F32, 5, 4), shaped(F32, 5, 4), shape, o), "attention");
    EXPECT_REFUSED(attention(q, kv, shaped(BF16, 4, 4), shape, o), "attention");
    EXPECT_REFUSED(attention(q, kv, kv, shape, apart(BF16, 4, 8)), "attention");
    EXPECT_REFUSED(attention(q, kv, kv, shape, apart(F32, 4, 6)), "attention");
    EXPECT_REFUSED(attention(q, kv, kv, shape, q), "attention"); /* in place */
    shape.kv_heads = 3;
    EXPECT_REFUSED(attention(q, shaped(F32, 4, 6), shaped(F32, 4, 6), shape, o), "attention");
    shape = good;
    shape.window = -1;
    EXPECT_REFUSED(attention(q, kv, kv, shape, o), "attention");
    shape = good;
    shape.head_dim = 0;
    EXPECT_REFUSED(attention(q, kv, kv, shape, o), "attention");
}

static dpq_status gather(dpq_tensor table, const int32_t *ids, dpq_tensor y)
{
    return dpq_op_gather_rows(be, &table, ids, &y);
}

static dpq_status sumsq(dpq_tensor x)
{
    double out[8];
    return dpq_op_column_sumsq(be, &x, out);
}

static void test_gather_and_sums(void **state)
{
    (void)state;
    const int32_t low[2] = {0, -1}, high[2] = {4, 0}, good[2] = {0, 3};
    const int32_t exponent[16] = {0};
    static int64_t sums[DPQ_XTX_TILE * DPQ_XTX_TILE];
    EXPECT_REFUSED(gather(shaped(F32, 4, 8), low, apart(F32, 2, 8)), "gather_rows");
    EXPECT_REFUSED(gather(shaped(F32, 4, 8), high, apart(F32, 2, 8)), "gather_rows");
    EXPECT_REFUSED(gather(shaped(F32, 4, 8), good, apart(F32, 2, 7)), "gather_rows");
    EXPECT_REFUSED(gather(shaped(DPQ_DTYPE_F64, 4, 8), good, apart(F32, 2, 8)), "gather_rows");
    EXPECT_REFUSED(gather(shaped(F32, 4, 8), good, apart(DPQ_DTYPE_F16, 2, 8)), "gather_rows");
    EXPECT_REFUSED(sumsq(shaped(DPQ_DTYPE_F16, 4, 8)), "column_sumsq");
    EXPECT_REFUSED(sumsq(vector(F32, 8)), "column_sumsq");
    dpq_tensor x[2] = {shaped(F32, 4, 8), shaped(F32, 4, 7)};
    EXPECT_REFUSED(dpq_op_xtx_accumulate(be, x, 2, exponent, DPQ_COMPUTE_F32, sums), "xtx_accumulate");
    x[1] = shaped(BF16, 4, 8);
    EXPECT_REFUSED(dpq_op_xtx_accumulate(be, x, 2, exponent, DPQ_COMPUTE_F32, sums), "xtx_accumulate");
    x[0] = shaped(DPQ_DTYPE_F16, 4, 8);
    EXPECT_REFUSED(dpq_op_xtx_accumulate(be, x, 1, exponent, DPQ_COMPUTE_F32, sums), "xtx_accumulate");
    for (int i = 0; i < DPQ_XTX_TILE * DPQ_XTX_TILE; i++) {
        assert_int_equal(sums[i], 0);
    }
    dpq_tensor h = shaped(F32, 4, 5);
    EXPECT_REFUSED(dpq_op_xtx_expand(be, sums, exponent, 1.0, &h), "xtx_expand");
    h = shaped(BF16, 4, 4);
    EXPECT_REFUSED(dpq_op_xtx_expand(be, sums, exponent, 1.0, &h), "xtx_expand");
}

static dpq_status subtract(int thread, dpq_tensor a, dpq_tensor b, dpq_tensor c)
{
    return dpq_op_subtract_product(be, thread, &a, &b, &c);
}

static void test_factor_and_losses(void **state)
{
    (void)state;
    bool positive;
    double loss[4];
    int32_t top[4];
    const int32_t target[4] = {0, 1, 2, 8}, negative[4] = {0, 1, -1, 2};
    dpq_tensor h = shaped(F32, 4, 5);
    EXPECT_REFUSED(dpq_op_inverse_factor(be, &h, &positive), "inverse_factor");
    h = shaped(BF16, 4, 4);
    EXPECT_REFUSED(dpq_op_inverse_factor(be, &h, &positive), "inverse_factor");
    EXPECT_REFUSED(subtract(0, shaped(F32, 4, 8), shaped(F32, 7, 5), apart(F32, 4, 5)), "subtract_product");
    EXPECT_REFUSED(subtract(0, shaped(F32, 4, 8), shaped(F32, 8, 5), apart(F32, 4, 6)), "subtract_product");
    EXPECT_REFUSED(subtract(0, shaped(F32, 4, 8), shaped(F32, 8, 5), apart(F32, 3, 5)), "subtract_product");
    EXPECT_REFUSED(subtract(0, shaped(BF16, 4, 8), shaped(F32, 8, 5), apart(F32, 4, 5)), "subtract_product");
    EXPECT_REFUSED(subtract(2, shaped(F32, 4, 8), shaped(F32, 8, 5), apart(F32, 4, 5)), "subtract_product");
    EXPECT_REFUSED(subtract(-1, shaped(F32, 4, 8), shaped(F32, 8, 5), apart(F32, 4, 5)), "subtract_product");
    dpq_tensor logits = shaped(F32, 4, 8), narrow = shaped(F32, 4, 7), bf16 = shaped(BF16, 4, 8);
    EXPECT_REFUSED(dpq_op_nll(be, &logits, target, loss, top), "nll");
    EXPECT_REFUSED(dpq_op_nll(be, &logits, negative, loss, top), "nll");
    EXPECT_REFUSED(dpq_op_nll(be, &bf16, target, loss, top), "nll");
    EXPECT_REFUSED(dpq_op_kl(be, &logits, &narrow, loss), "kl");
    EXPECT_REFUSED(dpq_op_kl(be, &bf16, &bf16, loss), "kl");
}

static void test_create_and_product_type(void **state)
{
    (void)state;
    dpq_backend *other = be;
    assert_int_equal(dpq_backend_create("gpu", 1, &other), DPQ_E_UNSUPPORTED);
    assert_null(other);
    assert_non_null(strstr(dpq_error_last()->text, "gpu"));
    assert_int_equal(dpq_backend_create("cpu", 0, &other), DPQ_OK);
    assert_int_equal(dpq_backend_threads(other), dpq_backend_allowed_cores());
    dpq_backend_destroy(&other);
    assert_null(other);
    dpq_backend_destroy(&other);
    assert_true(dpq_backend_auto_compute() == DPQ_COMPUTE_F32 || dpq_backend_auto_compute() == DPQ_COMPUTE_BF16);
    assert_int_equal(dpq_product_dtype(BF16, BF16, DPQ_COMPUTE_BF16), BF16);
    assert_int_equal(dpq_product_dtype(BF16, BF16, DPQ_COMPUTE_F32), F32);
    assert_int_equal(dpq_product_dtype(F32, BF16, DPQ_COMPUTE_BF16), F32);
    assert_int_equal(dpq_product_dtype(BF16, F32, DPQ_COMPUTE_BF16), F32);
    assert_int_equal(dpq_product_dtype(DPQ_DTYPE_F16, BF16, DPQ_COMPUTE_BF16), F32);
}

typedef struct {
    int calls[100];
    int64_t first_bad;
} loop_record;

static dpq_status loop_body(void *context, int64_t i, int thread, dpq_workspace *ws)
{
    loop_record *r = context;
    void *memory;
    DPQ_TRY(dpq_workspace_alloc(ws, 1000, sizeof(double), &memory));
    memset(memory, thread, 1000 * sizeof(double));
    r->calls[i]++;
    return i >= r->first_bad ? DPQ_RAISE(DPQ_E_NUMERIC, "index %lld", (long long)i) : DPQ_OK;
}

/* Every index once; of several errors the one with the lowest index. */
static void test_parallel_loop(void **state)
{
    (void)state;
    for (int b = 0; b < OP_BACKENDS; b++) {
        loop_record r = {.first_bad = 100};
        assert_int_equal(dpq_backend_parallel(op_backends[b], 100, loop_body, &r), DPQ_OK);
        for (int i = 0; i < 100; i++) {
            assert_int_equal(r.calls[i], 1);
        }
        r.first_bad = 37;
        assert_int_equal(dpq_backend_parallel(op_backends[b], 100, loop_body, &r), DPQ_E_NUMERIC);
        assert_string_equal(dpq_error_last()->text, "index 37");
        assert_int_equal(dpq_backend_parallel(op_backends[b], 0, loop_body, &r), DPQ_OK);
    }
}

/* The products of these tests write to the area: it is compared with zeros, which all of them leave behind. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_gather_and_sums),
        cmocka_unit_test(test_factor_and_losses),
        cmocka_unit_test(test_create_and_product_type),
        cmocka_unit_test(test_parallel_loop),
    };
    return cmocka_run_group_tests(tests, create, op_destroy_backends);
}
