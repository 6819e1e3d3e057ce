# SPDX-License-Identifier: Apache-2.0
"""Folders of every scheme as transformers and compressed-tensors read them: keys, logits, and the files themselves."""

import inspect
import itertools
import json
import os

import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import helpers as packing
from safetensors import safe_open

from make_models import make_model
from reader_common import load, our_logits, quantize, read_config, relative, their_logits, write_tokens

FP32_LIMIT = 1e-5
BF16_FACTOR = 1.5  # of the distance between transformers in bf16 and in fp32
ROWS = 4
Q0 = "model.layers.0.self_attn.q_proj"

SYMMETRY = {"true": "symmetric", "false": "asymmetric"}
OTHERS = (
    ("llama-tied", "5GB"), ("llama-bias", "150KB"), ("qwen2-window", "5GB"), ("qwen3-bias-tied", "5GB"),
    ("qwen3-window", "150KB"), ("mistral-window", "150KB"),
)

MIXED = """
quantize:
  overrides:
    - {match: 're:model\\.layers\\.0\\.self_attn\\.[qkv]_proj$', bits: 8, group_size: 64}
    - {match: 're:.*\\.down_proj$', bits: 2, symmetric: false}
    - {match: model.layers.1.self_attn.o_proj, ignore: true}
"""


def dense_bits_are_read():
    """Whether this compressed-tensors reads codes that straddle words (0.18 and newer)."""
    codes = torch.arange(32, dtype=torch.int8).remainder(8)[None] - 4
    return packing.pack_to_int32(codes, 3).shape[1] == 3


def column_order_is_read():
    """Whether this compressed-tensors reads weight_g_idx (gone in 0.19)."""
    return "g_idx" in inspect.getsource(PackedQuantizationCompressor)


def tensors_of(folder):
    """{name: file} of all tensors, read by safetensors, and their bytes."""
    where, size = {}, 0
    for file in sorted(os.listdir(folder)):
        if file.endswith(".safetensors"):
            with safe_open(os.path.join(folder, file), "pt") as f:
                for name in f.keys():
                    if name in where:
                        raise ValueError(f"{name} is in {where[name]} and {file}")
                    where[name] = file
                    tensor = f.get_tensor(name)
                    size += tensor.numel() * tensor.element_size()
    return where, size


def get_tensor(folder, where, name):
    """One tensor."""
    with safe_open(os.path.join(folder, where[name]), "pt") as f:
        return f.get_tensor(name)


def files_fault(source, folder):
    """What is wrong with the files of FOLDER, or an empty text."""
    where, size = tensors_of(folder)
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.exists(index):
        with open(index, encoding="utf-8") as f:
            index = json.load(f)
        if index["weight_map"] != where:
            return "the index does not say where the tensors are"
        if index["metadata"]["total_size"] != size:
            return f"total_size is {index['metadata']['total_size']}, the tensors have {size} bytes"
    elif set(where.values()) != {"model.safetensors"}:
        return f"no index for {sorted(set(where.values()))}"
    config = read_config(folder)
    config.pop("quantization_config")
    if config != read_config(source):
        return "config.json is not the source's with quantization_config"
    before, _ = tensors_of(source)
    for name in before:
        packed = name[: -len("weight")] + "weight_packed"
        if name in where:
            a, b = get_tensor(source, before, name), get_tensor(folder, where, name)
            if a.dtype != b.dtype or not torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
                return f"{name} differs from the source's"
        elif packed not in where:
            return f"{name} is lost"
    for file in os.listdir(source):
        if "safetensors" in file or file == "config.json":
            continue
        with open(os.path.join(source, file), "rb") as a, open(os.path.join(folder, file), "rb") as b:
            if a.read() != b.read():
                return f"{file} differs from the source's"
    return ""


