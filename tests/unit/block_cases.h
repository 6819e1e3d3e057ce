/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks to test on: the tiny model's with its stored hidden states, and a made-up one that has every option, with its
 * forward pass in plain loops in double. */
#ifndef DPQUANT_BLOCK_CASES_H
#define DPQUANT_BLOCK_CASES_H

#include <math.h>

#include "io_test.h"

#include "dpquant/h5.h"
#include "dpquant/half.h"
#include "dpquant/model.h"

#define TINY "tests/models/tiny"
enum { LAYERS = 4, TOKENS = 128, WIDTH = 256 };

typedef struct {
    dpq_model_config config;
    dpq_block_weights weights[LAYERS];
    dpq_tensor cos, sin;
} tiny_model;

static inline void read_as(const dpq_st_store *store, const char *name, dpq_dtype dtype, dpq_tensor *out)
{
    dpq_tensor raw;
    const dpq_st_entry *entry = dpq_st_find(store, name);
    assert_non_null(entry);
    expect_ok(dpq_tensor_create(entry->dtype, entry->rank, entry->dim, &raw));
    expect_ok(dpq_tensor_create(dtype, entry->rank, entry->dim, out));
    expect_ok(dpq_st_read(store, entry, raw.data));
    expect_ok(dpq_convert(raw.data, raw.dtype, out->data, dtype, dpq_tensor_count(out)));
    dpq_tensor_fini(&raw);
}

static inline void load_tiny(tiny_model *m, dpq_dtype act, dpq_compute compute)
{
    dpq_st_store *store = NULL;
    bool quantized = false;
    memset(m, 0, sizeof *m);
    expect_ok(dpq_model_config_read(TINY, &m->config, &quantized));
    assert_int_equal(m->config.n_layers, LAYERS);
    expect_ok(dpq_st_open(TINY, &store));
    expect_ok(dpq_rope_tables(&m->config.rope, TOKENS, &m->cos, &m->sin));
    dpq_dtype product = dpq_product_dtype(DPQ_DTYPE_BF16, act, compute);
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
            char module[DPQ_NAME_BYTES];
            char name[DPQ_NAME_BYTES + 8];
            dpq_model_linear_name(&m->config, layer, (dpq_linear_role)role, module);
            snprintf(name, sizeof name, "%s.weight", module);
            read_as(store, name, product, &m->weights[layer].linear[role].w);
        }
        for (int role = DPQ_NORM_INPUT; role <= DPQ_NORM_POST; role++) {
            char name[DPQ_NAME_BYTES];
            dpq_model_norm_name(&m->config, layer, (dpq_norm_role)role, name);
            read_as(store, name, DPQ_DTYPE_F32, &m->weights[layer].norm[role]);
        }
    }
    dpq_st_close(&store);
}

static inline void free_tiny(tiny_model *m)
{
    for (int i = 0; i < LAYERS; i++) {
        dpq_block_weights_fini(&m->weights[i]);
    }
    dpq_tensor_fini(&m->cos);
    dpq_tensor_fini(&m->sin);
    dpq_model_config_fini(&m->config);
}

/* Stored output of block INDEX - 1 (0: embeddings) of sample SAMPLE. */
static inline void golden(int index, int sample, float *dst)
{
    dpq_h5 *file = NULL;
    char name[32];
    int rank = 0;
    int64_t dim[3];
    bool integer = false;
    snprintf(name, sizeof name, "hidden/%d", index);
    expect_ok(dpq_h5_open(TINY "/golden.h5", &file));
    expect_ok(dpq_h5_shape(file, name, &rank, dim, &integer));
    float *all = malloc((size_t)2 * TOKENS * WIDTH * sizeof *all);
    if (rank == 3) {
        assert_true(dim[0] == 2 && dim[1] == TOKENS && dim[2] == WIDTH);
    } else {
        assert_true(rank == 2 && dim[0] == (int64_t)2 * TOKENS && dim[1] == WIDTH);
    }
    expect_ok(dpq_h5_read_rows_f32(file, name, 0, dim[0], all));
    memcpy(dst, all + (size_t)sample * TOKENS * WIDTH, (size_t)TOKENS * WIDTH * sizeof *dst);
    free(all);
    dpq_h5_close(&file);
}

/* |a - b| / |b| over all elements; NaN anywhere gives NaN. */
static inline double relative_error(const float *a, const double *b, int64_t n)
{
    double difference = 0.0;
    double size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / size);
}

static inline void load_embeddings(int sample, dpq_dtype act, dpq_tensor *h)
{
    static float values[TOKENS * WIDTH];
    golden(0, sample, values);
    expect_ok(dpq_tensor_create_2d(act, TOKENS, WIDTH, h));
    expect_ok(dpq_convert(values, DPQ_DTYPE_F32, h->data, act, (int64_t)TOKENS * WIDTH));
}

/* ---- a made-up block: width 20, 6 heads over 2, head width 6 of which 4 rotate, window 5, all biases, q/k norms ----
 */
enum { T = 13, C = 20, H = 6, KV = 2, D = 6, ROT = 4, I = 22, W = 5 };

static uint32_t noise_state;

static inline float noise(void)
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return (float)((double)noise_state / 4294967296.0 - 0.5);
}

static inline void fill(dpq_tensor *t, double offset)
{
    float *data = t->data;
    for (int64_t i = 0; i < dpq_tensor_count(t); i++) {
        data[i] = noise() + (float)offset;
    }
}

