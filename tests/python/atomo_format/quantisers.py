# SPDX-License-Identifier: Apache-2.0
"""Methods that send every entry: identity, qsgd, ternary, sign, minmax, fp8 (FORMAT.md, sections 0, 3 to 5, 13 and 14)."""
import math

import numpy as np

from . import half
from .bits import ByteReader, bytes_for, finite_scale, require


def identity(body, kind, key, price):
    reader, dtype = ByteReader(body), kind.parameters
    require(dtype <= half.BF16, "dtype on the wire")
    if dtype == half.F32:
        values = reader.array("<f4", kind.elements)
    else:
        values = half.widen(reader.array("<u2", kind.elements), dtype)
    reader.end()
    return values


def least_step(norm, levels):
    """The least f32 whose product with `levels` is at least norm, or the one below where f32 would overflow."""
    if norm == 0:
        return np.float32(0)
    step = np.float32(float(norm) / levels)
    # The division rounded either way; the product of an f32 and a small integer is exact in f64.
    if float(step) * levels < float(norm):
        step = np.nextafter(step, np.float32(math.inf))
    if not np.isfinite(step * np.float32(levels)):
        step = np.nextafter(step, np.float32(0))
    return step


def _bit_fields(data, count, width):
    """`count` fields of `width` bits; the rest must be zero."""
    flat = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    require(not flat[count * width:].any(), "padding is not zero")
    return flat[:count * width].reshape(count, width) @ (1 << np.arange(width, dtype=np.int64))


def qsgd(body, kind, key, price):
    n, p = kind.elements, kind.parameters
    bits, bucket = (p & 7) + 1, (p >> 4 & 0xFFFFFF) + 1
    require(p >> 28 == 0, "parameters of qsgd")
    reader = ByteReader(body)
    norms = [finite_scale(v) for v in reader.array("<f4", -(-n // bucket))]
    codes = _bit_fields(reader.take(bytes_for(n * bits)), n, bits)
    reader.end()
    if bits == 1:
        levels, negative, steps = np.ones(n), codes == 1, norms
    else:
        half_range = 1 << (bits - 1)
        levels, negative = codes % half_range, codes >= half_range
        steps = [least_step(norm, half_range - 1) for norm in norms]
    step = np.repeat(np.array(steps, np.float32), bucket)[:n]
    return np.where(negative, -levels, levels).astype(np.float32) * step


def ternary(body, kind, key, price):
    n = kind.elements
    clip = np.uint32(kind.parameters).view(np.float32)
    require(kind.parameters == 0 or np.float32(0.01) <= clip <= 1e6, "parameters of ternary")
    reader = ByteReader(body)
    scale = finite_scale(reader.field("f"))
    packed = reader.array(np.uint8, -(-n // 5))
    reader.end()
    require((packed < 243).all(), "a byte of five digits is above 242")
    digits = np.zeros(n, np.uint8)
    for start in range(0, n, 640):
        m = min(640, n - start)
        w = -(-m // 5)
        block = packed[start // 5:start // 5 + w]
        spread = np.concatenate([block // 3**k % 3 for k in range(5)])
        require(not spread[m:].any(), "a digit without an entry")
        digits[start:start + m] = spread[:m]
    return np.array([0, scale, -scale], np.float32)[digits]


def sign(body, kind, key, price):
    n, scale, log = kind.elements, kind.parameters & 3, kind.parameters >> 2
    require(scale <= 2 and (log == 0 or (scale == 2 and 7 <= log <= 16)), "parameters of sign")
    bucket = n if log == 0 else 1 << log
    reader = ByteReader(body)
    if scale == 2:
        means = [finite_scale(v) for v in reader.array("<f4", 2 * -(-n // bucket))]
        plus, minus = (np.repeat(np.array(means[side::2], np.float32), bucket)[:n] for side in (0, 1))
    else:
        plus = minus = finite_scale(reader.field("f")) if scale == 1 else np.float32(1)
    negative = _bit_fields(reader.take(bytes_for(n)), n, 1)
    reader.end()
    return np.where(negative == 1, -minus, plus).astype(np.float32)


def minmax(body, kind, key, price):
    n, bits, log = kind.elements, 4 if kind.parameters & 1 else 8, kind.parameters >> 1
    require(7 <= log <= 10, "parameters of minmax")
    reader = ByteReader(body)
    grids = reader.array("<f4", 2 * -(-n // 2**log)).reshape(-1, 2)
    require(np.isfinite(grids).all() and not np.signbit(grids[:, 1]).any(), "a grid of minmax")
    codes = _bit_fields(reader.take(bytes_for(n * bits)), n, bits)
    reader.end()
    low, step = np.repeat(grids.astype(np.float64), 2**log, axis=0)[:n].T
    return np.minimum(low + codes * step, float(np.finfo(np.float32).max)).astype(np.float32)


def fp8(body, kind, key, price):
    n = kind.elements
    require(kind.parameters <= 1, "parameters of fp8")
    mantissa, least, largest, last = [(3, -6, 8, 0x7E), (2, -14, 15, 0x7B)][kind.parameters]
    reader = ByteReader(body)
    scale = float(finite_scale(reader.field("f")))
    fraction, exponent = math.frexp(scale)
    require(fraction == 0.5 and mantissa - 149 - least <= exponent - 1 <= 128 - largest, "scale of fp8")
    codes = np.frombuffer(reader.take(n), np.uint8).astype(np.int64)
    reader.end()
    magnitudes = codes & 127
    require((magnitudes <= last).all(), "a code of fp8 is no number")
    field, bits = magnitudes >> mantissa, magnitudes & (1 << mantissa) - 1
    normal = field > 0
    values = np.ldexp((bits + (normal << mantissa)).astype(np.float64), np.where(normal, field - 1, 0) + least - mantissa) * scale
    values = np.minimum(values, float(np.finfo(np.float32).max)).astype(np.float32)
    return np.where(codes >= 128, -values, values)


METHODS = {0: identity, 3: qsgd, 4: ternary, 5: sign, 13: minmax, 14: fp8}
