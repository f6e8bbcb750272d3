# SPDX-License-Identifier: Apache-2.0
"""Codecs without a price, a layer at a time: (bits of the body, variance)."""
import math

import numpy as np

from .families import marks

# Distortion of a Lloyd-Max quantiser of a Gaussian (Max, 1960) at 1, 2, ... bits.
LLOYD_MAX = (0.3634, 0.1175, 0.03454, 0.009497, 0.002499, 0.000642, 0.000162, 0.0000408)


def eden(bits):
    """NMSE of EDEN (arXiv 2108.08842): D / (1 - D); below a bit a random part of the entries, side information free."""
    errors = [d / (1 - d) for d in LLOYD_MAX]
    return (1 + errors[0]) / bits - 1 if bits < 1 else errors[int(bits) - 1] if bits == int(bits) else math.nan


def _levels(layer, levels, bucket):
    """Expected counts of levels, variance and number of buckets."""
    x = np.abs(np.pad(layer.x.ravel(), (0, -layer.size % bucket))).reshape(-1, bucket)
    step = x.max(1, keepdims=True) / levels
    at = np.divide(x, step, out=np.zeros_like(x), where=step > 0)
    level, up = at.astype(int), at - np.floor(at)
    counts = np.append(np.bincount(level.ravel(), (1 - up).ravel()), 0) + np.append(0, np.bincount(level.ravel(), up.ravel()))
    counts[0] -= x.size - layer.size
    return counts, (step**2 * up * (1 - up)).sum(), len(x)


def qsgd(layer, bits, bucket):
    """Fixed width (arXiv 1610.02132, largest magnitude as norm), 2 bits or more."""
    _, variance, buckets = _levels(layer, 2**(bits - 1) - 1, bucket)
    return 32 * math.ceil((32 * buckets + 8 * math.ceil(bits * layer.size / 8)) / 32), variance


def qsgd_entropy(layer, levels, bucket=512):
    """Levels at their order-0 entropy in the layer, whose table is free, and a sign."""
    counts, variance, buckets = _levels(layer, levels, bucket)
    used = counts[counts > 0]
    return 32 * buckets + counts[1:].sum() - (used * np.log2(used / used.sum())).sum(), variance


def top_k(layer, keep):
    """A fraction `keep`, f32 values. Biased: the error is what is left out."""
    k = min(max(1, round(keep * layer.size)), layer.size)
    return 32 * k + 8 + 23 + marks(layer.size, k), np.sort(layer.x.ravel()**2)[:layer.size - k].sum()


def sampled_pairs(layer, keep):
    """ATOMO, Algorithm 1 (arXiv 1806.04090), a layer by itself: p = min(1, t sigma), f32 factors."""
    if not layer.is_matrix:
        return 32 * layer.size, 0.0
    sigma = np.sqrt(layer.families("svd")[0].energy)
    keep, left = min(int(keep), len(sigma)), np.cumsum(sigma[::-1])[::-1]
    certain = next((i for i in range(keep) if sigma[i] * (keep - i) <= left[i]), keep)
    p = np.append(np.ones(certain), sigma[certain:] * (keep - certain) / max(left[min(certain, len(left) - 1)], 1e-300))
    return 64 + 32 * keep * sum(layer.wide.shape), (sigma[p > 0]**2 * (1 / p[p > 0] - 1)).sum()
