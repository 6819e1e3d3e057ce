#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# recipe.sh NAME RANKS: runs configs/NAME.yaml with few samples and tuning steps; inspect and eval read the result. Prints the scheme that inspect
# found, the number of quantized modules, and the perplexity, which eval and the run itself must agree on.
set -eu
# shellcheck disable=SC2086 # words are meant
$MPIRUN "$2" "$DPQ" --config "configs/$1.yaml" --output "$TMP/out" --set calibration.samples=8 --set eval.samples=3 --set signround.iterations=2 > "$TMP/log" 2>&1 ||
    { cat "$TMP/log"; exit 1; }
"$DPQ" inspect "$TMP/out" > "$TMP/inspect"
# shellcheck disable=SC2086
$MPIRUN "$2" "$DPQ" eval --model "$TMP/out" --reference tests/models/tiny --data tests/models/tiny/heldout.h5 --samples 3 \
    --json "$TMP/eval.json" > "$TMP/log" 2>&1 || { cat "$TMP/log"; exit 1; }
for key in perplexity reference_perplexity kl_mean kl_median kl_p90 kl_p99 kl_p999 kl_max top1 tokens; do
    grep "\"$key\":" "$TMP/eval.json" | tr -d ' ,' > "$TMP/a"
    grep "\"$key\":" "$TMP/out/dpquant.json" | tail -n 1 | tr -d ' ,' > "$TMP/b"
    if [ ! -s "$TMP/a" ] || ! cmp "$TMP/a" "$TMP/b"; then
        echo "$key differs: $(cat "$TMP/a" "$TMP/b")"
        exit 1
    fi
done
scheme=$(sed -n 's/^  \(W[0-9].*\): \([0-9]*\) modules.*/\1, \2 modules/p' "$TMP/inspect")
echo "$scheme, perplexity $(sed -n 's/.*"perplexity": *\([0-9.]*\).*/\1/p' "$TMP/eval.json")"
