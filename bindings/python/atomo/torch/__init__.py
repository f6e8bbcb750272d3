# SPDX-License-Identifier: Apache-2.0
"""Gradients of PyTorch's data-parallel trainers as atomo's messages.

    state = atomo.torch.DDPState(ddp_model, "atomo:bits=0.5")
    ddp_model.register_comm_hook(state, atomo.torch.ddp_hook)

`DDPState` and `ddp_hook` serve `DistributedDataParallel`, `LightningCallback` registers them in Lightning's Trainer,
`FSDPReduceScatter` serves `fully_shard`. Needs PyTorch and NumPy; `import atomo` alone does not import PyTorch, and
Lightning is imported when its callback is asked for.
"""

from typing import Any

from .ddp import DDPState, ddp_hook
from .fsdp import FSDPReduceScatter
from .step import StepLog

__all__ = ["DDPState", "FSDPReduceScatter", "LightningCallback", "StepLog", "ddp_hook"]


def __getattr__(name: str) -> Any:
    if name == "LightningCallback":
        from .lightning import LightningCallback

        return LightningCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
