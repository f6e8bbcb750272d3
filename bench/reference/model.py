# SPDX-License-Identifier: Apache-2.0
"""Expected size and exact variance of a codec's messages of one model."""
import dataclasses
import functools
import math

import numpy as np

from . import baselines
from .families import MU, blocks, pairs, rows
from .grid import Grid
from .pair_code import TOP

KAPPA = 3.0  # grid step of coordinates over the price of the atoms beside them


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

    @functools.lru_cache(maxsize=None)
    def families(self, atoms, rank=None):
        """(parameter word, families), with what stands in where the atoms do not fit."""
        if atoms == "svd" and self.is_matrix:
            first = np.linalg.eigh(self.wide @ self.wide.T)[1].T[::-1]
            return 2, [pairs(first, first @ self.wide)]
        if atoms == "sketch" and self.is_matrix:
            return self._sketch(min(len(self.wide), rank or max(4, min(64, len(self.wide) // 2 // 4 * 4))))
        if atoms in ("rows", "sketch") and self.has_rows:
            return 1, [rows(self.x)]
        return (0, [Grid(self.x)]) if atoms == "coordinate" else (0, [blocks(self.x)])

    def _sketch(self, rank):
        # The first two products in f32: of gradients of nearly low rank, their rounding is what a sketch misses.
        a, omega = np.float32(self.wide), np.random.default_rng(self.start).uniform(-1, 1, (len(self.wide), rank))
        basis = np.linalg.qr(np.float64(a @ (a.T @ np.float32(omega))))[0]
        inner = basis.T @ self.wide
        first = (basis @ np.linalg.eigh(inner @ inner.T)[1][:, ::-1]).T
        second = first @ self.wide
        left = self.wide - first.T @ second
        left = left if len(left) == self.shape[0] else left.T
        return 3 + 256 * rank, [pairs(first, second), rows(left)]

    def at(self, atoms, price, rank=None, exact=False):
        """(bits, variance, method and parameters, atoms) of the body."""
        word, families = self.families(atoms, rank)
        if self.energy == 0:
            return 0.0, 0.0, (1, word), atoms
        parts = [family.at(price, exact) for family in families]
        bits = sum(b for b, _ in parts) + 32 * (len(parts) > 1)
        return bits, sum(v for _, v in parts), (2 if atoms == "coordinate" else 1, word), atoms

    def cheapest(self, price, kappa, exact=False):
        """Of the least variance + mu bits; coordinates are tried where there are few entries that are not zero."""
        few = self.size <= 1024 or np.count_nonzero(self.x) <= self.size // 4
        names = ["blocks"] + ["rows"] * self.has_rows + ["sketch"] * self.is_matrix + ["coordinate"] * few
        prices = {name: price * (kappa if name == "coordinate" else 1) for name in names}
        found = [self.at(name, prices[name]) for name in names]
        best = min(found, key=lambda f: f[1] + MU * price**2 * f[0])
        return self.at(best[3], prices[best[3]], exact=True) if exact else best


class Model:
    """`tensors`: {name: array}, in the order of the layers; `start` seeds the random start of sketches."""

    def __init__(self, tensors, start=1):
        self.layers = [Layer(name, x, start) for name, x in tensors.items()]
        self.size, self.energy = (sum(getattr(layer, of) for layer in self.layers) for of in ("size", "energy"))

    def predict(self, spec):
        """`spec` as the codecs' own with a budget in bits=; also qsgd-entropy:bits= and eden:bits=."""
        name, _, text = spec.partition(":")
        keys = {key: value if key in ("atoms", "values", "norm") else float(value) if key != "rank" else int(value)
                for key, value in (pair.split("=") for pair in text.split(",") if pair)}
        if name == "eden":
            return Prediction(keys["bits"], baselines.eden(keys["bits"]))
        if name == "atomo" and "values" not in keys:
            return self._atoms(**keys)
        if name == "qsgd-entropy":
            low, high = 1.0, 4096.0
            while high / low > 1.003:
                at = math.sqrt(low * high)
                fits = self._sum(baselines.qsgd_entropy, (3, 0), at)[0] <= keys["bits"] * self.size
                low, high = (at, high) if fits else (low, at)
            found = self._prediction(*self._sum(baselines.qsgd_entropy, (3, 0), low))
            return found if found.bits <= 1.01 * keys["bits"] else dataclasses.replace(found, nmse=math.nan)
        if name == "qsgd":
            return self._prediction(*self._sum(baselines.qsgd, (3, 0), int(keys["bits"]), int(keys.get("bucket", 512))))
        method, of = ((8, 0), baselines.sampled_pairs) if name == "atomo" else ((6, 0), baselines.top_k)
        return self._prediction(*self._sum(of, method, keys["keep"]))

    def _prediction(self, bits, variance, **more):
        return Prediction(bits / self.size, variance / self.energy, **more)

    def _sum(self, of, kind, *arguments):
        found = [of(layer, *arguments) for layer in self.layers]
        return self._head([kind] * len(found)) + sum(b for b, _ in found), sum(v for _, v in found)

    def _head(self, kinds):
        """Bits of header, rows and table of kinds; `kinds` a (method, parameters) a layer."""
        table = {(kind, layer.shape) for kind, layer in zip(kinds, self.layers)}
        return 512 + 64 * len(kinds) + 16 + sum(56 + sum(8 * -(-max(d.bit_length(), 1) // 7) for d in shape)
                                                for _, shape in table)

    def _atoms(self, bits, atoms="auto", rank=None, kappa=KAPPA):
        """At the smallest price that fits, among those with a code of 16 bits and a class for the largest atom."""
        def price(code):
            return float(np.uint32(code << 16).view(np.float32))

        def at(price, exact=False):
            found = [layer.cheapest(price, kappa, exact) if atoms == "auto" else
                     layer.at(atoms, price, rank, exact) for layer in self.layers]
            return self._head([f[2] for f in found]) + sum(f[0] for f in found), found

        least = [layer.sorted[-1] * 2.0**-20 if atoms == "coordinate" else layer.amplitude.max() / TOP[-1]
                 for of in self.layers for layer in of.families("sketch" if atoms == "auto" else atoms, rank)[1]]
        low, high = int(np.float32(max(least)).view(np.uint32) >> 16) + 1, 0x7F7F
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if at(price(middle))[0] <= bits * self.size else (middle + 1, high)
        total, found = at(price(low), exact=True)
        return self._prediction(total, sum(f[1] for f in found), price=price(low),
                                choices={layer.name: f[3] for layer, f in zip(self.layers, found)})
