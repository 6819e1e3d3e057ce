# SPDX-License-Identifier: Apache-2.0
# scripts/sweep.sh: wrong command lines, and a sweep of the demo recipe in which one combination must fail (9 bits).

F 2 "usage: sweep.sh" scripts/sweep.sh
F 2 "usage: sweep.sh" scripts/sweep.sh configs/demo.yaml
F 2 "cannot read the recipe" scripts/sweep.sh $TMP/none.yaml --set quantize.bits=4
F 2 "takes key=value,value" scripts/sweep.sh configs/demo.yaml --set quantize.bits
F 2 "empty value" scripts/sweep.sh configs/demo.yaml --set quantize.bits=2,,4
F 2 "is given twice" scripts/sweep.sh configs/demo.yaml --set quantize.bits=2 --set quantize.bits=4
F 2 "number of ranks" scripts/sweep.sh configs/demo.yaml --set quantize.bits=2 -np two
F 2 "unknown option --bits" scripts/sweep.sh configs/demo.yaml --bits 2

F 1 "bits=9 .* failed" scripts/sweep.sh configs/demo.yaml --set quantize.bits=4,9 --output $SUITE_TMP/sweep -- --set quantize.algorithm=rtn
P 0 "" test -e $SUITE_TMP/sweep/bits=4/dpquant.json && test ! -e $SUITE_TMP/sweep/bits=9 && test -s $SUITE_TMP/sweep/bits=9.log
P 0 "^bits=4,4,[1-9][0-9]*,[0-9.]+,[0-9.e-]+,[0-9.e-]+,ok$" cat $SUITE_TMP/sweep/sweep.csv
P 0 "\"status\": \"failed\"" cat $SUITE_TMP/sweep/sweep.json
# the second call runs only what is not finished
F 1 "bits=4: finished before" scripts/sweep.sh configs/demo.yaml --set quantize.bits=4,9 --output $SUITE_TMP/sweep -- --set quantize.algorithm=rtn
P 0 "bits=4: finished before" scripts/sweep.sh configs/demo.yaml --set quantize.bits=4 --output $SUITE_TMP/sweep -- --set quantize.algorithm=rtn
