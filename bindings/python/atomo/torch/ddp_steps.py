# SPDX-License-Identifier: Apache-2.0
"""What a DDPState does in a step, bucket after bucket, on the CPU and on a GPU."""

# No `from __future__ import annotations` here, as in ddp.py.
import functools
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

import atomo

from .bucket import DeviceBuckets
from .coder import Coder
from .device import Place, seed_of_bucket
from .groups import check_same_ranks, group_like, is_alive, raise_difference, registered_with
from .layers import Parameters
from .squares import HostTelling, Squares, facts_of
from .step import PRICE_WORDS, StepLog, at_end_of_backward, bytes_of, digest_of, number_from, told_by_all, words_of
from .wire import FAILED, Accumulator, all_reduce, all_reduce_later, as_bytes, check_lengths, require_f32, sparse_bytes, swap

_CPU = torch.device("cpu")
LEAST_RATE = 1 / 1024  # of the highest, that a memory has
MOST_SHARE = 1024  # of a budget, and its inverse is the least


class Steps:
    """The steps of a DDPState, which is of this class and has these members."""

    policy: str
    seed: int
    channel: int
    start_step: int
    scale: float | Callable[[], float] | None
    clip_norm: float | None
    budget_share: float | Sequence[float] | Callable[[int], float]
    rate_in_memory: float | Callable[[], float] | None
    squares: Squares | None
    step: int
    last: StepLog
    process_group: dist.ProcessGroup | None
    compressor: atomo.Compressor
    _coder: Coder
    _sent: list[int]
    _group: dist.ProcessGroup | None
    _checked: dist.ProcessGroup | None
    _names: dict[int, str]
    _error: Exception | None
    _failed: Exception | None
    _on_gpu: DeviceBuckets
    _held: list[tuple[dist.GradBucket, torch.futures.Future[torch.Tensor]]]
    _worker: ThreadPoolExecutor
    _bind: Callable[[Parameters, dist.ProcessGroup | None], None]

    def _connect(self) -> dist.ProcessGroup:
        """The group of this state's own collectives. DDP issues its own on the same ranks (the map of unused
        parameters, buffers) while the worker thread is at work; in one group their order could differ by rank."""
        if self._group is not None and is_alive(self._group):
            return self._group
        group = self.process_group
        if group is not None and not is_alive(group):  # made anew since: DDP has the new one
            group = next((ddp.process_group for ddp in registered_with(self)), None)
            if group is None:
                raise atomo.Error("the process group of this state was destroyed: call state.bind(model, group) with "
                                  "the new one")
            self.process_group = group
        self._group = group_like(group or dist.group.WORLD)
        return self._group

    def _check_group(self, group: dist.ProcessGroup) -> None:
        """That DDP averages over the same ranks, once for a group."""
        if self._checked is not group:
            check_same_ranks(group, registered_with(self))
            self._checked = group

    def _layers_of(self, bucket: dist.GradBucket) -> list[tuple[str, torch.Tensor]]:
        """Names and gradients of a bucket, in the bucket's order. None of a sparse one."""
        if not self._names:
            self._bind_to_ddp()
        names = [self._names.get(id(parameter)) for parameter in bucket.parameters()]
        if None in names:
            shape = list(bucket.parameters()[names.index(None)].shape)
            raise atomo.Error(f"a parameter of shape {shape} is not among those this state was "
                              "made for: make it from the model that DDP wraps, or state.bind(model) adds layers")
        if bucket.buffer().is_sparse:
            return []
        return list(zip(names, bucket.gradients()))

    def _bind_to_ddp(self) -> None:
        """To the model that the state was registered with."""
        found = registered_with(self)
        if len(found) != 1:
            raise atomo.Error(f"this state knows no model, and {len(found)} DDP modules were registered with it: call "
                              "state.bind(model)")
        self._bind(found[0], self.process_group)

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Queues a bucket; the future gets `bucket.buffer()` with the mean over the ranks in it."""
        if self.clip_norm is None:
            return self._send(bucket)
        if bucket.index() == 0:
            self._held = []
        if not bucket.is_last():
            place = self._place_of(bucket.buffer())
            self._held.append((bucket, torch.futures.Future() if place is None else place.future()))
            return self._held[-1][1]
        held, self._held = self._held, []
        buffers = [*(earlier.buffer() for earlier, _ in held), bucket.buffer()]
        self._failed = None
        try:
            scale_to_norm(buffers, self.clip_norm * self._scale_now())
        except Exception as error:  # the other ranks wait for this step's messages: it begins and tells them
            self._failed = error
        for earlier, done in held:
            self._send(earlier).then(functools.partial(_pass_on, done))
        return self._send(bucket)

    def _send(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        place = self._place_of(bucket.buffer())
        return self._hand_over(bucket) if place is None else self._reduce_on(place, bucket)

    def _hand_over(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """To the worker thread.

        One worker thread, not the caller, which is autograd's own and has the next bucket's gradients to compute. One
        thread alone keeps the collectives in the buckets' order, which is the same on all ranks.
        """
        buffer, first, last = bucket.buffer(), bucket.index() == 0, bucket.is_last()
        done: torch.futures.Future = torch.futures.Future()
        layers, group = self._layers_of(bucket), self._connect()
        self._check_group(group)

        def work() -> None:
            try:
                self._reduce(buffer, layers, group, first, last)
                done.set_result(buffer)
            except Exception as error:
                self._error = error
                done.set_result(buffer)

        raised_later = not last or at_end_of_backward(self._raise)
        self._worker.submit(work)
        return done if raised_later else done.then(self._raise_or_value)

    def _raise(self) -> None:
        """At the end of the backward pass, when all buckets are done."""
        if self._error is not None:
            raise self._error

    def _raise_or_value(self, done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        self._raise()
        return done.value()

    # A step on a GPU

    def _place_of(self, buffer: torch.Tensor) -> Place | None:
        """The GPU that the gradients are on; None for the CPU."""
        if buffer.is_cuda:
            return self._on_gpu.place_of(buffer.device)
        if self._on_gpu.any:  # the model was moved
            self._coder.take_memories(self._on_gpu.memories())
            self._on_gpu.forget()
        return None

    def _memories(self) -> bytes | None:
        """Of all layers, those that buckets on a GPU hold too; None where codecs have none. Waits for the GPU."""
        self._coder.take_memories(self._on_gpu.memories())
        return self._coder.compressor.state("memories") if self._coder.has_memory else None

    def _reduce_on(self, place: Place, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """In the caller's thread: it only queues. After an error a step sends nothing more."""
        began = time.perf_counter()
        buffer, layers, group = bucket.buffer(), self._layers_of(bucket), self._on_gpu.group_of(self)
        done = place.future()
        try:
            if bucket.index() == 0:
                self._begin_on(group, buffer.device, layers)
            if self._error is not None:
                done.set_result(buffer)
            elif self._plain(layers):
                done = all_reduce_later(buffer, group)
                self._count(buffer.nbytes if layers else sparse_bytes(buffer), dist.get_world_size(group))
                if bucket.is_last():
                    key = {**self._key, "seed": seed_of_bucket(self.seed, bucket.index())}
                    self._count(self._on_gpu.end_plain(self._coder.sums, self.squares, key), dist.get_world_size(group))
            else:
                coded = self._on_gpu.bucket(bucket.index(), dict(layers), self.policy, self._agree, self._memories)
                key = {**self._key, "seed": seed_of_bucket(self.seed, bucket.index())}
                self._prepare(layers, group)
                done = coded.reduce(buffer, [gradient for _, gradient in layers], key, lambda: self._restore(layers),
                                    self.squares, bucket.is_last(), self._on_gpu.taking_back, self._coder.share, self._coder.sums)
                self._count(coded.sent, dist.get_world_size(group))
        except Exception as error:
            self._error = error
            done.set_result(buffer)
        if bucket.is_last():
            self._on_gpu.forget(beyond=bucket.index())
        self.last.buckets += 1
        self.last.encode_seconds += time.perf_counter() - began
        raised_later = not bucket.is_last() or at_end_of_backward(self._raise)
        return done if raised_later else done.then(self._raise_or_value)

    def _begin_on(self, group: dist.ProcessGroup, device: torch.device, layers: list[tuple[str, torch.Tensor]]) -> None:
        """A step. Where it cannot begin, the other ranks are told if they ask: when their first bucket is made, as after a load."""
        rank = dist.get_rank(group)
        try:
            self._begin_step(rank, dist.get_world_size(group))
            self._coder.own_memories(rank)
            self._on_gpu.begin_step(self._coder.has_memory)
        except Exception as error:
            if not self._plain(layers) and not self._on_gpu.has(0, dict(layers)):
                self._agree(group, device, error)
            raise

    def _agree(self, group: dist.ProcessGroup, device: torch.device, mine: Exception | None = None) -> None:
        """Raises on all ranks when they are not in the same step of the same run, or `mine` is what went wrong on one. Waits."""
        table = told_by_all([self._digest, FAILED if mine else 0], group, device)
        check_lengths([row[1:] for row in table], mine)
        if len({row[0] for row in table}) > 1:
            raise_difference(self._facts(), group, device)

    def _count(self, bytes_each: int, ranks: int) -> None:
        """What every rank sent to every other."""
        self._sent = [self._sent[rank % len(self._sent)] + bytes_each for rank in range(ranks)]
        self.last.bytes_sent += bytes_each
        self.last.bytes_received += (ranks - 1) * bytes_each

    # A step on the CPU

    def _reduce(self, buffer: torch.Tensor, layers: list[tuple[str, torch.Tensor]], group: dist.ProcessGroup,
                first: bool, last: bool) -> None:
        began = time.perf_counter()
        messages, mine = self._encode(layers, group, first, last)
        encoded = time.perf_counter()
        plain = self._plain(layers)
        if plain or mine:
            lengths = [gradient.nbytes for _, gradient in layers] or [sparse_bytes(buffer)]
        else:
            lengths = [len(message) for message in messages]
        table = self._tell(lengths, mine, group, first, last)
        if plain:
            all_reduce(buffer, group)
            self._finite = self._finite and (not self._coder.has_memory or is_finite(buffer))
            gathered = []
        else:
            gathered = swap([as_bytes(messages, _CPU)] * len(table), [sum(row) for row in table], group)
        arrived = time.perf_counter()
        if not plain:
            telling = HostTelling(self.squares, layers)
            telling.see_own(messages, self._coder)
            try:
                self._decode(layers, table, gathered)
                telling.see_average()
            finally:
                self._count(telling.exchange(group, self._key) if last else 0, len(table))
            self._restore(layers)
            if self._coder.has_memory:
                self._finite = self._finite and all(bool(gradient.isfinite().all()) for _, gradient in layers)
        elif last:
            self._count(HostTelling(self.squares, []).exchange(group, self._key), len(table))
        if last and not self._finite:
            self._coder.take_memories_back()
        self.last.buckets += 1
        self.last.encode_seconds += encoded - began
        self.last.wire_seconds += arrived - encoded
        self.last.decode_seconds += time.perf_counter() - arrived

    def _prepare(self, layers: list[tuple[str, torch.Tensor]], group: dist.ProcessGroup) -> None:
        """What is done to gradients before they are encoded."""
        if self._divides:
            for _, gradient in layers:
                gradient.div_(self._scale)
        if self.squares is not None:
            for name, gradient in layers:
                self.squares.to_units(name, gradient)
        if self.rate_in_memory is not None:
            for name, gradient in layers:
                require_f32("rate_in_memory", name, gradient)
                gradient.mul_(self._rate)

    def _restore(self, layers: list[tuple[str, torch.Tensor]]) -> None:
        """What is done to them when the mean is in them."""
        if self.rate_in_memory is not None:
            for _, gradient in layers:
                gradient.div_(self._rate)
        if self._divides:
            for _, gradient in layers:
                gradient.mul_(self._scale)

    @property
    def _divides(self) -> bool:
        """Memories are of gradients without their scale."""
        return self._scale != 1 and self._coder.has_memory

    def _plain(self, layers: list[tuple[str, torch.Tensor]]) -> bool:
        """Whether a bucket goes by all-reduce: in a warm-up, or because it is sparse."""
        return self.last.step < self.start_step or not layers

    def _begin_step(self, rank: int, ranks: int) -> None:
        self._drop_step()
        self._error = None
        facts = [self._coder.digest, self.seed, self.step, self.channel, self.start_step, self.clip_norm, facts_of(self.squares)]
        self._digest = digest_of(facts)
        self._key = {"seed": self.seed, "step": self.step & 0xFFFFFFFF, "worker": rank, "channel": self.channel}
        self.last = StepLog(self.step)
        self.step += 1  # on all ranks, whatever goes wrong on one
        self._coder.sums.begin_step(ranks)
        self._coder.share, self._coder.next_share = self._share_of(self.last.step), self._share_of(self.step)
        self._scale, self._rate, self._finite = self._scale_now(), self._rate_now(), True
        self._digest = digest_of([*facts, self._rate, self._scale])
        if self._failed is not None:
            raise self._failed
        if self.squares is not None:
            self.squares.begin(self.last.step - self.start_step, ranks, self._rate * (1.0 if self._divides else self._scale))

    def _drop_step(self) -> None:
        """One that an error cut short: memories and sums become what they were before it."""
        self._coder.drop_step()
        self._on_gpu.drop_step(self._coder.sums)

    def _settle(self) -> None:
        """The same between steps, behind what the worker thread still has to do: it may wait for the messages of slower ranks."""
        self._worker.submit(lambda: None).result()
        self._drop_step()

    def _scale_now(self) -> float:
        if self.scale is None:
            raise atomo.Error("the scale of this state was a function, which no pickle holds: set state.scale, as to scaler.get_scale")
        return scale_from(self.scale() if callable(self.scale) else self.scale)

    def _rate_now(self) -> float:
        """What gradients are multiplied by before a memory has them."""
        given = self.rate_in_memory
        if given is None:
            return 1.0
        if isinstance(given, float) and math.isnan(given):
            raise atomo.Error("the rate_in_memory of this state was a function, which no pickle holds: set state.rate_in_memory")
        return max(rate_from(given() if callable(given) else given), LEAST_RATE)

    def _share_of(self, step: int) -> float:
        """Of the budget, that a step has."""
        share = self.budget_share
        value = share(step) if callable(share) else share[min(step, len(share) - 1)] if isinstance(share, Sequence) else share
        return number_from(value, f"budget_share of step {step}", 1 / MOST_SHARE, MOST_SHARE, "a number from 1/1024 to 1024")

    def _encode(self, layers: list[tuple[str, torch.Tensor]], group: dist.ProcessGroup, first: bool,
                last: bool) -> tuple[list[bytes], Exception | None]:
        """A message a layer, or what went wrong: the other ranks have to hear of it."""
        try:
            if first:
                self._begin_step(dist.get_rank(group), dist.get_world_size(group))
            if self._error is not None:
                return [], self._error
            if self._plain(layers):
                messages = []
            else:
                self._prepare(layers, group)
                messages = self._coder.encode(layers, self._key)
            if last:
                self._coder.end_step()
            self.last.price, self.last.grid_step = self.compressor.prices
            return messages, None
        except Exception as error:
            return [], error

    def _tell(self, lengths: list[int], mine: Exception | None, group: dist.ProcessGroup, first: bool,
              last: bool) -> list[list[int]]:
        """All ranks' lengths. With those of the first bucket goes what the ranks have to agree on, with those of
        the last what each has learnt."""
        words = [self._digest] * first + ([FAILED] * len(lengths) if mine else lengths)
        learnt = words_of(self.compressor.state("learnt")) if last else []
        # What layers have learnt is as much everywhere where policies are known to agree, as they are behind a step's
        # first bucket.
        at_once = PRICE_WORDS if first else len(learnt)
        table = told_by_all(words + learnt[:at_once], group, _CPU)
        rows = [row[int(first):][:len(lengths)] for row in table]
        check_lengths(rows, mine)
        if first and len({row[0] for row in table}) > 1:
            raise_difference(self._facts(), group, _CPU)
        if learnt:
            rest = told_by_all(learnt[at_once:], group, _CPU) if learnt[at_once:] else [[]] * len(table)
            self._coder.settle_step([bytes_of(row[len(words):] + more) for row, more in zip(table, rest)])
        told = 8 * (len(words) + len(learnt))
        own, sent = dist.get_rank(group), [told + sum(row) for row in rows]
        self._sent = [self._sent[rank % len(self._sent)] + bytes_ for rank, bytes_ in enumerate(sent)]
        self.last.length_bytes += told
        self.last.bytes_sent += sent[own]
        self.last.bytes_received += sum(sent) - sent[own]
        return rows

    def _facts(self) -> dict[str, Any]:
        """What all ranks have to agree on."""
        return {"seed": self.seed, "step": self.last.step, "channel": self.channel, "start_step": self.start_step,
                "clip_norm": self.clip_norm, "rate_in_memory": self._rate, "scale": self._scale, "policy": self.policy,
                "squares": facts_of(self.squares), "layers": self._coder.table()}

    def _decode(self, layers: list[tuple[str, torch.Tensor]], table: list[list[int]],
                gathered: list[torch.Tensor]) -> None:
        """Writes the mean over the ranks into the gradients, message after message in rank order."""
        ranks = len(table)
        messages = [part.split(lengths) for part, lengths in zip(gathered, table)]

        def write(layer: tuple[str, torch.Tensor, Iterable[torch.Tensor]]) -> None:
            name, gradient, of_ranks = layer
            mean = Accumulator(gradient, self._coder.sums.moving(name, gradient) if name in self._coder.differing else None)
            self._coder.decode_add_all(name, list(of_ranks), out=mean.sum, alpha=1 / ranks)
            mean.finish(**{**self._key, "worker": ranks, "tensor": self._coder.numbers[name]})

        self._coder.each(write, [(*layer, of_ranks) for layer, of_ranks in zip(layers, zip(*messages))])


