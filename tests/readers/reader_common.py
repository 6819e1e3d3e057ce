# SPDX-License-Identifier: Apache-2.0
"""What the reader checks share: counting, starting dpquant, logits from both sides."""

import json
import os
import subprocess

import h5py
import numpy as np
import torch
from transformers import AutoModelForCausalLM

SEQLEN = 96
VOCAB = 320


class Checks:
    """Prints one line per check and counts."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def check(self, name, good, detail=""):
        self.passed += bool(good)
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}{': ' + detail if detail else ''}", flush=True)
        return good

    def skip(self, name, why):
        self.skipped += 1
        print(f"skip {name}: {why}", flush=True)

    @staticmethod
    def describe(error):
        return f"{type(error).__name__}: {error}"

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        return 0 if self.failed == 0 else 1


def write_tokens(path, rows, seed, vocab=VOCAB, seqlen=SEQLEN):
    """Random token windows."""
    ids = np.random.default_rng(seed).integers(0, vocab, (rows, seqlen), dtype=np.int32)
    with h5py.File(path, "w") as f:
        f.create_dataset("input_ids", data=ids)
    return torch.from_numpy(ids.astype(np.int64))


def run_program(command, environment=None):
    """(exit code, last lines of output)."""
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.returncode, "\n".join(done.stdout.splitlines()[-8:])


def quantize(model, output, calibration, settings, recipe=None):
    """Runs dpquant on one rank; settings as KEY=VALUE, overrides only through the text of a recipe."""
    command = [os.environ["DPQ"]]
    if recipe is not None:
        path = f"{output}.yaml"
        with open(path, "w", encoding="utf-8") as f:
            f.write(recipe)
        command += ["--config", path]
    command += ["--model", model, "--output", output]
    for setting in [f"calibration.data={calibration}", "calibration.samples=0", *settings]:
        command += ["--set", setting]
    code, text = run_program(command)
    if code != 0:
        raise RuntimeError(f"dpquant: exit code {code}: {text}")


def our_logits(model, data, ids, bf16=False):
    """Logits (samples, tokens, vocabulary) as dpquant computes them."""
    path = f"{data}.logits"
    command = [os.environ["DUMP_LOGITS"], model, data, path] + (["bf16"] if bf16 else [])
    code, text = run_program(command)
    if code != 0:
        raise RuntimeError(f"dump_logits: exit code {code}: {text}")
    logits = torch.from_numpy(np.fromfile(path, dtype="<f4"))
    os.remove(path)
    return logits.reshape(*ids.shape, -1)


def load(model, dtype=torch.float32):
    """(model, loading info) by transformers."""
    loaded, info = AutoModelForCausalLM.from_pretrained(
        model, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    loaded.eval()
    return loaded, info


def their_logits(loaded, ids):
    """Logits as transformers computes them."""
    with torch.no_grad():
        return torch.stack([loaded(row[None], use_cache=False).logits[0].float() for row in ids])


def relative(found, expected):
    """Relative Frobenius distance."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def read_config(folder):
    """config.json."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        return json.load(f)


def write_config(folder, config):
    """config.json."""
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
