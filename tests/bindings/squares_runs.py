# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_torch_squares.py do, and planted bugs."""

import warnings

import atomo.torch
import ddp_runs
import numpy as np
import torch
from ddp_runs import batch_of, make_net, parameters_of, reloaded
from torch import nn
from torch.nn.parallel import DistributedDataParallel

THREE_BUCKETS = 0.002


class OneSum(atomo.torch.Squares):
    """A planted bug: the decoded average's squares as they are, with the codec's noise in them."""

    def see_decoded(self, name, decoded):
        super().see_decoded(name, decoded * 0)
        self._step.own[name].one *= 0


class AlikeDraws(ddp_runs.Watched):
    """A planted bug: all ranks draw alike, so that their messages' errors are not independent."""

    def _begin_step(self, rank, ranks):
        super()._begin_step(0, ranks)


CLASSES = {"Squares": atomo.torch.Squares, "OneSum": OneSum, "AlikeDraws": AlikeDraws, "Watched": ddp_runs.Watched,
           "OnStandIn": ddp_runs.OnStandIn}


def told(rank, ranks, policy, *, steps=1, state="Watched", squares="Squares", beta2=0.0, every=1, net="small", same=True,
         bad_step=None, scale=1.0, seed=0, precondition=False):
    """Gradients of the same batches in every step, or of others: what each step was told, and what is true.

    The true figures are of the ranks' own gradients, exchanged as they are.
    """
    model = make_net(net)
    squares = CLASSES[squares](every=every, beta2=beta2, precondition=precondition)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=THREE_BUCKETS)
    hook_state = CLASSES[state](model, policy, squares=squares, seed=seed, scale=scale)
    wrapped.register_comm_hook(hook_state, atomo.torch.ddp_hook)
    seen, truth = [], []
    for step in range(steps):
        x, y = batch_of(0 if same else step, rank, 24)
        factor = scale * (float("inf") if step == bad_step and rank == 1 else 1.0)
        own = own_gradients(model, x, y, factor)
        model.zero_grad()
        (factor * nn.functional.mse_loss(wrapped(x), y)).backward()
        seen.append({name: tensors_of(squares[name]) for name in squares})
        truth.append(true_squares(own, ranks, scale))
    return {"seen": seen, "truth": truth, "bytes": hook_state.bytes_sent, "last": hook_state.last.bytes_sent,
            "names": list(squares), "moments": {name: squares[name].second_moment().numpy() for name in squares}}


def own_gradients(model, x, y, factor):
    """Of this rank, without the hook."""
    model.zero_grad()
    (factor * nn.functional.mse_loss(model(x), y)).backward()
    return {name: p.grad.to_dense().clone() for name, p in model.named_parameters()}


def tensors_of(of):
    return {"rows": of.rows.numpy().copy(), "columns": of.columns.numpy().copy(), "sums": of.sums.numpy().copy()}


def true_squares(own, ranks, scale):
    """By name: means over ranks of the row and column means, the mean sum, the average's sum."""
    everyones = [None] * ranks
    torch.distributed.all_gather_object(everyones, {name: g.double().numpy() / scale for name, g in own.items()})
    true = {}
    for name in own:
        of = [np.asarray(one[name]) for one in everyones]
        if of[0].ndim < 2 or min(of[0].shape[0], of[0][0].size) < 4:
            continue
        flat = [g.reshape(len(g), -1) for g in of]
        true[name] = {"rows": np.mean([(g**2).mean(1) for g in flat], 0),
                      "columns": np.mean([(g**2).mean(0) for g in flat], 0),
                      "one": np.mean([(g**2).sum() for g in flat]), "average": (np.mean(flat, 0) ** 2).sum()}
    return true


def preconditioned(rank, ranks, codec, *, state, steps=6, every=2, beta2=0.9, scale=8.0):
    """Gradients of `ef+codec` in units of the second moment, and what they are by a direct computation."""
    model = make_net("small")
    squares = atomo.torch.Squares(every=every, beta2=beta2, precondition=True)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=THREE_BUCKETS)
    wrapped.register_comm_hook(CLASSES[state](model, f"ef+{codec}", squares=squares, scale=scale), atomo.torch.ddp_hook)
    codec, memory, moments, results = atomo.Codec(codec), {}, {}, []
    for step in range(steps):
        x, y = batch_of(step, rank, 24)
        own = own_gradients(model, x, y, scale)
        units = {name: units_of(squares.get(name), moments.get(name), step, beta2) for name in own}
        model.zero_grad()
        (scale * nn.functional.mse_loss(wrapped(x), y)).backward()
        expected = {}
        for name, gradient in own.items():
            wanted = np.asarray(gradient.numpy() / scale / units[name] + memory.get(name, 0), np.float32)
            sent = codec.decode(codec.encode(wanted, step=step), like=wanted)
            memory[name] = wanted - sent
            everyones = [None] * ranks
            torch.distributed.all_gather_object(everyones, sent)
            average = np.mean(everyones, 0) * units[name]
            expected[name] = scale * average
            moments[name] = beta2 * moments.get(name, 0) + (1 - beta2) * average**2
        results.append((expected, {name: p.grad.numpy().copy() for name, p in model.named_parameters()}, units))
    return results


