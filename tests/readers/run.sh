#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh PYTHON [PART ...]: other programs read what dpquant reads and writes. PYTHON needs torch, transformers,
# compressed-tensors and h5py; where one of them is missing everything is skipped. With vllm a model is also served.
#
#   models    small models of each architecture, made by transformers: the same logits
#   schemes   folders of each scheme, loaded by transformers and compressed-tensors: keys, logits, files
#   codes     plain rounding: codes, scales and zero points as compressed-tensors computes them
#   served    perplexity of 4-bit folders as vLLM serves them
#
# Prints one line (ok, FAIL or skip) per check and "N passed, N failed, N skipped" last; exit code 77 when all is
# skipped. DPQ is the program to check, by default build/dpquant. WORK names a folder for what is made and keeps it.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 2
if [ $# -lt 1 ]; then
    echo "usage: run.sh PYTHON [models|schemes|codes|served ...]" >&2
    exit 2
fi
python=$1
shift
here=tests/readers
export PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false TQDM_DISABLE=1
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
missing=$("$python" -c '
from importlib.util import find_spec
needed = ("torch", "transformers", "compressed_tensors", "safetensors", "h5py")
print(*[name for name in needed if find_spec(name) is None])') || exit 2
if [ -n "$missing" ]; then
    echo "skip all: $python has no $missing"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
fi

work=${WORK:-}
if [ -z "$work" ]; then
    work=$(mktemp -d "${TMPDIR:-/tmp}/dpq-readers.XXXXXX") || exit 2
    trap 'rm -rf "$work"' EXIT
fi
mkdir -p "$work"

build=build/$("${MAKE:-make}" -s --no-print-directory print-variant)
"${MAKE:-make}" -s --no-print-directory program > "$work/build.log" 2>&1 || {
    cat "$work/build.log"
    echo "FAIL build"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}
# The flags of the library's own build; libraries once more behind the archive that needs them.
read -r -a flags < "$build/flags.txt"
libraries=()
for flag in "${flags[@]}"; do
    case $flag in
    -l* | -L*) libraries+=("$flag") ;;
    esac
done
"${flags[@]}" -o "$work/dump_logits" $here/dump_logits.c "$build/libdpquant.a" "${libraries[@]}" || {
    echo "FAIL build of dump_logits"
    echo "0 passed, 1 failed, 0 skipped"
    exit 1
}
export DPQ="${DPQ:-$PWD/build/dpquant}" DUMP_LOGITS="$work/dump_logits"
"$python" $here/run_checks.py "$work" "$@"
