# SPDX-License-Identifier: Apache-2.0
"""A communication hook for DistributedDataParallel: every gradient travels as a message of atomo.

A step of W workers: as a bucket of gradients becomes ready, each parameter's gradient is encoded under its own name,
the lengths and then the messages go to all ranks, and every rank adds all of them, in rank order, to the
mean. All ranks decode the same bytes in the same order, so replicas stay equal to the bit.

On a GPU a bucket is one message, and the host queues its way from the gradients to their mean without waiting for any of it.
"""

# No `from __future__ import annotations` here: DDP compares those of a hook with the types themselves.
import dataclasses
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import atomo

from .._device import require_cuda
from .bucket import DeviceBuckets
from .coder import Coder
from .device import Place, seed_of_bucket
from .groups import (check_same_ranks, drawn_before, group_like, group_of, is_alive, raise_difference,
                     registered_with)
from .layers import Layer, Parameters, device_of, joined, layers_of, named, trained
from .squares import HostTelling, Squares, facts_of
from .step import (PRICE_WORDS, StepLog, at_end_of_backward, bytes_of, check_integers, digest_of, told_by_all,
                   words_of)
from .wire import FAILED, Accumulator, all_reduce, all_reduce_later, as_bytes, check_lengths, sparse_bytes, swap

_CPU = torch.device("cpu")
_states: "weakref.WeakSet[DDPState]" = weakref.WeakSet()  # of this process


