# SPDX-License-Identifier: Apache-2.0
"""Levels of single entries on a grid (FORMAT.md, section 2)."""
import numpy as np

from .bits import BitReader, ByteReader, DownwardBitReader, require

SEGMENT = 32768
ESCAPE_ONES = 20
LEVEL_BITS, WIDEST_LEVEL_BITS, GAP_BITS = 29, 53, 16
WIDE = 31
EMPTY, ONE_LIST, TWO_LISTS, DENSE = range(4)
F32_MAX = float(np.finfo(np.float32).max)


def _rice(stream, k, raw):
    high = stream.ones(ESCAPE_ONES)
    if high == ESCAPE_ONES:
        value = stream.field(raw)
        require(value >> k >= ESCAPE_ONES, "an escape where none was needed")
        return value
    return high << k | stream.field(k)


def _level(stream, smallest, k, bits):
    """A sign and a magnitude of at least `smallest`, of at most `bits` bits."""
    minus = stream.field(1)
    magnitude = smallest + _rice(stream, k, bits)
    require(magnitude < 1 << bits, "a level is too large")
    return -magnitude if minus else magnitude


def _dense(stream, levels, k, bits):
    for i in range(levels.size):
        magnitude = _rice(stream, k, bits)
        require(magnitude < 1 << bits, "a level is too large")
        if magnitude:
            levels[i] = -magnitude if stream.field(1) else magnitude


def _listed(stream, levels, gap_k, read_level):
    """One list: gaps and levels until a gap reaches the segment's end."""
    at = 0
    while True:
        at += _rice(stream, gap_k, GAP_BITS)
        require(at <= levels.size, "a gap leads behind the segment's end")
        if at == levels.size:
            return
        require(levels[at] == 0, "a place stands in both lists")
        levels[at] = read_level()
        at += 1


def _fields(word, stream):
    """Mode, Rice parameters of ones, of others and of levels, and the bits of a level."""
    if word >> 27 != WIDE:
        return word >> 17 & 3, word >> 19 & 15, word >> 23 & 15, word >> 27, LEVEL_BITS
    require(word & 0x7FFFFFF > 4, "a wide segment without content")
    mode, ones_k, others_k, level_k = stream.field(2), stream.field(4), stream.field(4), stream.field(6)
    bits = stream.field(16)
    require(mode != EMPTY, "a wide segment of zeros")
    require(LEVEL_BITS < bits <= WIDEST_LEVEL_BITS, "the width of a wide segment's levels")
    return mode, ones_k, others_k, level_k, bits


def _size(word):
    return word & (0x7FFFFFF if word >> 27 == WIDE else 0x1FFFF)


def _read_segment(word, content, levels):
    stream, down = BitReader(content), DownwardBitReader(content, 8 * len(content))
    mode, ones_k, others_k, level_k, bits = _fields(word, stream)
    require(ones_k == 0 or mode == TWO_LISTS, "a parameter of a list that is not there")
    require(others_k == 0 or mode in (ONE_LIST, TWO_LISTS), "a parameter of a list that is not there")
    require(level_k <= bits, "Rice parameter of levels")
    if mode == EMPTY:
        require(word == 0, "a segment of zeros with content")
    elif mode == DENSE:
        _dense(stream, levels, level_k, bits)
    elif mode == ONE_LIST:
        _listed(stream, levels, others_k, lambda: _level(stream, 1, level_k, bits))
    else:
        _listed(stream, levels, ones_k, lambda: -1 if stream.field(1) else 1)
        _listed(down, levels, others_k, lambda: _level(down, 2, level_k, bits))
    left = down.at - stream.at
    require(0 <= left < 8, "a segment's streams do not meet")
    require(stream.field(left) == 0, "padding is not zero")


def decode(body, kind, key, step):
    n = kind.elements
    require(kind.parameters == 0, "parameters of coordinate")
    levels = np.zeros(n, np.int64)
    if not body:
        return levels.astype(np.float32)
    require(step > 0, "coordinates without a grid step")
    reader = ByteReader(body)
    words = reader.array("<u4", -(-n // SEGMENT)).tolist()
    require(any(words), "words of no levels alone")
    for s, word in enumerate(words):
        _read_segment(word, reader.take(_size(word)), levels[s * SEGMENT:(s + 1) * SEGMENT])
    reader.end()
    values = levels.astype(np.float64) * np.float64(step)
    return np.clip(values, -F32_MAX, F32_MAX).astype(np.float32)


METHODS = {2: decode}
