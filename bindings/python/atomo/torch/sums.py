# SPDX-License-Identifier: Apache-2.0
"""What messages that are differences (`ef21+`) add up to: the ranks' mean so far, the same on all of them."""

from __future__ import annotations

from collections.abc import Container, Mapping

import torch

import atomo


class Sums:
    """The sums of some layers, in f32 where their gradients are, and what they were before the step under way."""

    def __init__(self) -> None:
        self._of: dict[str, torch.Tensor] = {}
        self._before: dict[str, torch.Tensor] = {}
        self._moved: set[str] = set()  # by the step under way, or the last one
        self.ranks = 0  # whose messages are added up

    def begin_step(self, ranks: int) -> None:
        """What earlier steps moved is not taken back any more.

        Raises:
            atomo.Error: where the messages of another number of ranks are added up.
        """
        if self._of and self.ranks != ranks:
            raise atomo.Error(f"the messages of {self.ranks} ranks are added up (ef21), and there are {ranks}: begin with a new state")
        self.ranks, self._moved = ranks, set()

    def moving(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """The sum of a layer, zeros at first, that the messages of this step are to be added to. Takes memory the first time."""
        now = self._of.get(name)
        if now is None or now.device != gradient.device:
            self.put(name, torch.zeros(gradient.shape) if now is None else now, gradient.device)
        self._before[name].copy_(self._of[name])
        self._moved.add(name)
        return self._of[name]

    def take_back(self, only_if: torch.Tensor | None = None) -> None:
        """What the step moved becomes what it was before it, where `only_if`, a bool on the device of the sums, is true."""
        for name in self._moved:
            now, before = self._of[name], self._before[name]
            if only_if is None:
                now.copy_(before)
            else:
                torch.where(only_if.view(()), before, now, out=now)  # of one entry without dimensions too
        if only_if is None:
            self._moved = set()

    def put(self, name: str, values: torch.Tensor, device: torch.device) -> None:
        """In place of what a layer has. Takes memory."""
        now = values.to(device, torch.float32, copy=True)
        self._before[name] = torch.empty_like(now)
        self._of[name] = now

    def keep(self, names: Container[str]) -> None:
        """Drops the others."""
        self._of = {name: values for name, values in self._of.items() if name in names}
        self._before = {name: self._before[name] for name in self._of}
        self._moved &= self._of.keys()

    def on_cpu(self) -> dict[str, torch.Tensor]:
        """Copies, by name. Waits for devices."""
        for device in {values.device for values in self._of.values() if values.is_cuda}:
            torch.cuda.synchronize(device)
        return {name: values.to("cpu", copy=True) for name, values in self._of.items()}

    def load(self, values: Mapping[str, torch.Tensor], ranks: int) -> None:
        """In place of all that is here; they move to where their gradients are."""
        self.__init__()
        self.ranks = ranks
        for name, of_layer in values.items():
            self.put(name, of_layer, of_layer.device)

    def __bool__(self) -> bool:
        return bool(self._of)


def differing(compressor: atomo.Compressor | None) -> tuple[str, ...]:
    """The layers whose messages are differences, in their order."""
    names = () if compressor is None else compressor.layers
    return tuple(name for name in names if compressor.codec(name).traits.differences)
