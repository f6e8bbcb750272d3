# SPDX-License-Identifier: Apache-2.0
"""Patches: how tensors differ from an earlier state of them, without loss."""
from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy

from . import _atomo
from ._errors import Error
from ._frameworks import check_threads, checked_text, is_cupy, is_jax, is_torch

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
    checksum: int
    """Of the tensor's bytes (FORMAT.md, "Patches"): equal tensors have equal ones."""


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


def _bytes_view(what: str, x: Any) -> tuple[Any, numpy.ndarray]:
    """(a contiguous array on the CPU, its bytes): x itself where it is one."""
    if is_torch(x):
        torch = sys.modules["torch"]
        if x.is_meta or x.is_nested or x.layout != torch.strided:
            kind = "meta" if x.is_meta else "nested" if x.is_nested else str(x.layout).rpartition(".")[2]
            raise Error(f"{what} is a tensor of kind {kind}; accepted are dense tensors (layout torch.strided) that have data")
        x = x.detach().cpu().contiguous().resolve_neg()
        return x, x.reshape(-1).view(torch.uint8).numpy()
    if is_cupy(x):
        x = x.get()
    if not is_jax(x) and not isinstance(x, (numpy.ndarray, numpy.generic)):
        raise TypeError(f"{what}: an array of NumPy, PyTorch, JAX or CuPy is expected, found {type(x).__name__}")
    x = numpy.ascontiguousarray(numpy.asarray(x)).reshape(numpy.shape(x))
    return x, x.reshape(-1).view(numpy.uint8)


def _rows(state: Mapping[str, Any], what: str) -> list[tuple]:
    if not isinstance(state, Mapping):
        raise TypeError(f"{what}: a mapping of names to arrays is expected, found {type(state).__name__}")
    rows = []
    for name, x in state.items():
        if not isinstance(name, str):
            raise TypeError(f"{what}: names are expected to be strings, found {name!r}")
        checked_text(name, what)
        if not hasattr(x, "dtype") or _type_name(x) not in _TYPES:
            raise Error(f"{what}: '{name}' has elements of {getattr(x, 'dtype', type(x).__name__)}; accepted are "
                        f"{', '.join(_TYPES)}")
        _, data = _bytes_view(f"{what}: '{name}'", x)
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
    check_threads(threads)
    return _atomo.make_patch(_rows(before, "before"), _rows(after, "after"), "", threads)


def inspect_patch(patch: Any) -> Patch:
    """What a patch says; all of it is checked. Raises `atomo.Error` for what is no patch, or damaged."""
    found = _atomo.inspect_patch(patch)
    return Patch(tuple(PatchedTensor(**row) for row in found["tensors"]), found["bytes"], found["note"])


def apply_patch(patch: Any, before: Mapping[str, Any], *, out: Mapping[str, Any] | None = None, threads: int = 1) -> dict[str, Any]:
    """Makes the new state of tensors by name, bit for bit what the patch was made for.

    `out` has arrays to fill, which may be those of `before`; without it the arrays are new, of PyTorch where `before` is,
    else of NumPy, on the CPU. One array of `out` may have several names, as tied weights have, where their new states are
    equal; otherwise its arrays share no memory with one another, nor with arrays of other names in `before`. Patch and
    `before` are verified before a byte is written. Raises `atomo.Error` that names the tensor that is missing, or not the one
    that the patch was made from, or what is damaged.
    """
    check_threads(threads)
    if out is not None and not isinstance(out, Mapping):
        raise TypeError(f"out: a mapping of names to arrays is expected, found {type(out).__name__}")
    tensors = inspect_patch(patch).tensors
    rows = {row[0]: row for row in _rows(before, "before")}
    made: dict[str, Any] = {}
    rooms: dict[str, numpy.ndarray] = {}
    of_torch = any(is_torch(x) for x in before.values())
    copies = {}
    for tensor in tensors:
        # What a patch claims is held against what is here before memory is taken.
        if tensor.form != "whole" and (tensor.name not in rows or rows[tensor.name][5].nbytes != tensor.tensor_bytes):
            raise Error(f"the patch was made for a tensor '{tensor.name}' of {tensor.tensor_bytes} bytes, which `before` has not")
        array = _empty(tensor, of_torch) if out is None else _room(tensor, out)
        copy, data = _bytes_view(f"out: '{tensor.name}'", array)
        if data.nbytes != tensor.tensor_bytes:
            raise Error(f"the array '{tensor.name}' has {data.nbytes} bytes, the patch's tensor has {tensor.tensor_bytes}")
        if is_torch(array) and array.data_ptr() != copy.data_ptr():  # on a GPU, or strided
            if any(n > 1 and step == 0 for n, step in zip(array.shape, array.stride())):
                raise Error(f"out: several elements of '{tensor.name}' are one, as it was expanded; give a .clone() of it")
            copies[tensor.name] = array, copy
        made[tensor.name] = array
        rooms[tensor.name] = data
    if out is not None:
        for name in _separate(tensors, made, rooms, rows):
            copies.pop(name, None)
    _atomo.apply_patch(patch, list(rows.values()), list(rooms.values()), threads)
    for array, copy in copies.values():
        array.data.copy_(copy)
    return made


