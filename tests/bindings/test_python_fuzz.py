# SPDX-License-Identifier: Apache-2.0
"""Damaged messages whose checksums hold, from Python (tests/fuzz/python_decode.py)."""
import importlib.util
import os
import pathlib
import random
import time

FUZZ = pathlib.Path(__file__).resolve().parent.parent / "fuzz"
SECONDS = float(os.environ.get("ATOMO_FUZZ_SECONDS", "10"))


def target():
    """The module of the fuzz target."""
    spec = importlib.util.spec_from_file_location("python_decode", FUZZ / "python_decode.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_any_bytes_are_refused_or_decoded():
    """Mutations of the goldens give errors of the package's own or arrays, and some of each."""
    decode = target()
    for path in sorted((FUZZ / "regressions" / "python").glob("*")):
        decode.run(path.read_bytes())
    standing, outcomes, draw = decode.seeds(), set(), random.Random(1)
    for message in standing:
        assert decode.run(message)
        head = decode.atomo.inspect(message).head_bytes
        assert decode.mended(message, head) == message
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        message = decode.mutated(draw.choice(standing), draw)
        try:
            outcomes.add(decode.run(message))
        except BaseException:
            print("the message:", message.hex())
            raise
    assert outcomes == {False, True}
