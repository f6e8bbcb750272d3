# SPDX-License-Identifier: Apache-2.0
"""Method natural: a power of two for every entry (FORMAT.md, section 10)."""
import numpy as np

from .bits import ByteReader, require


def decode(body, kind, key, price):
    n, reader = kind.elements, ByteReader(body)
    require(kind.parameters == 0, "parameters of natural")
    signs = np.unpackbits(np.frombuffer(reader.take(-(-n // 32) * 4), np.uint8), bitorder="little")
    require(not signs[n:].any(), "signs of no entry")
    codes = np.frombuffer(reader.take(n), np.uint8).astype(np.float64)
    reader.end()
    values = np.where(codes == 0, 0.0, np.exp2(codes - 127))
    values = np.where(codes == 255, float(np.finfo(np.float32).max), values)
    return np.where(signs[:n] == 1, -values, values).astype(np.float32)


METHODS = {10: decode}