static inline void ref_linear(const double *x, int64_t k, const dpq_weight *weight, int64_t n, double *y,
                              bool accumulate)
{
    const float *w = weight->w.data;
    const float *bias = weight->bias.data;
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < n; i++) {
            double sum = (bias ? (double)bias[i] : 0.0) + (accumulate ? y[t * n + i] : 0.0);
            for (int64_t j = 0; j < k; j++) {
                sum += x[t * k + j] * (double)w[i * k + j];
            }
            y[t * n + i] = sum;
        }
    }
}

static inline void ref_norm(const double *x, int64_t vectors, int64_t n, const dpq_tensor *gamma, double eps, double *y)
{
    for (int64_t v = 0; v < vectors; v++) {
        double sum = 0.0;
        for (int64_t i = 0; i < n; i++) {
            sum += x[v * n + i] * x[v * n + i];
        }
        for (int64_t i = 0; i < n; i++) {
            y[v * n + i] = x[v * n + i] / sqrt(sum / (double)n + eps) * (double)((float *)gamma->data)[i];
        }
    }
}

static inline void ref_rope(double *x, int heads)
{
    for (int t = 0; t < T; t++) {
        for (int head = 0; head < heads; head++) {
            for (int i = 0; i < ROT / 2; i++) {
                double angle = t * pow(10000.0, -2.0 * i / ROT);
                double *a = x + (t * heads + head) * D + i;
                double *b = a + ROT / 2;
                double before = *a;
                *a = before * cos(angle) - *b * sin(angle);
                *b = *b * cos(angle) + before * sin(angle);
            }
        }
    }
}

static inline void ref_attention(const double *q, const double *k, const double *v, double *o)
{
    for (int t = 0; t < T; t++) {
        for (int head = 0; head < H; head++) {
            int source = head / (H / KV);
            double total = 0.0;
            double sum[D] = {0};
            for (int s = t - W + 1 > 0 ? t - W + 1 : 0; s <= t; s++) {
                double logit = 0.0;
                for (int i = 0; i < D; i++) {
                    logit += q[(t * H + head) * D + i] * k[(s * KV + source) * D + i];
                }
                double weight = exp(logit / sqrt((double)D));
                total += weight;
                for (int i = 0; i < D; i++) {
                    sum[i] += weight * v[(s * KV + source) * D + i];
                }
            }
            for (int i = 0; i < D; i++) {
                o[(t * H + head) * D + i] = sum[i] / total;
            }
        }
    }
}

static inline void ref_block(const dpq_model_config *c, const dpq_block_weights *w, double *h)
{
    static double x[T * C], q[T * H * D], k[T * KV * D], v[T * KV * D], o[T * H * D], gate[T * I], up[T * I];
    ref_norm(h, T, C, &w->norm[DPQ_NORM_INPUT], c->rms_eps, x);
    ref_linear(x, C, &w->linear[DPQ_LINEAR_Q], H * D, q, false);
    ref_linear(x, C, &w->linear[DPQ_LINEAR_K], KV * D, k, false);
    ref_linear(x, C, &w->linear[DPQ_LINEAR_V], KV * D, v, false);
    ref_norm(q, T * H, D, &w->norm[DPQ_NORM_Q], c->rms_eps, q);
    ref_norm(k, T * KV, D, &w->norm[DPQ_NORM_K], c->rms_eps, k);
    ref_rope(q, H);
    ref_rope(k, KV);
    ref_attention(q, k, v, o);
    ref_linear(o, H * D, &w->linear[DPQ_LINEAR_O], C, h, true);
    ref_norm(h, T, C, &w->norm[DPQ_NORM_POST], c->rms_eps, x);
    ref_linear(x, C, &w->linear[DPQ_LINEAR_GATE], I, gate, false);
    ref_linear(x, C, &w->linear[DPQ_LINEAR_UP], I, up, false);
    for (int i = 0; i < T * I; i++) {
        gate[i] = gate[i] / (1.0 + exp(-gate[i])) * up[i];
    }
    ref_linear(gate, I, &w->linear[DPQ_LINEAR_DOWN], C, h, true);
}

static inline void make_block(const dpq_model_config *c, dpq_block_weights *w)
{
    memset(w, 0, sizeof *w);
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        int64_t n = 0;
        int64_t k = 0;
        dpq_model_linear_shape(c, (dpq_linear_role)role, &n, &k);
        expect_ok(dpq_tensor_create_2d(DPQ_DTYPE_F32, n, k, &w->linear[role].w));
        expect_ok(dpq_tensor_create_1d(DPQ_DTYPE_F32, n, &w->linear[role].bias));
        fill(&w->linear[role].w, 0.0);
        fill(&w->linear[role].bias, 0.0);
    }
    for (int role = 0; role < DPQ_NORM_COUNT; role++) {
        expect_ok(dpq_tensor_create_1d(DPQ_DTYPE_F32, dpq_model_norm_size(c, (dpq_norm_role)role), &w->norm[role]));
        fill(&w->norm[role], 1.0);
    }
}

/* The window applies to layer 1. */
static int64_t made_up_window[2] = {0, W};
static const dpq_model_config made_up_config = {
    .architecture = "made up",
    .hidden_size = C,
    .intermediate_size = I,
    .n_layers = 2,
    .n_heads = H,
    .n_kv_heads = KV,
    .head_dim = D,
    .rms_eps = 1e-3,
    .qkv_bias = true,
    .o_bias = true,
    .mlp_bias = true,
    .qk_norm = true,
    .window = made_up_window,
    .rope = {.type = DPQ_ROPE_DEFAULT, .theta = 10000.0, .factor = 1.0, .attention_factor = 1.0, .rotary_dim = ROT}};

#endif
