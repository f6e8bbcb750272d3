# SPDX-License-Identifier: Apache-2.0
"""What callers may give as the layers of a model."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy

from ._errors import Error
from ._frameworks import dtype_name


def spec_of(name: str, value: Any) -> tuple[str, tuple[int, ...], str]:
    """(name, shape, dtype) of a layer given by an array or by its shape, which is f32 then."""
    if isinstance(value, (int, numpy.integer)):  # NumPy's integers have a shape and a dtype too
        return name, (int(value),), "f32"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        try:
            return name, tuple(value.shape), dtype_name(value.dtype)
        except Error as error:
            raise Error(f"layer '{name}': {error}") from None
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise TypeError(f"layer '{name}': a shape or an array is expected, found {type(value).__name__}")
    return name, tuple(value), "f32"


def counted(layers: int) -> str:
    """A number of layers in words."""
    return "1 layer" if layers == 1 else f"{layers} layers"


def mapping_of(layers: Any) -> Mapping[str, Any]:
    """The layers by name: of a module of PyTorch those that are trained, or the pairs of an iterable."""
    if isinstance(layers, Mapping):
        return layers
    if hasattr(layers, "named_parameters"):
        return {name: parameter for name, parameter in layers.named_parameters() if parameter.requires_grad}
    pairs = list(layers) if isinstance(layers, Iterable) and not isinstance(layers, (str, bytes)) else [None]
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise TypeError("layers: a mapping of names to shapes or arrays, pairs of them, or a module of PyTorch is expected, "
                        f"found {type(layers).__name__}")
    if len(dict(pairs)) != len(pairs):
        raise Error("layers: a name stands there twice")
    return dict(pairs)
