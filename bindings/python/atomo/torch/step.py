# SPDX-License-Identifier: Apache-2.0
"""A step of DDP in figures: its key, its log, and the table of numbers that ranks tell each other about a bucket."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

import atomo


@dataclasses.dataclass
class StepLog:
    """What one step came to on this rank. What it sends is counted once: each of the other ranks gets all of it."""

    step: int  #: its number, from 0
    buckets: int = 0  #: of DDP
    bytes_sent: int = 0  #: messages, or gradients that go by all-reduce, and the next line
    length_bytes: int = 0  #: the tables: 8 a parameter, and 80 for what the ranks agree on and have learnt; none on a GPU
    bytes_received: int = 0  #: the same from all the others together
    encode_seconds: float = 0.0  #: on a GPU what the host takes to queue all of it, and the next two are 0
    wire_seconds: float = 0.0  #: waiting for slower ranks included
    decode_seconds: float = 0.0
    price: float = 0.0  #: of the layers under a budget, 0 in the first step and on a GPU
    grid_step: float = 0.0  #: of coordinates on a grid, likewise


RANGES = {"seed": (0, 2**64 - 1), "channel": (0, 2**16 - 1), "threads": (1, 1024), "start_step": (0, 2**63 - 1),
          **dict.fromkeys(("step", "steps", "round", "rank", "ranks", "bytes_sent"), (0, 2**63 - 1))}


def check_integers(**arguments: Any) -> None:
    """Raises `atomo.Error` for an argument outside its range, or of another type."""
    for name, value in arguments.items():
        least, largest = RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= largest:
            raise atomo.Error(f"{name} is {value!r}: it must be an integer from {least} to {largest}")


def number_from(value: Any, name: str, least: float, largest: float, what: str) -> float:
    """The value of an argument `name`, as Python's own float.

    Raises:
        atomo.Error: when it is none from `least` to `largest`, of which the sentence has `what` it should be.
    """
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not least <= number <= largest:
        raise atomo.Error(f"{name} is {value!r}: {what} is expected")
    return number


def check_saved(state: Mapping[str, Any], names: Iterable[str], what: str = "the saved state") -> None:
    """Raises `atomo.Error` for a checkpoint that lacks one of these."""
    missing = [name for name in names if name not in state]
    if missing:
        raise atomo.Error(f"{what} has no '{missing[0]}': what state_dict() returned is expected, with {', '.join(names)}")


def digest_of(facts: Any) -> int:
    """63 bits and a sign that stand for plain values."""
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


#: Numbers that hold what a model has learnt of its prices; how many ranks of sketches it has learnt follows, the shares
#: of layers under a cap=, one each, and the ranks, four to a number.
PRICE_WORDS = 9


def words_of(saved: bytes) -> list[int]:
    """Bytes, 8 to a number."""
    return list(struct.unpack(f"<{len(saved) // 8}q", saved))


def bytes_of(words: Sequence[int]) -> bytes:
    """What `words_of` took."""
    return struct.pack(f"<{len(words)}q", *words)


def carried(learnt: bytes, fresh: bytes) -> bytes:
    """What a model had learnt for one whose layers are others, and so their shares under a cap and ranks: these it learns
    anew."""
    prices = 8 * PRICE_WORDS
    return learnt if len(learnt) == len(fresh) else learnt[:prices] + fresh[prices:]


#: In front of memories alone, as `Compressor.state` gives them.
_MEMORIES_AT = 8 * (PRICE_WORDS + 1)


def joined_memories(states: Sequence[bytes]) -> bytes:
    """Several states of memories in one, of which for a layer the last counts."""
    return states[0] + b"".join(state[_MEMORIES_AT:] for state in states[1:])


def told_by_all(words: Sequence[int], group: dist.ProcessGroup, device: torch.device) -> list[list[int]]:
    """The words of each rank, as many everywhere."""
    ranks = dist.get_world_size(group)
    own = torch.tensor(words, dtype=torch.int64, device=device)
    table = own.new_empty(ranks * len(words))
    dist.all_gather_into_tensor(table, own, group=group)
    return table.view(ranks, -1).tolist()


def at_end_of_backward(call: Callable[[], None]) -> bool:
    """Calls it when the backward pass is over and DDP, whose own callback is queued in between, has waited for all
    buckets. False where no backward pass runs, as in DDP's join()."""
    engine = torch.autograd.Variable._execution_engine
    try:
        engine.queue_callback(lambda: engine.queue_callback(call))
    except RuntimeError:
        return False
    return True
