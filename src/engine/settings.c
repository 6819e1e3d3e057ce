/* SPDX-License-Identifier: Apache-2.0 */
/* The table of general settings, and the settings object that joins it with the tables of the algorithms. */
#include "dpquant/settings.h"

#include <stddef.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/json.h"

static const char *const algorithm_choices[] = {"rtn", "gptq", "signround", "adaround", NULL};
static const char *const format_choices[] = {"compressed-tensors", NULL};
static const char *const device_choices[] = {"auto", "cpu", NULL};
static const char *const precision_choices[] = {"bf16", "fp32", NULL};
static const char *const compute_choices[] = {"auto", "fp32", "bf16", NULL};
static const char *const transport_choices[] = {"int32", "int16", NULL};
static const char *const level_choices[] = {"error", "warning", "info", "debug", "trace", NULL};

#define FIELD(name) offsetof(dpq_run_options, name)
#define LARGE       9e15

static const dpq_option general_table[] = {
    {"model", DPQ_OPTION_PATH, FIELD(model), 0, 0, NULL, NULL, false,
     "Folder of the source model as Hugging Face writes it: config.json, safetensors, tokenizer files."},
    {"output", DPQ_OPTION_PATH, FIELD(output), 0, 0, NULL, NULL, false,
     "Folder to write. It appears under this name only when it is complete; until then the files are in "
     "OUTPUT.partial."},
    {"overwrite", DPQ_OPTION_BOOL, FIELD(overwrite), 0, 0, NULL, "false", false,
     "Replace an existing output folder that dpquant wrote, after the new one is complete."},
    {"calibration.data", DPQ_OPTION_PATH, FIELD(calibration.data), 0, 0, NULL, NULL, false,
     "HDF5 file with token windows (input_ids, optional attention_mask). Its content is identified by a digest."},
    {"calibration.samples", DPQ_OPTION_INT, FIELD(calibration.samples), 0, LARGE, NULL, "128", true,
     "Number of samples: the first rows of the file (of the shuffled order with shuffle); 0 takes all."},
    {"calibration.seqlen", DPQ_OPTION_INT, FIELD(calibration.seqlen), 0, LARGE, NULL, "0", true,
     "Longest sample in tokens; longer rows are cut. 0 takes rows as they are."},
    {"calibration.shuffle", DPQ_OPTION_BOOL, FIELD(calibration.shuffle), 0, 0, NULL, "false", true,
     "Take the rows in a random order that depends on calibration.seed only."},
    {"calibration.seed", DPQ_OPTION_INT, FIELD(calibration.seed), 0, LARGE, NULL, "42", true, "Seed of the shuffle."},
    {"quantize.algorithm", DPQ_OPTION_ENUM, FIELD(quantize.algorithm), 0, 0, algorithm_choices, "gptq", true,
     "How codes are chosen; see docs/algorithms."},
    {"quantize.scheme", DPQ_OPTION_STRING, FIELD(quantize.scheme), 0, 0, NULL, NULL, true,
     "Named scheme (dpquant list schemes) that sets bits, group_size and symmetric, which may then be overridden."},
    {"quantize.bits", DPQ_OPTION_INT, FIELD(quantize.bits), 2, 8, NULL, "4", true, "Bits of a weight."},
    {"quantize.group_size", DPQ_OPTION_INT, FIELD(quantize.group_size), -1, LARGE, NULL, "128", true,
     "Weights of a row that share a scale; must divide the inputs of every quantized linear. -1: the whole row."},
    {"quantize.symmetric", DPQ_OPTION_BOOL, FIELD(quantize.symmetric), 0, 0, NULL, "true", true,
     "Without (true) or with (false) a zero point a group."},
    {"quantize.signed_scale", DPQ_OPTION_BOOL, FIELD(quantize.signed_scale), 0, 0, NULL, "true", true,
     "Symmetric only: a scale may be negative, so that the extreme of largest magnitude uses the longer side of the "
     "range."},
    {"quantize.ignore", DPQ_OPTION_STRINGS, FIELD(quantize.ignore), 0, 0, NULL, "lm_head", true,
     "Modules that stay as they are: exact names, or re: and a regular expression matched from the start of the name."},
    {"quantize.max_fallbacks", DPQ_OPTION_REAL, FIELD(quantize.max_fallbacks), 0, 1, NULL, "0.05", true,
     "Share of linears that may fall back to round-to-nearest before the run fails."},
    {"export.format", DPQ_OPTION_ENUM, FIELD(export.format), 0, 0, format_choices, "compressed-tensors", true,
     "Format of the output: compressed-tensors pack-quantized."},
    {"export.shard_size", DPQ_OPTION_BYTES, FIELD(export.shard_size), 1, 9e18, NULL, "5GB", true,
     "Largest size of one safetensors file."},
    {"eval.data", DPQ_OPTION_PATH, FIELD(eval.data.data), 0, 0, NULL, NULL, false,
     "HDF5 file with held-out token windows; when given, perplexity and KL divergence against the source are measured "
     "at the end."},
    {"eval.samples", DPQ_OPTION_INT, FIELD(eval.data.samples), 0, LARGE, NULL, "0", true,
     "Number of windows; 0 takes all."},
    {"eval.seqlen", DPQ_OPTION_INT, FIELD(eval.data.seqlen), 0, LARGE, NULL, "0", true,
     "Longest window in tokens; 0: as in the file."},
    {"eval.precision", DPQ_OPTION_ENUM, FIELD(eval.precision), 0, 0, precision_choices, "fp32", true,
     "Arithmetic of the evaluation. bf16 noise is 1e-4 of KL, as much as 8-bit quantization itself."},
    {"run.device", DPQ_OPTION_ENUM, FIELD(run.device), 0, 0, device_choices, "auto", false, "Where to compute."},
    {"run.threads", DPQ_OPTION_INT, FIELD(run.threads), 0, 4096, NULL, "0", false,
     "Threads a rank; 0: one for each core this rank may use, shared among the ranks of a host that may use the same "
     "cores."},
    {"run.precision", DPQ_OPTION_ENUM, FIELD(run.precision), 0, 0, precision_choices, "bf16", true,
     "Type in which activations travel. Models with fp16 or fp32 weights are computed in fp32."},
    {"run.compute", DPQ_OPTION_ENUM, FIELD(run.compute), 0, 0, compute_choices, "auto", true,
     "Type in which products of bf16 values are computed; auto takes the faster one from a table of processor "
     "features."},
    {"run.gradient_transport", DPQ_OPTION_ENUM, FIELD(run.gradient_transport), 0, 0, transport_choices, "int32", true,
     "Tuning: integers that carry a step's gradient sums between ranks; int16 halves the bytes for slow networks and "
     "keeps about 9 bits."},
    {"run.ranks", DPQ_OPTION_STRING, FIELD(run.ranks), 0, 0, NULL, "auto", false,
     "Ranks that work: a number, or auto for as many of the job's as fit into their hosts' memory; the rest wait."},
    {"run.low_memory", DPQ_OPTION_BOOL, FIELD(run.low_memory), 0, 0, NULL, "false", false,
     "Keep activations in a file that the system may page out; slower, same result."},
    {"run.scratch", DPQ_OPTION_PATH, FIELD(run.scratch), 0, 0, NULL, NULL, false,
     "Folder of the files of run.low_memory; default: TMPDIR, else /tmp."},
    {"run.log_level", DPQ_OPTION_ENUM, FIELD(run.log_level), 0, 0, level_choices, "info", false,
     "Least severe log line on rank 0."},
};

