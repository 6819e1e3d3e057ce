#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_rules.sh [ROOT]: the rules of the house that can be checked by reading the text (docs/ARCHITECTURE.md, docs/STYLE.md).
#
#   direction   which module may include which, and private headers only beside their own sources
#   homes       each outside header is included in its one place
#   exits       exit only in main.c and comm/abort.c, MPI_Abort only in comm/abort.c, nothing printed below cli but through the log
#   shape       SPDX line, files <= 600 lines, functions <= 80, unique names, braces around every body,
#               no open ends left in comments, no compiler switch that changes floating-point results
#
# Prints FILE:LINE: rule, and "lint: N files, N violations". Exit code 1 when there are any. ROOT is another tree to check.
# shellcheck disable=SC2129 # one line per rule reads better than one block
set -uo pipefail
root=${1:-$(dirname "$0")/..}
cd "$root" || exit 2

mapfile -t c_files < <(find src include tests cuda -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) 2> /dev/null | sort)
mapfile -t scripts < <(find scripts tests .ci -type f \( -name '*.sh' -o -name '*.py' -o -name '*.sbatch' -o -name '*.tst' \
    -o -path '.ci/run' \) 2> /dev/null | sort)
[ ! -e Makefile ] || scripts+=(Makefile)
if [ ${#c_files[@]} = 0 ]; then
    echo "lint: no sources under $root" >&2
    exit 2
fi

violations=$(mktemp) || exit 2
stripped=$(mktemp -d) || exit 2
trap 'rm -rf "$violations" "$stripped"' EXIT

say()
{
    printf '%s\n' "$1" >> "$violations"
}

# ---- module of each public header: where the source of that name is, else by this table
module_of_header()
{
    local name=$1 found
    found=$(find src -name "$name.c" 2> /dev/null | cut -d/ -f2 | sort -u)
    if [ "$(wc -w <<< "$found")" = 1 ]; then
        echo "$found"
        return
    fi
    case $name in
    status | alloc | str | log | clock | half | hash | option | fixsum | rng | pattern) echo base ;;
    tensor | config | backend | comm | model | pack | report | engine | eval | cli) echo "$name" ;;
    file | json | safetensors | h5) echo io ;;
    backend_grad) echo backend ;;
    block_grad) echo model ;;
    calibset) echo data ;;
    tokenizer) echo text ;;
    scheme | algo | block_algo | grid | gptq | rtn) echo quant ;;
    *) echo unknown ;;
    esac
}

# ---- what each module may include besides itself; only cli joins the recipe to the rest
left="base tensor io backend comm text model data quant"
declare -A may=(
    [base]=""
    [tensor]="base"
    [config]="base tensor"
    [io]="base tensor"
    [backend]="base tensor"
    [comm]="base tensor"
    [text]="base tensor io"
    [model]="base tensor io backend"
    [data]="base tensor io text"
    [quant]="base tensor backend"
    [pack]="base tensor io backend model data quant"
    [report]="base tensor io backend model data quant"
    [engine]="$left pack report"
    [eval]="$left pack report engine"
    [cli]="$left pack report engine eval config"
)

check_includes()
{
    local file line kind name module from target
    while IFS=: read -r file line name; do
        kind=${name:0:1}
        name=${name:1}
        case $file in
        src/*) module=$(cut -d/ -f2 <<< "$file") ;;
        include/dpquant/*)
            module=${header_module[$(basename "$file" .h)]}
            if [ "$module" = unknown ]; then
                continue
            fi
            ;;
        *) module= ;;
        esac

        # direction
        if [ -n "$module" ]; then
            if [ -z "${may[$module]+set}" ]; then
                say "$file:$line: module '$module' is not in the table of scripts/check_rules.sh"
            elif [[ $name == dpquant/* ]]; then
                from=$(basename "$name" .h)
                target=${header_module[$from]:-none}
                if [ "$target" = none ]; then
                    say "$file:$line: there is no include/$name"
                elif [ "$target" != "$module" ] && [[ " ${may[$module]} " != *" $target "* ]] &&
                    ! { [[ $file == src/comm/comm_staged.* ]] && [ "$target" = backend ]; }; then
                    say "$file:$line: $module may not include $name (module $target)"
                fi
            elif [ "$kind" = '"' ] && [ "$name" != version.h ] && [ ! -e "$(dirname "$file")/$name" ]; then
                say "$file:$line: \"$name\" is neither dpquant/... nor a header beside this file"
            fi
        fi

        # homes of outside headers
        target=
        case $name in
        mpi.h) [[ $file == src/comm/* || $file == tests/mpi/* ]] || target=src/comm ;;
        hdf5.h | hdf5_hl.h | H5*.h) [[ $file == src/io/h5.c || $file == tests/* ]] || target=src/io/h5.c ;;
        yaml.h) [[ $file == src/config/yaml.c ]] || target=src/config/yaml.c ;;
        jansson.h) [[ $file == src/io/json*.c || $file == src/io/*_priv.h ]] || target='src/io/json*.c' ;;
        dnnl*.h | oneapi/*) [[ $file == src/backend/cpu_gemm*.[ch] ]] || target='src/backend/cpu_gemm*' ;;
        lapacke*.h | cblas.h) [[ $file == src/backend/* ]] || target=src/backend ;;
        cmocka.h) [[ $file == tests/* ]] || target=tests ;;
        cuda* | cublas* | cusolver* | nccl.h) [[ $file == cuda/* || $file == tests/cudasim/* ]] || target=cuda ;;
        esac
        [ -z "$target" ] || say "$file:$line: <$name> has its one home in $target"
    done < <(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' "${c_files[@]}" /dev/null |
        sed -E 's/^([^:]*:[0-9]+:)[[:space:]]*#[[:space:]]*include[[:space:]]*(["<])([^">]*)[">].*/\1\2\3/')
}

