#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make.sh ARGUMENTS: the built make_cases (tests/cli/make_cases.c) that belongs to $DPQ, or that of a plain build.
#   make.sh model DIR ['SED SCRIPT']   writable copy of the small model, its config.json edited
set -eu
if [ "$1" = model ]; then
    mkdir -p "$2"
    cp tests/models/tiny/config.json tests/models/tiny/generation_config.json tests/models/tiny/model.safetensors \
        tests/models/tiny/tokenizer.json tests/models/tiny/tokenizer_config.json "$2"
    chmod -R u+w "$2"
    [ $# -lt 3 ] || sed -i "$3" "$2/config.json"
    exit 0
fi
tool=$(dirname "$DPQ")/tests/cli/make_cases
[ -x "$tool" ] || tool=build/release/tests/cli/make_cases
exec "$tool" "$@"
