# SPDX-License-Identifier: Apache-2.0
"""Sketches: pairs and the rows of what they leave (FORMAT.md, "Sketch")."""
import numpy as np

from . import atoms, pairs
from .bits import ByteReader, require

LARGEST_RANK = 256


def has_sketch(kind, rank=1):
    """Whether the tensor has a sketch of that rank."""
    sides = pairs.matrix_sides(kind)
    return sides is not None and 1 <= rank <= min(LARGEST_RANK, *sides)


def fma(a, b, c):
    """a * b + c over arrays of f32, rounded to f32 once.

    The product is exact in f64. Their sum is rounded to odd there: of the two neighbours of the exact sum the one whose
    last bit is 1, so that what is below it still counts when 53 bits become 24.
    """
    product, c = a.astype(np.float64) * b.astype(np.float64), np.asarray(c, np.float64)
    total = product + c
    with np.errstate(invalid="ignore"):  # infinite sums have no error
        back = total - product
        error = (product - (total - back)) + (c - back)
    inexact = np.isfinite(error) & (error != 0)
    even = total.view(np.uint64) & np.uint64(1) == 0
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(inexact & even, odd, total).astype(np.float32)


def low_rank(first, second, sides):
    """The sum over pairs in order, a fused multiply-add each, as the tensor lies in memory."""
    rows, columns = sides
    total = np.zeros(sides, np.float32)
    for u, v in zip(first, second):
        left, right = (u, v) if rows <= columns else (v, u)
        total = fma(left[:, None], right[None, :], total)
    return total.reshape(-1)


def decode(body, kind, rank, key, price, gain=np.float32(1), centred=False):
    require(has_sketch(kind, rank), "rank of a sketch")
    if not body:
        return np.zeros(kind.elements, np.float32)
    scale = atoms.range_factor(price)
    reader = ByteReader(body)
    size = reader.field("I")
    require(size % 4 == 0, "bytes of a sketch's pairs")
    of_pairs, of_rows = reader.take(size), reader.rest()
    require(of_pairs or of_rows, "a sketch of nothing")
    values = atoms.decode(of_rows, kind, atoms.ROWS, key, price, gain, centred)
    sides = pairs.matrix_sides(kind)
    first, second = pairs.read_pairs(of_pairs, sides, rank, key, price, gain, centred) if of_pairs else ([], [])
    return low_rank(first, second, sides) * (np.float32(1) / scale) + values
