/* SPDX-License-Identifier: Apache-2.0 */
/* oneDNN matmul primitives, one cache of them a thread. The process keeps OpenMP's default at one thread, so a
 * primitive is created and run single-threaded: its K is never split, and the bits do not depend on the number of
 * threads. */
#include "cpu_gemm.h"

#include <dnnl.h>
#include <stdio.h>
#include <string.h>

#include "dpquant/alloc.h"

#define CACHE_SLOTS 512 /* power of two */
#define CACHE_LIMIT 384 /* emptied beyond this: ragged samples can make many shapes */

typedef struct {
    bool used;
    dpq_gemm_shape shape;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, scratch;
    size_t scratch_bytes;
} cache_entry;

struct dpq_gemm_context {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    cache_entry slots[CACHE_SLOTS];
    int filled;
    void *scratch;
    size_t scratch_bytes;
};

static const char *dnnl_words(dnnl_status_t status)
{
    static const char *const words[] = {"success",       "out of memory", "invalid arguments", "unimplemented",
                                        "iterator ends", "runtime error", "not required"};
    return (size_t)status < sizeof words / sizeof words[0] ? words[status] : "unknown status";
}

#define DPQ_DNNL(st, call, label)                                                                                      \
    do {                                                                                                               \
        dnnl_status_t dnnl_status_ = (call);                                                                           \
        if (dnnl_status_ != dnnl_success) {                                                                            \
            (st) = DPQ_RAISE(dnnl_status_ == dnnl_out_of_memory ? DPQ_E_MEMORY : DPQ_E_DEVICE, "oneDNN: %s: %s",       \
                             #call, dnnl_words(dnnl_status_));                                                         \
            goto label;                                                                                                \
        }                                                                                                              \
    } while (0)

dpq_status dpq_gemm_context_create(dpq_gemm_context **out)
{
    *out = NULL;
    void *memory;
    DPQ_TRY(dpq_alloc(sizeof(dpq_gemm_context), &memory));
    dpq_gemm_context *context = memory;
    dpq_status st = DPQ_OK;
    DPQ_DNNL(st, dnnl_engine_create(&context->engine, dnnl_cpu, 0), fail);
    DPQ_DNNL(st, dnnl_stream_create(&context->stream, context->engine, dnnl_stream_default_flags), fail);
    *out = context;
    return DPQ_OK;
fail:
    dpq_gemm_context_destroy(&context);
    return st;
}

static void entry_fini(cache_entry *entry)
{
    dnnl_memory_destroy(entry->a);
    dnnl_memory_destroy(entry->b);
    dnnl_memory_destroy(entry->c);
    dnnl_memory_destroy(entry->scratch);
    dnnl_primitive_destroy(entry->primitive);
    memset(entry, 0, sizeof *entry);
}

static void cache_clear(dpq_gemm_context *context)
{
    for (int i = 0; i < CACHE_SLOTS; i++) {
        if (context->slots[i].used) {
            entry_fini(&context->slots[i]);
        }
    }
    context->filled = 0;
}

void dpq_gemm_context_destroy(dpq_gemm_context **context)
{
    if (*context == NULL) {
        return;
    }
    cache_clear(*context);
    dnnl_stream_destroy((*context)->stream);
    dnnl_engine_destroy((*context)->engine);
    dpq_free((*context)->scratch);
    dpq_free(*context);
    *context = NULL;
}

static uint64_t shape_hash(const dpq_gemm_shape *s)
{
    const int64_t parts[] = {s->m, s->n, s->k, s->lda, s->ldb, s->ldc, s->a_transposed, s->b_transposed, s->dtype};
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        hash = (hash ^ (uint64_t)parts[i]) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return hash;
}

static bool shape_equal(const dpq_gemm_shape *x, const dpq_gemm_shape *y)
{
    return x->m == y->m && x->n == y->n && x->k == y->k && x->lda == y->lda && x->ldb == y->ldb && x->ldc == y->ldc &&
           x->a_transposed == y->a_transposed && x->b_transposed == y->b_transposed && x->dtype == y->dtype;
}

static void strides(bool transposed, int64_t ld, dnnl_dims_t out)
{
    out[0] = transposed ? 1 : ld;
    out[1] = transposed ? ld : 1;
}

/* Create primitive and memory handles of one shape. */
static dpq_status entry_init(dpq_gemm_context *context, const dpq_gemm_shape *s, cache_entry *entry)
{
    dpq_status st = DPQ_OK;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_memory_desc_t a, b, c;
    dnnl_matmul_desc_t desc;
    dnnl_data_type_t type = s->dtype == DPQ_DTYPE_BF16 ? dnnl_bf16 : dnnl_f32;
    dnnl_dims_t a_dims = {s->m, s->k}, b_dims = {s->k, s->n}, c_dims = {s->m, s->n};
    dnnl_dims_t a_strides, b_strides, c_strides;
    strides(s->a_transposed, s->lda, a_strides);
    strides(s->b_transposed, s->ldb, b_strides);
    strides(false, s->ldc, c_strides);
    DPQ_DNNL(st, dnnl_memory_desc_init_by_strides(&a, 2, a_dims, type, a_strides), done);
    DPQ_DNNL(st, dnnl_memory_desc_init_by_strides(&b, 2, b_dims, type, b_strides), done);
    DPQ_DNNL(st, dnnl_memory_desc_init_by_strides(&c, 2, c_dims, dnnl_f32, c_strides), done);
    DPQ_DNNL(st, dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c), done);
    DPQ_DNNL(st, dnnl_primitive_attr_create(&attr), done);
    /* scratch memory is ours: the library's own is bound to the thread that created the primitive */
    DPQ_DNNL(st, dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), done);
    DPQ_DNNL(st, dnnl_primitive_desc_create(&pd, &desc, attr, context->engine, NULL), done);
    DPQ_DNNL(st, dnnl_primitive_create(&entry->primitive, pd), done);
    DPQ_DNNL(st, dnnl_memory_create(&entry->a, &a, context->engine, DNNL_MEMORY_NONE), done);
    DPQ_DNNL(st, dnnl_memory_create(&entry->b, &b, context->engine, DNNL_MEMORY_NONE), done);
    DPQ_DNNL(st, dnnl_memory_create(&entry->c, &c, context->engine, DNNL_MEMORY_NONE), done);
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    entry->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    DPQ_DNNL(st, dnnl_memory_create(&entry->scratch, scratch, context->engine, DNNL_MEMORY_NONE), done);
    entry->shape = *s;
    entry->used = true;
