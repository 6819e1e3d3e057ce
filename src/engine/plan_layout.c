/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of the output: quantized linears in their packed form, everything else as in the source, blocks in order.
 */
#include <stdlib.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "plan_priv.h"

int64_t dpq_plan_replaces(const dpq_plan *plan, const char *tensor)
{
    static const char suffix[] = ".weight";
    size_t length = strlen(tensor);
    if (length < sizeof suffix || !dpq_str_ends_with(tensor, suffix)) {
        return -1;
    }
    length -= sizeof suffix - 1;
    for (size_t i = 0; i < plan->n_work; i++) {
        const dpq_work *w = &plan->work[i];
        if (w->quantized && strlen(w->module) == length && memcmp(w->module, tensor, length) == 0) {
            return (int64_t)i;
        }
    }
    return -1;
}

/* Layer number in "...layers.N....", or -1. Orders the output: what belongs to a block lies together. */
static int64_t layer_of(const char *tensor)
{
    const char *found = strstr(tensor, "layers.");
    if (found == NULL || found[7] < '0' || found[7] > '9') {
        return -1;
    }
    return strtoll(found + 7, NULL, 10);
}

typedef struct {
    const dpq_st_entry *entry;
    int64_t layer, position;
} source_tensor;

static int by_layer(const void *a, const void *b)
{
    const source_tensor *x = a, *y = b;
    if (x->layer != y->layer) {
        return x->layer < y->layer ? -1 : 1;
    }
    return x->position < y->position ? -1 : x->position > y->position;
}

static void declare_copy(const dpq_st_entry *entry, dpq_st_decl *decl)
{
    *decl = (dpq_st_decl){.name = entry->name, .dtype = entry->dtype, .rank = entry->rank};
    memcpy(decl->dim, entry->dim, sizeof decl->dim);
}

static dpq_status fill_decls(dpq_plan *plan, const source_tensor *order, size_t n)
{
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t item = dpq_plan_replaces(plan, order[i].entry->name);
        if (item < 0) {
            declare_copy(order[i].entry, &plan->decls[used++]);
            continue;
        }
        const dpq_work *w = &plan->work[item];
        dpq_ct_declare(w->module, &w->scheme, w->n, w->k, w->dtype, w->with_g_idx, &plan->ct[item]);
        for (int t = 0; t < plan->ct[item].count; t++) {
            plan->decls[used++] = plan->ct[item].decls[t];
        }
    }
    plan->n_decls = used;
    return dpq_st_layout_bytes(plan->decls, plan->n_decls, (uint64_t)plan->settings->run.export.shard_size,
                               &plan->output_bytes, &plan->shards);
}

dpq_status dpq_plan_lay_out(dpq_plan *plan)
{
    const dpq_st_store *store = plan->folder->store;
    size_t n = dpq_st_count(store);
    void *ct, *decls, *order;
    DPQ_TRY(dpq_alloc_array((int64_t)plan->n_work, sizeof(dpq_ct_decls), &ct));
    plan->ct = ct;
    DPQ_TRY(dpq_alloc_array((int64_t)n * DPQ_CT_MAX_TENSORS, sizeof(dpq_st_decl), &decls));
    plan->decls = decls;
    DPQ_TRY(dpq_alloc_array((int64_t)n, sizeof(source_tensor), &order));
    for (size_t i = 0; i < n; i++) {
        const dpq_st_entry *entry = dpq_st_at(store, i);
        ((source_tensor *)order)[i] =
            (source_tensor){.entry = entry, .layer = layer_of(entry->name), .position = (int64_t)i};
    }
    qsort(order, n, sizeof(source_tensor), by_layer);
    dpq_status st = fill_decls(plan, order, n);
    dpq_free(order);
    return st;
}
