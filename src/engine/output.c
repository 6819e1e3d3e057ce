/* SPDX-License-Identifier: Apache-2.0 */
/* The output folder while it is written: quantized linears and copied tensors go to their place in the shards block by
 * block. */
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/file.h"
#include "engine_priv.h"
#include "output_priv.h"
#include "plan_priv.h"

struct dpq_output {
    const dpq_plan *plan;
    char *final_path, *partial;
    dpq_st_writer *writer;
    bool *copied; /* for each tensor of the source */
};

dpq_status dpq_output_create(const dpq_plan *plan, dpq_output **out)
{
    *out = NULL;
    const dpq_run_options *o = &plan->settings->run;
    void *memory;
    dpq_status st = DPQ_OK;
    DPQ_TRY(dpq_alloc(sizeof(dpq_output), &memory));
    dpq_output *output = memory;
    output->plan = plan;
    DPQ_TRY_GOTO(st, dpq_alloc_array((int64_t)dpq_st_count(plan->folder->store), sizeof(bool), &memory), fail);
    output->copied = memory;
    DPQ_TRY_GOTO(st, dpq_dir_create_parents(o->output), fail);
    DPQ_TRY_GOTO(st, dpq_output_check_place(o->output, plan->folder->dir, o->overwrite, &output->final_path), fail);
    DPQ_TRY_GOTO(st, dpq_output_open_place(output->final_path, plan->output_bytes, &output->partial), fail);
    DPQ_TRY_GOTO(st,
                 dpq_st_writer_create(output->partial, plan->decls, plan->n_decls, (uint64_t)o->export.shard_size,
                                      &output->writer),
                 fail);
    *out = output;
    return DPQ_OK;
fail:
    dpq_output_abandon(&output);
    return st;
}

/* Copy the tensors of the source whose names begin with PREFIX and that stay as they are. */
static dpq_status copy_tensors(dpq_output *o, const char *prefix)
{
    const dpq_st_store *source = o->plan->folder->store;
    for (size_t i = 0; i < dpq_st_count(source); i++) {
        const dpq_st_entry *entry = dpq_st_at(source, i);
        if (o->copied[i] || !dpq_str_starts_with(entry->name, prefix) || dpq_plan_replaces(o->plan, entry->name) >= 0) {
            continue;
        }
        void *bytes = NULL;
        DPQ_TRY(dpq_alloc(entry->bytes, &bytes));
        dpq_status st = dpq_st_read(source, entry, bytes);
        if (st == DPQ_OK) {
            st = dpq_st_writer_put(o->writer, entry->name, bytes, entry->bytes);
        }
        dpq_free(bytes);
        DPQ_TRY(st);
        o->copied[i] = true;
    }
    return DPQ_OK;
}

dpq_status dpq_output_put_block(dpq_output *o, int64_t layer, const dpq_qweight *quantized)
{
    char prefix[DPQ_NAME_BYTES];
    for (int role = 0; role < DPQ_LINEAR_COUNT; role++) {
        if (quantized[role].codes.data != NULL) {
            DPQ_TRY(dpq_ct_write(o->writer, dpq_plan_work(o->plan, layer, (dpq_linear_role)role)->module,
                                 &quantized[role]));
        }
    }
    snprintf(prefix, sizeof prefix, "model.layers.%lld.", (long long)layer);
    return copy_tensors(o, prefix);
}

dpq_status dpq_output_complete(dpq_output *o)
{
    DPQ_TRY(copy_tensors(o, ""));
    DPQ_TRY(dpq_st_writer_finish(&o->writer));
    DPQ_TRY(dpq_output_copy_side_files(o->plan->folder->dir, o->partial));
    DPQ_TRY(dpq_output_write_config(o->plan, o->partial));
    return dpq_output_verify(o->plan, o->partial);
}

const char *dpq_output_dir(const dpq_output *o)
{
    return o->partial;
}

dpq_status dpq_output_put_text(dpq_output *o, const char *name, const char *text, size_t size)
{
    char *path;
    DPQ_TRY(dpq_path_join(o->partial, name, &path));
    dpq_status st = dpq_file_write_text(path, text, size);
    dpq_free(path);
    return st;
}

static void release(dpq_output **o)
{
    dpq_st_writer_abandon(&(*o)->writer);
    dpq_free((*o)->final_path);
    dpq_free((*o)->partial);
    dpq_free((*o)->copied);
    dpq_free(*o);
    *o = NULL;
}

dpq_status dpq_output_commit(dpq_output **o)
{
    dpq_status st = dpq_output_publish((*o)->partial, (*o)->final_path);
    release(o);
    return st;
}

void dpq_output_abandon(dpq_output **o)
{
    if (*o == NULL) {
        return;
    }
    char *partial = (*o)->partial;
    (*o)->partial = NULL;
    release(o);
    if (partial != NULL) {
        dpq_error_record cause = *dpq_error_last();
        DPQ_IGNORE(dpq_dir_remove(partial) != DPQ_OK, "the run has failed already; its cause is what matters");
        dpq_error_set(&cause);
    }
    dpq_free(partial);
}
