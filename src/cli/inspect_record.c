/* SPDX-License-Identifier: Apache-2.0 */
/* The record dpquant leaves in its output: who wrote it, with which algorithm, and its figures. */
#include <inttypes.h>

#include "dpquant/alloc.h"
#include "dpquant/file.h"
#include "inspect_priv.h"

#define RECORD_MAX_BYTES ((size_t)256 << 20)

static dpq_status append_eval(const dpq_json *eval, const char *file, dpq_text *t)
{
    static const struct {
        const char *key, *label;
    } figures[] = {
        {"perplexity", "perplexity"},
        {"reference_perplexity", "before"},
        {"kl_mean", "KL mean"},
        {"kl_median", "KL median"},
        {"kl_p99", "KL 99 %"},
        {"kl_max", "KL maximum"},
        {"top1", "top-1"},
    };
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        double value = 0.0;
        bool found = false;
        DPQ_TRY(dpq_json_opt_real(eval, file, figures[i].key, &value, &found));
        if (found) {
            DPQ_TRY(dpq_text_append(t, "  %-14s %.6g\n", figures[i].label, value));
        }
    }
    return DPQ_OK;
}

static dpq_status append_record(const dpq_json *record, const char *file, dpq_text *t)
{
    const char *version = "unknown", *algorithm = "unknown";
    int64_t fallbacks = 0, samples = 0, tokens = 0;
    const dpq_json *calibration = dpq_json_member(record, "calibration");
    const dpq_json *settings = dpq_json_member(record, "settings");
    const dpq_json *program = dpq_json_member(record, "dpquant");
    const dpq_json *eval = dpq_json_member(record, "eval");
    if (program != NULL) {
        DPQ_TRY(dpq_json_opt_string(program, file, "version", &version, NULL));
    }
    if (settings != NULL) {
        DPQ_TRY(dpq_json_opt_string(settings, file, "quantize.algorithm", &algorithm, NULL));
    }
    DPQ_TRY(dpq_json_opt_int(record, file, "fallbacks", &fallbacks, NULL));
    DPQ_TRY(
        dpq_text_append(t, "written by       dpquant %s, %s, %" PRId64 " fallbacks\n", version, algorithm, fallbacks));
    if (calibration != NULL && dpq_json_get_kind(calibration) == DPQ_JSON_OBJECT) {
        DPQ_TRY(dpq_json_opt_int(calibration, file, "samples", &samples, NULL));
        DPQ_TRY(dpq_json_opt_int(calibration, file, "tokens", &tokens, NULL));
        DPQ_TRY(dpq_text_append(t, "calibration      %" PRId64 " samples, %" PRId64 " tokens\n", samples, tokens));
    }
    if (eval == NULL || dpq_json_get_kind(eval) != DPQ_JSON_OBJECT) {
        return DPQ_OK;
    }
    DPQ_TRY(dpq_text_append(t, "evaluation\n"));
    return append_eval(eval, file, t);
}

dpq_status dpq_inspect_record(const dpq_model_folder *folder, dpq_text *t)
{
    char *path = NULL;
    dpq_json *record = NULL;
    dpq_status st = DPQ_OK;
    DPQ_TRY(dpq_path_join(folder->dir, "dpquant.json", &path));
    if (dpq_path_exists(path)) {
        DPQ_TRY_GOTO(st, dpq_json_read_file(path, RECORD_MAX_BYTES, &record), done);
        st = append_record(record, path, t);
    }
done:
    dpq_json_destroy(&record);
    dpq_free(path);
    return st;
}
