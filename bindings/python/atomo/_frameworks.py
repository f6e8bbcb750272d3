# SPDX-License-Identifier: Apache-2.0
"""Arrays by framework: where one lives, and how another like it is made. Imports no framework that is not in use."""
from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy

from ._errors import Error



class Array(Protocol):
    """What arrays of NumPy, PyTorch, JAX and CuPy have in common, for checkers of types."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


AnyArray = TypeVar("AnyArray", bound=Array)
"""Arrays of one framework: a call that takes them returns arrays of that framework."""

_DTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def _is(x: Any, module: str, name: str) -> bool:
    """Whether x is an instance of a framework's class; a framework that nobody imported has no instances."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(x, kind)


def is_torch(x: Any) -> bool:
    return _is(x, "torch", "Tensor")


def is_jax(x: Any) -> bool:
    return _is(x, "jax", "Array")


def is_cupy(x: Any) -> bool:
    return _is(x, "cupy", "ndarray")


def on_cuda(x: Any) -> bool:
    """Whether x is an array in a GPU's memory that this package computes on there."""
    if type(x) is numpy.ndarray:
        return False
    if is_torch(x):
        return x.is_cuda
    if is_jax(x):
        if any(device.platform != "cpu" for device in x.devices()):
            raise Error("this JAX array is on a GPU: atomo.jax encodes there, jax.device_get(x) copies it to the CPU")
        return False
    return is_cupy(x)


def checked_text(text: str, what: str) -> str:
    """The text, which the library and messages hold as UTF-8. Raises `Error` where that cannot be."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Error(f"{what}: {text!r} cannot be written in UTF-8, in which names and specs are") from None
    return text


def check_threads(threads: Any) -> None:
    """Raises Error for what is no number of threads that work on a call."""
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024:
        raise Error(f"threads is {threads!r}: it must be an integer from 1 to 1024")


def dtype_name(dtype: Any) -> str:
    """"f32", "f16" or "bf16" of any framework's dtype, or of its name.

    >>> dtype_name(numpy.dtype("float16")), dtype_name("f32")
    ('f16', 'f32')
    """
    if isinstance(dtype, str) and dtype in _DTYPES.values():
        return dtype
    try:
        name = str(numpy.dtype(dtype))
    except TypeError:
        name = str(dtype).rpartition(".")[2]
    if name not in _DTYPES:
        raise Error(f"dtype {dtype}: float32 (f32), float16 (f16) and bfloat16 (bf16) are accepted")
    return _DTYPES[name]


def empty_like(x: Any) -> Any:
    """An array to decode into, of x's shape and dtype, on its device; `finished` makes it what the caller gets."""
    if type(x) is numpy.ndarray:
        return numpy.empty(x.shape, x.dtype)
    if is_torch(x):
        torch = sys.modules["torch"]
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if is_cupy(x):
        return sys.modules["cupy"].empty(x.shape, x.dtype)
    if is_jax(x) or isinstance(x, (numpy.ndarray, numpy.generic)):
        return numpy.empty(x.shape, x.dtype)
    raise TypeError(f"like: an array of NumPy, PyTorch, JAX or CuPy is expected, found {type(x).__name__}; "
                    "out= takes any array")


def finished(array: Any, like: Any) -> Any:
    """The array that `empty_like(like)` made, filled, as one of like's framework."""
    if is_jax(like):
        return sys.modules["jax"].device_put(array, like.sharding)
    return array


def target(like: Any, out: Any) -> Any:
    """What a call is to fill: `out`, or an array like `like`."""
    if (like is None) == (out is None):
        raise Error("one of like= (a new array) and out= (an array to fill) is needed" +
                    (", not both" if out is not None else ""))
    return out if like is None else empty_like(like)


def targets(like: Sequence | None, out: Sequence | None) -> list:
    """The same for the arrays of a model."""
    if (like is None) == (out is None):
        raise Error("one of like= (new arrays) and out= (arrays to fill) is needed" +
                    (", not both" if out is not None else ""))
    return list(out) if like is None else [empty_like(x) for x in like]


def to_numpy(x: Any) -> numpy.ndarray:
    """A C-contiguous array on the CPU, a copy where it has to be one; bfloat16 becomes float32, which is exact."""
    if is_torch(x):
        x = x.detach().cpu()
        x = (x.float() if dtype_name(x.dtype) == "bf16" else x).numpy()
    elif is_cupy(x):
        x = x.get()
    x = numpy.asarray(x)
    if dtype_name(x.dtype) == "bf16":
        x = x.astype(numpy.float32)
    return numpy.asarray(x, order="C")


def named(arrays: Any) -> dict[str, Any]:
    """Arrays by name: of a mapping, a sequence (by number) or one array."""
    if isinstance(arrays, Mapping):
        return {str(name): x for name, x in arrays.items()}
    if isinstance(arrays, (list, tuple)):
        return {str(number): x for number, x in enumerate(arrays)}
    return {"0": arrays}
