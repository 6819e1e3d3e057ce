#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SignRound of auto-round on token windows of an HDF5 file, for side-by-side timing.

usage: peer_autoround.py --model DIR --data FILE.h5 --samples N --output DIR --steps S --bits B --group-size G

Prints `seconds X` (the tuning alone, without loading and saving) and `peak_mib Y` (of this process). The output holds the
quantized-dequantized weights as an ordinary model, so that dpquant eval can measure it.
Needs auto-round and h5py from PyPI; not needed to build or run dpquant.
"""
import argparse
import resource
import time


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=128)
    args = parser.parse_args()

    import h5py
    import torch
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with h5py.File(args.data) as file:
        ids = torch.tensor(file["input_ids"][: args.samples].astype("int64"))
    rows = [{"input_ids": row[None], "attention_mask": torch.ones_like(row[None])} for row in ids]
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    tuner = AutoRound(
        model,
        AutoTokenizer.from_pretrained(args.model),
        bits=args.bits,
        group_size=args.group_size,
        sym=True,
        iters=args.steps,
        nsamples=len(rows),
        seqlen=ids.shape[1],
        batch_size=8,
        dataset=rows,
        device_map="cpu",
    )
    start = time.perf_counter()
    tuner.quantize()
    print(f"seconds {time.perf_counter() - start:.2f}", flush=True)
    print(f"peak_mib {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f}", flush=True)
    tuner.save_quantized(args.output, format="fake", inplace=True)


if __name__ == "__main__":
    main()
