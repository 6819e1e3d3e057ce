/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of one module in the compressed-tensors pack-quantized layout: names and shapes, packing and writing,
 * reading back. Codes and zero points are stored as q + 2^(b-1); codes are packed along columns, zero points along
 * rows. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "dpquant/alloc.h"
#include "dpquant/pack.h"

static void add_decl(dpq_ct_decls *out, const char *module, const char *suffix, dpq_dtype dtype, int rank, int64_t d0,
                     int64_t d1)
{
    DPQ_ASSERT(out->count < DPQ_CT_MAX_TENSORS);
    char *name = out->names[out->count];
    int length = snprintf(name, sizeof out->names[0], "%s.%s", module, suffix);
    DPQ_ASSERT(length > 0 && (size_t)length < sizeof out->names[0]);
    out->decls[out->count] = (dpq_st_decl){.name = name, .dtype = dtype, .rank = rank, .dim = {d0, d1}};
    out->count++;
}

void dpq_ct_declare(const char *module, const dpq_scheme *scheme, int64_t n, int64_t k, dpq_dtype scale_dtype,
                    bool with_g_idx, dpq_ct_decls *out)
{
    int64_t groups = dpq_scheme_groups(scheme, k);
    memset(out, 0, sizeof *out);
    add_decl(out, module, "weight_packed", DPQ_DTYPE_I32, 2, n, dpq_bits_words(k, scheme->bits));
    add_decl(out, module, "weight_scale", scale_dtype, 2, n, groups);
    add_decl(out, module, "weight_shape", DPQ_DTYPE_I64, 1, 2, 0);
    if (!scheme->symmetric) {
        add_decl(out, module, "weight_zero_point", DPQ_DTYPE_I32, 2, dpq_bits_words(n, scheme->bits), groups);
    }
    if (with_g_idx) {
        add_decl(out, module, "weight_g_idx", DPQ_DTYPE_I32, 1, k, 0);
    }
}

/* ---- codes and zero points ---- */

/* Signed codes of a line, STRIDE apart, from or to their stored form. */
static void bias_line(const int8_t *codes, int64_t stride, int64_t n, int bits, uint8_t *line)
{
    int bias = 1 << (bits - 1);
    for (int64_t i = 0; i < n; i++) {
        line[i] = (uint8_t)(codes[i * stride] + bias);
    }
}

static void unbias_line(const uint8_t *line, int64_t stride, int64_t n, int bits, int8_t *codes)
{
    int bias = 1 << (bits - 1);
    for (int64_t i = 0; i < n; i++) {
        codes[i * stride] = (int8_t)(line[i] - bias);
    }
}

static void pack_codes(const dpq_qweight *q, uint8_t *line, uint32_t *words)
{
    int64_t row_words = dpq_bits_words(q->k, q->scheme.bits);
    for (int64_t i = 0; i < q->n; i++) {
        bias_line((const int8_t *)q->codes.data + i * q->k, 1, q->k, q->scheme.bits, line);
        dpq_bits_pack(line, q->k, q->scheme.bits, words + i * row_words);
    }
}

static void unpack_codes(const uint32_t *words, uint8_t *line, dpq_qweight *q)
{
    int64_t row_words = dpq_bits_words(q->k, q->scheme.bits);
    for (int64_t i = 0; i < q->n; i++) {
        dpq_bits_unpack(words + i * row_words, q->k, q->scheme.bits, line);
        unbias_line(line, 1, q->k, q->scheme.bits, (int8_t *)q->codes.data + i * q->k);
    }
}

/* One line a group: the zero points of all rows. WORDS (words(N), G) row-major; COLUMN: words(N) of scratch. */
static void pack_zeros(const dpq_qweight *q, uint8_t *line, uint32_t *column, uint32_t *words)
{
    int64_t count = dpq_bits_words(q->n, q->scheme.bits);
    for (int64_t g = 0; g < q->groups; g++) {
        bias_line((const int8_t *)q->zero.data + g, q->groups, q->n, q->scheme.bits, line);
        dpq_bits_pack(line, q->n, q->scheme.bits, column);
        for (int64_t w = 0; w < count; w++) {
            words[w * q->groups + g] = column[w];
        }
    }
}

