# SPDX-License-Identifier: Apache-2.0
"""Heads, layers and checksums (FORMAT.md, "Container" and "Layers")."""
import dataclasses
import importlib
import math
import os
import pkgutil

import numpy as np
import xxhash

from . import automatic, families, half, lossless
from .bits import ByteReader, FormatError, body_checksum, require
from .philox import Key

NON_FINITE, LOSSLESS, OWN_PRICE, THINNED, CENTRED = 1, 2, 4, 8, 64
FORM_SHIFT, FORMS = 4, 3 << 4
ATOMS, COORDINATE, AUTOMATIC = 1, 2, 9


@dataclasses.dataclass(frozen=True)
class Kind:
    method: int
    dtype: int
    parameters: int
    shape: tuple

    @property
    def elements(self):
        return math.prod(self.shape)


@dataclasses.dataclass
class Layer:
    kind: Kind
    flags: int
    key: Key
    price: np.float32
    body: bytes
    name: bytes = b""

    @property
    def form(self):
        return (self.flags & FORMS) >> FORM_SHIFT


@dataclasses.dataclass
class Container:
    key: Key
    minor: int
    price: np.float32
    grid_step: np.float32
    head_bytes: int
    layers: list


def _decoders():
    """What the modules of this package decode: METHODS of each, by number."""
    found = {}
    for module in pkgutil.iter_modules([os.path.dirname(__file__)]):
        if module.name != "container":
            found |= getattr(importlib.import_module(f".{module.name}", __package__), "METHODS", {})
    return found


METHODS = _decoders()


def parse(message, exact=True):
    """Reads the head and cuts out the bodies; both checksums are verified."""
    head = ByteReader(message)
    require(head.take(4) == b"ATMO", "magic")
    require(head.field("B") == 2, "major version")
    minor = head.field("B")
    flags = head.field("H")
    require(flags & ~1 == 0, "unknown flags")
    total = head.field("Q")
    require(total <= len(message), "truncated")
    require(not exact or total == len(message), "bytes after the message")
    head.data = head.data[:total]
    seed, step, tensor, worker, channel = (head.field(c) for c in "QIHHH")
    kind_count, layer_count = head.field("H"), head.field("I")
    require(tensor + layer_count <= 65536, "too many layers")
    price, grid_step = (np.float32(head.field("f")) for _ in range(2))
    require(all(np.isfinite(p) and p >= 0 for p in (price, grid_step)), "a price is negative or not finite")
    body_sum, head_sum = head.field("Q"), head.field("Q")
    rows = [_row(head.field("Q")) for _ in range(layer_count)]
    kinds = [_kind(head) for _ in range(kind_count)]
    names = [_name(head) if flags & 1 else b"" for _ in range(layer_count)]
    head.zeros_until_multiple_of(4)
    head_bytes = head.at
    require(head_sum == _head_checksum(head.data[:head_bytes]), "checksum of the head")
    require(body_sum == body_checksum(head.data[head_bytes:]), "checksum of the bodies")
    _check_kinds(rows, kinds)
    layers = []
    for i, (kind, layer_flags, size) in enumerate(rows):
        body = head.take(size)
        head.zeros_until_multiple_of(4)
        key = Key(seed, step, tensor + i, worker, channel)
        shared = {ATOMS: price, AUTOMATIC: price, COORDINATE: grid_step}.get(kinds[kind].method, np.float32(0))
        layers.append(Layer(kinds[kind], layer_flags, key, shared, body, names[i]))
    head.end()
    return Container(Key(seed, step, tensor, worker, channel), minor, price, grid_step, head_bytes, layers)


def decode_layer(layer):
    """A layer's values, f32, flat."""
    n, body = layer.kind.elements, ByteReader(layer.body)
    require(layer.body or layer.flags & ~NON_FINITE == 0, "flags of a body that is not there")
    if n == 0 or layer.flags & NON_FINITE:
        require(not layer.body, "a body where none may be")
        return np.full(n, np.nan, np.float32)
    price = layer.price
    if layer.flags & OWN_PRICE:
        price = np.float32(body.field("f"))
        require(np.isfinite(price) and price > 0, "own price")
        require(len(layer.body) > 4, "an own price without a body")
    rest = body.rest()
    if layer.flags & LOSSLESS:
        rest = lossless.unpack_body(rest, layer.kind)
    with np.errstate(over="ignore", under="ignore"):
        return _decode_body(layer, rest, price)


def _decode_body(layer, body, price):
    """`body` is the body proper, of a layer with finite entries."""
    method, thinned, centred = layer.kind.method, bool(layer.flags & THINNED), bool(layer.flags & CENTRED)
    require(method == AUTOMATIC or layer.form == 0, "a form of a method that has one")
    if method == AUTOMATIC:
        return automatic.decode(body, layer.kind, layer.key, price, layer.form, thinned, centred)
    if method == ATOMS:
        return families.decode(body, layer.kind, layer.key, price, thinned, centred)
    require(not thinned and not centred, "thinned or centred, but no atoms")
    require(method in METHODS, "unknown method")
    return METHODS[method](body, layer.kind, layer.key, price)


def decode(message):
    """Every layer of a message: name, shape and values in f32."""
    return [(layer.name.decode(), layer.kind.shape, decode_layer(layer)) for layer in parse(message).layers]


def to_half(layer, values, dtype):
    """What a decoder writes into a half tensor, as patterns."""
    return half.round_layer(values, layer.key, dtype)


def _row(word):
    kind, flags, size = word & 0xFFFF, word >> 16 & 0xFF, word >> 24
    require(flags & ~(NON_FINITE | LOSSLESS | OWN_PRICE | THINNED | FORMS | CENTRED) == 0, "unknown flags of a layer")
    return kind, flags, size


def _kind(head):
    method, dtype, parameters, rank = (head.field(c) for c in "BBIB")
    require(dtype <= 2 and rank <= 8, "a kind's dtype or rank")
    shape = tuple(_base128(head) for _ in range(rank))
    require(math.prod(shape) <= 1 << 40, "too many elements")
    return Kind(method, dtype, parameters, shape)


def _name(head):
    name = head.take(head.field("H"))
    try:
        name.decode()
    except UnicodeDecodeError as error:
        raise FormatError("a name that is not UTF-8") from error
    return name


def _base128(head):
    value, shift = 0, 0
    while True:
        byte = head.field("B")
        value |= (byte & 127) << shift
        require(byte != 0 or shift == 0, "a dimension is not in its shortest form")
        if byte < 128:
            require(value <= 1 << 62, "a dimension is too large")
            return value
        shift += 7
        require(shift < 64, "a dimension is too long")


def _check_kinds(rows, kinds):
    used = 0
    for kind, _, _ in rows:
        require(kind <= used, "kinds are not in the order of their use")
        used = max(used, kind + 1)
    require(used == len(kinds), "kinds that no layer has, or layers without one")


def _head_checksum(head):
    return xxhash.xxh3_64_intdigest(head[64:], xxhash.xxh3_64_intdigest(head[:56], 0))
