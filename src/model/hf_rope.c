/* SPDX-License-Identifier: Apache-2.0 */
/* Rope settings from config.json in both spellings: rope_theta with rope_scaling, and rope_parameters. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "dpquant/option.h"
#include "model_priv.h"

#define CLASS_THETA 10000.0 /* of all four classes */

/* A rope object (NULL when the file has none) with the words needed for messages. */
typedef struct {
    const dpq_json *json;
    const char *file, *key;
    char where[1024]; /* both, for messages of the JSON reader */
} rope_source;

static void set_source(rope_source *s, const dpq_json *json, const char *file, const char *key)
{
    s->json = json;
    s->file = file;
    s->key = key;
    snprintf(s->where, sizeof s->where, "%s: %s", file, key);
}

static dpq_status check_keys(const rope_source *s)
{
    static const char *const known[] = {
        "rope_type",
        "type",
        "rope_theta",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "truncate",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "partial_rotary_factor",
        "finetuned", /* a note of early yarn models, without effect */
    };
    for (size_t i = 0; i < dpq_json_size(s->json); i++) {
        const dpq_json *value = NULL;
        const char *key = dpq_json_key(s->json, i, &value);
        bool found = false;
        for (size_t k = 0; !found && k < DPQ_COUNT_OF(known); k++) {
            found = strcmp(key, known[k]) == 0;
        }
        if (!found) {
            return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: %s.%s: this rope setting is not known%s", s->file, s->key, key,
                             dpq_json_get_kind(value) == DPQ_JSON_OBJECT ? " (expected one rope for all layers)" : "");
        }
    }
    return DPQ_OK;
}

static dpq_status read_type(const rope_source *s, dpq_rope_type *out)
{
    static const struct {
        const char *name;
        dpq_rope_type type;
    } types[] = {{"default", DPQ_ROPE_DEFAULT},
                 {"linear", DPQ_ROPE_LINEAR},
                 {"llama3", DPQ_ROPE_LLAMA3},
                 {"yarn", DPQ_ROPE_YARN}};
    const char *key = "rope_type";
    const char *text = NULL;
    bool found = false;
    *out = DPQ_ROPE_DEFAULT;
    DPQ_TRY(dpq_json_opt_string(s->json, s->where, key, &text, &found));
    if (!found) {
        key = "type";
        DPQ_TRY(dpq_json_opt_string(s->json, s->where, key, &text, &found));
    }
    if (!found) {
        if (dpq_json_member(s->json, "factor")) { /* scaled, but how? */
            return DPQ_RAISE(DPQ_E_INPUT, "%s: %s.rope_type: expected default, linear, llama3 or yarn, found none",
                             s->file, s->key);
        }
        return DPQ_OK;
    }
    for (size_t i = 0; i < DPQ_COUNT_OF(types); i++) {
        if (strcmp(types[i].name, text) == 0) {
            *out = types[i].type;
            return DPQ_OK;
        }
    }
    return DPQ_RAISE(DPQ_E_UNSUPPORTED, "%s: %s.%s: expected default, linear, llama3 or yarn, found '%s'", s->file,
                     s->key, key, text);
}

/* A number above MIN; *found says whether it was there. */
static dpq_status read_above(const rope_source *s, const char *key, double min, double *out, bool *found)
{
    DPQ_TRY(dpq_json_opt_real(s->json, s->where, key, out, found));
    if (*found && !(isfinite(*out) && *out > min)) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: %s.%s: expected a number above %g, found %g", s->file, s->key, key, min,
                         *out);
    }
    return DPQ_OK;
}

static dpq_status require(const rope_source *s, const char *key, bool found)
{
    return found ? DPQ_OK : DPQ_RAISE(DPQ_E_INPUT, "%s: %s.%s: expected a number, found none", s->file, s->key, key);
}

