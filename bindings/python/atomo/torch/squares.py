# SPDX-License-Identifier: Apache-2.0
"""What the ranks tell each other of the squares of their gradients: a second moment without the codec's noise."""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

import atomo

from .._layers import counted
from .coder import Coder
from .layers import compressor_of
from .step import check_saved, number_from
from .wire import require_f32

LEAST_SIDE = 4  # of a matrix that is factored
LEAST_ROOT = 1 / 1024  # of the root mean square of a matrix's
CHANNEL = 0x8000  # a bit of the key's channel: draws of these messages are not those of gradients
POLICY = "*:sums = identity; * = natural"

#: Tells all ranks these arrays under a key: the mean over the ranks, decoded, and the bytes that each rank sent.
Exchange = Callable[[Mapping[str, torch.Tensor], Mapping[str, int]], tuple[dict[str, torch.Tensor], int]]


@dataclasses.dataclass
class LayerSquares:
    """Running means of a matrix's squares. A tensor of more than two dimensions is the matrix of its first by all others.

    They begin at 0, as Adam's moments do; `second_moment` corrects for it.
    """

    shape: torch.Size  #: of the gradient
    rows: torch.Tensor  #: f32[rows], of the row means of one rank's squares
    columns: torch.Tensor  #: f32[columns], of the column means
    sums: torch.Tensor  #: f32[3], of the sum of one rank's squares, of the average's, and of 1
    ranks: int  #: whose squares these are

    def second_moment(self) -> torch.Tensor:
        """The estimate of E[a^2] for the average a of the ranks' gradients, f32 in the gradient's shape. Allocates.

        Entry (i, j) is rows[i] * columns[j] / mean(rows) (Adafactor, arXiv 1804.04235, section 3) times the ratio of the
        average's sum of squares to one rank's. The ratio is kept between half of 1 / ranks, which independent gradients
        would have, and 1. 0 before anything was told.
        """
        row, column = self.factors()
        return (row[:, None] * column).square().view(self.shape)

    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Two vectors, f32[rows] and f32[columns], whose outer product is the root of the second moment."""
        one, average, weight = self.sums.unbind()
        ratio = torch.where(one > 0, (average / one).clamp(0.5 / self.ranks, 1.0), torch.ones_like(one))
        mean = self.rows.mean()
        # Quotients one by one: squares of gradients of 1e-17 are near the least that f32 has.
        columns = (self.columns / mean).sqrt() * (ratio / weight).sqrt()
        return self.rows.sqrt(), torch.where(mean > 0, columns, torch.zeros_like(columns))

    def units(self) -> torch.Tensor:
        """The fourth root of `second_moment()`, whose root is at least 1/1024 of its own root mean square; 1 before anything
        was told. Allocates."""
        row, column = self.factors()
        least = LEAST_ROOT * (row.square().mean() * column.square().mean()).sqrt()
        root = torch.maximum(row[:, None] * column, least)
        return torch.where(least > 0, root, torch.ones_like(root)).sqrt().view(self.shape)


class Squares:
    """Running means of the squares of gradients, from what every rank tells of its own before they are encoded.

        squares = atomo.torch.Squares(every=10)
        state = atomo.torch.DDPState(ddp_model, "atomo:bits=0.25", squares=squares)
        ddp_model.register_comm_hook(state, atomo.torch.ddp_hook)
        optimizer = atomo.torch.AdamW(ddp_model.parameters(), lr=1e-3, squares=squares)

    Adam divides by the root of a running mean of squares. Of decoded gradients that mean holds the codec's noise, which
    at a quarter bit a parameter is some of it in every matrix, and steps come out too short where the noise is. Every
    `every` steps rank k of W tells of each matrix the means of g_k^2 over its rows and over its columns (9 bits each, codec
    `natural`), and the sums of g_k^2 and of c_k^2, c_k being what its message decodes to (f32). As the ranks' draws are
    independent and unbiased,

        E sum a^2 = (sum_k sum g_k^2 + sum_{j != k} <c_j, c_k>) / W^2

    for the average a, without the noise and without another message: the second sum is |sum c_k|^2 - sum |c_k|^2. With a
    biased codec (`traits.unbiased` is False) the cross products are those of what was sent. Vectors, and matrices with a
    side below 4, are not told of: an optimiser keeps moments of its own for them.

    A step in which a rank's squares are not finite leaves the means as they were; where they were the first of a layer, the next
    step tells again, for which that step waits for a GPU. Under a GradScaler
    `DDPState(scale=scaler.get_scale)` makes them those of gradients without its scale.

    Any optimiser may read `squares[parameter].second_moment()`. All ranks hold the same numbers, to the bit.

    Args:
        every: steps from one telling to the next, from step 0 on, or the first after `DDPState(start_step=)`. 0: nothing is
            told, no message is sent and no rank's squares are taken, so that `atomo.torch.AdamW` divides by Adam's own.
        beta2: Adam's decay a step of the running means.
        precondition: gradients are encoded in units of the fourth root of that second moment, `LayerSquares.units()`, and
            what was decoded is multiplied by them, so that a codec's errors are small where they would do most harm
            (docs/second-moment.md). With `every=0` a matrix has the units of running means over the rows and columns of its
            averages' squares, which all ranks hold. A layer that is neither told of nor a matrix has one unit, of the mean of its
            averages' squares. All units are 1 in the first step. Memories are in units. It takes gradients of f32. On a GPU
            a step then takes memory, and still waits for nothing.

    Raises:
        atomo.Error: for numbers that cannot be.
    """

    def __init__(self, *, every: int = 10, beta2: float = 0.999, precondition: bool = False):
        if isinstance(every, bool) or not isinstance(every, int) or every < 0:
            raise atomo.Error(f"every={every!r}: a whole number of steps is expected, or 0 to tell nothing")
        if every == 0 and not precondition:
            raise atomo.Error("every=0 tells nothing: give precondition=True too, or leave squares out")
        self.every, self.precondition = every, bool(precondition)
        self.beta2 = number_from(beta2, "beta2", 0, math.nextafter(1, 0), "a number from 0 to below 1")
        self._layers: dict[str, LayerSquares] = {}
        # Of others, where there are units: running means of the mean square, of a matrix of rows' and columns', then of 1.
        self._averages: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}  # by the parameter's identity
        self._owner: Callable[[], object] = _nobody  # a weak reference to the DDPState that names came from
        self.given = False  # to a DDPState, which tells them
        self._scale = 1.0  # of the gradients of the step under way
        self._step: _Step | None = None
        self._unsure = False  # whether all layers have been told of

    def __getitem__(self, parameter: torch.Tensor) -> LayerSquares:
        """Of a parameter, or of its name.

        Raises:
            KeyError: when nothing was told of it.
        """
        return self._layers[parameter if isinstance(parameter, str) else self._names[id(parameter)]]

    def get(self, parameter: torch.Tensor | str) -> LayerSquares | None:
        """The same, None when nothing was told of it."""
        try:
            return self[parameter]
        except KeyError:
            return None

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def state_dict(self) -> dict[str, Any]:
        """Everything a run needs to go on: copies of tensors, and plain values."""
        return {"every": self.every, "beta2": self.beta2, "precondition": self.precondition,
                "layers": {name: {**vars(_copied(of)), "shape": list(of.shape)} for name, of in self._layers.items()},
                "averages": {name: means.clone() for name, means in self._averages.items()}}

    @staticmethod
    def check_saved(state: Mapping[str, Any]) -> None:
        """Raises `atomo.Error` for what `state_dict` does not return."""
        check_saved(state, ("every", "beta2", "precondition", "layers", "averages"), "what was saved of squares")
        for name, of in state["layers"].items():
            check_saved(of, [field.name for field in dataclasses.fields(LayerSquares)], f"what was saved of the squares of '{name}'")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state_dict` was taken.

        Raises:
            atomo.Error: for what `state_dict` does not return; everything is then as it was.
        """
        self.check_saved(state)
        self.every, self.beta2, self.precondition = state["every"], state["beta2"], state["precondition"]
        self._averages = {name: means.clone() for name, means in state["averages"].items()}
        self._layers = {name: _copied(LayerSquares(**{**of, "shape": torch.Size(of["shape"])})) for name, of in state["layers"].items()}
        self._unsure = bool(self._layers)

    def __getstate__(self) -> dict[str, Any]:
        return self.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._names, self._owner, self.given, self._scale, self._step = {}, _nobody, False, 1.0, None
        self.load_state_dict(state)

    # What DDPState calls

    def bind(self, names: Mapping[int, str], owner: object) -> None:
        """Names by the identity of parameters, of the DDPState `owner`.

        Raises:
            atomo.Error: where another state's model has them, which would be told of nothing from now on.
        """
        before = self._owner()
        others = [name for key, name in self._names.items() if key not in names]
        if before is not None and before is not owner and others:
            raise atomo.Error(f"these squares are another DDPState's, which has '{others[0]}': make a Squares() for each")
        self._names, self._owner, self.given = dict(names), weakref.ref(owner), True

    def begin(self, step: int, ranks: int, scale: float) -> None:
        """A step of gradients, the first one 0, a negative one without messages, all of them multiplied by `scale`. `tells`
        says whether squares are told."""
        self._scale = scale
        self._step = _Step(ranks) if self.every and step >= 0 and (step % self.every == 0 or self._untold()) else None

    def _untold(self) -> bool:
        """Whether the first squares of a layer were not finite. Waits for a GPU in a step behind a layer's first telling."""
        if self._unsure:
            self._unsure = not all(float(of.sums[2]) > 0 for of in self._layers.values())
        return self._unsure

    @property
    def tells(self) -> bool:
        """Whether this step's squares are told."""
        return self._step is not None

    def to_units(self, name: str, gradient: torch.Tensor) -> None:
        """In place, before it is encoded. With `precondition` alone.

        Raises:
            atomo.Error: for a gradient that is not f32.
        """
        if self.precondition:
            require_f32("precondition=True", name, gradient)
            gradient.div_(self._units(name, gradient))

    def from_units(self, name: str, decoded: torch.Tensor) -> None:
        """In place, what `to_units` divided. The units are the same until this rank's average was seen and all was told."""
        if self.precondition:
            decoded.mul_(self._units(name, decoded))

    def _units(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Of a layer's entries, or of all of them one."""
        if name in self._layers:
            return self._layers[name].units().to(like.device)
        if name not in self._averages:
            return torch.ones((), device=like.device)
        means, weight = self._averages[name].to(like.device).split([len(self._averages[name]) - 1, 1])
        if len(means) > 1:
            rows, columns = means.split([like.shape[0], len(means) - like.shape[0]])
            one = torch.ones_like(weight)
            return LayerSquares(like.shape, rows, columns, torch.cat([one, one, weight]), 1).units()
        root = (means / weight).sqrt().squeeze(0)
        return torch.where(root > 0, root, torch.ones_like(root)).sqrt()

    def see_gradient(self, name: str, gradient: torch.Tensor) -> bool:
        """This rank's own, in units, not yet averaged. False when nothing is told of it; the other calls of a telling then do
        nothing."""
        told = _factored(gradient.shape)
        if told:
            own = gradient.detach().float() / self._scale
            self.from_units(name, own)
            self._step.see_gradient(name, own)
        return told

    def see_decoded(self, name: str, decoded: torch.Tensor) -> None:
        """What this rank's message decodes to."""
        if name in self._step.own:
            self._step.own[name].decoded = _sum(decoded, self._scale)

    def see_average(self, name: str, average: torch.Tensor) -> None:
        """What all messages come to, in every step."""
        if self._step is not None and name in self._step.own:
            self._step.own[name].average = _sum(average, self._scale)
        if self.precondition and not (self.every and _factored(average.shape)):
            self._mix_average(name, (average.detach().float() / self._scale).square())

    def _mix_average(self, name: str, squares: torch.Tensor) -> None:
        """Means of them into the running means, as Adam's own second moments are, unless they are not finite."""
        if _factored(squares.shape):
            matrix = squares.reshape(squares.shape[0], -1)
            means = torch.cat([matrix.mean(1), matrix.mean(0), squares.new_ones(1)])
        else:
            means = torch.stack([squares.mean(), squares.new_ones(())])
        kept = self._averages.get(name, torch.zeros_like(means)).to(means.device)
        self._averages[name] = torch.where(torch.isfinite(means).all(), torch.lerp(means, kept, self.beta2), kept)

    def exchange(self, exchange: Exchange, key: Mapping[str, int]) -> int:
        """Tells all ranks, and takes what they tell into the running means. `exchange(arrays, key)` returns the mean over
        the ranks of these arrays, decoded, and the bytes that each rank sent, which are returned. Called by all ranks,
        with the same layers; what a decoder that failed has left out is NaN."""
        step, self._step = self._step, None
        own = step.own
        if not own:
            return 0
        arrays = {}
        for name, of in own.items():
            arrays |= {f"{name}:rows": of.rows, f"{name}:columns": of.columns}
        arrays[":sums"] = torch.stack([part for of in own.values() for part in (of.one, of.decoded)])
        mean, sent = exchange(arrays, {**key, "channel": key["channel"] ^ CHANNEL})
        for i, (name, of) in enumerate(own.items()):
            one, decoded = mean[":sums"][2 * i:2 * i + 2].unbind()
            # |sum c|^2 - sum |c|^2 = W^2 |average|^2 - W (mean of |c|^2).
            average = one / step.ranks + of.average - decoded / step.ranks
            self._mix(name, of.shape, step.ranks, mean[f"{name}:rows"], mean[f"{name}:columns"], one, average)
        return sent

    def _mix(self, name: str, shape: torch.Size, ranks: int, rows: torch.Tensor, columns: torch.Tensor,
             one: torch.Tensor, average: torch.Tensor) -> None:
        """Into the running means, unless they are not finite."""
        layer = self._layers.get(name)
        if layer is None:
            layer, self._unsure = LayerSquares(shape, torch.zeros_like(rows), torch.zeros_like(columns), rows.new_zeros(3), ranks), True
        elif layer.rows.device != rows.device:
            layer = LayerSquares(shape, layer.rows.to(rows.device), layer.columns.to(rows.device), layer.sums.to(rows.device), ranks)
        self._layers[name], layer.ranks = layer, ranks
        finite = torch.isfinite(one) & torch.isfinite(average)
        kept = self.beta2 ** self.every
        sums = torch.stack([one, average, torch.ones_like(one)])
        for mean, value in ((layer.rows, rows), (layer.columns, columns), (layer.sums, sums)):
            mean.copy_(torch.where(finite, mean * kept + value * (1 - kept), mean))

    def __repr__(self) -> str:
        return (f"atomo.torch.Squares(every={self.every}, beta2={self.beta2}, precondition={self.precondition}, "
                f"{counted(len(self._layers.keys() | self._averages.keys()))})")


def _nobody() -> None:
    """The owner of squares that no state has."""


def _copied(of: LayerSquares) -> LayerSquares:
    return LayerSquares(of.shape, of.rows.clone(), of.columns.clone(), of.sums.clone(), of.ranks)


@dataclasses.dataclass
class _Own:
    """This rank's, of a step."""

    shape: torch.Size
    rows: torch.Tensor
    columns: torch.Tensor
    one: torch.Tensor
    decoded: torch.Tensor
    average: torch.Tensor


class _Step:
    def __init__(self, ranks: int):
        self.ranks = ranks
        self.own: dict[str, _Own] = {}

    def see_gradient(self, name: str, gradient: torch.Tensor) -> None:
        squares = gradient.square().reshape(gradient.shape[0], -1)
        rows = squares.mean(1)
        unknown = rows.new_full((), math.nan)
        self.own[name] = _Own(gradient.shape, rows, squares.mean(0), rows.sum() * squares.shape[1], unknown, unknown)


def _factored(shape: torch.Size) -> bool:
    return len(shape) > 1 and min(shape[0], math.prod(shape[1:])) >= LEAST_SIDE


def _sum(values: torch.Tensor, scale: float) -> torch.Tensor:
    return (values.detach().float() / scale).square().sum()


def facts_of(squares: Squares | None) -> list[float]:
    """What ranks have to agree on."""
    return [] if squares is None else [squares.every, squares.beta2, squares.precondition]


class HostTelling:
    """Squares of a bucket of gradients in host memory. Without any it does nothing."""

    def __init__(self, squares: Squares | None, gradients: Sequence[tuple[str, torch.Tensor]]):
        self._squares, self._gradients = squares, gradients

    def see_own(self, messages: Sequence[bytes], coder: Coder) -> None:
        """This rank's gradients, and what its messages of them decode to; in a step that tells."""
        if self._squares is None or not self._squares.tells:
            return
        for (name, gradient), message in zip(self._gradients, messages):
            if self._squares.see_gradient(name, gradient):
                own = torch.zeros(gradient.shape)
                coder.decode_add_all(name, [message], out=own, alpha=1.0)
                self._squares.from_units(name, own)
                self._squares.see_decoded(name, own)

    def see_average(self) -> None:
        """The gradients are averages now, and leave their units."""
        if self._squares is not None:
            for name, average in self._gradients:
                self._squares.from_units(name, average)
                self._squares.see_average(name, average)

    def exchange(self, group: dist.ProcessGroup, key: Mapping[str, int]) -> int:
        """Of all buckets, in a step that tells. Returns the bytes that each rank sent."""
        if self._squares is None or not self._squares.tells:
            return 0

        def tell(arrays: Mapping[str, torch.Tensor], key: Mapping[str, int]) -> tuple[dict[str, torch.Tensor], int]:
            ranks, layers = dist.get_world_size(group), {name: (tuple(a.shape), "f32") for name, a in arrays.items()}
            compressor = compressor_of(layers, POLICY, 1, "cpu")
            message = compressor.encode(arrays, **key)  # shorter where something is not finite
            own = torch.frombuffer(bytearray(message.ljust(compressor.wire_bytes, b"\0")), dtype=torch.uint8)
            of_all = own.new_empty(ranks * len(own))
            dist.all_gather_into_tensor(of_all, own, group=group)
            mean = {name: torch.zeros_like(array) for name, array in arrays.items()}
            compressor.decode_add_all(list(of_all.split(len(own))), out=mean, alpha=1 / ranks)
            return mean, len(own)

        return self._squares.exchange(tell, key)
