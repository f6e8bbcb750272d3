#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the committed tables of the dither's duo code.

    tools/make_duo_code.py [--root DIR]

writes src/coding/duo_code_tables.hpp and, with the same content for an independent decoder,
tests/python/duo_code_tables.json. Needs NumPy alone; takes a few seconds; the output depends
on nothing but this file (double precision, every optimum is taken over a fixed grid).

Model. Entries are Gaussian, in units of the rms of their atom. With step d and dither level j an entry
x is sent as q = floor(x/d + (j + r)/16), r uniform in [0, 1); the error is uniform but for the sixteen
levels: variance d^2/12 (1 + 1/256). Two entries, with levels j and j xor 8, share a code word. Real
gradients cost what this model says within a per cent, whatever their tails: only the size depends on
the model, never the bias or the variance.

Tables. A step of the ladder has a nominal d, a code table and a number s of raw bits. The cells of a
table are (h0, h1), each in [-2^(w-1), 2^(w-1)); a cell without a word, and everything outside, is sent
by the escape word and two integers in two's complement. With s > 0, q = 2^s h + l - 2^(s-1), h by the
table and l in s raw bits. Only the lengths of the words are committed (limited, by package-merge); the
code is canonical: words ordered by (length, cell, escape last), least significant bit first.

Centred layers. Without a dither an entry is sent as the integer nearest to x/d. A step whose table has a code for each
level has a table of one code for them, behind the others; the words of finer steps serve both. What an entry costs is that of
dithered content: of Gaussian ones it is 4 % less at the first steps, 1 % at those of size 2, and nothing beyond.

Ladder of atoms. r = rms / a. Below 1 an atom is uncertain and has the d of least (bits + overhead) *
(1 + d^2/12 ...), which also fixes what a bit is worth: mu / a^2. A certain atom of class c has r in the
c-th half octave and the d that minimises variance + mu * bits at its middle.

Marks. A layer's kept atoms may be told by Rice-coded gaps; the price search charges them what
geometric gaps cost with the best parameter, from a table over atoms / kept in eighths of an octave.

Ladder of pairs. sigma u v^T with factors of m <= n entries costs m b(du) + n b(dv) bits and has the
self-noise E = (1 + eu)(1 + ev). The same price gives the amplitude at which it is just certain,
sigma = kappa sqrt(m + n) a, and its steps by class of r = sigma / that; both depend on n / m alone.
"""

import argparse
import math
import pathlib

import numpy as np

from duo_code_files import write_header, write_json

COARSEST = 2.8          # d of the first step
COARSE_EIGHTHS = 10     # steps an eighth of an octave apart, from the first; then quarters of an octave
FINEST_OCTAVE = 16      # the last step is COARSEST / 2^16
RAW_BELOW = 0.4         # steps below this send raw bits ...
RAW_LEAST = 0.35        # ... as few as bring d 2^s to at least this
OVERHEAD = 6 / 256      # bits an entry beside the content: flag and group length
CLASSES, ASPECTS, PARTS = 32, 13, 8
GAP_OCTAVES = 12
DIGITS = "0123456789abcdef"

PHI = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)))


def self_noise(d):
    return d * d / 12 * (1 + 1 / 256)


def width_of(d):
    return 3 if d > 1.25 else 4 if d > 0.62 else 5


def escape_bits(d, entries=256):
    """Of one integer, at the nominal d; what a message uses follows from the atom's length and class."""
    return math.ceil(math.log2(2 * math.sqrt(entries) * 1.45 / d + 4))


def cells(d, j, raw, half):
    """P(h) for h in [-half, half), of an entry with step d and level j; h = (q + 2^(raw-1)) >> raw."""
    shift = (1 << raw) >> 1
    edges = ((np.arange(-half, half + 1) * (1 << raw) - shift) - (j + 0.5) / 16) * d
    return np.diff(PHI(edges))


