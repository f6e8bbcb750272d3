# SPDX-License-Identifier: Apache-2.0
"""A model on a GPU whose calls take no memory and wait for nothing: what DDP and FSDP do with gradients there.

Everything that a call works in is made once. What the kernels say of the data, and the heads of the messages that came,
go to pinned memory, which the host looks at when a later step begins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy
import torch

import atomo

from .. import _atomo, _device
from .layers import Layer, compressor_of

RESULT_BYTES = 16  # a call's length (u64) and status (i32)
HEAD_BYTES = 64  # FORMAT.md: seed at 16, step at 24, channel at 32
STEPS_BEHIND = 4  # of the GPU behind the host, at most, where outcomes are looked at
_SEED_SPACING = 0x9E3779B97F4A7C15  # between the seeds of a step's buckets


class Place:
    """A GPU as the calls see it: two streams beside back-propagation's, and memory.

    Messages are made on one stream and travel and are added up on the other, so that a bucket is encoded while the one
    before it is on its way. Tests put a stand-in here.
    """

    kind = "cuda"  # of the models

    def __init__(self, device: torch.device):
        _device.require_cuda()
        self.device = device
        self.encoding, self.wire = (torch.cuda.Stream(device, priority=-1) for _ in range(2))

    def memory(self, n: int) -> torch.Tensor:
        """n bytes of the GPU's, at least one."""
        return torch.zeros(max(n, 1), dtype=torch.uint8, device=self.device)

    def pinned(self, n: int) -> torch.Tensor:
        """n bytes of the host's that a stream may write."""
        return torch.zeros(n, dtype=torch.uint8, pin_memory=True)

    def event(self) -> Any:
        """Without a clock."""
        return torch.cuda.Event()

    def current(self) -> Any:
        """The stream that the framework computes on now."""
        return torch.cuda.current_stream(self.device)

    def on(self, stream: Any) -> AbstractContextManager:
        """What is queued inside goes to this stream."""
        return torch.cuda.stream(stream)

    def lend(self, tensor: torch.Tensor, stream: Any) -> None:
        """Memory of the framework's that this stream works in too."""
        tensor.record_stream(stream)

    def future(self) -> torch.futures.Future:
        """Those who take its value wait for the stream that it was set on, and the host does not."""
        return torch.futures.Future(devices=[self.device])


