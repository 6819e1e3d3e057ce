/* SPDX-License-Identifier: Apache-2.0 */
/* Dense bit packing and the compressed-tensors pack-quantized layout (docs/FORMATS.md). */
#ifndef DPQUANT_PACK_H
#define DPQUANT_PACK_H

#include <stdint.h>

#include "dpquant/safetensors.h"
#include "dpquant/scheme.h"
#include "dpquant/status.h"
#include "dpquant/str.h"

/* Dense stream, least significant bit first: code i of a line occupies bits [i*b, (i+1)*b) of little-endian 32-bit
 * words; the last word is zero-padded. words: ceil(n*b/32). */
int64_t dpq_bits_words(int64_t n, int bits);
void dpq_bits_pack(const uint8_t *codes, int64_t n, int bits, uint32_t *words);
void dpq_bits_unpack(const uint32_t *words, int64_t n, int bits, uint8_t *codes);

/* Tensors of one module in the pack-quantized layout: weight_packed I32 (N, words(K)), weight_scale (N,G) scale_dtype,
 * weight_shape I64 (2), weight_zero_point I32 (words(N), G) when asymmetric, weight_g_idx I32 (K) when asked. NAMES
 * hold "<module>.weight_packed" .... */
#define DPQ_CT_MAX_TENSORS 5
typedef struct {
    int count;
    char names[DPQ_CT_MAX_TENSORS][192];
    dpq_st_decl decls[DPQ_CT_MAX_TENSORS]; /* decl.name points into names */
} dpq_ct_decls;
void dpq_ct_declare(const char *module, const dpq_scheme *scheme, int64_t n, int64_t k, dpq_dtype scale_dtype,
                    bool with_g_idx, dpq_ct_decls *out);
/* Pack and write all tensors of the module through the writer. */
DPQ_MUST_USE dpq_status dpq_ct_write(dpq_st_writer *writer, const char *module, const dpq_qweight *q);
/* Read a module back from a store. Errors: DPQ_E_INPUT naming tensor, expected, found. */
DPQ_MUST_USE dpq_status dpq_ct_read(const dpq_st_store *store, const char *module, const dpq_scheme *scheme,
                                    bool with_g_idx, dpq_qweight *out);

/* quantization_config of config.json. */
typedef struct {
    const char *module;
    dpq_scheme scheme;
    bool with_g_idx;
} dpq_ct_module;
/* Text of the JSON object: one group with target "Linear" when all modules share one scheme, else explicit module names
 * a group; IGNORE lists every linear that stays dense (lm_head included). Heap text. Format version written: 0.18.0. */
DPQ_MUST_USE dpq_status dpq_ct_config_text(const dpq_ct_module *modules, size_t n, const dpq_str_list *ignore,
                                           bool actorder_static, char **out);
/* The scheme of MODULE in a parsed quantization_config; *found false when ignored or untargeted. Understands what
 * dpquant and llm-compressor write: explicit names, "Linear", re: patterns (PCRE2, matched from the start). Errors:
 * DPQ_E_UNSUPPORTED for other methods, formats, strategies, activation quantization. */
typedef struct dpq_json dpq_json;
DPQ_MUST_USE dpq_status dpq_ct_config_lookup(const dpq_json *quantization_config, const char *file, const char *module,
                                             dpq_scheme *scheme, bool *with_g_idx, bool *found);

#endif
