# SPDX-License-Identifier: Apache-2.0
"""Stochastic rounding to the half types (FORMAT.md, "Half outputs")."""
import numpy as np

from . import philox

F32, F16, BF16 = 0, 1, 2
# dtype: (bits of the mantissa, least exponent, what stands as infinity)
_HALVES = {F16: (10, -14, 2.0**16), BF16: (7, -126, 2.0**128)}


def widen(patterns, dtype):
    """Half patterns as f32, exactly."""
    patterns = np.asarray(patterns, np.uint16)
    if dtype == F16:
        return patterns.view(np.float16).astype(np.float32)
    return (patterns.astype(np.uint32) << np.uint32(16)).view(np.float32)


def round_with(values, words, dtype):
    """f32 values to half patterns, one word a value."""
    mantissa, least, limit = _HALVES[dtype]
    values = np.asarray(values, np.float32)
    magnitude = np.abs(values).astype(np.float64)
    _, exponent = np.frexp(magnitude)
    spacing_exponent = np.maximum(exponent - 1, least) - mantissa
    with np.errstate(invalid="ignore"):
        units = np.ldexp(magnitude, -spacing_exponent)  # exact: spacings are powers of two
        lower = np.floor(units)
        fraction = np.floor((units - lower) * 2.0**32 + 0.5)
        rounded = np.where(words < fraction, lower + 1, lower)
        result = np.ldexp(rounded, spacing_exponent)
    result = np.where(result >= limit, np.inf, result)
    result = np.copysign(result, values)
    if dtype == F16:
        return result.astype(np.float16).view(np.uint16)
    return (result.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def round_layer(values, key, dtype):
    """A decoded layer, f32, to half patterns."""
    first = philox.short_draws(key, philox.OUTPUT, values.size)
    further = philox.short_draws(key, philox.OUTPUT_LOW, values.size)
    return round_with(values, first.astype(np.uint32) << np.uint32(16) | further, dtype)
