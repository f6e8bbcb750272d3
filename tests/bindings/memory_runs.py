# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_torch_memories.py do."""

import contextlib
import pickle
import time

import atomo.torch
import ddp_runs
import numpy as np
import torch
import torch.distributed as dist
from ddp_runs import batch_of, make_net, parameters_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from worlds import same

CLIP_NORM = 0.01  # far below the norms of these gradients

def hooked(policy, scale, way, net="small", **options):
    """`way`: the state's class in ddp_runs."""
    model = make_net(net)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.005)
    state = getattr(ddp_runs, way)(model, policy, scale=scale, **options)
    wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
    return model, wrapped, state


def memories_of(state):
    """A copy by layer, those of buckets on a GPU too, which a checkpoint brings to the CPU."""
    state.state_dict()
    return {name: np.frombuffer(state.compressor.memory(name), np.float32).copy() for name in state.layers}


def scaled_steps(rank, ranks, policy, way, net="small"):
    """A GradScaler meets an Inf of one rank's in the second step, halves its scale and skips the step."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model, wrapped, state = hooked(policy, scaler.get_scale, way, net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memories, scales = [], []
    for step in range(3):
        optimizer.zero_grad()
        x, y = batch_of(step, rank, 24)
        loss = nn.functional.mse_loss(wrapped(x), y)
        if step == 1 and rank == 0:
            loss = loss + next(p for p in model.parameters() if p.ndim == 1).sum() * float("inf")  # of one layer's gradient alone
        scaler.scale(loss).backward()
        memories.append(memories_of(state))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return {"memories": memories, "scales": scales, "gradients": gradients_of(model), "finite": all(np.isfinite(v).all() for v in parameters_of(model).values())}


def train(rank, ranks, policy, scales, way="Watched"):
    """With a loss that is scaled by hand."""
    now = [1.0]
    model, wrapped, _ = hooked(policy, lambda: now[0], way)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step, now[0] in enumerate(scales):
        optimizer.zero_grad()
        x, y = batch_of(step, rank, 24)
        (now[0] * nn.functional.mse_loss(wrapped(x), y)).backward()
        for parameter in model.parameters():
            parameter.grad.div_(now[0])
        optimizer.step()
    return parameters_of(model)


def steps_at_rates(rank, ranks, policy, rates, way, where, squares=None):
    """Plain steps. The rates are in the memory and the step, in the step alone, or in the loss, behind which a memory has them too.
    Weights, and second moments that `squares` were told."""
    now = [1.0]
    options = {"rate_in_memory": lambda: now[0]} if where == "memory" else {}
    model, wrapped, _ = hooked(policy, 1.0, way, squares=squares, **options)
    for step, now[0] in enumerate(rates):
        model.zero_grad()
        x, y = batch_of(step, rank, 24)
        ((now[0] if where == "loss" else 1.0) * nn.functional.mse_loss(wrapped(x), y)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.125 if where == "loss" else 0.125 * now[0])
    told = {} if squares is None else {name: squares[name].second_moment().numpy() for name in squares}
    return parameters_of(model), told


def step_of(model, wrapped, rank, number):
    model.zero_grad()
    x, y = batch_of(number, rank, 24)
    nn.functional.mse_loss(wrapped(x), y).backward()


def of_other_ranks(rank, ranks, policy, way):
    """What a new state says twice that goes on from one of three ranks."""
    model, wrapped, state = hooked(policy, 1.0, way)
    step_of(model, wrapped, rank, 0)
    saved = {**state.state_dict(), "sum_ranks": 3}
    model, wrapped, state = hooked(policy, 1.0, way)
    state.load_state_dict(saved)
    return said_in_steps(model, wrapped, rank, 2)


def of_rank_0(rank, ranks, policy, way):
    """What a new state says twice that goes on from rank 0's."""
    model, wrapped, state = hooked(policy, 1.0, way)
    step_of(model, wrapped, rank, 0)
    saved = [state.state_dict()]
    dist.broadcast_object_list(saved, 0)
    model, wrapped, state = hooked(policy, 1.0, way)
    state.load_state_dict(saved[0])
    return said_in_steps(model, wrapped, rank, 2)


