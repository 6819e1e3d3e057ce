# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights in every architecture and spelling that dpquant reads. Weights are large enough for
positions, windows, norms and biases to show in the logits."""

import copy
import os

import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from reader_common import VOCAB, read_config, write_config

CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SIZES = dict(
    vocab_size=VOCAB, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, rms_norm_eps=1e-5,
)
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
PLAIN3 = {"rope_type": "default", "rope_theta": 500000.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
YARN_SET = dict(YARN, beta_fast=16.0, beta_slow=2.0, attention_factor=1.3, truncate=False)
YARN_MSCALE = dict(YARN, mscale=0.8, mscale_all_dim=0.5)
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}

WINDOWS = {"use_sliding_window": True, "sliding_window": 20, "num_hidden_layers": 3}

# name: (architecture, settings, dtype, control). A control makes the model wrong in one way (settings of config.json to
# change, or "bias" / "qk_norm" to take away); the logits must tell.
MODELS = {
    "llama": ("llama", {}, "bfloat16", {"rope_parameters": LINEAR}),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}, "float32", {"rms_norm_eps": 1e-2}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True}, "float16", "bias"),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3, "head_dim": 64}, "bfloat16", {"rope_parameters": PLAIN3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}, "float32", {"rope_parameters": PLAIN}),
    "llama-yarn-set": ("llama", {"rope_parameters": YARN_SET}, "bfloat16", {"rope_parameters": YARN}),
    "llama-yarn-mscale": ("llama", {"rope_parameters": YARN_MSCALE}, "bfloat16", {"rope_parameters": YARN}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}, "bfloat16", {"rope_parameters": PLAIN}),
    "mistral-window": ("mistral", {"sliding_window": 24, "num_hidden_layers": 3}, "bfloat16", {"sliding_window": 25}),
    "mistral-full": ("mistral", {"sliding_window": None, "head_dim": 48}, "float16", {"sliding_window": 24}),
    "qwen2": ("qwen2", {"sliding_window": 24, "use_sliding_window": False}, "bfloat16", "bias"),
    "qwen2-tied": (
        "qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}, "float32", {"rope_parameters": PLAIN}
    ),
    "qwen2-window": (
        "qwen2", {**WINDOWS, "max_window_layers": 1}, "bfloat16", {"layer_types": ["sliding_attention"] * 3}
    ),
    "qwen3": ("qwen3", {"head_dim": 48}, "bfloat16", "qk_norm"),
    "qwen3-bias-tied": (
        "qwen3", {"head_dim": 64, "attention_bias": True, "tie_word_embeddings": True}, "float16", "bias"
    ),
    "qwen3-window": (
        "qwen3", {**WINDOWS, "head_dim": 32, "max_window_layers": 2}, "float32", {"layer_types": ["full_attention"] * 3}
    ),
}


def fill(model, seed):
    """Random weights: unit gain, sharp attention, norms and biases away from 1 and 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() == 2:
                gain = 2.0 if "q_proj" in name or "k_proj" in name else 1.0
                p.copy_(noise * gain / p.shape[1] ** 0.5 if "embed" not in name else noise)
            elif name.endswith("bias"):
                p.copy_(0.5 * noise)
            else:
                p.copy_(1.0 + 0.3 * noise)


def make_model(folder, name, shard="5GB"):
    """Writes model NAME of MODELS to FOLDER."""
    architecture, settings, dtype, _ = MODELS[name]
    config_class, model_class = CLASSES[architecture]
    config = config_class(**{**copy.deepcopy(SIZES), **copy.deepcopy(settings)})
    model = model_class(config)
    fill(model, sum(name.encode()))
    if config.tie_word_embeddings:
        model.tie_weights()
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shard)


def linked_copy(source, folder, edit):
    """FOLDER with links to the files of SOURCE and a config.json changed by EDIT."""
    os.makedirs(folder)
    for file in os.listdir(source):
        if file != "config.json":
            os.symlink(os.path.abspath(os.path.join(source, file)), os.path.join(folder, file))
    config = read_config(source)
    edit(config)
    write_config(folder, config)


def old_spelling(config):
    """rope_parameters as files had them before: rope_theta and rope_scaling with "type", and torch_dtype."""
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"rope_type" if kind == "llama3" else "type": kind, **rope}
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)


def apply_control(loaded, control):
    """Takes biases or q/k norms away from a loaded model."""
    with torch.no_grad():
        for name, p in loaded.named_parameters():
            if control == "bias" and name.endswith("bias"):
                p.zero_()
            if control == "qk_norm" and ("q_norm" in name or "k_norm" in name):
                p.fill_(1.0)
