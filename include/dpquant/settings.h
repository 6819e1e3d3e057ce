/* SPDX-License-Identifier: Apache-2.0 */
/* All settings of the main job: the option tables, the struct they fill, and per-module overrides. */
#ifndef DPQUANT_SETTINGS_H
#define DPQUANT_SETTINGS_H

#include <stdint.h>

#include "dpquant/algo.h"
#include "dpquant/backend.h"
#include "dpquant/block_algo.h"
#include "dpquant/calibset.h"
#include "dpquant/option.h"
#include "dpquant/scheme.h"
#include "dpquant/status.h"

typedef enum { DPQ_PRECISION_BF16, DPQ_PRECISION_FP32 } dpq_precision;

typedef struct {
    char *model, *output;
    bool overwrite;
    dpq_calibset_options calibration;
    struct {
        char *scheme; /* named scheme or NULL */
        int64_t bits, group_size;
        bool symmetric, signed_scale;
        int algorithm; /* index into the choices: dpq_settings_algorithm */
        dpq_str_list ignore;
        double max_fallbacks; /* share of linears */
    } quantize;
    struct {
        int format;
        int64_t shard_size;
    } export;
    struct {
        dpq_calibset_options data;
        int precision;
    } eval;
    struct {
        int device, precision, compute, log_level, gradient_transport;
        int64_t threads;
        bool low_memory;
        char *scratch, *ranks;
    } run;
} dpq_run_options;

/* One entry of quantize.overrides: fields that were given replace the scheme of every linear that MATCH matches. */
typedef struct {
    char *match; /* exact module name, or "re:..." */
    bool has_bits, has_group_size, has_symmetric, ignore;
    int64_t bits, group_size;
    bool symmetric;
} dpq_override;

#define DPQ_SETTINGS_SETS 4 /* general, rtn, gptq, signround */

/* How gradients travel between ranks: 32-bit integers, or two 16-bit fields in one. */
typedef enum { DPQ_TRANSPORT_INT32, DPQ_TRANSPORT_INT16 } dpq_transport;

typedef struct {
    dpq_run_options run;
    dpq_algo_options algo;
    dpq_tune_options tune;
    dpq_override *overrides;
    size_t n_overrides;
    dpq_option_set sets[DPQ_SETTINGS_SETS];
    size_t n_sets;
} dpq_settings;

/* Settings with every default filled in. */
DPQ_MUST_USE dpq_status dpq_settings_create(dpq_settings **out);
void dpq_settings_destroy(dpq_settings **settings);
/* Name of quantize.algorithm. */
const char *dpq_settings_algorithm(const dpq_settings *settings);
/* Append a zeroed override; borrowed until the next call. */
DPQ_MUST_USE dpq_status dpq_settings_add_override(dpq_settings *settings, dpq_override **out);
/* After KEY was set: a scheme named later than bits, group size or symmetry replaces them. */
void dpq_settings_note_set(dpq_settings *settings, const char *key);
/* The scheme that all linears have before overrides: the named one, then what was set by hand. Errors: DPQ_E_CONFIG for
 * an unknown name. */
DPQ_MUST_USE dpq_status dpq_settings_base_scheme(const dpq_settings *settings, dpq_scheme *out);
/* When all is read: bits, group size and symmetry become what a named scheme stands for, so that the effective settings
 * are printed and stored. */
DPQ_MUST_USE dpq_status dpq_settings_resolve_scheme(dpq_settings *settings);
/* Overrides as JSON text of an array, for the record; heap. */
DPQ_MUST_USE dpq_status dpq_settings_overrides_text(const dpq_settings *settings, char **out);

#endif