done:
    dnnl_primitive_desc_destroy(pd);
    dnnl_primitive_attr_destroy(attr);
    if (st != DPQ_OK) {
        entry_fini(entry);
    }
    return st;
}

static dpq_status find_entry(dpq_gemm_context *context, const dpq_gemm_shape *shape, cache_entry **out)
{
    if (context->filled >= CACHE_LIMIT) {
        cache_clear(context);
    }
    uint64_t i = shape_hash(shape) & (CACHE_SLOTS - 1);
    while (context->slots[i].used && !shape_equal(&context->slots[i].shape, shape)) {
        i = (i + 1) & (CACHE_SLOTS - 1);
    }
    cache_entry *entry = &context->slots[i];
    if (!entry->used) {
        DPQ_TRY(entry_init(context, shape, entry));
        context->filled++;
        if (entry->scratch_bytes > context->scratch_bytes) {
            dpq_free(context->scratch);
            context->scratch = NULL;
            context->scratch_bytes = 0;
            DPQ_TRY(dpq_alloc(entry->scratch_bytes, &context->scratch));
            context->scratch_bytes = entry->scratch_bytes;
        }
    }
    *out = entry;
    return DPQ_OK;
}

dpq_status dpq_gemm_run(dpq_gemm_context *context, const dpq_gemm_shape *shape, const void *a, const void *b, float *c)
{
    cache_entry *entry;
    dpq_status st = DPQ_OK;
    DPQ_TRY(find_entry(context, shape, &entry));
    /* oneDNN takes inputs through non-const pointers and does not write them */
    DPQ_DNNL(st, dnnl_memory_set_data_handle(entry->a, (void *)(uintptr_t)a), done);
    DPQ_DNNL(st, dnnl_memory_set_data_handle(entry->b, (void *)(uintptr_t)b), done);
    DPQ_DNNL(st, dnnl_memory_set_data_handle(entry->c, c), done);
    DPQ_DNNL(st, dnnl_memory_set_data_handle(entry->scratch, context->scratch), done);
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, entry->a},
                                    {DNNL_ARG_WEIGHTS, entry->b},
                                    {DNNL_ARG_DST, entry->c},
                                    {DNNL_ARG_SCRATCHPAD, entry->scratch}};
    DPQ_DNNL(st, dnnl_primitive_execute(entry->primitive, context->stream, 4, args), done);
done:
    return st;
}

dpq_status dpq_sgemm(bool a_transposed, bool b_transposed, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                     int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc)
{
    dpq_status st = DPQ_OK;
    DPQ_DNNL(
        st,
        dnnl_sgemm(a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc),
        done);
done:
    return st;
}

const char *dpq_gemm_library(void)
{
    static char text[64];
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, sizeof text, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return text;
}

static const struct {
    dnnl_cpu_isa_t isa;
    const char *name;
    bool amx;
    bool bf16;
} isa_table[] = {
    {dnnl_cpu_isa_sse41, "sse41", false, false},
    {dnnl_cpu_isa_avx, "avx", false, false},
    {dnnl_cpu_isa_avx2, "avx2", false, false},
    {dnnl_cpu_isa_avx2_vnni, "avx2_vnni", false, false},
    {dnnl_cpu_isa_avx512_core, "avx512_core", false, false},
    {dnnl_cpu_isa_avx512_core_vnni, "avx512_core_vnni", false, false},
    {dnnl_cpu_isa_avx512_core_bf16, "avx512_core_bf16", false, true},
    {dnnl_cpu_isa_avx512_core_amx, "avx512_core_amx", true, true},
};

static size_t isa_index(void)
{
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    for (size_t i = 0; i < sizeof isa_table / sizeof isa_table[0]; i++) {
        if (isa_table[i].isa == isa) {
            return i;
        }
    }
    return 0;
}

const char *dpq_gemm_isa(void)
{
    return isa_table[isa_index()].name;
}

bool dpq_gemm_prefers_bf16(void)
{
    size_t i = isa_index();
#if defined(__x86_64__)
    __builtin_cpu_init();
    return isa_table[i].amx || (isa_table[i].bf16 && __builtin_cpu_is("amd"));
#else
    return isa_table[i].amx;
#endif
}
