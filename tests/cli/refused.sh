#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# refused.sh RANKS ARGUMENTS: runs $DPQ on so many ranks (0: without a launcher) where it must refuse or fail, and ends with its exit
# code. Ends with 99 instead unless there is exactly one line that begins with "dpquant:", with 98 when an output folder, complete
# or partial, is left in $TMP, and with 97 when it took more than 20 seconds.
# $ON is put between the launcher and the program (tests/cli/on_rank.sh). --output $TMP/out is given first, so that the arguments
# may set another one; not so for commands such as eval.
set -u
ranks=$1
shift
command=()
# shellcheck disable=SC2206 # words are meant
[ "$ranks" = 0 ] || command=($MPIRUN "$ranks")
[ -z "${ON:-}" ] || command+=(tests/cli/on_rank.sh "${ON%%:*}" "${ON#*:}")
command+=("$DPQ")
case ${1:-} in
eval | inspect | list) ;;
*) command+=(--output "$TMP/out") ;;
esac
started=$SECONDS
"${command[@]}" "$@" > "$TMP/refused.log" 2>&1
code=$?
cat "$TMP/refused.log"
lines=$(grep -c '^dpquant: ' "$TMP/refused.log")
if [ "$lines" != 1 ]; then
    echo "refused.sh: $lines lines begin with 'dpquant:', exit code $code"
    exit 99
fi
if compgen -G "$TMP/out*" > /dev/null; then
    echo "refused.sh: left behind: $(compgen -G "$TMP/out*")"
    exit 98
fi
if [ $((SECONDS - started)) -gt 20 ]; then
    echo "refused.sh: took $((SECONDS - started)) s"
    exit 97
fi
exit "$code"
