#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# probe_gpu.sh CUDA NCCL (each auto, 0 or 1): compiles and links one line with nvcc and one with NCCL and says what was found.
# Asking for 1 without having it is an error. Takes NVCC and CC from the environment.
set -eu

want_cuda=${1:-auto}
want_nccl=${2:-auto}
for want in "$want_cuda" "$want_nccl"; do
    case $want in
    auto | 0 | 1) ;;
    *)
        echo "probe: CUDA and NCCL take auto, 0 or 1, not '$want'" >&2
        exit 2
        ;;
    esac
done

dir=$(mktemp -d "${TMPDIR:-/tmp}/dpq-probe.XXXXXX")
trap 'rm -rf "$dir"' EXIT

cuda=none
cuda_why="nvcc not found"
if [ "$want_cuda" = 0 ]; then
    cuda_why="switched off"
elif [ -n "${NVCC:-}" ] && [ -x "$NVCC" ]; then
    cat > "$dir/cuda.cu" <<'SOURCE'
#include <cuda_runtime.h>
int main() { int n = 0; cudaGetDeviceCount(&n); return 0; }
SOURCE
    if "$NVCC" -o "$dir/cuda" "$dir/cuda.cu" > "$dir/cuda.log" 2>&1; then
        cuda=$("$NVCC" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    else
        cuda_why="$NVCC failed: $(head -n 1 "$dir/cuda.log")"
    fi
fi

nccl=none
nccl_why="nccl.h or libnccl not found"
if [ "$want_nccl" = 0 ]; then
    nccl_why="switched off"
elif [ "$cuda" = none ]; then
    nccl_why="needs CUDA"
else
    home=$(dirname "$(dirname "$NVCC")")
    cat > "$dir/nccl.c" <<'SOURCE'
#include <nccl.h>
#include <stdio.h>
int main(void) { int v = 0; (void)v; printf("%d.%d.%d\n", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH); return ncclGetVersion(&v) != ncclSuccess; }
SOURCE
    if ${CC:-cc} -I"$home/include" -o "$dir/nccl" "$dir/nccl.c" -L"$home/lib64" -lnccl > "$dir/nccl.log" 2>&1; then
        nccl=$(printf '#include <nccl.h>\nversion NCCL_MAJOR NCCL_MINOR NCCL_PATCH\n' |
            ${CC:-cc} -I"$home/include" -E -P - | awk '$1 == "version" { print $2 "." $3 "." $4 }')
    fi
fi

if [ "$want_cuda" = 1 ] && [ "$cuda" = none ]; then
    echo "CUDA=1 was asked for, but there is no usable CUDA: $cuda_why" >&2
    exit 1
fi
if [ "$want_nccl" = 1 ] && [ "$nccl" = none ]; then
    echo "NCCL=1 was asked for, but there is no usable NCCL: $nccl_why" >&2
    exit 1
fi

if [ "$cuda" = none ]; then
    echo "CUDA: no ($cuda_why); NCCL: no ($nccl_why); building the CPU product"
else
    [ "$nccl" = none ] && nccl_text="NCCL: no ($nccl_why)" || nccl_text="NCCL $nccl found"
    echo "CUDA $cuda found; $nccl_text; no GPU code in this version: building the CPU product"
fi
