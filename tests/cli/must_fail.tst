# SPDX-License-Identifier: Apache-2.0
# What must be refused or must fail: recipe, flags, plan, places, model, data, numbers. tests/cli/refused.sh checks that there is one
# line "dpquant: ..." and that no folder is left. Faults of single ranks: faults.tst.

# ---- recipes: line, column, and the nearest key
F 2 "^dpquant: configuration error: .*r.yaml:2:1: .*modle.*model" printf 'output: out\nmodle: x\n' > $TMP/r.yaml && tests/cli/refused.sh 0 --config $TMP/r.yaml
F 2 "r.yaml:3:3: .*quantize.bit.*quantize.bits" printf 'model: x\nquantize:\n  bit: 3\n' > $TMP/r.yaml && tests/cli/refused.sh 0 --config $TMP/r.yaml
F 2 "r.yaml:3:1: .*model" printf 'model: x\noutput: y\nmodel: z\n' > $TMP/r.yaml && tests/cli/refused.sh 0 --config $TMP/r.yaml
F 2 "r.yaml:3:9: .*quantize.bits.*four" printf 'model: x\nquantize:\n  bits: four\n' > $TMP/r.yaml && tests/cli/refused.sh 0 --config $TMP/r.yaml
F 2 "r.yaml:3:9: .*quantize.bits.*2.*8.*9" printf 'model: x\nquantize:\n  bits: 9\n' > $TMP/r.yaml && tests/cli/refused.sh 2 --config $TMP/r.yaml
F 2 "r.yaml:3:14: .*quantize.symmetric.*maybe" printf 'model: x\nquantize:\n  symmetric: maybe\n' > $TMP/r.yaml && tests/cli/refused.sh 0 --config $TMP/r.yaml
F 2 "r.yaml:3:14: .*algorithm.*rtn.*gptq" printf 'model: x\nquantize:\n  algorithm: gtpq\n' > $TMP/r.yaml && tests/cli/refused.sh 0 --config $TMP/r.yaml
F 2 "r.yaml:1:8: .*anchor" printf 'model: &a x\noutput: *a\n' > $TMP/r.yaml && tests/cli/refused.sh 0 --config $TMP/r.yaml
F 2 "r.yaml:[12]:" printf 'model: [x\n' > $TMP/r.yaml && tests/cli/refused.sh 0 --config $TMP/r.yaml
F 2 "r.yaml:2:3: .*quantize" printf 'quantize:\n  - 1\n' > $TMP/r.yaml && tests/cli/refused.sh 0 --config $TMP/r.yaml
F 2 "none.yaml cannot be read" tests/cli/refused.sh 2 --config $TMP/none.yaml
F 2 "model: required" printf 'quantize:\n  bits: 4\n' > $TMP/r.yaml && tests/cli/refused.sh 2 --config $TMP/r.yaml
F 2 "r.yaml:4:[0-9]+: .*unknown key group; known: match, bits, group_size" printf 'model: x\nquantize:\n  overrides:\n    - {match: a, group: 3}\n' > $TMP/r.yaml && \
  tests/cli/refused.sh 0 --config $TMP/r.yaml
F 2 "r.yaml:4:[0-9]+: .*expected a key match" printf 'model: x\nquantize:\n  overrides:\n    - {bits: 3}\n' > $TMP/r.yaml && tests/cli/refused.sh 0 --config $TMP/r.yaml
F 2 "r.yaml:4:[0-9]+: .*bits: integer 2..8, found 1" printf 'model: x\nquantize:\n  overrides:\n    - {match: a, bits: 1}\n' > $TMP/r.yaml && \
  tests/cli/refused.sh 0 --config $TMP/r.yaml

