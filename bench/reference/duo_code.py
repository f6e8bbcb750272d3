# SPDX-License-Identifier: Apache-2.0
"""What content costs: by the committed table, which a search for the price uses, or by the words of real entries."""
import json
import math
import pathlib
import re

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
NUMBERS = json.loads((ROOT / "tests/python/duo_code_tables.json").read_text())  # part of FORMAT.md
CLASSES, PARTS = len(NUMBERS["classes"]), 8  # a class has eight parts, by the ratio of amplitude and price
STEPS, DELTA, MIDDLE = (np.array([row[key] for row in NUMBERS[of]])
                        for of, key in (("steps", "d"), ("classes", "delta"), ("classes", "middle")))
TOP = np.array([2.0] + [(1.5, 2.0)[c % 2] * 2.0**(c // 2) for c in range(CLASSES - 1)])  # upper ends of the ratio
# (steps, 17) bits an entry: at the nominal rms, then by part of an even and of an odd half octave.
COSTS = np.array([[int(x) / 256 for x in row.split(",")] for row in re.findall(
    r"\{([\d, ]+)\}", re.search(r"kStepCost256\[\]\[17\] = \{(.*?)\};", (ROOT / "src/coding/duo_code_tables.hpp").read_text(),
                                re.S)[1])])
# (steps,) offset of centred content, in steps, by coding step.
OFFSETS = np.zeros(len(STEPS))
for below, offset in reversed(re.findall(r"coding_step < (\d+)\) return (\d+);", (ROOT / "src/math/centroids.hpp").read_text())):
    OFFSETS[:int(below)] = int(offset) / 32


def classes_of(ratio):
    """Class and part of a class for each ratio of amplitude and price; 0 and 0 below 1."""
    octave = np.floor(np.log2(np.maximum(ratio, 1)))
    within = ratio / 2**octave
    part = np.clip((within - np.where(within >= 1.5, 1.5, 1)) * 2 * PARTS, 0, PARTS - 1)
    number = np.minimum(1 + 2 * octave + (within >= 1.5), CLASSES - 1)
    return np.where(ratio < 1, 0, number).astype(int), np.where(ratio < 1, 0, part).astype(int)


def by_class(coding):
    """(classes, parts) bits an entry where class c has the coding step `coding[c]`."""
    c = np.arange(CLASSES)[:, None]
    return COSTS[np.asarray(coding)[:, None], np.where(c == 0, 0, 1 + (c - 1) % 2 * PARTS + np.arange(PARTS))]


def centred(y, offset):
    """What y, in units of its step, decodes to in a centred layer."""
    q = np.rint(y)
    return q - np.sign(q) * offset


def word_lengths(q, coding, length, reach, level=None):
    """Bits of the words of q (atoms, 2, duos), of atoms of so many entries; `level` (atoms, duos) is that of the first of a duo,
    None in a centred layer."""
    step = NUMBERS["steps"][coding]
    table, raw = NUMBERS["tables"][step["centred" if level is None else "table"]], step["raw"]
    lengths, half = np.array([[int(c, 16) for c in one] for one in table["lengths"]]), 1 << (table["width"] - 1)
    if level is None:
        level = np.zeros(q[:, 0].shape, int)
    escape = max(3, math.ceil(math.log2(2 * math.sqrt(length) * reach + 6)))
    h = (q + (1 << raw >> 1) >> raw) + half
    inside = ((h >= 0) & (h < 2 * half)).all(1)
    h = np.where(inside[:, None], h, 0)
    h = np.where((len(lengths) > 1) & (level >= 8)[:, None], h[:, ::-1], h)
    word = np.where(inside, lengths[level % len(lengths), h[:, 0] * 2 * half + h[:, 1]], 0)
    return np.where(word > 0, word + 2 * raw, lengths[level % len(lengths), -1] + 2 * escape)


def duos_of(y):
    """(atoms, 2, duos) of y (atoms, entries), as if an atom were one tile."""
    return np.pad(y, ((0, 0), (0, y.shape[1] % 2))).reshape(len(y), 2, -1)


def centred_bits(y, coding, reach):
    """Bits of each row of y (atoms, entries), entries in units of their step, in a centred layer."""
    return word_lengths(np.rint(duos_of(y)).astype(np.int64), coding, y.shape[1], reach).sum(1)


def word_bits(y, coding, reach, rng):
    """Bits of each row of y (atoms, entries), entries in units of their step, with dithers and roundings from `rng`."""
    duos = duos_of(y)
    level = rng.integers(16, size=duos[:, 0].shape)
    q = np.floor(duos + (np.stack([level, level ^ 8], 1) + rng.random(duos.shape)) / 16).astype(np.int64)
    return word_lengths(q, coding, y.shape[1], reach, level).sum(1)