class DeviceModel:
    """A compressor and the memory of its calls.

    Args:
        layers: shapes and dtypes by name.
        policy: of the messages; all of them are sent with `wire` bytes where that is a number, else with the bytes of the
            longest, which the host has to ask for.
        place: where.
        outgoing, incoming: messages that one step makes here, and that come.
        takes_back: `take_back` may be called.
    """

    def __init__(self, layers: Mapping[str, Layer], policy: str, place: Place, outgoing: int, incoming: int,
                 takes_back: bool = False):
        self.place, self.outgoing, self.incoming = place, outgoing, incoming
        with place.on(place.current()):  # the model's tables go to the device that is current
            self.compressor = compressor_of(layers, policy, 1, place.kind, takes_back)
        self._calls = self.compressor._model
        self.wire: int | None = self.compressor.wire_bytes
        self.capacity = self.compressor.max_encoded_bytes
        # Of several messages each is made in front of the next, whose place it may use on the way.
        self.payload = place.memory((outgoing - 1) * (self.wire or self.capacity) + self.capacity)
        self.received: torch.Tensor | None = None
        self.messages: list[torch.Tensor] = []
        if self.wire is not None:
            self._receive(self.wire)
        self._encode_workspace = place.memory(self._calls.encode_workspace_bytes())
        self._decode_workspace = place.memory(self._calls.decode_workspace_bytes())
        results = RESULT_BYTES * (outgoing + 1)
        self._told = place.memory(results + HEAD_BYTES * incoming)
        self._results = self._told[:results].split(RESULT_BYTES)
        self._heads = self._told[results:].view(incoming, HEAD_BYTES)
        self._seen = place.pinned(STEPS_BEHIND * self._told.numel()).view(STEPS_BEHIND, -1)
        self._on_host = self._seen.numpy()
        self._copied = [place.event() for _ in range(STEPS_BEHIND)]
        self._queued = self._looked_at = 0  # steps that were told of, and those of them that were looked at

    def _receive(self, bytes_each: int) -> None:
        """Room for what comes."""
        self.received = self.place.memory(self.incoming * bytes_each)
        self.messages = list(self.received.split(bytes_each))

    def bind(self, arrays: Sequence[torch.Tensor], *, encoding: bool) -> Any:
        """Arrays of the layers, to be encoded or added to, as `encode` and `add` take them: once for as long as they stay
        where they are."""
        return self._calls.bind(arrays, encoding)

    def encode(self, gradients: Any, key: Mapping[str, int], stream: Any, number: int = 0) -> torch.Tensor:
        """Queues a message of bound arrays; returns the memory that it will stand at the beginning of."""
        first = number * (self.wire or self.capacity)
        payload = self.payload[first:first + self.capacity]
        self._calls.encode_on(gradients, payload, self._results[number], self._encode_workspace, _number(stream),
                              key["seed"], key["step"], key["worker"], key["channel"])
        return payload

    def outgoing_bytes(self) -> torch.Tensor:
        """The messages behind one another, `wire` bytes each."""
        return self.payload[:self.outgoing * self.wire]

    def longest(self, lengths_of_all: Any) -> int:
        """Of messages without a bound. Waits: `lengths_of_all(own)` gives the lengths of all ranks, own a number on the GPU."""
        longest = max(lengths_of_all(self._results[0][:8].view(torch.int64)).tolist())
        if self.received is None or self.received.numel() < self.incoming * longest:
            self._receive(longest + longest // 4)
        self.messages = list(self.received[:self.incoming * longest].split(longest))
        return longest

    def add(self, sums: Any, alpha: float, stream: Any) -> None:
        """Queues sums += alpha * each message that came, in the order of ranks; halves are rounded once."""
        self._calls.decode_on(self.messages, sums, alpha, self._results[self.outgoing], self._decode_workspace,
                              _number(stream))

    def add_one(self, message: torch.Tensor, sums: Any, stream: Any) -> None:
        """Queues sums += one message. A later call of `add` tells how that message decodes."""
        self._calls.decode_on([message], sums, 1.0, self._results[self.outgoing], self._decode_workspace, _number(stream))

    def take_back(self, only_if: torch.Tensor, stream: Any) -> None:
        """Queues that memories become what they were before the last message, where a status on the GPU, in 4 bytes, says that
        something was not finite."""
        self._calls.take_memory_back_on(only_if, self._results[0], _number(stream))

    def tell(self, stream: Any) -> None:
        """Queues what `look` will see."""
        bytes_each = self.messages[0].numel()
        self._heads.copy_(self.received[:self.incoming * bytes_each].view(self.incoming, bytes_each)[:, :HEAD_BYTES])
        place = self._queued % STEPS_BEHIND
        self._seen[place].copy_(self._told, non_blocking=True)
        stream.record_event(self._copied[place])
        self._queued += 1

    def look(self) -> None:
        """In front of each `tell`, at what earlier steps left, where the GPU has come so far. It is waited for where it is
        `STEPS_BEHIND` steps behind, so that no step goes unseen.

        Raises:
            atomo.Error: when a call failed on the GPU, or the ranks' keys were not of one step.
        """
        while self._looked_at < self._queued:
            place = self._looked_at % STEPS_BEHIND
            if not self._copied[place].query():
                if self._queued - self._looked_at < STEPS_BEHIND:
                    return
                self._copied[place].synchronize()
            self._looked_at += 1
            self._look_at(self._on_host[place])

    def _look_at(self, told: numpy.ndarray) -> None:
        for call in range(self.outgoing + 1):
            _, status = struct.unpack_from("<Qi", told, RESULT_BYTES * call)
            name, description, failed = _atomo.status_of(status)
            if failed:
                what = "encoding" if call < self.outgoing else "decoding"
                raise atomo.Error(f"{what} gradients on the GPU failed in an earlier step ({name}): {description}")
            self._calls.notice(status)
        self._compare(list(self._keys(told)))

    def _keys(self, told: numpy.ndarray) -> Iterator[dict[str, int]]:
        """Of the messages that came."""
        for rank in range(self.incoming):
            at = RESULT_BYTES * (self.outgoing + 1) + HEAD_BYTES * rank
            seed, step = struct.unpack_from("<QI", told, at + 16)
            yield {"seed": seed, "step": step}

    @staticmethod
    def _compare(keys: Sequence[Mapping[str, int]]) -> None:
        for name, first in keys[0].items():
            for rank, key in enumerate(keys):
                if key[name] != first:
                    raise atomo.Error("the ranks' states differ, and their replicas do since an earlier step: the "
                                      f"{name} in the messages' keys is {first} from rank 0, {key[name]} from rank {rank}")


def seed_of_bucket(seed: int, number: int) -> int:
    """Layers are numbered from 0 in each bucket: with a seed of its own no bucket draws what another does."""
    return (seed + (number + 1) * _SEED_SPACING) % 2**64


def _number(stream: Any) -> int:
    return stream.cuda_stream
