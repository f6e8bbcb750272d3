# SPDX-License-Identifier: Apache-2.0
"""A model, its data and its optimiser, as the trainer's C++ asks for them: numbers of samples in, flat arrays out."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from atomo import Error

from ._checkpoints import load, statistics_of

_MOST_CLASSES = 65536  # of the trainer's labels


def _name(thing: Any) -> str:
    return getattr(thing, "__name__", "") or type(thing).__name__


def _draw_from(*numbers: int) -> None:
    """Seeds what models and data sets draw from."""
    words = np.random.SeedSequence(numbers).generate_state(3)
    torch.manual_seed(int(words[0]))
    random.seed(int(words[1]))
    np.random.seed(int(words[2]))


def _is_whole(target: Any) -> bool:
    """Whether a target is the number of a class, or some."""
    if isinstance(target, torch.Tensor):
        return not target.is_floating_point() and not target.is_complex() and target.dtype != torch.bool
    return np.issubdtype(np.asarray(target).dtype, np.integer)


class Model:
    """What a run trains, and on what. `atomo._atomo_train` calls it in every process; jobs hold it pickled."""

    def __init__(self, model: Any, data: Any, test: Any, *, loss: Callable[..., torch.Tensor],
                 collate: Callable[..., Any] | None, optimiser: Callable[..., torch.optim.Optimizer] | None,
                 schedule: Callable[..., Any] | None, split: str, seed: int) -> None:
        if not isinstance(model, torch.nn.Module) and not callable(model):
            raise TypeError(f"model: a torch.nn.Module or a function that makes one is expected, found {type(model).__name__}")
        self._model, self._sets, self._loss, self._collate = model, [data, test], loss, collate
        self._optimiser, self._schedule, self._split, self._seed = optimiser, schedule, split, seed
        self.name, self.data_name = _name(model), _name(data)
        self.optimiser_name = "" if optimiser is None else "torch." + _name(getattr(optimiser, "func", optimiser))
        for which in (0, 1):
            if hasattr(self._sets[which], "__getitem__") or not callable(self._sets[which]):
                self._set(bool(which))

    def _set(self, test: bool) -> Any:
        """The data to train or to test on; made when it is first asked for."""
        what, data = ("test" if test else "data"), self._sets[test]
        if isinstance(data, torch.utils.data.DataLoader):
            raise TypeError(f"{what}: take the data set of the DataLoader (loader.dataset), and say batch= and collate=")
        if not hasattr(data, "__getitem__") and callable(data):
            _draw_from(self._seed)
            data = self._sets[test] = data()
        if isinstance(data, IterableDataset) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
            raise TypeError(f"{what}: a data set with __len__ and __getitem__ is expected, found {type(data).__name__}")
        if len(data) == 0:
            raise Error(f"{what}: it has no sample")
        return data

    def samples(self, test: bool) -> int:
        return len(self._set(test))

    def predicts_classes(self) -> bool:
        return _is_whole(self._set(False)[0][-1])

    def labels(self) -> bytes:
        """The class of each sample, where samples are split by them."""
        if not self._split.startswith(("classes", "dirichlet")):
            return b""
        data = self._set(False)
        if isinstance(data, TensorDataset):
            labels = data.tensors[-1]
        else:
            labels = getattr(data, "targets", None)
            if labels is None:
                labels = [data[i][-1] for i in range(len(data))]
        labels = np.asarray(labels)
        is_class = labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer)
        if not is_class or not 0 <= labels.min() <= labels.max() < _MOST_CLASSES:
            raise Error(f"split: '{self._split}' needs a class a sample, from 0 to {_MOST_CLASSES - 1}")
        return labels.astype(np.uint16).tobytes()

    def batch(self, test: bool, numbers: np.ndarray) -> Any:
        """(inputs..., targets) of the samples with these numbers."""
        data = self._set(test)
        if self._collate is None and isinstance(data, TensorDataset):
            where = torch.from_numpy(numbers.astype(np.int64))
            return tuple(tensor[where] for tensor in data.tensors)
        which = numbers.tolist()
        samples = data.__getitems__(which) if hasattr(data, "__getitems__") else [data[i] for i in which]
        return (self._collate or default_collate)(samples)

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        return self._loss(outputs, targets)

    def network(self, seed: int) -> Network:
        _draw_from(seed)
        made = copy.deepcopy(self._model) if isinstance(self._model, torch.nn.Module) else self._model()
        if not isinstance(made, torch.nn.Module):
            raise TypeError(f"model: {self.name}() gave {type(made).__name__}, not a torch.nn.Module")
        return Network(self, made, seed)

    def optimiser(self, shapes: Sequence[tuple[int, ...]]) -> Steps:
        assert self._optimiser is not None
        return Steps(self._optimiser, self._schedule, shapes)


class Network:
    """A process's copy. Its parameters are views of one flat array, `weights`, that the trainer reads and writes."""

    def __init__(self, model: Model, module: torch.nn.Module, seed: int) -> None:
        self._model, self._module, self._seed = model, module, seed
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        if not named:
            raise Error(f"model: {model.name} has no parameter that is trained")
        for name, parameter in named:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise Error(f"model: the parameter '{name}' is {parameter.dtype} on {parameter.device}; "
                            "the trainer takes torch.float32 on the CPU")
        self._parameters = [parameter for _, parameter in named]
        self.layers = [(name, list(parameter.shape)) for name, parameter in named]
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
        self.weights = flat.numpy()
        at = 0
        for layer, parameter in enumerate(self._parameters):
            parameter.data = flat[at:at + parameter.numel()].view(parameter.shape)
            at += parameter.numel()
            parameter.register_hook(self._hook(layer))
        self._buffers = statistics_of(module)
        self._gradient: Callable[[int, np.ndarray], None] | None = None
        self._missing: set[int] = set()

    def _hook(self, layer: int) -> Callable[[torch.Tensor], None]:
        def hand_on(gradient: torch.Tensor) -> None:
            if self._gradient is not None:
                self._missing.discard(layer)
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                self._gradient(layer, dense.detach().contiguous().view(-1).numpy())

        return hand_on

    def weights_changed(self) -> None:
        """The parameters are views of them."""

    def buffers(self) -> np.ndarray:
        if not self._buffers:
            return np.empty(0, np.float32)
        return np.concatenate([buffer.detach().float().reshape(-1).numpy() for buffer in self._buffers])

    def set_buffers(self, values: np.ndarray) -> None:
        at = 0
        for buffer in self._buffers:
            buffer.copy_(torch.tensor(values[at:at + buffer.numel()]).view(buffer.shape))
            at += buffer.numel()

    def _forward(self, test: bool, numbers: np.ndarray) -> tuple[torch.Tensor, Any, Any]:
        """The mean loss, the outputs and the targets of a batch."""
        *inputs, targets = self._model.batch(test, numbers)
        outputs = self._module(*inputs)
        return self._model.loss(outputs, targets), outputs, targets

    @staticmethod
    def _right(outputs: Any, targets: Any) -> tuple[int, int]:
        """How many classes are right, and among the five held most likely."""
        if not (isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor) and _is_whole(targets)
                and outputs.dim() == targets.dim() + 1):
            return 0, 0
        top = outputs.detach().topk(min(5, outputs.shape[1]), dim=1).indices == targets.unsqueeze(1)
        return int(top.select(1, 0).sum()), int(top.sum())

    @staticmethod
    def _predictions(numbers: np.ndarray, targets: Any) -> int:
        return targets.numel() if isinstance(targets, torch.Tensor) and _is_whole(targets) else len(numbers)

    def backward(self, numbers: np.ndarray, step: int, worker: int, scale: float, began: Callable[[], None],
                 gradient: Callable[[int, np.ndarray], None]) -> tuple[float, int, int]:
        self._module.train()
        _draw_from(self._seed, step, worker)
        loss, outputs, targets = self._forward(False, numbers)
        self._gradient, self._missing = gradient, set(range(len(self._parameters)))
        began()
        try:
            (loss if scale == 1 else loss * scale).backward()
            for layer in sorted(self._missing, reverse=True):  # that had no part in the loss
                gradient(layer, np.zeros(self._parameters[layer].numel(), np.float32))
        finally:
            self._gradient = None
            self._module.zero_grad(set_to_none=True)
        return float(loss.detach()), self._right(outputs, targets)[0], self._predictions(numbers, targets)

    def evaluate(self, test: bool, numbers: np.ndarray) -> tuple[float, int, int, int]:
        self._module.eval()
        with torch.no_grad():
            loss, outputs, targets = self._forward(test, numbers)
        predictions = self._predictions(numbers, targets)
        return float(loss) * predictions, *self._right(outputs, targets), predictions


    def load(self, run: str) -> None:
        """Takes the weights of a run's last checkpoint."""
        load(run, self._module)

    def scores(self, numbers: np.ndarray) -> list[tuple[int, int, float]]:
        """Target, prediction and its probability of samples of the test. Raises Error where they are not one class each."""
        self._module.eval()
        with torch.no_grad():
            *inputs, targets = self._model.batch(True, numbers)
            outputs = self._module(*inputs)
        if not (isinstance(outputs, torch.Tensor) and isinstance(targets, torch.Tensor) and _is_whole(targets)
                and outputs.dim() == 2 and targets.dim() == 1):
            raise Error("sample_scores: goes with one class a sample, as whole numbers, and an output a class")
        scores, predictions = outputs.softmax(1).max(1)
        return list(zip(targets.tolist(), predictions.tolist(), scores.tolist()))


