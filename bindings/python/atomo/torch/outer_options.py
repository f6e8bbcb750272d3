# SPDX-License-Identifier: Apache-2.0
"""What an outer synchronisation is told: options and published settings, policies with memories, fragments, shards."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

import atomo

from .._policy import is_spec, matches
from .layers import Parameters, trained

#: Published settings, which `OuterSync.preset` takes by name. Each says where it is from.
OUTER_PRESETS: dict[str, dict[str, Any]] = {
    # DiLoCo, arXiv 2311.08105, algorithm 1 and section 3: H = 500, Nesterov of rate 0.7 and momentum 0.9, f32.
    "diloco": {"policy": "identity:dtype=f32", "every": 500, "outer": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.9},
    # Streaming DiLoCo, arXiv 2501.18512. Its own: H = 100 (figure 5), 3 layers a fragment at every size (figure 6), which are
    # 8 fragments of a model of 24 layers, outer rate 0.4 at every size (section 3), a delay of one step (table 1), alpha 0.5
    # (figures 8 and 10), 4 bits (figure 11); momentum 0.9 is DiLoCo's. Ours: QSGD, unbiased, has the 4 bits in place of
    # E3M0, and fragments are neighbours, where the paper prefers every 8th layer (figure 7).
    "streaming-diloco": {"policy": "qsgd:bits=4", "every": 100, "outer": "nesterov", "outer_lr": 0.4, "outer_momentum": 0.9,
                         "fragments": 8, "delay": 1, "alpha": 0.5},
    # SparseLoCo, arXiv 2508.15706, algorithm 1, with the clipping of arXiv 2603.08163, section 2.1: H = 30, 64 of 4096 in 2
    # bits, a memory that keeps 0.95 in place of the outer momentum.
    "sparseloco": {"policy": "topk:chunk=4096,k=64,values=2", "every": 30, "outer": "sgd", "outer_lr": 1.0,
                   "outer_momentum": 0.0, "memory": "ef:decay=.95", "clip": "median"},
}


def preset(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a preset, with changes.

    Raises:
        atomo.Error: when there is no such preset.
    """
    if name not in OUTER_PRESETS:
        raise atomo.Error(f"no preset {name!r}: there are {', '.join(OUTER_PRESETS)}")
    return {**OUTER_PRESETS[name], **changes}


