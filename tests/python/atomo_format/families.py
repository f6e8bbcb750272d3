# SPDX-License-Identifier: Apache-2.0
"""The method atoms: which family a body is of (FORMAT.md, section 1)."""
import numpy as np

from . import atoms, pairs, sketch
from .bits import ByteReader, require

PAIRS, SKETCH = 2, 3


def decode(body, kind, key, price, thinned=False, centred=False):
    family, rank = kind.parameters & 0xFF, kind.parameters >> 8
    require(family <= SKETCH and (rank == 0 or family == SKETCH), "family of atoms")
    require(not thinned or family != PAIRS, "thinned singular pairs")
    if family == PAIRS:
        return pairs.decode(body, kind, key, price, centred)
    reader = ByteReader(body)
    gain = atoms.thinning_gain(reader) if thinned else np.float32(1)
    if family == SKETCH:
        return sketch.decode(reader.rest(), kind, rank, key, price, gain, centred)
    return atoms.decode(reader.rest(), kind, family, key, price, gain, centred)