# ---- flags
F 2 "no command" $DPQ
F 2 "unknown command 'qantize'; nearest is quantize" $DPQ qantize
F 2 "^dpquant: usage error: unknown option --confg" tests/cli/refused.sh 0 --confg configs/demo.yaml
F 2 "unknown option" tests/cli/refused.sh 2 --config configs/demo.yaml -x
F 2 "option --config needs a value" $DPQ --config
F 2 "unexpected argument 'more'" tests/cli/refused.sh 0 --config configs/demo.yaml more
F 2 "given twice" tests/cli/refused.sh 0 --config configs/demo.yaml --config configs/demo.yaml
F 2 "nothing to do" tests/cli/refused.sh 0 --overwrite
F 2 "--set.*quantize.bit'?.*quantize.bits" tests/cli/refused.sh 0 --config configs/demo.yaml --set quantize.bit=3
F 2 "quantize.bits" tests/cli/refused.sh 0 --config configs/demo.yaml --set quantize.bits
F 2 "quantize.bits.*1" tests/cli/refused.sh 0 --config configs/demo.yaml --set quantize.bits=1
F 2 "gptq.damping" tests/cli/refused.sh 0 --config configs/demo.yaml --set gptq.damping=nan
F 2 "unknown scheme 'W4'" tests/cli/refused.sh 2 --config configs/demo.yaml --set quantize.scheme=W4
F 2 "group_size: .*found 0" tests/cli/refused.sh 0 --config configs/demo.yaml --set quantize.group_size=0
F 2 "output: required" $DPQ --config tests/cli/tiny.yaml
F 2 "^dpquant: usage error: .*--model" tests/cli/refused.sh 0 eval --data tests/models/tiny/heldout.h5
F 3 "none" tests/cli/refused.sh 0 inspect $TMP/none
F 2 "" tests/cli/refused.sh 0 list nonsense

# ---- the plan
F 2 "48 does not divide the inputs of model.layers.0.self_attn.q_proj \(input width 256; 4 layers alike\).*down_proj \(input width 640.*fit all layers: 16, 32, 64, 128, -1" \
  tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --set quantize.group_size=48
F 2 "256 does not divide the inputs of model.layers.0.mlp.down_proj \(input width 640; 4 layers alike\); " tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --set quantize.group_size=256 --plan
F 2 "model.layers.2.self_attn.q_proj is W4 .* but model.layers.2.self_attn.v_proj is W8 .*fuse" cat tests/cli/tiny.yaml > $TMP/r.yaml && \
  printf '  overrides:\n    - {match: model.layers.2.self_attn.v_proj, bits: 8}\n' >> $TMP/r.yaml && \
  tests/cli/refused.sh 2 --config $TMP/r.yaml --model tests/models/tiny --set calibration.data=tests/models/tiny/calib.h5
F 2 "gate_proj is W4 .* but model.layers.0.mlp.up_proj is not quantized" tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --set 'quantize.ignore=re:.*up_proj'
F 2 "match 're:.\*q_prj' fits no linear of this model \(they are named like model.layers.0.self_attn.q_proj\)" cat tests/cli/tiny.yaml > $TMP/r.yaml && \
  printf '  overrides:\n    - {match: "re:.*q_prj", bits: 8}\n' >> $TMP/r.yaml && tests/cli/refused.sh 0 --config $TMP/r.yaml --model tests/models/tiny
F 2 "no linear is left" tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --set 'quantize.ignore=re:.*'
F 2 "regular expression .*character" tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --set 'quantize.ignore=re:(a'

# ---- places
F 2 "must not be the same or lie in each other" tests/cli/make.sh model $TMP/m && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $TMP/m --output $TMP/m
F 2 "must not be the same or lie in each other" tests/cli/make.sh model $TMP/m && tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --model $TMP/m --output $TMP/m/../m/out
F 2 "must not be the same or lie in each other" tests/cli/make.sh model $TMP/a/m && tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --model $TMP/a/m --output $TMP/a
F 2 "must not be the same or lie in each other" tests/cli/make.sh model $TMP/m && ln -s m $TMP/link && tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --model $TMP/m --output $TMP/link --overwrite
P 0 "" $DPQ --config tests/cli/tiny.yaml --set quantize.algorithm=rtn --output $SUITE_TMP/ours
F 2 "ours exists; give --overwrite" tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --output $SUITE_TMP/ours
P 0 "" sleep 1.1; touch $TMP/before && $DPQ --config tests/cli/tiny.yaml --set quantize.algorithm=rtn --output $SUITE_TMP/ours --overwrite && \
  test $SUITE_TMP/ours/dpquant.json -nt $TMP/before && test "$(ls -d $SUITE_TMP/ours*)" = $SUITE_TMP/ours
