# SPDX-License-Identifier: Apache-2.0
"""Atoms of one layer at a price: expected bits of their body and the variance of what it decodes to.

An atom of squared norm N, kept with probability p, is sent as its 1/p-fold with dither noise of variance E: what is decoded
has the second moment p (N / p^2 + E), so the variance is N (1 / p - 1) + p E. Of a product of two factors the second moment
is the product of the factors' own, each (N + E), for their dithers are independent. Atoms of a family are orthogonal and
families are drawn apart, so variances add up, whatever the selection does to pairs of atoms. Of atoms that are kept by their
size alone those below are the error, and the others are decoded to the centroids of their levels.
"""
import dataclasses
import math

import numpy as np

from .duo_code import COSTS, DELTA, MIDDLE, NUMBERS, OFFSETS, STEPS, TOP, by_class, centred, centred_bits, classes_of, word_bits

ATOM_STEPS = np.array([row["step"] for row in NUMBERS["classes"]])
# Variance that a bit must save, in units of price^2: an atom of that rms is just certain. 6/256 bit are beside the content.
NEAREST_RATIO = 1.5  # of an atom's rms and the price, from which on it is kept without a draw
MU = (1 + DELTA[0]**2 / 12 * (1 + 1 / 256)) / (COSTS[ATOM_STEPS[0], 0] + 6 / 256)


def marks(atoms, kept):
    """Bits of a bit map or of Rice-coded gaps, whichever is less."""
    stay = min(max(1 - kept / atoms, 0.0), 1 - 1e-12)
    gap = min(1 + k + stay**2**k / (1 - stay**2**k) for k in range(13))
    return min(atoms, kept * gap + 32 * math.ceil(atoms / 4096))


@dataclasses.dataclass
class Factor:
    """What is quantised as one: vectors (atoms, entries), zeros behind shorter ones; the rest by class."""
    vectors: np.ndarray
    lengths: np.ndarray  # (atoms)
    coding: np.ndarray
    steps: np.ndarray
    reach: np.ndarray  # largest rms in steps

    def noise(self, step, scale, exact):
        """Variance of each vector times `scale` (atoms): of the sixteen levels, and of the rounding before them."""
        if not exact:
            return self.lengths * step**2 / 12 * (1 + 1 / 256)
        at = np.abs(self.vectors) * (16 * scale / step)[:, None]
        up = at - np.floor(at)  # the chance that an entry is rounded to the next sixteenth of a step
        return step**2 * (self.lengths / 12 * (1 - 1 / 256) + (up * (1 - up)).sum(1) / 256)

    def content(self, step, scale, number, p, rng, nearest=False):
        """Expected bits of all, from the words of up to 300 atoms a class."""
        bits = 0.0
        for c in np.unique(number[p > 0]):
            of = np.flatnonzero((number == c) & (p > 0))
            some = rng.choice(of, 300) if len(of) > 300 else of
            y = self.vectors[some] * (scale / step)[some, None]
            words = centred_bits(y, self.coding[c], self.reach[c]) if nearest else word_bits(y, self.coding[c], self.reach[c], rng)
            words = words * self.lengths[some] / y.shape[1]
            bits += (words * p[some]).sum() * p[of].sum() / p[some].sum()
        return bits


