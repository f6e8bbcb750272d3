# SPDX-License-Identifier: Apache-2.0
"""Layers whose encoder chose among several forms (FORMAT.md, section 9)."""
import dataclasses

import numpy as np

from . import atoms, coordinate, families, sketch
from .bits import require

BLOCKS, ROWS, SKETCH, COORDINATES = range(4)
ATOMS, COORDINATE = 1, 2


def decode(body, kind, key, price, form, thinned, centred):
    rank = kind.parameters
    require(sketch.has_sketch(kind, rank) if rank else not sketch.has_sketch(kind), "rank of a sketch")
    if not body:
        require(form == BLOCKS, "a form without a body")
        return np.zeros(kind.elements, np.float32)
    require(price > 0, "atoms without a price")
    if form == COORDINATES:
        step = np.float32(3) * price
        require(np.isfinite(step), "the grid step is not finite")
        require(not thinned and not centred, "thinned or centred coordinates")
        return coordinate.decode(body, dataclasses.replace(kind, method=COORDINATE, parameters=0), key, step)
    require(form != SKETCH or rank, "a sketch of a tensor that has none")
    family = {BLOCKS: atoms.BLOCKS, ROWS: atoms.ROWS, SKETCH: families.SKETCH | rank << 8}[form]
    return families.decode(body, dataclasses.replace(kind, method=ATOMS, parameters=family), key, price, thinned,
                           centred)
