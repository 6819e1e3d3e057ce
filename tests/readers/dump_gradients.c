/* SPDX-License-Identifier: Apache-2.0 */
/* dump_gradients MODEL OUT: block 0 of a Llama model on 96 random tokens in fp32, as raw little-endian floats: input h,
 * gradient dy of the output, output y, then the gradients of q, k, v, o, gate, up and down as (N,K) matrices. Read by
 * check_gradients.py, which computes the same with torch; one rank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpquant/block_grad.h"

enum { TOKENS = 96 };

typedef struct {
    dpq_model_config config;
    dpq_block_weights weights;
    dpq_tensor cos, sin, h, dy, y;
    dpq_tensor gradient[DPQ_LINEAR_COUNT];
} block_data;

static dpq_status read_f32(const dpq_st_store *store, const char *name, dpq_tensor *out)
{
    dpq_tensor raw = {0};
    dpq_status st = DPQ_OK;
    const dpq_st_entry *entry = dpq_st_find(store, name);
    if (entry == NULL) {
        return DPQ_RAISE(DPQ_E_INPUT, "no tensor %s", name);
    }
    DPQ_TRY_GOTO(st, dpq_tensor_create(entry->dtype, entry->rank, entry->dim, &raw), done);
    DPQ_TRY_GOTO(st, dpq_tensor_create(DPQ_DTYPE_F32, entry->rank, entry->dim, out), done);
    DPQ_TRY_GOTO(st, dpq_st_read(store, entry, raw.data), done);
    st = dpq_convert(raw.data, raw.dtype, out->data, DPQ_DTYPE_F32, dpq_tensor_count(out));
done:
    dpq_tensor_fini(&raw);
    return st;
}

static dpq_status read_weights(const dpq_st_store *store, block_data *d)
{
    char module[DPQ_NAME_BYTES], name[DPQ_NAME_BYTES + 8];
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        dpq_tensor *w = &d->weights.linear[role].w;
        dpq_model_linear_name(&d->config, 0, (dpq_linear_role)role, module);
        snprintf(name, sizeof name, "%s.weight", module);
        DPQ_TRY(read_f32(store, name, w));
        DPQ_TRY(dpq_tensor_create_2d(DPQ_DTYPE_F32, w->dim[0], w->dim[1], &d->gradient[role]));
    }
    for (int role = DPQ_NORM_INPUT; role <= DPQ_NORM_POST; role++) {
        dpq_model_norm_name(&d->config, 0, (dpq_norm_role)role, module);
        DPQ_TRY(read_f32(store, module, &d->weights.norm[role]));
    }
    return DPQ_OK;
}

static dpq_status random_matrix(int64_t cols, uint32_t seed, dpq_tensor *out)
{
    DPQ_TRY(dpq_tensor_create_2d(DPQ_DTYPE_F32, TOKENS, cols, out));
    for (int64_t i = 0; i < TOKENS * cols; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((float *)out->data)[i] = (float)((double)seed / 4294967296.0 - 0.5);
    }
    return DPQ_OK;
}

/* d_out^T x in double, rounded once. */
static dpq_status keep(void *context, dpq_linear_role role, const dpq_tensor *d_out, const dpq_tensor *x)
{
    float *out = ((block_data *)context)->gradient[role].data;
    const float *d = d_out->data, *in = x->data;
    int64_t n = d_out->dim[1], k = x->dim[1];
    for (int64_t i = 0; i < n * k; i++) {
        double sum = 0.0;
        for (int64_t t = 0; t < TOKENS; t++) {
            sum += (double)d[t * n + i / k] * (double)in[t * k + i % k];
        }
        out[i] = (float)sum;
    }
    return DPQ_OK;
}

static dpq_status compute(const char *model, block_data *d)
{
    dpq_status st = DPQ_OK;
    bool quantized = false;
    dpq_st_store *store = NULL;
    dpq_backend *be = NULL;
    dpq_workspace *ws = NULL;
    dpq_block_tape tape = {0};
    DPQ_TRY_GOTO(st, dpq_model_config_read(model, &d->config, &quantized), done);
    DPQ_TRY_GOTO(st, dpq_st_open(model, &store), done);
    DPQ_TRY_GOTO(st, read_weights(store, d), done);
    DPQ_TRY_GOTO(st, dpq_rope_tables(&d->config.rope, TOKENS, &d->cos, &d->sin), done);
    DPQ_TRY_GOTO(st, dpq_backend_create("cpu", 1, &be), done);
    DPQ_TRY_GOTO(st, dpq_workspace_create(&ws), done);
    DPQ_TRY_GOTO(st, dpq_block_tape_create(&d->config, DPQ_DTYPE_F32, TOKENS, &tape), done);
    DPQ_TRY_GOTO(st, random_matrix(d->config.hidden_size, 1, &d->h), done);
    DPQ_TRY_GOTO(st, random_matrix(d->config.hidden_size, 2, &d->dy), done);
    DPQ_TRY_GOTO(st, random_matrix(d->config.hidden_size, 3, &d->y), done);
    const dpq_forward f = {
        .backend = be, .config = &d->config, .cos = &d->cos, .sin = &d->sin, .compute = DPQ_COMPUTE_F32};
    DPQ_TRY_GOTO(st, dpq_block_forward_tape(&f, 0, &d->weights, &d->h, &tape, &d->y, ws), done);
    st = dpq_block_backward(&f, 0, &d->weights, &tape, &d->dy, keep, d, ws);
done:
    dpq_block_tape_fini(&tape);
    dpq_workspace_destroy(&ws);
    dpq_backend_destroy(&be);
    dpq_st_close(&store);
    return st;
}

int main(int argc, char **argv)
{
    static block_data d;
    if (argc != 3) {
        fprintf(stderr, "usage: dump_gradients MODEL OUT\n");
        return 2;
    }
    if (compute(argv[1], &d) != DPQ_OK) {
        fprintf(stderr, "%s\n", dpq_error_last()->text);
        return 1;
    }
    FILE *out = fopen(argv[2], "wb");
    const dpq_tensor *parts[3 + DPQ_LINEAR_COUNT] = {&d.h, &d.dy, &d.y};
    bool ok = out != NULL;
    for (int i = 0; i < 3 + DPQ_LINEAR_COUNT && ok; i++) {
        const dpq_tensor *t = i < 3 ? parts[i] : &d.gradient[i - 3];
        size_t n = (size_t)dpq_tensor_count(t);
        ok = fwrite(t->data, sizeof(float), n, out) == n;
    }
    return ok && fclose(out) == 0 ? 0 : 1;
}
