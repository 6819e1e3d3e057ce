# SPDX-License-Identifier: Apache-2.0
# One recipe, one output: folders are equal byte for byte for any number of ranks and threads.
# 5 samples: ranks have unequal shares; with 3 samples some of 4 ranks have none.

P 0 "^5 folders are equal" tests/cli/same.sh "1x1 2x2 3x1 4x1 1x8" --config tests/cli/tiny.yaml \
  --set eval.data=tests/models/tiny/heldout.h5 --set eval.samples=3
P 0 "^3 folders are equal" tests/cli/same.sh "1x1 2x2 3x1" --config tests/cli/tiny.yaml --set gptq.true_sequential=false
P 0 "^3 folders are equal" tests/cli/same.sh "1x1 2x8 3x2" --config tests/cli/tiny.yaml --set gptq.order=group --set quantize.bits=3 \
  --set quantize.group_size=64 --set gptq.group_scales=dynamic
P 0 "^3 folders are equal" tests/cli/same.sh "1x2 2x1 3x1" --config tests/cli/tiny.yaml --set gptq.order=none --set quantize.symmetric=false \
  --set gptq.group_scales=dynamic --set gptq.scale_search=mse
P 0 "^3 folders are equal" tests/cli/same.sh "1x1 2x8 4x1" --config tests/cli/tiny.yaml --set quantize.algorithm=rtn --set quantize.bits=2 \
  --set quantize.group_size=32
P 0 "^2 folders are equal" tests/cli/same.sh "1x2 3x1" --config tests/cli/tiny.yaml --set quantize.algorithm=rtn \
  --set rtn.importance=false --set quantize.scheme=W8A16 --set quantize.group_size=-1 --set export.shard_size=1MB
P 0 "^2 folders are equal" tests/cli/same.sh "1x1 3x2" --config tests/cli/tiny.yaml --set run.precision=fp32 --set calibration.samples=3 \
  --set calibration.shuffle=true --set calibration.seed=7
P 0 "^2 folders are equal" tests/cli/same.sh "1x2 3x1" --config tests/cli/tiny.yaml --set run.compute=fp32 --set calibration.samples=3

# ragged rows: padding left and right, odd lengths, fewer samples than ranks
P 0 "" tests/cli/make.sh ragged tests/models/tiny/calib.h5 $SUITE_TMP/ragged.h5 3 211
P 0 "^4 folders are equal" tests/cli/same.sh "1x1 2x1 3x2 4x1" --config tests/cli/tiny.yaml --set calibration.data=$SUITE_TMP/ragged.h5 \
  --set calibration.samples=0 --set eval.data=$SUITE_TMP/ragged.h5
P 0 "^2 folders are equal" tests/cli/same.sh "1x1 4x2" --config tests/cli/tiny.yaml --set calibration.data=$SUITE_TMP/ragged.h5 \
  --set calibration.samples=0 --set calibration.seqlen=33 --set quantize.algorithm=rtn
# padding goes nowhere: samples of 211, 113 and 17 tokens with ids outside of the vocabulary around them
P 0 "\"tokens\": 341,$" $MPIRUN 2 $DPQ --config tests/cli/tiny.yaml --set calibration.data=$SUITE_TMP/ragged.h5 \
  --set calibration.samples=0 --output $TMP/out > $TMP/log 2>&1 && sed -n '/"calibration"/,/}/p' $TMP/out/dpquant.json

# samples of 2048 tokens and a model with that context
P 0 "" tests/cli/make.sh model $SUITE_TMP/long 's/"max_position_embeddings": 512/"max_position_embeddings": 2048/' && \
  tests/cli/make.sh windows tests/models/tiny/calib.h5 $SUITE_TMP/long.h5 3 2048
P 0 "^4 folders are equal" tests/cli/same.sh "1x1 2x1 3x1 1x8" --config tests/cli/tiny.yaml --model $SUITE_TMP/long \
  --set calibration.data=$SUITE_TMP/long.h5 --set calibration.samples=3

# two runs are equal, wherever they lie and whatever the recipe's other settings are; dpquant.json names no place, rank or time
P 0 "^same" for n in 1 2; do cp -r tests/models/tiny $TMP/model$n && cp tests/models/tiny/calib.h5 $TMP/c$n.h5 && $MPIRUN $n $DPQ --config tests/cli/tiny.yaml \
  --model $TMP/model$n --set calibration.data=$TMP/c$n.h5 --output $TMP/out$n --set run.log_level=debug > $TMP/log 2>&1 || exit 1; done; \
  diff -r -x dpquant-run.json $TMP/out1 $TMP/out2 && echo same
F 1 "" $DPQ --config tests/cli/tiny.yaml --output $TMP/out > $TMP/log 2>&1 || exit 2; grep -nE "$TMP|calib\.h5|models/tiny|rank|second|host|thread|$(hostname)\"" $TMP/out/dpquant.json
P 0 "" $MPIRUN 3 $DPQ --config tests/cli/tiny.yaml --output $TMP/out > $TMP/log 2>&1 && grep -q '"ranks"' $TMP/out/dpquant-run.json && \
  grep -q '"host"' $TMP/out/dpquant-run.json && grep -q "$TMP/out" $TMP/out/dpquant-run.json

# settings that shape the result do change it
F 1 "^Binary files .*model.safetensors" for s in 42 43; do $DPQ --config tests/cli/tiny.yaml --set calibration.shuffle=true --set calibration.seed=$s --output $TMP/$s \
  > $TMP/log 2>&1 || exit 2; done; diff -r -x dpquant-run.json $TMP/42 $TMP/43

# eval is equal for every number of ranks
P 0 "^equal" for n in 1 2 3; do $MPIRUN $n $DPQ eval --model tests/models/tiny --reference $SUITE_TMP/long --data $SUITE_TMP/ragged.h5 --json $TMP/$n.json \
  > $TMP/log 2>&1 || exit 1; done; cmp $TMP/1.json $TMP/2.json && cmp $TMP/1.json $TMP/3.json && echo equal
