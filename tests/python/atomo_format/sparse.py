# SPDX-License-Identifier: Apache-2.0
"""Marks of what was kept, and the methods that send some entries whole (FORMAT.md, sections 1, 6, 7 and 15)."""
import dataclasses

import numpy as np

from . import philox
from .bits import BitReader, ByteReader, bytes_for, require

SEGMENT = 4096


def read_marks(reader, count):
    """The numbers of the kept ones among `count`, ascending; leaves `reader` behind the padding."""
    mode = reader.field("B")
    require(mode <= 13, "mode of the marks")
    if mode == 0:
        flat = np.unpackbits(np.frombuffer(reader.take(bytes_for(count)), np.uint8), bitorder="little")
        require(not flat[count:].any(), "padding is not zero")
        kept = np.flatnonzero(flat).tolist()
    else:
        kept = _read_gaps(reader, count, mode - 1)
    require(kept, "no mark")
    reader.zeros_until_multiple_of(2)
    return kept


def _read_gaps(reader, count, k):
    segments = [(reader.field("H"), reader.field("H")) for _ in range(-(-count // SEGMENT))]
    stream = BitReader(reader.take(bytes_for(sum(bits for _, bits in segments))))
    kept = []
    for s, (number, bits) in enumerate(segments):
        end, next_free = stream.at + bits, s * SEGMENT
        for _ in range(number):
            high = stream.ones(SEGMENT)
            place = next_free + (high << k | stream.field(k))
            require(place < min(count, (s + 1) * SEGMENT), "a mark behind its segment's end")
            kept.append(place)
            next_free = place + 1
        require(stream.at == end, "a segment of marks does not end at its length")
    stream.zeros_to_the_end()
    return kept


def top_k(body, kind, key, price):
    n = kind.elements
    reader = ByteReader(body)
    kept = read_marks(reader, n)
    require(len(kept) >= 1 and len(kept) % 2**32 == kind.parameters, "the number of marks is not k")
    reader.zeros_until_multiple_of(4)
    values = reader.array("<f4", len(kept))
    reader.end()
    require(np.isfinite(values).all(), "a value is not finite")
    out = np.zeros(n, np.float32)
    out[kept] = values
    return out


def random_positions(n, k, key, segment=SEGMENT):
    """The k of n entries that random-k keeps, ascending."""
    shared = dataclasses.replace(key, worker=0)
    first = philox.blocks(shared, philox.RANDOM_K, [0])[0].tolist()
    offset = sum(word << (32 * i) for i, word in enumerate(first)) * n >> 128
    kept = []
    for s, begin in enumerate(range(0, n, segment)):
        end = min(n, begin + segment)
        share = (k * end + offset) // n - (k * begin + offset) // n
        kept += [begin + i for i in _kept_of_segment(s, end - begin, share, shared)]
    return kept


def _kept_of_segment(s, length, share, key):
    m = min(share, length - share)
    blocks = philox.blocks(key, philox.RANDOM_K, 1 + SEGMENT // 2 * s + np.arange((m + 1) // 2))
    marked = set()
    for d, word in enumerate(blocks.astype("<u4").reshape(-1).view("<u8")[:m].tolist()):
        j = length - m + d
        t = word * (j + 1) >> 64
        marked.add(j if t in marked else t)
    if share > length // 2:
        marked = set(range(length)) - marked
    return sorted(marked)


def random_k(body, kind, key, price):
    n = kind.elements
    reader = ByteReader(body)
    k = len(body) // 4
    require(1 <= k <= n and k % 2**32 == kind.parameters, "the number of values is not k")
    values = reader.array("<f4", k)
    reader.end()
    require(np.isfinite(values).all(), "a value is not finite")
    out = np.zeros(n, np.float32)
    out[random_positions(n, k, key)] = values * np.float32(n / k)
    return out


def random_blocks(body, kind, key, price):
    n, k = kind.elements, kind.parameters
    blocks = -(-n // 64)
    require(1 <= k <= blocks < 2**32, "parameters of random blocks")
    reader = ByteReader(body)
    values = reader.array("<f4", 64 * k).reshape(k, 64)
    reader.end()
    require(np.isfinite(values).all(), "a value is not finite")
    out = np.zeros((blocks, 64), np.float32)
    out[random_positions(blocks, k, key, 64)] = values
    flat = out.reshape(-1)
    require(not flat[n:].view(np.uint32).any(), "padding is not zero")
    return flat[:n] * np.float32(blocks / k)


METHODS = {6: top_k, 7: random_k, 15: random_blocks}
