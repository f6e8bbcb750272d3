# SPDX-License-Identifier: Apache-2.0
"""The lossless stage (FORMAT.md, "Lossless stage")."""
import blosc

from .bits import ByteReader, FormatError, require

PIECE = 1 << 30


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
