# SPDX-License-Identifier: Apache-2.0
"""Dithered blocks and rows (FORMAT.md, section 1); pairs and sketches, which share most of it, are in pairs.py and
sketch.py."""
import dataclasses

import numpy as np

from . import philox
from .bits import BitReader, ByteReader, DownwardBitReader, bytes_for, require
from .duo_code import NUMBERS, escape_bits, read_pair
from .sparse import read_marks

BLOCKS, ROWS = 0, 1
BLOCK = 256
TILE = 32
GROUP = 1024
# Of centred layers: coding steps below the first number have the offset; the others none.
OFFSETS = ((8, 6), (9, 5), (11, 4), (13, 3), (15, 2), (18, 1))
DITHER = {BLOCKS: philox.DITHER_BLOCK, ROWS: philox.DITHER_ROW}


@dataclasses.dataclass
class Vector:
    """What was quantised as one: an atom, or a factor of a pair."""
    number: int
    length: int
    purpose: int
    coding_step: int
    reach: float
    step: np.float32
    centred: bool = False


def decode(body, kind, family, key, price, gain=np.float32(1), centred=False):
    """The sections of blocks or rows; none at all for zeros. Steps are multiplied by `gain`."""
    n = kind.elements
    length = _atom_length(kind, family)
    out = np.zeros(n, np.float32)
    if not body:
        return out
    reader = ByteReader(body)
    scale = range_factor(price)
    kept = read_marks(reader, -(-n // length))
    vectors = [_atom(family, t, min(length, n - t * length), class_number, np.float32(price * scale))
               for t, class_number in zip(kept, read_classes(reader, len(kept)))]
    for vector in vectors:
        vector.step *= gain
        vector.centred = centred
    for (vector, first, _), values in read_groups(reader, [[vector] for vector in vectors], length, key):
        start = vector.number * length + first
        out[start:start + values.size] = values * (np.float32(1) / scale)
    return out


def _atom(family, number, length, class_number, scaled_price):
    numbers = NUMBERS["classes"][class_number]
    step = scaled_price * np.float32(numbers["delta"])
    return Vector(number, length, DITHER[family], numbers["step"], numbers["reach"], step)


def thinning_gain(reader):
    """What makes up for the runs that were left out."""
    word = reader.field("I")
    log_runs, left_out, start = word & 0xFF, word >> 8 & 0xFFF, word >> 20
    require(log_runs <= 11, "runs of a thinned layer")
    runs = 1 << log_runs
    require(1 <= left_out < runs and start < runs, "runs left out of a thinned layer")
    return np.float32(runs / (runs - left_out))


def range_factor(price):
    """S."""
    require(price > 0, "atoms without a price")
    return np.float32(2.0**80 if price < 2.0**-60 else 2.0**-80 if price > 2.0**60 else 1)


def _atom_length(kind, family):
    """Entries of every atom but perhaps the last."""
    if family == BLOCKS:
        return BLOCK
    require(len(kind.shape) >= 1, "rows of a scalar")
    length = kind.elements // kind.shape[0]
    require(16 <= length <= 1 << 22, "length of a row")
    return length


def read_classes(reader, count):
    """The class of each kept atom, 0 for an uncertain one; leaves `reader` behind the padding."""
    flags = np.unpackbits(np.frombuffer(reader.data, np.uint8, offset=reader.at)[:bytes_for(count)], bitorder="little")
    certain = flags[:count].tolist()
    require(len(certain) == count, "truncated")
    stream = BitReader(reader.take(bytes_for(count + 5 * sum(certain))))
    stream.field(count)
    classes = [1 + stream.field(5) if c else 0 for c in certain]
    require(all(c < len(NUMBERS["classes"]) for c in classes), "class of an atom")
    stream.zeros_to_the_end()
    reader.zeros_until_multiple_of(2)
    return classes


def cut(vector):
    """Pieces (vector, first entry, entries) of at most a group's entries."""
    return [(vector, first, min(GROUP, vector.length - first)) for first in range(0, vector.length, GROUP)]


def read_groups(reader, atoms, length, key):
    """(piece, values before the range factor is undone) for every piece of the kept atoms, to the body's end. An atom is a
    list of vectors; `length` is that of all their entries, but for the last atom's."""
    together = GROUP // length if length <= GROUP // 2 else 1
    if length > GROUP:
        groups = [[[piece]] for atom in atoms for vector in atom for piece in cut(vector)]
    else:
        whole = [[(vector, 0, vector.length) for vector in atom] for atom in atoms]
        groups = [whole[i:i + together] for i in range(0, len(whole), together)]
    ends = np.cumsum(reader.array("<u2", len(groups)), dtype=np.int64).tolist()
    content = reader.take(bytes_for(ends[-1] if ends else 0))
    for group, begin, end in zip(groups, [0, *ends], ends):
        yield from _read_group(content, group, begin, end, together > 1, key)
    BitReader(content, ends[-1] if ends else 0).zeros_to_the_end()
    reader.zeros_until_multiple_of(4)
    reader.end()


def _read_group(content, members, begin, end, alternate, key):
    """Both strands of a group: members are lists of pieces."""
    upward, downward = BitReader(content, begin), DownwardBitReader(content, end)
    for number, pieces in enumerate(members):
        tiles = sum(-(-entries // TILE) for _, _, entries in pieces)
        turn = (0 if number % 2 else tiles) if alternate else -(-tiles // 2)
        strands = [upward] * turn + [downward] * (tiles - turn)
        for piece in pieces:
            count = -(-piece[2] // TILE)
            yield piece, _read_piece(strands[:count], key, *piece)
            del strands[:count]
    require(upward.at == downward.at, "the strands of a group do not meet")


def levels_of(key, vector):
    """Levels of both entries of every pair: (tiles, 16, 2)."""
    tiles = -(-vector.length // TILE)
    u, l = np.meshgrid(np.arange(tiles), np.arange(TILE // 2), indexing="ij")
    index = 4 * (vector.number * -(-tiles // 8) + u // 8) + l % 4
    word = philox.blocks(key, vector.purpose, index)[np.arange(u.size), (l // 4).ravel()]
    first = word.reshape(u.shape) >> (4 * (u % 8)).astype(np.uint32) & np.uint32(15)
    return np.stack([first, first ^ np.uint32(8)], axis=2).astype(np.int64)


def _dequantise(q, level, vector):
    n = 32 * np.asarray(q, np.int64)
    if vector.centred:
        offset = next((offset for below, offset in OFFSETS if vector.coding_step < below), 0)
        n -= np.clip(n, -offset, offset)
    else:
        n += 15 - 2 * level
    return n.astype(np.float32) * np.float32(vector.step / np.float32(32))


def _read_piece(strands, key, vector, first, entries):
    """The values of a piece, each of whose tiles is on a strand."""
    levels = None if vector.centred else levels_of(key, vector)
    escape = escape_bits(vector.length, vector.reach)
    values = np.empty(entries, np.float32)
    for strand, start in zip(strands, range(0, entries, TILE)):
        e = min(TILE, entries - start)
        h = (e + 1) // 2
        tile_levels = None if vector.centred else levels[(first + start) // TILE, :h]
        first_levels = [None] * h if vector.centred else tile_levels[:, 0].tolist()
        pairs = [read_pair(strand, vector.coding_step, escape, level) for level in first_levels]
        values[start:start + e] = _dequantise(pairs, tile_levels, vector).T.reshape(-1)[:e]
    return values
