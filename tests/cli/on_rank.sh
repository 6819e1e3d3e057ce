#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# on_rank.sh RANK 'SHELL' COMMAND ...: runs SHELL before COMMAND on that rank only; it may change the command's arguments ($@).
rank=$1 shell=$2
shift 2
if [ "${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:-${SLURM_PROCID:-0}}}}" = "$rank" ]; then
    eval "$shell"
fi
exec "$@"
