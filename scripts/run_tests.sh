#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run_tests.sh [SUITE ...]: builds the tests, runs them, prints one line per program and "N passed, N failed, N skipped" last.
#
#   unit ops bad   programs build/<variant>/tests/SUITE/test_*, scripts tests/SUITE/test_*.sh and lists tests/SUITE/*.tst
#   mpi            programs in tests/mpi on each number of ranks in NP ("1 2 3 4")
#   cli            lists of commands in tests/cli (scripts/run_clitests.sh)
#   readers        tests/readers/run.sh with the Python in DPQ_READER_PYTHON; skipped without one
#   lint           scripts/check_rules.sh, and whether docs/CONFIG.md is what the program prints
#   san            unit and ops once more, built with SAN=address,undefined, and whole jobs (tests/san)
# Without a suite: all of them. DEBUG, SAN, WERROR and the like reach make through the environment or MAKEFLAGS.
#
# cmocka programs count test by test, lists and scripts by their last line "N passed, N failed, N skipped", anything else as
# one test. Exit code 77 is a skip. A program that dies, or that ran no test, is a failure. TEST_TIMEOUT (600 s) ends one that
# hangs. The output of each program is kept in build/test-logs/.
#
# run_tests.sh --count NAME 'COMMAND': counts one command in this way, for the tests of this script.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

# shellcheck source=scripts/mpi_env.sh
. scripts/mpi_env.sh
make=${MAKE:-make}
logs=build/test-logs
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1:abort_on_error=0}"
export LSAN_OPTIONS="${LSAN_OPTIONS:-suppressions=$PWD/scripts/lsan.supp:print_suppressions=0}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"

total_passed=0
total_failed=0
total_skipped=0
failures=()

# counts LOG: "passed failed skipped tests-were-listed" from what a program printed
counts()
{
    awk '
        { sub(/\r$/, "") }
        # under mpirun --tag-output: rank 0 speaks for the program, all ranks run the same tests
        /^\[[0-9]+,[0-9]+\]<std(out|err)>: ?/ {
            if ($0 !~ /^\[[0-9]+,0\]/) next
            sub(/^\[[0-9]+,[0-9]+\]<std(out|err)>: ?/, "")
        }
        /^\[==========\] [0-9]+ test\(s\) run/ { listed = 1 }
        /^\[  PASSED  \] [0-9]+ test/ { passed += $4 }
        /^\[  FAILED  \] [0-9]+ test/ { failed += $4 }
        /^\[  SKIPPED \] [0-9]+ test/ { skipped += $4 }
        /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { last = $0 }
        END {
            if (!listed && last != "") {
                split(last, n, " ")
                passed = n[1]; failed = n[3]; skipped = n[5]; listed = 1
            }
            print passed + 0, failed + 0, skipped + 0, listed + 0
        }' "$1"
}

# run NAME COMMAND...: one test program; one line; its figures go into the totals
run()
{
    local name=$1 log seconds status passed failed skipped listed word=ok why=
    shift
    log=$logs/$(printf %s "$name" | tr -c 'A-Za-z0-9_.=-' '_').log
    seconds=$SECONDS
    timeout -k 15 "${TEST_TIMEOUT:-600}" "$@" > "$log" 2>&1 < /dev/null
    status=$?
    read -r passed failed skipped listed < <(counts "$log")
    if [ "$status" = 77 ] && [ "$failed" = 0 ]; then
        skipped=$((skipped > 0 ? skipped : 1))
    elif [ "$listed" = 0 ]; then
        [ "$status" = 0 ] && passed=1 || failed=1
    elif [ "$status" != 0 ] && [ "$failed" = 0 ]; then
        failed=1
    elif [ $((passed + failed + skipped)) = 0 ]; then
        failed=1
        why=", no test in it"
    fi
    case $status in
    0 | 77) ;;
    124 | 137) why=", no end after ${TEST_TIMEOUT:-600} s" ;;
    *) why=", exit code $status" ;;
    esac
    # a program that says it failed must also exit so, and one that exits so must have failed something
    if [ "$failed" != 0 ]; then
        word=FAIL
        failures+=("$name")
        tail -n 60 "$log" | sed 's/^/     | /'
    elif [ "$passed" = 0 ]; then
        word=skip
    fi
    printf '%-4s %s (%s passed, %s failed, %s skipped, %s s%s)\n' \
        "$word" "$name" "$passed" "$failed" "$skipped" $((SECONDS - seconds)) "$why"
    total_passed=$((total_passed + passed))
    total_failed=$((total_failed + failed))
    total_skipped=$((total_skipped + skipped))
}

finish()
{
    [ "$total_failed" = 0 ] || printf 'failed: %s\n' "${failures[*]}"
    echo "$total_passed passed, $total_failed failed, $total_skipped skipped"
    [ "$total_failed" = 0 ]
    exit
}

