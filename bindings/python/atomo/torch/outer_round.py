# SPDX-License-Identifier: Apache-2.0
"""A round of outer synchronisation: fragments of a model, and the exchange of what ranks changed in them.

An exchange of W ranks: the ranks tell each other whether they agree and are finite; each encodes its pseudo-gradient as one
message; lengths and then messages go to all ranks, and every rank adds all of them, in rank order, to the mean. Where a worker is
several ranks with the same replica, its first one exchanges messages and tells the others what arrived.
"""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
import torch.distributed as dist

import atomo

from .groups import raise_difference
from .layers import compressor_of
from .step import told_by_all
from .sums import differing
from .wire import FAILED, as_bytes, check_lengths, swap

T = TypeVar("T")


@dataclasses.dataclass
class OuterLog:
    """What one exchange came to on this rank. What it sends is counted once: each of the other ranks gets all of it."""

    round: int  #: its number, from 0; each fragment's exchange has a number of its own
    step: int  #: local steps taken when it began
    fragment: int = 0  #: which was exchanged
    bytes_sent: int = 0  #: over the group: the message, which of a worker of several ranks the first one sends, and the next line
    length_bytes: int = 0  #: the tables: what the ranks agree on, lengths, and norms where `clip` asks for them
    bytes_received: int = 0  #: the same from all the others together
    encode_seconds: float = 0.0  #: decoding one's own message for `clip` included
    wire_seconds: float = 0.0  #: waiting for slower ranks included
    decode_seconds: float = 0.0
    norms: tuple[float, ...] = ()  #: of each rank's decoded contribution, where `clip` asks for them
    nonfinite: tuple[int, ...] = ()  #: ranks of the group whose pseudo-gradient, or what it decodes to, was not finite: the round was skipped


class Fragment:
    """Layers that are exchanged together, as one message: what all ranks agree on of them, and room for one change.

    Args:
        number: of the fragment, from 0.
        parameters: of this rank, by name; of a DTensor its local shard.
        policy, threads: of the messages, whose layers are of f32.
        with_momentum: whether the outer step has one.
        device: where all of this is.
    """

    def __init__(self, number: int, parameters: Mapping[str, torch.Tensor], policy: str, threads: int, with_momentum: bool,
                 device: torch.device):
        self.number, self.names = number, list(parameters)
        self._layers = {name: (tuple(p.shape), "f32") for name, p in parameters.items()}
        self._policy, self._threads, self._device = policy, threads, device
        self.compressor = self.fresh()
        self.outer = {name: self._like(p).copy_(p) for name, p in parameters.items()}
        self.momentum = {name: torch.zeros_like(outer) for name, outer in self.outer.items()} if with_momentum else {}
        self.change = {name: self._like(p) for name, p in parameters.items()}  # the pseudo-gradient, then the mean of all
        # Of layers whose messages are differences: what these add up to.
        self.sums = {name: torch.zeros_like(self.change[name]) for name in differing(self.compressor)}

    def fresh(self) -> atomo.Compressor:
        """One like the fragment's that has learnt nothing, for an attempt too."""
        return compressor_of(self._layers, self._policy, self._threads, self._device.type)

    def _like(self, parameter: torch.Tensor) -> torch.Tensor:
        """Room for one in f32, row after row whatever its strides."""
        return torch.empty(parameter.shape, dtype=torch.float32, device=self._device)

    def forget(self) -> None:
        """What was learnt of the price, and what a memory holds."""
        self.compressor = self.fresh()

    def subtract(self, parameters: Mapping[str, torch.Tensor]) -> int:
        """The pseudo-gradient: what the parameters were set to - what they are, in f32. Returns 0, or 1 + the number of the
        first layer in which it is not finite. Waits for the device once.

        Halves were set to the outer parameters rounded, so a layer that was not trained changes by 0.
        """
        for name, parameter in parameters.items():
            start, change = self.outer[name], self.change[name].copy_(parameter)
            if parameter.dtype != torch.float32:
                start = start.to(parameter.dtype).to(torch.float32)
            torch.sub(start, change, out=change)
        finite = torch.stack([change.isfinite().all() for change in self.change.values()]).tolist()
        return 0 if all(finite) else 1 + finite.index(False)

    def forget_memory(self) -> None:
        """What a memory holds, and the sums of differences, as they were at the beginning: zeros."""
        self.compressor.reset_memory()
        for total in self.sums.values():
            total.zero_()

    def take_step(self, lr: float, momentum: float, nesterov: bool) -> None:
        """Moves the outer parameters along the mean, as torch.optim.SGD does: v = m v + d;  w = w - lr v, or, as Nesterov
        has it, w - lr (d + m v)."""
        for name, mean in self.change.items():
            step = mean
            if momentum:
                if name not in self.momentum:  # there was none until now
                    self.momentum[name] = torch.zeros_like(mean)
                velocity = self.momentum[name].mul_(momentum).add_(mean)
                step = mean.add_(velocity, alpha=momentum) if nesterov else velocity
            self.outer[name].add_(step, alpha=-lr)

    def write(self, parameters: Mapping[str, torch.Tensor], alpha: float) -> None:
        """parameter = alpha * itself + (1 - alpha) * the outer one, rounded to the nearest of its type."""
        for name, parameter in parameters.items():
            outer = self.outer[name]
            parameter.copy_(torch.lerp(outer, parameter.to(outer), alpha) if alpha else outer)