static dpq_status read_factor(const rope_source *s, double *factor, bool *found)
{
    DPQ_TRY(read_above(s, "factor", 0.0, factor, found));
    if (*found && *factor < 1.0) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: %s.factor: expected 1 or more, found %g", s->file, s->key, *factor);
    }
    return DPQ_OK;
}

static dpq_status read_llama3(const rope_source *s, const dpq_model_config *c, dpq_rope_config *r)
{
    bool found = false;
    DPQ_TRY(read_factor(s, &r->factor, &found));
    DPQ_TRY(require(s, "factor", found));
    DPQ_TRY(read_above(s, "low_freq_factor", 0.0, &r->low_freq_factor, &found));
    DPQ_TRY(require(s, "low_freq_factor", found));
    DPQ_TRY(read_above(s, "high_freq_factor", r->low_freq_factor, &r->high_freq_factor, &found));
    DPQ_TRY(require(s, "high_freq_factor", found));
    DPQ_TRY(read_above(s, "original_max_position_embeddings", 0.0, &r->original_max_position, &found));
    if (!found) {
        r->original_max_position = (double)c->max_positions;
    }
    return DPQ_OK;
}

/* Growth of attention logits with the stretch of positions. */
static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static dpq_status read_yarn_attention(const rope_source *s, dpq_rope_config *r)
{
    bool found = false;
    double mscale = 0.0;
    double mscale_all = 0.0;
    DPQ_TRY(read_above(s, "attention_factor", 0.0, &r->attention_factor, &found));
    if (found) {
        return DPQ_OK;
    }
    DPQ_TRY(dpq_json_opt_real(s->json, s->where, "mscale", &mscale, NULL));
    DPQ_TRY(dpq_json_opt_real(s->json, s->where, "mscale_all_dim", &mscale_all, NULL));
    if (mscale != 0.0 && mscale_all != 0.0) {
        r->attention_factor = yarn_mscale(r->factor, mscale) / yarn_mscale(r->factor, mscale_all);
    } else {
        r->attention_factor = yarn_mscale(r->factor, 1.0);
    }
    if (!(isfinite(r->attention_factor) && r->attention_factor > 0.0)) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: %s.mscale: expected a positive attention factor, found %g", s->file, s->key,
                         r->attention_factor);
    }
    return DPQ_OK;
}

static dpq_status read_yarn(const rope_source *s, const dpq_model_config *c, dpq_rope_config *r)
{
    bool found = false;
    DPQ_TRY(read_above(s, "original_max_position_embeddings", 0.0, &r->original_max_position, &found));
    DPQ_TRY(require(s, "original_max_position_embeddings", found));
    DPQ_TRY(read_factor(s, &r->factor, &found));
    if (!found) {
        r->factor = (double)c->max_positions / r->original_max_position;
    }
    if (r->factor < 1.0) {
        return DPQ_RAISE(DPQ_E_INPUT,
                         "%s.original_max_position_embeddings: expected at most max_position_embeddings (%lld), "
                         "found %g",
                         s->where, (long long)c->max_positions, r->original_max_position);
    }
    r->beta_fast = 32.0;
    r->beta_slow = 1.0;
    DPQ_TRY(read_above(s, "beta_fast", 0.0, &r->beta_fast, &found));
    DPQ_TRY(read_above(s, "beta_slow", 0.0, &r->beta_slow, &found));
    DPQ_TRY(dpq_json_opt_bool(s->json, s->where, "truncate", &r->truncate, NULL));
    return read_yarn_attention(s, r);
}

static dpq_status check_theta(const rope_source *s, double theta)
{
    if (!(isfinite(theta) && theta > 1.0)) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: rope_theta: expected a number above 1, found %g", s->file, theta);
    }
    return DPQ_OK;
}

