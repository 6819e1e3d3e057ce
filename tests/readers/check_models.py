# SPDX-License-Identifier: Apache-2.0
"""Models made by transformers give the same logits in dpquant: both spellings of config.json, one shard or many."""

import os
import shutil

import torch

from make_models import MODELS, apply_control, linked_copy, make_model, old_spelling
from reader_common import load, our_logits, read_config, relative, their_logits, write_config, write_tokens

FP32_LIMIT = 1e-5
BF16_FACTOR = 1.5  # of the distance between transformers in bf16 and in fp32
CONTROL_LIMIT = 1e-3


def control_distance(folder, wrong, control, ids, right):
    """Distance of a model that is wrong in one way: what the comparison would show."""
    if isinstance(control, str):
        loaded, _ = load(folder)
        apply_control(loaded, control)
    else:
        linked_copy(folder, wrong, lambda config: config.update(control))
        loaded, _ = load(wrong)
    return relative(their_logits(loaded, ids), right)


def check_model(checks, work, name, data, ids):
    """One model: logits in fp32 and bf16, a wrong model told apart, old spelling."""
    folder = os.path.join(work, name)
    make_model(folder, name, shard="150KB" if "window" in name or name == "llama-bias" else "5GB")
    files = [f for f in os.listdir(folder) if f.endswith(".safetensors")]
    loaded, _ = load(folder)
    expected = their_logits(loaded, ids)
    error = relative(our_logits(folder, data, ids), expected)
    checks.check(f"models {name} fp32", error <= FP32_LIMIT, f"relative error {error:.2e}, {len(files)} shard(s)")
    if read_config(folder)["dtype"] == "bfloat16":
        loaded, _ = load(folder, torch.bfloat16)
        noise = relative(their_logits(loaded, ids), expected)
        error = relative(our_logits(folder, data, ids, bf16=True), expected)
        detail = f"relative error {error:.2e}, that of transformers {noise:.2e}"
        checks.check(f"models {name} bf16", error <= BF16_FACTOR * noise, detail)
    error = control_distance(folder, f"{folder}.wrong", MODELS[name][3], ids, expected)
    checks.check(f"models {name} control", error >= CONTROL_LIMIT, f"a wrong model is {error:.2e} away")
    old = f"{folder}.old"
    linked_copy(folder, old, old_spelling)
    error = relative(our_logits(old, data, ids), expected)
    checks.check(f"models {name} old spelling, linked files", error <= FP32_LIMIT, f"relative error {error:.2e}")


def check_defaults(checks, work, data, ids):
    """Optional keys left out: both sides fill in the same defaults of the class."""
    source = os.path.join(work, "llama")
    folder = f"{source}.bare"
    keep = ("architectures", "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "max_position_embeddings")
    shutil.copytree(source, folder)
    config = read_config(folder)
    write_config(folder, {key: config[key] for key in keep})
    loaded, _ = load(folder)
    error = relative(our_logits(folder, data, ids), their_logits(loaded, ids))
    checks.check("models llama, optional keys absent", error <= FP32_LIMIT, f"relative error {error:.2e}")


def run(checks, work):
    """All models."""
    work = os.path.join(work, "models")
    os.makedirs(work)
    data = os.path.join(work, "windows.h5")
    ids = write_tokens(data, 2, seed=1)
    for name in MODELS:
        try:
            check_model(checks, work, name, data, ids)
        except Exception as error:  # a reader that refuses a model is a failed check, the others go on
            checks.check(f"models {name}", False, checks.describe(error))
    check_defaults(checks, work, data, ids)