@dataclasses.dataclass
class Ready:
    """What a rank brings to an exchange."""

    key: dict[str, int]  # seed, step (the round), worker (the rank), channel
    digest: int  # of what all ranks have to agree on
    facts: Callable[[], Mapping[str, Any]]  # the same in words, for an error
    nonfinite: int  # what `Fragment.subtract` returned
    error: Exception | None = None  # what went wrong before
    checksum: int | None = None  # of the outer parameters; 0 in rounds that do not compare it, None where no round does
    clip: str | None = None  # "median"
    worker: dist.ProcessGroup | None = None  # the ranks that have the same replica, where there are several


@torch.no_grad()
def exchange(fragment: Fragment, ready: Ready, group: dist.ProcessGroup, log: OuterLog) -> None:
    """Replaces `fragment.change` by the mean of the ranks' contributions and fills the log. Called by all ranks.

    Where a rank's change is not finite nobody encodes: `log.nonfinite` names the ranks, and memories stay as they were. Where what a
    finite one decodes to is not, all ranks see it: it names them too, and memories begin anew.

    Raises:
        atomo.Error: on every rank, when ranks differ or one could not encode; torch's own for ranks that are gone.
    """
    began, device = time.perf_counter(), next(iter(fragment.change.values())).device
    words = [ready.digest, FAILED if ready.error else ready.nonfinite, *([] if ready.checksum is None else [ready.checksum])]
    table = told_by_all(words, group, device)
    check_lengths([row[1:2] for row in table], ready.error)
    if len({row[0] for row in table}) > 1:
        raise_difference(ready.facts(), group, device)
    if ready.checksum is not None:
        compare_checksums([row[2] for row in table])
    log.nonfinite = tuple(rank for rank, row in enumerate(table) if row[1])
    agreed = time.perf_counter()
    log.wire_seconds += agreed - began
    _count(log, 8 * len(words), 8 * len(words) * (len(table) - 1))
    if log.nonfinite:
        return
    message, norm, mine = _encode(fragment, ready)
    if ready.worker is not None:
        mine = _differs_in_worker(message, mine, ready.worker, device)
    encoded = time.perf_counter()
    words = [FAILED if mine else len(message), *([_bits(norm)] if ready.clip else [])]
    table = told_by_all(words, group, device)
    lengths = [row[0] for row in table]
    check_lengths([[length] for length in lengths], mine)
    messages = _swapped(as_bytes([message], device), lengths, group, ready.worker)
    arrived = time.perf_counter()
    log.norms = tuple(_number(row[1]) for row in table) if ready.clip else ()
    _add(fragment, messages, log.norms)
    if not _is_finite(fragment.change):
        log.nonfinite = _overflowed(fragment, messages)
        fragment.forget_memory()
    for name, total in fragment.sums.items() if not log.nonfinite else ():
        total.copy_(fragment.change[name])
    _count(log, 8 * len(words), 8 * len(words) * (len(table) - 1))
    if ready.worker is None or dist.get_rank(ready.worker) == 0:
        log.bytes_sent += len(message)
        log.bytes_received += sum(lengths) - len(message)
    log.encode_seconds = encoded - agreed
    log.wire_seconds += arrived - encoded
    log.decode_seconds = time.perf_counter() - arrived


def _encode(fragment: Fragment, ready: Ready) -> tuple[Any, float, Exception | None]:
    """One message and, where contributions are clipped, the norm of what others will decode; or what went wrong. The
    change itself is not needed then: the message is decoded in its place."""
    try:
        message = fragment.compressor.encode(fragment.change, **ready.key)
        if ready.clip is None:
            return message, 0.0, None
        fragment.compressor.decode(message, out=fragment.change)
        squares = sum(torch.linalg.vector_norm(part, dtype=torch.float64) ** 2 for part in fragment.change.values())
        return message, float(squares) ** 0.5, None
    except Exception as error:
        return b"", 0.0, error


def _differs_in_worker(message: Any, mine: Exception | None, worker: dist.ProcessGroup, device: torch.device) -> Exception | None:
    """What went wrong on this rank, or on another of its worker; or that they would not send the same message."""
    sent = bytes(message.cpu().numpy()) if isinstance(message, torch.Tensor) else message
    digest = int.from_bytes(hashlib.blake2b(sent, digest_size=8).digest(), "little", signed=True)
    table = told_by_all([digest, FAILED if mine else 0], worker, device)
    if mine is not None or any(failed for _, failed in table):
        return mine or atomo.Error("another rank of this worker failed; the error raised there says why")
    ranks = dist.get_process_group_ranks(worker)
    others = ", ".join(str(ranks[i]) for i, row in enumerate(table) if row != table[0])
    return atomo.Error(f"the ranks of one worker have other parameters: rank {others} would not send what rank {ranks[0]} sends. Keep "
                       "them equal, by DDP or by an OuterSync that is given as within=") if others else None