declare -A header_module=()
for header in include/dpquant/*.h; do
    [ -e "$header" ] || continue
    name=$(basename "$header" .h)
    header_module[$name]=$(module_of_header "$name")
    [ "${header_module[$name]}" != unknown ] || say "$header:1: no module for it in scripts/check_rules.sh, none found under src"
done
check_includes

# ---- code without comments, strings and preprocessor lines, line numbers kept: what the next checks read
strip_code()
{
    awk '
        BEGIN { in_comment = 0; in_directive = 0 }
        {
            line = $0; out = ""
            if (!in_comment && (in_directive || line ~ /^[ \t]*#/)) {
                in_directive = (line ~ /\\$/)
                # a comment that opens on a directive goes on below it
                n = line; gsub(/\/\*([^*]|\*+[^*\/])*\*+\//, "", n)
                if (n ~ /\/\*/) in_comment = 1
                print ""
                next
            }
            while (line != "") {
                if (in_comment) {
                    at = index(line, "*/")
                    if (at == 0) { line = ""; break }
                    line = substr(line, at + 2); in_comment = 0
                    continue
                }
                if (!match(line, /["\x27]|\/\*|\/\//)) { out = out line; break }
                out = out substr(line, 1, RSTART - 1)
                mark = substr(line, RSTART, RLENGTH)
                line = substr(line, RSTART + RLENGTH)
                if (mark == "//") break
                if (mark == "/*") { in_comment = 1; out = out " "; continue }
                # a string or character constant
                out = out mark
                while (line != "") {
                    c = substr(line, 1, 1)
                    if (c == "\\") { line = substr(line, 3); continue }
                    line = substr(line, 2)
                    if (c == mark) break
                }
                out = out mark
            }
            print out
        }' "$1"
}

for file in "${c_files[@]}"; do
    mkdir -p "$stripped/$(dirname "$file")"
    strip_code "$file" > "$stripped/$file"
done

# banned PATTERN RULE FILE...: one violation for each line of code that has it
banned()
{
    local pattern=$1 rule=$2
    shift 2
    [ $# -gt 0 ] || return 0
    (cd "$stripped" && grep -nE "$pattern" "$@" /dev/null) | sed -E "s|^([^:]*:[0-9]+):.*|\1: $rule|" >> "$violations"
}

# files GLOB... - EXCEPT...: members of c_files that match one of the first and none of the others
files()
{
    local file glob keep=() drop=() seen=0
    for glob in "$@"; do
        if [ "$glob" = - ]; then
            seen=1
        elif [ "$seen" = 1 ]; then
            drop+=("$glob")
        else
            keep+=("$glob")
        fi
    done
    for file in "${c_files[@]}"; do
        for glob in "${drop[@]}"; do
            # shellcheck disable=SC2053 # patterns are meant
            [[ $file == $glob ]] && continue 2
        done
        for glob in "${keep[@]}"; do
            # shellcheck disable=SC2053
            [[ $file == $glob ]] && echo "$file" && break
        done
    done
}

begin='(^|[^A-Za-z0-9_])'
mapfile -t list < <(files 'src/*' 'include/*' 'cuda/*' - src/cli/main.c src/comm/abort.c)
banned "$begin(exit|_exit|_Exit|quick_exit)[[:space:]]*\\(" "exit only in src/cli/main.c and src/comm/abort.c" "${list[@]}"
mapfile -t list < <(files 'src/*' 'include/*' 'cuda/*' - src/cli/main.c src/base/status.c src/comm/abort.c)
banned "${begin}abort[[:space:]]*\\(" "abort only in main.c, comm/abort.c and dpq_assert_fail" "${list[@]}"
mapfile -t list < <(files 'src/*' 'include/*' 'cuda/*' - src/comm/abort.c)
banned "${begin}MPI_Abort[[:space:]]*\\(" "MPI_Abort only in src/comm/abort.c" "${list[@]}"
mapfile -t list < <(files 'src/*' 'cuda/*' - 'src/cli/*' src/base/log.c src/base/status.c src/comm/abort.c)
banned "$begin(v?printf|puts|putchar|perror)[[:space:]]*\\(|${begin}v?fprintf[[:space:]]*\\([[:space:]]*std(out|err)" \
    "nothing is printed below cli but through dpq_log" "${list[@]}"
mapfile -t list < <(files 'src/*' 'include/*' 'cuda/*')
banned "$begin(sprintf|gets|atoi|atol|atof|strtok)[[:space:]]*\\(" "unbounded or unchecked: use str.h" "${list[@]}"

# ---- braces around every body, functions <= 80 lines
check_bodies()
{
    awk -v file="$1" '
        function report(at, text) { print file ":" at ": " text }
        # next token: a word, a bracket, a semicolon, or one other character; T is "" at the end of the text
        function next_token() {
            while (1) {
                if (rest == "") {
                    if (row >= rows) { T = ""; return }
                    rest = text[++row]
                    continue
                }
                if (match(rest, /^[ \t\r]+/)) { rest = substr(rest, RLENGTH + 1); continue }
                if (match(rest, /^[A-Za-z_][A-Za-z0-9_]*/)) { }
                else { RLENGTH = 1 }
                T = substr(rest, 1, RLENGTH); at = row
                rest = substr(rest, RLENGTH + 1)
                return
            }
        }
        function skip_parentheses(   depth) {
            # T is the opening one; afterwards T is the token behind the closing one
            depth = 0
            while (T != "") {
                if (T == "(") depth++
                if (T == ")" && --depth == 0) { next_token(); return }
                next_token()
            }
        }
        { text[NR] = $0 }
        /^\{[ \t]*$/ { start = NR }
        /^\}/ {
            if (start && NR - start - 1 > 80) report(start, "function body of " (NR - start - 1) " lines, 80 are allowed")
            start = 0
        }
        END {
            rows = NR; row = 0; rest = ""; before = ""
            next_token()
            while (T != "") {
                word = T; line = at
                if (word == "if" || word == "for" || word == "while" || word == "switch") {
                    next_token()
                    if (T == "(") {
                        skip_parentheses()
                        if (word == "while" && before == "}" && T == ";") { before = ";"; continue }
                        if (T != "{") report(line, "no braces around the body of \"" word "\"")
                    }
                    before = word
                    continue
                }
                if (word == "else") {
                    next_token()
                    if (T != "{" && T != "if") report(line, "no braces around the body of \"else\"")
                    before = word
                    continue
                }
                before = word
                next_token()
            }
        }' "$stripped/$1" >> "$violations"
}

for file in "${c_files[@]}"; do
    check_bodies "$file"
done

# ---- shape of every file
for file in "${c_files[@]}" "${scripts[@]}"; do
    head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2\.0' || say "$file:1: no SPDX line"
    lines=$(wc -l < "$file")
    [ "$lines" -le 600 ] || say "$file:600: $lines lines, 600 are allowed"
done
# the words are in pieces here, so that this file passes
words="TO""DO|FIX""ME|X""XX"
mapfile -t texts < <(find docs configs README.md -type f \( -name '*.md' -o -name '*.yaml' \) 2> /dev/null | sort)
grep -nwE "$words" "${c_files[@]}" "${scripts[@]}" "${texts[@]}" /dev/null |
    sed -E 's/^([^:]*:[0-9]+):.*/\1: an open end: do it or file it/' >> "$violations"
grep -nP '\t' "${c_files[@]}" /dev/null | sed -E 's/^([^:]*:[0-9]+):.*/\1: tab/' >> "$violations"
grep -nE '[[:space:]]$' "${c_files[@]}" "${scripts[@]}" /dev/null | sed -E 's/^([^:]*:[0-9]+):.*/\1: blank at the end of the line/' >> "$violations"
if [ -e Makefile ]; then
    grep -nE -- '-(ffast-math|Ofast|funsafe-math|ffinite-math|march=|mtune=)' Makefile |
        sed -E 's/^([0-9]+):.*/Makefile:\1: this switch changes results or ties the program to one machine/' >> "$violations"
fi
printf '%s\n' "${c_files[@]}" "${scripts[@]}" | awk -F/ '
    { if ($NF in first) print $0 ":1: the name " $NF " is taken by " first[$NF]; else first[$NF] = $0 }' |
    grep -vE '(^|/)run:1:' | while IFS= read -r line; do
    # a module header and its private twin beside the sources may not share a name either
    say "$line"
done

count=$(wc -l < "$violations")
sort -t: -k1,1 -k2,2n "$violations"
echo "lint: $((${#c_files[@]} + ${#scripts[@]})) files, $count violations"
[ "$count" = 0 ]
