#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run_clitests.sh [-v] FILE.tst ...: runs lists of commands that must pass or must fail.
#
# One case a line; empty lines and lines that start with # are skipped; a line that ends in \ goes on in the next one.
#
#     P|F  exit_code  "expected text"  command ...
#
#   P, F           the command must pass (exit code 0) or must fail (any other)
#   exit_code      exactly this one; 0 for P, not 0 for F
#   expected text  extended regular expression that one line of stdout and stderr together must match; \" is a quotation
#                  mark; "" expects nothing in particular
#   command        run by bash from the root of the repository, so that pipes, && and ! work. It may use
#                  $DPQ        the program
#                  $MPIRUN n   starts the program after it on n ranks:  $MPIRUN 2 $DPQ --config ...
#                  $TMP        a fresh empty folder for this case
#                  $SUITE_TMP  a folder shared by the cases of this file, in their order
#
# A command that ends with 77 where no 77 was expected is skipped (something it needs is not there).
# A line that is none of this is an error: the file does not count as run. CASE_TIMEOUT (seconds, 300) ends one that hangs.
# Prints each case that went wrong with its output (-v: all cases) and, as the last line, "N passed, N failed, N skipped".
# Exit code: 0, 1 when a case failed, 2 when a file is malformed.
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
verbose=0
if [ "${1:-}" = -v ]; then
    verbose=1
    shift
fi
if [ $# -eq 0 ]; then
    echo "usage: run_clitests.sh [-v] FILE.tst ..." >&2
    exit 2
fi

# shellcheck source=scripts/mpi_env.sh
. "$root/scripts/mpi_env.sh"
export DPQ="${DPQ:-$root/build/dpquant}"
export MPIRUN="${MPIRUN:-mpirun ${MPIRUN_ARGS[*]} -np}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"

scratch=$(mktemp -d "${TMPDIR:-/tmp}/dpq-cli.XXXXXX") || exit 2
trap 'rm -rf "$scratch"' EXIT

passed=0
failed=0
skipped=0
malformed=0
pattern='^([PF])[[:space:]]+([0-9]+)[[:space:]]+"(([^"\\]|\\.)*)"[[:space:]]+(.*[^[:space:]])[[:space:]]*$'

# report WHAT WHERE COMMAND: one line, and the output of the case when there was trouble
report()
{
    printf '%-4s %s: %s\n' "$1" "$2" "$3"
    if [ "$1" = FAIL ]; then
        printf '     %s\n' "$4"
        head -c 8000 "$scratch/output" | tail -n 40 | sed 's/^/     | /'
    fi
}

run_case()
{
    local where=$1 line=$2 kind want text command got why=
    if ! [[ $line =~ $pattern ]]; then
        echo "$where: not 'P|F exit_code \"expected text\" command': $line" >&2
        malformed=1
        return
    fi
    kind=${BASH_REMATCH[1]} want=${BASH_REMATCH[2]} text=${BASH_REMATCH[3]//'\"'/'"'} command=${BASH_REMATCH[5]}
    if { [ "$kind" = P ] && [ "$want" != 0 ]; } || { [ "$kind" = F ] && [ "$want" = 0 ]; }; then
        echo "$where: P goes with exit code 0, F with any other: $line" >&2
        malformed=1
        return
    fi
    rm -rf "$scratch/case"
    mkdir "$scratch/case"
    (cd "$root" && TMP="$scratch/case" SUITE_TMP="$scratch/suite" \
        timeout -k 10 "${CASE_TIMEOUT:-300}" bash -c "$command") > "$scratch/output" 2>&1 < /dev/null
    got=$?
    if [ "$got" = 77 ] && [ "$want" != 77 ]; then
        skipped=$((skipped + 1))
        report skip "$where" "$command"
        return
    fi
    if [ "$got" != "$want" ]; then
        why="exit code: expected $want, found $got"
    elif [ -n "$text" ]; then
        grep -Eq -- "$text" "$scratch/output"
        case $? in
        0) ;;
        1) why="no line of the output matches: $text" ;;
        *)
            echo "$where: bad regular expression: $text" >&2
            malformed=1
            return
            ;;
        esac
    fi
    if [ -n "$why" ]; then
        failed=$((failed + 1))
        report FAIL "$where" "$command" "$why"
    else
        passed=$((passed + 1))
        [ "$verbose" = 0 ] || report ok "$where" "$command"
    fi
}

for file in "$@"; do
    if [ ! -r "$file" ]; then
        echo "$file: cannot be read" >&2
        malformed=1
        continue
    fi
    rm -rf "$scratch/suite"
    mkdir "$scratch/suite"
    number=0
    pending=
    first=0
    before=$((passed + failed + skipped))
    while IFS= read -r line <&3 || [ -n "$line" ]; do
        number=$((number + 1))
        if [ -z "$pending" ]; then
            first=$number
            [[ $line =~ ^[[:space:]]*(#|$) ]] && continue
        fi
        if [[ $line == *\\ ]]; then
            pending+="${line%\\} "
            continue
        fi
        run_case "$file:$first" "$pending$line"
        pending=
    done 3< "$file"
    if [ -n "$pending" ]; then
        echo "$file:$first: the last line ends in \\" >&2
        malformed=1
    elif [ $((passed + failed + skipped)) = "$before" ] && [ "$malformed" = 0 ]; then
        echo "$file: no case in it" >&2
        malformed=1
    fi
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$malformed" = 0 ] || exit 2
[ "$failed" = 0 ] || exit 1
