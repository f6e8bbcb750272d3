# SPDX-License-Identifier: Apache-2.0
"""A model: all its layers at one price, whole or one by one."""
from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

from . import _atomo, _device, _policy
from ._codec import Codec
from ._errors import DecodeError, Error
from ._frameworks import AnyArray, Array, check_threads, checked_text, finished, on_cuda, target, targets
from ._layers import counted, mapping_of, spec_of
from ._messages import Prices, explained, listed


@dataclass(frozen=True)
class PlannedLayer:
    """What a policy does to a layer: `Compressor.plan`."""

    name: str
    rule: str
    """The pattern that took it, `*` where one codec is for all."""
    codec: Codec
    shape: tuple[int, ...]
    dtype: str
    max_bytes: int
    """Upper bound of a message of this layer alone."""


class Compressor:
    """Encodes and decodes all layers of a model, whole or one by one. May be used from many threads.

    `layers` maps names to shapes (of f32) or to arrays, of which the shape and the dtype are taken; pairs, such as
    `named_parameters()`, and a module of PyTorch, whose trained parameters count, will do as well. `policy` is one
    spec for all layers, or rules `pattern=spec` separated by `;` or lines, of which the first that matches a name
    counts (`*` any characters, `?` one; write `a:0 = sign` with room around the sign where a name holds a colon).
    Layers with a budget (`bits=`) share one price, so bits go where they save most. `threads` work on one call, this
    one included: on the layers of a whole message side by side, and within one layer (`encode_layer`, `decode_layer`)
    on everything but the encoding by `topk`, `randomk` and exact decompositions. The bytes never depend on them.
    `names_on_wire` puts the layers' names into whole messages. `device` is where the gradients are, "cpu" or "cuda". A
    sketch looks for as many pairs as earlier messages of its layer had a use for, so the same input, key and history
    give the same bytes; `learns_ranks=False` has it look for all, and a whole message follows from its input and key.

    Raises `atomo.Error` for names twice, layers without a rule, or specs that cannot be read, and warns of a rule
    that matches no layer; `plan()` shows which rule took which.

    >>> import atomo, numpy
    >>> model = atomo.Compressor({"fc.weight": (128, 784), "fc.bias": 128}, "*.bias=identity; *=atomo:bits=0.5")
    >>> gradients = {"fc.weight": numpy.ones((128, 784), "float32"), "fc.bias": numpy.ones(128, "float32")}
    >>> payload = model.encode(gradients, seed=1, step=0, worker=3)
    >>> decoded = model.decode(payload, like=gradients)
    >>> bool((decoded["fc.bias"] == 1).all())
    True

    Layer by layer, as back-propagation produces them and from any thread:

    >>> model.begin_step(seed=1, step=1, worker=3)
    >>> parts = [model.encode_layer(name, gradients[name]) for name in reversed(model.layers)]
    >>> model.end_step()
    >>> model.decode_layer("fc.bias", parts[0], out=numpy.empty(128, "float32"))[0].item()
    1.0

    Layer by layer into one message, whose bytes are those of `encode`:

    >>> model.begin_message(seed=1, step=2, worker=3)
    >>> for name in reversed(model.layers):
    ...     model.add_layer(name, gradients[name])
    >>> payload = model.end_message()

    A codec with a memory, such as `ef+topk:keep=0.01`, adds to each gradient what earlier messages of the layer left out
    (docs/memories.md): a worker keeps one model for all its steps, and a layer is sent once a step. Messages of `ef21+` are
    differences (`Codec.traits.differences`): `decode_add_all` them into arrays that are never cleared. With `takes_back` a
    message that nobody used can be taken out of the memories again, which take twice their bytes.

    Pickling keeps what was learnt of the price and of ranks, and memories; a message or a step under way is not kept.
    """

    def __init__(self, layers: Mapping[str, Any] | Iterable[tuple[str, Any]] | Any, policy: str | Codec, *, threads: int = 1,
                 names_on_wire: bool = False, device: str = "cpu", learns_ranks: bool = True, takes_back: bool = False) -> None:
        check_threads(threads)
        if device not in ("cpu", "cuda"):
            raise Error(f"device is {device!r}: cpu and cuda are accepted")
        specs = [spec_of(checked_text(str(name), "layers"), value) for name, value in mapping_of(layers).items()]
        self._make(specs, checked_text(str(policy), "policy"), threads, bool(names_on_wire), device, bool(learns_ranks),
                   bool(takes_back))
        for rule in _policy.idle_rules(self._policy, self._numbers):
            warnings.warn(f"the rule {rule!r} of the policy matches no layer; there are {_some(self._numbers)}",
                          stacklevel=2)

    def _make(self, specs: list[tuple[str, tuple[int, ...], str]], policy: str, threads: int, names_on_wire: bool,
              device: str, learns_ranks: bool, takes_back: bool) -> None:
        if device == "cuda":
            _device.require_cuda()
        self._specs, self._policy, self._threads = specs, policy, threads
        self._names_on_wire, self._device = names_on_wire, device
        self._learns_ranks, self._takes_back = learns_ranks, takes_back
        self._model = _atomo.Compressor(specs, policy, threads, names_on_wire, device, learns_ranks, takes_back)
        self._streamed: Any = None  # an array of the step under way on a GPU, whose framework end_step asks
        self._numbers = {spec[0]: number for number, spec in enumerate(specs)}

    @classmethod
    def _of(cls, specs: list[tuple[str, tuple[int, ...], str]], policy: str, *, threads: int = 1,
            names_on_wire: bool = False, device: str = "cpu", learns_ranks: bool = True,
            takes_back: bool = False) -> Compressor:
        """A model of layers given as (name, shape, dtype), without warnings."""
        self = cls.__new__(cls)
        self._make(specs, policy, threads, names_on_wire, device, learns_ranks, takes_back)
        return self

    def plan(self) -> list[PlannedLayer]:
        """Which rule took each layer, what it does to it, and the most bytes that may take.

        >>> import atomo
        >>> for layer in atomo.Compressor({"fc.weight": (9, 7), "fc.bias": 9}, "*.bias=sign; *=qsgd:bits=4").plan():
        ...     print(layer.name, layer.rule, layer.codec)
        fc.weight * qsgd:bits=4,bucket=512,norm=max
        fc.bias *.bias sign
        """
        return [PlannedLayer(name, _policy.rule_of(self._policy, name), self.codec(name), shape, dtype,
                             self._model.layer_max_encoded_bytes(number))
                for number, (name, shape, dtype) in enumerate(self._specs)]

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers' names in the order of registration, which is that of a message."""
        return tuple(self._numbers)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape that a layer was registered with."""
        return self._specs[self._number(name)][1]

    def dtype(self, name: str) -> str:
        """The dtype that a layer was registered with: "f32", "f16" or "bf16"."""
        return self._specs[self._number(name)][2]

    def codec(self, name: str) -> Codec:
        """What the policy gave a layer."""
        return Codec(self._model.codec(self._number(name)))

    @property
    def policy(self) -> str:
        """As it was given."""
        return self._policy

    @property
    def device(self) -> str:
        """Where the gradients are, "cpu" or "cuda"."""
        return self._device

    def encode(self, gradients: Mapping[str, Array], *, seed: int = 0, step: int, worker: int = 0,
               channel: int = 0) -> bytes | Any:
        """Encodes all layers as one message, at one price found from the whole budget.

        `gradients` maps every layer's name to an array of the registered shape and dtype. The rest is the key, as in
        `Codec.encode`. Returns `bytes`; on a GPU a uint8 array there, which waits for the stream. Calls of several
        threads wait for one another. Warns once (`UserWarning`) when the budget does not pay for a message worth
        sending, which is then exceeded. Where warnings are errors (`python -W error`) the next message or step raises
        it as it begins: this message is returned, because memories have moved with it. Raises `atomo.Error`.
        """
        arrays = self._ordered(gradients, "gradients")
        if self._on_cuda(arrays[0]):
            return _device.encode_model(self._model, arrays, (seed, step, worker, channel))
        return self._model.encode(arrays, seed, step, worker, channel)

    def begin_message(self, *, seed: int = 0, step: int, worker: int = 0, channel: int = 0) -> None:
        """Begins a message of all layers that come one by one, as back-propagation makes them.

        Its bytes are those of `encode` with the same key. Raises `atomo.Error` on a GPU, and while a message or a step is
        under way.
        """
        if self._device == "cuda":
            raise Error("begin_message: layers are in host memory; on a GPU encode makes the message at once")
        self._model.begin_message(seed, step, worker, channel)

    def add_layer(self, name: str, gradient: Array) -> None:
        """Does all the work on a layer of the message that needs no price; any order, any thread.

        The array is kept, and must keep its values, until `end_message`. Of a layer added again the last counts. Raises
        `atomo.Error` outside of a message.
        """
        self._model.add_layer(self._number(name), gradient)

    def end_message(self) -> bytes:
        """Finds the price, does the rest of the work and returns the message.

        Warns of a budget that does not pay for a message, as `encode` does. Raises `atomo.Error` outside of a message and
        when a layer was not added; the message is given up then.
        """
        return self._model.end_message()

    @overload
    def decode(self, payload: Any, *, like: Mapping[str, AnyArray]) -> dict[str, AnyArray]: ...

    @overload
    def decode(self, payload: Any, *, out: Mapping[str, AnyArray]) -> dict[str, AnyArray]: ...

    def decode(self, payload: Any, *, like: Mapping[str, Any] | None = None,
               out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Decodes a message of all layers, into the arrays of `out` or into new ones like those of `like`.

        A message says how it is written: one of another policy, with the same shapes, is decoded too, so a policy may
        change while a receiver stands (`Codec.decode` takes messages of its own codec alone). Returns the arrays by
        name. Raises `atomo.DecodeError` for bytes that are no such message; what `out` holds is then unspecified.
        """
        wanted = None if like is None else self._ordered(like, "like")
        arrays = targets(wanted, None if out is None else self._ordered(out, "out"))
        if self._on_cuda(arrays[0]):
            _device.decode_model(self._model, [payload], arrays, None)
        else:
            try:
                self._model.decode(payload, arrays)
            except DecodeError as error:
                raise explained(error, payload, [(shape, None) for _, shape, _ in self._specs]) from error.__cause__
        if wanted is not None:
            arrays = [finished(array, x) for array, x in zip(arrays, wanted)]
        return dict(zip(self._numbers, arrays))

    def decode_add(self, payload: Any, *, out: Mapping[str, AnyArray], alpha: float = 1.0) -> dict[str, AnyArray]:
        """Adds a message: out = out + alpha * decoded, layer by layer; otherwise as `decode_add_all`."""
        return self.decode_add_all([payload], out=out, alpha=alpha)

    def decode_add_all(self, payloads: Sequence[Any], *, out: Mapping[str, AnyArray],
                       alpha: float = 1.0) -> dict[str, AnyArray]:
        """Adds all workers' messages in the order given: out = out + alpha * decoded, layer by layer.

        Arrays of f32 receive bit for bit what one message after another gives; halves are added up in f32 and rounded
        once. A layer stays in a cache while one message after the other is added. Returns the arrays by name. Raises
        `atomo.DecodeError`, which on the CPU names the message; what `out` holds is then unspecified.
        """
        payloads, arrays = listed(payloads), self._ordered(out, "out")
        if self._on_cuda(arrays[0]):
            _device.decode_model(self._model, payloads, arrays, _atomo.alpha_of(alpha))
        else:
            self._model.decode_add_all(payloads, arrays, alpha)
        return dict(zip(self._numbers, arrays))

    def begin_step(self, *, seed: int = 0, step: int, worker: int = 0, channel: int = 0,
                   prices: Prices | tuple[float, float] | None = None) -> None:
        """Fixes the key and the prices of a step whose layers come one by one.

        The prices are predicted from earlier steps; in the first one each layer finds its own. Workers who want one
        price or one grid step agree on theirs and give them: `predicted_prices._replace(grid=largest)`. Under a `cap=`
        near `bits=` a small model's layers spend much less than the budget; a larger cap leaves them more of it. Raises
        `atomo.Error` while a step is under way.
        """
        self._model.begin_step(seed, step, worker, channel, prices)

    def encode_layer(self, name: str, gradient: Array) -> bytes | Any:
        """Encodes one layer of the step as a message of its own; any order, any thread.

        Of a layer encoded again the last counts. Returns `bytes`; on a GPU a uint8 array there, which waits for the
        stream. Raises `atomo.Error` outside of a step, and for a layer that was encoded before in the step where its codec
        has a memory.
        """
        number = self._number(name)
        if self._on_cuda(gradient):
            self._streamed = gradient
            return _device.encode_layer(self._model, number, gradient)
        return self._model.encode_layer(number, gradient)

    def end_step(self) -> None:
        """Ends the step and learns the next one's price from it.

        Warns of a budget that does not pay for a message, as `encode` does. Raises `atomo.Error` outside of a step.
        """
        if self._device == "cuda":
            _device.end_step(self._model, self._streamed)
            self._streamed = None
        else:
            self._model.end_step()

    def part(self, names: Iterable[str]) -> Compressor:
        """Neighbouring layers as a compressor whose messages belong to this model's steps: a bucket of gradients.

        Between `begin_step` and `end_step` of this model `part.encode`, with the step's key, makes one message of the
        part's layers at the step's prices, and the step learns from it as from single layers: all parts keep one budget.
        Where there is no price yet, in the first step, a part finds one from its own budget. A `cap=` bounds each part's
        message as that of a model of its own, and `part.wire_bytes` says how. `part.decode` and its likes read such
        messages at any time. What is learnt is this model's, and saved with it; a part cannot be pickled. Raises
        `atomo.Error` for names that do not stand behind one another in `layers`, a part of a part, and a cap that leaves
        no room.

        >>> import atomo, numpy
        >>> model = atomo.Compressor({"a": 400, "b": 500, "c": 600}, "atomo:bits=1,atoms=blocks")
        >>> bucket = model.part(["b", "c"])
        >>> gradients = {"b": numpy.ones(500, "float32"), "c": numpy.ones(600, "float32")}
        >>> model.begin_step(seed=1, step=0)
        >>> payload = bucket.encode(gradients, seed=1, step=0)
        >>> model.end_step()
        >>> sorted(bucket.decode(payload, like=gradients))
        ['b', 'c']
        """
        numbers = [self._number(name) for name in names]
        if not numbers or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise Error(f"part: {_some(self.layers[n] for n in numbers)}: layers that stand behind one another in `layers` "
                        "are expected, in that order")
        part = Compressor.__new__(Compressor)
        part._specs, part._policy, part._threads = [self._specs[n] for n in numbers], self._policy, self._threads
        part._names_on_wire, part._device = self._names_on_wire, self._device
        part._learns_ranks, part._takes_back = self._learns_ranks, False
        part._model = _atomo.Compressor(self._model, numbers[0], len(numbers))
        part._streamed = None
        part._numbers = {spec[0]: number for number, spec in enumerate(part._specs)}
        return part

    @overload
    def decode_layer(self, name: str, payload: Any, *, like: AnyArray) -> AnyArray: ...

    @overload
    def decode_layer(self, name: str, payload: Any, *, out: AnyArray) -> AnyArray: ...

    def decode_layer(self, name: str, payload: Any, *, like: Any = None, out: Any = None) -> Any:
        """Decodes what `encode_layer` of this layer wrote, here or at another worker. Returns the array.

        Raises `atomo.DecodeError` for bytes that are no message of the layer's codec.
        """
        number, array = self._number(name), target(like, out)
        if self._on_cuda(array):
            _device.decode_layer(self._model, number, [payload], array, None)
        else:
            self._model.decode_layer(number, payload, array)
        return array if like is None else finished(array, like)

    def decode_layer_add(self, name: str, payload: Any, *, out: AnyArray, alpha: float = 1.0) -> AnyArray:
        """Adds a layer's message to `out`, which is of f32: out = out + alpha * decoded. Returns `out`."""
        number = self._number(name)
        if self._on_cuda(out):
            _device.decode_layer(self._model, number, [payload], out, _atomo.alpha_of(alpha))
        else:
            self._model.decode_layer_add(number, payload, out, alpha)
        return out

    def decode_layer_add_all(self, name: str, payloads: Sequence[Any], *, out: AnyArray,
                             alpha: float = 1.0) -> AnyArray:
        """Adds several messages of a layer in the order given; otherwise as `Codec.decode_add_all`."""
        number, payloads = self._number(name), listed(payloads)
        if self._on_cuda(out):
            _device.decode_layer(self._model, number, payloads, out, _atomo.alpha_of(alpha))
        else:
            self._model.decode_layer_add_all(number, payloads, out, alpha)
        return out

    @property
    def prices(self) -> Prices:
        """The prices of the step under way, or of the last one; 0 before the first."""
        return Prices(*self._model.prices())

    @property
    def predicted_prices(self) -> Prices:
        """The prices that the next `begin_step` would take, 0 before the first step."""
        return Prices(*self._model.predicted_prices())

    @property
    def budget_bytes(self) -> float:
        """The budget of a whole message, by its share of it; 0 when no layer has one."""
        return self._model.budget_bytes()

    @property
    def budget_share(self) -> float:
        """What messages have of the budgets (`bits=`) of their codecs, at first 1: `budget_shares` spends more where the
        learning rate is high. Steps take it when the step before ends, because their price is found then: set the next
        step's before `end_step`. The layers of a model's first step have whole budgets, and caps stay. It is not saved, and is
        set between messages.
        """
        return self._model.budget_share()

    @budget_share.setter
    def budget_share(self, share: float) -> None:
        self._model.set_budget_share(share)

    @property
    def elements(self) -> int:
        """The elements of all layers together."""
        return self._model.elements()

    @property
    def max_encoded_bytes(self) -> int:
        """Upper bound of a whole message, whatever the gradients hold."""
        return self._model.max_encoded_bytes()

    @property
    def expected_bytes(self) -> int | None:
        """Bytes that a whole message is expected to take: budgets and bodies of fixed size; None where a layer has neither."""
        return self._model.expected_bytes()

    @property
    def wire_bytes(self) -> int | None:
        """Bytes that every worker can send of its whole message, so that lengths need not travel: no message is longer,
        whatever the gradients hold; None where a layer's codec is not `traits.bounded`. What stands behind a message may
        be anything: its head tells where it ends."""
        return self._model.wire_bytes()

    def memory(self, name: str) -> bytes:
        """What the memory of a layer keeps, of a codec such as `ef+topk:keep=0.01`: f32 values, an entry each, for
        `numpy.frombuffer(..., "float32")`; of `ef21+` all that was sent so far. Empty where its codec has no memory. Between
        steps. Raises `atomo.Error` of a part, which keeps nothing.

        >>> import atomo, numpy
        >>> model = atomo.Compressor({"a": 4}, "ef+topk:keep=1")
        >>> payload = model.encode({"a": numpy.array([1, 2, 3, 4], "float32")}, step=0)
        >>> numpy.frombuffer(model.memory("a"), "float32").tolist()
        [1.0, 2.0, 3.0, 0.0]
        """
        return self._model.memory(self._number(name))

    @property
    def memory_bytes(self) -> int:
        """Bytes that the memories of its layers take."""
        return self._model.memory_bytes()

    def reset_memory(self) -> None:
        """Every memory becomes zero, as in a new model. Raises `atomo.Error` of a part, and within a step or message."""
        self._model.reset_memory()

    def take_memory_back(self, *, like: Any = None) -> None:
        """Memories become what they were before the last step, or message outside a step, which nobody used, as where all
        workers skip it. Layers that it did not have stay as they are, all where its call failed. Of a model made with `takes_back=True`, between steps; a second call changes nothing before the next
        message. On a GPU `like` is an array there, on whose framework's stream it works and waits. Raises `atomo.Error`.
        """
        if self._device == "cuda":
            _device.take_memory_back(self._model, like)
        else:
            self._model.take_memory_back()

    def state(self, what: str = "all") -> bytes:
        """What is needed to go on after a crash: what was "learnt" of the price and of the shares under a `cap=`, the
        "memories" of codecs that have some, or "all". Each worker has memories of its own."""
        if what not in ("all", "learnt", "memories"):
            raise Error(f"what is {what!r}: all, learnt and memories are accepted")
        return self._model.save(what)

    def load_state(self, state: bytes) -> None:
        """Takes what `state` returned; what that does not hold stays as it is. Raises `atomo.Error` for other bytes.

        Prices are no layer's: a model with other layers or another policy may go on from them. Memories are taken by
        layers of the same name and shape, whose codec has such a memory; the others become zero.
        """
        self._model.load(state)

    def _number(self, name: str) -> int:
        try:
            return self._numbers[name]
        except KeyError:
            raise Error(f"no layer is called {name!r}; there are {_some(self._numbers)}") from None

    def _ordered(self, arrays: Mapping[str, Any], what: str) -> list:
        """The arrays of a mapping in the order of registration."""
        if not isinstance(arrays, Mapping):
            raise TypeError(f"{what}: a mapping of layers' names to arrays is expected, found {type(arrays).__name__}")
        missing = [name for name in self._numbers if name not in arrays]
        if missing:
            raise Error(f"{what}: {_some(missing)} missing")
        if len(arrays) != len(self._numbers):
            unknown = [name for name in arrays if name not in self._numbers]
            raise Error(f"{what}: no layer is called {_some(unknown)}")
        return [arrays[name] for name in self._numbers]

    def _on_cuda(self, array: Any) -> bool:
        """Whether a call is one of a GPU. A model of the CPU refuses arrays that are not there."""
        there = on_cuda(array)
        if there != (self._device == "cuda"):
            raise Error(f"this model was made with device={self._device!r}, and the array is on "
                        f"{'a GPU' if there else 'the CPU'}")
        return there

    def __repr__(self) -> str:
        return f"atomo.Compressor({counted(len(self._specs))} of {self.elements} elements, {self._policy!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"specs": self._specs, "policy": self._policy, "threads": self._threads,
                "names_on_wire": self._names_on_wire, "device": self._device, "learns_ranks": self._learns_ranks,
                "takes_back": self._takes_back, "learnt": self.state()}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self._make(saved["specs"], saved["policy"], saved["threads"], saved["names_on_wire"], saved["device"],
                   saved["learns_ranks"], saved["takes_back"])
        self.load_state(saved["learnt"])


def _some(names: Any) -> str:
    """The first few of names, quoted."""
    names = [repr(name) for name in names]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
