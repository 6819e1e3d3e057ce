#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# same.sh 'RANKSxTHREADS ...' ARGUMENTS: quantizes once for each entry of the list and compares every output folder with the first,
# byte for byte; only dpquant-run.json may differ. Prints "N folders are equal" at the end. Keeps the first in $TMP/first.
set -u
list=$1
shift
first=
count=0
for entry in $list; do
    out=$TMP/$entry
    # shellcheck disable=SC2086 # words are meant
    $MPIRUN "${entry%x*}" "$DPQ" "$@" --output "$out" --set run.threads="${entry#*x}" > "$TMP/log" 2>&1 || {
        cat "$TMP/log"
        echo "same.sh: $entry ended with an error"
        exit 1
    }
    count=$((count + 1))
    if [ -z "$first" ]; then
        first=$entry
        mv "$out" "$TMP/first"
        continue
    fi
    diff -r -x dpquant-run.json "$TMP/first" "$out" || {
        echo "same.sh: $entry differs from $first"
        exit 1
    }
    rm -r "$out"
done
compgen -G "$TMP/first/model*.safetensors" > /dev/null && [ -s "$TMP/first/dpquant.json" ] || exit 1
echo "$count folders are equal"
