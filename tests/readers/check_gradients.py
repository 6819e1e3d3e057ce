# SPDX-License-Identifier: Apache-2.0
"""check_gradients.py MODEL DUMP: weight gradients of block 0 written by dump_gradients against torch autograd in fp64.

MODEL is a Llama folder. Prints the relative error of the output and of each gradient; exit code 1 when one is above 1e-5.
"""
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM

TOKENS = 96
LINEARS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
           "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def error(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


def main():
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float64, attn_implementation="eager").eval()
    layer = model.model.layers[0]
    values = np.fromfile(sys.argv[2], dtype="<f4")
    at = 0

    def take(*shape):
        nonlocal at
        count = int(np.prod(shape))
        part = torch.from_numpy(values[at:at + count].reshape(shape).copy())
        at += count
        return part

    width = model.config.hidden_size
    h, dy, y = (take(TOKENS, width) for _ in range(3))
    positions = torch.arange(TOKENS)[None]
    rotary = model.model.rotary_emb(h[None], positions)  # fp32, as models are served
    rotary = tuple(part.double() for part in rotary)
    mask = torch.full((TOKENS, TOKENS), float("-inf"), dtype=torch.float64).triu(1)[None, None]
    out = layer(h.double()[None], attention_mask=mask, position_ids=positions, position_embeddings=rotary)
    out = out[0] if isinstance(out, tuple) else out
    out = out.reshape(TOKENS, width)
    (out * dy.double()).sum().backward()
    worst = error(y, out.detach())
    print(f"output {worst:.2e}")
    for name in LINEARS:
        weight = layer.get_submodule(name).weight
        found = error(take(*weight.shape), weight.grad)
        print(f"{name} {found:.2e}")
        worst = max(worst, found)
    assert at == len(values), "the dump is longer than expected"
    print(f"{'ok' if worst <= 1e-5 else 'FAIL'}: largest relative error {worst:.2e}")
    return 0 if worst <= 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
