# SPDX-License-Identifier: Apache-2.0
"""What DDP and FSDP share: messages as tensors of bytes, lengths that can say "failed", sums in f32."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist

import atomo

FAILED = -1  # stands for the length of a message that could not be encoded
DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
MAX_WORKERS = 65535  # a key has 16 bits for the worker, and the rounding of sums takes one number more


def as_bytes(messages: Sequence[bytes | torch.Tensor], device: torch.device) -> torch.Tensor:
    """The messages behind one another in a u8 tensor on `device`; on the CPU they are `bytes`, on a GPU tensors."""
    if device.type == "cpu":
        return torch.frombuffer(bytearray().join(messages), dtype=torch.uint8)
    return torch.cat(list(messages))


def swap(outgoing: Sequence[torch.Tensor], incoming: Sequence[int], group: dist.ProcessGroup) -> list[torch.Tensor]:
    """Sends outgoing[r] to rank r and returns what the ranks sent here, incoming[r] bytes from rank r.

    One all-to-all of true lengths. An all-gather would have to pad every message to the longest, and a bucket's messages
    differ from rank to rank: the price is one for the model, not for the bucket. One's own does not travel.
    """
    rank, own = dist.get_rank(group), outgoing[dist.get_rank(group)]
    if len(outgoing) == 1:
        return [own]
    parts = [own[:0] if to == rank else part for to, part in enumerate(outgoing)]
    lengths = [0 if source == rank else length for source, length in enumerate(incoming)]
    received = own.new_empty(sum(lengths))
    dist.all_to_all_single(received, torch.cat(parts), lengths, [len(part) for part in parts], group=group)
    arrived = list(received.split(lengths))
    arrived[rank] = own
    return arrived


def check_lengths(lengths: Sequence[Sequence[int]], mine: Exception | None) -> None:
    """Raises on every rank when one of them could not encode: nobody is left waiting for its message.

    `lengths[r]` are those that rank r announced, `mine` is what went wrong on this one.
    """
    if mine is not None:
        raise mine
    failed = [rank for rank, of_rank in enumerate(lengths) if FAILED in of_rank]
    if failed:
        ranks = ", ".join(map(str, failed))
        raise atomo.Error(f"rank {ranks} could not encode its gradients; the error raised there says why")


def all_reduce(buffer: torch.Tensor, group: dist.ProcessGroup) -> None:
    """As DDP itself does it, of a sparse tensor too."""
    buffer.div_(dist.get_world_size(group))
    dist.all_reduce(buffer, group=group)


def all_reduce_later(buffer: torch.Tensor, group: dist.ProcessGroup) -> torch.futures.Future[torch.Tensor]:
    """The same without waiting."""
    buffer.div_(dist.get_world_size(group))
    return dist.all_reduce(buffer, group=group, async_op=True).get_future().then(lambda done: done.value()[0])


def sparse_bytes(gradient: torch.Tensor) -> int:
    """Of its indices and values."""
    return gradient._indices().nbytes + gradient._values().nbytes


class Accumulator:
    """The sum of messages for one view: in place for f32, through f32 for the halves.

    The first message is added to -0, the one number that changes no bit of what is added to it; or to `sum`, in f32, which is
    that of earlier steps.
    """

    def __init__(self, view: torch.Tensor, sum: torch.Tensor | None = None):
        self.view, self._goes_on = view, sum is not None
        if sum is None:
            sum = view if view.dtype == torch.float32 else torch.empty(view.shape, device=view.device)
            sum.fill_(-0.0)
        self.sum = sum

    def finish(self, *, seed: int, step: int, worker: int, tensor: int, channel: int) -> None:
        """Rounds a half view's sum once, at random: to the nearest would bias entries that share a magnitude. A sum that goes
        on is biased anyway, and is rounded to the nearest.

        The draws follow from the key alone, so ranks that hold the same sum get the same halves.
        """
        if self._goes_on:
            self.view.copy_(self.sum)
        if self._goes_on or self.sum is self.view:
            return
        codec = _rounding(self.view.dtype)
        halves = codec.encode(self.sum, seed=seed, step=step, worker=worker, tensor=tensor, channel=channel)
        codec.decode(halves, out=self.view)


@functools.cache
def _rounding(dtype: torch.dtype) -> atomo.Codec:
    """The codec that rounds f32 to a half at random."""
    return atomo.Codec(f"identity:dtype={DTYPES[dtype]}")


def require_f32(argument: str, name: str, gradient: torch.Tensor) -> None:
    """Of a gradient that an argument multiplies or divides.

    Raises:
        atomo.Error: for another type.
    """
    if gradient.dtype != torch.float32:
        raise atomo.Error(f"{argument} takes gradients of f32, that of '{name}' is {DTYPES[gradient.dtype]}: keep parameters in "
                          f"float32, as torch.autocast does, or leave {argument.split('=')[0]} out")
