/* SPDX-License-Identifier: Apache-2.0 */
/* Checked size arithmetic and zeroed, aligned host memory, with optional injected failures. */
#include "dpquant/alloc.h"

#include <stdlib.h>
#include <string.h>

#ifdef DPQ_FAULT_INJECTION
#include <stdatomic.h>

#include "dpquant/str.h"

/* True for the n-th allocation of the process when the environment says DPQ_FAIL_AT=n. */
static bool must_fail(void)
{
    static atomic_llong n_allocations;
    long long current = atomic_fetch_add(&n_allocations, 1) + 1;
    const char *text = getenv("DPQ_FAIL_AT");
    int64_t fail_at = 0;
    return text && dpq_parse_int64(text, &fail_at) && fail_at == current;
}
#else
static bool must_fail(void)
{
    return false;
}
#endif

dpq_status dpq_mul_size(size_t a, size_t b, size_t *out)
{
    *out = 0;
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) {
        return DPQ_RAISE(DPQ_E_MEMORY, "size %zu x %zu does not fit", a, b);
    }
    *out = product;
    return DPQ_OK;
}

dpq_status dpq_add_size(size_t a, size_t b, size_t *out)
{
    *out = 0;
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) {
        return DPQ_RAISE(DPQ_E_MEMORY, "size %zu + %zu does not fit", a, b);
    }
    *out = sum;
    return DPQ_OK;
}

dpq_status dpq_alloc(size_t bytes, void **out)
{
    *out = NULL;
    void *memory = NULL;
    if (must_fail()) {
        return DPQ_RAISE(DPQ_E_MEMORY, "no memory for %zu bytes (injected failure)", bytes);
    }
    /* Sizes beyond PTRDIFF_MAX cannot be indexed, and some allocators misbehave near SIZE_MAX. */
    if (bytes > (size_t)PTRDIFF_MAX || posix_memalign(&memory, DPQ_ALIGNMENT_BYTES, bytes ? bytes : 1) != 0) {
        return DPQ_RAISE(DPQ_E_MEMORY, "no memory for %zu bytes", bytes);
    }
    memset(memory, 0, bytes ? bytes : 1);
    *out = memory;
    return DPQ_OK;
}

dpq_status dpq_alloc_array(int64_t count, size_t elem_bytes, void **out)
{
    *out = NULL;
    if (count < 0) {
        return DPQ_RAISE(DPQ_E_MEMORY, "negative element count %lld", (long long)count);
    }
    size_t bytes = 0;
    DPQ_TRY(dpq_mul_size((size_t)count, elem_bytes, &bytes));
    return dpq_alloc(bytes, out);
}

void dpq_free(void *ptr)
{
    free(ptr);
}