static void unpack_zeros(const uint32_t *words, uint8_t *line, uint32_t *column, dpq_qweight *q)
{
    int64_t count = dpq_bits_words(q->n, q->scheme.bits);
    for (int64_t g = 0; g < q->groups; g++) {
        for (int64_t w = 0; w < count; w++) {
            column[w] = words[w * q->groups + g];
        }
        dpq_bits_unpack(column, q->n, q->scheme.bits, line);
        unbias_line(line, q->groups, q->n, q->scheme.bits, (int8_t *)q->zero.data + g);
    }
}

/* ---- scratch of a module, for writing and reading ---- */

typedef struct {
    uint8_t *line;    /* max(N, K) stored codes */
    uint32_t *words;  /* the packed tensor, or the packed zero points */
    uint32_t *column; /* words(N) */
    void *scale;      /* (N,G) in the stored type */
} ct_scratch;

static dpq_status scratch_init(const dpq_scheme *scheme, int64_t n, int64_t k, dpq_dtype scale_dtype, ct_scratch *s)
{
    int64_t groups = dpq_scheme_groups(scheme, k);
    int64_t column = dpq_bits_words(n, scheme->bits);
    int64_t packed = n * dpq_bits_words(k, scheme->bits);
    int64_t zeros = column * groups;
    void *memory;
    memset(s, 0, sizeof *s);
    DPQ_TRY(dpq_alloc_array(n > k ? n : k, 1, &memory));
    s->line = memory;
    DPQ_TRY(dpq_alloc_array(packed > zeros ? packed : zeros, sizeof(uint32_t), &memory));
    s->words = memory;
    DPQ_TRY(dpq_alloc_array(column, sizeof(uint32_t), &memory));
    s->column = memory;
    return dpq_alloc_array(n * groups, dpq_dtype_bytes(scale_dtype), &s->scale);
}

static void scratch_fini(ct_scratch *s)
{
    dpq_free(s->scale);
    dpq_free(s->column);
    dpq_free(s->words);
    dpq_free(s->line);
}

/* ---- writing ---- */

static size_t decl_bytes(const dpq_st_decl *decl)
{
    int64_t count = 1;
    for (int d = 0; d < decl->rank; d++) {
        count *= decl->dim[d];
    }
    return (size_t)count * dpq_dtype_bytes(decl->dtype);
}

static dpq_status put(dpq_st_writer *writer, const dpq_st_decl *decl, const void *data)
{
    return dpq_st_writer_put(writer, decl->name, data, decl_bytes(decl));
}

dpq_status dpq_ct_write(dpq_st_writer *writer, const char *module, const dpq_qweight *q)
{
    dpq_status st = DPQ_OK;
    ct_scratch s = {0};
    dpq_ct_decls decls;
    bool with_g_idx = q->g_idx.data != NULL;
    int64_t shape[2] = {q->n, q->k};
    const dpq_st_decl *next = decls.decls;
    dpq_ct_declare(module, &q->scheme, q->n, q->k, q->scale_dtype, with_g_idx, &decls);
    DPQ_TRY_GOTO(st, scratch_init(&q->scheme, q->n, q->k, q->scale_dtype, &s), done);
    pack_codes(q, s.line, s.words);
    DPQ_TRY_GOTO(st, put(writer, next++, s.words), done);
    DPQ_TRY_GOTO(st, dpq_convert(q->scale.data, DPQ_DTYPE_F32, s.scale, q->scale_dtype, q->n * q->groups), done);
    DPQ_TRY_GOTO(st, put(writer, next++, s.scale), done);
    DPQ_TRY_GOTO(st, put(writer, next++, shape), done);
    if (!q->scheme.symmetric) {
        pack_zeros(q, s.line, s.column, s.words);
        DPQ_TRY_GOTO(st, put(writer, next++, s.words), done);
    }
    if (with_g_idx) {
        DPQ_TRY_GOTO(st, put(writer, next++, q->g_idx.data), done);
    }
done:
    scratch_fini(&s);
    return st;
}

