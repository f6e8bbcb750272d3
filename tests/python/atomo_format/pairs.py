# SPDX-License-Identifier: Apache-2.0
"""Dithered singular pairs (FORMAT.md, "Singular pairs")."""
import math

import numpy as np

from . import philox
from .atoms import Vector, range_factor, read_classes, read_groups
from .bits import ByteReader, require
from .duo_code import NUMBERS
from .sparse import read_marks


def matrix_sides(kind):
    """(rows, columns) of the tensor's view, or None when it is no matrix."""
    if len(kind.shape) < 2:
        return None
    rows = kind.shape[0]
    columns = math.prod(kind.shape[1:])
    if rows < 2 or columns < 16 or max(rows, columns) > 1 << 22 or min(rows, columns) > 1 << 14:
        return None
    return rows, columns


def add_products(first, second, sides):
    """Sum of the outer products in order, f64, as the tensor lies in memory; `first` are the shorter vectors."""
    rows, columns = sides
    total = np.zeros(sides, np.float64)
    for u, v in zip(first, second):
        u, v = u.astype(np.float64), v.astype(np.float64)
        total += np.outer(u, v) if rows <= columns else np.outer(v, u)
    return total.reshape(-1)


def decode(body, kind, key, price, centred=False):
    sides = matrix_sides(kind)
    require(sides is not None, "pairs of a tensor that is no such matrix")
    if not body:
        return np.zeros(kind.elements, np.float32)
    first, second = read_pairs(body, sides, min(sides), key, price, centred=centred)
    return (add_products(first, second, sides) / np.float64(range_factor(price))).astype(np.float32)


def read_pairs(body, sides, count, key, price, gain=np.float32(1), centred=False):
    """The factors of the kept ones among `count` pairs, in order: (shorter ones, longer ones)."""
    m, n = min(sides), max(sides)
    reader = ByteReader(body)
    kept = read_marks(reader, count)
    classes = read_classes(reader, len(kept))
    pairs = [_vectors(k, m, n, c, np.float32(price * range_factor(price))) for k, c in zip(kept, classes)]
    for shorter, longer in pairs:
        longer.step *= gain
        shorter.centred = longer.centred = centred
    values = {}
    for (vector, first, _), piece in read_groups(reader, pairs, m + n, key):
        values.setdefault((vector.number, vector.purpose), np.empty(vector.length, np.float32))[
            first:first + piece.size] = piece
    return tuple([values[k, purpose] for k in kept] for purpose in (philox.DITHER_U, philox.DITHER_V))


def aspect_row(m, n):
    """Half octaves of n / m, rounded."""
    ratio = n / m
    return min(12, math.frexp(ratio * ratio * 1.4142135623730951)[1] - 1)


def _vectors(number, m, n, class_number, scaled_price):
    """Both factors of a pair."""
    q = aspect_row(m, n)
    t_u, t_v = NUMBERS["pair_steps"][q][class_number]
    d_u, d_v = NUMBERS["steps"][t_u]["d"], NUMBERS["steps"][t_v]["d"]
    spread = d_v * NUMBERS["classes"][class_number]["middle"]
    k = NUMBERS["pair_kappa"][q] * math.sqrt((m + n) / (m * n))
    return (Vector(number, m, philox.DITHER_U, t_u, (1 + 2**-10) / d_u, np.float32(d_u)),
            Vector(number, n, philox.DITHER_V, t_v, (1 + 2**-10) * _top(class_number) / spread,
                   scaled_price * np.float32(k * spread)))


def _top(class_number):
    """The upper end of the amplitudes of a class, in units of the price."""
    if class_number == 0:
        return 2
    return 1.5 * 2 ** (class_number // 2) if class_number % 2 else 2 ** (class_number // 2)
