# SPDX-License-Identifier: Apache-2.0
"""Dithered blocks and rows (FORMAT.md, section 1); singular pairs are in factors.py."""
import numpy as np

from . import philox
from .bits import BitReader, ByteReader, bytes_for, require
from .pair_code import NUMBERS, escape_bits, read_pair
from .sparse import read_marks

BLOCKS, ROWS = 0, 1
BLOCK = 256
TILE = 32
GROUP = 1024
DITHER = {BLOCKS: philox.DITHER_BLOCK, ROWS: philox.DITHER_ROW}


def decode(body, kind, key, price):
    require(kind.parameters in DITHER, "family of atoms")
    n = kind.elements
    length = _atom_length(kind)
    out = np.zeros(n, np.float32)
    if not body:
        return out
    require(price > 0, "atoms without a price")
    reader = ByteReader(body)
    kept = read_marks(reader, -(-n // length))
    classes = read_classes(reader, len(kept))
    pieces = list(_pieces(kept, classes, length, n))
    groups = _grouped(pieces, length)
    ends = np.cumsum(reader.array("<u2", len(groups)), dtype=np.int64).tolist()
    stream = BitReader(reader.take(bytes_for(ends[-1] if ends else 0)))
    for group, end in zip(groups, ends):
        for atom, class_number, first, entries, start in group:
            out[start:start + entries] = _read_piece(
                stream, key, DITHER[kind.parameters], price, class_number, atom, first, entries, min(length, n - atom * length))
        require(stream.at == end, "a group does not end at its length")
    stream.zeros_to_the_end()
    reader.zeros_until_multiple_of(4)
    reader.end()
    return out


def _atom_length(kind):
    """Entries of every atom but perhaps the last."""
    if kind.parameters == BLOCKS:
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


def _pieces(kept, classes, length, n):
    """(atom, class, first entry in the atom, entries, first entry in the tensor) of at most a group's entries."""
    for atom, class_number in zip(kept, classes):
        entries = min(length, n - atom * length)
        for first in range(0, entries, GROUP):
            yield atom, class_number, first, min(GROUP, entries - first), atom * length + first


def _grouped(pieces, length):
    together = GROUP // length if length <= GROUP // 2 else 1
    return [pieces[i:i + together] for i in range(0, len(pieces), together)]


def levels_of(key, purpose, atom, entries):
    """Levels of both entries of every pair: (tiles, 16, 2), for an atom of so many entries."""
    tiles = -(-entries // TILE)
    u, l = np.meshgrid(np.arange(tiles), np.arange(TILE // 2), indexing="ij")
    index = 4 * (atom * -(-tiles // 8) + u // 8) + l % 4
    word = philox.blocks(key, purpose, index.ravel())[np.arange(u.size), (l // 4).ravel()]
    first = word.reshape(u.shape) >> (4 * (u % 8)).astype(np.uint32) & np.uint32(15)
    return np.stack([first, first ^ np.uint32(8)], axis=2).astype(np.int64)


def scaled_step(price, class_number):
    """(step of the content, factor that undoes the range factor), f32."""
    scale = np.float32(2.0**80 if price < 2.0**-60 else 2.0**-80 if price > 2.0**60 else 1)
    delta = np.float32(NUMBERS["classes"][class_number]["delta"])
    return np.float32(price * scale) * delta, np.float32(1) / scale


def dequantise(q, level, step, undo):
    """Numbers and their levels to values, f32."""
    centred = (32 * np.asarray(q, np.int64) - 2 * np.asarray(level, np.int64) + 15).astype(np.float32)
    return centred * np.float32(step / np.float32(32)) * undo


def _read_piece(stream, key, purpose, price, class_number, atom, first, entries, atom_entries):
    levels = levels_of(key, purpose, atom, atom_entries)
    step, undo = scaled_step(price, class_number)
    escape = escape_bits(atom_entries, class_number)
    coding_step = NUMBERS["classes"][class_number]["step"]
    values = np.empty(entries, np.float32)
    for start in range(0, entries, TILE):
        e = min(TILE, entries - start)
        h = (e + 1) // 2
        tile_levels = levels[(first + start) // TILE, :h]
        pairs = np.array([read_pair(stream, coding_step, escape, level) for level in tile_levels[:, 0].tolist()])
        decoded = dequantise(pairs, tile_levels, step, undo)
        values[start:start + e] = decoded.T.reshape(-1)[:e]
    return values
