#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text or jsonl files to a calibration file of dpquant: HDF5, input_ids int32 (samples, seqlen).

    pip install tokenizers h5py
    scripts/text_to_h5.py --tokenizer MODEL/tokenizer.json --seqlen 512 --samples 128 --output calib.h5 corpus.txt more.jsonl

The documents (a .jsonl file: one an object and line, its text in --field; any other file: one document, or one a line with
--lines) are tokenized and put one behind the other in the order given, with --eos between them when asked for, and cut into
windows of --seqlen tokens. A rest shorter than a window is dropped. --pick spread takes evenly spaced windows of the whole text,
--pick first the first ones. The same input gives the same file, byte for byte.
"""

import argparse
import json
import os
import sys


def fail(message):
    """Prints MESSAGE and ends with exit code 2."""
    sys.stderr.write(f"text_to_h5: {message}\n")
    raise SystemExit(2)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE", help="text or .jsonl, UTF-8")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json of the model")
    parser.add_argument("--seqlen", type=int, default=512, help="tokens in a sample (512)")
    parser.add_argument("--samples", type=int, default=128, help="samples wanted (128); fewer is an error")
    parser.add_argument("--output", required=True, help="the HDF5 file to write; must not exist without --overwrite")
    parser.add_argument("--field", default="text", help="key of the text in a jsonl object (text)")
    parser.add_argument("--lines", action="store_true", help="each line of a text file is a document; empty lines are none")
    parser.add_argument("--eos", metavar="TOKEN", help="token put behind each document, as the tokenizer spells it")
    parser.add_argument("--pick", choices=("spread", "first"), default="spread", help="which windows (spread)")
    parser.add_argument("--overwrite", action="store_true", help="replace the output when it exists")
    args = parser.parse_args()
    if args.seqlen < 1 or args.samples < 1:
        parser.error("--seqlen and --samples must be 1 or more")
    return args


def documents(path, field, lines):
    """Yields the documents of one file; says file and line when one cannot be read."""
    number = 0
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as source:
            if not path.endswith(".jsonl"):
                if lines:
                    yield from (line.rstrip("\r\n") for line in source if line.strip())
                else:
                    yield source.read()
                return
            for number, line in enumerate(source, 1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError as error:
                    fail(f"{path}:{number}: not JSON: {error}")
                if not isinstance(record, dict) or not isinstance(record.get(field), str):
                    found = sorted(record) if isinstance(record, dict) else type(record).__name__
                    fail(f"{path}:{number}: no text in '{field}'; found {found}")
                yield record[field]
    except OSError as error:
        fail(f"{path}: {error.strerror}")
    except UnicodeDecodeError as error:
        fail(f"{path}: not UTF-8 behind line {number}: {error}")


def batches(items, size):
    """ITEMS in lists of at most SIZE."""
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def picked(total, wanted, how):
    """WANTED ascending window numbers below TOTAL."""
    if how == "first":
        return list(range(wanted))
    return [i * total // wanted for i in range(wanted)]


def main():
    args = parse_args()
    try:
        import h5py
        import numpy
        from tokenizers import Tokenizer
    except ImportError as error:
        fail(f"{error.name} is needed: pip install tokenizers h5py")
    if os.path.exists(args.output) and not args.overwrite:
        fail(f"{args.output} exists; --overwrite replaces it")
    try:
        tokenizer = Tokenizer.from_file(args.tokenizer)
    except Exception as error:  # the package raises plain Exception
        fail(f"{args.tokenizer}: {error}")
    # A tokenizer.json may carry limits from training; calibration text is to be taken whole.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    eos = []
    if args.eos is not None:
        number = tokenizer.token_to_id(args.eos)
        if number is None:
            fail(f"{args.tokenizer} has no token '{args.eos}'")
        eos = [number]

    pieces = []
    count = 0
    total = 0
    needed = args.samples * args.seqlen
    for path in args.files:
        for batch in batches(documents(path, args.field, args.lines), 256):
            for encoding in tokenizer.encode_batch(batch, add_special_tokens=False):
                pieces.append(numpy.asarray(encoding.ids + eos, dtype=numpy.int32))
                total += len(pieces[-1])
                count += 1
            if args.pick == "first" and total >= needed:
                break
        if args.pick == "first" and total >= needed:
            break
    windows = total // args.seqlen
    if windows < args.samples:
        fail(f"{total} tokens in {count} documents make {windows} samples of {args.seqlen}; {args.samples} are wanted")
    tokens = numpy.concatenate(pieces)[: windows * args.seqlen].reshape(windows, args.seqlen)
    data = numpy.ascontiguousarray(tokens[picked(windows, args.samples, args.pick)])

    temporary = f"{args.output}.partial"
    try:
        with h5py.File(temporary, "w") as target:
            target.create_dataset("input_ids", data=data, dtype="int32", track_times=False)
        os.replace(temporary, args.output)
    except OSError as error:
        fail(f"{args.output}: {error}")
    print(f"{args.output}: {args.samples} samples of {args.seqlen} tokens, of {windows} in {count} documents")


if __name__ == "__main__":
    main()
