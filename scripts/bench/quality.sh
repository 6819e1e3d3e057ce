#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Quality of every algorithm at 8, 4, 3 and 2 bits on one model, as one markdown table: perplexity, mean KL divergence from the
# source, share of equal top tokens, seconds to quantize. All settings are the defaults; the figures are those of each run itself.
# usage: quality.sh MODEL CALIB.h5 HELDOUT.h5 [dpquant options, e.g. --set calibration.samples=64]
#   RANKS (2)                      ranks of each run
#   ALGORITHMS (rtn gptq signround)
#   SCHEMES (8:128 4:128 3:64 2:32) bits:group_size
#   WORK                           a folder to keep the outputs in; what is finished there is not run again. Without it they are removed
# A run that fails has its reason on stderr and dashes in the table; the others go on. Exit code 1 when one failed.
set -uo pipefail
if [ $# -lt 3 ]; then
    sed -n '3,10s/^# //p' "$0" >&2
    exit 2
fi
model=$1 calib=$2 heldout=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
program=${DPQ:-$here/../../build/dpquant}
# shellcheck source=scripts/mpi_env.sh
. "$here/../mpi_env.sh"
for needed in "$model" "$calib" "$heldout" "$program"; do
    [ -e "$needed" ] || { echo "quality: $needed is not there" >&2; exit 2; }
done
work=${WORK:-}
if [ -z "$work" ]; then
    work=$(mktemp -d "${TMPDIR:-/tmp}/dpquant-quality.XXXXXX") || exit 2
    trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work" || exit 2

# member FILE NAME [PARENT]: the number after "NAME": in a file that has one member a line; with PARENT, in the object of that name
member()
{
    awk -v name="\"$2\":" -v parent="${3:-}" '
        parent != "" && !inside { inside = index($0, "\"" parent "\": {") > 0; next }
        { at = index($0, name) }
        at > 0 { value = substr($0, at + length(name)); gsub(/[ ,\r]/, "", value); print value; exit }' "$1"
}

# row LABEL FOLDER: one line of the table; fails when a figure is missing
row()
{
    local perplexity kl top seconds
    perplexity=$(member "$2/dpquant.json" perplexity eval)
    kl=$(member "$2/dpquant.json" kl_mean eval)
    top=$(member "$2/dpquant.json" top1 eval)
    seconds=$(member "$2/dpquant-run.json" seconds_quantize)
    if [ -z "$perplexity" ] || [ -z "$kl" ] || [ -z "$top" ] || [ -z "$seconds" ]; then
        echo "quality: a figure is missing in $2" >&2
        return 1
    fi
    awk -v label="$1" -v perplexity="$perplexity" -v kl="$kl" -v top="$top" -v seconds="$seconds" \
        'BEGIN { printf "%s | %.4f | %.5f | %.2f %% | %.1f |\n", label, perplexity, kl, 100 * top, seconds }'
}

failed=0
rows=()
source_perplexity=
for scheme in ${SCHEMES:-8:128 4:128 3:64 2:32}; do
    bits=${scheme%%:*} group=${scheme#*:}
    for algorithm in ${ALGORITHMS:-rtn gptq signround}; do
        name=$algorithm-w${bits}g$group
        folder=$work/$name
        label="| $algorithm | W$bits g$group"
        if [ ! -e "$folder/dpquant.json" ]; then
            echo "quality: $name" >&2
            if ! mpirun "${MPIRUN_ARGS[@]}" -np "${RANKS:-2}" "$program" --model "$model" --output "$folder" --set calibration.data="$calib" \
                --set eval.data="$heldout" --set quantize.algorithm="$algorithm" --set quantize.bits="$bits" \
                --set quantize.group_size="$group" "$@" > "$folder.log" 2>&1 < /dev/null; then
                grep '^dpquant: ' "$folder.log" >&2 || tail -n 3 "$folder.log" >&2
                rows+=("$label | - | - | - | - |")
                failed=1
                continue
            fi
        fi
        line=$(row "$label" "$folder") || { line="$label | - | - | - | - |"; failed=1; }
        rows+=("$line")
        source_perplexity=$(member "$folder/dpquant.json" reference_perplexity eval)
    done
done
echo "| algorithm | scheme | perplexity | KL mean | top-1 | seconds |"
echo "|---|---|---|---|---|---|"
[ -z "$source_perplexity" ] || awk -v ppl="$source_perplexity" 'BEGIN { printf "| source | - | %.4f | 0 | 100 %% | - |\n", ppl }'
printf '%s\n' "${rows[@]}"
exit "$failed"