/* ---- reading ---- */

static void describe_shape(dpq_dtype dtype, int rank, const int64_t *dim, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "%s [", dpq_dtype_name(dtype));
    for (int d = 0; d < rank && used < size; d++) {
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, d > 0 ? ", " : "", dim[d]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
}

static dpq_status find(const dpq_st_store *store, const char *name, const dpq_st_entry **out)
{
    *out = dpq_st_find(store, name);
    if (*out == NULL) {
        return DPQ_RAISE(DPQ_E_INPUT, "tensor \"%s\" is missing", name);
    }
    return DPQ_OK;
}

/* The entry DECL asks for, with its type and shape. */
static dpq_status find_declared(const dpq_st_store *store, const dpq_st_decl *decl, const dpq_st_entry **out)
{
    DPQ_TRY(find(store, decl->name, out));
    const dpq_st_entry *e = *out;
    if (e->dtype != decl->dtype || e->rank != decl->rank ||
        memcmp(e->dim, decl->dim, (size_t)decl->rank * sizeof e->dim[0]) != 0) {
        char expected[256], found[256];
        describe_shape(decl->dtype, decl->rank, decl->dim, expected, sizeof expected);
        describe_shape(e->dtype, e->rank, e->dim, found, sizeof found);
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor \"%s\": expected %s, found %s", dpq_st_shard_name(store, e->shard),
                         decl->name, expected, found);
    }
    return DPQ_OK;
}

static dpq_status read_declared(const dpq_st_store *store, const dpq_st_decl *decl, void *dst)
{
    const dpq_st_entry *entry;
    DPQ_TRY(find_declared(store, decl, &entry));
    return dpq_st_read(store, entry, dst);
}

/* N and K as weight_shape says, in the bounds weight_packed sets, and the type of the scales. */
static dpq_status read_shape(const dpq_st_store *store, const char *module, const dpq_scheme *scheme, int64_t shape[2],
                             dpq_dtype *scale_dtype)
{
    dpq_ct_decls decls; /* for the names; the shapes are not known yet */
    const dpq_st_entry *packed, *scale;
    dpq_ct_declare(module, scheme, 0, 0, DPQ_DTYPE_F32, false, &decls);
    DPQ_TRY(find(store, decls.decls[0].name, &packed));
    DPQ_TRY(find(store, decls.decls[1].name, &scale));
    DPQ_TRY(read_declared(store, &decls.decls[2], shape));
    if (packed->rank != 2 || shape[0] < 1 || shape[1] < 1 || shape[0] != packed->dim[0] || shape[1] > INT64_MAX / 64 ||
        dpq_bits_words(shape[1], scheme->bits) != packed->dim[1]) {
        char found[256];
        describe_shape(packed->dtype, packed->rank, packed->dim, found, sizeof found);
        return DPQ_RAISE(
            DPQ_E_INPUT,
            "%s: tensor \"%s\": found %s, which does not hold the %d-bit codes of weight_shape %" PRId64 " x %" PRId64,
            dpq_st_shard_name(store, packed->shard), decls.decls[0].name, found, scheme->bits, shape[0], shape[1]);
    }
    if (scale->dtype != DPQ_DTYPE_BF16 && scale->dtype != DPQ_DTYPE_F16 && scale->dtype != DPQ_DTYPE_F32) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor \"%s\": expected BF16, F16 or F32, found %s",
                         dpq_st_shard_name(store, scale->shard), decls.decls[1].name, dpq_dtype_name(scale->dtype));
    }
    *scale_dtype = scale->dtype;
    return DPQ_OK;
}

