# SPDX-License-Identifier: Apache-2.0
"""Any bytes as a message, from Python: every call that reads one raises `atomo.Error` or gives arrays.

`tests/bindings/test_python_fuzz.py` runs it with draws of its own; `tests/fuzz/run.sh python` runs this file by
atheris, which the compiled part of the package does not guide.
"""
import pathlib
import struct

import numpy
import xxhash

import atomo

GOLDENS = pathlib.Path(__file__).resolve().parent.parent / "golden"
HEADER, ROW, BLOCK = 64, 8, 4096
MOST_ELEMENTS = 1 << 16


OWN = "golden-levels.atomo"  # of a codec that only the tests in C++ register


def seeds():
    """The goldens that are not long, by name, of the library's own codecs."""
    return [path.read_bytes() for path in sorted(GOLDENS.glob("*.atomo")) if path.stat().st_size < 16_000 and path.name != OWN]


def mended(message, head_bytes):
    """The message with its length, its last layer's and both checksums made to hold; its head has so many bytes."""
    message = bytearray(message) + bytes(-len(message) % 4)
    layers = struct.unpack_from("<I", message, 36)[0]
    rows = HEADER + ROW * layers
    if not HEADER < rows <= head_bytes <= len(message):
        return bytes(message)
    words = struct.unpack_from(f"<{layers}Q", message, HEADER)
    before = sum((word >> 24) + 3 & ~3 for word in words[:-1])
    last = len(message) - head_bytes - before
    if last >= 0 and (words[-1] >> 24) + 3 & ~3 != last:
        struct.pack_into("<Q", message, rows - ROW, words[-1] & 0xFFFFFF | last << 24)
    struct.pack_into("<Q", message, 8, len(message))
    bodies = bytes(message[head_bytes:])
    total = sum(xxhash.xxh3_64_intdigest(bodies[at:at + BLOCK].ljust(BLOCK, b"\0"), at // BLOCK)
                for at in range(0, len(bodies), BLOCK))
    struct.pack_into("<Q", message, 48, total % 2**64)
    seed = xxhash.xxh3_64_intdigest(bytes(message[:56]))
    struct.pack_into("<Q", message, 56, xxhash.xxh3_64_intdigest(bytes(message[HEADER:head_bytes]), seed))
    return bytes(message)


def mutated(message, draw):
    """One to four changes of a message that stands, mostly mended; `draw` is a `random.Random`."""
    head = atomo.inspect(message).head_bytes
    data = bytearray(message)
    for _ in range(draw.randint(1, 4)):
        first = draw.choice([0, HEADER, head, head, head, head]) if len(data) > head else 0
        at = draw.randrange(first, len(data)) if first < len(data) else len(data) - 1
        what = draw.randrange(6)
        if what == 0:
            data[at] = draw.randrange(256)
        elif what < 3:
            data[at] ^= 1 << draw.randrange(8)
        elif what == 3 and at >= head:
            del data[at:at + draw.randint(1, 16)]
        elif what == 4:
            data[at:at] = bytes(draw.randrange(256) for _ in range(draw.randint(1, 16)))
        else:
            data[at:at + 8] = draw.choice([bytes(8), b"\xff" * 8, b"\x7f\x80\x00\x00"])
    return mended(data, head) if draw.random() < 0.9 else bytes(data)


def run(message):
    """Reads the message in every way. Returns whether it was decoded."""
    try:
        about = atomo.inspect(message)
    except atomo.Error as error:
        assert str(error)
        return False
    repr(about)
    try:
        if sum(int(numpy.prod(layer.shape, dtype=object)) for layer in about.layers) > MOST_ELEMENTS:
            return False
        values = atomo.decode(message)
    except atomo.Error as error:
        assert str(error)
        return False
    again = atomo.decode(message, out=[numpy.full(v.shape, 7, v.dtype) for v in values])
    for layer, first, second in zip(about.layers, values, again, strict=True):
        assert first.shape == tuple(layer.shape) and first.tobytes() == second.tobytes()
    return True


def main():
    """By atheris, with the options of libFuzzer."""
    import random
    import sys

    import atheris

    standing = seeds()

    def mutate(data, most, seed):
        draw = random.Random(seed)
        try:
            return mutated(data, draw)[:most]
        except (atomo.Error, ValueError, struct.error):
            return mutated(draw.choice(standing), draw)[:most]

    # This file's Python is followed; the package's extension is not compiled for it.
    followed = atheris.instrument_func(run)

    def one_input(data):
        followed(bytes(data))

    atheris.Setup(sys.argv, one_input, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