def averages(rank, ranks, net, every, steps=3):
    """Of gradients that are sent as they are: without units and with them, by name, of each step."""
    nets, seen = [make_net(net) for _ in range(2)], []
    wrapped = [DistributedDataParallel(model) for model in nets]
    for model, ddp, squares in zip(nets, wrapped, (None, atomo.torch.Squares(every=every, precondition=True))):
        ddp.register_comm_hook(atomo.torch.DDPState(model, "identity:dtype=f32", squares=squares), atomo.torch.ddp_hook)
    for step in range(steps):
        x, y = batch_of(step, rank, 24)
        for model, ddp in zip(nets, wrapped):
            model.zero_grad()
            nn.functional.mse_loss(ddp(x), y).backward()
        seen.append([{name: p.grad.numpy().copy() for name, p in model.named_parameters()} for model in nets])
    return seen


def units_of(told, moment, step, beta2):
    """In f64: the fourth root of the product of means, of what was told or else of Adam's moments, kept from below; of a vector
    that of their mean."""
    if step == 0:
        return 1.0
    if told is not None:
        rows, columns, (one, average, weight) = (part.double().numpy() for part in (told.rows, told.columns, told.sums))
        second = np.outer(rows, columns) / rows.mean() * np.clip(average / one, 0.5 / told.ranks, 1) / weight
    elif moment.ndim > 1 and min(moment.shape) >= 4:
        second = np.outer(moment.mean(1), moment.mean(0)) / moment.mean() / (1 - beta2**step)
    else:
        return (moment.mean() / (1 - beta2**step))**0.25
    root = np.sqrt(second)
    return np.sqrt(np.maximum(root, np.sqrt(np.mean(root**2)) / 1024)).reshape(told.shape if told else moment.shape)


def halves(rank, ranks):
    """Units of gradients of bf16."""
    model = make_net("small").bfloat16()
    wrapped = DistributedDataParallel(model)
    state = atomo.torch.DDPState(model, "qsgd:bits=4", squares=atomo.torch.Squares(precondition=True))
    wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
    x, y = batch_of(0, rank, 24)
    nn.functional.mse_loss(wrapped(x.bfloat16()), y.bfloat16()).backward()


def train(rank, ranks, policy, *, steps=8, every=3, checkpoint_at=None, way="dict", state="Watched", told=True, lr=0.01,
          precondition=False):
    """A training with AdamW."""
    model = make_net("small")
    wrapped, hook_state, optimizer = run_of(model, policy, every, state, told, lr, precondition)
    losses = []
    for step in range(steps):
        if step == checkpoint_at:
            model, kept, revived = reloaded(model, optimizer, hook_state, way, "small")
            wrapped, hook_state, optimizer = run_of(model, policy, every, state, told, lr, precondition,
                                                    None if way == "dict" else revived.bind(model))
            if way == "dict":
                hook_state.load_state_dict(revived)
            optimizer.load_state_dict(kept)
        optimizer.zero_grad()
        x, y = batch_of(step, rank, 24)
        loss = nn.functional.mse_loss(wrapped(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"losses": losses, "parameters": parameters_of(model), "bytes_sent": hook_state.bytes_sent}


def run_of(model, policy, every, state, told, lr, precondition, hook_state=None):
    wrapped = DistributedDataParallel(model, bucket_cap_mb=THREE_BUCKETS)
    if hook_state is None:
        squares = atomo.torch.Squares(every=every, precondition=precondition) if told else None
        hook_state = CLASSES[state](model, policy, squares=squares)
    wrapped.register_comm_hook(hook_state, atomo.torch.ddp_hook)
    return wrapped, hook_state, atomo.torch.AdamW(model.parameters(), lr=lr, squares=hook_state.squares)


def first_steps(rank, ranks, how):
    """What three steps warn of squares."""
    model = make_net("small")
    hook_state = atomo.torch.DDPState(model, "qsgd:bits=4", squares=atomo.torch.Squares(), start_step=2 if how == "warm-up" else 0)
    wrapped, _, optimizer = run_of(model, "", 0, "", True, 0.01, False, hook_state)
    with warnings.catch_warnings(record=True, action="always") as said:
        if how == "a checkpoint":
            hook_state.load_state_dict(hook_state.state_dict())
            optimizer.load_state_dict(optimizer.state_dict())
        for step in range(3):
            optimizer.zero_grad()
            x, y = batch_of(step, rank, 24)
            (nn.functional.mse_loss(wrapped(x), y) * (float("inf") if how == "not finite" and step == 0 else 1.0)).backward()
            optimizer.step()
    return [str(each.message) for each in said if "squares" in str(each.message)]


def disagree(rank, ranks):
    """Ranks tell their squares in other steps."""
    model = make_net("small")
    wrapped = DistributedDataParallel(model)
    state = atomo.torch.DDPState(model, "qsgd:bits=4", squares=atomo.torch.Squares(every=2 + rank))
    wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
    x, y = batch_of(0, rank, 24)
    nn.functional.mse_loss(wrapped(x), y).backward()
