# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_torch_memories.py do."""

import atomo.torch
import numpy as np
import torch
from ddp_runs import batch_of, make_net, parameters_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def hooked(policy, scale):
    model = make_net("small")
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.005)
    state = atomo.torch.DDPState(model, policy, scale=scale)
    wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
    return model, wrapped, state


def scaled_steps(rank, ranks, policy):
    """A GradScaler meets an Inf of one rank's in the second step, halves its scale and skips the step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model, wrapped, state = hooked(policy, scaler.get_scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memories, scales = [], []
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch_of(step, rank, 24)
        loss = nn.functional.mse_loss(wrapped(x), y)
        if step == 1 and rank == 0:
            loss = loss + model[0].bias.sum() * float("inf")  # of one layer's gradient alone
        scaler.scale(loss).backward()
        memories.append({name: state.compressor.memory(name).copy() for name in state.layers})
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return {"memories": memories, "scales": scales, "finite": all(np.isfinite(v).all() for v in parameters_of(model).values())}


def train(rank, ranks, policy, scales, clip=None):
    """With a loss that is scaled by hand."""
    now = [1.0]
    model, wrapped, _ = hooked(policy, lambda: now[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, now[0] in enumerate(scales):
        optimizer.zero_grad()
        x, y = batch_of(step, rank, 24)
        (now[0] * nn.functional.mse_loss(wrapped(x), y)).backward()
        for parameter in model.parameters():
            parameter.grad.div_(now[0])
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return parameters_of(model)
