# SPDX-License-Identifier: Apache-2.0
"""The lossless stage (FORMAT.md, "Lossless stage")."""
import blosc

from .bits import ByteReader, FormatError, require
from .pairs import matrix_sides
from .sparse import read_marks

PIECE = 1 << 30
ATOMS, FACTORS, SINGULAR_PAIRS = 1, 8, 2
FREE_PAIRS, ENTRIES_OF_BYTE = 256, 16


def unpack_body(frame, kind):
    """The body of a layer; the frame has to pay for its singular pairs."""
    body = unpack(frame)
    sides = matrix_sides(kind)
    kept = 0
    if sides is not None and kind.method == FACTORS:
        kept = ByteReader(body).field("I")
    elif sides is not None and (kind.method, kind.parameters) == (ATOMS, SINGULAR_PAIRS):
        kept = len(read_marks(ByteReader(body), min(sides)))
    require(kept <= FREE_PAIRS or (kept - FREE_PAIRS) * max(sides) <= ENTRIES_OF_BYTE * len(frame),
            "more pairs than the frame pays for")
    return body


def unpack(frame):
    reader = ByteReader(frame)
    left = reader.field("Q")
    require(left >= 1, "a lossless frame of nothing")
    pieces = []
    while left > 0:
        packed = reader.take(reader.field("I"))
        try:
            piece = blosc.decompress(packed)
        except Exception as error:
            raise FormatError("not a blosc buffer") from error
        require(len(piece) == min(left, PIECE), "a piece of the wrong size")
        pieces.append(piece)
        left -= len(piece)
    reader.end()
    return b"".join(pieces)
