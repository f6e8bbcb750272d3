# SPDX-License-Identifier: Apache-2.0
"""Patches: how tensors differ from an earlier state of them, without loss."""
from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from . import _atomo
from ._errors import Error
from ._frameworks import is_cupy, is_jax, is_torch

# Names of .safetensors, so that patches of the tool and of Python are the same.
_TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "uint64": "U64", "int32": "I32",
          "uint32": "U32", "int16": "I16", "uint16": "U16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
          "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
_NAMES = {type_: name for name, type_ in _TYPES.items()}


@dataclass(frozen=True)
class PatchedTensor:
    """A tensor of a patch's new state."""

    name: str
    """Of the tensor."""
    type: str
    """Of its elements, as .safetensors calls it: "BF16"."""
    shape: tuple[int, ...]
    """Of the tensor."""
    form: str
    """"same", "changes" or "whole": how the patch has it."""
    tensor_bytes: int
    """Of the tensor itself."""
    changed: int
    """Elements that differ; all of a whole tensor."""
    bytes: int
    """Of the patch that are this tensor's alone."""


@dataclass(frozen=True)
class Patch:
    """What a patch says before it is applied."""

    tensors: tuple[PatchedTensor, ...]
    """Of the new state, in its order."""
    bytes: int
    """Of the whole patch."""
    note: bytes
    """What the maker added: `atomo delta` the header of the new file, where it is another one."""


def _type_name(x: Any) -> str:
    return str(x.dtype).rpartition(".")[2]


def _bytes_view(name: str, x: Any) -> tuple[Any, numpy.ndarray]:
    """(a contiguous array on the CPU, its bytes): x itself where it is one."""
    if is_torch(x):
        torch = sys.modules["torch"]
        x = x.detach().cpu().contiguous()
        return x, x.reshape(-1).view(torch.uint8).numpy()
    if is_cupy(x):
        x = x.get()
    if not is_jax(x) and not isinstance(x, (numpy.ndarray, numpy.generic)):
        raise TypeError(f"{name}: an array of NumPy, PyTorch, JAX or CuPy is expected, found {type(x).__name__}")
    x = numpy.ascontiguousarray(numpy.asarray(x)).reshape(numpy.shape(x))
    return x, x.reshape(-1).view(numpy.uint8)


def _rows(state: Mapping[str, Any], what: str) -> list[tuple]:
    if not isinstance(state, Mapping):
        raise TypeError(f"{what}: a mapping of names to arrays is expected, found {type(state).__name__}")
    rows = []
    for name, x in state.items():
        if not isinstance(name, str):
            raise TypeError(f"{what}: names are expected to be strings, found {name!r}")
        if not hasattr(x, "dtype") or _type_name(x) not in _TYPES:
            raise Error(f"{what}: '{name}' has elements of {getattr(x, 'dtype', type(x).__name__)}; accepted are "
                        f"{', '.join(_TYPES)}")
        _, data = _bytes_view(name, x)
        size = x.dtype.itemsize
        rows.append((name, _TYPES[_type_name(x)], tuple(x.shape), size, "float" in _type_name(x), data))
    return rows


def make_patch(before: Mapping[str, Any], after: Mapping[str, Any], *, threads: int = 1) -> bytes:
    """The patch that makes the tensors `after` of the tensors `before`, both by name, as a `state_dict` is.

    A tensor whose type and shape are as before is sent as the elements that differ, any other whole; nothing is lost.
    Of bf16 weights of which one in a hundred moved to a neighbour a patch takes about 1/150. Tensors on a GPU are copied
    to the CPU. Raises `atomo.Error` for elements of other types.

    >>> import atomo, numpy
    >>> before = {"w": numpy.arange(10000, dtype="float32")}
    >>> after = {"w": before["w"].copy()}
    >>> after["w"][5000] = 1
    >>> patch = atomo.make_patch(before, after)
    >>> len(patch) < 200, bool((atomo.apply_patch(patch, before)["w"] == after["w"]).all())
    (True, True)
    """
    return _atomo.make_patch(_rows(before, "before"), _rows(after, "after"), "", threads)


