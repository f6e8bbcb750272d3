# SPDX-License-Identifier: Apache-2.0
"""The layers of a model: parameters that are trained, under the names that they have without wrappers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

import atomo

from .wire import DTYPES

Parameters = torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]
Layer = tuple[tuple[int, ...], str]  # shape and dtype

#: What torch.compile, checkpoint_wrapper and FSDP put into names; then what DDP, DataParallel and AveragedModel do.
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_MODULE = "module"


def trained(model: Parameters) -> dict[str, torch.Tensor]:
    """Names, without those of wrappers, and parameters that get a gradient.

    Raises:
        atomo.Error: when there is none, when one has two names, or is of a type that has no codec.
    """
    parameters = {name: p for name, p in named(model).items() if p.requires_grad}
    if not parameters:
        raise atomo.Error("there is no parameter that requires a gradient")
    first: dict[int, str] = {}
    for name, parameter in parameters.items():
        if first.setdefault(id(parameter), name) != name:
            raise atomo.Error(f"'{first[id(parameter)]}' and '{name}' are one parameter: give it one name, as named_parameters() does")
        if parameter.dtype not in DTYPES:
            raise atomo.Error(f"'{name}' is {parameter.dtype}: float32, float16 and bfloat16 are accepted")
    return parameters


def named(model: Parameters) -> dict[str, torch.Tensor]:
    """All parameters under their names without those of wrappers."""
    parameters = dict(model.named_parameters() if isinstance(model, torch.nn.Module) else model)
    return dict(zip(plain_names(list(parameters)), parameters.values()))


def plain_names(names: Sequence[str]) -> list[str]:
    """The names without the parts that wrappers put in, wherever they stand.

    A model may have a part of its own called "module": where two names would become one, "module" stays in all of them.
    """
    for wrappers in ((*_WRAPPERS, _MODULE), _WRAPPERS):
        plain = [_without(name, wrappers) for name in names]
        if len(set(plain)) == len(plain):
            return plain
    return list(names)


def _without(name: str, wrappers: Sequence[str]) -> str:
    *parts, last = name.split(".")
    return ".".join([*(part for part in parts if part not in wrappers), last])


def layers_of(parameters: Mapping[str, torch.Tensor]) -> dict[str, Layer]:
    """Shapes and dtypes by name."""
    return {name: (tuple(p.shape), DTYPES[p.dtype]) for name, p in parameters.items()}


def joined(first: Mapping[str, Layer], then: Mapping[str, Layer], whose: tuple[str, str]) -> dict[str, Layer]:
    """The layers of `first`, then those that `then` adds. The order gives layers their numbers, and so their draws.
    `whose` says in an error what has the ones and the others.

    Raises:
        atomo.Error: when a layer of `first` is not in `then`, or in another shape.
    """
    for name, layer in first.items():
        other = then.get(name)
        if other is None or tuple(layer[0]) != tuple(other[0]):
            raise atomo.Error(f"{whose[0]} has {_shown(name, layer)}, {whose[1]} {_shown(name, other)}")
    added = {name: layer for name, layer in then.items() if name not in first}
    return {name: (tuple(shape), dtype) for name, (shape, dtype) in {**first, **added}.items()}


def compressor_of(layers: Mapping[str, Layer], policy: str, threads: int, device: str,
                  takes_back: bool = False) -> atomo.Compressor:
    """A model of these layers."""
    return atomo.Compressor._of([(name, *layer) for name, layer in layers.items()], policy, threads=threads, device=device,
                                takes_back=takes_back)


def device_of(parameters: Mapping[str, torch.Tensor]) -> torch.device:
    """The one that all are on.

    Raises:
        atomo.Error: when they are on several, or on one that is neither the CPU nor a CUDA device.
    """
    devices = {p.device for p in parameters.values()}
    if len(devices) != 1 or next(iter(devices)).type not in ("cpu", "cuda"):
        found = ", ".join(sorted(map(str, devices)))
        raise atomo.Error(f"the parameters are on {found}: all have to be on the CPU or on one CUDA device")
    return next(iter(devices))


def _shown(name: str, layer: Layer | None) -> str:
    return f"no layer '{name}'" if layer is None else f"'{name}' as {layer[1]} {list(layer[0])}"
