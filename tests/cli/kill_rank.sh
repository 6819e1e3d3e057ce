#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# kill_rank.sh RANKS RANK ARGUMENTS: kills one rank after the first block and tells how long the job lived on and how it ended.
# Fails when it goes on for more than 15 seconds or ends well.
set -u
ranks=$1 rank=$2
shift 2
# shellcheck disable=SC2086,SC2016 # words are meant; $$ is expanded by the rank's shell
$MPIRUN "$ranks" tests/cli/on_rank.sh "$rank" 'echo $$ > "$TMP/rank.pid"' "$DPQ" "$@" > "$TMP/kill.log" 2>&1 &
job=$!
for ((i = 0; i < 600; i++)); do
    grep -q 'block 1/' "$TMP/kill.log" && break
    sleep 0.05
done
kill -KILL "$(cat "$TMP/rank.pid")" || exit 1
started=$SECONDS
(sleep 15 && kill -KILL "$job" 2> /dev/null) &
watch=$!
wait "$job"
code=$?
kill "$watch" 2> /dev/null
cat "$TMP/kill.log"
echo "ended in $((SECONDS - started)) s, exit code $code"
[ "$code" != 0 ] && [ $((SECONDS - started)) -lt 14 ]
