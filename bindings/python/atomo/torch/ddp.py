# SPDX-License-Identifier: Apache-2.0
"""A communication hook for DistributedDataParallel: every gradient travels as a message of atomo.

A step of W workers: as a bucket of gradients becomes ready, each parameter's gradient is encoded under its own name,
the lengths and then the messages go to all ranks, and every rank adds all of them, in rank order, to the
mean. All ranks decode the same bytes in the same order, so replicas stay equal to the bit.
"""

# No `from __future__ import annotations` here: DDP compares those of a hook with the types themselves.
import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

import atomo

from .wire import DTYPES, FAILED, MAX_WORKERS, Accumulator, as_bytes, check_lengths, swap

Parameters = torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]


@dataclasses.dataclass
class StepLog:
    """What one step came to on this rank. What it sends is counted once: each of the other ranks gets all of it."""

    step: int  #: its number, from 0
    buckets: int = 0  #: of DDP
    bytes_sent: int = 0  #: messages, and the next line
    length_bytes: int = 0  #: the table of lengths, 8 a parameter
    bytes_received: int = 0  #: the same from all the others together
    encode_seconds: float = 0.0
    wire_seconds: float = 0.0  #: waiting for slower ranks included
    decode_seconds: float = 0.0
    price: float = 0.0  #: of the layers under a budget, 0 in the first step
    grid_step: float = 0.0  #: the same for coordinates on a grid