# build TARGET... [VARIABLE=value]: a build that fails is a failed test, and there is nothing more to run
build()
{
    local jobs=()
    [[ ${MAKEFLAGS:-} == *-j* ]] || jobs=(-j "$(nproc)")
    if ! "$make" --no-print-directory "${jobs[@]}" "$@"; then
        echo "FAIL build ($*)"
        total_failed=$((total_failed + 1))
        failures+=("build $*")
        finish
    fi
}

# programs SUITE FOLDER: the test programs of one suite that were built in FOLDER
programs()
{
    local source
    for source in tests/"$1"/test_*.c; do
        [ ! -e "$source" ] || echo "$2/${source%.c}"
    done
}

run_plain()
{
    local suite=$1 folder=$2 label=$3 program
    while read -r program; do
        run "$label/$(basename "$program")" "$program"
    done < <(programs "$suite" "$folder")
}

run_lists()
{
    local suite=$1 file
    for file in tests/"$suite"/test_*.sh; do
        [ ! -e "$file" ] || run "$suite/$(basename "$file")" bash "$file"
    done
    for file in tests/"$suite"/*.tst; do
        [ ! -e "$file" ] || TEST_TIMEOUT=${LIST_TIMEOUT:-1800} run "$suite/$(basename "$file")" scripts/run_clitests.sh "$file"
    done
}

run_mpi()
{
    local program ranks tag=()
    # Rank 0 must be told from the others to count each test once.
    mpirun --version 2> /dev/null | grep -Eq 'Open MPI\) (3|4)\.' && tag=(--tag-output)
    while read -r program; do
        for ranks in ${NP:-1 2 3 4}; do
            run "mpi/$(basename "$program") -np $ranks" mpirun "${MPIRUN_ARGS[@]}" "${tag[@]}" -np "$ranks" "$program"
        done
    done < <(programs mpi "$folder")
}

run_readers()
{
    if [ -n "${DPQ_READER_PYTHON:-}" ]; then
        TEST_TIMEOUT=${READERS_TIMEOUT:-3600} run readers tests/readers/run.sh "$DPQ_READER_PYTHON"
    else
        run readers bash -c 'echo "DPQ_READER_PYTHON names no Python"; exit 77'
    fi
}

# shellcheck disable=SC2317 # called through bash -c
config_page_is_current()
{
    build/dpquant list config --markdown > "$logs/CONFIG.md" && diff -u docs/CONFIG.md "$logs/CONFIG.md"
}

mkdir -p "$logs"
if [ "${1:-}" = --count ] && [ $# = 3 ]; then
    logs=$(mktemp -d)
    trap 'rm -rf "$logs"' EXIT
    run "$2" bash -c "$3"
    finish
fi

suites=("$@")
[ $# -gt 0 ] || suites=(unit ops bad mpi cli readers lint san)
for suite in "${suites[@]}"; do
    case $suite in
    unit | ops | bad | mpi | cli | readers | lint | san) ;;
    *)
        echo "run_tests.sh: unknown suite '$suite': unit, ops, bad, mpi, cli, readers, lint or san" >&2
        exit 2
        ;;
    esac
done

clean_before=0
if [ -z "$(git status --porcelain 2>&1)" ]; then
    clean_before=1
fi

folder=build/$("$make" -s --no-print-directory print-variant)
if [[ " ${suites[*]} " =~ \ (unit|ops|bad|mpi|cli)\  ]]; then
    build all tests
fi
export DPQ="${DPQ:-$PWD/$folder/dpquant}"

for suite in "${suites[@]}"; do
    case $suite in
    unit | ops | bad)
        run_plain "$suite" "$folder" "$suite"
        run_lists "$suite"
        ;;
    mpi) run_mpi ;;
    cli) run_lists cli ;;
    readers) run_readers ;;
    lint)
        run lint scripts/check_rules.sh
        if [ -x build/dpquant ] && [ -e docs/CONFIG.md ]; then
            export -f config_page_is_current
            export logs
            run docs/CONFIG.md bash -c config_page_is_current
        fi
        ;;
    san)
        build tests SAN=address,undefined
        sanitized=build/$("$make" -s --no-print-directory print-variant SAN=address,undefined)
        run_plain unit "$sanitized" san/unit
        run_plain ops "$sanitized" san/ops
        build "$sanitized/dpquant" SAN=address,undefined
        for file in tests/san/*.tst; do
            run "san/$(basename "$file")" env DPQ="$PWD/$sanitized/dpquant" scripts/run_clitests.sh "$file"
        done
        ;;
    esac
done

if [ "$clean_before" = 1 ]; then
    # shellcheck disable=SC2016
    run "the working tree is as it was" bash -c '[ -z "$(git status --porcelain)" ] || { git status --short; false; }'
fi
finish
