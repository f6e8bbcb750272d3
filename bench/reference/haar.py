# SPDX-License-Identifier: Apache-2.0
"""A content that FORMAT.md does not have: blocks in one random rotation, of which the signs of the k largest entries are sent.

With R uniform on the orthogonal group (Haar), y = Rx and w the sum of the rows of R that belong to the k largest |y|, each times
the sign of its y, E[w] is invariant under all rotations that keep x, so E[w] = c x / |x|, c = E[sum of the k largest |y|] / |x|:
(|x| / c) w is unbiased, of second moment E |x|^2 with E = k / c^2. No other property of R is needed than that it is uniform, and
none of x, so that all blocks may share one R. Over finitely many R the mean has finitely many values for all x of one norm: no
finite set of rotations is exact.

Bits: marks as blocks have them; a kept block's class (`symbols`); positions as one number of C(length, k); signs. Uncertain
blocks take the k of least bits times E and send no amplitude. A certain one of class c, its half octave above the price, takes
the k of least variance + mu bits in that class and an amplitude, one of LEVELS in the class, rounded without bias, or, where that
is less, today's dither with its step, its words and its share of a group's length.
"""
import functools
import math

import numpy as np

from .duo_code import COSTS, DELTA, NUMBERS, classes_of
from .families import ATOM_STEPS, MU, Factor, marks
from .model import Layer, Model

COUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64)
LEVELS = 8  # amplitudes in a half octave
BESIDE = 4  # bits of class and marks, in the choice of k