class DDPState:
    """What `ddp_hook` needs to know and remembers: the policy, the step's number, what was learnt of the price.

    Everything is kept by the parameters' names, so DDP may put them into other buckets at any time. One state serves
    one DDP model. Of a rank's own: `state_dict` (or a pickle) of every rank belongs into its own checkpoint for a
    run that goes on to the bit; another rank's state goes on too, from a price that was learnt there.

    Args:
        model: the module (before or after DDP wrapped it), or names and parameters as `named_parameters()` gives
            them. Parameters that need no gradient are left out. f32, f16 and bf16, all on the CPU or on one GPU.
        policy: one codec for all, or rules by name: `"*.bias=identity:dtype=f32; *=atomo:bits=0.5"`.
        process_group: of DDP, the default group when None. A group of the same ranks is made beside it (DDP itself
            uses its own while messages are on their way), so all its ranks make their states in the same order.
        seed: of the run's draws, the same on all ranks; the rank is the worker's number, so workers draw
            independently.
        channel: separates the draws of two models with one seed.
        threads: that encode a layer; the bytes do not depend on it.

    Raises:
        atomo.Error: for a policy, a parameter or a group that cannot work.

    On a GPU the same calls run on a stream of their own, with the gradients where they are; that path has not been
    run yet.
    """

    def __init__(self, model: Parameters, policy: str | atomo.Codec = "atomo:bits=0.5", *,
                 process_group: dist.ProcessGroup | None = None, seed: int = 0, channel: int = 0, threads: int = 1):
        parameters = _trained(model)
        self.policy, self.seed, self.channel, self.threads = str(policy), seed, channel, threads
        self.layers = {name: (tuple(p.shape), DTYPES[p.dtype]) for name, p in parameters.items()}
        self.compressor = atomo.Compressor({name: p.detach() for name, p in parameters.items()}, policy,
                                           threads=threads, device=_device_of(parameters).type)
        self.bytes_sent = 0  # by all steps so far, of earlier runs too
        self.step = 0  # steps begun
        self.last = StepLog(0)
        self._start(process_group)
        self._know(parameters)
        if dist.is_initialized():
            self._connect()

    def _start(self, process_group: dist.ProcessGroup | None) -> None:
        """What a process has of its own and no checkpoint holds."""
        self.process_group = process_group
        self._group: dist.ProcessGroup | None = None
        self._names: dict[int, str] = {}
        self._numbers = {name: i for i, name in enumerate(self.layers)}
        self._in_step = False
        self._error: Exception | None = None  # of an earlier bucket of this step
        self._stream: torch.cuda.Stream | None = None
        self._worker = ThreadPoolExecutor(1, "atomo-ddp")

    def bind(self, model: Parameters, process_group: dist.ProcessGroup | None = None) -> "DDPState":
        """Gives an unpickled state the parameters (and the group) of this process. Returns the state itself.

        Raises:
            atomo.Error: when names, shapes or types are not those that the state was made for.
        """
        parameters = _trained(model)
        self._check_layers({name: (tuple(p.shape), DTYPES[p.dtype]) for name, p in parameters.items()})
        self._know(parameters)
        self.process_group, self._group = process_group, None
        if dist.is_initialized():
            self._connect()
        return self

    def _know(self, parameters: dict[str, torch.Tensor]) -> None:
        """By identity, which holding them keeps from passing to others."""
        self._parameters, self._names = parameters, {id(p): name for name, p in parameters.items()}
        self._device = _device_of(parameters)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Everything a run needs to go on, as plain values and bytes. To be called between steps."""
        return {"policy": self.policy, "layers": dict(self.layers), "seed": self.seed, "channel": self.channel,
                "step": self.step, "bytes_sent": self.bytes_sent, "compressor": self.compressor.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken.

        Raises:
            atomo.Error: for another policy, other layers, or bytes that are no saved state.
        """
        if state["policy"] != self.policy:
            raise atomo.Error(f"the saved state is of the policy '{state['policy']}', this one's is '{self.policy}'")
        self._check_layers(state["layers"])
        self.compressor.load_state(state["compressor"])
        self.seed, self.channel = state["seed"], state["channel"]
        self.step, self.bytes_sent = state["step"], state["bytes_sent"]

    def __getstate__(self) -> dict[str, Any]:
        kept = ("policy", "seed", "channel", "threads", "layers", "compressor", "bytes_sent", "step", "last")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start(None)

    def _check_layers(self, layers: Mapping[str, tuple]) -> None:
        for name in [*self.layers, *layers]:
            mine, theirs = self.layers.get(name), layers.get(name)
            if mine is None or theirs is None or mine != (tuple(theirs[0]), theirs[1]):
                raise atomo.Error(f"the state has {_shown(name, mine)}, the other side {_shown(name, theirs)}")

    # Figures

    def log(self) -> dict[str, Any]:
        """The totals and the last step's figures, to be logged as JSON."""
        return {"steps": self.step, "bytes_sent": self.bytes_sent, "last": dataclasses.asdict(self.last)}

    # A step

    def _connect(self) -> dist.ProcessGroup:
        """The group of this state's own collectives. DDP issues its own on the same ranks (the map of unused
        parameters, buffers) while the worker thread is at work; in one group their order could differ by rank."""
        if self._group is None:
            group = self.process_group or dist.group.WORLD
            if dist.get_world_size(group) > MAX_WORKERS:
                raise atomo.Error(f"{dist.get_world_size(group)} workers: at most {MAX_WORKERS} are supported")
            self._group = dist.new_group(dist.get_process_group_ranks(group), use_local_synchronization=True)
        return self._group

    def _layers_of(self, bucket: dist.GradBucket) -> list[tuple[str, torch.Tensor]]:
        """Names and gradients of a bucket, in the bucket's order."""
        if bucket.buffer().is_sparse:
            raise atomo.Error("a bucket's gradient is sparse, which has no codec: make that layer with sparse=False")
        if not self._names:
            raise atomo.Error("this state was unpickled and knows no parameters yet: call state.bind(model) first")
        layers = []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            name = self._names.get(id(parameter))
            if name is None:
                raise atomo.Error(f"a parameter of shape {list(parameter.shape)} is not among those this state was "
                                  "made for: make it from the model that DDP wraps")
            layers.append((name, gradient))
        return layers

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Hands a bucket to the worker thread; the future gets `bucket.buffer()` with the mean over the ranks in it.

        One worker thread, not the caller, which is autograd's own and has the next bucket's gradients to compute. One
        thread alone keeps the collectives in the buckets' order, which is the same on all ranks.
        """
        buffer, first, last = bucket.buffer(), bucket.index() == 0, bucket.is_last()
        cuda = buffer.is_cuda
        done: torch.futures.Future = torch.futures.Future(devices=[buffer.device] if cuda else None)
        ready = torch.cuda.current_stream(buffer.device).record_event() if cuda else None
        group, layers = self._connect(), self._layers_of(bucket)

        def work() -> None:
            try:
                with self._on_stream(buffer, ready):
                    self._reduce(layers, group, first, last)
                    done.set_result(buffer)
            except Exception as error:
                self._error = error
                done.set_exception(error)

        self._worker.submit(work)
        # DDP reads the future from C++, where an exception set on it is a value like any other: only one raised by a
        # callback arrives as an error, with its message.
        return done.then(lambda future: future.value())

    @contextlib.contextmanager
    def _on_stream(self, buffer: torch.Tensor, ready: torch.cuda.Event | None) -> Iterator[None]:
        """On a GPU, the state's own stream behind the gradients; nothing on the CPU."""
        if ready is None:
            yield
            return
        self._stream = self._stream or torch.cuda.Stream(buffer.device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            buffer.record_stream(self._stream)
            yield

    def _reduce(self, layers: list[tuple[str, torch.Tensor]], group: dist.ProcessGroup, first: bool,
                last: bool) -> None:
        began = time.perf_counter()
        messages, mine = self._encode(layers, dist.get_rank(group), first, last)
        encoded = time.perf_counter()
        lengths, gathered = self._gather(messages, mine, len(layers), group)
        arrived = time.perf_counter()
        self._decode(layers, lengths, gathered)
        self.last.buckets += 1
        self.last.encode_seconds += encoded - began
        self.last.wire_seconds += arrived - encoded
        self.last.decode_seconds += time.perf_counter() - arrived

    def _begin_step(self, rank: int) -> None:
        if self._in_step:  # a step that an error cut short
            self.compressor.end_step()
        self._error = None
        self._key = {"seed": self.seed, "step": self.step & 0xFFFFFFFF, "worker": rank, "channel": self.channel}
        self.compressor.begin_step(**self._key)
        self.last = StepLog(self.step, price=self.compressor.price, grid_step=self.compressor.grid_step)
        self._in_step = True
        self.step += 1

    def _encode(self, layers: list[tuple[str, torch.Tensor]], rank: int, first: bool,
                last: bool) -> tuple[list[bytes | torch.Tensor], Exception | None]:
        """A message a layer, or what went wrong: the other ranks have to hear of it."""
        try:
            if first:
                self._begin_step(rank)
            if self._error is not None:
                return [], self._error
            messages = [self.compressor.encode_layer(name, gradient) for name, gradient in layers]
            if last:
                self._in_step = False
                self.compressor.end_step()
            return messages, None
        except Exception as error:
            return [], error

    def _gather(self, messages: list[bytes | torch.Tensor], mine: Exception | None, count: int,
                group: dist.ProcessGroup) -> tuple[list[list[int]], list[torch.Tensor]]:
        """All ranks' lengths, and all ranks' messages behind one another."""
        device, ranks = self._device, dist.get_world_size(group)
        own = torch.tensor([FAILED] * count if mine else [len(m) for m in messages], device=device)
        lengths = torch.empty(ranks * count, dtype=own.dtype, device=device)
        dist.all_gather_into_tensor(lengths, own, group=group)
        table = lengths.view(ranks, count).tolist()
        check_lengths(table, mine)
        sizes = [sum(row) for row in table]
        gathered = swap([as_bytes(messages, device)] * ranks, sizes, group)
        sent = own.nbytes + sum(map(len, messages))
        self.last.length_bytes += own.nbytes
        self.last.bytes_sent += sent
        self.last.bytes_received += ranks * own.nbytes + sum(sizes) - sent
        self.bytes_sent += sent
        return table, gathered

    def _decode(self, layers: list[tuple[str, torch.Tensor]], table: list[list[int]],
                gathered: list[torch.Tensor]) -> None:
        """Writes the mean over the ranks into the gradients, message after message in rank order."""
        ranks = len(table)
        messages = [part.split(lengths) for part, lengths in zip(gathered, table)]
        for i, (name, gradient) in enumerate(layers):
            mean = Accumulator(gradient)
            # A model on a GPU goes by shapes where the host sees no message, and two layers of one shape may have two
            # codecs; the layer's own codec knows what to expect.
            on_gpu = gradient.is_cuda
            decode_add = self.compressor.codec(name).decode_add if on_gpu else self.compressor.decode_layer_add
            for of_rank in messages:
                decode_add(of_rank[i], out=mean.sum, alpha=1 / ranks)
            mean.finish(**{**self._key, "worker": ranks, "tensor": self._numbers[name]})


def ddp_hook(state: DDPState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For `DistributedDataParallel.register_comm_hook(state, ddp_hook)`: the mean of the ranks' decoded gradients.

    Returns at once; the future holds `bucket.buffer()` when the mean is in it, or the error that prevented it, which
    `backward()` then raises as a RuntimeError with the library's message, on every rank.
    """
    return state.reduce(bucket)


def _trained(model: Parameters) -> dict[str, torch.Tensor]:
    """Names and parameters that get a gradient. A DDP module's names are those of the module in it."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        model = model.module
    if isinstance(model, torch.nn.Module):
        model = model.named_parameters()
    parameters = {name: p for name, p in dict(model).items() if p.requires_grad}
    if not parameters:
        raise atomo.Error("there is no parameter that requires a gradient")
    for name, parameter in parameters.items():
        if parameter.dtype not in DTYPES:
            raise atomo.Error(f"'{name}' is {parameter.dtype}: float32, float16 and bfloat16 are accepted")
    return parameters


def _device_of(parameters: Mapping[str, torch.Tensor]) -> torch.device:
    devices = {p.device for p in parameters.values()}
    if len(devices) != 1 or next(iter(devices)).type not in ("cpu", "cuda"):
        found = ", ".join(sorted(map(str, devices)))
        raise atomo.Error(f"the parameters are on {found}: all have to be on the CPU or on one CUDA device")
    return next(iter(devices))


def _shown(name: str, layer: tuple | None) -> str:
    return f"no layer '{name}'" if layer is None else f"'{name}' as {layer[1]} {list(layer[0])}"
