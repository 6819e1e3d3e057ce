#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One-shot GPTQ or RTN of llm-compressor on token windows of an HDF5 file, for side-by-side timing.

usage: peer_llmcompressor.py --model DIR --data FILE.h5 --samples N --output DIR --algorithm gptq|rtn --bits B --group-size G

Prints `seconds X` (the one-shot alone, without loading and saving) and `peak_mib Y` (of this process).
Needs llmcompressor and h5py from PyPI; not needed to build or run dpquant.
"""
import argparse
import resource
import shutil
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--output", required=True)
    parser.add_argument("--algorithm", choices=["gptq", "rtn"], default="gptq")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=128)
    args = parser.parse_args()

    import h5py
    import torch
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
    from transformers import AutoModelForCausalLM

    with h5py.File(args.data) as file:
        ids = file["input_ids"][: args.samples]
    rows = [[int(token) for token in row] for row in ids]
    data = Dataset.from_dict({"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]})
    weights = QuantizationArgs(
        num_bits=args.bits, type="int", symmetric=True, strategy="group", group_size=args.group_size
    )
    modifier = GPTQModifier if args.algorithm == "gptq" else QuantizationModifier
    recipe = modifier(
        config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}, ignore=["lm_head"]
    )
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    start = time.perf_counter()
    oneshot(
        model=model,
        dataset=data,
        recipe=recipe,
        max_seq_length=ids.shape[1],
        num_calibration_samples=len(rows),
    )
    print(f"seconds {time.perf_counter() - start:.2f}", flush=True)
    print(f"peak_mib {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f}", flush=True)
    model.save_pretrained(args.output, save_compressed=True)
    for name in Path(args.model).glob("tokenizer*"):
        shutil.copy(name, args.output)


if __name__ == "__main__":
    main()
