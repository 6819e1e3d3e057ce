# SPDX-License-Identifier: Apache-2.0
# --plan prints work, memory, bytes and time, and writes nothing.

P 0 "^  model.layers.0.mlp.down_proj +256 x 640 +W4 group 128 symmetric +4 layers" $MPIRUN 2 $DPQ --config configs/gptq-w4a16.yaml --output $TMP/out --plan && test -z "$(ls $TMP)"
P 0 "^memory per rank on the host, MiB: weights [0-9.]+, .*activations [0-9.]+.* peak [0-9.]+ .device: none" $DPQ --config configs/gptq-w4a16.yaml --output $TMP/out --plan
P 0 "^to be reduced [0-9.]+ MiB, gathered [0-9.]+ MiB; to be written 2.4 MiB in 1 file" $DPQ --config configs/gptq-w4a16.yaml --output $TMP/out --plan
P 0 "^estimate: [0-9]+ s at a measured [0-9]+ GFLOP/s over all ranks" $MPIRUN 3 $DPQ --config configs/gptq-w4a16.yaml --output $TMP/out --plan
P 0 "in 4 files" $DPQ --config configs/gptq-w4a16.yaml --output $TMP/out --plan --set export.shard_size=600K
# missing parents of the output are not made, and an output that would be refused is refused here too
P 0 "" $DPQ --config configs/rtn-w4a16.yaml --output $TMP/a/b/out --plan && test -z "$(ls $TMP)"
F 2 "exists and was not written by dpquant" mkdir $TMP/there && $DPQ --config configs/rtn-w4a16.yaml --output $TMP/there --plan
# what is announced is what is written
P 0 "^same" $DPQ --config tests/cli/tiny.yaml --output $TMP/out --set export.shard_size=700K > $TMP/log 2>&1 && \
  test "$(sed -n 's/.* in \([0-9]*\) files$/\1/p' $TMP/log)" = "$(ls $TMP/out/*.safetensors | wc -l)" && echo same
# the work list names what differs, and what stays as it is
P 0 "^  model.layers.0.self_attn.o_proj .* not quantized +1 layers" $DPQ --config tests/cli/tiny.yaml --output $TMP/out --plan --set quantize.ignore=model.layers.0.self_attn.o_proj
P 0 "warning.*nothing_like_it.* fits no module" $DPQ --config tests/cli/tiny.yaml --output $TMP/out --plan --set quantize.ignore=lm_head,nothing_like_it
