# SPDX-License-Identifier: Apache-2.0
"""Process groups of a state's own, and whether the ranks in one agree."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import atomo

from .layers import Parameters
from .wire import MAX_WORKERS, swap


def is_alive(group: dist.ProcessGroup) -> bool:
    """Whether it was made since the last `init_process_group`."""
    try:
        dist.get_process_group_ranks(group)
    except (KeyError, ValueError):
        return False
    return True


def group_like(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """A new group of the same ranks, backend and time limit. All its ranks make it, in one order.

    Raises:
        atomo.Error: for more ranks than keys can number.
    """
    if dist.get_world_size(group) > MAX_WORKERS:
        raise atomo.Error(f"{dist.get_world_size(group)} workers: at most {MAX_WORKERS} are supported")
    backends = {id(backend): backend for backend in map(group._get_backend, group._device_types)}
    options = [backend.options for backend in backends.values() if hasattr(backend, "options")]
    timeout = getattr(options[0], "_timeout", None) if options else None
    return dist.new_group(dist.get_process_group_ranks(group), timeout=timeout,
                          backend=dist.get_backend_config(group),
                          pg_options=_copied(options[0]) if len(options) == 1 else None,
                          use_local_synchronization=True)


def _copied(options: Any) -> Any:
    """NCCL's choices for a group, in an object that the other group does not share; None for other backends."""
    kind = getattr(getattr(dist, "ProcessGroupNCCL", None), "Options", None)
    if kind is None or not isinstance(options, kind):
        return None
    copy = kind(is_high_priority_stream=options.is_high_priority_stream)
    copy._timeout, copy.config = options._timeout, options.config
    return copy


def registered_with(state: object) -> list[DistributedDataParallel]:
    """The DDP modules whose hook has this state, of groups that are alive. It looks at all objects: some 100 ms."""
    found = (x for x in gc.get_objects() if issubclass(type(x), DistributedDataParallel))
    return [ddp for ddp in found if any(of is state for _, of in getattr(ddp, "_comm_hooks", ()))
            and is_alive(ddp.process_group)]


def group_of(model: Parameters, group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group given, or that of a DDP module; None for the default group."""
    if group is None and isinstance(model, torch.nn.Module):
        group = next((m.process_group for m in model.modules() if isinstance(m, DistributedDataParallel)), None)
    return None if group is dist.group.WORLD else group


def drawn_before(state: Any, states: Iterable[Any]) -> list[str]:
    """What is said of a new state, as they are made when models thaw, that draws again what another of this process has
    drawn: such draws are no longer independent."""
    others = [other for other in states if other is not state and other.step > state.step
              and (other.seed, other.channel) == (state.seed, state.channel)
              and not state._names.keys().isdisjoint(other._names)]
    return ["another state has sent gradients of these parameters with the same seed and channel: this one will "
            "draw the same again. Go on with that one (bind takes added layers), give this one another seed, or "
            "load a checkpoint into it"] if others else []


def check_same_ranks(group: dist.ProcessGroup, modules: Sequence[DistributedDataParallel]) -> None:
    """Raises `atomo.Error` when a DDP module averages over other ranks than the group's."""
    mine = dist.get_process_group_ranks(group)
    for ddp in modules:
        theirs = dist.get_process_group_ranks(ddp.process_group)
        if sorted(mine) != sorted(theirs):
            raise atomo.Error(f"DDP averages over {_ranks(theirs)}, this state over {_ranks(mine)}: give the state "
                              "process_group=, or make it from the DDP module, whose group it then takes")


def _ranks(ranks: Sequence[int]) -> str:
    return f"{len(ranks)} ranks ({', '.join(map(str, ranks[:8]))}{', ...' if len(ranks) > 8 else ''})"


def raise_difference(facts: Mapping[str, Any], group: dist.ProcessGroup, device: torch.device) -> None:
    """Tells all ranks each other's facts, and raises `atomo.Error` with those that differ. Called by all ranks."""
    ranks = dist.get_world_size(group)
    text = torch.frombuffer(bytearray(json.dumps(facts).encode()), dtype=torch.uint8).to(device)
    lengths = torch.empty(ranks, dtype=torch.int64, device=device)
    dist.all_gather_into_tensor(lengths, torch.tensor([len(text)], device=device), group=group)
    told = swap([text] * ranks, lengths.tolist(), group)
    everyones = [json.loads(bytes(part.cpu().numpy())) for part in told]
    raise atomo.Error("the ranks' states differ, and their replicas would: " + "; ".join(_differences(everyones)))


def _differences(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence a fact: its value on rank 0, and on each rank where it is another."""
    said = []
    for key, first in facts[0].items():
        others = [(rank, of[key]) for rank, of in enumerate(facts) if of[key] != first]
        if not others:
            continue
        if key == "layers":
            others, first = _first_layer(first, others)
        shown = [f"{value!r} on rank {rank}" for rank, value in others[:4]]
        more = [f"others on {len(others) - 4} more"] if len(others) > 4 else []
        said.append(f"{key} is {first!r} on rank 0, " + ", ".join([*shown, *more]))
    return said


def _first_layer(first: Sequence[Any], others: Sequence[tuple[int, Sequence[Any]]]) -> tuple[list[tuple[int, Any]], Any]:
    """Of lists of layers, the place at which they begin to differ."""
    def at(layers: Sequence[Any], i: int) -> Any:
        return layers[i] if i < len(layers) else "no more"

    places = max(len(first), *(len(layers) for _, layers in others))
    place = next(i for i in range(places) if any(at(layers, i) != at(first, i) for _, layers in others))
    return [(rank, at(layers, place)) for rank, layers in others], at(first, place)
