/* SPDX-License-Identifier: Apache-2.0 */
/* A model's description and tensors as lines of text. */
#include <inttypes.h>

#include "inspect_priv.h"

static const char *rope_name(dpq_rope_type type)
{
    switch (type) {
    case DPQ_ROPE_DEFAULT:
        return "default";
    case DPQ_ROPE_LINEAR:
        return "linear";
    case DPQ_ROPE_LLAMA3:
        return "llama3";
    case DPQ_ROPE_YARN:
        return "yarn";
    }
    return "unknown";
}

static dpq_status append_rope(const dpq_model_config *c, dpq_text *t)
{
    DPQ_TRY(dpq_text_append(t, "rope             %s, theta %g", rope_name(c->rope.type), c->rope.theta));
    if (c->rope.type != DPQ_ROPE_DEFAULT) {
        DPQ_TRY(dpq_text_append(t, ", factor %g", c->rope.factor));
    }
    if (c->rope.rotary_dim != c->head_dim) {
        DPQ_TRY(dpq_text_append(t, ", %" PRId64 " of %" PRId64 " elements rotate", c->rope.rotary_dim, c->head_dim));
    }
    return dpq_text_append(t, "\n");
}

static dpq_status append_attention(const dpq_model_config *c, dpq_text *t)
{
    int64_t sliding = 0, window = 0;
    for (int64_t layer = 0; layer < c->n_layers; layer++) {
        sliding += c->window[layer] > 0 ? 1 : 0;
        window = c->window[layer] > 0 ? c->window[layer] : window;
    }
    DPQ_TRY(dpq_text_append(
        t, "attention        %" PRId64 " heads of width %" PRId64 " over %" PRId64 " key/value heads%s%s", c->n_heads,
        c->head_dim, c->n_kv_heads, c->qkv_bias ? ", q/k/v bias" : "", c->qk_norm ? ", q/k norm" : ""));
    if (sliding > 0) {
        DPQ_TRY(dpq_text_append(t, ", window of %" PRId64 " tokens in %" PRId64 " blocks", window, sliding));
    }
    return dpq_text_append(t, "\n");
}

static dpq_status append_tensors(const dpq_st_store *store, dpq_text *t)
{
    uint64_t bytes[DPQ_DTYPE_COUNT] = {0};
    size_t counts[DPQ_DTYPE_COUNT] = {0};
    uint64_t total = 0;
    for (size_t i = 0; i < dpq_st_count(store); i++) {
        const dpq_st_entry *e = dpq_st_at(store, i);
        bytes[e->dtype] += e->bytes;
        counts[e->dtype]++;
        total += e->bytes;
    }
    DPQ_TRY(dpq_text_append(t, "tensors          %zu in %zu file%s, %" PRIu64 " bytes\n", dpq_st_count(store),
                            dpq_st_shard_count(store), dpq_st_shard_count(store) == 1 ? "" : "s", total));
    for (int d = 0; d < DPQ_DTYPE_COUNT; d++) {
        if (counts[d] > 0) {
            DPQ_TRY(dpq_text_append(t, "  %-14s %zu tensors, %" PRIu64 " bytes\n", dpq_dtype_name((dpq_dtype)d),
                                    counts[d], bytes[d]));
        }
    }
    return dpq_text_append(t, "digest           %s\n", dpq_st_digest(store));
}

dpq_status dpq_inspect_model(const dpq_model_folder *folder, dpq_text *t)
{
    const dpq_model_config *c = &folder->config;
    DPQ_TRY(dpq_text_append(t, "folder           %s\n", folder->dir));
    DPQ_TRY(dpq_text_append(t, "architecture     %s (%s)\n", c->architecture, c->model_type));
    DPQ_TRY(dpq_text_append(t, "blocks           %" PRId64 "\n", c->n_layers));
    DPQ_TRY(dpq_text_append(t, "width            %" PRId64 ", feed-forward %" PRId64 "\n", c->hidden_size,
                            c->intermediate_size));
    DPQ_TRY(append_attention(c, t));
    DPQ_TRY(dpq_text_append(t, "vocabulary       %" PRId64 ", %s head\n", c->vocab_size,
                            c->tied_embeddings ? "tied" : "separate"));
    DPQ_TRY(dpq_text_append(t, "positions        %" PRId64 "\n", c->max_positions));
    DPQ_TRY(append_rope(c, t));
    DPQ_TRY(dpq_text_append(t, "type             %s\n", dpq_dtype_name(c->dtype)));
    return append_tensors(folder->store, t);
}
