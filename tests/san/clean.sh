#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clean.sh RANKS ARGUMENTS: runs a sanitized $DPQ on so many ranks (0: without a launcher) and ends with its exit code, or with 99 when
# a sanitizer reported anything. Under a launcher MPI itself leaks, in plug-ins that are unloaded before the leak check and cannot be
# suppressed by name any more; there only leaks with one of our own functions in their stack count.
set -u
ranks=$1
shift
command=()
report='Sanitizer|runtime error:'
if [ "$ranks" != 0 ]; then
    export LSAN_OPTIONS="${LSAN_OPTIONS:+$LSAN_OPTIONS:}exitcode=0"
    report='ERROR: AddressSanitizer|runtime error:|^ *#[0-9]+ 0x[0-9a-f]+ in dpq_'
fi
# shellcheck disable=SC2206 # words are meant
[ "$ranks" = 0 ] || command=($MPIRUN "$ranks")
case ${1:-} in
--config) set -- "$@" --output "$TMP/out" ;;
esac
export OMP_NUM_THREADS=2
"${command[@]}" "$DPQ" "$@" > "$TMP/clean.log" 2>&1
code=$?
cat "$TMP/clean.log"
if grep -qE "$report" "$TMP/clean.log"; then
    echo "clean.sh: a sanitizer reported something, exit code $code"
    exit 99
fi
exit "$code"