def cell_probabilities(d, raw, width, centred=False):
    """P(h0, h1) for each dither level of the first entry, averaged over the levels when there are raw bits; or of integers
    without a dither."""
    half = 1 << (width - 1)
    if centred:
        one = cells(d, 7.5, raw, half)
        return [np.outer(one, one)]
    one = [cells(d, j, raw, half) for j in range(16)]
    every = [np.outer(one[j], one[j ^ 8]) for j in range(16)]
    return [sum(every) / 16] if raw else every[:8]


def limited_lengths(p, limit):
    """Optimal lengths of at most `limit` bits: package-merge, walked back through the merged levels."""
    order = np.argsort(p, kind="stable")
    leaves = p[order]
    is_leaf, packages = [], np.zeros(0)
    for _ in range(limit):
        merged = np.concatenate([leaves, packages])
        rank = np.argsort(merged, kind="stable")
        merged = merged[rank]
        is_leaf.append(rank < len(leaves))
        pairs = len(merged) // 2
        packages = merged[0:2 * pairs:2] + merged[1:2 * pairs:2]
    lengths, take = np.zeros(len(p), int), 2 * len(p) - 2
    for flags in reversed(is_leaf):
        count = int(flags[:take].sum())
        lengths[order[:count]] += 1
        take = 2 * (take - count)
    return lengths


def code_lengths(p, limit, escape):
    """Lengths of the cells (0: no word) and of the escape word, for the best of a few thresholds."""
    best = None
    flat = p.ravel()
    for threshold in (4, 2, 1, 0.5, 0.25, 0.12, 0.05):
        keep = flat > threshold * 2.0 ** -limit
        if keep.sum() + 1 > 1 << limit:
            continue
        out = max(1 - flat[keep].sum(), 1e-7)
        lengths = limited_lengths(np.append(flat[keep], out), limit)
        bits = (flat[keep] * lengths[:-1]).sum() + out * (lengths[-1] + escape)
        if best is None or bits < best[0]:
            cell = np.zeros(flat.size, int)
            cell[keep] = lengths[:-1]
            best = (bits, cell, int(lengths[-1]))
    assert best[1][0] == 0, "the encoder sends everything outside the table as its first cell: an escape"
    return best[1], best[2]


class Table:
    def __init__(self, d, raw, centred=False):
        self.width, self.raw_kind = width_of(d * (1 << raw)), min(raw, 3)
        self.limit = self.width + 6
        levels = cell_probabilities(d, raw, self.width, centred)
        self.codes = [code_lengths(p, self.limit, 2 * escape_bits(d)) for p in levels]

    def bits(self, d, raw, nominal):
        """Expected bits an entry when the table meets step d (in rms), with the escapes of `nominal`."""
        total = 0.0
        for p, (cell, escape) in zip(cell_probabilities(d, raw, self.width), self.codes):
            p = p.ravel()
            coded = p[cell > 0]
            total += (coded * (cell[cell > 0] + 2 * raw)).sum()
            total += (1 - coded.sum()) * (escape + 2 * escape_bits(nominal))
        return total / len(self.codes) / 2

    def strings(self):
        return ["".join(DIGITS[x] for x in cell) + DIGITS[escape] for cell, escape in self.codes]


