#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# dpquant's whole tuning command on two ranks against auto-round's tuning alone, on the same cores in one run, with peak memory
# and the KL divergence of each output measured by dpquant eval. OUR_STEPS is a list: the time to the peer's KL counts.
# usage: PEER_PYTHON=/path/to/venv/bin/python compare_signround.sh MODEL CALIB.h5 SAMPLES BITS GROUP PEER_STEPS 'OUR_STEPS ...' HELDOUT.h5 WINDOWS
set -euo pipefail
if [ $# -ne 9 ]; then
    sed -n '3,6s/^# //p' "$0" >&2
    exit 2
fi
model=$1 calib=$2 samples=$3 bits=$4 group=$5 peer_steps=$6 our_steps=$7 heldout=$8 windows=$9
peer=${PEER_PYTHON:?PEER_PYTHON: the Python that has auto_round}
here=$(cd "$(dirname "$0")" && pwd)
program=$here/../../build/dpquant
# shellcheck source=scripts/mpi_env.sh
. "$here/../mpi_env.sh"
work=$(mktemp -d "${TMPDIR:-/tmp}/dpquant-compare.XXXXXX")
trap 'rm -rf "$work"' EXIT

lscpu | sed -n 's/^Model name: *//p;s/^CPU(s): */cores: /p'
divergence() { # FOLDER
    mpirun "${MPIRUN_ARGS[@]}" -np 2 "$program" eval --model "$1" --reference "$model" --data "$heldout" --samples "$windows" \
        > "$work/eval" 2>&1 || { cat "$work/eval" >&2; exit 1; }
    sed -n 's/^KL mean *//p' "$work/eval"
}
for steps in $our_steps; do
    start=$(date +%s.%N)
    mpirun "${MPIRUN_ARGS[@]}" -np 2 "$program" --model "$model" --output "$work/ours" --overwrite --set calibration.data="$calib" \
        --set calibration.samples="$samples" --set quantize.algorithm=signround --set quantize.bits="$bits" \
        --set quantize.group_size="$group" --set signround.iterations="$steps" > "$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    end=$(date +%s.%N)
    awk -v a="$start" -v b="$end" -v steps="$steps" -v memory="$(sed -n 's/^peak memory *//p' "$work/log")" \
        -v overlap="$(sed -n 's/^reductions *//p' "$work/log")" -v kl="$(divergence "$work/ours")" \
        'BEGIN { printf "dpquant, %4d steps    %8.2f s   KL %s   %s   reductions %s\n", steps, b - a, kl, memory, overlap }'
done
HF_HUB_OFFLINE=1 "$peer" "$here/peer_autoround.py" --model "$model" --data "$calib" --samples "$samples" --output "$work/peer" \
    --steps "$peer_steps" --bits "$bits" --group-size "$group" > "$work/peer.log" 2>&1 || { cat "$work/peer.log" >&2; exit 1; }
folder=$(find "$work/peer" -name config.json -printf '%h\n' | head -n 1)
awk -v steps="$peer_steps" -v kl="$(divergence "$folder")" '$1 == "seconds" { s = $2 } $1 == "peak_mib" { m = $2 }
    END { printf "auto-round, %4d steps %8.2f s   KL %s   %s MiB\n", steps, s, kl, m }' "$work/peer.log"
