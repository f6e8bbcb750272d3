# SPDX-License-Identifier: Apache-2.0
"""Expected size and exact variance of a codec's messages of one model."""
import dataclasses
import functools
import math

import numpy as np

from . import baselines
from .families import MU, blocks, pairs, rows
from .grid import Grid
from .duo_code import TOP

KAPPA = 3.0  # grid step of coordinates over the price, as FORMAT.md has it for the method automatic


@dataclasses.dataclass
class Prediction:
    bits: float  # a parameter, of whole messages
    nmse: float  # E |decoded - g|^2 / |g|^2
    price: float = math.nan
    choices: dict = dataclasses.field(default_factory=dict)  # {layer: atoms}


class Layer:
    """One tensor. What it is decomposed into is made once, when first asked for."""

    def __init__(self, name, x, start):
        self.name, self.x, self.start = name, np.asarray(x, np.float64), start
        self.shape, self.size, self.energy = self.x.shape, self.x.size, (self.x**2).sum()
        row = self.size // max(self.shape[0], 1) if self.x.ndim > 1 else 0
        self.has_rows = 16 <= row <= 1 << 22
        self.is_matrix = 16 <= row <= 1 << 22 and 2 <= self.shape[0] <= 1 << 22 and min(self.shape[0], row) <= 1 << 14

    @functools.cached_property
    def wide(self):
        view = self.x.reshape(self.shape[0], -1)
        return view if view.shape[0] <= view.shape[1] else view.T

    @functools.cache
    def families(self, atoms, rank=None):
        """Families of atoms, with what stands in where the atoms do not fit."""
        if atoms == "svd" and self.is_matrix:
            first = np.linalg.eigh(self.wide @ self.wide.T)[1].T[::-1]
            return [pairs(first, first @ self.wide)]
        if atoms == "sketch" and self.is_matrix:
            return self._sketch(min(len(self.wide), rank or max(4, min(64, len(self.wide) // 2 // 4 * 4))))
        if atoms in ("rows", "sketch") and self.has_rows:
            return [rows(self.x)]
        return [Grid(self.x) if atoms == "coordinate" else blocks(self.x)]

    def _sketch(self, rank):
        # The first two products in f32: of gradients of nearly low rank, their rounding is what a sketch misses.
        a, omega = np.float32(self.wide), np.random.default_rng(self.start).uniform(-1, 1, (len(self.wide), rank))
        basis = np.linalg.qr(np.float64(a @ (a.T @ np.float32(omega))))[0]
        inner = basis.T @ self.wide
        first = (basis @ np.linalg.eigh(inner @ inner.T)[1][:, ::-1]).T
        second = first @ self.wide
        left = self.wide - first.T @ second
        left = left if len(left) == self.shape[0] else left.T
        return [pairs(first, second), rows(left)]

    def at(self, atoms, price, rank=None, exact=False, nearest=False):
        """(bits, variance, atoms) of the body; that of a sketch starts with a length."""
        how = (exact, nearest) if atoms != "coordinate" else (exact,)
        parts = [family.at(price, *how) for family in self.families(atoms, rank)] if self.energy else []
        return sum(b for b, _ in parts) + 32 * (len(parts) > 1), sum(v for _, v in parts), atoms

    def cheapest(self, price, kappa, exact=False, nearest=False):
        """Of the least variance + mu bits; coordinates are tried where they are drawn and few entries are not zero."""
        few = not nearest and (self.size <= 1024 or np.count_nonzero(self.x) <= self.size // 4)
        names = ["blocks"] + ["rows"] * self.has_rows + ["sketch"] * self.is_matrix + ["coordinate"] * few
        prices = {name: price * (kappa if name == "coordinate" else 1) for name in names}
        found = [self.at(name, prices[name], nearest=nearest) for name in names]
        best = min(found, key=lambda f: f[1] + MU * price**2 * f[0])
        return self.at(best[2], prices[best[2]], exact=True, nearest=nearest) if exact else best


class Model:
    """`tensors`: {name: array}, in the order of the layers; `start` seeds the random start of sketches."""

    def __init__(self, tensors, start=1):
        self.layers = [Layer(name, x, start) for name, x in tensors.items()]
        self.size, self.energy = (sum(getattr(layer, of) for layer in self.layers) for of in ("size", "energy"))

    def predict(self, spec):
        """`spec` as the codecs' own, with a budget in bits= and no ratio=; also qsgd-entropy:bits= and eden:bits=."""
        name, _, text = spec.partition(":")
        keys = {key: value if key in ("atoms", "values", "norm", "content") else float(value) if key != "rank" else int(value)
                for key, value in (pair.split("=") for pair in text.split(",") if pair)}
        if name == "eden":
            return Prediction(keys["bits"], baselines.eden(keys["bits"]))
        if name == "atomo" and "values" not in keys:
            return self._atoms(**keys)
        if name == "qsgd-entropy":
            return self._entropy_coded(keys["bits"])
        if name == "qsgd" and keys.get("norm", "max") == "max" and keys["bits"] >= 2:
            return self._sum(baselines.qsgd, int(keys["bits"]), int(keys.get("bucket", 512)))
        if "keep" not in keys:
            raise ValueError(f"the reference model does not know {spec}")
        return self._sum(baselines.sampled_pairs if name == "atomo" else baselines.top_k, keys["keep"])

    def _entropy_coded(self, bits):
        low, high = 1.0, 4096.0
        while high / low > 1.003:
            levels = math.sqrt(low * high)
            low, high = (levels, high) if self._sum(baselines.qsgd_entropy, levels).bits <= bits else (low, levels)
        found = self._sum(baselines.qsgd_entropy, low)
        return found if found.bits <= 1.01 * bits else dataclasses.replace(found, nmse=math.nan)  # not even one level

    def _sum(self, of, *arguments):
        found = [of(layer, *arguments) for layer in self.layers]
        return Prediction((self.head + sum(b for b, _ in found)) / self.size, sum(v for _, v in found) / self.energy)

    @functools.cached_property
    def head(self):
        """Bits of header, rows, table of kinds (one a shape) and padding."""
        shapes = {layer.shape for layer in self.layers}
        kinds = sum(56 + sum(8 * -(-max(side.bit_length(), 1) // 7) for side in shape) for shape in shapes)
        return 512 + 64 * len(self.layers) + kinds + 12

    def _atoms(self, bits, atoms="auto", rank=None, kappa=KAPPA, content="drawn"):
        """At the smallest price that fits, among those with a code of 16 bits and a class for the largest atom."""
        def price(code):
            return float(np.uint32(code << 16).view(np.float32))

        def at(price, exact=False):
            found = [layer.cheapest(price, kappa, exact, nearest) if atoms == "auto" else
                     layer.at(atoms, price, rank, exact, nearest) for layer in self.layers]
            return self.head + sum(f[0] for f in found), found

        nearest = content == "nearest"
        least = [f.sorted[-1] * 2.0**-20 if atoms == "coordinate" else f.amplitude.max() / TOP[-1]
                 for layer in self.layers for f in layer.families("sketch" if atoms == "auto" else atoms, rank)]
        low, high = int(np.float32(max(least)).view(np.uint32) >> 16) + 1, 0x7F7F
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if at(price(middle))[0] <= bits * self.size else (middle + 1, high)
        total, found = at(price(low), exact=True)
        return Prediction(total / self.size, sum(f[1] for f in found) / self.energy, price(low),
                          {layer.name: f[2] for layer, f in zip(self.layers, found)})