class DDPState:
    """What `ddp_hook` needs to know and remembers: the policy, the step's number, what was learnt of the price.

    Everything is kept by the parameters' names, so DDP may put them into other buckets at any time. Names are those of
    the plain module: what torch.compile, DDP, FSDP and checkpoint_wrapper put in ("_orig_mod.", "module.", ...) is left
    out, so rules and checkpoints hold with and without them. One state serves one DDP model, on every rank one
    with the same arguments: in each step the ranks compare seed, step, channel, policy and layers, and all raise an
    error that tells a difference.

    Args:
        model: the module (before or after DDP wrapped it), or names and parameters as `named_parameters()` gives
            them. Parameters that need no gradient are left out. f32, f16 and bf16, all on the CPU or on one GPU. Where
            they are and of which type counts when gradients come, so wrappers of hooks that change the type
            (`fp16_compress_wrapper`) may stand around `ddp_hook`, and the model may move before it is trained. When
            None, or after unpickling, it is the DDP module that the state was registered with, found at the first
            gradients.
        policy: one codec for all, or rules by name: `"*.bias=identity:dtype=f32; *=atomo:bits=0.5"`. A rule that
            matches no layer is warned of. `cap=` bounds what a single step can cost; without it a step whose
            gradients are suddenly 10^4 times larger takes some 20 times its budget, which later steps make up for.
        process_group: of DDP. When None that of a DDP model, else the default group. A group of the same ranks,
            backend and time limit is made beside it (DDP itself uses its own while messages are on their way), so all
            its ranks make their states in the same order. After `destroy_process_group` a new one is made by itself.
        seed: of the run's draws, the same on all ranks; the rank is the worker's number, so workers draw
            independently.
        channel: separates the draws of two models with one seed.
        threads: that encode the layers of a bucket and add up the ranks' messages, each a layer of its own. Where one
            layer is most of the model most of the work is one thread's. The bytes do not depend on them.
        start_step: steps before this one send gradients as they are, by all-reduce (PowerSGD's `start_powerSGD_iter`).
        squares: an `atomo.torch.Squares` that is told of the squares of gradients, for an optimiser such as
            `atomo.torch.AdamW`. It is saved with the state.

    Raises:
        atomo.Error: for a policy, a parameter, a key or a group that cannot work.

    A gradient that is not finite makes its layer NaN on all ranks, for that step alone, so a GradScaler skips the step
    everywhere. Sparse gradients, which have no codec, travel by all-reduce. A message has a head of some 80 bytes:
    models of few parameters, or many tiny layers, take more than their budget, which is warned of.

    On a GPU each bucket is a model of its own: one encode, one all-gather, one decode of all ranks' messages, on streams
    beside back-propagation's and on DDP's own process group. Where every layer has `cap=` or a codec of fixed size
    (`Compressor.wire_bytes`) a step waits for nothing and takes no memory once DDP has settled its buckets; otherwise it
    waits once a bucket, for the messages' lengths, and sends each as long as the longest. Budgets and caps hold for each
    bucket, whose price is found in its message, so `last.price` stays 0; the ranks of sketches are learnt anew after a
    checkpoint. What fails on the GPU is raised in a later step. The path has not been run on a GPU yet: the tests run it
    on the CPU, with a stand-in for streams and events.
    """

    def __init__(self, model: Parameters | None = None, policy: str | atomo.Codec = "atomo:bits=0.5", *,
                 process_group: dist.ProcessGroup | None = None, seed: int = 0, channel: int = 0, threads: int = 1,
                 start_step: int = 0, squares: Squares | None = None):
        check_integers(seed=seed, channel=channel, threads=threads, start_step=start_step)
        self.seed, self.channel, self.start_step, self.squares = seed, channel, start_step, squares
        self._coder = Coder(str(policy), threads)
        self._sent = [0]  # by each rank in all steps so far, of earlier runs too
        self.step = 0  # steps begun
        self.last = StepLog(0)
        self._start(process_group)
        if model is not None:
            self._bind(model, process_group)

    def _start(self, process_group: dist.ProcessGroup | None) -> None:
        """What a process has of its own and no checkpoint holds."""
        self.process_group = process_group
        self._group: dist.ProcessGroup | None = None
        self._checked: dist.ProcessGroup | None = None  # the group that was compared with DDP's
        self._parameters: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        self._error: Exception | None = None  # of an earlier bucket of this step
        self._on_gpu = DeviceBuckets()
        self._worker = ThreadPoolExecutor(1, "atomo-ddp")
        _states.add(self)

    def bind(self, model: Parameters, process_group: dist.ProcessGroup | None = None) -> "DDPState":
        """Gives the state the parameters (and the group) of this process. Returns the state itself.

        Between steps, when DDP wraps the model anew: layers that need gradients now are added behind the others, and
        step and price go on, where a new state with the same seed would begin at step 0 and draw what was drawn before.

        Raises:
            atomo.Error: when a layer that the state knows is missing or has another shape.
        """
        self._bind(model, process_group)
        return self

    def _bind(self, model: Parameters, process_group: dist.ProcessGroup | None) -> None:
        parameters = trained(model)
        known = self._coder.layers
        frozen = {name: p for name, p in named(model).items() if name in known and name not in parameters}
        layers = joined(known, layers_of({**frozen, **parameters}), ("the state", "the model"))
        self._coder.drop_step()
        device = device_of(parameters)
        if device.type == "cuda":
            require_cuda()
        self._coder.take(layers)
        self._start(group_of(model, process_group))
        # By identity, which holding them keeps from passing to others.
        self._parameters, self._names = parameters, {id(p): name for name, p in parameters.items()}
        if self.squares is not None:
            self.squares.bind(self._names)
        for said in [*self._advice(), *drawn_before(self, _states)] if layers.keys() != known.keys() else []:
            warnings.warn(said, stacklevel=3)
        if dist.is_initialized() and device.type == "cpu":
            self._connect()

    def _advice(self) -> list[str]:
        """On the CPU a message is one layer's."""
        return self._coder.advice(all(p.device.type == "cpu" for p in self._parameters.values()))

    def set_policy(self, policy: str | atomo.Codec) -> None:
        """Another policy or budget from the next step on; to be called between steps, on all ranks.

        The step's number goes on, so nothing is drawn twice. What was learnt of the price is forgotten, as it was
        learnt for another budget. The policy of a checkpoint and that of the state that takes it have to be the same.

        Raises:
            atomo.Error: for a policy that cannot work; the state is then as it was.
        """
        self._coder.set_policy(str(policy))
        self._on_gpu.forget()
        for said in self._advice():
            warnings.warn(said, stacklevel=2)

    # What it holds

    @property
    def policy(self) -> str:
        """As it was given."""
        return self._coder.policy

    @property
    def layers(self) -> dict[str, Layer]:
        """Shapes and dtypes by name."""
        return self._coder.layers

    @property
    def compressor(self) -> atomo.Compressor:
        """Of these layers.

        Raises:
            atomo.Error: while the state knows no model.
        """
        if self._coder.compressor is None:
            raise atomo.Error("this state knows no model yet: give it one, by bind(model), or register it with DDP")
        return self._coder.compressor

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Everything a run needs to go on, as plain values and bytes. To be called between steps.

        It holds what every rank has learnt, and is the same on all ranks: one rank's checkpoint serves all. Memories
        (`ef+`) are the rank's own: they come back where each rank saves and loads its own, and else begin at zero.
        """
        self._on_gpu.look()
        return {"policy": self.policy, "layers": self._coder.table(), "seed": self.seed, "channel": self.channel,
                "start_step": self.start_step, "step": self.step, "bytes_sent": list(self._sent),
                "compressor": list(self._coder.learnt), "memories": self._coder.memories(),
                "squares": self.squares and self.squares.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken, on each rank where that rank was, to the bit. Of another number
        of ranks, rank r goes on from what rank r modulo that number had learnt.

        Raises:
            atomo.Error: for another policy, other layers, or bytes that are no saved state.
        """
        self._coder.load(state["policy"], state["layers"], state["compressor"], state["memories"])
        if self.squares is not None and state["squares"] is not None:
            self.squares.load_state_dict(state["squares"])
        self._sent = list(state["bytes_sent"])
        self.seed, self.channel, self.step = state["seed"], state["channel"], state["step"]
        self.start_step = state["start_step"]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.state_dict(), "threads": self._coder.threads, "last": self.last, "squares_object": self.squares}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.last, self.squares = state["last"], state["squares_object"]
        self._coder = Coder(state["policy"], state["threads"])
        self._start(None)
        self.load_state_dict(state)

    # Figures

    @property
    def bytes_sent(self) -> int:
        """By this rank in all steps so far, of earlier runs too."""
        group = self._group or self._on_gpu.group
        rank = dist.get_rank(group) if group is not None and is_alive(group) else 0
        return self._sent[rank % len(self._sent)]

    def log(self) -> dict[str, Any]:
        """The totals and the last step's figures, to be logged as JSON.

        For TensorBoard: `for name, value in state.log()["last"].items(): writer.add_scalar(name, value, step)`; for
        Weights & Biases: `wandb.log(state.log()["last"])`.
        """
        return {"steps": self.step, "bytes_sent": self.bytes_sent, "last": dataclasses.asdict(self.last)}

    def __repr__(self) -> str:
        layers = f"{len(self.layers)} layers of {self.compressor.elements} elements" if self.layers else "no model yet"
        return f"atomo.torch.DDPState({layers}, {self.policy!r}, seed={self.seed}, step={self.step})"

    # A step

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
        return self._on_gpu.place_of(buffer.device) if buffer.is_cuda else None

    def _reduce_on(self, place: Place, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """In the caller's thread: it only queues. After an error a step sends nothing more."""
        began = time.perf_counter()
        buffer, layers, group = bucket.buffer(), self._layers_of(bucket), self._on_gpu.group_of(self)
        if bucket.index() == 0:
            self._begin_step(dist.get_rank(group), dist.get_world_size(group))
        done = place.future()
        try:
            if self._error is not None:
                done.set_result(buffer)
            elif self._plain(layers):
                done = all_reduce_later(buffer, group)
                self._count(buffer.nbytes if layers else sparse_bytes(buffer), dist.get_world_size(group))
            else:
                coded = self._on_gpu.bucket(bucket.index(), dict(layers), self.policy, self._agree)
                key = {**self._key, "seed": seed_of_bucket(self.seed, bucket.index())}
                self._prepare(layers, group)
                done = coded.reduce(buffer, [gradient for _, gradient in layers], key, self._restore, self.squares,
                                    bucket.is_last())
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

    def _agree(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Raises on all ranks when they are not in the same step of the same run. Waits."""
        if len({row[0] for row in told_by_all([self._digest], group, device)}) > 1:
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
            gathered = []
        else:
            gathered = swap([as_bytes(messages, _CPU)] * len(table), [sum(row) for row in table], group)
        arrived = time.perf_counter()
        if not plain:
            telling = HostTelling(self.squares, layers)
            telling.see_own(messages, self._coder)
            try:
                self._decode(layers, table, gathered)
                self._restore()
                telling.see_average()
            finally:
                self._count(telling.exchange(group, self._key) if last else 0, len(table))
        self.last.buckets += 1
        self.last.encode_seconds += encoded - began
        self.last.wire_seconds += arrived - encoded
        self.last.decode_seconds += time.perf_counter() - arrived

    def _prepare(self, layers: list[tuple[str, torch.Tensor]], group: dist.ProcessGroup) -> None:
        """What is done to gradients before they are encoded."""

    def _restore(self) -> None:
        """What is done to them when the mean is in them."""

    def _plain(self, layers: list[tuple[str, torch.Tensor]]) -> bool:
        """Whether a bucket goes by all-reduce: in a warm-up, or because it is sparse."""
        return self.last.step < self.start_step or not layers

    def _begin_step(self, rank: int, ranks: int) -> None:
        self._coder.drop_step()
        self._error = None
        self._digest = digest_of([self._coder.digest, self.seed, self.step, self.channel, self.start_step,
                                  facts_of(self.squares)])
        self._key = {"seed": self.seed, "step": self.step & 0xFFFFFFFF, "worker": rank, "channel": self.channel}
        self.last = StepLog(self.step)
        if self.squares is not None:
            self.squares.begin(self.step - self.start_step, ranks)
        self.step += 1

    def _encode(self, layers: list[tuple[str, torch.Tensor]], group: dist.ProcessGroup, first: bool,
                last: bool) -> tuple[list[bytes], Exception | None]:
        """A message a layer, or what went wrong: the other ranks have to hear of it."""
        try:
            if first:
                self._begin_step(dist.get_rank(group), dist.get_world_size(group))
            if self._error is not None:
                return [], self._error
            self._prepare(layers, group)
            messages = [] if self._plain(layers) else self._coder.encode(layers, self._key)
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
        if first and len({row[0] for row in table}) > 1:
            raise_difference(self._facts(), group, _CPU)
        rows = [row[int(first):][:len(lengths)] for row in table]
        check_lengths(rows, mine)
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
                "policy": self.policy, "squares": facts_of(self.squares), "layers": self._coder.table()}

    def _decode(self, layers: list[tuple[str, torch.Tensor]], table: list[list[int]],
                gathered: list[torch.Tensor]) -> None:
        """Writes the mean over the ranks into the gradients, message after message in rank order."""
        ranks = len(table)
        messages = [part.split(lengths) for part, lengths in zip(gathered, table)]

        def write(layer: tuple[str, torch.Tensor, Iterable[torch.Tensor]]) -> None:
            name, gradient, of_ranks = layer
            mean = Accumulator(gradient)
            self._coder.decode_add_all(name, list(of_ranks), out=mean.sum, alpha=1 / ranks)
            mean.finish(**{**self._key, "worker": ranks, "tensor": self._coder.numbers[name]})

        self._coder.each(write, [(*layer, of_ranks) for layer, of_ranks in zip(layers, zip(*messages))])


def ddp_hook(state: DDPState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For `DistributedDataParallel.register_comm_hook(state, ddp_hook)`: the mean of the ranks' decoded gradients.

    Returns at once; the future holds `bucket.buffer()` when the mean is in it. What prevented it is raised by
    `backward()` at its end, on every rank, as the exception that it was: `atomo.Error` for what cannot be encoded or
    agreed on, torch's own for ranks that are gone. What the gradients hold is then unspecified.
    """
    if not isinstance(state, DDPState):
        raise atomo.Error(f"the state of ddp_hook is {state!r}: make an atomo.torch.DDPState(model, policy) and give "
                          "that to register_comm_hook")
    return state.reduce(bucket)
