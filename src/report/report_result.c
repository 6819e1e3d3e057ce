/* SPDX-License-Identifier: Apache-2.0 */
/* dpquant.json: what shapes the result and what came out. Nothing in it depends on ranks, threads, paths or time. */
#include <string.h>

#include "report_priv.h"

/* A parsed value written again. */
static void put_json(dpq_json_writer *w, const char *key, const dpq_json *value)
{
    switch (dpq_json_get_kind(value)) {
    case DPQ_JSON_NULL:
        dpq_json_put_null(w, key);
        break;
    case DPQ_JSON_BOOL:
        dpq_json_put_bool(w, key, dpq_json_bool(value));
        break;
    case DPQ_JSON_INT:
        dpq_json_put_int(w, key, dpq_json_int(value));
        break;
    case DPQ_JSON_REAL:
        dpq_json_put_real(w, key, dpq_json_real(value));
        break;
    case DPQ_JSON_STRING:
        dpq_json_put_string(w, key, dpq_json_string(value));
        break;
    case DPQ_JSON_ARRAY:
        dpq_json_begin_array(w, key);
        for (size_t i = 0; i < dpq_json_size(value); i++) {
            put_json(w, NULL, dpq_json_item(value, i));
        }
        dpq_json_end(w);
        break;
    case DPQ_JSON_OBJECT:
        dpq_json_begin_object(w, key);
        for (size_t i = 0; i < dpq_json_size(value); i++) {
            const dpq_json *member = NULL;
            const char *name = dpq_json_key(value, i, &member);
            put_json(w, name, member);
        }
        dpq_json_end(w);
        break;
    }
}

static void put_identity(dpq_json_writer *w, const dpq_report *report)
{
    dpq_json_begin_object(w, "dpquant");
    dpq_json_put_string(w, "version", report->version);
    dpq_json_put_string(w, "build", report->build);
    dpq_json_put_string(w, "compiler", report->compiler);
    dpq_json_put_string(w, "libraries", report->libraries);
    dpq_json_put_string(w, "isa", report->isa);
    dpq_json_put_string(w, "compute", report->compute);
    dpq_json_end(w);
    dpq_json_begin_object(w, "model");
    dpq_json_put_string(w, "architecture", report->architecture);
    dpq_json_put_string(w, "digest", report->model_digest);
    dpq_json_end(w);
}

static void put_calibration(dpq_json_writer *w, const dpq_report *report)
{
    if (report->samples == 0) {
        dpq_json_put_null(w, "calibration");
        return;
    }
    dpq_json_begin_object(w, "calibration");
    dpq_json_put_int(w, "samples", report->samples);
    dpq_json_put_int(w, "tokens", report->tokens);
    dpq_json_put_int(w, "tokens_read", report->tokens_read);
    dpq_json_put_int(w, "tokens_masked", report->tokens_masked);
    dpq_json_put_int(w, "tokens_cut", report->tokens_cut);
    dpq_json_put_string(w, "digest", report->data_digest);
    dpq_json_end(w);
}

static void put_module(dpq_json_writer *w, const dpq_module_record *m)
{
    dpq_json_begin_object(w, NULL);
    dpq_json_put_string(w, "name", m->module);
    dpq_json_begin_array(w, "shape");
    dpq_json_put_int(w, NULL, m->n);
    dpq_json_put_int(w, NULL, m->k);
    dpq_json_end(w);
    if (m->quantized) {
        dpq_json_put_int(w, "bits", m->scheme.bits);
        dpq_json_put_int(w, "group_size", m->scheme.group_size);
        dpq_json_put_bool(w, "symmetric", m->scheme.symmetric);
        dpq_json_put_bool(w, "signed_scale", m->scheme.signed_scale);
    }
    dpq_json_put_string(w, "method", m->method);
    if (m->quantized) {
        dpq_json_put_real(w, "relative_error", m->relative_error);
        dpq_json_put_real(w, "damping", m->damping);
        dpq_json_put_bool(w, "fallback", m->fallback);
    }
    dpq_json_end(w);
}

/* Error of each block, and how its tuning went. */
static void put_blocks(dpq_json_writer *w, const dpq_report *report)
{
    dpq_json_begin_array(w, "blocks");
    for (size_t i = 0; i < report->n_blocks; i++) {
        const dpq_block_record *b = &report->blocks[i];
        dpq_json_begin_object(w, NULL);
        dpq_json_put_string(w, "name", b->name);
        dpq_json_put_real(w, "error", b->error);
        if (b->steps > 0) {
            dpq_json_put_int(w, "steps", b->steps);
            dpq_json_put_int(w, "repeated_steps", b->repeats);
            dpq_json_put_real(w, "initial_loss", b->initial_loss);
            dpq_json_put_real(w, "best_loss", b->best_loss);
            dpq_json_put_int(w, "best_step", b->best_step);
        }
        dpq_json_end(w);
    }
    dpq_json_end(w);
}

dpq_status dpq_report_result_text(const dpq_report *report, char **text, size_t *size)
{
    dpq_status st = DPQ_OK;
    dpq_json_writer *w = NULL;
    dpq_json *overrides = NULL;
    *text = NULL;
    *size = 0;
    if (report->overrides_json != NULL) {
        DPQ_TRY(dpq_json_parse(report->overrides_json, strlen(report->overrides_json), "overrides", &overrides));
    }
    DPQ_TRY_GOTO(st, dpq_json_writer_create(&w), done);
    dpq_json_begin_object(w, NULL);
    put_identity(w, report);
    dpq_report_put_settings(w, report, true);
    if (overrides != NULL) {
        put_json(w, "overrides", overrides);
    } else {
        dpq_json_begin_array(w, "overrides");
        dpq_json_end(w);
    }
    put_calibration(w, report);
    dpq_json_begin_array(w, "modules");
    for (size_t i = 0; i < report->n_modules; i++) {
        put_module(w, &report->modules[i]);
    }
    dpq_json_end(w);
    put_blocks(w, report);
    dpq_json_put_int(w, "fallbacks", report->fallbacks);
    dpq_report_put_eval(w, "eval", &report->eval);
    dpq_json_end(w);
    st = dpq_json_writer_finish(&w, text, size);
done:
    dpq_json_destroy(&overrides);
    return st;
}
