/* SPDX-License-Identifier: Apache-2.0 */
/* Files beside the weights: copied as they are, except weights and what belongs to other formats; config.json gets the
 * quantization block. */
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/file.h"
#include "dpquant/log.h"
#include "output_priv.h"

#define CONFIG_FILE      "config.json"
#define MAX_CONFIG_BYTES (16u << 20)

static const char *const weight_suffixes[] = {".safetensors", ".bin",     ".pth",  ".pt",         ".gguf",
                                              ".h5",          ".msgpack", ".onnx", ".index.json", ".ckpt"};
static const char *const other_names[] = {CONFIG_FILE,
                                          "params.json",
                                          "quantize_config.json",
                                          "quant_config.json",
                                          "quantization_config.json",
                                          "hf_quant_config.json",
                                          DPQ_RESULT_FILE,
                                          DPQ_RUN_FILE};
static const char *const copied_folders[] = {"additional_chat_templates"};

static bool is_copied(const char *name)
{
    bool skip = name[0] == '.' || dpq_str_starts_with(name, "consolidated");
    for (size_t i = 0; i < DPQ_COUNT_OF(weight_suffixes); i++) {
        skip = skip || dpq_str_ends_with(name, weight_suffixes[i]);
    }
    for (size_t i = 0; i < DPQ_COUNT_OF(other_names); i++) {
        skip = skip || strcmp(name, other_names[i]) == 0;
    }
    return !skip;
}

static bool is_copied_folder(const char *name)
{
    bool found = false;
    for (size_t i = 0; i < DPQ_COUNT_OF(copied_folders); i++) {
        found = found || strcmp(name, copied_folders[i]) == 0;
    }
    return found;
}

static dpq_status copy_entry(const char *from_dir, const char *to_dir, const char *name, bool *is_dir)
{
    char *from = NULL, *to = NULL;
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_path_join(from_dir, name, &from), done);
    DPQ_TRY_GOTO(st, dpq_path_join(to_dir, name, &to), done);
    *is_dir = dpq_path_is_dir(from);
    st = *is_dir ? DPQ_OK : dpq_file_copy(from, to);
done:
    dpq_free(from);
    dpq_free(to);
    return st;
}

/* Files of one folder; known sub-folders one level down. */
static dpq_status copy_folder(const char *from_dir, const char *to_dir, bool top)
{
    dpq_str_list names = {0};
    char *from = NULL, *to = NULL;
    bool is_dir;
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_dir_list(from_dir, &names), done);
    for (size_t i = 0; i < names.count; i++) {
        if (top && !is_copied(names.items[i])) {
            continue;
        }
        DPQ_TRY_GOTO(st, copy_entry(from_dir, to_dir, names.items[i], &is_dir), done);
        if (!is_dir) {
            continue;
        }
        if (!top || !is_copied_folder(names.items[i])) {
            dpq_log(DPQ_LOG_INFO, "output", "folder %s/%s is not copied", from_dir, names.items[i]);
            continue;
        }
        DPQ_TRY_GOTO(st, dpq_path_join(from_dir, names.items[i], &from), done);
        DPQ_TRY_GOTO(st, dpq_path_join(to_dir, names.items[i], &to), done);
        DPQ_TRY_GOTO(st, dpq_dir_create(to), done);
        DPQ_TRY_GOTO(st, copy_folder(from, to, false), done);
        dpq_free(from);
        dpq_free(to);
        from = NULL;
        to = NULL;
    }
done:
    dpq_str_list_fini(&names);
    dpq_free(from);
    dpq_free(to);
    return st;
}

dpq_status dpq_output_copy_side_files(const char *model, const char *partial)
{
    return copy_folder(model, partial, true);
}

static dpq_status quantization_block(const dpq_plan *plan, char **out)
{
    void *memory;
    size_t n = 0;
    DPQ_TRY(dpq_alloc_array((int64_t)plan->n_work, sizeof(dpq_ct_module), &memory));
    dpq_ct_module *modules = memory;
    for (size_t i = 0; i < plan->n_work; i++) {
        const dpq_work *w = &plan->work[i];
        if (w->quantized) {
            modules[n++] = (dpq_ct_module){.module = w->module, .scheme = w->scheme, .with_g_idx = w->with_g_idx};
        }
    }
    bool static_order = (plan->stats & DPQ_STAT_XTX) != 0 && plan->settings->algo.gptq.order == DPQ_ORDER_STATIC;
    dpq_status st = dpq_ct_config_text(modules, n, &plan->ignored, static_order, out);
    dpq_free(modules);
    return st;
}

dpq_status dpq_output_write_config(const dpq_plan *plan, const char *partial)
{
    char *from = NULL, *to = NULL, *source = NULL, *block = NULL, *text = NULL;
    size_t size;
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_path_join(plan->folder->dir, CONFIG_FILE, &from), done);
    DPQ_TRY_GOTO(st, dpq_path_join(partial, CONFIG_FILE, &to), done);
    DPQ_TRY_GOTO(st, dpq_file_read_all(from, MAX_CONFIG_BYTES, &source, &size), done);
    DPQ_TRY_GOTO(st, quantization_block(plan, &block), done);
    DPQ_TRY_GOTO(st, dpq_json_append_member(source, "quantization_config", block, &text), done);
    st = dpq_file_write_text(to, text, strlen(text));
done:
    dpq_free(from);
    dpq_free(to);
    dpq_free(source);
    dpq_free(block);
    dpq_free(text);
    return st;
}
