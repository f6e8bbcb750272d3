# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_torch_powersgd.py do."""

import contextlib
import math

import atomo.torch
import numpy as np
import torch
import torch.distributed as dist
from ddp_runs import batch_of, make_net, parameters_of, reloaded
from stand_in import StandIn
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


class OnStandIn(atomo.torch.PowerSGDState):
    """Takes the way of gradients on a GPU."""

    place = None

    def _place_of(self, buffer):
        self.place = self._on_gpu._place = self.place or StandIn()
        return self.place


class Forgets(atomo.torch.PowerSGDState):
    """Nothing of a step is kept: a planted bug, or what shows P Q^T without a memory."""

    def _keep(self):
        self._left = {}


CLASSES = {"PowerSGDState": atomo.torch.PowerSGDState, "OnStandIn": OnStandIn, "Forgets": Forgets}


class Matrices(nn.Module):
    """Parameters whose gradients a test gives: the loss is their inner product."""

    def __init__(self, shapes):
        super().__init__()
        self.of = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()})

    def forward(self, gradients):
        return sum((parameter * gradients[name]).sum() for name, parameter in self.of.items())


def gradients_of(rank, shapes, seed=0, low=None, noise=0.0):
    """One rank's, with something in common; matrices are of rank `low` where that is a number, beside noise of that size."""
    result = {}
    for number, (name, shape) in enumerate(shapes.items()):
        common, own = (torch.Generator().manual_seed(100 * seed + number + more) for more in (0, 1000 * (rank + 1)))
        if low is not None and len(shape) > 1:
            left = torch.randn(shape[0], low, generator=common)
            matrix = left @ torch.randn(low, math.prod(shape[1:]), generator=own)
            result[name] = (matrix + noise * torch.randn(matrix.shape, generator=own)).view(shape)
        else:
            result[name] = torch.randn(shape, generator=common) + torch.randn(shape, generator=own)
    return result


def means(number, ranks, shapes, *, steps=1, state="PowerSGDState", low=None, noise=0.0, changing=False, cap_mb=25.0, bad_step=None,
          scales=None, clip=None, **options):
    """What arrives in each step, the true means, and the memory at the end of it. `low`: a rank, or one for each step. `clip`: the
    norm that is left of what arrived."""
    model = Matrices(shapes)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=cap_mb)
    scale = [1.0]
    hook_state = CLASSES[state](model, scale=lambda: scale[0], **options)
    wrapped.register_comm_hook(hook_state, atomo.torch.ddp_hook)
    arrived, truth, memories = [], [], []
    for step in range(steps):
        scale[0] = scales[step] if scales else 1.0
        gradients = gradients_of(number, shapes, step if changing else 0, low[step] if isinstance(low, list) else low, noise)
        everyones = [None] * ranks
        dist.all_gather_object(everyones, gradients)
        if step == bad_step and number == ranks - 1:
            next(iter(gradients.values())).view(-1)[0] = float("inf")
        model.zero_grad()
        wrapped({name: scale[0] * gradient for name, gradient in gradients.items()}).backward()
        arrived.append({name: p.grad.numpy() / scale[0] for name, p in model.of.items()})
        if clip is not None:
            assert nn.utils.clip_grad_norm_(model.parameters(), clip) > 10 * clip
        truth.append({name: (sum(of[name] for of in everyones) / ranks).numpy() for name in shapes})
        memories.append({name: of.numpy().copy() for name, of in hook_state._memory.items()})
    return {"arrived": arrived, "truth": truth, "memories": memories, "bytes": hook_state.bytes_sent,
            "last": hook_state.last.bytes_sent}


def train(number, ranks, how, *, steps=8, checkpoint_at=None, way="dict", cap_mb=0.005, lr=0.1, net="small", accumulate=1,
          clip=None, **options):
    """A training. `how`: a class here, "pytorch" for PyTorch's own hook, None for all-reduce."""
    model = make_net(net)
    wrapped, hook_state = run_of(model, how, cap_mb, options)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for step in range(steps):
        if step == checkpoint_at:
            model, kept, revived = reloaded(model, optimizer, hook_state, way, net)
            wrapped, hook_state = run_of(model, how, cap_mb, options, None if way == "dict" else revived.bind(model))
            if way == "dict":
                hook_state.load_state_dict(revived)
            optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
            optimizer.load_state_dict(kept)
        optimizer.zero_grad()
        for part in range(accumulate):
            x, y = batch_of(accumulate * step + part, number, 24)
            loss = nn.functional.mse_loss(wrapped(x), y)
            loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "parameters": parameters_of(model), "bytes_sent": getattr(hook_state, "bytes_sent", 0)}


