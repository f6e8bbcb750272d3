# SPDX-License-Identifier: Apache-2.0
"""Whether an encoder and its decoder keep what they claim."""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy
from numpy.typing import NDArray

from . import _atomo
from ._codec import Codec
from ._errors import Error
from ._frameworks import named, to_numpy
from ._messages import Key

Encode = Callable[[NDArray[numpy.float32], Key], bytes]
Decode = Callable[[bytes, tuple[int, ...]], Any]


class _Functions:
    """Two functions on arrays as two on bytes. What ends a program ends the run, whatever becomes of the call."""

    def __init__(self, encode: Encode, decode: Decode) -> None:
        self._encode, self._decode = encode, decode
        self.ended: BaseException | None = None

    def _call(self, work: Callable[[], bytes]) -> bytes:
        if self.ended is not None:
            raise RuntimeError("interrupted")
        try:
            return work()
        except Exception:
            raise
        except BaseException as error:
            self.ended = error
            raise RuntimeError("interrupted") from error

    def encode(self, data: bytes, shape: tuple[int, ...], key: tuple[int, ...]) -> bytes:
        x = numpy.frombuffer(data, "float32").reshape(shape)
        seed, step, tensor, worker, channel = key
        return self._call(lambda: bytes(self._encode(x, Key(seed=seed, step=step, tensor=tensor, worker=worker,
                                                            channel=channel))))

    def decode(self, message: bytes, shape: tuple[int, ...]) -> bytes:
        return self._call(lambda: numpy.ascontiguousarray(to_numpy(self._decode(message, shape)), "float32").tobytes())


def verify(codec: str | Codec | Encode, decode: Decode | None = None, *, claims: Mapping[str, Any] | None = None,
           arrays: Any = None, own_inputs: bool = True, outcomes: int = 0, draws: int = 4096, seed: int = 1,
           family_error: float = 1e-9) -> dict[str, Any]:
    """Looks whether a codec, or any two functions, keep what they claim; what `atomo verify` does.

    `codec` is a codec or its spec, with the claims of its traits unless `claims` are given. Or it is a function
    `encode(x, key)` that makes bytes of a float32 array, all that is random being drawn from the `atomo.Key`; then
    `decode(message, shape)` returns the array, and `claims` say what to look at:

    unbiased, deterministic, order_free, fixed_size, independent_workers, independent_entries: True or False (the same
    key gives the same bytes, whatever was encoded before, unless those two are False);
    omega, contraction: E|decode - x|^2 <= omega |x|^2, or (1 - contraction) |x|^2; largest: no decoded entry is above
    that many of the largest; bias_bound: what rounding may add; step: of a fixed grid; smallest, highest: largest
    magnitudes that the claims are about; max_bytes: of any message; average_bytes: of a tensor's messages on average;
    bits: the same in bits an entry, a budget; non_finite: "told" or "everywhere".

    Tensors are made (heavy tails, spikes, zeros, 1e-30, odd shapes, Inf and NaN, ...) unless `own_inputs` is False;
    `arrays`, a mapping, a list or one array of float32, are drawn from too. `outcomes` says that the steps 0 to
    outcomes - 1 (at most `draws`) are all that can happen, equally likely: then nothing is estimated. Every tensor is
    drawn `draws` times; the chance that any check fails though all claims hold is at most `family_error`.

    Returns {"subject", "holds", "claims", "family_error", "looks", "missed": the largest bias along a tensor that
    could have been missed, "checks", "inputs", "classes": the bias by magnitude with its band, "growth", "text": the
    report for a person}; `atomo.plot` draws it. Raises `atomo.Error` for what cannot be looked at.

    >>> import atomo, numpy
    >>> atomo.verify("qsgd:bits=4", draws=256)["holds"]
    True
    >>> report = atomo.verify(lambda x, key: x.astype("float16").tobytes(),
    ...                       lambda message, shape: numpy.frombuffer(message, "float16").astype("float32").reshape(shape),
    ...                       claims={"unbiased": True, "highest": 1e4}, draws=256)
    >>> report["holds"]
    False
    """
    tensors = [] if arrays is None else [(name, numpy.ascontiguousarray(to_numpy(array)))
                                         for name, array in named(arrays).items()]
    spec = str(codec) if isinstance(codec, (str, Codec)) else None
    if spec is None and (not callable(codec) or not callable(decode) or claims is None):
        raise Error("verify: a codec, or two functions and their claims, are needed")
    if spec is not None and decode is not None:
        raise Error("verify: a codec decodes itself; give two functions, or a codec alone")
    functions = _Functions(codec, decode) if spec is None else None  # type: ignore[arg-type]
    told, text = _atomo.verify(spec, functions and functions.encode, functions and functions.decode,
                               getattr(codec, "__name__", "encode"), None if claims is None else dict(claims), tensors,
                               outcomes, seed, draws, family_error, bool(own_inputs))
    if functions is not None and functions.ended is not None:
        raise functions.ended
    return {**json.loads(told), "text": text}
