#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Damaged messages, by the library and by the decoder that was written from FORMAT.md: both refuse one, or both decode it
to the same values. The messages and the library's values come from tests/fuzz/format_messages.cpp."""
import argparse
import hashlib
import pathlib
import struct
import subprocess
import sys
import time

import numpy as np

from atomo_format import FormatError, decode, parse

REFUSED, NON_FINITE = 2**64 - 1, 1


def judgements(stream):
    """Yields each message with the library's values, f32 as u32, or None where it refuses it."""
    while head := stream.read(8):
        message = stream.read(struct.unpack("<Q", head)[0])
        entries = struct.unpack("<Q", stream.read(8))[0]
        yield message, None if entries == REFUSED else np.frombuffer(stream.read(4 * entries), "<u4")


def difference(message, expected):
    """Why the two decoders differ, or None."""
    try:
        with np.errstate(all="ignore"):
            layers = decode(message)
    except FormatError as error:
        return None if expected is None else f"the library decodes what FORMAT.md refuses: {error}"
    if expected is None:
        # The other decoder reads no parameters of a layer without entries, nor of one that is flagged.
        unread = any(layer.kind.elements == 0 or layer.flags & NON_FINITE for layer in parse(message).layers)
        return None if unread else "the library refuses what FORMAT.md allows"
    found = np.concatenate([np.zeros(0, np.float32), *(values for _, _, values in layers)]).astype(np.float32)
    if found.size != expected.size:
        return f"{found.size} entries in place of {expected.size}"
    both_nan = np.isnan(found) & np.isnan(expected.view(np.float32))
    wrong = np.flatnonzero((found.view(np.uint32) != expected) & ~both_nan)
    return None if wrong.size == 0 else f"{wrong.size} of {found.size} values differ, the first at {wrong[0]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, help="format_messages")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, default=pathlib.Path("."), help="where a message goes that is judged twice")
    parser.add_argument("regressions", type=pathlib.Path, nargs="?", help="a folder of messages that come first")
    options = parser.parse_args()
    first = sorted(options.regressions.iterdir()) if options.regressions and options.regressions.is_dir() else []
    program = subprocess.Popen([options.program, str(options.seed), *map(str, first)], stdout=subprocess.PIPE)
    end, refused, decoded, why = time.monotonic() + options.seconds, 0, 0, None
    for message, expected in judgements(program.stdout):
        try:
            why = difference(message, expected)
        except Exception as error:  # the other decoder has no excuse either
            why = f"the decoder of FORMAT.md failed: {error!r}"
        if why is not None:
            kept = options.keep / f"crash-{hashlib.sha256(message).hexdigest()[:12]}"
            kept.write_bytes(message)
            print(f"{kept}: {why}", file=sys.stderr)
            break
        refused += expected is None
        decoded += expected is not None
        if time.monotonic() > end and refused + decoded >= len(first):
            break
    program.stdout.close()
    program.wait()
    print(f"{refused} messages refused by both, {decoded} decoded by both")
    return 1 if why is not None or min(refused, decoded) == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