class _Place(NamedTuple):
    """Where an array is."""

    begin: int
    end: int
    name: str
    written: bool
    memory: numpy.ndarray


def _memory_of(x: Any) -> numpy.ndarray:
    """The addresses that an array of `out` has, which nobody reads through this: a tensor's may be a GPU's."""
    if isinstance(x, numpy.ndarray):
        return x
    size = x.element_size()
    return numpy.asarray(SimpleNamespace(__array_interface__={
        "version": 3, "typestr": f"|V{size}", "shape": tuple(x.shape), "data": (x.data_ptr(), False),
        "strides": tuple(size * stride for stride in x.stride())}))


def _place(name: str, memory: numpy.ndarray, written: bool) -> _Place:
    begin = memory.ctypes.data
    length = sum((n - 1) * stride for n, stride in zip(memory.shape, memory.strides)) + memory.itemsize
    return _Place(begin, begin + length, name, written, memory)


def _separate(tensors: tuple[PatchedTensor, ...], made: Mapping[str, Any], rooms: dict[str, numpy.ndarray],
              rows: dict[str, tuple]) -> list[str]:
    """Has an array that stands under several names written under the first of them, and gives the others room beside it: their
    names. Raises Error where what is written shares memory with anything else that is written or read."""
    first: dict[tuple, PatchedTensor] = {}
    tied: list[str] = []
    places = []
    for tensor in tensors:
        memory = _memory_of(made[tensor.name])
        if memory.size == 0:
            continue
        place = _place(tensor.name, memory, True)
        other = first.setdefault((place.begin, tensor.type, memory.shape, memory.strides), tensor)
        if other is tensor:
            places.append(place)
            continue
        name = tensor.name
        if tensor.checksum != other.checksum:
            raise Error(f"out: '{other.name}' and '{name}' are one array, but the patch makes different states of them; "
                        "accepted is an array for each")
        room = rooms[name].copy()
        if name in rows and rows[name][5].ctypes.data == rooms[name].ctypes.data:
            rows[name] = (*rows[name][:5], room)  # in the array itself it would be read while it is written
        rooms[name] = room
        tied.append(name)
    places += [_place(tensor.name, rows[tensor.name][5], False) for tensor in tensors
               if tensor.form != "whole" and tensor.tensor_bytes > 0]
    _check_overlaps(places)
    return tied


def _check_overlaps(places: list[_Place]) -> None:
    before_it: list[_Place] = []
    for place in sorted(places, key=lambda place: place.begin):
        before_it = [other for other in before_it if other.end > place.begin]
        for other in before_it:
            in_place = place.name == other.name and place.begin == other.begin
            if in_place or not (place.written or other.written) or not numpy.shares_memory(place.memory, other.memory):
                continue
            written, touched = (place, other) if place.written else (other, place)
            where = "another array of out" if touched.written else "an array of before"
            raise Error(f"out: '{written.name}' shares memory with '{touched.name}', {where}, one of which would be destroyed; "
                        "accepted are arrays apart, those of before under the same names, and one array under several names")
        before_it.append(place)


def _room(tensor: PatchedTensor, out: Mapping[str, Any]) -> Any:
    if tensor.name not in out:
        raise Error(f"out: there is no array '{tensor.name}', which the patch makes")
    array = out[tensor.name]
    if not is_torch(array) and not isinstance(array, numpy.ndarray):
        raise Error(f"out: '{tensor.name}' is {type(array).__name__}; accepted are arrays of NumPy and PyTorch")
    if _TYPES.get(_type_name(array)) != tensor.type or tuple(array.shape) != tensor.shape:
        raise Error(f"out: '{tensor.name}' is {_type_name(array)} {tuple(array.shape)}, the patch makes "
                    f"{_NAMES.get(tensor.type, tensor.type)} {tensor.shape}")
    if isinstance(array, numpy.ndarray) and not (array.flags.c_contiguous and array.flags.writeable):
        raise Error(f"out: '{tensor.name}' has to be contiguous and writable")
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
