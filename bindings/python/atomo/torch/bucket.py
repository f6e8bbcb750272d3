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
from .sums import Sums, differing


PARTS = 1024  # of a bucket, whose largest entries are found one by one


class TakingBack:
    """Whether a step's mean gradients are finite, found and used on the GPU: where they are not, the memories of its buckets
    become what they were, as the step is skipped."""

    def __init__(self, place: Place):
        self._place = place
        self._largest, self._of_bucket = (place.memory(4).view(torch.float32) for _ in range(2))
        self._parts = place.memory(4 * (PARTS + 1)).view(torch.float32)
        self._differs = place.memory(1).view(torch.bool)
        self._status = place.memory(4)
        self._word = self._status.view(torch.int32)
        self._models: list[DeviceModel] = []
        self._any_seen = self._under_way = False
        self.done = place.event()  # the last step's, which messages of the next wait for

    def begin(self) -> None:
        """A step."""
        self._models, self._any_seen, self._under_way = [], False, True

    def moves(self, model: DeviceModel) -> None:
        """Notes one whose memories a message of the step moves."""
        self._models.append(model)

    def see(self, buffer: torch.Tensor) -> None:
        """Queues a look at a bucket's mean. On the wire's stream."""
        first, self._any_seen = not self._any_seen, True
        largest = self._largest if first else self._of_bucket
        # PyTorch takes memory to reduce a long array to one number, and none for a number of each row.
        rows = buffer[:len(buffer) // PARTS * PARTS].view(PARTS, -1)
        _largest_of(rows, out=self._parts[:PARTS])
        _largest_of(buffer[rows.numel():].view(1, -1), out=self._parts[PARTS:])
        _largest_of(self._parts.view(1, -1), out=largest)
        if not first:
            torch.maximum(self._largest, self._of_bucket, out=self._largest)

    def end(self, sums: Sums) -> None:
        """Queues the rest, behind the last bucket. The `sums` of the step become what they were, too. On the wire's stream."""
        if self._models:
            self._largest.mul_(0)  # Inf and NaN become NaN
            torch.ne(self._largest, self._largest, out=self._differs)
            self._word.copy_(self._differs)  # 1 is the status of what is not finite
            sums.take_back(self._differs)
        self._end()

    def drop(self, sums: Sums) -> None:
        """Takes all of a step back that did not come to its end. On the wire's stream."""
        if not self._under_way:
            return
        encoded = self._place.event()
        self._place.encoding.record_event(encoded)
        self._place.wire.wait_event(encoded)
        self._word.fill_(1)
        sums.take_back()
        self._end()

    def _end(self) -> None:
        for model in self._models:
            model.take_back(self._status, self._place.wire)
        self._under_way = False
        self._place.wire.record_event(self.done)


def _largest_of(rows: torch.Tensor, out: torch.Tensor) -> None:
    """The largest magnitude of each row, 0 where it is empty, NaN where a NaN is in it."""
    if rows.shape[1] == 0:
        out.zero_()
    else:
        torch.linalg.vector_norm(rows, float("inf"), dim=1, dtype=torch.float32, out=out)


class DeviceBucket:
    """One message a rank and step: all layers of the bucket at one price, found on the GPU from the bucket's budget.

    Args:
        gradients: names and views of the bucket's memory, in the bucket's order.
        policy: of the state.
        place: the GPU.
        group: DDP's own; its collectives are issued where DDP would issue its all-reduce, in one order on all ranks.
        memories: those of the model, of which the bucket's layers take theirs.
    """

    def __init__(self, gradients: Mapping[str, torch.Tensor], policy: str, place: Place, group: dist.ProcessGroup,
                 memories: bytes | None = None):
        self.names, self.dtype, self.group = list(gradients), next(iter(gradients.values())).dtype, group
        self._place, self._ranks = place, dist.get_world_size(group)
        self.model = DeviceModel(layers_of(gradients), policy, place, 1, self._ranks, takes_back=True)
        self.remembers = self.model.compressor.memory_bytes > 0
        self._differing = differing(self.model.compressor)
        if self.remembers and memories is not None:
            self.model.compressor.load_state(memories)
        self._ready, self._encoded = place.event(), place.event()
        self._at: int | None = None  # where the gradients are that `_gradients` speaks of
        self._adds_at: list[int] = []  # where those and the totals are that `_sums` speaks of
        self._gradients = self._sums = None
        self._squares: tuple[Mapping[str, Layer], DeviceModel] | None = None
        self.sent = 0  # bytes, of the last step

    def serves(self, gradients: Mapping[str, torch.Tensor], group: dist.ProcessGroup) -> bool:
        """Whether this is still the bucket: DDP makes its buckets anew after the first step, wrappers change types."""
        return (self.group is group and self.names == list(gradients)
                and self.dtype == next(iter(gradients.values())).dtype)

    def reduce(self, buffer: torch.Tensor, gradients: Sequence[torch.Tensor], key: Mapping[str, int],
               restore: Callable[[], None], squares: Squares | None = None, last: bool = False,
               taking_back: TakingBack | None = None, share: float = 1.0,
               sums: Sums | None = None) -> torch.futures.Future[torch.Tensor]:
        """Queues all of it. The future's value is `buffer`, with the mean over the ranks in it, and what `restore` queues
        done to it. `taking_back` sees that, and behind the `last` bucket takes memories back. `squares` are told of the
        bucket in a step that tells them, and the ranks of all behind the `last` one: such a step takes memory, as does one
        with units.
        `share`: of its budget, that the message has. `sums`: of layers whose messages are differences."""
        tells, sums = squares is not None and squares.tells, Sums() if sums is None else sums
        place, model, done = self._place, self.model, self._place.future()
        if self._at != buffer.data_ptr():
            self._at = buffer.data_ptr()
            self._gradients = model.bind(gradients, encoding=True)
        place.current().record_event(self._ready)
        for stream in (place.encoding, place.wire):
            place.lend(buffer, stream)
        with place.on(place.encoding):
            place.encoding.wait_event(self._ready)
            if taking_back is not None:
                place.encoding.wait_event(taking_back.done)
            model.compressor.budget_share = share
            payload = model.encode(self._gradients, key, place.encoding)
            if taking_back is not None and self.remembers:
                taking_back.moves(model)
            place.encoding.record_event(self._encoded)
        with place.on(place.wire):
            place.wire.wait_event(self._encoded)
            self.sent = model.wire if model.wire is not None else model.longest(self._lengths_of_all)
            dist.all_gather_into_tensor(model.received[:self._ranks * self.sent], payload[:self.sent], group=self.group)
            if tells:
                self._see_own(squares, gradients, payload)
            totals = {i: sums.moving(name, gradients[i]) for i, name in enumerate(self.names) if name in self._differing}
            if self._adds_at != (at := [buffer.data_ptr(), *(total.data_ptr() for total in totals.values())]):
                self._adds_at = at
                self._sums = model.bind([totals.get(i, gradient) for i, gradient in enumerate(gradients)], encoding=False)
            buffer.fill_(-0.0)  # the one number that changes no bit of what is added to it
            model.add(self._sums, 1 / self._ranks, place.wire)
            for i, total in totals.items():
                gradients[i].copy_(total)
            model.tell(place.wire)
            if squares is not None:
                for name, average in zip(self.names, gradients):
                    squares.from_units(name, average)
                    squares.see_average(name, average)
            restore()
            if taking_back is not None:
                taking_back.see(buffer)
            if tells and last:
                self.sent += squares.exchange(self.tell_squares, key)
            if last and taking_back is not None:
                taking_back.end(sums)
            done.set_result(buffer)
        return done

    def _see_own(self, squares: Squares, gradients: Sequence[torch.Tensor], payload: torch.Tensor) -> None:
        """This rank's gradients, and what its message decodes to."""
        own = [torch.zeros(gradient.shape, device=gradient.device) for gradient in gradients]
        self.model.add_one(payload[:self.sent], self.model.bind(own, encoding=False), self._place.wire)
        for name, gradient, decoded in zip(self.names, gradients, own):
            squares.see_gradient(name, gradient)
            squares.from_units(name, decoded)
            squares.see_decoded(name, decoded)

    def tell_squares(self, arrays: Mapping[str, torch.Tensor],
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
        self._left: list[bytes] = []  # memories of buckets that are no more
        self._moved: set[int] = set()  # buckets that the step under way has encoded
        self.taking_back: TakingBack | None = None

    def place_of(self, device: torch.device) -> Place:
        """The GPU, whose streams are made once."""
        if self._place is None or self._place.device != device:
            self._left, self._of, self.taking_back = self.memories(), {}, None
            self._place = Place(device)
        return self._place

    def begin_step(self, remembers: bool) -> None:
        """`remembers`: codecs have memories."""
        self._moved = set()
        if remembers and self.taking_back is None:
            self.taking_back = TakingBack(self._place)
        if self.taking_back is not None:
            self.taking_back.begin()

    def end_plain(self, sums: Sums, squares: Squares | None, key: Mapping[str, int]) -> int:
        """Of a step whose last bucket went by all-reduce. Returns the bytes that told of squares."""
        sent, bucket = 0, next(iter(self._of.values()), None)
        if self.taking_back is not None or squares is not None and squares.tells:
            with self._place.on(self._place.wire):
                if bucket is not None and squares is not None and squares.tells:
                    sent = squares.exchange(bucket.tell_squares, key)
                if self.taking_back is not None:
                    self.taking_back.end(sums)
        return sent

    def drop_step(self, sums: Sums) -> None:
        """Forgets a step that was begun and did not come to its end."""
        if self.taking_back is not None:
            with self._place.on(self._place.wire):
                self.taking_back.drop(sums)

    def memories(self) -> list[bytes]:
        """Of all buckets, older ones first: waits for the GPU."""
        of_buckets = [bucket.model.compressor.state("memories") for bucket in self._of.values() if bucket.remembers]
        return self._left + of_buckets

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
               agree: Callable[[dist.ProcessGroup, torch.device], None],
               memories: Callable[[], bytes | None]) -> DeviceBucket:
        """The one that an earlier step made, whose outcome is looked at; or a new one, once all ranks `agree`, which takes
        its layers' part of `memories()`: those of the buckets that it takes the place of too."""
        bucket = self._of.get(number)
        if not self.has(number, gradients):
            agree(self.group, next(iter(gradients.values())).device)
            kept = memories()
            if kept is not None:  # what others still held of an earlier arrangement is in `kept`
                self._left = []
                self._of = {n: bucket for n, bucket in self._of.items() if n in self._moved}
            bucket = self._of[number] = DeviceBucket(gradients, policy, self._place, self.group, kept)
        self._moved.add(number)
        bucket.model.look()
        return bucket

    def has(self, number: int, gradients: Mapping[str, torch.Tensor]) -> bool:
        """Whether `bucket` makes none."""
        return number in self._of and self._of[number].serves(gradients, self.group)

    def forget(self, beyond: int = -1) -> None:
        """The buckets with larger numbers."""
        self._of = {number: bucket for number, bucket in self._of.items() if number <= beyond}
        if not self._of:
            self._left = []

    @property
    def any(self) -> bool:
        """There are buckets, or memories of some."""
        return bool(self._of or self._left)

    def look(self) -> None:
        """At what the last step of each bucket left, where the GPU has come so far."""
        for bucket in self._of.values():
            bucket.model.look()