def inspect_patch(patch: Any) -> Patch:
    """What a patch says; all of it is checked. Raises `atomo.Error` for what is no patch, or damaged."""
    found = _atomo.inspect_patch(patch)
    return Patch(tuple(PatchedTensor(**row) for row in found["tensors"]), found["bytes"], found["note"])


def apply_patch(patch: Any, before: Mapping[str, Any], *, out: Mapping[str, Any] | None = None, threads: int = 1) -> dict[str, Any]:
    """Makes the new state of tensors by name, bit for bit what the patch was made for.

    `out` has arrays to fill, which may be those of `before`; without it the arrays are new, of PyTorch where `before` is,
    else of NumPy, on the CPU. Patch and `before` are verified before a byte is written. Raises `atomo.Error` that names
    the tensor that is missing, or not the one that the patch was made from, or what is damaged.
    """
    tensors = inspect_patch(patch).tensors
    rows = _rows(before, "before")
    made: dict[str, Any] = {}
    rooms, copies = [], []
    of_torch = any(is_torch(x) for x in before.values())
    sizes = {row[0]: row[5].nbytes for row in rows}
    for tensor in tensors:
        # What a patch claims is held against what is here before memory is taken.
        if tensor.form != "whole" and sizes.get(tensor.name, -1) != tensor.tensor_bytes:
            raise Error(f"the patch was made for a tensor '{tensor.name}' of {tensor.tensor_bytes} bytes, which `before` has not")
        array = _empty(tensor, of_torch) if out is None else _room(tensor, out)
        copy, data = _bytes_view(tensor.name, array)
        if data.nbytes != tensor.tensor_bytes:
            raise Error(f"the array '{tensor.name}' has {data.nbytes} bytes, the patch's tensor has {tensor.tensor_bytes}")
        if is_torch(array) and array.data_ptr() != copy.data_ptr():  # on a GPU, or strided
            copies.append((array, copy))
        made[tensor.name] = array
        rooms.append(data)
    _atomo.apply_patch(patch, rows, rooms, threads)
    for array, copy in copies:
        array.data.copy_(copy)
    return made


def _room(tensor: PatchedTensor, out: Mapping[str, Any]) -> Any:
    if tensor.name not in out:
        raise Error(f"out: there is no array '{tensor.name}', which the patch makes")
    array = out[tensor.name]
    if _TYPES.get(_type_name(array)) != tensor.type or tuple(array.shape) != tensor.shape:
        raise Error(f"out: '{tensor.name}' is {_type_name(array)} {tuple(array.shape)}, the patch makes "
                    f"{_NAMES.get(tensor.type, tensor.type)} {tensor.shape}")
    if isinstance(array, numpy.ndarray) and not (array.flags.c_contiguous and array.flags.writeable):
        raise Error(f"out: '{tensor.name}' has to be contiguous and writable")
    if not is_torch(array) and not isinstance(array, numpy.ndarray):
        raise Error(f"out: '{tensor.name}' is no array of NumPy or PyTorch, which can be filled")
    return array


def _empty(tensor: PatchedTensor, of_torch: bool) -> Any:
    name = _NAMES.get(tensor.type)
    if name is None:
        raise Error(f"'{tensor.name}' has elements of type {tensor.type}; accepted are {', '.join(_NAMES)}")
    if of_torch:
        torch = sys.modules["torch"]
        return torch.empty(tensor.shape, dtype=getattr(torch, name))
    if name.startswith(("bfloat16", "float8")):
        try:
            import ml_dtypes
        except ImportError:
            raise Error(f"'{tensor.name}' is {name}, for which NumPy needs the package ml_dtypes") from None
        return numpy.empty(tensor.shape, getattr(ml_dtypes, name))
    return numpy.empty(tensor.shape, name)
