# SPDX-License-Identifier: Apache-2.0
"""Codecs of one's own, written in Python."""
from __future__ import annotations

import inspect
import os
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from . import _atomo
from ._errors import Error
from ._messages import Key

_CLAIMS = ("unbiased", "bias_bound", "omega", "contraction", "averages_over_workers", "fixed_size", "bounded",
           "largest", "step", "smallest", "highest")


# Each extension of the package has the library inside, so codecs are registered in each. What is done in the first is
# done again in those that are imported later.
_extensions = [_atomo]
_done: list[tuple[str, tuple[Any, ...]]] = []
_lock = threading.Lock()


def _everywhere(call: str, *arguments: Any) -> Any:
    with _lock:
        first = getattr(_atomo, call)(*arguments)
        for extension in _extensions[1:]:
            getattr(extension, call)(*arguments)
        _done.append((call, arguments))
    return first


def loaded() -> list[str]:
    """The paths that `load_codecs` was given."""
    return [arguments[0] for call, arguments in _done if call == "load_codecs"]


def registrations() -> list[tuple[str, tuple[Any, ...]]]:
    """What was registered and taken out, in its order: for `register_all` in another process."""
    with _lock:
        return list(_done)


def changes() -> int:
    """How often codecs were registered or taken out in this process."""
    return len(_done)


def register_all(done: list[tuple[str, tuple[Any, ...]]]) -> None:
    """Does in this process what was done in another. A module that was imported here may have done a part of it: its codecs
    give way."""
    for call, arguments in done:
        if call == "register":
            unregister(arguments[0])
        if call != "load_codecs" or arguments[0] not in loaded():
            _everywhere(call, *arguments)


def show_tracebacks(shown: bool) -> None:
    """Whether what a codec's code raises is written to standard error, with its traceback, before the library has its text."""
    _Adapter.shows_tracebacks = shown


def share_with(extension: Any) -> None:
    """Registers in another extension of the package what has been registered, and from now on all."""
    with _lock:
        for call, arguments in _done:
            getattr(extension, call)(*arguments)
        _extensions.append(extension)


class _Adapter:
    """What the library calls: a codec's object, with bytes and tuples in place of arrays and keys."""

    shows_tracebacks = False

    def __init__(self, codec: Any) -> None:
        self._codec = codec
        self._bound = getattr(codec, "max_bytes", None)
        self._wants_key = "key" in inspect.signature(codec.decode).parameters
        self._has_price = callable(getattr(codec, "price", None))

    def max_bytes(self, shape: tuple[int, ...]) -> int:
        if self._bound is None:
            return 4 * int(numpy.prod(shape, dtype=numpy.int64)) + 1024
        return int(self._bound(shape))

    def price(self, entries: bytes, shape: tuple[int, ...]) -> list[tuple[float, float]]:
        points = self._codec.price(numpy.frombuffer(entries, numpy.float32).reshape(shape))
        return [(float(size), float(squared_error)) for size, squared_error in points]

    def encode(self, entries: bytes, shape: tuple[int, ...], key: tuple[int, ...], setting: int) -> Any:
        array = numpy.frombuffer(entries, numpy.float32).reshape(shape)
        try:
            return self._codec.encode(array, Key(*key), setting) if self._has_price else self._codec.encode(array, Key(*key))
        except Exception:
            self._tell()
            raise

    def decode(self, body: bytes, shape: tuple[int, ...], key: tuple[int, ...]) -> Any:
        try:
            values = self._codec.decode(body, shape, key=Key(*key)) if self._wants_key else self._codec.decode(body, shape)
        except Exception:
            self._tell()
            raise
        return numpy.ascontiguousarray(values, numpy.float32)

    def _tell(self) -> None:
        if self.shows_tracebacks:
            traceback.print_exc()