def check_options(**options: Any) -> None:
    """Raises `atomo.Error` for an option that cannot work, by its name."""
    for name, least in (("every", 1), ("delay", 0), ("verify_every", 0)):
        value = options[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise atomo.Error(f"{name} is {value!r}: it must be an integer of at least {least}")
    if options["outer"] not in ("sgd", "nesterov"):
        raise atomo.Error(f"outer is {options['outer']!r}: sgd and nesterov are accepted")
    if options["clip"] not in (None, "median"):
        raise atomo.Error(f"clip is {options['clip']!r}: None and 'median' are accepted")
    for name, largest in (("outer_lr", math.inf), ("outer_momentum", 1), ("alpha", 1)):
        value = options[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < largest:
            raise atomo.Error(f"{name} is {value!r}: it must be a number from 0 to below {largest}")
    if options["outer_lr"] == 0:
        raise atomo.Error("outer_lr is 0: nothing would be learnt")
    if options["delay"] >= options["every"]:
        raise atomo.Error(f"delay is {options['delay']}: it must be below every, {options['every']}, or a fragment's next "
                          "exchange would begin before the last one is applied")
    if options["alpha"] and not options["delay"]:
        raise atomo.Error(f"alpha is {options['alpha']} and delay 0: without a delay nothing local is newer than what was "
                          "sent")
    if options["device"] not in (None, "cpu"):
        raise atomo.Error(f"device is {options['device']!r}: None, where the parameters are, and 'cpu' are accepted")


def with_memory(policy: str, memory: str | None) -> str:
    """The policy with a memory in front of each codec.

    >>> with_memory("*.bias=identity; *=sign", "ef:decay=.95")
    '*.bias = ef:decay=.95+identity; * = ef:decay=.95+sign'
    """
    if memory is None:
        return policy
    if not isinstance(memory, str) or not memory.strip() or re.search(r"[;\s#]", memory.strip()):
        raise atomo.Error(f"memory is {memory!r}: the beginning of a codec's spec is expected, such as 'ef:decay=.95'")
    prefix = memory.strip().removesuffix("+") + "+"
    if is_spec(policy):
        return prefix + policy.strip()
    rules = (line.partition("#")[0].partition("=") for line in re.split(r"[;\n]", policy))
    return "; ".join(f"{pattern.strip()} = {prefix}{spec.strip()}" for pattern, _, spec in rules if pattern.strip())


def split(sizes: Mapping[str, int], fragments: int | Sequence[Sequence[str]]) -> list[list[str]]:
    """The names of each fragment's layers: runs of about as many elements, or what patterns take.

    Raises:
        atomo.Error: for a fragment without layers, and a layer without a fragment.
    """
    if isinstance(fragments, int) and not isinstance(fragments, bool):
        if not 1 <= fragments <= len(sizes):
            raise atomo.Error(f"fragments is {fragments}: there are {len(sizes)} layers, so 1 to {len(sizes)} fragments")
        return _runs(sizes, fragments)
    if isinstance(fragments, (str, bytes, bool)) or not isinstance(fragments, Sequence):
        raise atomo.Error(f"fragments is {fragments!r}: a number, or for each fragment a list of names or patterns, is "
                          "expected")
    taken: list[list[str]] = [[] for _ in fragments]
    for name in sizes:
        at = next((i for i, of in enumerate(fragments) if any(matches(pattern, name) for pattern in of)), None)
        if at is None:
            raise atomo.Error(f"fragments: no pattern takes '{name}'")
        taken[at].append(name)
    for patterns, names in zip(fragments, taken):
        if not names:
            raise atomo.Error(f"fragments: no layer is left for {list(patterns)}")
    return taken


def _runs(sizes: Mapping[str, int], fragments: int) -> list[list[str]]:
    """Neighbours, cut where the elements before come nearest to their share."""
    runs: list[list[str]] = [[]]
    done, total, left = 0, sum(sizes.values()), len(sizes)
    for name, size in sizes.items():
        missing = fragments - len(runs)
        if runs[-1] and missing and (left == missing or done + size / 2 > total * len(runs) / fragments):
            runs.append([])
        runs[-1].append(name)
        done, left = done + size, left - 1
    return runs


# Shards


def locals_of(model: Parameters) -> tuple[dict[str, torch.Tensor], dict[str, list[list[int]]]]:
    """The parameters that are trained, by name, and of sharded ones this rank's shard: of each mesh dimension that cuts one
    its size and this rank's place.

    Raises:
        atomo.Error: for a parameter that has no codec, or is a partial sum.
    """
    found, shards = {}, {}
    parameters: dict[str, Any] = dict(trained(model))
    for name, parameter in parameters.items():
        if hasattr(parameter, "placements"):
            shards[name] = _shard(name, parameter)
            with torch.no_grad():
                parameter = parameter.to_local()
        found[name] = parameter.detach()
    return found, shards


def _shard(name: str, parameter: Any) -> list[list[int]]:
    mesh, place = parameter.device_mesh, parameter.device_mesh.get_coordinate()
    if place is None or any(placement.is_partial() for placement in parameter.placements):
        raise atomo.Error(f"'{name}' is {parameter.placements} over {mesh}: shards and replicas that this rank holds are "
                          "accepted")
    return [[mesh.size(i), place[i]] for i, placement in enumerate(parameter.placements) if not placement.is_replicate()]


def shard_groups(model: Parameters) -> list[dist.ProcessGroup]:
    """Those in which the shards of this worker's parameters are: one for each mesh dimension that cuts some."""
    groups = [parameter.device_mesh.get_group(i) for parameter in trained(model).values()
              for i, placement in enumerate(getattr(parameter, "placements", ())) if not placement.is_replicate()]
    return list({group.group_name: group for group in groups}.values())


def group_of(where: Any) -> Any:
    """A process group, or that of a mesh of one dimension; the default group for None.

    Raises:
        atomo.Error: for a mesh of more dimensions, and without `init_process_group`.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise atomo.Error("call torch.distributed.init_process_group first: outer synchronisation is between processes")
    if hasattr(where, "get_group") and hasattr(where, "ndim"):
        if where.ndim != 1:
            raise atomo.Error(f"the mesh has {where.ndim} dimensions: give the one that is synchronised over, as "
                              "mesh['outer']")
        where = where.get_group()
    return dist.group.WORLD if where is None else where
