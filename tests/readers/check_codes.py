# SPDX-License-Identifier: Apache-2.0
"""Plain rounding of fp32 weights: codes, scales and zero points equal those of compressed-tensors, value for value."""

import itertools
import os

import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize as ct_quantize
from compressed_tensors.quantization.utils import calculate_qparams

from check_schemes import dense_bits_are_read, get_tensor, tensors_of
from make_models import make_model
from reader_common import quantize, write_tokens

SPREAD = "model.layers.0.mlp.up_proj.weight"


def expected(weight, args):
    """(codes, scale, zero point) by compressed-tensors, the range of each group as a min-max observer takes it."""
    groups = weight.unflatten(-1, (-1, args.group_size)) if args.strategy == "group" else weight.unsqueeze(1)
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    codes = ct_quantize(weight, scale, None if args.symmetric else zero, args, dtype=torch.int8)
    return codes, scale, zero.to(torch.int8)


def found(folder, where, module, args):
    """(codes, scale, zero point) of a folder of ours, unpacked by compressed-tensors."""
    shape = torch.Size(get_tensor(folder, where, f"{module}.weight_shape").tolist())
    codes = unpack_from_int32(get_tensor(folder, where, f"{module}.weight_packed"), args.num_bits, shape)
    scale = get_tensor(folder, where, f"{module}.weight_scale")
    zero = torch.zeros_like(scale, dtype=torch.int8)
    if not args.symmetric:
        packed = get_tensor(folder, where, f"{module}.weight_zero_point")
        zero = unpack_from_int32(packed, args.num_bits, torch.Size([shape[0], scale.shape[1]]), packed_dim=0)
    return codes, scale, zero


def make_odd_groups(source):
    """Rows of one sign, a row of one value, a large and a tiny one, in a linear of the fp32 model."""
    from safetensors.torch import load_file, save_file

    path = os.path.join(source, "model.safetensors")
    tensors = load_file(path)
    w = tensors[SPREAD]
    w[0].abs_()
    w[1].abs_().neg_()
    w[2].fill_(0.75)
    w[3] *= 1e4
    w[4] *= 1e-6
    w[5, ::2] = 0.0
    save_file(tensors, path, metadata={"format": "pt"})


def check_scheme(checks, source, work, calibration, bits, symmetric, group):
    """All linears of one scheme."""
    kind = {"strategy": "group", "group_size": group} if group > 0 else {"strategy": "channel"}
    args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric, **kind)
    title = f"codes W{bits} group {group} {'symmetric' if symmetric else 'asymmetric'}"
    folder = os.path.join(work, f"out-{bits}-{group}-{symmetric}")
    settings = [f"quantize.bits={bits}", f"quantize.group_size={group}", f"quantize.symmetric={str(symmetric).lower()}",
                "quantize.algorithm=rtn", "quantize.signed_scale=false", "rtn.importance=false", "rtn.search=minmax"]
    quantize(source, folder, calibration, settings)
    where, _ = tensors_of(folder)
    before, _ = tensors_of(source)
    modules = [name[: -len(".weight_packed")] for name in where if name.endswith(".weight_packed")]
    count, wrong = 0, {"codes": 0, "scales": 0, "zero points": 0}
    for module in modules:
        weight = get_tensor(source, before, f"{module}.weight")
        for what, a, b in zip(wrong, found(folder, where, module, args), expected(weight, args)):
            wrong[what] += int((a != b).sum()) if a.shape == b.shape and a.dtype == b.dtype else a.numel()
            count += a.numel()
    detail = f"{count} values in {len(modules)} linears; differ: "
    detail += ", ".join(f"{n} {what}" for what, n in wrong.items())
    checks.check(title, len(modules) == 14 and not any(wrong.values()), detail)


def run(checks, work):
    """Every scheme of interest on a fp32 model."""
    work = os.path.join(work, "codes")
    source = os.path.join(work, "source")
    os.makedirs(work)
    make_model(source, "llama-tied")
    make_odd_groups(source)
    calibration = os.path.join(work, "calibration.h5")
    write_tokens(calibration, 2, seed=2)
    for bits, symmetric, group in itertools.product((2, 3, 4, 5, 8), (True, False), (32, 64, -1)):
        if bits not in (2, 4, 8) and not dense_bits_are_read():
            title = f"codes W{bits} group {group} symmetric {symmetric}"
            checks.skip(title, "this compressed-tensors does not read the dense layout")
            continue
        try:
            check_scheme(checks, source, work, calibration, bits, symmetric, group)
        except Exception as error:  # the other schemes go on
            checks.check(f"codes W{bits} group {group} symmetric {symmetric}", False, checks.describe(error))
