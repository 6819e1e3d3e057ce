#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Five steps of SignRound on a small linear, by automatic differentiation: make_signround.py > signround.txt

The quantizer is written forward only, with straight-through rounding; all gradients come from torch. The loss is
|X (Wq - W)^T|^2; its gradient with respect to Wq is rounded to whole units of 2^-20, as the program receives it. The file
was made with torch 2.x on the CPU; it does not depend on the version as long as fp32 is IEEE.

One line a fact, in the order in which test_signround_golden.c reads them:
  shape N K GROUP TOKENS STEPS
  w ...          bf16 patterns, hexadecimal
  x ...          eighths, integers
then for each case
  case BITS FORM MOMENTUM         FORM: signed, plain, range, scale
and for each of its steps
  loss VALUE                      at the parameters before the step
  v ...                           +, -, 0: how each V moves
  scales ...                      max_scale, min_scale, then scale (fp32 patterns) and zero (signed code) after the step, per group
and at its end
  codes ...                       one letter a code, a = lowest
"""
import struct

import torch

N, K, GROUP, TOKENS, STEPS = 6, 64, 32, 24, 5
UNIT = 2.0**-20


def bits32(t):
    return " ".join("%08x" % struct.unpack("<I", struct.pack("<f", v))[0] for v in t.flatten().tolist())


def ste_round(x):
    return x + (torch.round(x) - x).detach()


def ste_bf16(x):
    return x + (x.to(torch.bfloat16).to(torch.float32) - x).detach()


def grid(form, bits, low, high, max_scale, min_scale):
    code_min, code_max = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    zero = torch.zeros_like(low)
    if form == "range":
        lower, upper = low * min_scale, high * max_scale
        scale = ste_bf16((upper - lower) / (code_max - code_min))
        zero = ste_round(torch.clamp(code_min - lower / scale, code_min, code_max))
    elif form == "scale":
        scale = ste_bf16(high * max_scale)
    else:
        lo, hi = -(low * min_scale), high * max_scale
        extreme = torch.maximum(lo, hi)
        if form == "signed":
            sign = torch.where(lo >= hi, 1.0, -1.0)
            scale = ste_bf16(sign * extreme / 2 ** (bits - 1))
        else:
            scale = ste_bf16(extreme / ((2**bits - 1) / 2))
    return scale, zero, code_min, code_max


def quantize(form, bits, w, v, low, high, max_scale, min_scale):
    scale, zero, code_min, code_max = grid(form, bits, low, high, max_scale, min_scale)
    codes = torch.clamp(ste_round(w / scale + v) + zero, code_min, code_max)
    return ste_bf16((codes - zero) * scale), codes, scale, zero


def run_case(w, x, bits, form, momentum):
    print("case", bits, form, momentum)
    grouped = w.view(N, K // GROUP, GROUP)
    low = grouped.amin(-1, keepdim=True).clamp(max=0.0)
    high = grouped.amax(-1, keepdim=True).clamp(min=0.0)
    if form == "scale":  # a start as a search gives it: some way inside the range
        factor = torch.tensor(0.75)
        scale = torch.maximum(-low, high) * factor / 2 ** (bits - 1)
        high = (torch.where(-low >= high, 1.0, -1.0) * scale).to(torch.bfloat16).to(torch.float32)
        print("start", bits32(high))
    limit = 2.0 if form == "scale" else 1.0
    v = torch.zeros_like(grouped, requires_grad=True)
    max_scale = torch.ones_like(low, requires_grad=True)
    min_scale = torch.ones_like(low, requires_grad=True)
    parameters = [v, max_scale, min_scale]
    past = [torch.zeros_like(p) for p in parameters]
    for step in range(STEPS):
        wq, _, _, _ = quantize(form, bits, grouped, v, low, high, max_scale, min_scale)
        error = (wq.detach().double() - grouped.double()).view(N, K)
        print("loss %.17g" % (x @ error.T).pow(2).sum().item())
        gradient = torch.round(2.0 * (error @ x.T @ x) / UNIT).float().view_as(grouped)
        for p in parameters:
            p.grad = None
        (wq * gradient).sum().backward()
        lr = torch.tensor(1.0 / STEPS * (1.0 - step / STEPS), dtype=torch.float64).float()
        with torch.no_grad():
            for p, buffer in zip(parameters, past):
                if p.grad is None:
                    continue
                buffer.mul_(momentum).add_(p.grad)
                p -= lr * torch.sign(buffer)
            max_scale.clamp_(0.0, limit)
            min_scale.clamp_(0.0, limit)
        print("v", "".join("0+-"[int(s)] for s in (-torch.sign(past[0])).flatten().tolist()))
        with torch.no_grad():
            _, codes, scale, zero = quantize(form, bits, grouped, v, low, high, max_scale, min_scale)
        zeros = " ".join("%d" % z for z in zero.flatten().tolist())
        print("scales", bits32(max_scale), bits32(min_scale), bits32(scale), zeros)
    print("codes", "".join(chr(ord("a") + int(c) + 2 ** (bits - 1)) for c in codes.flatten().tolist()))


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    w = (torch.randn(N, K) * 0.03).to(torch.bfloat16)
    w[0, 7] = 0.125
    w[1, 40] = -0.1875
    w[2, :32] = w[2, :32].abs()  # one sign only
    w[4, 3], w[4, 9] = 0.140625, -0.140625  # both ends alike
    x = torch.randint(-16, 17, (TOKENS, K))
    print("shape", N, K, GROUP, TOKENS, STEPS)
    print("w", " ".join("%04x" % (v & 0xFFFF) for v in w.view(torch.int16).flatten().tolist()))
    print("x", " ".join(str(v) for v in x.flatten().tolist()))
    for bits in (4, 3, 2):
        for form in ("signed", "plain", "range", "scale"):
            for momentum in (0, 0.75):
                run_case(w.float(), x.double() / 8.0, bits, form, momentum)


if __name__ == "__main__":
    main()
