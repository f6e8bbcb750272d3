# SPDX-License-Identifier: Apache-2.0
"""Chunked top-k (FORMAT.md, section 11)."""
import math

import numpy as np

from .bits import BitReader, ByteReader, bytes_for, require

SIGN, TWO, FOUR, EIGHT, F16, F32 = range(6)
LEVEL_WORDS = (1, 3, 8, 2, 1, 0)
SLOT_BITS = (1, 1, 4, 8, 16, 32)
RAW_BITS = 13


def _rice(stream, k):
    high = stream.ones(20)
    if high < 20:
        return high << k | stream.field(k)
    value = stream.field(RAW_BITS)
    require(value >> k >= 20, "a raw gap that has a shorter word")
    return value


def _gap(stream, left, marks):
    mean = (left - marks) // (marks + 1)
    return _rice(stream, mean.bit_length() - 1 if mean >= 1 else 0)


def _places(stream, entries, slots):
    """The places that one chunk keeps."""
    places, following = [], 0
    while len(places) < slots:
        gap = _gap(stream, entries - following, slots - len(places))
        require(gap <= entries - following, "a gap beyond the chunk's end")
        if gap == entries - following:
            break
        places.append(following + gap)
        following += gap + 1
    return places


def _values(form, codes, upper, levels):
    """What codes decode to, f32."""
    halves = (np.array(levels, np.uint32) << 16).view(np.float32)
    if form == F32:
        return codes.astype(np.uint32).view(np.float32)
    if form == F16:
        return codes.astype(np.uint16).view(np.float16).astype(np.float32) * halves[0]
    bits = SLOT_BITS[form] - 1
    negative, bins = codes >> bits == 1, upper if form == TWO else codes & ((1 << bits) - 1)
    if form == EIGHT:
        low, high = halves.astype(np.float64)
        magnitudes = (low + (2 * bins + 1) * ((high - low) / 256)).astype(np.float32)
    else:
        magnitudes = halves[bins]
    return np.where(negative, -magnitudes, magnitudes)


def _check_parameters(p):
    layout, side = p >> 18 & 3, p >> 20 & 63
    require((p & 7) <= F32 and (p >> 15 & 7) <= 6 and layout <= 2 and p >> 27 == 0, "parameters of chunked top-k")
    require((layout == 0) == (side == 0), "the side of tiles")
    chunk, k = 64 << (p >> 15 & 7), (p >> 3 & 0xFFF) + 1
    require(k <= chunk, "more slots than entries")
    return p & 7, chunk, k, layout, side + 1


def _basis(n):
    """The rows of the orthonormal DCT-II, f32."""
    k, j = np.arange(n)[:, None], np.arange(n)
    numbers = math.sqrt(2 / n) * np.cos(np.pi * ((2 * j + 1) * k % (4 * n)) / (2 * n))
    numbers[abs(numbers) < 1e-12] = 0
    numbers[0] = math.sqrt(1 / n)
    return numbers.astype(np.float32)


def _fma(a, b, c):
    """a b + c of f32, rounded once: the sum is rounded to odd in f64 before."""
    product, addend = np.multiply(a, b, dtype=np.float64), c.astype(np.float64)
    total = product + addend
    of_addend = total - product
    left = (product - (total - of_addend)) + (addend - of_addend)
    even = (total.view(np.int64) & 1) == 0
    total = np.where((left != 0) & even, np.nextafter(total, np.copysign(np.inf, left)), total)
    return total.astype(np.float32)


def _segments(n):
    """Begin, end and frequencies of the segments of a folded vector, the longest first."""
    found, length, stride = [], n, 1
    while length % 2 == 0 and length > 8:
        half = length // 2
        found.append((half, length, [stride * (2 * i + 1) for i in range(half)]))
        length, stride = half, 2 * stride
    return found + [(0, length, [stride * i for i in range(length)])]


