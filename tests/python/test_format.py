#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decodes what the library writes with the decoder that was written from FORMAT.md, bit for bit."""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from fractions import Fraction

import numpy as np
import xxhash

from atomo_format import FormatError, decode, decode_layer, half, parse, sketch, to_half

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GOLDENS = HERE.parent / "golden"
OPTIONS = argparse.Namespace(writer=None)


def written(*options):
    """A folder that the writer filled."""
    folder = tempfile.TemporaryDirectory()
    subprocess.run([OPTIONS.writer, folder.name, *options], check=True, timeout=600)
    return folder


def differences(expected, values):
    """Where two arrays of bit patterns differ; NaN equals NaN."""
    return np.flatnonzero((expected != values) & ~(_nan(expected) & _nan(values)))


def _nan(patterns):
    if patterns.dtype == np.uint32:
        return np.isnan(patterns.view(np.float32))
    return np.zeros(patterns.shape, bool)


class Cases(unittest.TestCase):
    """Every case of the writer: values, half outputs, sizes."""

    @classmethod
    def setUpClass(cls):
        cls.folder = written()
        cls.messages = sorted(pathlib.Path(cls.folder.name).glob("*.atomo"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check(self, pattern):
        messages = [m for m in self.messages if re.search(pattern, m.name)]
        self.assertGreater(len(messages), 0)
        for message in messages:
            with self.subTest(message.stem):
                check_case(self, message)


# The areas of the format, by the cases' names; what none of them holds is "others".
AREAS = {
    "identity": r"-identity(_dtype\w*)?\.",
    "blocks": r"atoms_blocks",
    "rows": r"atoms_rows",
    "coordinate": r"atoms_coordinate",
    "singular_pairs": r"atoms_svd\.|bits_\w*_atoms_svd",
    "factors": r"atoms_svd_keep",
    "sketch": r"atoms_sketch",
    "automatic": r"atoms_auto|atomo_bits_1\.",
    "qsgd": r"-qsgd(?!.*blosc)",
    "ternary": r"-terngrad",
    "sign": r"-sign",
    "minmax": r"-minmax",
    "top_k": r"-topk(?!.*blosc)",
    "random_k": r"-randomk",
    "own": r"-levels(?!.*blosc)",
    "lossless": r"blosc",
    "models": r"^model",
    "sums": r"^summed",
}
AREAS["others"] = rf"^(?!.*(?:{'|'.join(AREAS.values())}))"


def test_areas_hold_every_case(self):
    for message in self.messages:
        areas = [area for area, pattern in AREAS.items() if re.search(pattern, message.name)]
        self.assertEqual(len(areas), 1, message.name)


Cases.test_areas_hold_every_case = test_areas_hold_every_case
for area, area_pattern in AREAS.items():
    setattr(Cases, f"test_{area}", lambda self, p=area_pattern: self.check(p))


def check_case(test, path):
    message = path.read_bytes()
    layers = parse(message).layers
    values = [decode_layer(layer) for layer in layers]
    expected = np.fromfile(path.with_suffix(".f32"), "<u4")
    found = np.concatenate(values).view(np.uint32)
    test.assertEqual(expected.size, found.size)
    wrong = differences(expected, found)
    test.assertEqual(wrong.size, 0, f"{wrong.size} of {found.size} values differ, the first at {wrong[:1]}")
    for dtype, suffix in ((half.F16, ".f16"), (half.BF16, ".bf16")):
        if not path.with_suffix(suffix).exists():
            continue
        halves = np.concatenate([to_half(layer, v, dtype) for layer, v in zip(layers, values)])
        expected = half.widen(np.fromfile(path.with_suffix(suffix), "<u2"), dtype).view(np.uint32)
        wrong = differences(expected, half.widen(halves, dtype).view(np.uint32))
        test.assertEqual(wrong.size, 0, f"{suffix}: {wrong.size} differ, the first at {wrong[:1]}")


class Forms(unittest.TestCase):
    def test_every_form_is_among_the_cases(self):
        with written() as folder:
            found = {layer.form for path in pathlib.Path(folder).glob("*atoms_auto.atomo")
                     for layer in parse(path.read_bytes()).layers if layer.body}
        self.assertEqual(found, {0, 1, 2, 3})


class Arithmetic(unittest.TestCase):
    def test_fma_rounds_once(self):
        """Against exact fractions, many of them near halfway between two f32."""
        draw = np.random.default_rng(1)
        c = (1 + draw.integers(0, 1 << 23, 2000) * 2.0**-23).astype(np.float32)
        a = np.full(c.shape, 2.0**-24, np.float32)
        b = (1 + draw.integers(-2, 3, c.shape) * 2.0**-23).astype(np.float32)
        b *= np.where(draw.integers(0, 2, c.shape) == 0, np.float32(2.0**-30), np.float32(1))
        b *= np.where(draw.integers(0, 2, c.shape) == 0, np.float32(-1), np.float32(1))
        for x, y, z, found in zip(a, b, c, sketch.fma(a, b, c)):
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            near = [np.nextafter(found, np.float32(s)) for s in (-np.inf, np.inf)]
            errors = [abs(Fraction(float(v)) - exact) for v in (found, *near)]
            self.assertLessEqual(errors[0], min(errors[1:]))
            if errors[0] == min(errors[1:]):
                self.assertEqual(int(found.view(np.uint32)) & 1, 0)


class Mutations(unittest.TestCase):
    """Damaged messages whose checksums hold: both decoders refuse them, or both decode them to the same values."""

    def test_both_decoders_agree(self):
        with written("--mutations") as folder:
            messages = sorted(pathlib.Path(folder).glob("*.atomo"))
            refused = 0
            for message in messages:
                with self.subTest(message.stem):
                    accepted = message.with_suffix(".f32").exists()
                    refused += not accepted
                    if accepted:
                        check_case(self, message)
                    else:
                        self.assertRaises(FormatError, decode, message.read_bytes())
        self.assertGreater(refused, 100)
        self.assertGreater(len(messages) - refused, 100)


class Goldens(unittest.TestCase):
    def test_goldens_decode_to_their_values(self):
        messages = sorted(GOLDENS.glob("*.atomo"))
        self.assertGreater(len(messages), 20)
        for message in messages:
            with self.subTest(message.stem):
                check_case(self, message)

    def test_any_changed_byte_is_noticed(self):
        for message in sorted(GOLDENS.glob("*.atomo")):
            data = message.read_bytes()
            for at in range(0, len(data), 37):
                changed = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1:]
                with self.subTest(message.stem, at=at), self.assertRaises(FormatError):
                    parse(changed)

    def test_rejected_messages_are_refused(self):
        messages = sorted((GOLDENS / "rejected").glob("*.atomo"))
        self.assertGreater(len(messages), 40)
        for message in messages:
            with self.subTest(message.stem), self.assertRaises(FormatError):
                decode(message.read_bytes())


class Document(unittest.TestCase):
    def test_the_numbers_are_the_ones_format_md_names(self):
        found = xxhash.xxh3_64_hexdigest((HERE / "duo_code_tables.json").read_bytes(), seed=0)
        named = re.findall(r"XXH3 of that file .*?`([0-9a-f]{16})`", (ROOT / "FORMAT.md").read_text())
        self.assertEqual(named, [found])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--writer", required=True)
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=sys.argv[:1] + rest)
