# SPDX-License-Identifier: Apache-2.0
"""Outer synchronisation: workers train alone, and tell each other now and then what that changed.

    sync = atomo.torch.OuterSync(model, "atomo:bits=0.25", every=30)
    for batch in data:
        ...                 # zero_grad, backward
        optimizer.step()
        sync.step()         # every 30th call exchanges

A round of W workers; w are the outer parameters, which all of them hold:

    x = w;  H times: x = inner optimiser(x)
    send encode(w - x);  d = sum over workers, in rank order, of decode / W
    w = outer optimiser(w, d)

DiLoCo (arXiv 2311.08105, algorithm 1), in fragments and with a delay Streaming DiLoCo (2501.18512, algorithm 2).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

import atomo

from .._device import require_cuda
from .._layers import counted
from .._policy import idle_rules
from .groups import group_like, raise_difference
from .layers import Parameters, device_of
from .outer_options import check_options, group_of, locals_of, preset, shard_groups, split, with_memory
from .outer_round import Fragment, Lane, OuterLog, Ready, checksum_of, compare_checksums, exchange
from .step import check_integers, check_saved, digest_of, told_by_all


@dataclasses.dataclass
class _Pending:
    """An exchange that has begun."""

    fragment: Fragment
    due: int  # the step after which it is applied
    log: OuterLog
    wait: Callable[[], None]


class OuterSync:
    """Synchronises replicas that train alone, every so many steps: DiLoCo and its relatives, with compressed messages.

    Args:
        model: the module, or names and parameters as `named_parameters()` gives them. Parameters that need no gradient are
            left out, and buffers are not synchronised. f32, f16 and bf16, all on the CPU or on one GPU. Of a DTensor
            (`fully_shard`) each rank synchronises its local shard. Names are those of the module without wrappers.
        policy: of the pseudo-gradients, which are of f32: one codec for all, or rules by name,
            `"*.bias=identity:dtype=f32; *=atomo:bits=0.25"`. Layers with a budget share one price over the fragment.
        every: local steps between two exchanges of a layer (H).
        outer: `"nesterov"` or `"sgd"`.
        outer_lr, outer_momentum: of the outer step. The momentum of None is 0.9 with nesterov, 0 with sgd.
            Both attributes may be changed between rounds, on all ranks.
        memory: a stage in front of each codec of the policy, such as `"ef:decay=.95"`, which adds to a pseudo-gradient
            what earlier messages left out; or `"ef21"`, which sends differences: their sum takes 4 bytes a parameter more.
        clip: `"median"` scales contributions down to the median of the ranks' norms (of what is decoded, over the fragment;
            each shard of a DTensor by itself).
        fragments: a number of runs of neighbouring layers, or for each fragment a list of names or patterns. Each is one
            message, exchanged every `every` steps; fragment f of F at the steps whose remainder is (f + 1) every / F.
        delay: steps between the beginning of an exchange, which then goes on in the background, and its application.
        alpha: how much of a parameter of `delay` steps later is kept when the outer one is written to it.
        verify_every: in every so many rounds the ranks compare checksums of their outer parameters; 0: never.
        broadcast: the first rank's parameters become those of all; else all have to begin with the same.
        process_group: the workers: a process group, or a mesh of one dimension, `mesh["outer"]`. When None all processes.
            A group of the same ranks, backend and time limit is made beside it.
        within: what keeps the ranks of one worker equal, where a worker is several ranks with whole replicas: an `OuterSync` over
            another dimension of the mesh, whose `every` divides this one's, without a delay and in one fragment; or the group of
            DDP, or its mesh. This one's `step` calls that of the `OuterSync`, whose outer parameters follow the ones here. The first
            rank of a worker exchanges its messages, and tells the others.
        seed, channel: of the run's draws, the same on all ranks. The key of a message is (seed, round, rank); a shard's seed
            differs from other shards'.
        threads: that work on a message.
        device: where the outer parameters, momentum and messages are: with the parameters, or `"cpu"`, where a model on a
            GPU leaves its memory to training. Then the group is one for the CPU (gloo), and codecs run there.

    Raises:
        atomo.Error: for an option, a policy or a parameter that cannot work; and on all ranks, with the difference, when
            they disagree on names, shapes, shards, types, policy or options, or begin with different parameters.

    The constructor is called by all ranks of the group and waits for them. Each parameter takes 12 bytes more, 8 without
    outer momentum, and what a memory takes; an exchange on the CPU allocates the messages of all ranks. Parameters that
    need halves stay f32 in the outer copy. Without a delay all replicas are equal to the bit after a synchronisation.

    A round in which a rank's pseudo-gradient is not finite is skipped on all ranks, with a warning and in `last.nonfinite`:
    parameters, momentum and memories stay, and the next round sends what this one would have sent. A rank whose parameters
    are not finite calls `restore()`, and clears its optimiser; so do the other ranks of that worker. Where a message
    decodes to what is not finite, as halves of large changes do, the round is skipped too, and memories begin anew on all ranks.

    On a GPU an exchange waits for the stream; with a delay it works on a stream and a thread of its own. It ran on an
    H200 with one rank over NCCL, without a delay (tests/gpu/python).
    """

    def __init__(self, model: Parameters, policy: str | atomo.Codec = "atomo:bits=0.5", *, every: int,
                 outer: str = "nesterov", outer_lr: float = 0.7, outer_momentum: float | None = None,
                 memory: str | None = None, clip: str | None = None, fragments: int | Sequence[Sequence[str]] = 1,
                 delay: int = 0, alpha: float = 0.0, verify_every: int = 0, broadcast: bool = False,
                 process_group: Any = None, within: Any = None, seed: int = 0, channel: int = 0, threads: int = 1, device: str | None = None):
        check_integers(seed=seed, channel=channel, threads=threads)
        momentum = (0.9 if outer == "nesterov" else 0.0) if outer_momentum is None else outer_momentum
        check_options(every=every, outer=outer, outer_lr=outer_lr, outer_momentum=momentum, clip=clip, delay=delay,
                      alpha=alpha, verify_every=verify_every, device=device)
        self.policy = with_memory(str(policy), memory)
        self.every, self.outer, self.outer_lr, self.outer_momentum = every, outer, outer_lr, momentum
        self.clip, self.delay, self.alpha, self.verify_every = clip, delay, alpha, verify_every
        self.seed, self.channel = seed, channel
        self.steps = 0  # local ones
        self.round = 0  # exchanges begun
        self.bytes_sent = 0  # by this rank, in earlier runs too
        self.last = OuterLog(0, 0)
        self._pending: deque[_Pending] = deque()
        self._model = model if isinstance(model, torch.nn.Module) else dict(model)
        parameters, self._shards = locals_of(self._model)
        self._from = device_of(parameters)
        self._device = self._from if device is None else torch.device(device)
        if self._device.type == "cuda":
            require_cuda()
        self._types = {name: str(p.dtype).removeprefix("torch.") for name, p in parameters.items()}
        parts = split({name: p.numel() for name, p in parameters.items()}, fragments)
        with torch.no_grad():
            self._fragments = [Fragment(i, {name: parameters[name] for name in names}, self.policy, threads, momentum > 0,
                                        self._device) for i, names in enumerate(parts)]
        if clip and any(part.sums for part in self._fragments):
            raise atomo.Error(f"clip is {clip!r}, and the policy '{self.policy}' sends differences (ef21), whose norms are not those "
                              "of contributions: leave clip= out")
        for rule in idle_rules(self.policy, list(parameters)):
            warnings.warn(f"the rule '{rule}' of the policy matches no layer", stacklevel=2)
        self._group = group_like(group_of(process_group))
        self._rank = dist.get_rank(self._group)
        self._within = within if isinstance(within, OuterSync) else None
        if self._within is not None:
            self._check_within(self._within)
        self._of_worker = [(group, self._from) for group in shard_groups(self._model)]
        self._worker = None
        if within is not None:
            group = self._within._group if self._within else group_of(within)
            self._of_worker.append((group, self._device))
            self._worker = group_like(group)  # exchanges may be in the background
        self._lane = Lane(self._device) if delay else None
        self._begin_together(broadcast)

    @classmethod
    def preset(cls, name: str, model: Parameters, **changes: Any) -> OuterSync:
        """One with published settings, and what `changes` has in their place: any argument of the constructor.

        - `"diloco"` (arXiv 2311.08105, section 3): every 500 steps, Nesterov of rate 0.7 and momentum 0.9, in f32.
        - `"streaming-diloco"` (arXiv 2501.18512): every 100 steps (figure 5), 8 fragments, as of 24 layers with 3 each (figure
          6), Nesterov of rate 0.4 (section 3), a delay of one step (table 1) and alpha 0.5 (figures 8 and 10). Ours are the
          codec, QSGD of as many bits, 4, as the paper's E3M0 (figure 11), and fragments of neighbours: the paper prefers
          strides (figure 7), which are patterns in `fragments=`.
        - `"sparseloco"` (arXiv 2508.15706, algorithm 1; the clipping is of arXiv 2603.08163, section 2.1): every 30 steps, 64
          of each 4096 entries in 2 bits, a memory that keeps 0.95, sgd of rate 1, clipped to the median norm.

        Raises:
            atomo.Error: for another name, and as the constructor.
        """
        return cls(model, **preset(name, changes))

    # Agreement

    def _facts(self) -> dict[str, Any]:
        """What all ranks have to agree on, plain values."""
        return {"seed": self.seed, "channel": self.channel, "policy": self.policy, "every": self.every,
                "outer": self.outer, "outer_lr": self.outer_lr, "outer_momentum": self.outer_momentum, "clip": self.clip,
                "delay": self.delay, "alpha": self.alpha, "verify_every": self.verify_every,
                "fragments": len(self._fragments), "step": self.steps, "round": self.round, "layers": self._table()}

    def _table(self) -> list[list[Any]]:
        """Of each layer its name, shape, type and fragment, and of a shard which it is."""
        return [[name, list(part.outer[name].shape), self._types[name], part.number, *self._shards.get(name, [])]
                for part in self._fragments for name in part.names]

    def _check_within(self, within: OuterSync) -> None:
        """Raises `atomo.Error` for one that does not make the ranks of a worker equal whenever this one exchanges."""
        if within.steps:
            raise atomo.Error(f"within has taken {within.steps} steps already: make both before the first, and load checkpoints then")
        if within.delay or len(within._fragments) > 1:
            raise atomo.Error(f"within has a delay of {within.delay} and {len(within._fragments)} fragments: it must have no delay and "
                              "one fragment, so that its ranks are equal behind each of its exchanges")
        steps = [(i + 1) * self.every // len(self._fragments) for i in range(len(self._fragments))]
        odd = next((step for step in [*steps, self.every] if step % within.every), None)
        if odd is not None:
            raise atomo.Error(f"every is {self.every} and fragments {len(steps)}, so that step {odd} has an exchange: it must be a multiple of "
                              f"{within.every}, the every of within")
        if [row[:3] for row in within._table()] != [row[:3] for row in self._table()] or within._device != self._device:
            raise atomo.Error("within has other parameters, or has them on another device")

    def _begin_together(self, broadcast: bool) -> None:
        """Compares what was given, then the parameters, or takes the first rank's."""
        facts: dict[str, Any] = {**self._facts(), "broadcast": bool(broadcast)}
        if self._worker is not None:  # of which other ranks have other places
            self._compare(facts, self._worker)
            facts["place within a worker"] = dist.get_rank(self._worker)
        self._compare(facts, self._group)
        self._table_digest = digest_of(facts)
        if broadcast:
            with torch.no_grad():
                for part in self._fragments:
                    for outer in part.outer.values():
                        dist.broadcast(outer, dist.get_global_rank(self._group, 0), self._group)
                    self._write(part, 0)
            return
        sums = told_by_all([self.checksum()], self._group, self._device)
        try:
            compare_checksums([row[0] for row in sums])
        except atomo.Error as error:
            raise atomo.Error(f"{error}: begin with the same parameters on all ranks, or give broadcast=True") from None

    def _compare(self, facts: Mapping[str, Any], group: dist.ProcessGroup) -> None:
        if len({row[0] for row in told_by_all([digest_of(facts)], group, self._device)}) > 1:
            raise_difference(facts, group, self._device)

    def checksum(self) -> int:
        """Of this rank's outer parameters, to the bit: 63 bits and a sign. Not collective; waits for the device."""
        return checksum_of([outer for part in self._fragments for outer in part.outer.values()])

    # Steps

    def step(self) -> bool:
        """After each step of the inner optimiser. Begins the exchanges that are due and applies those whose delay is over.

        Returns whether parameters were synchronised. Collective where an exchange is due, and waits for the other ranks:
        with a delay only when it is over. Allocates the messages.

        Raises:
            atomo.Error: on all ranks, when they are not in the same round, replicas differ, one of them could not encode, or
                its parameters are others than those it was made for. A checkpoint is to go on from then.
            RuntimeError: torch's, when a rank is gone or the group's time limit is over.
        """
        self.steps += 1
        if self._within is not None:
            self._within.step()
        for number, part in enumerate(self._fragments):
            offset = (number + 1) * self.every // len(self._fragments)
            if self.steps % self.every == offset % self.every:
                self._begin(part, self.delay)
        return self._apply(self.steps)

    def synchronise(self) -> bool:
        """Exchanges and applies all fragments now, without a delay, behind those that are pending: all replicas are equal
        then. Collective. Returns whether all of it was applied: False when a round was skipped. Raises as `step`.
        """
        self.drain()
        if self._within is not None:
            self._within.synchronise()
        for part in self._fragments:
            self._begin(part, 0)
        return self._apply(None, keep=0.0)

    def drain(self) -> bool:
        """Waits for the exchanges that are pending and applies them. Collective only in that they are. Returns whether any
        was applied."""
        return self._apply(None)

    @torch.no_grad()
    def _begin(self, part: Fragment, delay: int) -> None:
        """An exchange, in the background if it has time."""
        error, nonfinite = None, 0
        try:
            nonfinite = part.subtract(self._current(part)) or self._unequal_within()
        except Exception as mine:
            error = mine
        nonfinite, error = self._with_worker(nonfinite, error)
        checksum = None  # as wide a table on all ranks, whatever round they are in
        if self.verify_every > 0:
            checksum = self.checksum() if self.round % self.verify_every == 0 else 0
        facts = {**self._facts(), "fragment": part.number}
        key = {"seed": self._seed(), "step": self.round & 0xFFFFFFFF, "worker": self._rank, "channel": self.channel}
        ready = Ready(key, digest_of([self._table_digest, *(facts[name] for name in _CHANGING)]), lambda: facts,
                      nonfinite, error, checksum, self.clip, self._worker)
        log = OuterLog(self.round, self.steps, part.number)
        self.round += 1
        if delay and self._lane is not None:
            self._pending.append(_Pending(part, self.steps + delay, log,
                                          self._lane.submit(lambda: exchange(part, ready, self._group, log))))
            return
        exchange(part, ready, self._group, log)
        self._pending.append(_Pending(part, self.steps, log, lambda: None))

    def _unequal_within(self) -> int:
        """1 where the ranks of this worker skipped the exchange that would have made them equal, else 0.

        Raises:
            atomo.Error: when it may not have been at this step.
        """
        if self._within is None:
            return 0
        if self._within.steps != self.steps:
            raise atomo.Error(f"within has taken {self._within.steps} steps and this one {self.steps}: this one's step() calls that of "
                              "within, and the program does not")
        return int(bool(self._within.last.nonfinite))

    def _with_worker(self, nonfinite: int, error: Exception | None) -> tuple[int, Exception | None]:
        """A round is skipped, or fails, for all ranks of this worker or for none. Collective where it has several."""
        worst = 2 if error else int(nonfinite > 0)
        for group, device in self._of_worker:
            of_all = torch.tensor(worst, device=device)
            dist.all_reduce(of_all, dist.ReduceOp.MAX, group)
            worst = int(of_all)
        if worst == 2 and error is None:
            error = atomo.Error("another rank of this worker failed; the error raised there says why")
        return nonfinite or worst, error

    def _write(self, part: Fragment, alpha: float) -> None:
        """The outer parameters to those of the model, and to those that ranks of this worker share."""
        part.write(self._current(part), alpha)
        if self._within is not None:
            part.write({name: self._within._fragments[0].outer[name] for name in part.names}, alpha)

    def _current(self, part: Fragment) -> dict[str, torch.Tensor]:
        """The parameters of now.

        Raises:
            atomo.Error: when they are others than those this was made for.
        """
        found, shards = locals_of(self._model)
        known = {name: list(p.shape) for name, p in found.items()}
        for name, shape, dtype, _, *shard in self._table():
            if known.pop(name, None) != shape or self._types[name] != str(found[name].dtype).removeprefix("torch.") or \
                    shard != shards.get(name, []) or found[name].device != self._from:
                raise atomo.Error(f"the parameters have changed: '{name}' was {dtype} {shape} on {self._from}"
                                  f"{'' if name in found else ', and is not trained now'}")
        if known:
            raise atomo.Error(f"the parameters have changed: '{next(iter(known))}' was not among them")
        return {name: found[name] for name in part.names}

    def _seed(self) -> int:
        """Shards of one layer are no copies of each other, and draw by themselves."""
        shards = sorted(self._shards.items())
        whole = not any(place for _, of in shards for _, place in of)
        return self.seed if whole else (self.seed + digest_of(shards)) % 2**64

    @torch.no_grad()
    def _apply(self, until: int | None, keep: float | None = None) -> bool:
        """The pending exchanges that are due, all for None. `keep` in place of alpha. Returns whether any was applied; of
        `keep`, all."""
        applied = []
        while self._pending and (until is None or self._pending[0].due <= until):
            pending = self._pending.popleft()
            pending.wait()
            part, self.last = pending.fragment, pending.log
            self.bytes_sent += self.last.bytes_sent
            applied.append(not self.last.nonfinite)
            if self.last.nonfinite:
                self._tell_skipped()
                continue
            part.take_step(self.outer_lr, self.outer_momentum, self.outer == "nesterov")
            late = pending.due > pending.log.step
            self._write(part, keep if keep is not None else self.alpha if late else 0.0)
        return any(applied) if keep is None else all(applied)

    def _tell_skipped(self) -> None:
        of_all = dist.get_process_group_ranks(self._group)
        ranks = ", ".join(str(of_all[rank]) for rank in self.last.nonfinite)
        warnings.warn(f"round {self.last.round} was skipped: the pseudo-gradient of rank {ranks}, or what it decodes to, is not finite",
                      stacklevel=4)

    @torch.no_grad()
    def restore(self) -> None:
        """Sets this rank's parameters to the outer ones, giving up what it did since. Neither collective nor waiting."""
        for part in self._fragments:
            self._write(part, 0.0)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Everything this rank needs to go on to the bit, beside its own parameters and inner optimiser: tensors and plain
        values, for `torch.save`. Not copies: save it before the next step. Each rank, and each shard, has its own.

        What is pending is drained first, on all ranks that call it at the same step, so that they go on alike.
        """
        self.drain()
        return {"layers": self._table(), "policy": self.policy, "seed": self.seed, "channel": self.channel,
                "steps": self.steps, "round": self.round, "bytes_sent": self.bytes_sent, "rank": self._rank,
                "outer_lr": self.outer_lr, "outer_momentum": self.outer_momentum,
                "outer": {name: tensor for part in self._fragments for name, tensor in part.outer.items()},
                "momentum": {name: tensor for part in self._fragments for name, tensor in part.momentum.items()},
                "sums": {name: tensor for part in self._fragments for name, tensor in part.sums.items()},
                "ranks": dist.get_world_size(self._group), "within": self._within and self._within.state_dict(),
                "compressors": [torch.frombuffer(bytearray(part.compressor.state()), dtype=torch.uint8)
                                for part in self._fragments]}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken. The parameters themselves are not touched: they are in the model's own
        checkpoint, or `restore()` sets them to the outer ones.

        The state of one rank may be loaded by another: outer parameters and momentum are the same on all; what that rank
        had learnt of the price and what its memory holds are then left out, and begin anew. Not so with `ef21`, where each rank
        loads its own, in as many ranks.

        Raises:
            atomo.Error: for another policy, other layers, shards or fragments, another choice of momentum, what is no saved state, and
                with `ef21` for the state of another rank or number of ranks. Everything is then as it was.

        It waits for exchanges that are pending, whose outcome is dropped: collective only in that they are.
        """
        self._check_saved(state)
        if self._within is not None:
            self._within.load_state_dict(state["within"])
        while self._pending:  # what they come to is not that of the saved run
            self._pending.popleft().wait()
        for part, learnt in zip(self._fragments, state["compressors"]):
            part.forget()
            part.momentum = {}  # a fragment that has had no step since there was one has none
            if state["rank"] == self._rank:
                part.compressor.load_state(learnt.cpu().numpy().tobytes())
            for name in part.names:
                part.outer[name].copy_(state["outer"][name])
                if name in state["momentum"]:
                    part.momentum[name] = part.outer[name].clone().copy_(state["momentum"][name])
                if name in part.sums:
                    part.sums[name].copy_(state["sums"][name])
        for what in ("seed", "channel", "steps", "round", "bytes_sent", "outer_lr", "outer_momentum"):
            setattr(self, what, state[what])

    def _check_saved(self, state: Mapping[str, Any]) -> None:
        """What was saved, as far as that can be known before any of it is loaded."""
        check_saved(state, _SAVED)
        for what, mine in (("policy", self.policy), ("layers", self._table())):
            if state[what] != mine:
                raise atomo.Error(f"the saved state has other {what}: {_first_difference(state[what], mine)}")
        check_integers(**{name: state[name] for name in ("seed", "channel", "steps", "round", "rank", "ranks", "bytes_sent")})
        if len(state["compressors"]) != len(self._fragments):
            raise atomo.Error(f"the saved state has {len(state['compressors'])} compressors, one for each of {len(self._fragments)} "
                              "fragments is expected")
        if bool(state["outer_momentum"]) != bool(self.outer_momentum):
            raise atomo.Error(f"the saved state has {'an' if state['outer_momentum'] else 'no'} outer momentum, this one "
                              f"{'has none' if state['outer_momentum'] else 'has one'}")
        whose, mine = (state["rank"], state["ranks"]), (self._rank, dist.get_world_size(self._group))
        if state["sums"] and whose != mine:
            raise atomo.Error(f"the saved state is of rank {whose[0]} of {whose[1]}, this is rank {mine[0]} of {mine[1]}: what a rank "
                              "has sent with ef21 is its own, so each rank saves and loads its own")
        if bool(state["within"]) != (self._within is not None):
            raise atomo.Error(f"the saved state has {'an' if state['within'] else 'no'} OuterSync as within, this one "
                              f"{'has none' if state['within'] else 'has one'}")
        if self._within is not None:
            self._within._check_saved(state["within"])
        for part, learnt in zip(self._fragments, state["compressors"]):
            if state["rank"] == self._rank:
                part.fresh().load_state(learnt.cpu().numpy().tobytes())
            for what, needed in (("outer", part.names), ("momentum", []), ("sums", part.sums)):
                for name in part.names:
                    found, shape = state[what].get(name), list(part.outer[name].shape)
                    if found is None and name in needed or found is not None and list(found.shape) != shape:
                        raise atomo.Error(f"the saved state has in '{what}' {'nothing' if found is None else list(found.shape)} for "
                                          f"'{name}', which is {shape}")

    # Figures

    @property
    def pending(self) -> int:
        """Exchanges that have begun and are not applied."""
        return len(self._pending)

    def log(self) -> dict[str, Any]:
        """The totals and the last exchange's figures, to be logged as JSON."""
        return {"steps": self.steps, "rounds": self.round, "bytes_sent": self.bytes_sent,
                "last": dataclasses.asdict(self.last)}

    def __repr__(self) -> str:
        elements = sum(tensor.numel() for part in self._fragments for tensor in part.outer.values())
        return (f"atomo.torch.OuterSync({counted(len(self._types))} of {elements} elements, {self.policy!r}, "
                f"every={self.every}, outer={self.outer!r}, round={self.round})")


_SAVED = ("layers", "policy", "seed", "channel", "steps", "round", "bytes_sent", "rank", "outer_lr", "outer_momentum", "outer",
          "momentum", "sums", "ranks", "within", "compressors")  # what a checkpoint has
_CHANGING = ("seed", "channel", "outer_lr", "outer_momentum", "step", "round", "fragment")  # facts that a program may change


def _first_difference(saved: Any, mine: Any) -> str:
    if isinstance(saved, str):
        return f"'{saved}', and this one '{mine}'"
    pairs = zip([*saved, *[None] * len(mine)], [*mine, *[None] * len(saved)])
    return next(f"{a if a is not None else 'no more'}, and this one {b if b is not None else 'no more'}"
                for a, b in pairs if a != b)
