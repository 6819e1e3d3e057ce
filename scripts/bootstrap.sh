#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bootstrap.sh install | build | demo | check: gets dpquant going on a bare machine.
#
#   install  checks each dependency and installs what is missing with apt-get, when it may (root, or sudo without a
#            password); otherwise prints the one line to run and ends with code 1
#   build    install, then make
#   demo     build, then two ranks quantize the small model in tests/models/tiny and measure it (configs/demo.yaml)
#   check    install, then build and run all tests (scripts/run_tests.sh); the last line is "N passed, N failed, N skipped"
set -euo pipefail
cd "$(dirname "$0")/.."

usage()
{
    sed -n '3,9s/^# \{0,1\}//p' "$0"
}

have_command()
{
    command -v "$1" > /dev/null 2>&1
}

have_package()
{
    have_command pkg-config && pkg-config --exists "$1"
}

have_header()
{
    have_command gcc && echo "#include <$1>" | gcc -E - > /dev/null 2>&1
}

have_mpi()
{
    have_command "$1" && echo '#include <mpi.h>' | "$1" -x c -E - > /dev/null 2>&1
}

# one line per dependency: the test, its argument, the Debian package that has it
dependencies()
{
    cat << 'LIST'
command gcc gcc
header stdio.h libc6-dev
command make make
command pkg-config pkg-config
mpi mpicc libopenmpi-dev
command mpirun openmpi-bin
package hdf5 libhdf5-dev
package yaml-0.1 libyaml-dev
package jansson libjansson-dev
package libpcre2-8 libpcre2-dev
header dnnl.h libdnnl-dev
header lapacke.h liblapacke-dev
header cblas.h libopenblas-dev
header cmocka.h libcmocka-dev
LIST
}

missing_packages()
{
    local test argument package
    while read -r test argument package; do
        "have_$test" "$argument" || echo "$package"
    done < <(dependencies)
}

install_missing()
{
    local missing=() prefix=() still
    mapfile -t missing < <(missing_packages)
    if [ ${#missing[@]} = 0 ]; then
        echo "bootstrap: all dependencies are there"
        return
    fi
    echo "bootstrap: missing: ${missing[*]}"
    if ! have_command apt-get; then
        echo "bootstrap: no apt-get here; install what these Debian packages hold, then run this again: ${missing[*]}" >&2
        exit 1
    fi
    if [ "$(id -u)" != 0 ]; then
        if have_command sudo && sudo -n true 2> /dev/null; then
            prefix=(sudo -n)
        else
            echo "bootstrap: not allowed to install; run this, then run this script again:" >&2
            echo "    sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
            exit 1
        fi
    fi
    echo "bootstrap: apt-get update"
    "${prefix[@]}" apt-get -q=2 update || echo "bootstrap: apt-get update failed; going on with the lists there are" >&2
    echo "bootstrap: apt-get install ${missing[*]}"
    "${prefix[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q=2 -o Dpkg::Use-Pty=0 install -y --no-install-recommends \
        "${missing[@]}" > /dev/null
    hash -r
    still=$(missing_packages | tr '\n' ' ')
    if [ -n "$still" ]; then
        echo "bootstrap: installed, but still not found: $still" >&2
        exit 1
    fi
}

build()
{
    make --no-print-directory -j"$(nproc)"
}

demo()
{
    local cores threads
    # shellcheck source=scripts/mpi_env.sh
    . scripts/mpi_env.sh
    cores=$(nproc)
    threads=$((cores / 2 > 0 ? cores / 2 : 1))
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$threads}"
    mkdir -p build/demo
    set -x
    mpirun "${MPIRUN_ARGS[@]}" -np 2 build/dpquant --config configs/demo.yaml --overwrite --output build/demo/tiny-gptq-w4a16
}

case "${1:-}" in
install) install_missing ;;
build)
    install_missing
    build
    ;;
demo)
    install_missing
    build
    demo
    ;;
check)
    install_missing
    exec scripts/run_tests.sh
    ;;
-h | --help) usage ;;
*)
    usage >&2
    exit 2
    ;;
esac
