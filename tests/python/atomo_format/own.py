# SPDX-License-Identifier: Apache-2.0
"""Method own: codecs known by their specs alone (FORMAT.md, section 12). CODECS is what this decoder knows of them."""
import re

import numpy as np
import xxhash

from .bits import FormatError, require

SPEC = re.compile(rb"([a-z][a-z0-9_-]{1,31})(:[\x21-\x7e]*)?")


def _levels(body, shape, keys):
    """The tests' codec: the largest magnitude, f32, and a byte an entry, its level plus 128."""
    n = int(np.prod(shape, dtype=np.int64))
    require(len(body) == 4 + n, "bytes of levels")
    largest = np.frombuffer(body, "<f4", 1)[0]
    levels = np.frombuffer(body, np.uint8, n, 4).astype(np.float32) - np.float32(128)
    with np.errstate(all="ignore"):
        return levels * (largest / np.float32(keys["levels"]))


CODECS = {"levels": _levels}


def frame(body, kind):
    """The spec and what the codec wrote, of any codec."""
    require(len(body) <= 8 * kind.elements + 32768, "a body beyond the bound")
    require(len(body) >= 1 and len(body) - 1 >= body[0] >= 2, "length of the spec")
    spec, proper = body[1:1 + body[0]], body[1 + body[0]:]
    require(SPEC.fullmatch(spec) is not None, "characters of the spec")
    require(xxhash.xxh3_64_intdigest(spec) & 0xFFFFFFFF == kind.parameters, "parameters of own")
    return spec.decode("ascii"), proper


def decode(body, kind, key, price):
    spec, proper = frame(bytes(body), kind)
    name, _, keys = spec.partition(":")
    if name not in CODECS:
        raise FormatError(f"no codec '{spec}' here")
    return CODECS[name](proper, kind.shape, dict(pair.split("=") for pair in keys.split(",") if pair))


METHODS = {12: decode}
