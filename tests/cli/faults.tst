# SPDX-License-Identifier: Apache-2.0
# Faults of one rank: the whole job ends within seconds, with the exit code of that fault and one line that names the rank.
# ON='RANK:SHELL' changes the command of one rank (tests/cli/on_rank.sh).

# another model folder on rank 1: corrupt, missing, a wrong value in the middle of the run
F 3 "^dpquant: bad input: rank 1 of 2 .*model.safetensors" tests/cli/make.sh model $TMP/bad && truncate -s 5000000 $TMP/bad/model.safetensors && \
  ON='1:set -- "$@" --model $TMP/bad' tests/cli/refused.sh 2 --config tests/cli/tiny.yaml
F 3 "^dpquant: bad input: rank 2 of 3 .*none" ON='2:set -- "$@" --model $TMP/none' tests/cli/refused.sh 3 --config tests/cli/tiny.yaml
F 3 "^dpquant: not supported: rank 1 of 3 .*gelu_new" tests/cli/make.sh model $TMP/bad 's/"silu"/"gelu_new"/' && \
  ON='1:set -- "$@" --model $TMP/bad' tests/cli/refused.sh 3 --config tests/cli/tiny.yaml
F 3 "^dpquant: bad input: rank 0 of 2 .*: layer 2: model.layers.2.mlp.down_proj differs between ranks: all must read the same model" tests/cli/make.sh model $TMP/bad && \
  tests/cli/make.sh poke $TMP/bad model.layers.2.mlp.down_proj.weight 160000 7fc0 && \
  ON='1:set -- "$@" --model $TMP/bad' tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --set quantize.algorithm=rtn --set rtn.importance=false
F 3 "^dpquant: bad input: rank 0 of 3 .*: layer 2: a norm differs between ranks: all must read the same model" tests/cli/make.sh model $TMP/bad && \
  tests/cli/make.sh poke $TMP/bad model.layers.2.input_layernorm.weight 9 7fc0 && \
  ON='1:set -- "$@" --model $TMP/bad' tests/cli/refused.sh 3 --config tests/cli/tiny.yaml
# a rank with a wrong flag of its own
F 2 "^dpquant: configuration error: rank 1 of 2 .*quantize.bits" ON='1:set -- "$@" --set quantize.bits=11' tests/cli/refused.sh 2 --config tests/cli/tiny.yaml
F 2 "^dpquant: usage error: rank 1 of 3 .*--nonsense" ON='1:set -- "$@" --nonsense' tests/cli/refused.sh 3 --config tests/cli/tiny.yaml
F 2 "^dpquant: usage error: rank 2 of 3 .*--nonsense" ON='2:set -- "$@" --nonsense' tests/cli/refused.sh 3 eval --model tests/models/tiny --data tests/models/tiny/heldout.h5

# out of memory on one rank
P 0 "" tests/cli/make.sh windows tests/models/tiny/calib.h5 $SUITE_TMP/many.h5 1200 512
F 4 "^dpquant: out of memory: .*rank 1 of 2" ON='1:ulimit -v 800000' tests/cli/refused.sh 2 --config tests/cli/tiny.yaml --set run.threads=1 \
  --set calibration.data=$SUITE_TMP/many.h5 --set calibration.samples=0
F 4 "^dpquant: out of memory: .*rank 0 of 3" ON='0:ulimit -v 700000' tests/cli/refused.sh 3 --config tests/cli/tiny.yaml --set run.threads=1 \
  --set calibration.data=$SUITE_TMP/many.h5 --set calibration.samples=0
F 4 "^dpquant: out of memory: " ON='0:ulimit -v 800000' tests/cli/refused.sh 0 --config tests/cli/tiny.yaml --set run.threads=1 \
  --set calibration.data=$SUITE_TMP/many.h5 --set calibration.samples=0

# rank 0 cannot write
F 4 "^dpquant: file system error: rank 0 of 3 " ON='0:ulimit -f 1000' tests/cli/refused.sh 3 --config tests/cli/tiny.yaml

# a rank that is killed takes the job with it; nothing appears under the final name, and the next run clears what was left
P 0 "^ended in [0-9]* s, exit code [1-9]" tests/cli/kill_rank.sh 2 1 --config tests/cli/tiny.yaml --set calibration.samples=0 --output $SUITE_TMP/killed && \
  test ! -e $SUITE_TMP/killed
P 0 "^ended in [0-9]* s, exit code [1-9]" tests/cli/kill_rank.sh 3 0 --config tests/cli/tiny.yaml --set calibration.samples=0 --output $SUITE_TMP/killed && \
  test ! -e $SUITE_TMP/killed
P 0 "" $MPIRUN 2 $DPQ --config tests/cli/tiny.yaml --output $SUITE_TMP/killed && test "$(ls -d $SUITE_TMP/killed*)" = $SUITE_TMP/killed