def _restore(frequencies):
    """What the last axis was before its transform."""
    n = frequencies.shape[-1]
    basis, out = _basis(n), np.empty_like(frequencies)
    for begin, end, own in _segments(n):
        places = np.arange(begin, end)
        entries = places if begin == 0 else 2 * begin - 1 - places
        total = np.zeros(frequencies.shape[:-1] + (end - begin,), np.float32)
        for k in own:
            total = _fma(frequencies[..., k, None], basis[k][entries], total)
        out[..., begin:end] = total
    for begin, end, _ in reversed(_segments(n)[:-1]):
        a, b = out[..., :begin][..., ::-1].copy(), out[..., begin:end].copy()
        out[..., :begin], out[..., begin:end] = (a + b)[..., ::-1], a - b
    return out


def _from_tiles(sequence, shape, side, transforms):
    rows = shape[0] if len(shape) > 1 else 1
    columns = sequence.size // rows
    h, w = (max(d for d in range(1, side + 1) if length % d == 0) for length in (rows, columns))
    tiles = sequence.reshape(-1, h, w)
    if transforms and h * w > 1:
        columns_first = _restore((tiles * np.float32(2**-8)).swapaxes(1, 2)).swapaxes(1, 2)
        restored, largest = _restore(columns_first).astype(np.float64) * 2**8, np.finfo(np.float32).max
        tiles = np.clip(restored, -largest, largest).astype(np.float32)
    return tiles.reshape(rows // h, columns // w, h, w).transpose(0, 2, 1, 3).reshape(-1)


def chunk_top_k(body, kind, key, price):
    form, chunk, k, layout, side = _check_parameters(kind.parameters)
    n = kind.elements
    sizes = [min(chunk, n - at) for at in range(0, n, chunk)]
    slots = [-(-k * size // chunk) for size in sizes]
    per_group = 1 << min(8, max(0, 10 - (k.bit_length() - 1)))
    groups = [range(at, min(len(sizes), at + per_group)) for at in range(0, len(sizes), per_group)]
    reader = ByteReader(body)
    lengths = reader.array("<u2", len(groups)).tolist()
    reader.zeros_until_multiple_of(4)
    levels = reader.array("<u2", len(groups) * LEVEL_WORDS[form]).reshape(len(groups), -1).tolist()
    reader.zeros_until_multiple_of(4)
    codes = []
    for group in groups:
        count = sum(slots[c] for c in group)
        stream = BitReader(reader.take(-(-count * SLOT_BITS[form] // 32) * 4))
        codes.append([stream.field(SLOT_BITS[form]) for _ in range(count)])
        stream.zeros_to_the_end()
    out = np.zeros(n, np.float32)
    for g, group in enumerate(groups):
        gaps = BitReader(reader.take(lengths[g]))
        slot, places, used = 0, [], []
        for c in group:
            own = _places(gaps, sizes[c], slots[c])
            places += [c * chunk + place for place in own]
            used += range(slot, slot + len(own))
            slot += slots[c]
        words = levels[g]
        upper = np.zeros(slot, np.int64)
        if form == TWO:
            require(words[2] <= slot, "more slots of the upper bin than there are")
            following = 0
            for left in range(words[2], 0, -1):
                following += _gap(gaps, slot - following, left)
                require(following < slot, "a gap beyond the slots' end")
                upper[following] = 1
                following += 1
            words = words[:2]
        require(bytes_for(gaps.at) == lengths[g], "gaps do not end at their length")
        gaps.zeros_to_the_end()
        require(all(word < (0x7781 if form == F16 else 0x7F80) for word in words), "a level is not finite")
        own = np.array(codes[g], np.int64)
        empty = np.ones(slot, bool)
        empty[used] = False
        require(not own[empty].any() and not upper[empty].any(), "a code of an empty slot")
        decoded = _values(form, own[used], upper[used], words)
        require(np.isfinite(decoded).all(), "a value is not finite")
        out[places] = decoded
    reader.end()
    return _from_tiles(out, kind.shape, side, layout == 2) if layout and n else out


METHODS = {11: chunk_top_k}