class SchemeCheck:
    """A source model, its tokens, and checks of folders made from it."""

    def __init__(self, checks, work, name, shard="5GB"):
        self.checks, self.name = checks, name
        self.work = os.path.join(work, f"schemes-{name}")
        self.source = os.path.join(self.work, "source")
        os.makedirs(self.work)
        make_model(self.source, name, shard)
        with open(os.path.join(self.source, "notes.txt"), "w", encoding="utf-8") as f:
            f.write("a side file\n")
        self.data = os.path.join(self.work, "windows.h5")
        self.calibration = os.path.join(self.work, "calibration.h5")
        self.ids = write_tokens(self.data, 2, seed=1)
        write_tokens(self.calibration, ROWS, seed=2)
        self.dense = our_logits(self.source, self.data, self.ids)
        self.count = 0

    def check_folder(self, title, settings, recipe=None, half=False):
        """Quantizes, loads, compares."""
        title = f"schemes {self.name} {title}"
        folder = os.path.join(self.work, f"out-{self.count}")
        self.count += 1
        quantize(self.source, folder, self.calibration, settings, recipe)
        fault = files_fault(self.source, folder)
        self.checks.check(f"{title} files", not fault, fault)
        loaded, info = load(folder)
        kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
        strange = {key: sorted(info[key]) for key in kinds if info[key]}
        self.checks.check(f"{title} keys", not strange, str(strange) if strange else "")
        ours = our_logits(folder, self.data, self.ids)
        theirs = their_logits(loaded, self.ids)
        error, change = relative(ours, theirs), relative(ours, self.dense)
        detail = f"{error:.2e} apart, {change:.2e} from the source"
        self.checks.check(f"{title} logits fp32", error <= FP32_LIMIT < change, detail)
        if half:
            loaded, _ = load(folder, torch.bfloat16)
            noise = relative(their_logits(loaded, self.ids), theirs)
            error = relative(our_logits(folder, self.data, self.ids, bf16=True), theirs)
            detail = f"{error:.2e} from fp32, transformers {noise:.2e}"
            self.checks.check(f"{title} logits bf16", error <= BF16_FACTOR * noise, detail)
        return folder


def check_all_widths(checks, work, dense_bits):
    """2 to 8 bits, both symmetries, groups and whole rows, RTN and GPTQ by turns."""
    base = SchemeCheck(checks, work, "llama")
    for i, (bits, symmetric, group) in enumerate(itertools.product(range(2, 9), ("true", "false"), (32, 64, -1))):
        title = f"W{bits} group {group} {SYMMETRY[symmetric]}"
        if bits not in (2, 4, 8) and not dense_bits:
            checks.skip(f"schemes llama {title}", "this compressed-tensors does not read the dense layout")
            continue
        algorithm = ("gptq", "rtn")[(i + i // 6) % 2]
        settings = [f"quantize.bits={bits}", f"quantize.group_size={group}", f"quantize.symmetric={symmetric}",
                    f"quantize.algorithm={algorithm}"]
        base.check_folder(f"{title} {algorithm}", settings, half=bits == 4)
    return base


def check_column_order(checks, base):
    """gptq.order group: a group's columns lie apart, weight_g_idx says where."""
    for bits, group, symmetric in ((4, 32, "true"), (4, 64, "false"), (2, 32, "true"), (8, 32, "false")):
        settings = [f"quantize.bits={bits}", f"quantize.group_size={group}", f"quantize.symmetric={symmetric}",
                    "gptq.order=group"]
        title = f"W{bits} group {group} column order"
        if not column_order_is_read():
            checks.skip(f"schemes llama {title}", "this compressed-tensors does not read weight_g_idx")
            continue
        folder = base.check_folder(title, settings)
        where, _ = tensors_of(folder)
        order = get_tensor(folder, where, f"{Q0}.weight_g_idx")
        apart = not torch.equal(order, torch.arange(order.numel(), dtype=order.dtype) // group)
        checks.check(f"schemes llama {title} is one", apart)


def check_parts(checks, base):
    """Ignored modules and several schemes in one model."""
    ignore = "quantize.ignore=[lm_head, re:.*layers\\.1\\..*]"
    folder = base.check_folder("ignore list", ["quantize.group_size=32", ignore])
    where, _ = tensors_of(folder)
    packed = [name for name in where if name.endswith("weight_packed")]
    rest = len(packed) == 7 and all(".layers.0." in name for name in packed)
    checks.check("schemes llama ignore list quantizes the rest", rest)
    base.check_folder("empty ignore list", ["quantize.group_size=32", "quantize.ignore=[]"])
    folder = base.check_folder("several schemes", ["quantize.group_size=32"], recipe=MIXED)
    groups = read_config(folder)["quantization_config"]["config_groups"]
    weights = [group["weights"] for group in groups.values()]
    found = sorted((w["num_bits"], w["group_size"], w["symmetric"]) for w in weights)
    three = [(2, 32, False), (4, 32, True), (8, 64, True)]
    checks.check("schemes llama several schemes are three", found == three, str(found))


def run(checks, work):
    """All schemes on one model, some on the others."""
    dense_bits = dense_bits_are_read()
    base = check_all_widths(checks, work, dense_bits)
    check_column_order(checks, base)
    check_parts(checks, base)
    for name, shard in OTHERS:
        other = SchemeCheck(checks, work, name, shard)
        for symmetric in ("true", "false"):
            settings = ["quantize.group_size=32", f"quantize.symmetric={symmetric}", "export.shard_size=100K"]
            other.check_folder(f"W4 group 32 {SYMMETRY[symmetric]}, small shards", settings)
