#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sweep.sh RECIPE --set key=v1,v2,... [--set ...] [--output DIR] [-np N] [-- DPQUANT_ARGS ...]
#
# Runs dpquant once for every combination of the values, each in its own folder, and makes a table of the results:
#
#     scripts/sweep.sh configs/gptq-w4a16.yaml --set quantize.bits=2,3,4,8 --set quantize.group_size=64,128 -np 2
#
#   --set key=a,b    the values of one setting, split at commas; may be repeated
#   --output DIR     the folder of the sweep (default: sweep-<name of the recipe>)
#   -np N            ranks, started by $DPQ_LAUNCHER (default: mpirun; "mpirun --bind-to none", "srun --mpi=pmix", ...);
#                    without it dpquant runs by itself, on one rank
#   -- ...           goes to every dpquant as it is, before the settings of the combination
#
# A combination is DIR/bits=2_group_size=64, its log DIR/bits=2_group_size=64.log. One that is finished (it has a
# dpquant.json) is not run again, so an interrupted sweep is continued by the same command. One that fails is marked in the
# table and the rest goes on. The table is printed and written to DIR/sweep.csv and DIR/sweep.json: size_bytes (all
# safetensors files of the folder), perplexity and kl_mean (when the recipe has an eval section), seconds, status.
# The program is $DPQ, or build/dpquant beside this script, or dpquant on the PATH.
# Exit code: 0, 1 when a combination failed, 2 when the command line is wrong.
set -uo pipefail

usage()
{
    echo "usage: sweep.sh RECIPE --set key=v1,v2 [--set ...] [--output DIR] [-np N] [-- DPQUANT_ARGS ...]" >&2
    exit 2
}

complain()
{
    echo "sweep: $1" >&2
    exit 2
}

recipe=
output=
ranks=
keys=()
lists=()
extra=()

while [ $# -gt 0 ]; do
    case $1 in
    --set | --output | -np | -n)
        [ $# -ge 2 ] || complain "$1 needs a value"
        case $1 in
        --set)
            [[ $2 == ?*=?* ]] || complain "--set takes key=value,value, not '$2'"
            [[ ,${2#*=}, != *,,* ]] || complain "--set $2 has an empty value"
            for key in "${keys[@]}"; do
                [ "$key" != "${2%%=*}" ] || complain "--set $key is given twice: put its values into one list"
            done
            keys+=("${2%%=*}")
            lists+=("${2#*=}")
            ;;
        --output) output=$2 ;;
        *)
            [[ $2 =~ ^[1-9][0-9]*$ ]] || complain "$1 takes a number of ranks, not '$2'"
            ranks=$2
            ;;
        esac
        shift 2
        ;;
    --)
        shift
        extra=("$@")
        break
        ;;
    -h | --help) sed -n '3,20s/^# \{0,1\}//p' "$0" && exit 0 ;;
    -*) complain "unknown option $1" ;;
    *)
        [ -z "$recipe" ] || complain "one recipe only: '$recipe' and '$1'"
        recipe=$1
        shift
        ;;
    esac
