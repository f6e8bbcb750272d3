# SPDX-License-Identifier: Apache-2.0
"""A bucket of DDP's on a GPU: from its gradients to their mean without a wait of the host's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .device import DeviceModel, Place
from .groups import check_same_ranks, is_alive, registered_with
from .layers import Layer, layers_of
from .squares import POLICY as SQUARES_POLICY
from .squares import Squares


class DeviceBucket:
    """One message a rank and step: all layers of the bucket at one price, found on the GPU from the bucket's budget.

    Args:
        gradients: names and views of the bucket's memory, in the bucket's order.
        policy: of the state.
        place: the GPU.
        group: DDP's own; its collectives are issued where DDP would issue its all-reduce, in one order on all ranks.
    """

    def __init__(self, gradients: Mapping[str, torch.Tensor], policy: str, place: Place, group: dist.ProcessGroup):
        self.names, self.dtype, self.group = list(gradients), next(iter(gradients.values())).dtype, group
        self._place, self._ranks = place, dist.get_world_size(group)
        self.model = DeviceModel(layers_of(gradients), policy, place, 1, self._ranks)
        self._ready, self._encoded = place.event(), place.event()
        self._at: int | None = None  # where the gradients are that `_gradients` and `_sums` speak of
        self._gradients = self._sums = None
        self._squares: tuple[Mapping[str, Layer], DeviceModel] | None = None
        self.sent = 0  # bytes, of the last step

    def serves(self, gradients: Mapping[str, torch.Tensor], group: dist.ProcessGroup) -> bool:
        """Whether this is still the bucket: DDP makes its buckets anew after the first step, wrappers change types."""
        return (self.group is group and self.names == list(gradients)
                and self.dtype == next(iter(gradients.values())).dtype)

    def reduce(self, buffer: torch.Tensor, gradients: Sequence[torch.Tensor], key: Mapping[str, int],
               restore: Callable[[], None], squares: Squares | None = None, last: bool = False) -> torch.futures.Future[torch.Tensor]:
        """Queues all of it. The future's value is `buffer`, with the mean over the ranks in it, and what `restore` queues
        done to it. `squares` are told of the
        bucket in a step that tells them, and the ranks of all behind the `last` one: such a step takes memory."""
        if squares is not None and not squares.tells:
            squares = None
        place, model, done = self._place, self.model, self._place.future()
        if self._at != buffer.data_ptr():
            self._at = buffer.data_ptr()
            self._gradients, self._sums = (model.bind(gradients, encoding=encoding) for encoding in (True, False))
        place.current().record_event(self._ready)
        for stream in (place.encoding, place.wire):
            place.lend(buffer, stream)
        with place.on(place.encoding):
            place.encoding.wait_event(self._ready)
            payload = model.encode(self._gradients, key, place.encoding)
            place.encoding.record_event(self._encoded)
        with place.on(place.wire):
            place.wire.wait_event(self._encoded)
            self.sent = model.wire if model.wire is not None else model.longest(self._lengths_of_all)
            dist.all_gather_into_tensor(model.received[:self._ranks * self.sent], payload[:self.sent], group=self.group)
            if squares is not None:
                self._see_own(squares, gradients, payload)
            buffer.fill_(-0.0)  # the one number that changes no bit of what is added to it
            model.add(self._sums, 1 / self._ranks, place.wire)
            model.tell(place.wire)
            restore()
            if squares is not None:
                for name, average in zip(self.names, gradients):
                    squares.see_average(name, average)
                if last:
                    self.sent += squares.exchange(self._tell_squares, key)
            done.set_result(buffer)
        return done

    def _see_own(self, squares: Squares, gradients: Sequence[torch.Tensor], payload: torch.Tensor) -> None:
        """This rank's gradients, and what its message decodes to."""
        own = [torch.zeros(gradient.shape, device=gradient.device) for gradient in gradients]
        self.model.add_one(payload[:self.sent], self.model.bind(own, encoding=False), self._place.wire)
        for name, gradient, decoded in zip(self.names, gradients, own):
            squares.see_gradient(name, gradient)
            squares.see_decoded(name, decoded)

    def _tell_squares(self, arrays: Mapping[str, torch.Tensor],
                      key: Mapping[str, int]) -> tuple[dict[str, torch.Tensor], int]:
        """The mean over the ranks, and the bytes of a message."""
        layers, wire = layers_of(arrays), self._place.wire
        if self._squares is None or self._squares[0] != layers:
            self._squares = layers, DeviceModel(layers, SQUARES_POLICY, self._place, 1, self._ranks)
        model = self._squares[1]
        model.look()
        model.encode(model.bind(list(arrays.values()), encoding=True), key, wire)
        dist.all_gather_into_tensor(model.received, model.outgoing_bytes(), group=self.group)
        mean = {name: torch.zeros_like(array) for name, array in arrays.items()}
        model.add(model.bind(list(mean.values()), encoding=False), 1 / self._ranks, wire)
        model.tell(wire)
        return mean, model.wire

    def _lengths_of_all(self, own: torch.Tensor) -> torch.Tensor:
        lengths = own.new_empty(self._ranks)
        dist.all_gather_into_tensor(lengths, own, group=self.group)
        return lengths


class DeviceBuckets:
    """The buckets of a DDP module on a GPU, by their numbers, and where they are."""

    def __init__(self) -> None:
        self.group: dist.ProcessGroup | None = None
        self._place: Place | None = None
        self._of: dict[int, DeviceBucket] = {}

    def place_of(self, device: torch.device) -> Place:
        """The GPU, whose streams are made once."""
        if self._place is None or self._place.device != device:
            self._place, self._of = Place(device), {}
        return self._place

    def group_of(self, state: Any) -> dist.ProcessGroup:
        """DDP's own, for the state that was registered with it. To find it takes some 100 ms, once.

        Raises:
            atomo.Error: when the state was given a group of other ranks.
        """
        if self.group is None or not is_alive(self.group):
            modules, given = registered_with(state), state.process_group
            if given is not None and is_alive(given):
                check_same_ranks(given, modules)
            self.group = modules[0].process_group if modules else given or dist.group.WORLD
        return self.group

    def bucket(self, number: int, gradients: Mapping[str, torch.Tensor], policy: str,
               agree: Callable[[dist.ProcessGroup, torch.device], None]) -> DeviceBucket:
        """The one that an earlier step made, whose outcome is looked at; or a new one, once all ranks `agree`."""
        bucket = self._of.get(number)
        if bucket is None or not bucket.serves(gradients, self.group):
            agree(self.group, next(iter(gradients.values())).device)
            bucket = self._of[number] = DeviceBucket(gradients, policy, self._place, self.group)
        bucket.model.look()
        return bucket

    def forget(self, beyond: int = -1) -> None:
        """The buckets with larger numbers."""
        self._of = {number: bucket for number, bucket in self._of.items() if number <= beyond}

    def look(self) -> None:
        """At what the last step of each bucket left, where the GPU has come so far."""
        for bucket in self._of.values():
            bucket.model.look()