def half_octave(index):
    """Lower and upper end of r of the certain class index + 1."""
    ends = [2.0 ** (k // 2) * (1 + (k % 2) / 2) for k in (index, index + 1)]
    return ends[0], ends[1]


def make_steps():
    exponents = [k / 8 for k in range(COARSE_EIGHTHS)]
    exponents += [k / 4 for k in range(math.ceil(COARSE_EIGHTHS / 2), 4 * FINEST_OCTAVE + 1)]
    tables, steps, known = [], [], {}
    for e in exponents:
        d, raw = COARSEST * 2.0 ** -e, 0
        while d < RAW_BELOW and d * (1 << raw) < RAW_LEAST:
            raw += 1
        name = (round(d * (1 << raw), 6), min(raw, 3))
        if name not in known:
            known[name] = len(tables)
            tables.append(Table(d, raw))
        steps.append({"d": d, "table": known[name], "raw": raw})
    for step in steps:
        step["centred"] = step["table"]
        if len(tables[step["table"]].codes) > 1:
            step["centred"] = len(tables)
            tables.append(Table(step["d"], 0, centred=True))
    return tables, steps


def add_costs(tables, steps):
    """Bits an entry, nominal and by eighth of a half octave (of even and odd index) round its middle."""
    for step in steps:
        table, d, raw = tables[step["table"]], step["d"], step["raw"]
        ratios = [1.0]
        for parity in (0, 1):
            low, high = half_octave(parity)
            ratios += [(low + (high - low) * (i + 0.5) / PARTS) / math.sqrt(low * high) for i in range(PARTS)]
        step["bits"] = [table.bits(d / r, raw, d) for r in ratios]


def make_atom_classes(steps):
    d = np.array([s["d"] for s in steps])
    b = np.array([s["bits"][0] for s in steps])
    constant = (b + OVERHEAD) * (1 + self_noise(d))
    best = int(constant.argmin())
    price = (1 + self_noise(d[best])) / (b[best] + OVERHEAD)  # mu / a^2
    # An uncertain atom's content has an rms below 2 a: P = 1 stands for r in [2^-32, 2^-31).
    classes = [{"step": best, "delta": d[best], "top": 2.0, "middle": 1.0}]
    for c in range(1, CLASSES):
        low, high = half_octave(c - 1)
        middle = math.sqrt(low * high)
        k = int((self_noise(d * middle) + price * b).argmin())
        classes.append({"step": k, "delta": d[k] * middle, "top": high, "middle": middle})
    for row in classes:
        row["delta"] = float(np.float32(row["delta"]))
        row["reach"] = row["top"] / row["delta"] * (1 + 2.0 ** -10)
    return classes, price


def make_pairs(steps, classes, price):
    d = np.array([s["d"] for s in steps])
    b = np.array([s["bits"][0] for s in steps])
    noise = (1 + self_noise(d))[:, None] * (1 + self_noise(d))[None, :]
    kappas, chosen = [], []
    for aspect in range(ASPECTS):
        share = 1 / (1 + 2.0 ** (aspect / 2))  # of the shorter factor in m + n
        cost = share * b[:, None] + (1 - share) * b[None, :]
        constant = (cost + OVERHEAD) * noise
        best = np.unravel_index(constant.argmin(), constant.shape)
        kappa2 = price * (cost[best] + OVERHEAD) / noise[best]
        kappas.append(math.sqrt(kappa2))
        row = [[int(best[0]), int(best[1])]]
        for c in range(1, CLASSES):
            loss = kappa2 * classes[c]["middle"] ** 2 * noise + price * cost
            row.append([int(i) for i in np.unravel_index(loss.argmin(), loss.shape)])
        chosen.append(row)
    return kappas, chosen


def rice_costs():
    """Bits a kept atom when one of 2^(i/8) is kept, gaps geometric: 1 + k + E[gap >> k], least over k."""
    costs = []
    for i in range(8 * GAP_OCTAVES + 1):
        stay = 1 - 2.0 ** (-i / 8)
        costs.append(min(1 + k + stay ** (1 << k) / (1 - stay ** (1 << k)) for k in range(13)))
    return costs


def main():
    parser = argparse.ArgumentParser(description="Makes the committed tables of the duo code.")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    root = parser.parse_args().root
    tables, steps = make_steps()
    add_costs(tables, steps)
    classes, price = make_atom_classes(steps)
    kappas, pairs = make_pairs(steps, classes, price)
    write_header(root / "src" / "coding" / "duo_code_tables.hpp", tables, steps, classes, kappas, pairs, rice_costs())
    write_json(root / "tests" / "python" / "duo_code_tables.json", tables, steps, classes, kappas, pairs)
    first = steps[classes[0]["step"]]
    print(f"{len(tables)} tables, {len(steps)} steps; uncertain atoms: d {first['d']:.3f}, {first['bits'][0]:.4f} bits, "
          f"constant {first['bits'][0] * (1 + self_noise(first['d'])):.4f}, mu / a^2 {price:.4f}")


if __name__ == "__main__":
    main()
