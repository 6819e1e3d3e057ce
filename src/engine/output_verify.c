/* SPDX-License-Identifier: Apache-2.0 */
/* The last check before a folder gets its name: it is opened as any reader would, and compared with the source and the
 * plan. */
#include <string.h>

#include "dpquant/alloc.h"
#include "plan_priv.h"
#include "output_priv.h"

/* Bytes of a copied tensor equal those of the source. */
static dpq_status compare_copy(const dpq_st_store *source, const dpq_st_entry *a, const dpq_st_store *written)
{
    const dpq_st_entry *b = dpq_st_find(written, a->name);
    if (b == NULL || b->bytes != a->bytes || b->dtype != a->dtype) {
        return DPQ_RAISE(DPQ_E_BUG, "output: tensor %s of the source is missing or has another type or size", a->name);
    }
    void *x = NULL, *y = NULL;
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_alloc(a->bytes, &x), done);
    DPQ_TRY_GOTO(st, dpq_alloc(a->bytes, &y), done);
    DPQ_TRY_GOTO(st, dpq_st_read(source, a, x), done);
    DPQ_TRY_GOTO(st, dpq_st_read(written, b, y), done);
    if (memcmp(x, y, a->bytes) != 0) {
        st = DPQ_RAISE(DPQ_E_DISK, "output: tensor %s reads back with other bytes than the source's", a->name);
    }
done:
    dpq_free(x);
    dpq_free(y);
    return st;
}

static dpq_status check_quantized(const dpq_work *w, const dpq_model_folder *written)
{
    dpq_qweight q = {0};
    dpq_scheme scheme;
    bool with_g_idx, found;
    dpq_status st = DPQ_OK;
    const dpq_json *block = dpq_json_member(written->json, "quantization_config");
    DPQ_TRY(dpq_ct_config_lookup(block, written->json_file, w->module, &scheme, &with_g_idx, &found));
    scheme.signed_scale = w->scheme.signed_scale; /* not in the file: a negative scale is legal there */
    if (!found || !dpq_scheme_equal(&scheme, &w->scheme) || with_g_idx != w->with_g_idx) {
        return DPQ_RAISE(DPQ_E_BUG, "output: config.json gives %s another scheme than the plan", w->module);
    }
    DPQ_TRY_GOTO(st, dpq_ct_read(written->store, w->module, &scheme, with_g_idx, &q), done);
    st = dpq_qweight_check(&q, w->module);
done:
    dpq_qweight_fini(&q);
    return st;
}

dpq_status dpq_output_verify(const dpq_plan *plan, const char *partial)
{
    dpq_model_folder written = {0};
    const dpq_st_store *source = plan->folder->store;
    dpq_status st = DPQ_OK;
    DPQ_TRY_GOTO(st, dpq_model_folder_open(partial, true, &written), done);
    if (dpq_st_count(written.store) != plan->n_decls) {
        st = DPQ_RAISE(DPQ_E_BUG, "output: %zu tensors, the plan has %zu", dpq_st_count(written.store), plan->n_decls);
        goto done;
    }
    for (size_t i = 0; i < dpq_st_count(source); i++) {
        const dpq_st_entry *entry = dpq_st_at(source, i);
        int64_t item = dpq_plan_replaces(plan, entry->name);
        DPQ_TRY_GOTO(
            st, item < 0 ? compare_copy(source, entry, written.store) : check_quantized(&plan->work[item], &written),
            done);
    }
done:
    dpq_model_folder_close(&written);
    return st;
}