def register(name: str, codec: Any, *, keys: Mapping[str, Any] | None = None, summary: str = "") -> None:
    """Registers a codec of your own in this process: `Codec`, `Compressor`, policies, `atomo.torch` and `atomo.jax` then
    take its name as they take "qsgd", also behind a memory (`ef+mine`) and before a lossless stage (`mine+blosc`).

    `name`: 2 to 32 small letters, digits, `_` or `-`, the first a letter. `codec`: a class (or function) that is called
    with the keys of a spec, and gives an object with

    - `encode(array, key) -> bytes`: `array` is a float32 array of the layer's shape, read-only and finite, `key` an
      `atomo.Key`. Equal arguments have to give equal bytes; `atomo.draws` has random words.
    - `decode(body, shape) -> array`: what is left of the array, in float32; with a parameter `key` it is given the
      sender's key too. `body` may be any bytes: raise for those that are wrong.
    - `max_bytes(shape) -> int`, if it wants: what `encode` returns at most. Without it 4 bytes an entry and 1,024 more.
    - `price(array) -> [(bytes, squared_error), ...]` and an attribute `budget_bits`, for a codec with a budget of so many bits
      a parameter: what each of its settings, 64 at most, would come to on a layer. `encode(array, key, setting)` is then told
      the place in that list of the one that is best at the one price of the message. docs/own-codec.md has an example.
    - attributes of the names of `Traits`, if it wants, for what it claims: `unbiased`, `bias_bound`, `omega`, `contraction`,
      `averages_over_workers`, `fixed_size` (always `max_bytes`), `bounded` (`max_bytes` is worth sending in full),
      `largest`, `step`, `smallest`, `highest`.

    `keys`: what a spec may say, by the names of the class's parameters: a `range` for whole numbers, a pair of floats for
    numbers from one to the other, a list of texts for a choice. Defaults are the parameters' own; a key without one has
    to be given.

    Its functions run under the global interpreter lock, and may be called by any thread. An `Exception` that they raise
    becomes an `atomo.Error` with its text, and with the exception as `__cause__`; what is none, such as
    `KeyboardInterrupt`, is raised as it is. It runs on the CPU only. Every process
    registers it for itself, the receivers too. Raises `atomo.Error` for a name that is taken or none.

    >>> import atomo, numpy
    >>> class Rounded:
    ...     def __init__(self, digits: int = 2):
    ...         self.scale = 10.0 ** digits
    ...     def encode(self, array, key):
    ...         return numpy.rint(array * self.scale).astype("<i4").tobytes()
    ...     def decode(self, body, shape):
    ...         return numpy.frombuffer(body, "<i4").reshape(shape) / self.scale
    >>> atomo.register("rounded", Rounded, keys={"digits": range(0, 7)})
    >>> codec = atomo.Codec("rounded:digits=1")
    >>> x = numpy.array([0.12, -3.48], "float32")
    >>> codec.decode(codec.encode(x, step=0), like=x)
    array([ 0.1, -3.5], dtype=float32)
    >>> atomo.unregister("rounded")
    True
    """
    if not isinstance(name, str):
        raise TypeError(f"name: a str is expected, found {type(name).__name__}")
    if not callable(codec):
        raise TypeError(f"codec: a class is expected, found {type(codec).__name__}")
    parameters = inspect.signature(codec).parameters
    rows, help_, needed = [], [], []
    for key, values in (keys or {}).items():
        if key not in parameters:
            raise Error(f"keys: '{key}' is no parameter of {getattr(codec, '__name__', 'the codec')}")
        default = None if parameters[key].default is inspect.Parameter.empty else parameters[key].default
        row, text, example = _row(key, values, default)
        rows.append(row)
        help_.append(text)
        if default is None:
            needed.append(example)

    def make(values: dict[str, Any]) -> tuple[_Adapter, dict[str, Any], float]:
        made = codec(**values)
        for method in ("encode", "decode"):
            if not callable(getattr(made, method, None)):
                raise TypeError(f"it has no method {method}")
        budget_bits = getattr(made, "budget_bits", None)
        if callable(getattr(made, "price", None)) != (budget_bits is not None):
            raise TypeError("it has one of price and budget_bits: expected both, for a codec with a budget, or neither")
        return _Adapter(made), {claim: getattr(made, claim, None) for claim in _CLAIMS}, float(budget_bits or 0)

    example = name + (":" + ",".join(needed) if needed else "")
    _everywhere("register", name, ", ".join(help_), summary, example, rows, make)


def _row(key: str, values: Any, default: Any) -> tuple[tuple, str, str]:
    """A key for the library, for help, and with a value that it takes."""
    if isinstance(values, range):
        if values.step != 1 or len(values) == 0:
            raise Error(f"keys: {key}: expected a range of step 1 that is not empty, found {values}")
        low, high = values[0], values[-1]
        return (key, "integer", low, high, default), f"{key}={low}..{high}", f"{key}={low}"
    if isinstance(values, tuple) and len(values) == 2 and all(isinstance(x, (int, float)) for x in values):
        low, high = map(float, values)
        return (key, "number", low, high, None if default is None else float(default)), f"{key}={low}..{high}", f"{key}={low}"
    if isinstance(values, list) and values and all(isinstance(x, str) for x in values):
        if default is not None and default not in values:
            raise Error(f"keys: {key}: the default '{default}' is none of {values}")
        place = None if default is None else values.index(default)
        return (key, "choice", values, place), f"{key}={'|'.join(values)}", f"{key}={values[0]}"
    raise Error(f"keys: {key}: expected a range, a pair of numbers or a list of texts, found {values!r}")


def unregister(name: str) -> bool:
    """Takes a registered codec out of this process; False if there is none. Messages of it are no longer read."""
    return _everywhere("unregister", name)


def load_codecs(path: str | os.PathLike[str]) -> None:
    """Loads a shared object with codecs in C++ and registers them in this process: docs/own-codec.md.

    Runs code of that file. Raises `atomo.Error` for a file that cannot be loaded, that was built for another version
    of atomo, or whose names are taken.
    """
    _everywhere("load_codecs", os.fspath(path))


def draws(key: Key, count: int | Sequence[int], first: int = 0) -> numpy.ndarray:
    """Random words of a key, uint32, for codecs of one's own: the same at both ends, on every machine.

    `count`: how many, or the shape of the array; `first`: the number of the first, of 2^42. FORMAT.md has them, purpose
    own. Raises `atomo.Error` for a key's number that `encode` would refuse, because two senders would share draws.

    >>> import atomo
    >>> atomo.draws(atomo.Key(seed=1, step=2, tensor=0, worker=0, channel=0), 3).dtype
    dtype('uint32')
    """
    words, shape = _atomo.draws(key, first, count)
    return numpy.frombuffer(words, "<u4").reshape(shape)