static dpq_status read_rotary_dim(const rope_source *s, const dpq_model_config *c, double share, dpq_rope_config *r)
{
    if (!(share > 0.0 && share <= 1.0)) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: partial_rotary_factor: expected a number above 0, at most 1, found %g",
                         s->file, share);
    }
    r->rotary_dim = (int64_t)((double)c->head_dim * share);
    if (r->rotary_dim < 2 || r->rotary_dim % 2 != 0) {
        return DPQ_RAISE(DPQ_E_UNSUPPORTED,
                         "%s: head_dim %lld with partial_rotary_factor %g: expected an even number of rotated "
                         "elements, found %lld",
                         s->file, (long long)c->head_dim, share, (long long)r->rotary_dim);
    }
    return DPQ_OK;
}

/* The settings of one rope object, or of a file without one; THETA and SHARE are those of the file's top level. */
static dpq_status read_rope(const rope_source *s, const dpq_model_config *c, double theta, double share,
                            dpq_rope_config *r)
{
    *r = (dpq_rope_config){.theta = theta, .factor = 1.0, .attention_factor = 1.0, .truncate = true};
    if (!s->json) {
        DPQ_TRY(check_theta(s, r->theta));
        return read_rotary_dim(s, c, share, r);
    }
    if (dpq_json_get_kind(s->json) != DPQ_JSON_OBJECT) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: %s: expected an object or null", s->file, s->key);
    }
    bool found = false;
    DPQ_TRY(read_type(s, &r->type));
    DPQ_TRY(check_keys(s));
    DPQ_TRY(dpq_json_opt_real(s->json, s->where, "rope_theta", &r->theta, NULL));
    DPQ_TRY(check_theta(s, r->theta));
    DPQ_TRY(dpq_json_opt_real(s->json, s->where, "partial_rotary_factor", &share, NULL));
    DPQ_TRY(read_rotary_dim(s, c, share, r));
    switch (r->type) {
    case DPQ_ROPE_LINEAR:
        DPQ_TRY(read_factor(s, &r->factor, &found));
        return require(s, "factor", found);
    case DPQ_ROPE_LLAMA3:
        return read_llama3(s, c, r);
    case DPQ_ROPE_YARN:
        return read_yarn(s, c, r);
    default:
        return DPQ_OK;
    }
}

static bool same_rope(const dpq_rope_config *a, const dpq_rope_config *b)
{
    return a->type == b->type && a->theta == b->theta && a->factor == b->factor &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->original_max_position == b->original_max_position && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow && a->truncate == b->truncate && a->attention_factor == b->attention_factor &&
           a->rotary_dim == b->rotary_dim;
}

static const dpq_json *rope_object(const dpq_json *json, const char *key)
{
    const dpq_json *value = dpq_json_member(json, key);
    return value && dpq_json_get_kind(value) != DPQ_JSON_NULL ? value : NULL;
}

dpq_status dpq_rope_config_read(const dpq_json *json, const char *file, const dpq_model_config *config,
                                dpq_rope_config *out)
{
    double theta = CLASS_THETA;
    double share = 1.0;
    rope_source parameters, scaling;
    set_source(&parameters, rope_object(json, "rope_parameters"), file, "rope_parameters");
    set_source(&scaling, rope_object(json, "rope_scaling"), file, "rope_scaling");
    DPQ_TRY(dpq_json_opt_real(json, file, "rope_theta", &theta, NULL));
    DPQ_TRY(dpq_json_opt_real(json, file, "partial_rotary_factor", &share, NULL));
    if (!parameters.json) {
        return read_rope(&scaling, config, theta, share, out);
    }
    DPQ_TRY(read_rope(&parameters, config, theta, share, out));
    if (scaling.json) { /* loaders differ in which one they follow */
        dpq_rope_config other;
        DPQ_TRY(read_rope(&scaling, config, theta, share, &other));
        if (!same_rope(out, &other)) {
            return DPQ_RAISE(DPQ_E_INPUT, "%s: rope_scaling: expected the settings of rope_parameters, found others",
                             file);
        }
    }
    return DPQ_OK;
}
