# SPDX-License-Identifier: Apache-2.0
"""A reduce-scatter for `fully_shard`: every shard of the gradients travels as a message of atomo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

import atomo

from .._policy import is_spec
from .device import DeviceModel, Place
from .step import check_integers, check_saved
from .wire import DTYPES, FAILED, MAX_WORKERS, Accumulator, as_bytes, check_lengths, swap


class FSDPReduceScatter:
    """What `FSDPModule.set_custom_reduce_scatter` takes.

        comm = atomo.torch.FSDPReduceScatter("atomo:atoms=blocks,bits=0.5").attach(model)

    FSDP hands over the gradients of a group of parameters as one flat tensor, a chunk a rank. Each chunk but one's own
    is encoded for its rank and sent to it alone, in messages of their true lengths; one's own is encoded too, so that
    the sum is of independent draws. Names and shapes of parameters are gone by then: one codec, best of blocks or
    coordinates, serves all, and each chunk keeps to its budget by itself. On a flat chunk `atoms=rows`, `atoms=sketch` and
    `atoms=auto` come to the same as `atoms=blocks`, or to coordinates where these are better. One object may serve all
    modules of a model; its ranks make the same calls in the same order.

    What is compressed is the reduce-scatter of gradients alone: the all-gathers of weights, two thirds of what FSDP
    sends, and the all-reduce between the replicas of a hybrid mesh (HSDP) stay as they are.

    Args:
        codec: a spec; rules by name are refused, as there are no names.
        seed: of the run's draws, the same on all ranks.

    Raises:
        atomo.Error: for a codec or a seed that cannot work.

    On the CPU the wire and the codec are waited for in the call: nothing of it overlaps back-propagation. On a GPU
    everything is queued on FSDP's own stream and, of a codec that is `traits.bounded` (`cap=`, or a fixed size), nothing is
    waited for: each message is sent with its `wire_bytes`, and what fails on the GPU is raised in a later call. A codec
    without a bound waits for lengths and for each message. It ran on an H200 with one rank over NCCL (tests/gpu/python);
    several ranks run in tests on the CPU, with a stand-in for streams.
    """

    def __init__(self, codec: str = "atomo:atoms=blocks,bits=0.5", *, seed: int = 0):
        check_integers(seed=seed)
        if not is_spec(str(codec)):
            raise atomo.Error(f"FSDP takes one codec, found the rules '{codec}': it hands over the gradients of many "
                              "parameters as one flat tensor, without names")
        self.codec = atomo.Codec(codec)
        if self.codec.traits.memory:
            raise atomo.Error(f"'{self.codec}' keeps a memory of each layer, and FSDP hands over flat chunks that it does not "
                              f"name: take '{self.codec.without_memory()}'")
        self.seed = seed
        self.calls = 0  # each has draws of its own
        self.bytes_sent = 0  # to other ranks, lengths included
        self._place: Place | None = None
        self._models: dict[tuple[int, torch.dtype, int], DeviceModel] = {}  # of a GPU, by what a chunk is

    def attach(self, model: torch.nn.Module) -> FSDPReduceScatter:
        """Gives itself to all modules of the model that `fully_shard` made. Returns itself.

        Raises:
            atomo.Error: when there is none.
        """
        from torch.distributed.fsdp import FSDPModule  # takes a while, which users of DDP alone need not wait

        modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        if not modules:
            raise atomo.Error(f"{type(model).__name__} has no module under fully_shard: call that first, on the "
                              "layers and on the model")
        for module in modules:
            module.set_custom_reduce_scatter(self)
        return self

    def __repr__(self) -> str:
        return f"atomo.torch.FSDPReduceScatter('{self.codec}', seed={self.seed}, calls={self.calls})"

    def state_dict(self) -> dict[str, Any]:
        """Everything a run needs to go on."""
        return {"codec": str(self.codec), "seed": self.seed, "calls": self.calls, "bytes_sent": self.bytes_sent}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken.

        Raises:
            atomo.Error: when it is of another codec, or no saved state.
        """
        check_saved(state, ("codec", "seed", "calls", "bytes_sent"))
        if state["codec"] != str(self.codec):
            raise atomo.Error(f"the saved state is of '{state['codec']}', this one's codec is '{self.codec}'")
        self.seed, self.calls, self.bytes_sent = state["seed"], state["calls"], state["bytes_sent"]

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for FSDP's flat tensors: no other than PyTorch's own."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup,
                 op: Any, async_op: bool = False) -> None:
        """Output, n elements = sum (or mean) over the ranks of this rank's chunk of the input, ranks * n elements.

        Raises:
            atomo.Error: for another operation than SUM and AVG, a type that has no codec, `async_op`, or on every
                rank when one of them could not encode.
        """
        ranks, everyone = dist.get_world_size(group), dist.get_world_size()
        rank = dist.get_rank()  # of all: replicas of a sharded model, whose groups are others, draw by themselves
        alpha = _factor(op, ranks)
        if async_op or input_tensor.dtype not in DTYPES or everyone > MAX_WORKERS:
            raise atomo.Error(f"async_op={async_op}, {input_tensor.dtype}, {everyone} ranks: without async_op, float32, "
                              f"float16 or bfloat16 and up to {MAX_WORKERS} ranks are accepted")
        key = {"seed": self.seed, "step": self.calls & 0xFFFFFFFF}
        self.calls += 1
        place = self._place_of(input_tensor)
        if place is not None and self.codec.traits.bounded:
            self._queue(place, output_tensor, input_tensor.view(ranks, -1), group, {**key, "worker": rank}, alpha)
            return
        messages, mine = self._encode(input_tensor.view(ranks, -1), key, rank)
        received = self._exchange(messages, mine, group, input_tensor.device)
        total = Accumulator(output_tensor)
        self.codec.decode_add_all(list(received), out=total.sum, alpha=alpha)
        total.finish(**key, worker=everyone, tensor=0, channel=rank)

    def _place_of(self, tensor: torch.Tensor) -> Place | None:
        """The GPU that the gradients are on; None for the CPU."""
        if not tensor.is_cuda:
            return None
        if self._place is None or self._place.device != tensor.device:
            self._place, self._models = Place(tensor.device), {}
        return self._place

    def _queue(self, place: Place, output: torch.Tensor, chunks: torch.Tensor, group: dist.ProcessGroup,
               key: dict[str, int], alpha: float) -> None:
        """All of it on the stream of now. The memory is that of all groups of parameters whose chunks are as large."""
        ranks, n = chunks.shape
        kind = (n, chunks.dtype, ranks)
        if kind not in self._models:
            self._models[kind] = DeviceModel({"chunk": ((n,), DTYPES[chunks.dtype])}, str(self.codec), place, ranks, ranks)
        model, stream = self._models[kind], place.current()
        model.look()
        with place.on(stream):
            for to, chunk in enumerate(chunks.unbind()):
                model.encode(model.bind([chunk], encoding=True), {**key, "channel": to}, stream, to)
            dist.all_to_all_single(model.received, model.outgoing_bytes(), group=group)
            output.fill_(-0.0)
            model.add(model.bind([output.view(-1)], encoding=False), alpha, stream)
            model.tell(stream)
        self.bytes_sent += (ranks - 1) * model.wire

    def _encode(self, chunks: torch.Tensor, key: dict[str, int],
                rank: int) -> tuple[list[bytes | torch.Tensor], Exception | None]:
        """A message a rank; the channel is the receiver's number, so no two share their draws."""
        try:
            return [self.codec.encode(chunk, **key, worker=rank, channel=to) for to, chunk in enumerate(chunks)], None
        except Exception as error:
            return [], error

    def _exchange(self, messages: list[bytes | torch.Tensor], mine: Exception | None, group: dist.ProcessGroup,
                  device: torch.device) -> list[torch.Tensor]:
        """The messages for this rank, in rank order."""
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        own = torch.tensor([FAILED] * ranks if mine else [len(m) for m in messages], device=device)
        lengths = torch.empty_like(own)
        dist.all_to_all_single(lengths, own, group=group)
        incoming = lengths.tolist()
        check_lengths([[length] for length in incoming], mine)
        arrived = swap([as_bytes([message], device) for message in messages], incoming, group)
        self.bytes_sent += sum(own.element_size() + len(m) for to, m in enumerate(messages) if to != rank)
        return arrived


def _factor(op: Any, ranks: int) -> float:
    """What each message is multiplied with."""
    if op == dist.ReduceOp.SUM:
        return 1.0
    if op == dist.ReduceOp.AVG:
        return 1 / ranks
    raise atomo.Error(f"{op}: only SUM and AVG are supported; leave FSDP's gradient divide factor at its default, or "
                      "call set_force_sum_reduction_for_comms(True)")
