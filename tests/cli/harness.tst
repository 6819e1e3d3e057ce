# SPDX-License-Identifier: Apache-2.0
# The runner tests itself: a wrong expectation must fail, or every other list here proves nothing.

# what is right passes
P 0 "^1 passed, 0 failed, 0 skipped$" echo 'P 0 "hel+o" echo hello' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
P 0 "^1 passed, 0 failed, 0 skipped$" echo 'F 3 "" exit 3' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
P 0 "^1 passed, 0 failed, 0 skipped$" echo 'P 0 "on stderr" echo on stderr >&2' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
P 0 "^1 passed, 0 failed, 0 skipped$" printf '# comment\n\nP 0 "ab" echo \\\n  ab\n' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
P 0 "^1 passed, 0 failed, 0 skipped$" echo 'P 0 "\"q\"" printf "\"q\"\n"' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst

# a wrong exit code, a wrong text, a pass where a failure is due and the reverse
F 1 "^0 passed, 1 failed, 0 skipped$" echo 'P 0 "" false' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
F 1 "no line of the output matches: goodbye" echo 'P 0 "goodbye" echo hello' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
F 1 "exit code: expected 2, found 3" echo 'F 2 "" exit 3' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
F 1 "exit code: expected 2, found 0" echo 'F 2 "" true' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
F 1 "^1 passed, 1 failed, 0 skipped$" printf 'P 0 "" true\nP 0 "" false\n' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
F 1 "^1 passed, 1 failed, 0 skipped$" printf 'P 0 "" false\nP 0 "" true\n' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
F 1 "^0 passed, 1 failed, 0 skipped$" printf 'F 1 "" kill -SEGV $$\n' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
F 1 "expected 0, found 124" echo 'P 0 "" sleep 30' > $TMP/a.tst && CASE_TIMEOUT=1 scripts/run_clitests.sh $TMP/a.tst

# what cannot be understood is no success: bad line, contradiction, bad expression, missing or empty file
F 2 "not 'P.F exit_code" echo 'Q 0 "" true' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
F 2 "not 'P.F exit_code" echo 'P 0 true' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
F 2 "P goes with exit code 0" echo 'P 1 "" false' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
F 2 "bad regular expression" echo 'P 0 "(" echo x' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
F 2 "cannot be read" scripts/run_clitests.sh $TMP/none.tst
F 2 "no case in it" echo '# nothing' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
F 2 "usage" scripts/run_clitests.sh

# 77 is a skip, unless it is what was expected
P 0 "^0 passed, 0 failed, 1 skipped$" echo 'P 0 "" exit 77' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst
P 0 "^1 passed, 0 failed, 0 skipped$" echo 'F 77 "" exit 77' > $TMP/a.tst && scripts/run_clitests.sh $TMP/a.tst

# each case has its own empty folder; the cases of a file share another
P 0 "" test -d $TMP && test -z "$(ls -A $TMP)" && touch $TMP/left $SUITE_TMP/left
P 0 "" test -z "$(ls -A $TMP)" && test -e $SUITE_TMP/left

# the runner of all tests counts what a program failed, a crash, and a program without tests
F 1 "^FAIL .*sums \(2 passed, 1 failed" scripts/run_tests.sh --count sums \
  'printf "[==========] 3 test(s) run.\n[  PASSED  ] 2 test(s).\n[  FAILED  ] 1 test(s), listed below:\n"; exit 1'
P 0 "^3 passed, 0 failed, 1 skipped$" scripts/run_tests.sh --count sums \
  'printf "[==========] 4 test(s) run.\n[  PASSED  ] 3 test(s).\n[  SKIPPED ] 1 test(s), listed below:\n"'
F 1 "^0 passed, 1 failed, 0 skipped$" scripts/run_tests.sh --count crash 'kill -SEGV $$'
F 1 "^2 passed, 1 failed, 0 skipped$" scripts/run_tests.sh --count late \
  'printf "[==========] 2 test(s) run.\n[  PASSED  ] 2 test(s).\n"; exit 1'
F 1 "^0 passed, 1 failed, 0 skipped$" scripts/run_tests.sh --count empty \
  'printf "[==========] 0 test(s) run.\n[  PASSED  ] 0 test(s).\n"'
P 0 "^0 passed, 0 failed, 1 skipped$" scripts/run_tests.sh --count absent 'exit 77'
F 2 "unknown suite" scripts/run_tests.sh nonsense