@dataclasses.dataclass
class Family:
    """Mutually orthogonal atoms, each the product of its vectors in `factors`; the last of them has the units of the
    price. `unit` is bits an entry by class and part, `beside` what the lengths of groups cost an atom."""
    amplitude: np.ndarray
    factors: list
    unit: np.ndarray
    beside: float

    def __post_init__(self):
        self.squares = [(f.vectors**2).sum(1) for f in self.factors]
        self.energy = np.prod(self.squares, axis=0)
        self.weight = sum(f.lengths + f.lengths % 2 for f in self.factors)

    def at(self, price, exact=False, nearest=False):
        """(bits, variance): `exact` looks at every entry instead of at means and tables."""
        ratio = self.amplitude / price
        p, (number, part) = np.minimum(ratio, 1), classes_of(ratio)
        if nearest:
            p = np.where(ratio >= NEAREST_RATIO, 1.0, 0.0)
        kept, lost = p.sum(), self.energy[p == 0].sum()
        if kept == 0:
            return 0.0, lost
        rng, content, moment = np.random.default_rng(0), 0.0, np.ones_like(p)
        for factor, square in zip(self.factors, self.squares):
            last = factor is self.factors[-1]
            scale = 1 / np.where(p > 0, p, 1) if last else np.ones_like(p)
            step = factor.steps[number] * (price if last else 1)
            moment *= square * scale**2 + factor.noise(step, scale, exact)
            content += factor.content(step, scale, number, p, rng, nearest) if exact else 0
        if not exact:
            content = (p * self.weight * self.unit[number, part]).sum()
        flags = (p * (1 + 5 * (number > 0) + self.beside)).sum()
        # A body has the byte of the marks' mode, and half of what pads marks, flags and content.
        frame = min(kept, 1.0) * (marks(len(p), max(kept, 1.0)) + 8 + 7.5 + 7.5 + 15.5)
        if nearest and exact:
            return content + flags + frame, self.centred_error(np.flatnonzero(p), number, price) + lost
        return content + flags + frame, (p * moment).sum() - self.energy[p > 0].sum() + lost

    def centred_error(self, kept, number, price):
        """What the centroids leave of the kept atoms."""
        decoded, cross = 1.0, 1.0
        for factor in self.factors:
            coding, lengths = factor.coding[number[kept]], factor.lengths[kept]
            step = (factor.steps[number[kept]] * (price if factor is self.factors[-1] else 1))[:, None]
            x = factor.vectors[kept]
            there = np.arange(x.shape[1]) < lengths[:, None]
            found = centred(x / step, OFFSETS[coding][:, None]) * step * there
            decoded, cross = decoded * (found**2).sum(1), cross * (found * x).sum(1)
        return (decoded - 2 * cross + self.energy[kept]).sum()


def vectors(x, lengths):
    """Blocks or rows, x (atoms, entries)."""
    length, reach = x.shape[1], np.array([row["reach"] for row in NUMBERS["classes"]])
    groups = 1 / (1024 // length) if length <= 512 else math.ceil(length / 1024)
    rms = np.sqrt((x**2).sum(1) / lengths)
    return Family(rms, [Factor(x, lengths, ATOM_STEPS, DELTA, reach)], by_class(ATOM_STEPS), 16 * groups)


def blocks(x):
    flat = np.pad(x.ravel(), (0, -x.size % 256)).reshape(-1, 256)
    return vectors(flat, np.append(np.full(len(flat) - 1, 256.0), x.size - 256.0 * (len(flat) - 1)))


def rows(x):
    view = x.reshape(x.shape[0], -1)
    return vectors(view, np.full(len(view), float(view.shape[1])))


def pairs(first, second):
    """first (atoms, m) unit vectors, second (atoms, n) sigma times unit vectors, m <= n."""
    m, n = first.shape[1], second.shape[1]
    aspect = min(12, math.frexp((n / m)**2 * 2**0.5)[1] - 1)
    kappa, (u, v) = NUMBERS["pair_kappa"][aspect] * math.sqrt(m + n), np.array(NUMBERS["pair_steps"][aspect]).T
    weights = m + m % 2, n + n % 2
    unit = (weights[0] * COSTS[u, :1] + weights[1] * by_class(v)) / sum(weights)
    groups = 1 / (1024 // (m + n)) if m + n <= 512 else 1 if m + n <= 1024 else math.ceil(m / 1024) + math.ceil(n / 1024)
    lengths, coarse = np.ones(len(first)), STEPS[v] * MIDDLE
    factors = [Factor(first * math.sqrt(m), m * lengths, u, STEPS[u], 1 / STEPS[u]),
               Factor(second / math.sqrt(m), n * lengths, v, kappa / math.sqrt(m * n) * coarse, TOP / coarse)]
    return Family(np.sqrt((second**2).sum(1)) / kappa, factors, unit, 16 * groups)
