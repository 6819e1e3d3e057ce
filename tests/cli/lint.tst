# SPDX-License-Identifier: Apache-2.0
# scripts/check_rules.sh on small trees made here: each rule must be able to fail.
# $SUITE_TMP/new makes a clean tree in $TMP; $SUITE_TMP/put FILE 'text' adds a file with an SPDX line to it.

P 0 "" printf '%s\n' 'mkdir -p "$TMP/src/base" "$TMP/src/io" "$TMP/src/quant" "$TMP/src/cli" "$TMP/include/dpquant" "$TMP/tests/unit"' \
  'for h in status json; do echo "/* SPDX-License-Identifier: Apache-2.0 */" > "$TMP/include/dpquant/$h.h"; done' \
  'cd "$TMP"' > $SUITE_TMP/new && \
  printf '%s\n' '{ echo "/* SPDX-License-Identifier: Apache-2.0 */"; printf "%b\n" "$2"; } > "$TMP/$1"' > $SUITE_TMP/put

P 0 "^lint: 3 files, 0 violations" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c '#include "dpquant/status.h"\nint f(void)\n{\n    if (f()) {\n        do {\n        } while (f());\n    } else if (f()) {\n        return 1;\n    }\n    return 0; /* exit(1) */\n}' && scripts/check_rules.sh $TMP
F 1 "src/base/a.c:2: base may not include dpquant/json.h" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/base/a.c '#include "dpquant/json.h"' && scripts/check_rules.sh $TMP
F 1 "src/quant/a.c:2: quant may not include dpquant/json.h" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/quant/a.c '#include "dpquant/json.h"' && scripts/check_rules.sh $TMP
F 1 "there is no include/dpquant/nothing.h" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c '#include "dpquant/nothing.h"' && scripts/check_rules.sh $TMP
F 1 "\"b_priv.h\" is neither" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/base/b_priv.h '' && sh $SUITE_TMP/put src/io/a.c '#include "b_priv.h"' && scripts/check_rules.sh $TMP
F 1 "<mpi.h> has its one home in src/comm" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c '#include <mpi.h>' && scripts/check_rules.sh $TMP
F 1 "<hdf5.h> has its one home" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c '# include <hdf5.h>' && scripts/check_rules.sh $TMP
F 1 "<jansson.h> has its one home" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c '#include <jansson.h>' && scripts/check_rules.sh $TMP
F 1 "<cblas.h> has its one home" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/quant/a.c '#include <cblas.h>' && scripts/check_rules.sh $TMP
F 1 "<cmocka.h> has its one home" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/quant/a.c '#include <cmocka.h>' && scripts/check_rules.sh $TMP
F 1 "a.c:4: exit only in" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c 'void f(void)\n{\n    exit(1);\n}' && scripts/check_rules.sh $TMP
F 1 "MPI_Abort only in" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c 'void f(void)\n{\n    MPI_Abort(c, 1);\n}' && scripts/check_rules.sh $TMP
F 1 "a.c:4: nothing is printed" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c 'void f(void)\n{\n    printf("x");\n}' && scripts/check_rules.sh $TMP
F 1 "a.c:4: no braces around the body of .if" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c 'void f(void)\n{\n    if (a &&\n        b)\n        f();\n}' && scripts/check_rules.sh $TMP
F 1 "a.c:6: no braces around the body of .else" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c 'void f(void)\n{\n    if (a) {\n        f();\n    } else\n        f();\n}' && scripts/check_rules.sh $TMP
F 1 "a.c:1: no SPDX line" (. $SUITE_TMP/new) && echo 'int a;' > $TMP/src/io/a.c && scripts/check_rules.sh $TMP
F 1 "a.c:600: 602 lines, 600 are allowed" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c "$(yes 'int a;' | head -n 601)" && scripts/check_rules.sh $TMP
F 1 "a.c:3: function body of 81 lines" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c "void f(void)\n{\n$(yes '    f();' | head -n 81)\n}" && scripts/check_rules.sh $TMP
F 1 "the name a.c is taken by src/base/a.c" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/base/a.c '' && sh $SUITE_TMP/put src/io/a.c '' && scripts/check_rules.sh $TMP
F 1 "a.c:2: an open end" (. $SUITE_TMP/new) && sh $SUITE_TMP/put src/io/a.c '/* TO''DO: later */' && scripts/check_rules.sh $TMP
F 1 "Makefile:2: this switch changes results" (. $SUITE_TMP/new) && printf '# SPDX-License-Identifier: Apache-2.0\nCFLAGS = -ffast-math\n' > $TMP/Makefile && scripts/check_rules.sh $TMP
F 2 "no sources under" scripts/check_rules.sh $TMP