def accumulated(number, ranks, state, at_once, *, steps=4, parts=2):
    """Each step has several batches: one backward pass of the sum of their losses, or one a batch, all but the last under no_sync(). The
    true mean of the gradients, what arrives, and the memory at the end of each step."""
    model, alone = make_net("small"), make_net("small")
    wrapped, hook_state = run_of(model, state, 0.005, {"rank": 2, "min_ratio": 1.0})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(net, batch):
        x, y = batch_of(batch, number, 24)
        return nn.functional.mse_loss(net(x), y)

    found = []
    for step in range(steps):
        batches = range(parts * step, parts * (step + 1))
        alone.load_state_dict(model.state_dict())
        alone.zero_grad()
        sum(loss_of(alone, batch) for batch in batches).backward()
        everyones = [None] * ranks
        dist.all_gather_object(everyones, {name: p.grad for name, p in alone.named_parameters()})
        optimizer.zero_grad()
        if at_once:
            xs, ys = zip(*(batch_of(batch, number, 24) for batch in batches))
            (parts * nn.functional.mse_loss(wrapped(torch.cat(xs)), torch.cat(ys))).backward()
        else:
            for batch in batches:
                with contextlib.nullcontext() if batch == batches[-1] else wrapped.no_sync():
                    loss_of(wrapped, batch).backward()
        found.append({"true": {name: (sum(of[name] for of in everyones) / ranks).numpy() for name in everyones[0]},
                      "arrived": {name: p.grad.numpy().copy() for name, p in model.named_parameters()},
                      "memory": {name: of.numpy().copy() for name, of in hook_state._memory.items()}})
        optimizer.step()
    return {"steps": found, "parameters": parameters_of(model)}


def run_of(model, how, cap_mb, options, hook_state=None):
    wrapped = DistributedDataParallel(model, bucket_cap_mb=cap_mb)
    if how == "pytorch":
        hook_state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=options.get("rank", 4), start_powerSGD_iter=2,
                                                 min_compression_rate=options.get("min_ratio", 2.0), orthogonalization_epsilon=1e-8)
        wrapped.register_comm_hook(hook_state, powerSGD_hook.powerSGD_hook)
    elif how is not None:
        hook_state = hook_state or CLASSES[how](model, **options)
        wrapped.register_comm_hook(hook_state, atomo.torch.ddp_hook)
    return wrapped, hook_state


def scaled_steps(number, ranks, **options):
    """A GradScaler meets an Inf of one rank's in the second step, halves its scale and skips the step."""
    model = make_net("small")
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.005)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    state = atomo.torch.PowerSGDState(model, scale=scaler.get_scale, **options)
    wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memories, scales = [], []
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch_of(0, number, 24)
        loss = nn.functional.mse_loss(wrapped(x), y) * (float("inf") if step == 1 and number == 0 else 1.0)
        scaler.scale(loss).backward()
        memories.append({name: of.numpy().copy() for name, of in state._memory.items()})
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return {"memories": memories, "scales": scales, "finite": all(np.isfinite(v).all() for v in parameters_of(model).values())}


def disagree(rank, ranks, what="rank", state="PowerSGDState", **options):
    """Rank 1 is told otherwise, or fails."""
    model = make_net("small")
    wrapped = DistributedDataParallel(model)
    other = {"rank": {"rank": 3}, "start_step": {"start_step": 5}, "scale": {"scale": lambda: 1 / 0}}
    hook_state = CLASSES[state](model, **{"rank": 2, **options, **(other[what] if rank == 1 else {})})
    wrapped.register_comm_hook(hook_state, atomo.torch.ddp_hook)
    x, y = batch_of(0, rank, 24)
    nn.functional.mse_loss(wrapped(x), y).backward()


def of_rank_0(rank, ranks, way):
    """What rank 0 has left, what arrives of gradients of zero behind its checkpoint, and what is left then."""
    shapes = {"a": (24, 16)}
    model = Matrices(shapes)
    wrapped = DistributedDataParallel(model)
    hook_state = CLASSES[way](model, rank=1, min_ratio=1.0)
    wrapped.register_comm_hook(hook_state, atomo.torch.ddp_hook)
    wrapped(gradients_of(rank, shapes)).backward()
    saved = [hook_state.state_dict()]
    dist.broadcast_object_list(saved, 0)
    hook_state.load_state_dict(saved[0])
    left = hook_state._memory["of.a"].clone()
    model.zero_grad()
    wrapped({"a": torch.zeros(24, 16)}).backward()
    return {"left": left.numpy(), "arrived": model.of["a"].grad.numpy(), "kept": hook_state._memory["of.a"].numpy()}


def sparse_infinity(rank, ranks, way):
    """Whether a memory stays in a step in which a sparse gradient of one rank's alone is not finite."""
    model = make_net("sparse first")
    wrapped = DistributedDataParallel(model)
    hook_state = CLASSES[way](model, rank=2, min_ratio=1.0)
    wrapped.register_comm_hook(hook_state, atomo.torch.ddp_hook)
    kept = []
    for step in range(2):
        model.zero_grad()
        x, y = batch_of(step, rank, 24)
        loss = nn.functional.mse_loss(wrapped(x), y)
        if step == 1 and rank == 0:
            loss = loss + float("inf") * model.embedding(torch.tensor([0])).sum()
        loss.backward()
        kept.append({name: of.numpy().copy() for name, of in hook_state._memory.items()})
    return kept
