#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The committed tables of the duo code are what tools/make_duo_code.py makes.

Lengths, steps and classes must agree to the character; real numbers that come from sums may differ in their last digits
where NumPy adds in another order.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUMBER = re.compile(r"(?<![\w.])\d+\.\d+(?:e[-+]?\d+)?")


def differences(made, committed):
    """Pieces of text between real numbers, and the numbers, that differ."""
    texts = [NUMBER.split(made), NUMBER.split(committed)]
    numbers = [[float(x) for x in NUMBER.findall(t)] for t in (made, committed)]
    if len(numbers[0]) != len(numbers[1]):
        return ["another count of numbers"]
    wrong = [f"{a!r} for {b!r}" for a, b in zip(*texts) if a != b]
    return wrong + [f"{a} for {b}" for a, b in zip(*numbers) if abs(a - b) > 1e-12 * abs(b)]


def main():
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        tool = [sys.executable, "-B", str(ROOT / "tools" / "make_duo_code.py"), "--root", folder]
        subprocess.run(tool, check=True, stdout=subprocess.DEVNULL)
        for name in ("src/coding/duo_code_tables.hpp", "tests/python/duo_code_tables.json"):
            wrong = differences((pathlib.Path(folder) / name).read_text(), (ROOT / name).read_text())
            failures += len(wrong)
            for line in wrong[:5]:
                print(f"{name}: made {line[:200]}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
