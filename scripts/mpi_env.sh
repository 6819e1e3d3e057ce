# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the scripts that start MPI: settings that let Open MPI run as root, in containers, and with more ranks than
# cores. A value already in the environment stays. Sets the array MPIRUN_ARGS.

if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT="${OMPI_ALLOW_RUN_AS_ROOT:-1}"
    export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-1}"
fi
# Containers forbid reading another process's memory; without this each rank prints a warning and copies anyway.
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"
# Ranks that wait give their core to those that work: there may be more ranks than cores.
export OMPI_MCA_mpi_yield_when_idle="${OMPI_MCA_mpi_yield_when_idle:-1}"
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
# Without a remote shell Open MPI refuses even to start local ranks.
if ! command -v ssh > /dev/null 2>&1 && ! command -v rsh > /dev/null 2>&1; then
    export OMPI_MCA_plm_rsh_agent="${OMPI_MCA_plm_rsh_agent:-/bin/false}"
fi

# shellcheck disable=SC2034 # for the script that sources this
MPIRUN_ARGS=()
if mpirun --version 2> /dev/null | grep -Eq 'Open MPI|PRRTE|OpenRTE'; then
    # shellcheck disable=SC2034
    MPIRUN_ARGS=(--oversubscribe --bind-to none)
fi
