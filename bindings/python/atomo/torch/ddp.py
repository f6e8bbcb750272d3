# SPDX-License-Identifier: Apache-2.0
"""A communication hook for DistributedDataParallel: every gradient travels as a message of atomo.

A step of W workers: as a bucket of gradients becomes ready, each parameter's gradient is encoded under its own name,
the lengths and then the messages go to all ranks, and every rank adds all of them, in rank order, to the
mean. All ranks decode the same bytes in the same order, so replicas stay equal to the bit.

On a GPU a bucket is one message, and the host queues its way from the gradients to their mean without waiting for any of it.
"""

# No `from __future__ import annotations` here: DDP compares those of a hook with the types themselves.
import dataclasses
import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist

import atomo

from .._device import require_cuda
from .._layers import counted
from .bucket import DeviceBuckets
from .coder import Coder
from .ddp_steps import Steps, rate_from, scale_from
from .groups import drawn_before, group_of, is_alive
from .layers import Layer, Parameters, device_of, joined, layers_of, named, trained
from .squares import Squares
from .step import StepLog, check_integers, check_saved
from .sums import differing

_SAVED = ("policy", "layers", "seed", "channel", "start_step", "step", "bytes_sent", "compressor", "memories", "sums", "sum_ranks",
          "squares")  # what a checkpoint has
_states: "weakref.WeakSet[DDPState]" = weakref.WeakSet()  # of this process