done
if [ -z "$recipe" ] || [ ${#keys[@]} = 0 ]; then
    usage
fi
[ -r "$recipe" ] || complain "cannot read the recipe $recipe"

here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${DPQ:-}" ]; then
    DPQ=$here/../build/dpquant
    [ -x "$DPQ" ] || DPQ=$(command -v dpquant) || complain "no dpquant found: build it, or set DPQ"
fi
command=("$DPQ")
if [ -n "$ranks" ]; then
    read -ra command <<< "${DPQ_LAUNCHER:-mpirun}"
    command+=(-np "$ranks" "$DPQ")
    if [ "$(id -u)" = 0 ]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
fi
output=${output:-sweep-$(basename "$recipe" .yaml)}
mkdir -p "$output" || complain "cannot make $output"

# The name of a setting in the folder's name: its last part, or all of it when two settings end alike.
labels=()
for key in "${keys[@]}"; do
    label=${key##*.}
    for other in "${keys[@]}"; do
        if [ "$other" != "$key" ] && [ "${other##*.}" = "$label" ]; then
            label=$key
            break
        fi
    done
    labels+=("$label")
done

# Every combination: one line of values each, separated by commas, the last setting running fastest.
combinations=("")
for list in "${lists[@]}"; do
    IFS=, read -ra values <<< "$list"
    longer=()
    for combination in "${combinations[@]}"; do
        for value in "${values[@]}"; do
            longer+=("${combination:+$combination,}$value")
        done
    done
    combinations=("${longer[@]}")
done

names=()
declare -A taken=()
for combination in "${combinations[@]}"; do
    IFS=, read -ra values <<< "$combination"
    name=
    for i in "${!values[@]}"; do
        name+="${name:+_}${labels[i]}=${values[i]}"
    done
    name=$(printf %s "$name" | tr -c 'A-Za-z0-9_.=+-' '-')
    [ -z "${taken[$name]+set}" ] || complain "two combinations would share the folder $output/$name"
    taken[$name]=1
    names+=("$name")
done

# member FILE NAME [PARENT]: the number after "NAME": in a JSON file that has one member a line; with PARENT, only a
# direct member of the object of that name. Prints nothing when it is not there or is null.
member()
{
    [ -r "$1" ] || return 0
    awk -v name="$2" -v parent="${3:-}" '
        {
            match($0, /^ */)
            indent = RLENGTH
            line = substr($0, indent + 1)
        }
        parent != "" && !inside && index(line, "\"" parent "\": {") == 1 { inside = 1; depth = indent; next }
        inside && indent <= depth { inside = 0 }
        (parent == "" || (inside && indent == depth + 2)) && index(line, "\"" name "\":") == 1 {
            value = substr(line, length(name) + 4)
            gsub(/^ +|,? *\r?$/, "", value)
            if (value ~ /^-?[0-9]/) print value
            exit
        }' "$1"
}

size_of()
{
    local total=0 bytes file
    for file in "$1"/*.safetensors; do
        [ -e "$file" ] || continue
        bytes=$(wc -c < "$file")
        total=$((total + bytes))
    done
    echo "$total"
}

trap 'echo "sweep: interrupted; the same command goes on from here" >&2; exit 130' INT TERM

failed=0
statuses=()
for i in "${!combinations[@]}"; do
    folder=$output/${names[i]}
    if [ -e "$folder/dpquant.json" ]; then
        echo "[$((i + 1))/${#combinations[@]}] ${names[i]}: finished before"
        statuses+=(ok)
        continue
    fi
    IFS=, read -ra values <<< "${combinations[i]}"
    settings=()
    for k in "${!keys[@]}"; do
        settings+=(--set "${keys[k]}=${values[k]}")
    done
    echo "[$((i + 1))/${#combinations[@]}] ${names[i]}"
    "${command[@]}" --config "$recipe" "${extra[@]}" "${settings[@]}" --output "$folder" > "$folder.log" 2>&1 < /dev/null
    code=$?
    if [ "$code" = 0 ] && [ -e "$folder/dpquant.json" ]; then
        statuses+=(ok)
    else
        [ "$code" != 0 ] || code="no dpquant.json"
        echo "    failed ($code), log in $folder.log:"
        # what mpirun says about the exit of its ranks would push out the reason
        grep -Ev '^(-+|Primary job .*|mpirun .*|.*job to be terminated.*|.*(exiting|exit code).*|  Process name: .*|  Exit code: .*|)$' \
            "$folder.log" | tail -n 3 | sed 's/^/    | /'
        statuses+=(failed)
        failed=1
    fi
done

# quoted VALUE: as a JSON string, unless it is a number or a truth value
quoted()
{
    if [[ $1 =~ ^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$|^(true|false|null)$ ]]; then
        printf %s "$1"
    else
        printf '"%s"' "$(printf %s "$1" | sed 's/[\\"]/\\&/g')"
    fi
}

csv=$output/sweep.csv
json=$output/sweep.json
{
    printf 'name'
    printf ',%s' "${keys[@]}"
    printf ',size_bytes,perplexity,kl_mean,seconds,status\n'
} > "$csv.new"
echo "[" > "$json.new"
for i in "${!combinations[@]}"; do
    folder=$output/${names[i]}
    size='' perplexity='' divergence='' seconds=''
    if [ "${statuses[i]}" = ok ]; then
        size=$(size_of "$folder")
        perplexity=$(member "$folder/dpquant.json" perplexity eval)
        divergence=$(member "$folder/dpquant.json" kl_mean eval)
        seconds=$(member "$folder/dpquant-run.json" seconds_total)
    fi
    printf '%s,%s,%s,%s,%s,%s,%s\n' "${names[i]}" "${combinations[i]}" \
        "$size" "$perplexity" "$divergence" "$seconds" "${statuses[i]}" >> "$csv.new"
    IFS=, read -ra values <<< "${combinations[i]}"
    {
        printf '  {\n    "name": %s,\n    "settings": {' "$(quoted "${names[i]}")"
        for k in "${!keys[@]}"; do
            [ "$k" = 0 ] || printf ', '
            printf '"%s": %s' "${keys[k]}" "$(quoted "${values[k]}")"
        done
        printf '},\n    "size_bytes": %s,\n    "perplexity": %s,\n    "kl_mean": %s,\n    "seconds": %s,\n    "status": "%s"\n  }' \
            "${size:-null}" "${perplexity:-null}" "${divergence:-null}" "${seconds:-null}" "${statuses[i]}"
        [ $((i + 1)) = ${#combinations[@]} ] && printf '\n' || printf ',\n'
    } >> "$json.new"
done
echo "]" >> "$json.new"
mv "$csv.new" "$csv" && mv "$json.new" "$json" || exit 1

echo
awk -F, '
    {
        for (c = 1; c <= NF; c++) {
            cell[NR, c] = $c == "" ? "-" : $c
            if (length(cell[NR, c]) > width[c]) width[c] = length(cell[NR, c])
        }
        columns = NF
    }
    END {
        for (r = 1; r <= NR; r++) {
            line = sprintf("%-" width[1] "s", cell[r, 1])
            for (c = columns - 4; c <= columns; c++) line = line sprintf("  %" width[c] "s", cell[r, c])
            print line
        }
    }' "$csv"
exit "$failed"
