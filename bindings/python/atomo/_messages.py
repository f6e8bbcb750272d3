# SPDX-License-Identifier: Apache-2.0
"""Messages: what is in one, and decoding, adding and joining them without knowing their codecs."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy

from . import _atomo
from ._errors import DecodeError, Error
from ._frameworks import AnyArray, Array, empty_like, finished


@dataclass(frozen=True)
class Key:
    """What every random draw of a message is a function of."""

    seed: int
    """Of the run, 64 bits."""
    step: int
    """Of the training, 32 bits."""
    tensor: int
    """Number of the message's first layer, 16 bits."""
    worker: int
    """The sender's rank, 16 bits."""
    channel: int
    """Direction, or how often this was encoded again on its way; 16 bits."""


class Prices(NamedTuple):
    """The prices of a message or a step, each 0 where there is none."""

    atoms: float = 0.0
    """Amplitude of an atom that is only just certain to be sent."""
    grid: float = 0.0
    """Step of the grid of coordinates."""


@dataclass(frozen=True)
class Layer:
    """One layer of a message."""

    name: str
    """Empty unless the message carries names."""
    codec: str
    """What wrote it: "atomo/rows", "qsgd:bits=4,bucket=512,norm=max", ..."""
    dtype: str
    """Of the array that was encoded: "f32", "f16" or "bf16"."""
    shape: tuple[int, ...]
    """Of the array that was encoded."""
    price: float
    """Amplitude of an atom that is only just certain, or the grid step; 0 where there is none."""
    atoms: int
    """Atoms (or elements) that the layer has; 0 where its codec has none."""
    kept: int
    """Of these, kept in this message."""
    bytes: int
    """Of its body on the wire."""
    non_finite: bool
    """It held an infinity or NaN and decodes to NaN everywhere."""
    lossless: bool
    """The body went through a lossless stage."""
    thinned: bool
    """Atoms were left out to keep a cap."""

    @property
    def elements(self) -> int:
        """Product of the shape."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Message:
    """A whole message, as `inspect` reads it."""

    version: tuple[int, int]
    """Of the format."""
    key: Key
    """Of its draws."""
    prices: Prices
    """Of the whole message; a layer may have its own."""
    bytes: int
    """The whole message; there may be more behind it (a padded all-gather)."""
    head_bytes: int
    """Header, rows, names."""
    layers: tuple[Layer, ...]
    """In the order of the message."""

    @property
    def elements(self) -> int:
        """Of all layers together."""
        return sum(layer.elements for layer in self.layers)


@dataclass(frozen=True)
class CodecHelp:
    """A row of the table of codecs."""

    name: str
    """"qsgd"."""
    keys: str
    """"bits=1..8, bucket=512, norm=max|l2"."""
    summary: str
    """One line."""
    example: str
    """A spec that can be read."""


def inspect(payload: Any, *, exact: bool = False) -> Message:
    """Reads a message's head, verifies its checksums and walks its bodies; `payload` is any bytes-like object.

    `exact` refuses bytes behind the message. Raises `atomo.DecodeError` for what is no message.

    >>> import atomo, numpy
    >>> message = atomo.inspect(atomo.Codec("sign").encode(numpy.ones((4, 8), "float32"), step=5))
    >>> message.key.step, message.layers[0].shape, message.layers[0].codec
    (5, (4, 8), 'sign')
    """
    found = _atomo.inspect(payload, exact)
    found["key"] = Key(**found["key"])
    found["prices"] = Prices(*found["prices"])
    found["layers"] = tuple(Layer(**layer) for layer in found["layers"])
    return Message(**found)


def explained(error: DecodeError, payload: Any, layers: Sequence[tuple[tuple[int, ...], str | None]]) -> DecodeError:
    """The error of a message that does not fit, with what both sides have: `layers` are the receiver's shapes and,
    where it expects one, the codecs."""
    if error.status not in ("shape_mismatch", "codec_mismatch"):
        return error
    try:
        sent = inspect(payload).layers
    except Error:
        return error
    if [layer.shape for layer in sent] != [shape for shape, _ in layers]:
        here = _listed(list(shape) for shape, _ in layers)
        said = f"the message holds layers of the shapes {_listed(list(layer.shape) for layer in sent)}, here they are {here}"
    else:
        written, wanted = (sorted(set(codecs)) for codecs in ([x.codec for x in sent], [codec for _, codec in layers if codec]))
        said = f"the message was written by {', '.join(written)}; here {', '.join(wanted)} is expected"
    return DecodeError(said, error.status)


def _listed(shapes: Iterable[list[int]]) -> str:
    shapes = [str(shape) for shape in shapes]
    return ", ".join(shapes[:4]) + (f" and {len(shapes) - 4} more" if len(shapes) > 4 else "")


def decode(payload: Any, *, like: Sequence[Array] | None = None, out: Sequence[Array] | None = None) -> list[Any]:
    """Decodes every layer of any message, whatever codec wrote each, on the CPU.

    `out` holds an array to fill for each layer, `like` one that a new array is to be like; without either the arrays
    are NumPy's, of float32, as large as the message says (which a hostile message may do at will). Returns the arrays
    in the order of the message. Raises `atomo.DecodeError` for what is no message of these layers.

    >>> import atomo, numpy
    >>> payload = atomo.Codec("identity:dtype=f32").encode(numpy.arange(3, dtype="float32"), step=0)
    >>> atomo.decode(payload)
    [array([0., 1., 2.], dtype=float32)]
    """
    if like is not None and out is not None:
        raise Error("one of like= and out=, not both")
    if out is not None:
        return _into(_atomo.decode, payload, list(out))
    if like is None:
        return _into(_atomo.decode, payload, [numpy.empty(layer.shape, numpy.float32) for layer in inspect(payload).layers])
    arrays = _into(_atomo.decode, payload, [empty_like(x) for x in like])
    return [finished(array, x) for array, x in zip(arrays, like)]


def decode_add(payload: Any, *, out: Sequence[AnyArray], alpha: float = 1.0) -> list[AnyArray]:
    """Adds every layer of any message: out[i] = out[i] + alpha * decoded[i], on the CPU and in f32. Returns `out`."""
    return _into(_atomo.decode_add, payload, list(out), alpha)


def decode_add_all(payloads: Sequence[Any], *, out: Sequence[AnyArray], alpha: float = 1.0) -> list[AnyArray]:
    """Adds several messages in the order given: bit for bit what a `decode_add` of each gives, in less time.

    Raises `atomo.DecodeError`, which names the message; what `out` holds is then unspecified. Returns `out`.
    """
    arrays = list(out)
    _atomo.decode_add_all(listed(payloads), arrays, alpha)
    return arrays


def vote(payloads: Sequence[Any], *, out: Sequence[AnyArray]) -> list[AnyArray]:
    """The majority of messages of `sign`: each entry becomes the sign of the sum of their signs, on the CPU and in f32.

    1, -1, or 0 where as many say + as -. Bits are counted, no message is decoded. `out` holds an array a layer; returns
    it. Raises `atomo.DecodeError`: "shape_mismatch" for other layers, "unsupported" for other codecs. Raises `atomo.Error`
    for no messages.

    >>> import atomo, numpy
    >>> codec = atomo.Codec("sign")
    >>> workers = [[1, -2, 3], [1, -1, -4], [2, -5, -6]]
    >>> payloads = [codec.encode(numpy.array(x, "float32"), step=0, worker=w) for w, x in enumerate(workers)]
    >>> atomo.vote(payloads, out=[numpy.empty(3, "float32")])
    [array([ 1., -1., -1.], dtype=float32)]
    """
    messages, arrays = _some(listed(payloads), "vote"), list(out)
    try:
        _atomo.vote(messages, arrays)
    except DecodeError as error:
        if error.status != "unsupported":
            raise
        raise DecodeError(f"vote: {len(messages)} messages do not vote: all have to be of the codec sign, without a lossless "
                          "stage", "unsupported") from None
    return arrays


def _some(messages: list[Any], call: str) -> list[Any]:
    if not messages:
        raise Error(f"{call}: no messages were given, at least one is needed", "invalid_argument")
    return messages


def listed(payloads: Sequence[Any]) -> list[Any]:
    """The messages of a call that adds several."""
    if not isinstance(payloads, (list, tuple)):
        raise TypeError(f"payloads: a list of messages is expected, found {type(payloads).__name__}; decode_add takes one")
    return list(payloads)


def _into(call: Callable[..., None], payload: Any, arrays: list, *alpha: float) -> list:
    """Decodes over the arrays, or adds alpha times to them; returns them."""
    try:
        call(payload, arrays, *alpha)
    except DecodeError as error:
        raise explained(error, payload, [(tuple(array.shape), None) for array in arrays]) from error.__cause__
    return arrays


def add(payloads: Iterable[Any]) -> bytes:
    """Adds messages of coordinates at one grid step without decoding them, exactly and in any grouping.

    They come of `atomo:atoms=coordinate`, with one `delta=` or a step agreed on (`Compressor.predicted_prices`).
    Raises `atomo.DecodeError`: "price_mismatch" for other steps, "shape_mismatch" for other layers, "unsupported" for
    other codecs. Raises `atomo.Error` for no messages.

    >>> import atomo, numpy
    >>> codec = atomo.Codec("atomo:atoms=coordinate,delta=0.25")
    >>> x = numpy.array([1, -0.5, 0, 2], "float32")
    >>> codec.decode(atomo.add([codec.encode(x, step=0, worker=w) for w in range(3)]), like=x)
    array([ 3. , -1.5,  0. ,  6. ], dtype=float32)
    """
    messages = _some(list(payloads), "add")
    try:
        return _atomo.add(messages)
    except DecodeError as error:
        if error.status != "unsupported":
            raise
        raise DecodeError(f"add: {len(messages)} messages do not add: all have to be of the codec atomo:atoms=coordinate, "
                          "without a lossless stage", "unsupported") from None


def join(payloads: Iterable[Any]) -> bytes:
    """Joins messages of consecutive layers (by their keys' `tensor`) into one, as if encoded together.

    Raises `atomo.DecodeError`: "shape_mismatch" for other keys, or an order that is not that of the layers,
    "price_mismatch" for other prices. Raises `atomo.Error` for no messages.
    """
    messages = _some(list(payloads), "join")
    try:
        return _atomo.join(messages)
    except DecodeError as error:
        if error.status == "shape_mismatch":
            said = ("join: the messages do not follow on one another: all have to be of one seed, step, worker and channel, and "
                    "the `tensor` of each the number behind the last layer of the one before")
        elif error.status == "price_mismatch":
            said = "join: the messages have different prices: all have to be encoded at the same, as those of one step are"
        else:
            raise
        raise DecodeError(said, error.status) from None


def codecs() -> list[CodecHelp]:
    """Every codec, in the order of the documentation.

    >>> import atomo
    >>> "qsgd" in [codec.name for codec in atomo.codecs()]
    True
    """
    return [CodecHelp(**row) for row in _atomo.codecs()]
