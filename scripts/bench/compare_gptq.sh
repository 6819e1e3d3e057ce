#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# dpquant's whole command (start, load, calibrate, write) against llm-compressor's one-shot alone, on the same cores in one run,
# with peak memory and, when held-out windows are given, perplexity and KL divergence of both outputs measured by dpquant eval.
# usage: PEER_PYTHON=/path/to/venv/bin/python compare_gptq.sh MODEL CALIB.h5 SAMPLES BITS GROUP [HELDOUT.h5 [WINDOWS]]
set -euo pipefail
if [ $# -lt 5 ]; then
    sed -n '3,6s/^# //p' "$0" >&2
    exit 2
fi
model=$1 calib=$2 samples=$3 bits=$4 group=$5 heldout=${6:-} windows=${7:-0}
peer=${PEER_PYTHON:?PEER_PYTHON: the Python that has llmcompressor}
here=$(cd "$(dirname "$0")" && pwd)
program=$here/../../build/dpquant
# shellcheck source=scripts/mpi_env.sh
. "$here/../mpi_env.sh"
work=$(mktemp -d "${TMPDIR:-/tmp}/dpquant-compare.XXXXXX")
trap 'rm -rf "$work"' EXIT

lscpu | sed -n 's/^Model name: *//p;s/^CPU(s): */cores: /p'
build_run() { # RANKS LABEL
    local start end
    start=$(date +%s.%N)
    mpirun "${MPIRUN_ARGS[@]}" -np "$1" "$program" --model "$model" --output "$work/ours" --overwrite --set calibration.data="$calib" \
        --set calibration.samples="$samples" --set quantize.algorithm=gptq --set quantize.bits="$bits" \
        --set quantize.group_size="$group" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    end=$(date +%s.%N)
    awk -v a="$start" -v b="$end" -v label="$2" -v memory="$(sed -n 's/^peak memory *//p' "$work/log")" \
        'BEGIN { printf "%-34s %8.2f s   %s\n", label, b - a, memory }'
}
build_run 2 "dpquant, 2 ranks, 1 thread each"
build_run 1 "dpquant, 1 rank, all threads"
OMP_NUM_THREADS=1 build_run 1 "dpquant, 1 rank, 1 thread"
HF_HUB_OFFLINE=1 "$peer" "$here/peer_llmcompressor.py" --model "$model" --data "$calib" --samples "$samples" --output "$work/peer" \
    --algorithm gptq --bits "$bits" --group-size "$group" > "$work/peer.log" 2>&1 || { cat "$work/peer.log" >&2; exit 1; }
awk '$1 == "seconds" { s = $2 } $1 == "peak_mib" { m = $2 } END { printf "%-34s %8.2f s   %s MiB\n", "llm-compressor, one-shot alone", s, m }' \
    "$work/peer.log"
build_run 2 "dpquant, 2 ranks, again"
if [ -n "$heldout" ]; then
    for folder in ours peer; do
        mpirun "${MPIRUN_ARGS[@]}" -np 2 "$program" eval --model "$work/$folder" --reference "$model" --data "$heldout" --samples "$windows" \
            > "$work/eval" 2>&1 || { cat "$work/eval" >&2; exit 1; }
        echo "$folder:"
        grep -E '^(perplexity|KL|top-1|reference)' "$work/eval"
    done
fi