def scale_from(value: Any) -> float:
    """That of a loss. Raises `atomo.Error`."""
    return number_from(value, "scale", sys.float_info.min, sys.float_info.max, "a number above 0")


def rate_from(value: Any) -> float:
    """What a memory's steps are multiplied by. Raises `atomo.Error`."""
    return number_from(value, "rate_in_memory", 0, sys.float_info.max, "a part of the highest learning rate, from 0 to 1,")


def is_finite(buffer: torch.Tensor) -> bool:
    """Of a sparse one, its values."""
    return bool((buffer.coalesce().values() if buffer.is_sparse else buffer).isfinite().all())


def scale_to_norm(buffers: Sequence[torch.Tensor], most: float) -> None:
    """Scales the buffers down, all by one factor, where the norm of all of them together is above `most`. Those that are not all
    finite stay what they are. Waits for no device."""
    values = [buffer.coalesce().values() if buffer.is_sparse else buffer for buffer in buffers]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each, dtype=torch.float64) for each in values]))
    factor = torch.where(norm.isfinite(), (most / norm).clamp(max=1), 1)
    for buffer in buffers:
        buffer.mul_(factor)


def _pass_on(to: torch.futures.Future[torch.Tensor], done: torch.futures.Future[torch.Tensor]) -> None:
    try:
        to.set_result(done.value())
    except Exception as error:
        to.set_exception(error)
