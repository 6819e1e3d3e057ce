# SPDX-License-Identifier: Apache-2.0
"""Perplexity of 4-bit folders as vLLM serves them, against dpquant eval.
As a program, check_served.py WINDOWS.h5 N OUT.json MODEL serves one."""

import json
import math
import os
import sys
from importlib.util import find_spec

import h5py

from reader_common import quantize, run_program

TINY = "tests/models/tiny"
HELDOUT = f"{TINY}/heldout.h5"
WINDOWS = 16
LIMIT = 0.005
FOLDERS = (
    ("gptq", 128, "true"), ("gptq", 128, "false"), ("rtn", 32, "true"), ("gptq", -1, "true"),
)


def serve(data, windows, out, model):
    """Perplexity of the tokens after the first of each window, from vLLM's own likelihoods of the prompt."""
    from vllm import LLM, SamplingParams

    with h5py.File(data) as f:
        ids = f["input_ids"][:windows]
    # A prompt and the token to come must fit into the model's positions: the last token of a window is left out.
    prompts = [{"prompt_token_ids": row[:-1].tolist()} for row in ids]
    engine = LLM(model, dtype="bfloat16", enforce_eager=True, max_model_len=ids.shape[1], max_num_seqs=4)
    answers = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    values = []
    for answer in answers:
        values += [p[t].logprob for p, t in zip(answer.prompt_logprobs[1:], answer.prompt_token_ids[1:])]
    with open(out, "w", encoding="utf-8") as f:
        json.dump({"perplexity": math.exp(-sum(values) / len(values)), "tokens": len(values)}, f)


def served_perplexity(work, model):
    """serve() in a process of its own: the engine keeps memory and threads."""
    out = os.path.join(work, "served.json")
    environment = dict(os.environ, VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="ERROR")
    command = [sys.executable, os.path.abspath(__file__), HELDOUT, str(WINDOWS), out, model]
    code, text = run_program(command, environment)
    if code != 0:
        raise RuntimeError(f"vllm: exit code {code}: {text}")
    with open(out, encoding="utf-8") as f:
        return json.load(f)


def our_perplexity(work, model, seqlen):
    """dpquant eval in bf16 on the same tokens."""
    out = os.path.join(work, "eval.json")
    command = [os.environ["DPQ"], "eval", "--model", model, "--data", HELDOUT, "--samples", str(WINDOWS),
               "--seqlen", str(seqlen), "--precision", "bf16", "--json", out]
    code, text = run_program(command)
    if code != 0:
        raise RuntimeError(f"dpquant eval: exit code {code}: {text}")
    with open(out, encoding="utf-8") as f:
        return json.load(f)


def run(checks, work):
    """The demo model, 4 bits: symmetric with scales of either sign, asymmetric, whole rows, two group sizes."""
    if find_spec("vllm") is None:
        checks.skip("served", "no vllm in this Python")
        return
    work = os.path.join(work, "served")
    os.makedirs(work)
    for algorithm, group, symmetric in FOLDERS:
        title = f"served W4 group {group} {algorithm}, symmetric {symmetric}"
        folder = os.path.join(work, f"{algorithm}-{group}-{symmetric}")
        try:
            quantize(TINY, folder, f"{TINY}/calib.h5", [
                f"quantize.algorithm={algorithm}", f"quantize.group_size={group}",
                f"quantize.symmetric={symmetric}"])
            served = served_perplexity(work, folder)
            ours = our_perplexity(work, folder, 511)
            error = abs(served["perplexity"] / ours["perplexity"] - 1.0)
            detail = f"perplexity {served['perplexity']:.4f} served, {ours['perplexity']:.4f} ours"
            detail += f", {served['tokens']} and {ours['tokens']} tokens"
            checks.check(title, error <= LIMIT and served["tokens"] == ours["tokens"], detail)
        except RuntimeError as error:
            checks.check(title, False, str(error))


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