class DDPState(Steps):
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
            matches no layer is warned of, and so is a biased codec without a memory. `cap=` bounds what a single step can cost; without it a step whose
            gradients are suddenly 10^4 times larger takes some 20 times its budget, which later steps make up for. With `ef21+`
            messages are differences, which the state adds up, in 8 bytes a parameter where the gradients are.
        process_group: of DDP. When None that of a DDP model, else the default group. A group of the same ranks,
            backend and time limit is made beside it (DDP itself uses its own while messages are on their way), so all
            its ranks make their states in the same order. After `destroy_process_group` a new one is made by itself.
        seed: of the run's draws, the same on all ranks; the rank is the worker's number, so workers draw
            independently.
        channel: separates the draws of two models with one seed.
        threads: that encode the layers of a bucket and add up the ranks' messages, each a layer of its own. Where one
            layer is most of the model most of the work is one thread's. The bytes do not depend on them.
        start_step: steps before this one send gradients as they are, by all-reduce (PowerSGD's `start_powerSGD_iter`).
        scale: what gradients are multiplied by, or a function that says it now: `scaler.get_scale` of a GradScaler; the same on all
            ranks. Memories and squares are of gradients divided by it. A function is not pickled: `state.scale` is to be set again behind that.
        budget_share: what a step has of the budgets (`bits=`) of its codecs; or a number for each step, such as
            `atomo.budget_shares(rates)`, of which steps behind the end have the last; or a function of a step's number.
        clip_norm: bound on the norm of this rank's gradient, divided by `scale`, which is scaled down to it before anything else
            happens to it. `clip_grad_norm_` behind `backward()` has the mean of all ranks, with the codec's noise in
            it: a rank whose gradient is a spike is most of that mean. A step sends nothing before all of its gradients are there.
        rate_in_memory: what is left of the learning rate, its part of the highest one, or a function that says it now, such as
            `lambda: schedule.get_last_lr()[0] / highest`; 1 in a warm-up. Gradients are multiplied by it before a memory
            (`ef+`, `momentum+`, `dgc+`) has them, and the mean is divided by it, so that what is sent late moves weights as far as it
            would have in its own step (EF-SGD, Karimireddy et al., arXiv 1901.09847, algorithm 2). Below 1/1024 it counts as that. The
            same on all ranks. Gradients are f32. A function is not pickled, as that of `scale` is not.
        squares: an `atomo.torch.Squares` that is told of the squares of gradients, for an optimiser such as
            `atomo.torch.AdamW`. It is saved with the state.

    Raises:
        atomo.Error: for a policy, a parameter, a key or a group that cannot work.

    A gradient that is not finite makes its layer NaN on all ranks, for that step alone, so a GradScaler skips the step
    everywhere; memories are then as they were before it (on a GPU sparse gradients are not looked at for that). Sparse gradients,
    which have no codec, travel by all-reduce. A
    message has a head of some 80 bytes: models of few parameters, or many tiny layers, take more than their budget, which is warned of.

    On a GPU each bucket is a model of its own: one encode, one all-gather, one decode of all ranks' messages, on streams
    beside back-propagation's and on DDP's own process group. Where every layer has `cap=` or a codec of fixed size
    (`Compressor.wire_bytes`) a step waits for nothing and takes no memory once DDP has settled its buckets; otherwise it
    waits once a bucket, for the messages' lengths, and sends each as long as the longest. Budgets and caps hold for each
    bucket, whose price is found in its message, so `last.price` stays 0; the ranks of sketches are learnt anew after a
    checkpoint. Memories stand on the GPU, and a step that is not finite is taken back there; a checkpoint, and buckets that
    DDP makes anew, bring them to the CPU, where there is room for them too. What fails on the GPU is raised in a later step.
    It ran on an H200 with one rank over NCCL (tests/gpu/python); several ranks run in tests on the CPU, with a stand-in for
    streams and events.
    """

    def __init__(self, model: Parameters | None = None, policy: str | atomo.Codec = "atomo:bits=0.5", *,
                 process_group: dist.ProcessGroup | None = None, seed: int = 0, channel: int = 0, threads: int = 1,
                 start_step: int = 0, scale: float | Callable[[], float] = 1.0, squares: Squares | None = None,
                 budget_share: float | Iterable[float] | Callable[[int], float] = 1.0, clip_norm: float | None = None,
                 rate_in_memory: float | Callable[[], float] | None = None):
        check_integers(seed=seed, channel=channel, threads=threads, start_step=start_step)
        if squares is not None and not isinstance(squares, Squares):
            raise atomo.Error(f"squares is {squares!r}: an atomo.torch.Squares() is expected, which atomo.torch.AdamW takes too")
        self.seed, self.channel, self.start_step = seed, channel, start_step
        is_number = isinstance(clip_norm, (int, float)) and not isinstance(clip_norm, bool)
        if clip_norm is not None and not (is_number and 0 < clip_norm < math.inf):
            raise atomo.Error(f"clip_norm is {clip_norm!r}: a bound above 0 is expected, or None")
        self.scale, self.squares, self.clip_norm, self.rate_in_memory = scale, squares, clip_norm, rate_in_memory
        self.budget_share = list(budget_share) if isinstance(budget_share, Iterable) and not isinstance(budget_share, str) else budget_share
        self._check_numbers()
        self._coder = Coder(str(policy), threads)
        self._sent = [0]  # by each rank in all steps so far, of earlier runs too
        self.step = 0  # steps begun
        self.last = StepLog(0)
        self._start(process_group)
        if model is not None:
            self._bind(model, process_group)

    def _check_numbers(self) -> None:
        """Those that are no functions, which are asked in a step.

        Raises:
            atomo.Error: for one that cannot be, by its name.
        """
        if not callable(self.scale):
            scale_from(self.scale)
        if self.rate_in_memory is not None and not callable(self.rate_in_memory):
            rate_from(self.rate_in_memory)
        if self.budget_share == []:
            raise atomo.Error("budget_share is empty: a number for each step is expected")
        if not callable(self.budget_share):
            for step in range(len(self.budget_share) if isinstance(self.budget_share, list) else 1):
                self._share_of(step)

    def _start(self, process_group: dist.ProcessGroup | None) -> None:
        """What a process has of its own and no checkpoint holds."""
        self.process_group = process_group
        self._group: dist.ProcessGroup | None = None
        self._checked: dist.ProcessGroup | None = None  # the group that was compared with DDP's
        self._parameters: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}
        self._error: Exception | None = None  # of an earlier bucket of this step
        self._failed: Exception | None = None  # before the first bucket of this step
        self._on_gpu = DeviceBuckets()
        self._held = []  # buckets of a step whose gradient is not whole yet
        if self.squares is not None:
            self.squares.given = True  # before it knows names too
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
        self._settle()
        self._coder.take_memories(self._on_gpu.memories())
        device = device_of(parameters)
        if device.type == "cuda":
            require_cuda()
        self._coder.take(layers)
        self._check_codecs(self._coder.compressor)
        names = {id(p): name for name, p in parameters.items()}
        if self.squares is not None:
            self.squares.bind(names, self)
        self._start(group_of(model, process_group))
        # By identity, which holding them keeps from passing to others.
        self._parameters, self._names = parameters, names
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
        self._settle()
        self._coder.take_memories(self._on_gpu.memories())
        self._coder.set_policy(str(policy), self._check_codecs)
        self._on_gpu.forget()
        for said in self._advice():
            warnings.warn(said, stacklevel=2)

    def _check_codecs(self, compressor: atomo.Compressor) -> None:
        """That they go with the other arguments."""
        found = differing(compressor)
        if self.squares is not None and found:
            raise atomo.Error(f"squares compare gradients with what their messages decode to, and those of "
                              f"'{compressor.codec(found[0])}' are differences: leave squares= out, or take 'ef+'")
        if self.rate_in_memory is not None and (found or not compressor.memory_bytes):
            codec = compressor.codec(found[0] if found else next(iter(compressor.layers)))
            raise atomo.Error(f"rate_in_memory needs a codec with a memory, and none of ef21+, not '{codec}': leave it out, or take "
                              "one such as 'ef+topk:keep=0.01'")

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
        """Everything a run needs to go on, as plain values and bytes, and with `ef21+` tensors on the CPU. To be called between steps;
        of a step that an error cut short nothing is in it.

        It holds what every rank has learnt, and is the same on all ranks: one rank's checkpoint serves all. Memories
        (`ef+`) are the rank's own: they come back where each rank saves and loads its own, and else begin at zero. With `ef21+`
        each rank has to load its own, in as many ranks, because the sums of all messages are in it.
        """
        self._on_gpu.look()
        self._settle()
        self._coder.take_memories(self._on_gpu.memories())
        return {"policy": self.policy, "layers": self._coder.table(), "seed": self.seed, "channel": self.channel,
                "start_step": self.start_step, "step": self.step, "bytes_sent": list(self._sent),
                "compressor": list(self._coder.learnt), "memories": self._coder.memories(),
                "sums": self._coder.sums.on_cpu(), "sum_ranks": self._coder.sums.ranks,
                "squares": None if self.squares is None else self.squares.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken, on each rank where that rank was, to the bit. Of another number
        of ranks, rank r goes on from what rank r modulo that number had learnt.

        Raises:
            atomo.Error: for another policy, other layers, or what is no saved state; everything is then as it was.
        """
        check_saved(state, _SAVED)
        check_integers(**{name: state[name] for name in ("seed", "channel", "start_step", "step")})
        if self.squares is not None and state["squares"] is not None:
            Squares.check_saved(state["squares"])
        self._settle()
        self._coder.load(state["policy"], state["layers"], state["compressor"], state["memories"], state["sums"], state["sum_ranks"])
        self._on_gpu.forget()
        if self.squares is not None and state["squares"] is not None:
            self.squares.load_state_dict(state["squares"])
        self._sent = list(state["bytes_sent"])
        self.seed, self.channel, self.step = state["seed"], state["channel"], state["step"]
        self.start_step = state["start_step"]

    def __getstate__(self) -> dict[str, Any]:
        scale = None if callable(self.scale) else self.scale  # a copy of a GradScaler would be asked
        rate = math.nan if callable(self.rate_in_memory) else self.rate_in_memory
        return {**self.state_dict(), "threads": self._coder.threads, "last": self.last, "scale": scale, "rate_in_memory": rate,
                "squares_object": self.squares, "budget_share": self.budget_share, "clip_norm": self.clip_norm}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.last, self.scale, self.squares = state["last"], state["scale"], state["squares_object"]
        self.budget_share, self.clip_norm, self.rate_in_memory = state["budget_share"], state["clip_norm"], state["rate_in_memory"]
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
        layers = f"{counted(len(self.layers))} of {self.compressor.elements} elements" if self.layers else "no model yet"
        return f"atomo.torch.DDPState({layers}, {self.policy!r}, seed={self.seed}, step={self.step})"


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