class Raises(torch.autograd.Function):
    """A program's own error in a backward pass."""

    @staticmethod
    def forward(context, x, raises):
        context.raises = raises
        return x.clone()

    @staticmethod
    def backward(context, slope):
        if context.raises:
            raise ValueError("a program's own")
        return slope, None


class Interrupted(nn.Module):
    """Two layers, and what may raise in between on the way back, when the bucket of the second is on its way."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.raises = nn.Linear(24, 48), nn.Linear(48, 10), False

    def forward(self, x):
        return self.second(Raises.apply(self.first(x), self.raises))


def own_error(rank, ranks, policy, then):
    """A backward pass that a program's own error ends, on a rank that is ahead of the other. What both come to behind that."""
    model = Interrupted()
    state = atomo.torch.DDPState(model, policy)

    def wrap():
        wrapped = DistributedDataParallel(model, bucket_cap_mb=0.001)
        wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
        return wrapped

    wrapped = wrap()
    for number in range(3):
        step_of(model, wrapped, rank, number)
    before = state.state_dict()["sums"]
    model.raises = True
    if rank == 1:
        time.sleep(0.5)
    try:
        step_of(model, wrapped, rank, 3)
    except ValueError:
        if then == "a checkpoint":
            before = (before, state.state_dict()["sums"])
    model.raises = False
    state.bind(model)
    wrapped = wrap()
    after = state.state_dict()["sums"]
    step_of(model, wrapped, rank, 4)
    whole = before if isinstance(before, tuple) else (before, after)
    return {"stay": all(torch.equal(whole[0][name], whole[1][name]) for name in whole[0]), "gradients": gradients_of(model)}


def said_in_steps(model, wrapped, rank, steps):
    said = []
    for number in range(steps):
        try:
            step_of(model, wrapped, rank, number)
        except atomo.Error as error:
            said.append(str(error))
    return said


def saved_again(rank, ranks, policy, way, how):
    """Memories of a state, and of one that has gone twice through a checkpoint without a step between; gradients and memories of its
    next step."""
    model, wrapped, state = hooked(policy, 1.0, way)
    for number in range(3):
        step_of(model, wrapped, rank, number)
    before = memories_of(state)
    for _ in range(2):
        if how == "pickle":
            wrapped = DistributedDataParallel(model, bucket_cap_mb=0.005)
            state = pickle.loads(pickle.dumps(state)).bind(wrapped)
            wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
        else:
            saved = state.state_dict()
            model, wrapped, state = hooked(policy, 1.0, way)
            state.load_state_dict(saved)
        if how == "by another policy":
            state.set_policy("ef+topk:keep=0.05")
            state.set_policy(policy)
    after = memories_of(state)
    step_of(model, wrapped, rank, 3)
    return {"before": before, "after": after, "gradients": gradients_of(model), "kept": memories_of(state)}


def cut_short(rank, ranks, policy, way, then):
    """A step whose second bucket fails on all ranks, or on the CPU on one; what is kept behind it, and gradients of the next step. `then`:
    what comes between."""
    model, wrapped, state = hooked(policy, 1.0, way)
    for number in range(2):
        step_of(model, wrapped, rank, number)
    before, sums = memories_of(state), state.state_dict()["sums"]
    prepare, buckets = state._prepare, []

    def fails(*arguments):
        buckets.append(arguments)
        if len(buckets) == 2 and (rank == 1 or way == "OnStandIn"):
            raise atomo.Error("planted")
        prepare(*arguments)

    state._prepare = fails
    said = said_in_steps(model, wrapped, rank, 1)
    state._prepare = prepare
    if then == "a checkpoint":
        saved = state.state_dict()
        model, wrapped, state = hooked(policy, 1.0, way)
        state.load_state_dict(saved)
    elif then == "another policy":
        state.set_policy(policy.replace("0.05", "0.1"))
    result = {"said": said, "sums": sums}
    if then != "a step":
        result |= {"kept": same(before, memories_of(state)), "sums stay": all(torch.equal(now, sums[name])
                   for name, now in state.state_dict()["sums"].items())}
    step_of(model, wrapped, rank, 3)
    return {**result, "gradients": gradients_of(model), "memories": memories_of(state)}


