# SPDX-License-Identifier: Apache-2.0
"""A codec: one array becomes a message and a message an array."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

from . import _atomo, _device
from ._errors import DecodeError
from ._frameworks import AnyArray, Array, checked_text, dtype_name, finished, on_cuda, target
from ._messages import explained, listed


@dataclass(frozen=True)
class Traits:
    """What a codec promises.

    >>> import atomo
    >>> atomo.Codec("terngrad").traits.unbiased, atomo.Codec("topk:keep=0.01").traits.unbiased
    (True, False)
    """

    unbiased: bool
    """E[decode(encode(g))] = g for every finite g, up to `bias_bound`."""
    bias_bound: float
    """|E[decode] - x| <= bias_bound * (|x| + step) for each entry, `step` being the quantisation step there."""
    omega: float | None
    """E|decode - g|^2 <= omega |g|^2, where a bound is known without g."""
    contraction: float | None
    """E|decode - g|^2 <= (1 - contraction) |g|^2, where known."""
    largest: float | None
    """No decoded entry is above `largest` times the largest magnitude of g, where known."""
    step: float
    """The step of a fixed grid (a fixed price, the least f16): tensors far below it arrive once in many draws. 0: none."""
    smallest: float
    """The promises above are about tensors whose largest magnitude is not below this, and about zeros."""
    highest: float
    """Nor above this: the largest magnitude that a message can hold."""
    linear: bool
    """Payloads add without being decoded: `atomo.add`."""
    votes: bool
    """Signs, which are counted without being decoded: `atomo.vote`."""
    averages_over_workers: bool
    """Workers' errors are independent: the mean's variance falls with the number of workers."""
    fixed_size: bool
    """The size depends on the shape alone."""
    bounded: bool
    """A fixed size or a `cap=`: `wire_bytes` are enough for every message."""
    allocates: bool
    """Encoding or decoding takes memory beside what the object keeps."""
    synchronises: bool
    """On a GPU, encoding or decoding waits for it."""
    capturable: bool
    """Can be captured into a CUDA graph."""
    cpu: bool
    """Runs on the CPU."""
    cuda: bool
    """Runs on a GPU, where the package was built for one."""
    memory: bool
    """Keeps what it has not sent (`ef+`): biased a step, and a `Compressor` alone encodes."""
    differences: bool
    """Of `ef21+`: a message is a difference, and what it decodes to belongs to the sum of what earlier ones did, which the
    receiver keeps."""


class Codec:
    """How one array becomes a message and a message an array. Immutable; may be used from many threads.

    `spec` is `name` or `name:key=value,...`, with a lossless stage (`+blosc`) behind it if wanted; `atomo.codecs()`
    lists the names and keys. A codec with a memory in front (`ef+topk:keep=0.01`) decodes; it is for a `Compressor`,
    which keeps the memory, and its `encode` raises. Raises `atomo.Error` for a spec that cannot be read.

    >>> import atomo
    >>> codec = atomo.Codec("qsgd:bits=4")
    >>> str(codec)
    'qsgd:bits=4,bucket=512,norm=max'
    >>> codec == atomo.Codec(str(codec))
    True
    """

    __slots__ = ("_codec", "_spec", "_traits")

    def __init__(self, spec: str | Codec) -> None:
        if not isinstance(spec, (str, Codec)):
            raise TypeError(f"spec: a str is expected, found {type(spec).__name__}")
        self._codec = _atomo.Codec(checked_text(str(spec), "spec"))
        self._spec: str = self._codec.to_string()
        self._traits = Traits(**self._codec.traits())

    @property
    def traits(self) -> Traits:
        """What this codec promises."""
        return self._traits

    def max_encoded_bytes(self, shape: Sequence[int] | int, dtype: Any = "f32") -> int:
        """Upper bound of a message's bytes for an array of this shape, exact where `traits.fixed_size`."""
        return self._codec.max_encoded_bytes(shape, dtype_name(dtype))

    def expected_bytes(self, shape: Sequence[int] | int, dtype: Any = "f32") -> int | None:
        """Bytes that a message of an array of this shape is expected to take: all of them where `traits.fixed_size`, the
        budget of `bits=`; None where the values alone say.

        >>> import atomo
        >>> atomo.Codec("atomo:bits=1").expected_bytes((128, 1024))
        16384
        """
        return self._codec.expected_bytes(shape, dtype_name(dtype))

    def wire_bytes(self, shape: Sequence[int] | int, dtype: Any = "f32") -> int | None:
        """Bytes that every worker can send of its message of this shape, so that lengths need not travel:
        `max_encoded_bytes` where `traits.bounded`, else None. What stands behind a message may be anything: its head
        tells where it ends.

        >>> import atomo
        >>> atomo.Codec("atomo:bits=1,cap=1.1").wire_bytes((128, 1024)), atomo.Codec("atomo:bits=1").wire_bytes((128, 1024))
        (18020, None)
        """
        return self._codec.wire_bytes(shape, dtype_name(dtype))

    def without_lossless(self) -> Codec:
        """This codec without the lossless stage behind it, which is what a GPU runs.

        >>> import atomo
        >>> str(atomo.Codec("sign+blosc").without_lossless())
        'sign'
        """
        return Codec(self._codec.without_lossless())

    def without_memory(self) -> Codec:
        """This codec without the memory in front of it, which a `Compressor` keeps: what its messages are written by.

        >>> import atomo
        >>> str(atomo.Codec("ef+sign:scale=mean").without_memory())
        'sign:scale=mean'
        """
        return Codec(self._codec.without_memory())

    def encode(self, x: Array, *, seed: int = 0, step: int, worker: int = 0, tensor: int = 0,
               channel: int = 0) -> bytes | Any:
        """Encodes an array as a message.

        `x`: f32, f16 or bf16, C-contiguous, of any shape up to 8 dimensions. `seed` (64 bits), `step` (32), `worker`,
        `tensor` and `channel` (16 each) are the key: every draw is a function of it alone, and no two messages may
        share one. So `step` has no default: a loop without it would draw alike for ever, and the mean of its messages
        would not be the gradient. The same array and key give the same bytes everywhere.

        Returns `bytes`; of an array in a GPU's memory a uint8 array of the same framework there, cut to the message's
        length (which waits for the array's current stream). On the CPU a steady call allocates only what it returns.
        Warns once (`UserWarning`) when the budget of `bits=` does not pay for a message worth sending, which is then
        exceeded: a few entries are better sent with others, or by `identity`. Raises `atomo.Error`, with a status
        where the library refused.
        """
        if on_cuda(x):
            return _device.encode(self._codec, x, (seed, step, worker, tensor, channel))
        return self._codec.encode(x, seed, step, worker, tensor, channel)

    @overload
    def decode(self, payload: Any, *, like: AnyArray) -> AnyArray: ...

    @overload
    def decode(self, payload: Any, *, out: AnyArray) -> AnyArray: ...

    def decode(self, payload: Any, *, like: Any = None, out: Any = None) -> Any:
        """Decodes a message of this codec.

        `payload`: any bytes-like object or array of uint8. Either `like`, an array whose kind, shape, dtype and device
        a new one is to have, or `out`, an array to fill. Returns that array. A half is rounded at random by the
        message's key, so all who decode it get the same.

        Raises `atomo.DecodeError` for bytes that are no such message; what `out` holds is then unspecified.
        """
        array = target(like, out)
        if on_cuda(array):
            _device.decode(self._codec, [payload], array, None)
        else:
            try:
                self._codec.decode(payload, array)
            except DecodeError as error:
                raise explained(error, payload, [(tuple(array.shape), self._spec)]) from error.__cause__
        return array if like is None else finished(array, like)

    def decode_add(self, payload: Any, *, out: AnyArray, alpha: float = 1.0) -> AnyArray:
        """Adds a decoded message: out = out + alpha * decoded. `out` is of f32; returns it.

        Raises `atomo.DecodeError` for bytes that are no such message; what `out` holds is then unspecified.
        """
        if on_cuda(out):
            _device.decode(self._codec, [payload], out, _atomo.alpha_of(alpha))
        else:
            try:
                self._codec.decode_add(payload, out, alpha)
            except DecodeError as error:
                raise explained(error, payload, [(tuple(out.shape), self._spec)]) from error.__cause__
        return out

    def decode_add_all(self, payloads: Sequence[Any], *, out: AnyArray, alpha: float = 1.0) -> AnyArray:
        """Adds several messages in the order given: bit for bit what a `decode_add` of each gives, in less time.

        Raises `atomo.DecodeError`, which on the CPU names the message; what `out` holds is then unspecified.
        """
        payloads = listed(payloads)
        if on_cuda(out):
            _device.decode(self._codec, payloads, out, _atomo.alpha_of(alpha))
        else:
            self._codec.decode_add_all(payloads, out, alpha)
        return out

    def __str__(self) -> str:
        return self._spec

    def __repr__(self) -> str:
        return f"atomo.Codec({self._spec!r})"

    def __eq__(self, other: object) -> bool:
        return self._spec == other._spec if isinstance(other, Codec) else NotImplemented

    def __hash__(self) -> int:
        return hash((Codec, self._spec))

    def __reduce__(self) -> tuple:
        return Codec, (self._spec,)
