# SPDX-License-Identifier: Apache-2.0
"""A callback for Lightning's Trainer. `atomo.torch.LightningCallback` imports it, and Lightning with it, when first asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from torch.nn.parallel import DistributedDataParallel

import atomo

from .ddp import DDPState, ddp_hook
from .sums import differing

PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # the same thing twice, with classes of their own


def _callback() -> type:
    """The class that callbacks derive from, of the package that the program uses."""
    used = [package for package in PACKAGES if package in sys.modules]
    for package in used or PACKAGES:
        try:
            return importlib.import_module(package).Callback
        except ImportError:
            continue
    raise ImportError("atomo.torch.LightningCallback needs Lightning: pip install lightning")


class LightningCallback(_callback()):
    """Compresses the gradients of Lightning's DDP strategy, and is saved in Lightning's checkpoints.

        trainer = lightning.Trainer(strategy="ddp", callbacks=[atomo.torch.LightningCallback("atomo:bits=0.5", seed=1)])

    The strategy's own `ddp_comm_hook=` is for GPUs alone: Lightning leaves it out on a CPU without a word.

    Args:
        policy, options: those of `DDPState`, which is `state` here; its model is that of the trainer.

    Raises:
        atomo.Error: for arguments that cannot work, and when training starts with a strategy that is not DDP, or in several ranks with
            `ef21+`, whose state is each rank's own.
    """

    def __init__(self, policy: str | atomo.Codec = "atomo:bits=0.5", **options: Any):
        super().__init__()
        self.state = DDPState(None, policy, **options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Registers the hook with the module that Lightning wrapped for this fit."""
        model = trainer.strategy.model
        if not isinstance(model, DistributedDataParallel):
            raise atomo.Error(f"the strategy {type(trainer.strategy).__name__} has its model in no "
                              "DistributedDataParallel: give the Trainer strategy='ddp'")
        state = self.state.bind(model)
        if trainer.world_size > 1 and (names := differing(state.compressor)):
            raise atomo.Error(f"Lightning's checkpoints hold one rank's state, and what a rank has sent with "
                              f"'{state.compressor.codec(names[0])}' is its own: take 'ef+', or register atomo.torch.ddp_hook "
                              "in a program that saves a DDPState of each rank")
        model.register_comm_hook(state, ddp_hook)

    def state_dict(self) -> dict[str, Any]:
        """Of the state, for Lightning's checkpoints."""
        return self.state.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on where a checkpoint was written, whatever number of ranks wrote it. Memories (`ef+`) are those of the rank that wrote
        it, 0; the others' begin at zero."""
        self.state.load_state_dict(state_dict)