/* A tensor that the scheme leaves out would change what the weights mean. */
static dpq_status refuse_extra(const dpq_st_store *store, const char *module, const char *suffix, const char *why)
{
    char name[sizeof((dpq_ct_decls *)0)->names[0]];
    snprintf(name, sizeof name, "%s.%s", module, suffix);
    const dpq_st_entry *entry = dpq_st_find(store, name);
    if (entry != NULL) {
        return DPQ_RAISE(DPQ_E_INPUT, "%s: tensor \"%s\" is present, but %s", dpq_st_shard_name(store, entry->shard),
                         name, why);
    }
    return DPQ_OK;
}

static dpq_status check_g_idx(const dpq_st_store *store, const dpq_st_decl *decl, const dpq_qweight *q)
{
    const dpq_st_entry *entry = dpq_st_find(store, decl->name);
    const int32_t *g_idx = q->g_idx.data;
    for (int64_t c = 0; c < q->k; c++) {
        if (g_idx[c] < 0 || g_idx[c] >= q->groups) {
            return DPQ_RAISE(DPQ_E_INPUT,
                             "%s: tensor \"%s\": column %" PRId64 " is in group %d; there are %" PRId64 " groups",
                             dpq_st_shard_name(store, entry->shard), decl->name, c, g_idx[c], q->groups);
        }
    }
    return DPQ_OK;
}

dpq_status dpq_ct_read(const dpq_st_store *store, const char *module, const dpq_scheme *scheme, bool with_g_idx,
                       dpq_qweight *out)
{
    dpq_status st = DPQ_OK;
    ct_scratch s = {0};
    dpq_qweight q = {0};
    dpq_ct_decls decls;
    int64_t shape[2] = {0, 0};
    dpq_dtype scale_dtype = DPQ_DTYPE_F32;
    const dpq_st_decl *next = decls.decls;
    memset(out, 0, sizeof *out);
    DPQ_TRY(read_shape(store, module, scheme, shape, &scale_dtype));
    DPQ_TRY(dpq_scheme_check(scheme, module, shape[1]));
    if (scheme->symmetric) {
        DPQ_TRY(refuse_extra(store, module, "weight_zero_point", "the scheme is symmetric"));
    }
    if (!with_g_idx) {
        DPQ_TRY(refuse_extra(store, module, "weight_g_idx", "actorder is not \"group\""));
    }
    dpq_ct_declare(module, scheme, shape[0], shape[1], scale_dtype, with_g_idx, &decls);
    DPQ_TRY_GOTO(st, dpq_qweight_create(scheme, shape[0], shape[1], scale_dtype, with_g_idx, &q), done);
    DPQ_TRY_GOTO(st, scratch_init(scheme, q.n, q.k, scale_dtype, &s), done);
    DPQ_TRY_GOTO(st, read_declared(store, next++, s.words), done);
    unpack_codes(s.words, s.line, &q);
    DPQ_TRY_GOTO(st, read_declared(store, next++, s.scale), done);
    DPQ_TRY_GOTO(st, dpq_convert(s.scale, scale_dtype, q.scale.data, DPQ_DTYPE_F32, q.n * q.groups), done);
    next++; /* weight_shape */
    if (!scheme->symmetric) {
        DPQ_TRY_GOTO(st, read_declared(store, next++, s.words), done);
        unpack_zeros(s.words, s.line, s.column, &q);
    }
    if (with_g_idx) {
        DPQ_TRY_GOTO(st, read_declared(store, next, q.g_idx.data), done);
        DPQ_TRY_GOTO(st, check_g_idx(store, next, &q), done);
    }
    *out = q;
    memset(&q, 0, sizeof q);
done:
    scratch_fini(&s);
    dpq_qweight_fini(&q);
    return st;
}
