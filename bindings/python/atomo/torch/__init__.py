# SPDX-License-Identifier: Apache-2.0
"""Gradients of PyTorch's data-parallel trainers as atomo's messages.

    state = atomo.torch.DDPState(ddp_model, "atomo:bits=0.5")
    ddp_model.register_comm_hook(state, atomo.torch.ddp_hook)

`DDPState` and `ddp_hook` serve `DistributedDataParallel`, and so does `PowerSGDState`. `Squares` and `AdamW` keep a codec's
noise out of Adam's second moment there. `LightningCallback` registers a `DDPState` in Lightning's Trainer,
`FSDPReduceScatter` serves `fully_shard`. `OuterSync` serves workers that train alone and synchronise now and then (DiLoCo),
with settings of `OUTER_PRESETS` if they like. Needs PyTorch and NumPy; `import atomo` alone does not import PyTorch, and
Lightning is imported when its callback is asked for.
"""

from typing import Any

from .adamw import AdamW
from .ddp import DDPState, ddp_hook
from .fsdp import FSDPReduceScatter
from .outer import OuterSync
from .outer_options import OUTER_PRESETS
from .outer_round import OuterLog
from .powersgd import PowerSGDState
from .squares import LayerSquares, Squares
from .step import StepLog

__all__ = ["OUTER_PRESETS", "AdamW", "DDPState", "FSDPReduceScatter", "LayerSquares", "LightningCallback", "OuterLog",
           "OuterSync", "PowerSGDState", "Squares", "StepLog", "ddp_hook"]


def __getattr__(name: str) -> Any:
    if name == "LightningCallback":
        from .lightning import LightningCallback

        return LightningCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
