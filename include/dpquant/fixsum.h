/* SPDX-License-Identifier: Apache-2.0 */
/* Order-free sums (docs/algorithms/exactness.md): fp32 contributions of samples, rounded once to a multiple of a power
 * of two, are added as int64. With n samples each contribution must stay below 2^(62 - ceil(log2 n)) units, so that
 * neither a rank's partial sum nor the total can overflow, for any dealing of samples to ranks. */
#ifndef DPQUANT_FIXSUM_H
#define DPQUANT_FIXSUM_H

#include <stdint.h>

#include "dpquant/status.h"

/* Exponent e_i of one channel of a matrix x, from the largest sum of x^2 over tokens that any sample has in it: an
 * entry (i,j) of x^T x is counted in units of 2^(e_i + e_j). By Cauchy-Schwarz every entry of every sample fits, with
 * one bit to spare for rounding in fp32. A silent channel (max_sumsq == 0) gets the exponent 0.  MAX_SUMSQ finite and
 * >= 0. */
int dpq_fixsum_channel_exponent(double max_sumsq, int64_t n_samples);
/* 2^-e_i for K channels (double). Errors: DPQ_E_NUMERIC for a non-finite or negative sum, naming the channel. */
DPQ_MUST_USE dpq_status dpq_fixsum_exponents(const double *max_sumsq, int64_t k, int64_t n_samples, int32_t *exponent);

#endif
