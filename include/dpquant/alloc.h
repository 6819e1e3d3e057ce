/* SPDX-License-Identifier: Apache-2.0 */
/* Checked size arithmetic, zeroed and aligned host memory, and a stack-like workspace. */
#ifndef DPQUANT_ALLOC_H
#define DPQUANT_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#include "dpquant/status.h"

#define DPQ_ALIGNMENT_BYTES 64

/* *out = a * b, a + b.  Errors: DPQ_E_MEMORY on overflow. */
DPQ_MUST_USE dpq_status dpq_mul_size(size_t a, size_t b, size_t *out);
DPQ_MUST_USE dpq_status dpq_add_size(size_t a, size_t b, size_t *out);

/* Zeroed memory, 64-byte aligned; 0 bytes gives a valid pointer. Free with dpq_free (accepts NULL).
 * Every allocation can be made to fail on purpose: environment DPQ_FAIL_AT=n lets the n-th one fail (test builds,
 * -DDPQ_FAULT_INJECTION). Errors: DPQ_E_MEMORY, with the bytes asked for. */
DPQ_MUST_USE dpq_status dpq_alloc(size_t bytes, void **out);
/* As dpq_alloc for COUNT elements of ELEM_BYTES, with checked product. COUNT < 0 is DPQ_E_MEMORY. */
DPQ_MUST_USE dpq_status dpq_alloc_array(int64_t count, size_t elem_bytes, void **out);
void dpq_free(void *ptr);

/* Peak resident memory of this process and memory available on this host (cgroup limit respected), in bytes. */
size_t dpq_memory_peak_bytes(void);
size_t dpq_memory_available_bytes(void);
/* Give freed memory that the heap still holds back to the system; between phases. */
void dpq_memory_trim(void);

/* Block-lifetime temporary memory: grows in chunks, freed by returning to a mark. Not thread safe: one a thread. */
typedef struct dpq_workspace dpq_workspace;
typedef struct {
    size_t chunk;
    size_t used;
} dpq_workspace_mark;

DPQ_MUST_USE dpq_status dpq_workspace_create(dpq_workspace **out);
void dpq_workspace_destroy(dpq_workspace **ws);
/* Not zeroed, 64-byte aligned, valid until release of an earlier mark. Errors: DPQ_E_MEMORY. */
DPQ_MUST_USE dpq_status dpq_workspace_alloc(dpq_workspace *ws, int64_t count, size_t elem_bytes, void **out);
dpq_workspace_mark dpq_workspace_get_mark(const dpq_workspace *ws);
void dpq_workspace_release(dpq_workspace *ws, dpq_workspace_mark mark);

#endif
