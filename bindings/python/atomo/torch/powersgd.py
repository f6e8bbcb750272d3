# SPDX-License-Identifier: Apache-2.0
"""PowerSGD for DistributedDataParallel: low-rank gradients that add up in an all-reduce, with a memory or without bias."""

# No `from __future__ import annotations` here, as in ddp.py.
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

import atomo

from .ddp import DDPState
from .device import Place
from .layers import Parameters
from .step import at_end_of_backward, check_saved, digest_of, number_from
from .wire import all_reduce, sparse_bytes

_UNUSED = "identity"  # the policy of a state whose gradients travel by all-reduce alone
_USELESS = 1e-6  # of the largest column's norm: a column of Q below it is rounding


@dataclasses.dataclass
class _Factored:
    """A layer that is factored: its first dimension by all others."""

    name: str
    gradient: torch.Tensor
    rows: int
    columns: int
    rank: int


class PowerSGDState(DDPState):
    """PowerSGD (Vogels et al., arXiv 1905.13727, Algorithm 1), as the state of `ddp_hook`.

        state = atomo.torch.PowerSGDState(ddp_model, rank=4)
        ddp_model.register_comm_hook(state, atomo.torch.ddp_hook)

    Of a matrix M_k (a gradient's first dimension by all others) the ranks add up P = sum M_k Q / W in one all-reduce, bring
    it to orthonormal columns, and add up Q = sum M_k^T P / W in another; what arrives is P Q^T, the same on all ranks. Q is
    kept by name for the next step (a warm start), whatever DDP's buckets are. Matrices of one shape are multiplied as one
    batch. Other layers, and matrices that would not get smaller by `min_ratio`, go along in the first all-reduce as they are.

    What P Q^T leaves of a gradient is not lost. Either it stays on its rank and is added to the next gradient (error
    feedback, section 3.1 there): biased in a step, as PyTorch's own hook is. Or, with `residual=`, it travels at once:
    M_k - P P^T M_k is a message of that policy, and the mean of these and P Q^T is right on average whenever the codec is,
    without a memory: P follows from the all-reduce, so that the draws of the messages are all that is random.

    Args:
        model, process_group, seed, channel, threads, start_step, scale, clip_norm: as `DDPState` has them.
        rank: of P and Q, at most a matrix's shorter side.
        residual: None for a memory; a policy, such as "atomo:bits=0.25,atoms=rows", for what P Q^T leaves of a matrix, and
            for all of the other layers.
        min_ratio: a matrix is factored when its elements are more than this many times those of P and Q.
        warm_start: False: Q is drawn anew in every step.

    Raises:
        atomo.Error: as `DDPState`, and for numbers that cannot be.

    A zero matrix arrives as zeros. Directions that a matrix of low rank had no use for are drawn anew, so a later step
    finds what is there then. A gradient that is not finite makes its layer NaN on all ranks for that step, and leaves all
    memories as they were and the directions of its Q. A checkpoint (`state_dict`) without `residual=` holds this rank's memory: each rank saves and
    loads its own, and another's begins at zero. Sums are f32; what is left of a half is rounded to one. On a GPU the host waits
    once a step, for the ranks to agree, and where `torch.linalg.qr` does; it ran on an H200 with one rank over NCCL, a step of
    ResNet-50 in docs/kernels.md.
    """

    def __init__(self, model: Parameters | None = None, rank: int = 4, *, residual: str | atomo.Codec | None = None,
                 min_ratio: float = 2.0, warm_start: bool = True, scale: float | Callable[[], float] = 1.0,
                 process_group: dist.ProcessGroup | None = None,
                 seed: int = 0, channel: int = 0, threads: int = 1, start_step: int = 0, clip_norm: float | None = None):
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise atomo.Error(f"rank is {rank!r}: a whole number from 1 on is expected")
        self.min_ratio = number_from(min_ratio, "min_ratio", math.nextafter(0, 1), math.inf, "a ratio above 0")
        self.rank, self.warm_start = rank, bool(warm_start)
        self.keeps_memory = residual is None
        self._q: dict[str, torch.Tensor] = {}
        self._memory: dict[str, torch.Tensor] = {}
        self._memory_of: int | None = None  # the rank whose it is; None before the first step
        self._loaded = False  # it is a checkpoint's, and no step has asked whose
        self._products: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        super().__init__(model, _UNUSED if residual is None else residual, process_group=process_group, seed=seed,
                         channel=channel, threads=threads, start_step=start_step, scale=scale, clip_norm=clip_norm)

    def state_dict(self) -> dict[str, Any]:
        """As `DDPState.state_dict`, with Q and, without `residual=`, this rank's memory."""
        return {**super().state_dict(), "rank": self.rank, "min_ratio": self.min_ratio, "warm_start": self.warm_start,
                "keeps_memory": self.keeps_memory, "q": dict(self._q), "memory": dict(self._memory), "memory_of": self._memory_of}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken on this rank, to the bit.

        Raises:
            atomo.Error: as `DDPState.load_state_dict`, and for a state with another rank of P and Q, or matrices of other shapes;
                everything is then as it was.
        """
        mine = {"rank": self.rank, "min_ratio": self.min_ratio, "keeps_memory": self.keeps_memory}
        for name, value in mine.items():
            if name not in state:
                raise atomo.Error("the saved state is that of a DDPState, not of a PowerSGDState")
            if state[name] != value:
                raise atomo.Error(f"the saved state has {name}={state[name]}, this one {value}: make them the same")
        check_saved(state, ("layers", "warm_start", "q", "memory", "memory_of"))
        shapes = {name: list(shape) for name, shape, _ in state["layers"]}
        for name, left in state["memory"].items():
            if list(left.shape) != shapes.get(name):
                raise atomo.Error(f"the saved memory of '{name}' has the shape {list(left.shape)}, and its layer {shapes.get(name)}")
        for name, q in state["q"].items():
            shape = list(self._sizes_of(shapes[name])[1:]) if name in shapes else None
            if list(q.shape) != shape:
                raise atomo.Error(f"the saved Q of '{name}' has the shape {list(q.shape)}, and Q of its layer {shape}")
        super().load_state_dict(state)
        self.warm_start = state["warm_start"]
        self._q, self._memory = dict(state["q"]), dict(state["memory"])
        self._memory_of, self._loaded = state["memory_of"], True

    def set_policy(self, policy: str | atomo.Codec) -> None:
        """Another policy of what P Q^T leaves, as `DDPState.set_policy`.

        Raises:
            atomo.Error: without `residual=`, and as `DDPState.set_policy`.
        """
        if self.keeps_memory:
            raise atomo.Error(f"set_policy('{policy}'): this state sends no messages; one with residual= does")
        super().set_policy(policy)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.rank, self.min_ratio, self.keeps_memory = state["rank"], state["min_ratio"], state["keeps_memory"]
        self._q, self._memory, self._products = {}, {}, []
        self._memory_of, self._loaded = None, False
        super().__setstate__(state)

    def reset_memory(self) -> None:
        """Forgets what gradients have left, and Q."""
        self._q, self._memory = {}, {}

    def __repr__(self) -> str:
        rest = "a memory" if self.keeps_memory else f"residuals by {self.policy!r}"
        return f"atomo.torch.PowerSGDState(rank={self.rank}, {rest}, seed={self.seed}, step={self.step})"

    # A step

    def _begin_step(self, rank: int, ranks: int) -> None:
        super()._begin_step(rank, ranks)
        self._digest = digest_of([self._digest, self.rank, self.min_ratio, self.keeps_memory, self.warm_start])
        self._left, self._all_finite = {}, None
        if self._loaded and self._memory_of != rank:
            self._memory = {}
        self._memory_of, self._loaded = rank, False

    def _facts(self) -> dict[str, Any]:
        return {**super()._facts(), "rank": self.rank, "min_ratio": self.min_ratio, "keeps_memory": self.keeps_memory,
                "warm_start": self.warm_start}

    def _prepare(self, layers: list[tuple[str, torch.Tensor]], group: dist.ProcessGroup) -> None:
        """Before a bucket is encoded: the residuals stand in its gradients, the products in `_products`."""
        self._products = []
        super()._prepare(layers, group)
        for of, p, q_own, q in self._rounds(layers, group, others=[]):
            of.gradient.sub_((p @ q_own.t()).view_as(of.gradient))
            self._products.append((of.gradient, p, q))
            place = self._place_of(of.gradient)
            if place is not None:  # `_restore` reads them on another stream than the one that they were made on
                place.lend(p, place.wire)
                place.lend(q, place.wire)

    def _restore(self, layers: list[tuple[str, torch.Tensor]]) -> None:
        """After its messages were decoded."""
        for gradient, p, q in self._products:
            gradient.add_((p @ q.t()).view_as(gradient))
        self._products = []
        super()._restore(layers)

    def _begin_together(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """A step, once all ranks agree: all-reduces of other sizes would not come to an end. Waits."""
        rank, mine = dist.get_rank(group), None
        try:
            self._begin_step(rank, dist.get_world_size(group))
            self._coder.own_memories(rank)
        except Exception as error:
            mine = error
        self._agree(group, device, mine)

    def _begin_on(self, group: dist.ProcessGroup, device: torch.device, layers: list[tuple[str, torch.Tensor]]) -> None:
        self._begin_together(group, device)
        self._on_gpu.begin_step(self._coder.has_memory)

    def _encode(self, layers: list[tuple[str, torch.Tensor]], group: dist.ProcessGroup, first: bool,
                last: bool) -> tuple[list[bytes], Exception | None]:
        if first:
            try:
                self._begin_together(group, torch.device("cpu"))
            except Exception as error:
                return [], error
        return super()._encode(layers, group, False, last)

    def _reduce(self, buffer: torch.Tensor, layers: list[tuple[str, torch.Tensor]], group: dist.ProcessGroup,
                first: bool, last: bool) -> None:
        if not self.keeps_memory:
            super()._reduce(buffer, layers, group, first, last)
            return
        began = time.perf_counter()
        if first:
            self._begin_together(group, buffer.device)
        if self._error is None:
            self._exchange(buffer, layers, group)
            if last:
                self._keep()
        self.last.buckets += 1
        self.last.wire_seconds += time.perf_counter() - began

    def _exchange(self, buffer: torch.Tensor, layers: list[tuple[str, torch.Tensor]], group: dist.ProcessGroup) -> None:
        """A bucket without messages."""
        if self._plain(layers):
            all_reduce(buffer, group)
            self._count(buffer.nbytes if layers else sparse_bytes(buffer), dist.get_world_size(group))
            if not layers:
                self._look_at([buffer.coalesce().values()])
            return
        for name, gradient in layers:
            if name in self._memory:
                gradient.add_(self._memory[name].to(gradient.device) * self._scale)
        factored = {of.name for of in self._factored(layers)}
        others = [gradient for name, gradient in layers if name not in factored]
        for of, p, _, q in self._rounds(layers, group, others):
            sent = (p @ q.t()).view_as(of.gradient)
            self._left[of.name] = (of.gradient.float() - sent) / self._scale
            of.gradient.copy_(sent)
        self._look_at([gradient for _, gradient in layers])

    def _look_at(self, gradients: Sequence[torch.Tensor]) -> None:
        finite = [torch.isfinite(gradient).all() for gradient in gradients]
        self._all_finite = torch.stack(finite if self._all_finite is None else [*finite, self._all_finite]).all()

    def _keep(self) -> None:
        """Behind a step's last bucket. The gradients of all ranks are the same by then, and so is whether they are finite."""
        for name, left in self._left.items():
            was = self._memory.get(name, torch.zeros_like(left)).to(left)
            self._memory[name] = torch.where(self._all_finite, left, was)
        self._left = {}

    def _factored(self, layers: Sequence[tuple[str, torch.Tensor]]) -> list[_Factored]:
        """Those that get smaller."""
        found = []
        for name, gradient in layers:
            rows, columns, rank = self._sizes_of(gradient.shape)
            if rows > 1 and gradient.numel() > self.min_ratio * rank * (rows + columns):
                found.append(_Factored(name, gradient, rows, columns, rank))
        return found

    def _sizes_of(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """A layer's first dimension, the product of all others, and the rank of its P and Q."""
        rows = shape[0] if len(shape) > 1 else 1
        columns = math.prod(shape) // max(rows, 1)
        return rows, columns, min(self.rank, rows, columns)

    def _rounds(self, layers: Sequence[tuple[str, torch.Tensor]], group: dist.ProcessGroup,
                others: Sequence[torch.Tensor]) -> Iterator[tuple[_Factored, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Both all-reduces of a bucket; `others` get their mean in the first. Of each factored layer P, this rank's Q and the
        mean of all."""
        batches = self._batches(layers)
        matrices = [torch.stack([of.gradient.reshape(of.rows, of.columns).float() for of in batch]) for batch in batches]
        starts = [torch.stack([self._start_of(of) for of in batch]) for batch in batches]
        ps = self._mean_of([m @ q for m, q in zip(matrices, starts)], group, others)
        ps = [torch.linalg.qr(p).Q for p in ps]
        own = [m.transpose(1, 2) @ p for m, p in zip(matrices, ps)]
        means = self._mean_of(own, group, [])
        for batch, p, q_own, q, start in zip(batches, ps, own, means, starts):
            if self.warm_start:
                finite = torch.isfinite(q).flatten(1).all(1)[:, None, None]
                kept = torch.where(finite, q, start)
                self._q.update(zip((of.name for of in batch), kept.unbind()))
            yield from zip(batch, p.unbind(), q_own.unbind(), q.unbind())

    def _batches(self, layers: Sequence[tuple[str, torch.Tensor]]) -> list[list[_Factored]]:
        """Layers of one shape together."""
        batches: dict[tuple[int, int, int], list[_Factored]] = {}
        for of in self._factored(layers):
            batches.setdefault((of.rows, of.columns, of.rank), []).append(of)
        return list(batches.values())

    def _start_of(self, of: _Factored) -> torch.Tensor:
        """Q of the step before, in which columns that were of no use are drawn anew; the same on all ranks."""
        seed = digest_of([self.seed, self.channel, self._key["step"], of.name]) % 2**63
        drawn = torch.randn(of.columns, of.rank, generator=torch.Generator().manual_seed(seed)).to(of.gradient.device)
        kept = self._q.get(of.name)
        if kept is None or kept.shape != drawn.shape:
            return drawn
        kept = kept.to(drawn)
        norms = kept.square().sum(0).sqrt()
        largest = norms.max()
        # Orders of magnitude do not matter to the directions: columns are brought to norm 1.
        return torch.where(norms > _USELESS * largest, kept / norms.clamp_min(torch.finfo(torch.float32).tiny), drawn)

    def _mean_of(self, tensors: Sequence[torch.Tensor], group: dist.ProcessGroup,
                 others: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The mean over the ranks by one all-reduce, in place for `others`."""
        if not tensors and not others:
            return []
        flat = torch.cat([tensor.reshape(-1).float() for tensor in [*tensors, *others]])
        all_reduce(flat, group)
        self._count(flat.nbytes, dist.get_world_size(group))
        parts = flat.split([tensor.numel() for tensor in [*tensors, *others]])
        for other, part in zip(others, parts[len(tensors):]):
            other.copy_(part.view(other.shape))
        return [part.view(tensor.shape) for tensor, part in zip(tensors, parts)]

    # A step on a GPU

    def _reduce_on(self, place: Place, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if not self.keeps_memory:
            return super()._reduce_on(place, bucket)
        buffer, layers, group = bucket.buffer(), self._layers_of(bucket), self._on_gpu.group_of(self)
        done, ready = place.future(), place.event()
        place.current().record_event(ready)
        place.lend(buffer, place.wire)
        with place.on(place.wire):
            place.wire.wait_event(ready)
            try:
                self._reduce(buffer, layers, group, bucket.index() == 0, bucket.is_last())
            except Exception as error:
                self._error = error
            done.set_result(buffer)
        raised_later = not bucket.is_last() or at_end_of_backward(self._raise)
        return done if raised_later else done.then(self._raise_or_value)
