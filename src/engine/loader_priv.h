/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files that read a model folder. */
#ifndef DPQUANT_LOADER_PRIV_H
#define DPQUANT_LOADER_PRIV_H

#include "dpquant/loader.h"
#include "dpquant/scheme.h"

/* The scheme MODULE is stored in; *found false in dense folders and for modules left dense. */
DPQ_MUST_USE dpq_status dpq_folder_module_scheme(const dpq_model_folder *folder, const char *module, dpq_scheme *scheme,
                                                 bool *with_g_idx, bool *found);

#endif
