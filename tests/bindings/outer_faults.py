# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_torch_outer.py do where something goes wrong."""

import datetime
import os
import pathlib
import time
import warnings

import atomo
import atomo.torch
import torch
import torch.distributed as dist
from outer_runs import EXACT, inner, local_step, network, outer_of, parameters_of, saved
from torch import nn


def nonfinite(rank, ranks, when, cure, policy="qsgd:bits=4", **options):
    """Rank 1's parameters become infinite before step `when`; it restores them a round later. Tells what each saw."""
    model = network()
    optimiser = inner(model)
    sync = atomo.torch.OuterSync(model, policy, **{"every": 3, **options})
    seen, applied, kept = [], [], None
    for step in range(12):
        local_step(model, optimiser, rank, step)
        if step == when and rank == 1:
            with torch.no_grad():
                model[2].weight[3, 4] = float("inf")
        before, learnt = parameters_of(model), [part.compressor.state() for part in sync._fragments]
        outer = {name: t.numpy().copy() for part in sync._fragments for name, t in part.outer.items()}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            applied.append(sync.step())
        seen += [str(w.message) for w in said]
        if sync.last.nonfinite and kept is None:
            kept = (all(before[name].tobytes() == p.tobytes() for name, p in parameters_of(model).items())
                    and learnt == [part.compressor.state() for part in sync._fragments]
                    and all((outer[name] == t.numpy()).all() for part in sync._fragments for name, t in part.outer.items()))
            if cure and rank == 1:
                sync.restore()
                optimiser.state.clear()
    return {"parameters": parameters_of(model), "seen": seen, "applied": applied, "kept": kept, "outer": outer_of(sync)}


def far_away(rank, ranks, **options):
    """Three rounds of one step, before the second of which rank 0 goes far away; behind it it comes back."""
    model = network()
    optimiser = inner(model)
    sync = atomo.torch.OuterSync(model, every=1, outer="sgd", outer_lr=1.0, **options)
    applied, outer = [], []
    for step in range(3):
        local_step(model, optimiser, rank, step)
        with torch.no_grad():
            if step == 1 and rank == 0:
                model[2].weight[3, 4] = 1e5
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            applied.append(sync.step())
        outer.append(outer_of(sync))
        if sync.last.nonfinite:
            nonfinite = sync.last.nonfinite
            sync.restore()
            optimiser.state.clear()
    return {"applied": applied, "outer": outer, "nonfinite": nonfinite}


def changed(rank, ranks, how):
    """The parameters become others on rank 1 alone."""
    model = network()
    sync = atomo.torch.OuterSync(model, EXACT, every=2)
    if rank == 1 and how == "frozen":
        model[0].weight.requires_grad_(False)
    if rank == 1 and how == "added":
        model.append(nn.Linear(4, 4))
    if rank == 1 and how == "shape":
        model[4] = nn.Linear(24, 5)
    if rank == 1 and how == "type":
        model[4].to(torch.bfloat16)
    sync.synchronise()


def disagree(rank, ranks, what):
    """Rank 1 is told otherwise, at construction or later."""
    options = {"every": 2, "policy": "qsgd:bits=4"}
    others = {"every": 3, "policy": "qsgd:bits=2", "outer": "sgd", "outer_lr": 0.5, "outer_momentum": 0.5, "clip": "median",
              "seed": 1, "channel": 1, "fragments": 2, "verify_every": 1, "broadcast": True}
    model = network()
    if rank == 1 and what in others:
        options[what] = others[what]
        if what == "outer":
            options["outer_momentum"] = 0.9
    if rank == 1 and what == "layers":
        model = nn.Sequential(*model[:4], nn.Linear(24, 5))
    if rank == 1 and what == "names":
        model = nn.ModuleDict({"net": model})
    if rank == 1 and what == "start":
        with torch.no_grad():
            model[0].bias[2] += 1e-6
    if what == "an older checkpoint":
        options["verify_every"] = 2
    sync = atomo.torch.OuterSync(model, **options)
    if what == "an older checkpoint":
        for step in range(4):
            sync.step()
            if step == 1:
                older = saved(sync.state_dict())
        if rank == 1:
            sync.load_state_dict(older)
    if rank == 1 and what == "a rate of later":
        sync.outer_lr = 0.1
    if rank == 1 and what == "a step of later":
        sync.step()
    sync.synchronise()


def broadcast(rank, ranks, dtype):
    model = network(rank, getattr(torch, dtype))
    sync = atomo.torch.OuterSync(model, EXACT, every=2, broadcast=True)
    first = parameters_of(network(0, getattr(torch, dtype)))
    return {"parameters": parameters_of(model), "first": first, "outer": outer_of(sync)}


def diverged(rank, ranks, verify_every, which):
    """A bit of some ranks' outer parameters flips."""
    model = network()
    sync = atomo.torch.OuterSync(model, EXACT, every=1, verify_every=verify_every)
    sync.step()
    if rank in which:
        sync._fragments[0].outer["2.weight"].view(torch.int32)[1, 7] ^= 1
    for _ in range(3):
        sync.step()


def gone(rank, ranks, seconds, delay, path):
    """Rank 1 ends without a word before a round. What the others were told, and when. It is the world's last function."""
    from atomo.torch import groups

    group = dist.new_group(timeout=datetime.timedelta(seconds=seconds))
    model = network()
    sync = atomo.torch.OuterSync(model, EXACT, every=3, delay=delay, process_group=group)
    assert groups.is_alive(group)
    for _ in range(2):
        sync.step()
    if rank == 1:
        os._exit(7)
    began = time.monotonic()
    try:
        for _ in range(1 + delay):
            sync.step()
        said = "nothing"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    pathlib.Path(path).write_text(f"{time.monotonic() - began} {said}")
    os._exit(0)