def _state_of(make: Callable[..., torch.optim.Optimizer], shapes: Sequence[tuple[int, ...]]) -> tuple[list[str], type | None]:
    """The names of what an optimiser keeps of each layer, found by a step along nothing of another one, and the type of its count
    of steps, None without one. Raises Error where it keeps what goes into no checkpoint."""
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    optimiser = make(parameters)
    kind = type(optimiser).__name__
    before = [_kept(_plain(group)) for group in optimiser.param_groups]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    for group, was in zip(optimiser.param_groups, before):
        for name, value in _plain(group).items():
            if name not in was or not _same(value, was[name]):
                raise Error(f"optimizer: a step of {kind} changes '{name}' of its groups; only states of a layer's shape go into "
                            "checkpoints")
    names, count = list[str](), None
    for parameter in parameters:
        for name, value in optimiser.state[parameter].items():
            if name == "step":
                count = type(value)
            elif not isinstance(value, torch.Tensor):
                if value is not None:
                    raise Error(f"optimizer: {kind} keeps '{name}', {value!r}, for a layer; only states of a layer's shape go into "
                                "checkpoints")
            elif value.shape != parameter.shape:
                raise Error(f"optimizer: {kind} keeps '{name}' of shape {tuple(value.shape)} for a layer of "
                            f"{tuple(parameter.shape)}; only states of a layer's shape go into checkpoints")
            elif name not in names:
                names.append(name)
    return sorted(names), count


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _kept(value: Any) -> Any:
    """A copy, whose tensors stay what they are; other objects are those there are."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _kept(each) for key, each in value.items()}
    return type(value)(map(_kept, value)) if type(value) in (list, tuple) else value


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if type(a) in (list, tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    return a is b or bool(a == b)


class Steps:
    """A torch optimiser over layers of these shapes, whose state of a layer's size the trainer keeps as moments."""

    def __init__(self, make: Callable[..., torch.optim.Optimizer], schedule: Callable[..., Any] | None,
                 shapes: Sequence[tuple[int, ...]]) -> None:
        self._parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
        self._optimiser = make(self._parameters)
        self._rates = [group["lr"] for group in self._optimiser.param_groups]
        self._schedule = None if schedule is None else schedule(self._optimiser)
        self._done = 0
        self._names, self._counts = _state_of(make, shapes)
        self.moments = len(self._names)

    def step(self, weights: np.ndarray, gradient: np.ndarray, moments: list[np.ndarray], factor: float, step: int) -> None:
        """Moves `weights`; `moments` is the state before and after. `factor`: the schedule's, in parts of the first rate."""
        flat, slope = torch.from_numpy(weights), torch.from_numpy(gradient)
        kept = [torch.from_numpy(moment) for moment in moments]
        places, at = [], 0
        for parameter in self._parameters:
            places.append(slice(at, at + parameter.numel()))
            at += parameter.numel()
        for parameter, place in zip(self._parameters, places):
            parameter.data = flat[place].view(parameter.shape)
            parameter.grad = slope[place].view(parameter.shape)
            if step > 0:
                state = self._optimiser.state[parameter]
                if self._counts is not None:
                    state["step"] = torch.tensor(float(step)) if self._counts is torch.Tensor else step
                for name, moment in zip(self._names, kept):
                    if name not in state:  # of a run that goes on
                        state[name] = torch.empty_like(parameter)
                    state[name].copy_(moment[place].view(parameter.shape))
        if self._schedule is None:
            for group, rate in zip(self._optimiser.param_groups, self._rates):
                group["lr"] = rate * factor
        else:
            while self._done < step:
                self._schedule.step()
                self._done += 1
        self._optimiser.step()
        for parameter, place in zip(self._parameters, places):
            for name, moment in zip(self._names, kept):
                moment[place].copy_(self._optimiser.state[parameter][name].reshape(-1))
