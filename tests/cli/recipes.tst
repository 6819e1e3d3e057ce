# SPDX-License-Identifier: Apache-2.0
# Every ready recipe of configs/ runs, and inspect and eval read what it wrote. A recipe without a line here fails the first case.

P 0 "" for f in configs/*.yaml; do grep -q "tests/cli/recipe.sh $(basename $f .yaml) " tests/cli/recipes.tst || { echo "$f is not tested"; exit 1; }; done
P 0 "^W4 group 128 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh demo 2
P 0 "^W4 group 128 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh gptq-w4a16 2
P 0 "^W8 group 128 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh gptq-w8a16 1
P 0 "^W3 group 64 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh gptq-w3a16 2
P 0 "^W2 group 32 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh gptq-w2a16 1
P 0 "^W4 group 128 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh rtn-w4a16 1
P 0 "^W8 group 128 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh rtn-w8a16 2
P 0 "^W3 group 64 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh rtn-w3a16 1
P 0 "^W2 group 32 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh rtn-w2a16 2
P 0 "^W4 group 128 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh signround-w4a16 2
P 0 "^W4 group 128 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh signround-w4a16-best 1
P 0 "^W4 group 128 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh signround-w4a16-light 2
P 0 "^W3 group 64 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh signround-w3a16 1
P 0 "^W2 group 32 symmetric, 28 modules, perplexity [0-9.]+" tests/cli/recipe.sh signround-w2a16 2

# settings: flags and --set in order over the recipe; a scheme sets three keys, which may then be overridden; paths follow the recipe
P 0 "^  quantize.bits: 3$" $DPQ --config tests/cli/tiny.yaml --set quantize.bits=2 --set quantize.bits=3 --output $TMP/out --plan
P 0 "^  quantize.bits: 8$" $DPQ --config tests/cli/tiny.yaml --set quantize.bits=2 --set quantize.scheme=W8A16_ASYM --output $TMP/out --plan
P 0 "^  quantize.symmetric: false$" $DPQ --config tests/cli/tiny.yaml --set quantize.scheme=W8A16_ASYM --output $TMP/out --plan
P 0 "^  quantize.bits: 2$" $DPQ --config tests/cli/tiny.yaml --set quantize.scheme=W8A16 --set quantize.bits=2 --output $TMP/out --plan
P 0 "W8 group 32 asymmetric" printf 'model: m\noutput: out\nquantize:\n  group_size: 32\n  scheme: W8A16_ASYM\n  algorithm: rtn\nrtn:\n  importance: false\n' > $TMP/r.yaml && \
  tests/cli/make.sh model $TMP/m && $DPQ --config $TMP/r.yaml && $DPQ inspect $TMP/out
P 0 "^  model: /nowhere$" $DPQ --config tests/cli/tiny.yaml --model tests/models/tiny --set model=/nowhere --output $TMP/out; test $? = 3
P 0 "^  quantize.ignore: \[lm_head, model.layers.0.self_attn.o_proj\]$" $DPQ --config tests/cli/tiny.yaml --set quantize.ignore=lm_head,model.layers.0.self_attn.o_proj \
  --output $TMP/out --plan
# mixed precision and modules left out
P 0 "mixed" cat tests/cli/tiny.yaml > $TMP/r.yaml && printf '  ignore: ["re:.*layers\\\\.3\\\\."]\n  overrides:\n    - {match: "re:.*down_proj", bits: 8, group_size: 64}\n' >> $TMP/r.yaml && \
  $MPIRUN 2 $DPQ --config $TMP/r.yaml --model tests/models/tiny --set calibration.data=tests/models/tiny/calib.h5 --output $SUITE_TMP/mixed
P 0 "W8 group 64 symmetric: 3 modules" $DPQ inspect $SUITE_TMP/mixed
P 0 "^perplexity  *1[67]\." $DPQ eval --model $SUITE_TMP/mixed --reference tests/models/tiny --data tests/models/tiny/heldout.h5 --samples 4

# the folder: side files and tensors that stay are the source's, several shards have an index, symbolic links are followed
P 0 "^kept" $DPQ --config tests/cli/tiny.yaml --set quantize.algorithm=rtn --set export.shard_size=500K --output $SUITE_TMP/shards && \
  for f in tokenizer.json tokenizer_config.json generation_config.json README.md; do cmp tests/models/tiny/$f $SUITE_TMP/shards/$f || exit 1; done; \
  test -s $SUITE_TMP/shards/model.safetensors.index.json && test ! -e $SUITE_TMP/shards/calib.h5 && echo kept
P 0 "in [4-9] files," $DPQ inspect $SUITE_TMP/shards
P 0 "" mkdir $TMP/m && ln -s $PWD/tests/models/tiny/* $TMP/m && $DPQ --config tests/cli/tiny.yaml --model $TMP/m --output $TMP/out && \
  test -z "$(find $TMP/out -type l)" && cmp $TMP/out/tokenizer.json tests/models/tiny/tokenizer.json
P 0 "" $DPQ --config tests/cli/tiny.yaml --set quantize.algorithm=rtn --output $TMP/a/b/out && test -e $TMP/a/b/out/dpquant.json

# start and progress lines
P 0 "rank 2 of 3: host .*, device cpu, 1 thread, .* core" $MPIRUN 3 $DPQ --config tests/cli/tiny.yaml --set run.threads=1 --output $TMP/out
P 0 "Starting distributed execution with 3 ranks" $MPIRUN 3 $DPQ --config tests/cli/tiny.yaml --output $TMP/out
P 0 "block 4/4 done in .* error" $DPQ --config tests/cli/tiny.yaml --output $TMP/out
P 0 "^1 Starting" $MPIRUN 3 $DPQ --config tests/cli/tiny.yaml --output $TMP/out > $TMP/log 2>&1; echo "$(grep -c 'Starting distributed' $TMP/log) Starting"
P 0 "^usage:" $DPQ --help
P 0 "oneDNN" $DPQ --version
