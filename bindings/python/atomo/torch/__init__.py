# SPDX-License-Identifier: Apache-2.0
"""Gradients of PyTorch's data-parallel trainers as atomo's messages.

    state = atomo.torch.DDPState(model, "atomo:bits=0.5")
    ddp_model.register_comm_hook(state, atomo.torch.ddp_hook)

`DDPState` and `ddp_hook` serve `DistributedDataParallel`, `FSDPReduceScatter` serves `fully_shard`.
Needs PyTorch and NumPy; `import atomo` alone does not import PyTorch.
"""

from .ddp import DDPState, StepLog, ddp_hook
from .fsdp import FSDPReduceScatter

__all__ = ["DDPState", "FSDPReduceScatter", "StepLog", "ddp_hook"]