def recorded(rank, ranks, policy, way, how, steps=4, scale=1.0):
    """Of each step the gradients of this rank alone, what arrived, and what is kept, the loss's scale left out. `how`: "accumulated"
    over three batches, "clipped" after they arrived, "clipped before" they are encoded, as this rank's own are then too,
    "autocast" to bf16, or "halves": layers whose gradients are f16 and bf16."""
    name = "mixed" if how == "halves" else "small"
    model, wrapped, state = hooked(policy, scale, way, name, **({"clip_norm": CLIP_NORM} if how == "clipped before" else {}))
    alone = make_net(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    parts = 3 if how == "accumulated" else 1
    found = []
    for step in range(steps):
        alone.load_state_dict(model.state_dict())
        for net, call in ((alone, alone), (model, wrapped)):
            net.zero_grad()
            for part in range(parts):
                x, y = batch_of(parts * step + part, rank, 24)
                waits = call is wrapped and part + 1 < parts
                with wrapped.no_sync() if waits else contextlib.nullcontext():
                    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
                        out = call(x)
                    ((1.0 if net is alone else scale) * nn.functional.mse_loss(out.float(), y)).backward()
        for parameter in model.parameters():
            parameter.grad.div_(scale)
        found.append({"own": gradients_of(alone), "arrived": gradients_of(model)})
        if how == "clipped":
            found[-1]["norm"] = nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM).item()
        if how == "clipped before":
            found[-1]["norm"] = norm = np.sqrt(sum((own.astype(np.float64) ** 2).sum() for own in found[-1]["own"].values()))
            found[-1]["own"] = {layer: own * np.float32(min(CLIP_NORM / norm, 1)) for layer, own in found[-1]["own"].items()}
        found[-1]["kept"] = memories_of(state)
        optimizer.step()
    return {"steps": found, "parameters": parameters_of(model), "types": {str(p.grad.dtype) for p in model.parameters()}}


def gradients_of(model):
    return {name: p.grad.to_dense().float().numpy().copy() for name, p in model.named_parameters()}


def other_buckets(rank, ranks, policy):
    """Memories before and after DDP is made anew with other buckets, in the middle of which nothing is trained; and of a run
    whose last step was not finite, and went on."""
    model, wrapped, state = hooked(policy, 1.0, "OnStandIn")
    kept, layouts = [], []

    def step(number, factor=1.0):
        model.zero_grad()
        x, y = batch_of(number, rank, 24)
        (factor * nn.functional.mse_loss(wrapped(x), y)).backward()
        kept.append(memories_of(state))
        layouts.append(state.layout)

    step(0)
    step(1)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=25)
    state.bind(wrapped)
    wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
    kept.append(memories_of(state))
    step(2)
    step(3, float("inf") if rank == 0 else 1.0)
    return {"memories": kept, "layouts": layouts}


def warmed_up(rank, ranks, policy, way):
    """Two steps in each of four epochs of a warm-up: the bytes of an epoch, and memories before and after each change."""
    model, wrapped, state = hooked(atomo.warm_up(policy, 0), 1.0, way)
    sent, changes = [], []
    for epoch in range(4):
        if epoch > 0:
            before = memories_of(state)
            state.set_policy(atomo.warm_up(policy, epoch))
            changes.append((before, memories_of(state)))
        began = state.bytes_sent
        for step in (2 * epoch, 2 * epoch + 1):
            model.zero_grad()
            x, y = batch_of(step, rank, 24)
            nn.functional.mse_loss(wrapped(x), y).backward()
        sent.append(state.bytes_sent - began)
    return {"sent": sent, "changes": changes, "policy": state.policy, "gradients": gradients_of(model),
            "kept": memories_of(state)}