static dpq_status init_set(dpq_settings *s, const dpq_option *table, size_t count, void *target)
{
    dpq_option_set *set = &s->sets[s->n_sets];
    void *flags;
    DPQ_TRY(dpq_alloc_array((int64_t)count, sizeof(bool), &flags));
    *set = (dpq_option_set){.options = table, .count = count, .target = target, .was_set = flags};
    s->n_sets++;
    return dpq_option_set_defaults(set);
}

dpq_status dpq_settings_create(dpq_settings **out)
{
    *out = NULL;
    void *memory;
    DPQ_TRY(dpq_alloc(sizeof(dpq_settings), &memory));
    dpq_settings *s = memory;
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, init_set(s, general_table, DPQ_COUNT_OF(general_table), &s->run), fail);
    DPQ_TRY_GOTO(st, init_set(s, dpq_rtn_option_table, dpq_rtn_option_count, &s->algo), fail);
    DPQ_TRY_GOTO(st, init_set(s, dpq_gptq_option_table, dpq_gptq_option_count, &s->algo), fail);
    DPQ_TRY_GOTO(st, init_set(s, dpq_signround_option_table, dpq_signround_option_count, &s->tune), fail);
    *out = s;
    return DPQ_OK;
fail:
    dpq_settings_destroy(&s);
    return st;
}

void dpq_settings_destroy(dpq_settings **settings)
{
    dpq_settings *s = *settings;
    if (s == NULL) {
        return;
    }
    for (size_t i = 0; i < s->n_sets; i++) {
        dpq_option_set_fini(&s->sets[i]);
        dpq_free(s->sets[i].was_set);
    }
    for (size_t i = 0; i < s->n_overrides; i++) {
        dpq_free(s->overrides[i].match);
    }
    dpq_free(s->overrides);
    dpq_free(s);
    *settings = NULL;
}

