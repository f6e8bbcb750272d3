# SPDX-License-Identifier: Apache-2.0
"""AdamW whose second moments of matrices come from what the ranks tell of their squares."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

import atomo

from .squares import LayerSquares, Squares


class AdamW(torch.optim.Optimizer):
    """AdamW (arXiv 1711.05101) that divides by the ranks' own squares where it is told them.

    m <- b1 m + (1 - b1) g;  w <- w - lr (m^ / (sqrt(s^) + eps) + weight_decay w), ^ corrected for the zero start. Of
    parameters that `squares` knows, s^ is `squares[parameter].second_moment()`, in whose decay `squares.beta2` is; of all
    others it is AdamW's own, the running mean of g^2. An entry whose gradient was 0 whenever squares were told would move
    without bound, so a told entry of m^ / sqrt(s^) is kept within what Adam's own moments allow,
    (1 - b1) / sqrt(1 - b2) (arXiv 1412.6980, section 2.1). While all that was told of a parameter was not finite it stays, its decay
    apart. A parameter that is told of no longer begins a moment of its own, under the same bound.

    Args:
        params: as those of any torch optimiser takes. Dense, of a floating-point type; moments are f32.
        squares: that of `DDPState(squares=)`, whose `Squares(every=)` says how often it is told; between tellings s^ stays.
            None: AdamW as it is. So it is of squares that no DDPState has, of which the first `step` that moves anything warns.
        lr, betas, eps, weight_decay: as torch.optim.AdamW has them. `betas[1]` is of the parameters with moments of their
            own.
        max_update: the largest root mean square of a parameter's update, rate and decay left out; a longer one is scaled
            down to it. None: no bound.

    Raises:
        atomo.Error: for numbers that cannot be.

    `step` allocates, and waits for nothing on a GPU.
    """

    _looked = False  # for a DDPState that has the squares

    def __init__(self, params: Iterable[Any], lr: float = 1e-3, *, squares: Squares | None = None,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 1e-2,
                 max_update: float | None = None):
        if squares is not None and not callable(getattr(squares, "get", None)):
            raise atomo.Error(f"squares is {squares!r}: an atomo.torch.Squares() is expected, which DDPState takes too")
        self.squares = squares
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                                  "max_update": max_update})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch.optim.Optimizer has it.

        Raises:
            atomo.Error: for numbers that cannot be, and complex parameters.
        """
        _check({**self.defaults, **param_group})
        super().add_param_group(param_group)
        for parameter in param_group["params"]:
            if not parameter.is_floating_point():
                raise atomo.Error(f"a parameter of shape {list(parameter.shape)} is {parameter.dtype}: floating-point types are accepted")

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "squares": self.squares}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("max_update", None)  # of torch.optim.AdamW's there is none

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where `state_dict()` was taken, that of a torch.optim.AdamW too. Copies what it takes; `squares` have a checkpoint
        of their own, that of the DDPState.

        Raises:
            atomo.Error: for the state of another optimiser, or of an AdamW with `maximize` or `amsgrad`; nothing is loaded then.
        """
        for group in state_dict["param_groups"]:
            _check_saved(group)
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, parameter in zip(saved, (p for group in self.param_groups for p in group["params"])):
            if "step" in self.state[parameter]:
                self.state[parameter]["step"] = int(self.state[parameter]["step"])
            if "exp_avg_sq" in self.state[parameter]:  # torch's has been there since the first step
                self.state[parameter].setdefault("own_steps", self.state[parameter]["step"])
            for name in ("exp_avg", "exp_avg_sq"):  # which torch gives the parameter's type
                if name in state_dict["state"].get(number, ()):
                    moment = state_dict["state"][number][name]
                    self.state[parameter][name] = moment.to(parameter.device, torch.float32, copy=True)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of all parameters that have a gradient. Returns what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # A rate of 0 moves nothing: torch.distributed.checkpoint takes such a step before it loads.
        if not self._looked and any(group["lr"] > 0 and p.grad is not None for group in self.param_groups for p in group["params"]):
            self._looked = True
            if isinstance(self.squares, Squares) and self.squares.every and not self.squares.given:
                warnings.warn("squares= was never told, so this is AdamW as it is: give the same Squares to DDPState(squares=)",
                              stacklevel=4)  # behind torch's two functions around this one
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return loss

    def _move(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        if parameter.grad.is_sparse:
            raise atomo.Error(f"a sparse gradient of shape {list(parameter.shape)}: AdamW takes dense ones")
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32)
        state["step"] += 1
        gradient = parameter.grad.float()
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        told = self.squares.get(parameter) if self.squares is not None else None
        if told is None:
            if "exp_avg_sq" not in state:
                state["exp_avg_sq"], state["own_steps"] = torch.zeros_like(parameter, dtype=torch.float32), 0
            state["own_steps"] += 1  # fewer than all where the parameter was told of
            state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            root = (state["exp_avg_sq"] / (1 - beta2 ** state["own_steps"])).sqrt_()
        else:
            root = _root(told, parameter)
        update = (state["exp_avg"] / (1 - beta1 ** state["step"])).div_(root.add_(group["eps"]))
        if told is not None or state["own_steps"] < state["step"]:
            largest = (1 - beta1) / math.sqrt(1 - beta2)
            update.clamp_(-largest, largest)
        if told is not None:
            update = torch.where(told.sums[2] > 0, update, torch.zeros_like(update))  # its first squares were not finite
        if group["max_update"] is not None:
            rms = update.square().mean().sqrt_()
            update.mul_((group["max_update"] / rms).clamp_(max=1.0))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update.to(parameter.dtype), alpha=-group["lr"])


def _check(group: Mapping[str, Any]) -> None:
    """The numbers of a group."""
    try:
        lr, eps, decay, most = group["lr"], group["eps"], group["weight_decay"], group["max_update"]
        beta1, beta2 = group["betas"]
        sound = lr >= 0 and eps >= 0 and decay >= 0 and 0 <= beta1 < 1 and 0 <= beta2 < 1 and (most is None or most > 0)
    except (TypeError, ValueError):
        sound = False
    if not sound:
        given = ", ".join(f"{name}={group[name]!r}" for name in ("lr", "betas", "eps", "weight_decay", "max_update"))
        raise atomo.Error(f"{given}: numbers from 0 on are expected, two betas below 1, and for max_update a number above 0 or None")


def _check_saved(group: Mapping[str, Any]) -> None:
    """A group of a checkpoint, which another optimiser may have written."""
    missing = [name for name in ("lr", "betas", "eps", "weight_decay") if name not in group]
    if missing:
        raise atomo.Error(f"the saved state has no '{missing[0]}': it is that of another optimiser, and an AdamW's is expected")
    for name in ("maximize", "amsgrad"):
        if group.get(name):
            raise atomo.Error(f"the saved state has {name}=True, which this AdamW does not have: a state without it is expected")
    if not group.get("decoupled_weight_decay", True) and group["weight_decay"]:
        raise atomo.Error(f"the saved state is that of an Adam whose decay of {group['weight_decay']} is part of the gradient: "
                          "that of an AdamW is expected")


def _root(told: LayerSquares, parameter: torch.Tensor) -> torch.Tensor:
    """Of the second moment, f32 in the parameter's shape."""
    row, column = told.factors()
    return torch.outer(row, column).view(parameter.shape)
