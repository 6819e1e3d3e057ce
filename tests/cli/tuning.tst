# SPDX-License-Identifier: Apache-2.0
# Tuning of whole blocks: equal bytes for any number of ranks and threads, options that matter, refusals. See scripts/run_clitests.sh for the format.

P 0 "^5 folders are equal" tests/cli/same.sh "1x1 2x2 3x1 4x1 1x8" --config tests/cli/tiny.yaml --set quantize.algorithm=signround \
  --set calibration.samples=9 --set signround.iterations=4
P 0 "^3 folders are equal" tests/cli/same.sh "1x2 2x1 3x1" --config tests/cli/tiny.yaml --set quantize.algorithm=signround --set quantize.symmetric=false \
  --set calibration.samples=9 --set signround.iterations=3 --set signround.momentum=0.9 --set signround.best_step=batch
P 0 "^3 folders are equal" tests/cli/same.sh "1x1 2x1 4x2" --config tests/cli/tiny.yaml --set quantize.algorithm=signround --set quantize.bits=2 \
  --set quantize.group_size=32 --set calibration.samples=6 --set signround.iterations=3 --set signround.best_step=fixed --set signround.accumulate=2 \
  --set signround.batch=2 --set run.gradient_transport=int16
P 0 "^3 folders are equal" tests/cli/same.sh "1x1 2x1 3x1" --config tests/cli/tiny.yaml --set quantize.algorithm=adaround --set calibration.samples=8 \
  --set signround.iterations=3 --set signround.init_scale=minmax --set quantize.signed_scale=false
P 0 "^2 folders are equal" tests/cli/same.sh "1x2 2x1" --config tests/cli/tiny.yaml --set quantize.algorithm=signround --set calibration.samples=4 \
  --set signround.iterations=2 --set run.precision=fp32 --set signround.early_stop=1
# ragged samples, fewer than ranks, fewer than the batch
P 0 "" tests/cli/make.sh ragged tests/models/tiny/calib.h5 $SUITE_TMP/ragged.h5 3 211
P 0 "^3 folders are equal" tests/cli/same.sh "1x1 2x1 4x1" --config tests/cli/tiny.yaml --set quantize.algorithm=signround --set calibration.samples=0 \
  --set calibration.data=$SUITE_TMP/ragged.h5 --set signround.iterations=3

# activations in a file: the same result
P 0 "^same" for m in false true; do $DPQ --config tests/cli/tiny.yaml --set quantize.algorithm=signround --set calibration.samples=3 --set signround.iterations=2 \
  --set run.low_memory=$m --set run.scratch=$TMP --output $TMP/$m > $TMP/log 2>&1 || exit 1; done; diff -r -x dpquant-run.json $TMP/false $TMP/true && echo same
F 4 "dpquant: .*scratch file" $DPQ --config tests/cli/tiny.yaml --set quantize.algorithm=signround --set run.low_memory=true --set run.scratch=/nowhere --output $TMP/out

# no steps: the searched scales alone; steps lower the loss and change the codes
P 0 "" $DPQ --config tests/cli/tiny.yaml --set quantize.algorithm=signround --set calibration.samples=4 --set signround.iterations=0 --output $TMP/out
P 0 "^Binary files .*model.safetensors" for n in 0 4; do $DPQ --config tests/cli/tiny.yaml --set quantize.algorithm=signround --set calibration.samples=4 \
  --set signround.iterations=$n --output $TMP/$n > $TMP/log 2>&1 || exit 1; done; diff -r -x '*.json' $TMP/0 $TMP/4 || true
P 0 "reductions .* beside the backward pass" $MPIRUN 2 $DPQ --config tests/cli/tiny.yaml --set quantize.algorithm=signround --set calibration.samples=4 \
  --set signround.iterations=2 --output $TMP/out
P 0 "\"initial_loss\": [0-9]" $DPQ --config tests/cli/tiny.yaml --set quantize.algorithm=signround --set calibration.samples=4 --set signround.iterations=2 \
  --output $TMP/out > $TMP/log 2>&1 && cat $TMP/out/dpquant.json

# ranks that work
P 0 "2 of 3 ranks work" $MPIRUN 3 $DPQ --config tests/cli/tiny.yaml --set calibration.samples=3 --set run.ranks=2 --output $TMP/out
P 0 "^same" for r in 2 auto; do $MPIRUN 3 $DPQ --config tests/cli/tiny.yaml --set calibration.samples=3 --set run.ranks=$r --output $TMP/$r > $TMP/log 2>&1 || exit 1; \
  done; diff -r -x dpquant-run.json $TMP/2 $TMP/auto && echo same
F 2 "run.ranks: 3 are stated, but the job was started with 2" $MPIRUN 2 $DPQ --config tests/cli/tiny.yaml --set run.ranks=3 --output $TMP/out
F 2 "run.ranks: expected auto or a positive integer" $DPQ --config tests/cli/tiny.yaml --set run.ranks=some --output $TMP/out
# a rank whose replica of the model differs
P 0 "" cp -r tests/models/tiny $SUITE_TMP/other && printf '\001' | dd of=$SUITE_TMP/other/model.safetensors bs=1 seek=3000000 conv=notrunc 2> /dev/null
F 3 "differs between ranks: all must read the same model" $MPIRUN 2 tests/cli/on_rank.sh 1 "set -- \"\$@\" --model $SUITE_TMP/other" \
  $DPQ --config tests/cli/tiny.yaml --set calibration.samples=3 --output $TMP/out
