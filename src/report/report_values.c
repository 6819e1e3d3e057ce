/* SPDX-License-Identifier: Apache-2.0 */
/* Parts that both files of a report are made of: settings typed by their descriptors, figures of an evaluation. */
#include "report_priv.h"

static void put_list(dpq_json_writer *w, const char *key, const dpq_str_list *list)
{
    dpq_json_begin_array(w, key);
    for (size_t i = 0; i < list->count; i++) {
        dpq_json_put_string(w, NULL, list->items[i]);
    }
    dpq_json_end(w);
}

static void put_option(dpq_json_writer *w, const dpq_option_set *set, const dpq_option *option)
{
    const void *field = (const char *)set->target + option->offset;
    switch (option->type) {
    case DPQ_OPTION_BOOL:
        dpq_json_put_bool(w, option->key, *(const bool *)field);
        break;
    case DPQ_OPTION_INT:
    case DPQ_OPTION_BYTES:
        dpq_json_put_int(w, option->key, *(const int64_t *)field);
        break;
    case DPQ_OPTION_REAL:
        dpq_json_put_real(w, option->key, *(const double *)field);
        break;
    case DPQ_OPTION_ENUM:
        dpq_json_put_string(w, option->key, option->choices[*(const int *)field]);
        break;
    case DPQ_OPTION_STRING:
    case DPQ_OPTION_PATH:
        dpq_json_put_string(w, option->key, *(char *const *)field);
        break;
    case DPQ_OPTION_STRINGS:
        put_list(w, option->key, field);
        break;
    }
}

void dpq_report_put_settings(dpq_json_writer *w, const dpq_report *report, bool shapes_result)
{
    dpq_json_begin_object(w, "settings");
    for (size_t s = 0; s < report->n_sets; s++) {
        const dpq_option_set *set = &report->sets[s];
        for (size_t i = 0; i < set->count; i++) {
            if (set->options[i].shapes_result == shapes_result) {
                put_option(w, set, &set->options[i]);
            }
        }
    }
    dpq_json_end(w);
}

/* Figures against a reference are null without one, so that the keys are always the same. */
static void put_compared(dpq_json_writer *w, const dpq_eval_figures *f, const char *key, double value)
{
    if (f->has_reference) {
        dpq_json_put_real(w, key, value);
    } else {
        dpq_json_put_null(w, key);
    }
}

void dpq_report_put_eval(dpq_json_writer *w, const char *key, const dpq_eval_figures *figures)
{
    if (!figures->done) {
        dpq_json_put_null(w, key);
        return;
    }
    dpq_json_begin_object(w, key);
    dpq_json_put_real(w, "perplexity", figures->perplexity);
    put_compared(w, figures, "reference_perplexity", figures->reference_perplexity);
    put_compared(w, figures, "kl_mean", figures->kl_mean);
    put_compared(w, figures, "kl_median", figures->kl_median);
    put_compared(w, figures, "kl_p90", figures->kl_p90);
    put_compared(w, figures, "kl_p99", figures->kl_p99);
    put_compared(w, figures, "kl_p999", figures->kl_p999);
    put_compared(w, figures, "kl_max", figures->kl_max);
    put_compared(w, figures, "top1", figures->top1);
    dpq_json_put_int(w, "tokens", figures->tokens);
    dpq_json_put_int(w, "windows", figures->windows);
    dpq_json_put_string(w, "digest", figures->data_digest);
    dpq_json_end(w);
}

dpq_status dpq_report_eval_text(const dpq_eval_figures *figures, char **text, size_t *size)
{
    dpq_json_writer *w = NULL;
    *text = NULL;
    *size = 0;
    DPQ_TRY(dpq_json_writer_create(&w));
    dpq_report_put_eval(w, NULL, figures);
    return dpq_json_writer_finish(&w, text, size);
}