const char *dpq_settings_algorithm(const dpq_settings *settings)
{
    return algorithm_choices[settings->run.quantize.algorithm];
}

dpq_status dpq_settings_add_override(dpq_settings *settings, dpq_override **out)
{
    void *grown;
    DPQ_TRY(dpq_alloc_array((int64_t)settings->n_overrides + 1, sizeof(dpq_override), &grown));
    if (settings->n_overrides > 0) {
        memcpy(grown, settings->overrides, settings->n_overrides * sizeof(dpq_override));
    }
    dpq_free(settings->overrides);
    settings->overrides = grown;
    *out = &settings->overrides[settings->n_overrides++];
    return DPQ_OK;
}

static const char *const scheme_keys[] = {"quantize.bits", "quantize.group_size", "quantize.symmetric"};

static bool *set_flag(const dpq_settings *settings, const char *key)
{
    size_t set = 0;
    const dpq_option *option = dpq_option_find(settings->sets, settings->n_sets, key, &set);
    DPQ_ASSERT(option != NULL);
    return &settings->sets[set].was_set[option - settings->sets[set].options];
}

void dpq_settings_note_set(dpq_settings *settings, const char *key)
{
    if (strcmp(key, "quantize.scheme") != 0) {
        return;
    }
    for (size_t i = 0; i < DPQ_COUNT_OF(scheme_keys); i++) {
        *set_flag(settings, scheme_keys[i]) = false;
    }
}

dpq_status dpq_settings_base_scheme(const dpq_settings *settings, dpq_scheme *out)
{
    const dpq_run_options *o = &settings->run;
    bool named = o->quantize.scheme != NULL;
    *out = (dpq_scheme){
        .bits = (int)o->quantize.bits, .group_size = o->quantize.group_size, .symmetric = o->quantize.symmetric};
    if (named) {
        const dpq_named_scheme *scheme = dpq_scheme_find(o->quantize.scheme);
        if (scheme == NULL) {
            return DPQ_RAISE(DPQ_E_CONFIG,
                             "quantize.scheme: unknown scheme '%s'; 'dpquant list schemes' prints the known ones",
                             o->quantize.scheme);
        }
        out->bits = *set_flag(settings, "quantize.bits") ? out->bits : scheme->scheme.bits;
        out->group_size = *set_flag(settings, "quantize.group_size") ? out->group_size : scheme->scheme.group_size;
        out->symmetric = *set_flag(settings, "quantize.symmetric") ? out->symmetric : scheme->scheme.symmetric;
    }
    if (out->group_size == 0) {
        return DPQ_RAISE(DPQ_E_CONFIG, "quantize.group_size: expected a positive number or -1 for whole rows, found 0");
    }
    out->signed_scale = out->symmetric && o->quantize.signed_scale;
    return DPQ_OK;
}

dpq_status dpq_settings_resolve_scheme(dpq_settings *settings)
{
    dpq_scheme scheme;
    DPQ_TRY(dpq_settings_base_scheme(settings, &scheme));
    settings->run.quantize.bits = scheme.bits;
    settings->run.quantize.group_size = scheme.group_size;
    settings->run.quantize.symmetric = scheme.symmetric;
    for (size_t i = 0; settings->run.quantize.scheme != NULL && i < DPQ_COUNT_OF(scheme_keys); i++) {
        *set_flag(settings, scheme_keys[i]) = true;
    }
    return DPQ_OK;
}

dpq_status dpq_settings_overrides_text(const dpq_settings *settings, char **out)
{
    dpq_json_writer *w;
    size_t size;
    *out = NULL;
    DPQ_TRY(dpq_json_writer_create(&w));
    dpq_json_begin_array(w, NULL);
    for (size_t i = 0; i < settings->n_overrides; i++) {
        const dpq_override *o = &settings->overrides[i];
        dpq_json_begin_object(w, NULL);
        dpq_json_put_string(w, "match", o->match);
        if (o->has_bits) {
            dpq_json_put_int(w, "bits", o->bits);
        }
        if (o->has_group_size) {
            dpq_json_put_int(w, "group_size", o->group_size);
        }
        if (o->has_symmetric) {
            dpq_json_put_bool(w, "symmetric", o->symmetric);
        }
        if (o->ignore) {
            dpq_json_put_bool(w, "ignore", true);
        }
        dpq_json_end(w);
    }
    dpq_json_end(w);
    return dpq_json_writer_finish(&w, out, &size);
}