# one that fails leaves the old folder as it was
F 6 "not finite" cp $SUITE_TMP/ours/dpquant.json $TMP/kept && tests/cli/make.sh model $TMP/m && tests/cli/make.sh poke $TMP/m model.layers.1.input_layernorm.weight 3 7fc0 && \
  tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $TMP/m --output $SUITE_TMP/ours --overwrite; code=$?; \
  cmp $SUITE_TMP/ours/dpquant.json $TMP/kept && test "$(ls -d $SUITE_TMP/ours*)" = $SUITE_TMP/ours && exit $code
F 2 "was not written by dpquant" mkdir $TMP/theirs && touch $TMP/theirs/file && tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --output $TMP/theirs --overwrite
P 0 "" mkdir $TMP/theirs && touch $TMP/theirs/file && ! $DPQ --config tests/cli/tiny.yaml --output $TMP/theirs --overwrite && test -e $TMP/theirs/file
F 2 "partial is in the way" mkdir $TMP/o.partial && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --output $TMP/o; code=$?; test -d $TMP/o.partial && exit $code
F 4 "^dpquant: file system error: .*file" touch $TMP/file && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --output $TMP/file/out
F 4 "^dpquant: file system error: " tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --output /proc/out
F 4 "^dpquant: file system error: " [ $(id -u) != 0 ] || exit 77; mkdir $TMP/d && chmod 500 $TMP/d && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --output $TMP/d/out

# ---- the model
F 3 "none.*config.json" tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $TMP/none
F 3 "safetensors" tests/cli/make.sh model $TMP/m && rm $TMP/m/model.safetensors && tests/cli/refused.sh 3 --config tests/cli/tiny.yaml --model $TMP/m
F 3 "model.safetensors" tests/cli/make.sh model $TMP/m && truncate -s 5000000 $TMP/m/model.safetensors && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $TMP/m
F 3 "model.safetensors" tests/cli/make.sh model $TMP/m && truncate -s 20 $TMP/m/model.safetensors && tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --model $TMP/m
F 3 "model.safetensors" tests/cli/make.sh model $TMP/m && printf 'xxxxxxxx' | dd of=$TMP/m/model.safetensors conv=notrunc 2> /dev/null && tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --model $TMP/m
F 3 "config.json" tests/cli/make.sh model $TMP/m && echo '{' > $TMP/m/config.json && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $TMP/m
F 3 "^dpquant: not supported: .*GemmaForCausalLM" tests/cli/make.sh model $TMP/m 's/LlamaFor/GemmaFor/' && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $TMP/m
F 3 "^dpquant: not supported: .*longrope" tests/cli/make.sh model $TMP/m 's/"rope_scaling": null/"rope_scaling": {"rope_type": "longrope", "factor": 2.0}/' && \
  tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $TMP/m
F 3 "^dpquant: not supported: .*gelu_new" tests/cli/make.sh model $TMP/m 's/"silu"/"gelu_new"/' && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $TMP/m
F 3 "^dpquant: not supported: .*quantization_config" tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $SUITE_TMP/ours
F 3 "hidden_size|shape|expected" tests/cli/make.sh model $TMP/m 's/"hidden_size": 256/"hidden_size": 512/' && tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --model $TMP/m
F 3 "layers.4" tests/cli/make.sh model $TMP/m 's/"num_hidden_layers": 4/"num_hidden_layers": 5/' && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $TMP/m

