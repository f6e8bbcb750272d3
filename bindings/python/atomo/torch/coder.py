# SPDX-License-Identifier: Apache-2.0
"""The compressor of a model that may change, and what every rank's has learnt of the price."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

import atomo

from .._policy import idle_rules
from .layers import Layer, compressor_of, joined
from .step import carried, digest_of, joined_memories
from .sums import Sums, differing
from .wire import DTYPES

HEAD_BYTES = 80  # of a layer's message, more or less

T = TypeVar("T")
U = TypeVar("U")


class Coder:
    """Encodes and decodes a model's layers one by one, on the CPU. It begins without any.

    Layers may be added, and their types may change, while what was learnt of the price stays. `learnt` holds that of each
    rank after the last whole step, and nothing before the first: a step that an error cut short teaches nothing, or ranks
    would go on from what the others do not know.
    """

    def __init__(self, policy: str, threads: int):
        self.policy, self.threads = policy, threads
        self.learnt: list[bytes] = []
        self._restore = False  # the compressor is to take its part of `learnt`
        self._worker: int | None = None  # whose the memories are; None before the first step
        self._loaded = False  # the memories are a checkpoint's, and no step has asked whose
        self._sent = False  # whether the last step made messages
        self._before: bytes | None = None  # memories when the last step began, where its model changed half way
        self.compressor: atomo.Compressor | None = None
        self._key: dict[str, int] | None = None  # of the step under way
        self._open = False  # the compressor is in a step
        self.sums, self.differing = Sums(), frozenset[str]()  # of layers whose messages are differences; which they are
        self.share = self.next_share = 1.0  # of the budget, that this step has and the next
        self._met: set[str] = set()  # layers whose gradients came
        self._pool = ThreadPoolExecutor(threads, "atomo-layers") if threads > 1 else None
        self._make({})

    def _make(self, layers: Mapping[str, Layer]) -> None:
        """A compressor that has learnt nothing, with the memories of the one before; none without layers."""
        kept = self.compressor.state("memories") if self.compressor is not None else None
        self.layers = dict(layers)
        self.compressor = compressor_of(layers, self.policy, self.threads, "cpu", takes_back=True) if layers else None
        self._open = False
        self.differing = frozenset(differing(self.compressor))
        self.sums.keep(self.differing)
        self.numbers = {name: number for number, name in enumerate(self.layers)}
        self.digest = digest_of([self.policy, self.table()])
        if kept is not None and self.compressor is not None:
            self.compressor.load_state(kept)

    @property
    def has_memory(self) -> bool:
        """Whether a codec keeps what it has not sent."""
        return self.compressor is not None and self.compressor.memory_bytes > 0

    def take_memories(self, states: Sequence[bytes]) -> None:
        """What models of some of these layers kept, later ones counting; the others' stay."""
        if self.has_memory and states:
            self.compressor.load_state(joined_memories([self.compressor.state("memories"), *states]))

    def own_memories(self, worker: int) -> None:
        """This worker's from now on: those of a checkpoint that was another's become zero.

        Raises:
            atomo.Error: for another's where messages are differences: what it has sent is in the sums.
        """
        if self._loaded and self._worker != worker and self.has_memory:
            if self.sums:
                codec = self.compressor.codec(min(self.differing))
                raise atomo.Error(f"the checkpoint is that of rank {self._worker}, and this is rank {worker}: what a rank has sent "
                                  f"with '{codec}' is its own, so each rank saves and loads its own")
            self.compressor.reset_memory()
        self._worker, self._loaded = worker, False

    def memories(self) -> tuple[int, bytes] | None:
        """The worker's number and its memories, where codecs have some and a step was made."""
        return (self._worker, self.compressor.state("memories")) if self.has_memory and self._worker is not None else None

    def table(self) -> list[list[Any]]:
        """The layers as plain values: name, shape and dtype of each."""
        return [[name, list(shape), dtype] for name, (shape, dtype) in self.layers.items()]

    # Changes

    def take(self, layers: Mapping[str, Layer]) -> None:
        """Other layers. A step under way goes on."""
        if list(layers.items()) == list(self.layers.items()):
            return
        own = [self.compressor.state("learnt")] if self.layers else []
        if self._key is not None and self.has_memory and self._before is None:
            now = self.compressor.state("memories")
            self._take_back_sent()
            self._before = self.compressor.state("memories")
            self.compressor.load_state(now)
        self._make(layers)
        self.learnt = self._fitted(self.learnt)
        for state in self._fitted(own):
            self.compressor.load_state(state)
        if self._key is not None:
            self._open_step(self._key)

    def set_policy(self, policy: str, check: Callable[[atomo.Compressor], None]) -> None:
        """Another policy, once its compressor has gone through `check`. What was learnt is forgotten, as it was learnt for another
        budget.

        Raises:
            atomo.Error: for a policy that cannot work; everything is then as it was.
        """
        if self.layers:
            check(compressor_of(self.layers, policy, self.threads, "cpu"))
        self.policy, self.learnt, self._restore, self._key = policy, [], False, None
        self._make(self.layers)

    def load(self, policy: str, table: Sequence[Sequence[Any]], learnt: Sequence[bytes],
             memories: tuple[int, bytes] | None = None, sums: Mapping[str, torch.Tensor] | None = None, sum_ranks: int = 0) -> None:
        """What a checkpoint holds: `policy`, `table()`, `learnt`, `memories()`, `sums.on_cpu()` and `sums.ranks`. It may lack layers
        that this model has. The first step says whether memories are its worker's.

        Raises:
            atomo.Error: for another policy, other layers, or bytes that are no saved state; everything is then as it was.
        """
        if policy != self.policy:
            raise atomo.Error(f"the saved state is of the policy '{policy}', this one's is '{self.policy}': "
                              "make them the same, by set_policy if need be")
        layers = {name: (tuple(shape), dtype) for name, shape, dtype in table}
        both = joined(layers, self.layers or layers, ("the saved state", "this one"))
        if layers:
            trial = compressor_of(layers, policy, self.threads, "cpu")
            for state in [*learnt, *([] if memories is None else memories[1:])]:
                trial.load_state(state)
        self._key, self._restore = None, True
        self._make(both)
        self.learnt = self._fitted(learnt)
        self._worker, self._loaded = None if memories is None else memories[0], memories is not None
        self.sums.load(sums or {}, sum_ranks)
        if self.compressor is not None:
            self.compressor.reset_memory()
            if memories is not None:
                self.compressor.load_state(memories[1])

    def _fitted(self, learnt: Sequence[bytes]) -> list[bytes]:
        """What models of fewer layers had learnt, for this one."""
        fresh = self.compressor.state("learnt") if learnt else b""
        return [carried(state, fresh) for state in learnt]

    # Steps

    def end_step(self) -> None:
        """After its last layer. `settle_step` or `drop_step` follows."""
        if self._key is not None:
            self.compressor.budget_share = self.next_share
            self._close_step()

    def settle_step(self, learnt: Sequence[bytes]) -> None:
        """A step went well everywhere: what each rank has learnt."""
        self.learnt, self._key = list(learnt), None

    def drop_step(self) -> None:
        """Forgets a step that was begun and did not end well."""
        if self._key is not None:
            self._key, self._restore = None, True
            self.take_memories_back()
            self._make(self.layers)

    def take_memories_back(self) -> None:
        """Those of the last step, and the sums, become what they were before it: nobody used its gradients. A second call changes
        nothing."""
        self.sums.take_back()
        if self._before is not None:
            self.compressor.load_state(self._before)
        else:
            self._take_back_sent()
        self._sent, self._before = False, None

    def _take_back_sent(self) -> None:
        if self.has_memory and self._sent:
            self._close_step()
            self.compressor.take_memory_back()

    def _close_step(self) -> None:
        if self._open:
            self._open = False
            self.compressor.end_step()

    def _begin_step(self, key: dict[str, int]) -> None:
        if self._restore and self.learnt:
            self.compressor.load_state(self.learnt[key["worker"] % len(self.learnt)])
        self.own_memories(key["worker"])
        self._restore = False
        self._sent, self._before = False, None
        self._open_step(key)
        self._key = key

    def _open_step(self, key: dict[str, int]) -> None:
        self.compressor.budget_share = self.share
        self.compressor.begin_step(**key)
        self._open = True

    # Layers

    def encode(self, gradients: Sequence[tuple[str, torch.Tensor]], key: dict[str, int]) -> list[bytes]:
        """A message of each gradient. The model's types become those of the gradients; the first call of a step begins
        it."""
        self._follow({name: DTYPES[gradient.dtype] for name, gradient in gradients})
        if self._key is None:
            self._begin_step(key)
        return self.each(self._encode_layer, gradients)

    def _encode_layer(self, layer: tuple[str, torch.Tensor]) -> bytes:
        message = self.compressor.encode_layer(*layer)
        self._sent = True
        return message

    def _follow(self, types: Mapping[str, str]) -> None:
        """Takes the types of these layers' gradients. What becomes of one type is expected of all layers of that type
        whose gradients never came: a step that changed its model half way would learn from the other half alone."""
        self._met.update(types)
        becomes = {self.layers[name][1]: dtype for name, dtype in types.items()}
        if any(was != dtype for was, dtype in becomes.items()):
            self.take({name: (shape, types.get(name, dtype if name in self._met else becomes.get(dtype, dtype)))
                       for name, (shape, dtype) in self.layers.items()})

    def decode_add_all(self, name: str, messages: Sequence[bytes | torch.Tensor], *, out: torch.Tensor,
                       alpha: float) -> None:
        """out = out + alpha * each message of this layer, in their order."""
        self.compressor.decode_layer_add_all(name, messages, out=out, alpha=alpha)

    def each(self, work: Callable[[T], U], layers: Iterable[T]) -> list[U]:
        """`work` of each layer, of several at once where there are threads."""
        if self._pool is None:
            return [work(layer) for layer in layers]
        return list(self._pool.map(work, layers))

    # Advice

    def advice(self, message_a_layer: bool = True) -> list[str]:
        """What a policy is likely not meant to do to these layers."""
        if not self.layers:
            return []
        names = list(self.layers)
        said = [f"the rule '{rule}' of the policy matches no layer: there are "
                f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''}" for rule in idle_rules(self.policy, names)]
        codecs = [self.compressor.codec(name) for name in names]
        if biased := list(dict.fromkeys(str(codec) for codec in codecs if not codec.traits.unbiased and not codec.traits.memory)):
            said.append(f"biased and without a memory: {', '.join(map(repr, biased))}; what a message leaves out is lost, and "
                        f"'ef+{biased[0]}' sends it later")
        heads = sum("atomo:" in str(codec) and "bits=" in str(codec) for codec in codecs)
        budget = self.compressor.budget_bytes
        if message_a_layer and 0 < budget < HEAD_BYTES * heads:
            said.append(f"each step takes more than its budget of {budget:.0f} bytes: the heads of {heads} messages, "
                        f"one a layer, take some {HEAD_BYTES * heads} bytes")
        return said
