# SPDX-License-Identifier: Apache-2.0
# The whole program, built with AddressSanitizer and UBSan, on small jobs that end well and that do not: no report, and no leak
# at exit. Run by scripts/run_tests.sh san, which sets $DPQ and the options of the sanitizers.

P 0 "block 4/4 done" tests/san/clean.sh 0 --config tests/cli/tiny.yaml --set calibration.samples=3 --set calibration.seqlen=65 --set eval.data=tests/models/tiny/heldout.h5 \
  --set eval.samples=2 --set eval.seqlen=50
P 0 "block 4/4 done" tests/san/clean.sh 2 --config tests/cli/tiny.yaml --set calibration.samples=3 --set calibration.seqlen=65 --set gptq.true_sequential=false \
  --set quantize.symmetric=false --set gptq.order=group --set export.shard_size=400K
P 0 "block 4/4 done" tests/san/clean.sh 3 --config tests/cli/tiny.yaml --set calibration.samples=2 --set calibration.seqlen=33 --set quantize.algorithm=rtn --set quantize.bits=3 \
  --set quantize.group_size=32 --set run.precision=fp32
P 0 "block 4/4 done" tests/san/clean.sh 0 --config tests/cli/tiny.yaml --set quantize.algorithm=rtn --set rtn.importance=false --set quantize.group_size=-1
P 0 "estimate" tests/san/clean.sh 0 --config tests/cli/tiny.yaml --plan
P 0 "perplexity" tests/san/clean.sh 2 eval --model tests/models/tiny --reference tests/models/tiny --data tests/models/tiny/heldout.h5 --samples 3 --seqlen 40
P 0 "architecture" tests/san/clean.sh 0 inspect tests/models/tiny
P 0 "quantize.bits" tests/san/clean.sh 0 list config
P 0 "architectures" tests/san/clean.sh 0 list
P 0 "usage" tests/san/clean.sh 0 --help
F 2 "does not divide" tests/san/clean.sh 2 --config tests/cli/tiny.yaml --set quantize.group_size=48
F 2 "r.yaml:2:3" printf 'quantize:\n  bit: 3\n' > $TMP/r.yaml && tests/san/clean.sh 0 --config $TMP/r.yaml
F 3 "none.h5" tests/san/clean.sh 2 --config tests/cli/tiny.yaml --set calibration.data=$TMP/none.h5
F 3 "model.safetensors" tests/cli/make.sh model $TMP/m && truncate -s 5000000 $TMP/m/model.safetensors && tests/san/clean.sh 0 --config tests/cli/tiny.yaml --model $TMP/m
F 6 "not finite" tests/cli/make.sh model $TMP/m && tests/cli/make.sh poke $TMP/m model.layers.1.input_layernorm.weight 3 7f7f && \
  tests/san/clean.sh 2 --config tests/cli/tiny.yaml --model $TMP/m --set calibration.seqlen=64
F 4 "file system error" ulimit -f 1000; tests/san/clean.sh 0 --config tests/cli/tiny.yaml --set calibration.seqlen=64