# ---- data
F 3 "none.h5" tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --set calibration.data=$TMP/none.h5
F 3 "none.h5" tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --set eval.data=$TMP/none.h5
F 3 "config.json" tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --set calibration.data=tests/models/tiny/config.json
F 3 "input_ids: expected an integer dataset" tests/cli/make.sh filled $TMP/d.h5 tokens int 8 16 1 && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --set calibration.data=$TMP/d.h5
F 3 "input_ids: expected an integer type" tests/cli/make.sh filled $TMP/d.h5 input_ids float 8 16 1 && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --set calibration.data=$TMP/d.h5
F 3 "row 0, token 0: expected 0..2047 .*found 2048" tests/cli/make.sh filled $TMP/d.h5 input_ids int 8 16 2048 && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --set calibration.data=$TMP/d.h5
F 3 "expected 0..2047 .*found -1" tests/cli/make.sh filled $TMP/d.h5 input_ids int 8 16 -1 && tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --set eval.data=$TMP/d.h5
F 3 "at least 9 rows .*found 8" tests/cli/make.sh filled $TMP/d.h5 input_ids int 8 16 7 && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --set calibration.data=$TMP/d.h5 --set calibration.samples=9
F 3 "at least 2" tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --set calibration.seqlen=1
F 2 "calibration.data: required by algorithm gptq" tests/cli/refused.sh 2 --model tests/models/tiny
F 2 "calibration.data: required by algorithm rtn with rtn.importance" tests/cli/refused.sh 0 --model tests/models/tiny --set quantize.algorithm=rtn
F 3 "none.h5" tests/cli/refused.sh 2 eval --model tests/models/tiny --data $TMP/none.h5

# ---- numbers
F 6 "^dpquant: numeric error: layer 2: stage 2: .*model.layers.2.mlp.up_proj" tests/cli/make.sh model $TMP/m && tests/cli/make.sh poke $TMP/m model.layers.2.mlp.up_proj.weight 1000 7fc0 && \
  tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $TMP/m
F 6 "^dpquant: numeric error: .*model.layers.2.mlp.up_proj.* row 3, column 232 is nan" tests/cli/make.sh model $TMP/m && tests/cli/make.sh poke $TMP/m model.layers.2.mlp.up_proj.weight 1000 7fc0 && \
  tests/cli/refused.sh 3 --config tests/cli/tiny.yaml --model $TMP/m --set quantize.algorithm=rtn --set rtn.importance=false
F 6 "^dpquant: numeric error: .*layer 1: stage 0: .*channel 3 is not finite" tests/cli/make.sh model $TMP/m && tests/cli/make.sh poke $TMP/m model.layers.1.input_layernorm.weight 3 7f7f && \
  tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $TMP/m
F 6 "^dpquant: numeric error: " tests/cli/make.sh model $TMP/m && tests/cli/make.sh poke $TMP/m model.norm.weight 3 7fc0 && tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --model $TMP/m \
  --set eval.data=tests/models/tiny/heldout.h5 --set eval.samples=3
F 6 "^dpquant: numeric error: " tests/cli/make.sh model $TMP/m && tests/cli/make.sh poke $TMP/m model.norm.weight 3 7fc0 && tests/cli/refused.sh 2 eval --model $TMP/m --data tests/models/tiny/heldout.h5 --samples 3

# ---- no room
F 4 "^dpquant: file system error: .*(model.safetensors|large|limit)" ON='0:ulimit -f 1000' tests/cli/refused.sh 2 --config tests/cli/tiny.yaml
F 4 "^dpquant: file system error: .*bytes free, the output needs" mkdir $TMP/small && mount -t tmpfs -o size=1m none $TMP/small 2> /dev/null || exit 77; \
  tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --output $TMP/small/out; code=$?; test -z "$(ls $TMP/small)" || code=95; umount $TMP/small; exit $code
