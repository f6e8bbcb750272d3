# SPDX-License-Identifier: Apache-2.0
"""Singular pairs with f32 factors (FORMAT.md, section 8)."""
import numpy as np

from .bits import ByteReader, require
from .pairs import add_products, matrix_sides


def decode(body, kind, key, price):
    require(kind.parameters == 0, "parameters of factors")
    sides = matrix_sides(kind)
    reader = ByteReader(body)
    if sides is None:
        values = reader.array("<f4", kind.elements)
        reader.end()
        require(np.isfinite(values).all(), "a value is not finite")
        return values
    if not body:
        return np.zeros(kind.elements, np.float32)
    m, n = min(sides), max(sides)
    kept, exponent = reader.field("I"), reader.field("i")
    require(1 <= kept <= m and -160 <= exponent <= 160, "number of pairs or exponent")
    first = reader.array("<f4", kept * m).reshape(kept, m)
    second = reader.array("<f4", kept * n).reshape(kept, n)
    reader.end()
    require(np.isfinite(first).all() and np.isfinite(second).all(), "a factor is not finite")
    return (np.ldexp(add_products(first, second, sides), exponent)).astype(np.float32)


METHODS = {8: decode}