def _swapped(message: torch.Tensor, lengths: Sequence[int], group: dist.ProcessGroup,
             worker: dist.ProcessGroup | None) -> list[torch.Tensor]:
    """The messages of all workers. In a worker of several ranks the first one exchanges them, and the others are told."""
    if worker is None:
        return swap([message] * len(lengths), lengths, group)
    first = dist.get_rank(worker) == 0
    together = torch.cat(swap([message] * len(lengths), lengths, group)) if first else message.new_empty(sum(lengths))
    dist.broadcast(together, dist.get_global_rank(worker, 0), worker)
    return list(together.split(list(lengths)))


def _add(fragment: Fragment, messages: Sequence[torch.Tensor], norms: Sequence[float]) -> None:
    """The mean, message after message in rank order, each scaled down to the median of the norms where there are some. All
    ranks take the norms from the ranks that they are of, so they scale alike."""
    for name, part in fragment.change.items():
        if name in fragment.sums:
            part.copy_(fragment.sums[name])
        else:
            part.fill_(-0.0)  # the one number that changes no bit of what is added to it
    add = fragment.compressor.decode_add_all
    if not norms:
        add(list(messages), out=fragment.change, alpha=1 / len(messages))
        return
    for message, scale in zip(messages, clip_factors(norms)):
        add([message], out=fragment.change, alpha=scale / len(messages))


def _is_finite(arrays: Mapping[str, torch.Tensor]) -> bool:
    """Waits for the device once."""
    return bool(torch.stack([array.isfinite().all() for array in arrays.values()]).all())


def _overflowed(fragment: Fragment, messages: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The ranks whose message decodes to what is not finite; all where none does, and their sum is not. Loses the change."""
    found = []
    for rank, message in enumerate(messages):
        for part in fragment.change.values():
            part.zero_()
        fragment.compressor.decode_add_all([message], out=fragment.change, alpha=1.0)
        if not _is_finite(fragment.change):
            found.append(rank)
    return tuple(found or range(len(messages)))


def clip_factors(norms: Sequence[float]) -> list[float]:
    """What brings each norm down to their median; 1 for those that are not above it."""
    median = statistics.median(norms)
    return [median / norm if norm > median else 1.0 for norm in norms]


def _count(log: OuterLog, sent: int, received: int) -> None:
    """A table."""
    log.length_bytes += sent
    log.bytes_sent += sent
    log.bytes_received += received


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little", signed=True)


def _number(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


# Checksums

_STRETCH = 1 << 20  # elements that are widened at once


def checksum_of(tensors: Sequence[torch.Tensor]) -> int:
    """63 bits and a sign that stand for the bits of f32 tensors. It finds faults, not forgeries: a sum of the elements'
    bits, each times an odd number of its place, modulo 2^64. Integers add up to the same in any order. Waits for the
    device."""
    total, at = None, 1
    for tensor in tensors:
        for part in tensor.reshape(-1).split(_STRETCH):
            places = torch.arange(at, at + 2 * part.numel(), 2, dtype=torch.int64, device=part.device)
            value = (part.view(torch.int32).to(torch.int64) * places).sum()
            total = value if total is None else total + value
            at += 2 * part.numel()
    return 0 if total is None else int(total)


def compare_checksums(sums: Sequence[int]) -> None:
    """Raises `atomo.Error` that names the ranks which are not as most are; where as many are, not as the lowest of them."""
    counts = Counter(sums)
    if len(counts) == 1:
        return
    usual = max(counts, key=lambda value: (counts[value], -sums.index(value)))
    others = ", ".join(str(rank) for rank, value in enumerate(sums) if value != usual)
    raise atomo.Error(f"the replicas differ: the outer parameters of rank {others} are not those of rank {sums.index(usual)}"
                      f"{f' and {counts[usual] - 1} more' if counts[usual] > 1 else ''}")


# In the background


class Lane:
    """Runs exchanges one after another beside training: on a thread, and for a GPU on a stream of its own."""

    def __init__(self, device: torch.device):
        self._device = device
        self._pool = ThreadPoolExecutor(1, "atomo-outer")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, work: Callable[[], T]) -> Callable[[], T]:
        """Queues it, behind what the caller's stream has to do. What is returned waits for its value, or raises."""
        if self._stream is None:
            return self._pool.submit(work).result
        stream, ready = self._stream, torch.cuda.Event()
        ready.record(torch.cuda.current_stream(self._device))

        def on_stream() -> T:
            with torch.cuda.stream(stream):
                stream.wait_event(ready)
                return work()

        future = self._pool.submit(on_stream)

        def result() -> T:
            value = future.result()
            torch.cuda.current_stream(self._device).wait_stream(stream)
            return value

        return result