@functools.cache
def second_moments(length, draws=40000):
    """E of every k in COUNTS, of `draws` points of the sphere: to .1 %."""
    y = np.abs(np.random.default_rng(0).standard_normal((draws, length), np.float32))
    y = np.sort(y / np.sqrt((y**2).sum(1))[:, None], axis=1)[:, ::-1]
    largest = np.cumsum(y.mean(0, dtype=np.float64))
    return {k: k / largest[k - 1]**2 for k in COUNTS if k <= max(length // 2, 1)}


@functools.cache
def content_bits(length, k):
    return k + (math.comb(length, k) - 1).bit_length()


def prefix_bits(counts):
    """Bits of classes 0, 1, ... that occur counts[c] times: c ones and a zero, or a flag and five bits, or five bits; two bits
    a layer say which."""
    each = np.arange(len(counts)) + 1.0
    return 2 + min((counts * each).sum(), (counts * np.where(each > 1, 6, 1)).sum(), 5 * counts.sum())


def entropy_bits(counts):
    """An arithmetic coder in place of that, with a table of 8 bits a class in use."""
    some = counts[counts > 0]
    return (some * np.log2(some.sum() / some)).sum() + 8 * len(some)


class HaarBlocks:
    """x (blocks, length), zeros behind the `entries` of shorter ones, which are rotated with their zeros."""

    def __init__(self, x, entries, symbols=prefix_bits):
        self.x, self.length, self.symbols = x, x.shape[1], symbols
        self.share = entries / self.length  # of the noise, which is isotropic, that falls on entries
        self.energy = (x**2).sum(1)
        self.amplitude = np.sqrt(self.energy / self.length)
        self.moments = second_moments(self.length)
        self.first = min(self.moments, key=lambda k: (content_bits(self.length, k) + BESIDE) * self.moments[k])
        reach = np.array([row["reach"] for row in NUMBERS["classes"]])
        self.factor = Factor(x, entries.astype(float), ATOM_STEPS, DELTA, reach)

    def own_price(self, price):
        """The rms of a block that is just certain, where that of a dithered one is `price`."""
        bits = content_bits(self.length, self.first) + BESIDE
        return price * math.sqrt(MU * bits / self.moments[self.first] / self.length)

    @staticmethod
    def rounding(ratio):
        """Relative variance of an amplitude in its half octave, in the mean."""
        return (2**np.floor(np.log2(ratio)) / 2 / LEVELS / ratio)**2 / 6

    def count_of(self, number, price):
        """k of the class, 0 for dither: by the losses in its middle."""
        if number == 0:
            return self.first
        own = self.own_price(price)
        ratio = 2.0**((number - 1) // 2) * (1.25 if number % 2 else 1.75)
        worth, square = MU * price**2, (ratio * own)**2 * self.length
        k, loss = min(((k, square * (moment * (1 + self.rounding(ratio)) - 1)
                        + worth * (content_bits(self.length, k) + math.log2(LEVELS))) for k, moment in self.moments.items()),
                      key=lambda found: found[1])
        c, cost = self.dither_class(np.array([ratio * own]), price)
        dithered = self.length * ((DELTA[c[0]] * price)**2 / 12 * (1 + 1 / 256) + worth * cost[0]) + worth * 16 * self.groups()
        return k if loss <= dithered else 0

    @staticmethod
    def dither_class(amplitude, price):
        """Classes of certain dithered blocks, and bits an entry by the table; below the price those of class 1."""
        c, part = classes_of(np.maximum(amplitude / price, 1))
        return c, COSTS[ATOM_STEPS[c], 1 + (c - 1) % 2 * 8 + part]

    def groups(self):
        return 1 / max(1024 // self.length, 1)

    def plan(self, price):
        """(probability, class, k) of each block; k = 0: dithered."""
        ratio = self.amplitude / self.own_price(price)
        number, _ = classes_of(ratio)
        table = np.array([self.count_of(c, price) for c in range(number.max() + 1)])
        return np.minimum(ratio, 1), number, table[number]

    def at(self, price, exact=False, nearest=False):
        """(bits, variance) as of a Family; `exact` draws the words of dithered blocks."""
        if not self.energy.any():
            return 0.0, 0.0
        p, number, counts = self.plan(price)
        bits = variance = 0.0
        for k in np.unique(counts):
            of = (counts == k) & (self.energy > 0)
            if k > 0:
                certain = number[of] > 0
                noise = np.where(certain, self.rounding(self.amplitude[of] / self.own_price(price)), 0)
                bits += p[of].sum() * content_bits(self.length, int(k)) + certain.sum() * math.log2(LEVELS)
                variance += (self.energy[of] * (self.moments[k] * (1 + noise) / p[of] - 1) * self.share[of]).sum()
            elif of.any():
                c, cost = self.dither_class(self.amplitude, price)
                variance += (self.share[of] * self.length * (DELTA[c[of]] * price)**2).sum() / 12 * (1 + 1 / 256)
                bits += of.sum() * 16 * self.groups()
                if exact:
                    bits += self.factor.content(DELTA[c] * price, np.ones(len(c)), c, of.astype(float),
                                                np.random.default_rng(0))
                else:
                    bits += (cost * self.share * self.length)[of].sum()
        kept = p.sum()
        frame = min(kept, 1.0) * (marks(len(p), max(kept, 1.0)) + 8 + 7.5 + 7.5 + 15.5)
        return bits + self.symbols(np.bincount(number, weights=p)) + frame, variance

    def draw(self, price, rotation, rng):
        """What one message decodes to. A block has signs of its own before `rotation`, which all share: Haar still."""
        p, number, counts = self.plan(price)
        kept = np.diff(np.floor(np.cumsum(np.where(number > 0, 0, p)) + rng.random()), prepend=0) > 0
        out, own = np.zeros_like(self.x), self.own_price(price) * math.sqrt(self.length)
        signs = rng.choice((-1.0, 1.0), self.x.shape)
        for t in np.flatnonzero((kept | (number > 0)) & (self.energy > 0)):
            if counts[t] == 0:
                step = DELTA[self.dither_class(self.amplitude[t:t + 1], price)[0][0]] * price
                out[t] = self.x[t] + step * rng.uniform(-0.5, 0.5, self.length)
                continue
            amplitude = own  # |x| / p
            if number[t] > 0:
                unit = own * 2.0**((number[t] - 1) // 2) / 2 / LEVELS
                amplitude = unit * math.floor(math.sqrt(self.energy[t]) / unit + rng.random())
            out[t] = amplitude * signs_of_largest(signs[t] * self.x[t], rotation, counts[t]) * signs[t]
        return out * (np.arange(self.length) < (self.share * self.length)[:, None])


def rotation_of(length, rng):
    """Uniform on the orthogonal group: a QR of normal numbers, columns turned so that the diagonal of R is positive."""
    q, r = np.linalg.qr(rng.standard_normal((length, length)))
    return q * np.sign(np.diag(r))


def signs_of_largest(x, rotation, k):
    """(1 / c) w: its mean over rotations is x / |x|, its mean square second_moments(...)[k]."""
    y = rotation @ x
    largest = np.argpartition(-np.abs(y), k - 1)[:k]
    return math.sqrt(second_moments(len(x))[k] / k) * np.sign(y[largest]) @ rotation[largest]


def of_tensor(x, length, symbols):
    flat = np.pad(x.ravel(), (0, -x.size % length)).reshape(-1, length)
    entries = np.full(len(flat), length)
    entries[-1] = x.size - length * (len(flat) - 1)
    return HaarBlocks(flat, entries, symbols)


def of_rows(view, length, symbols):
    """The rows of a matrix in equal pieces of at most `length` entries."""
    pieces = -(-view.shape[1] // length)
    each = -(-view.shape[1] // pieces)
    padded = np.pad(view, ((0, 0), (0, pieces * each - view.shape[1])))
    entries = np.tile(np.minimum(each, view.shape[1] - each * np.arange(pieces)), len(view))
    return HaarBlocks(padded.reshape(-1, each), entries, symbols)


class HaarLayer(Layer):
    """Beside what there is: `haar` in place of blocks, `haar-rows` in place of rows, and `haar-sketch`, whose residual's rows are
    `haar-rows`. `length` and `symbols` are those of HaarBlocks."""

    @functools.cache
    def families(self, atoms, rank=None):
        if not atoms.startswith("haar"):
            return super().families(atoms, rank)
        name, length, *coder = atoms.split("/")
        symbols = entropy_bits if coder else prefix_bits
        if name == "haar-sketch" and self.is_matrix:
            pairs, rows = super().families("sketch", rank)
            return [pairs, of_rows(rows.factors[0].vectors, int(length), symbols)]
        if name != "haar" and self.has_rows:
            return [of_rows(self.x.reshape(self.shape[0], -1), int(length), symbols)]
        return [of_tensor(self.x, int(length), symbols)]


class HaarModel(Model):
    """`matched(atoms, bits)` is the error at so many bits a parameter, at the price at which the words, drawn, take them:
    `atoms` is the key of atomo's, or haar/LENGTH, haar-rows/LENGTH, haar-sketch/LENGTH, each with /entropy or not."""

    def __init__(self, tensors, start=1):
        super().__init__(tensors, start)
        self.layers = [HaarLayer(name, x, start) for name, x in tensors.items()]

    def at(self, atoms, price, exact):
        found = [layer.at(atoms, price, exact=exact) for layer in self.layers]
        return (self.head + sum(f[0] for f in found)) / self.size, sum(f[1] for f in found) / self.energy

    def price_of(self, atoms, bits):
        """By the tables of costs."""
        low, high = (math.sqrt(self.energy / self.size) * 10.0**power for power in (-4, 4))
        while high / low > 1.0002:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self.at(atoms, middle, False)[0] <= bits else (middle, high)
        return high

    def matched(self, atoms, bits):
        wanted = bits
        for _ in range(3):
            taken, error = self.at(atoms, self.price_of(atoms, wanted), True)
            wanted *= bits / taken
        return error * (taken / bits)**1.5  # what is left, within .1 % of the bits

    def shares(self, atoms, bits):
        """Of all entries those in kept blocks that are rotated, and those in kept blocks that are dithered."""
        price, sums = self.price_of(atoms, bits), np.zeros(2)
        for family in (family for layer in self.layers for family in layer.families(atoms) if layer.energy):
            if isinstance(family, HaarBlocks):
                p, _, counts = family.plan(price)
                sent = p * (family.energy > 0) * family.share * family.length
                sums += sent[counts > 0].sum(), sent[counts == 0].sum()
            else:
                sums[1] += (np.minimum(family.amplitude / price, 1) * family.factors[0].lengths).sum()
        return sums / self.size
