# SPDX-License-Identifier: Apache-2.0
"""Philox4x32-10 and the layout of its counter (FORMAT.md, "Randomness")."""
import dataclasses

import numpy as np

DITHER_BLOCK, DITHER_ROW, DITHER_U, DITHER_V, OUTPUT, RANDOM_K, OUTPUT_LOW = 8, 9, 10, 11, 17, 19, 24


@dataclasses.dataclass(frozen=True)
class Key:
    seed: int = 0
    step: int = 0
    tensor: int = 0
    worker: int = 0
    channel: int = 0


def philox(counter, seed):
    """Ten rounds over an array (n, 4) of counters; returns the same shape of u32."""
    c = [counter[:, i].astype(np.uint64) for i in range(4)]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p = c[0] * np.uint64(0xD2511F53)
        q = c[2] * np.uint64(0xCD9E8D57)
        c = [(q >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), q & low,
             (p >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p & low]
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=1).astype(np.uint32)


def blocks(key, purpose, indices):
    """The four words at each index of a purpose: (n, 4)."""
    indices = np.asarray(indices, np.uint64).reshape(-1)
    counter = np.empty((indices.size, 4), np.uint32)
    counter[:, 0] = indices & np.uint64(0xFFFFFFFF)
    counter[:, 1] = (indices >> np.uint64(32)) | np.uint64(purpose << 8 | key.channel << 16)
    counter[:, 2] = key.step
    counter[:, 3] = key.tensor | key.worker << 16
    return philox(counter, key.seed)


def short_draws(key, purpose, count):
    """Short draws i of a purpose, for i below count: 16 bits each."""
    words = blocks(key, purpose, np.arange((count + 7) // 8))
    return words.astype("<u4").view("<u2").reshape(-1)[:count]


def words_in_order(key, purpose, count):
    """Word i mod 4 of block i // 4, for i below count."""
    return blocks(key, purpose, np.arange((count + 3) // 4)).reshape(-1)[:count]
