# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_torch_misuse.py do: arguments, checkpoints and models that cannot be, and what is left behind them."""

import copy
import time

import atomo
import atomo.torch
import torch
from torch.nn.parallel import DistributedDataParallel


def wrapped(policy="identity", shape=(8, 8), **options):
    """A matrix behind DDP, and the state of its hook."""
    torch.manual_seed(1)
    model = torch.nn.Linear(*shape, bias=False)
    ddp = DistributedDataParallel(model)
    state = atomo.torch.DDPState(ddp, policy, **options)
    ddp.register_comm_hook(state, atomo.torch.ddp_hook)
    return model, ddp, state


def largest_update(model, ddp, optimizer):
    """Of a step, in learning rates."""
    optimizer.zero_grad()
    before = model.weight.detach().clone()
    ddp(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    return float((model.weight - before).abs().max()) / 1e-3


def told_no_longer(rank, ranks, how, steps=200):
    """The last update of a parameter that is told of, and the ten behind it."""
    squares = atomo.torch.Squares(every=1)
    model, ddp, _ = wrapped(squares=squares)
    optimizer = atomo.torch.AdamW(model.parameters(), lr=1e-3, squares=squares, weight_decay=0)
    for _ in range(steps):
        last = largest_update(model, ddp, optimizer)
    if how == "saved":
        other = atomo.torch.AdamW(model.parameters(), lr=1e-3, weight_decay=0)
        other.load_state_dict(optimizer.state_dict())
        optimizer = other
    else:
        optimizer.squares = None
    return last, [largest_update(model, ddp, optimizer) for _ in range(10)]


def squares_of_two(rank, ranks):
    """What a second state with the same squares is told, and whether the first goes on."""
    squares = atomo.torch.Squares(every=1)
    model, ddp, state = wrapped(squares=squares)
    optimizer = atomo.torch.AdamW(model.parameters(), lr=1e-3, squares=squares)
    largest_update(model, ddp, optimizer)
    try:
        wrapped(squares=squares)
        said = None
    except atomo.Error as error:
        said = str(error)
    state.bind(ddp)  # the same state
    return said, squares.get(model.weight) is not None


def scale_fails(rank, ranks, clip_norm):
    """On rank 1. What each rank is told, and after how long."""
    def scale():
        if rank == 1:
            raise RuntimeError("no scale yet")
        return 1.0

    _, ddp, state = wrapped("ef+topk:keep=.1", scale=scale, clip_norm=clip_norm)
    began, said = time.monotonic(), None
    try:
        ddp(torch.ones(1, 8)).sum().backward()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - began
    state.scale = 1.0
    ddp.zero_grad()
    ddp(torch.ones(1, 8)).sum().backward()  # the next step is sound
    return said, seconds


def scales_differ(rank, ranks, policy):
    _, ddp, _ = wrapped(policy, scale=[1.0, 2.0][rank])
    ddp(torch.ones(1, 8)).sum().backward()


def loaded_while_pending(rank, ranks):
    """Whether loading leaves the parameters and how many exchanges are pending behind it."""
    model = torch.nn.Linear(4, 4)
    sync = atomo.torch.OuterSync(model, "identity:dtype=f32", every=4, delay=2)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(sync.state_dict())
    for _ in range(4):
        with torch.no_grad():
            model.weight += 1
        sync.step()
    pending = sync.pending
    model.load_state_dict(weights)
    sync.load_state_dict(state)
    return pending, sync.pending, torch.equal(model.weight, weights["weight"]), sync.steps


def refused_outer_states(rank, ranks):
    """What each of these states is refused for, and whether everything was then as it was."""
    model = torch.nn.Linear(8, 8, bias=False)
    sync = atomo.torch.OuterSync(model, "ef+topk:keep=.1", every=1)
    with torch.no_grad():
        model.weight += torch.randn(8, 8)
    sync.step()
    saved = copy.deepcopy(sync.state_dict())
    wrong = [{**saved, "compressors": [torch.zeros(5, dtype=torch.uint8)]}, {**saved, "compressors": []},
             {**saved, "seed": None}, {**saved, "outer": {"weight": torch.zeros(1)}}, {**saved, "outer": {}},
             {**saved, "momentum": {"weight": torch.zeros(3)}}, {**saved, "rank": None},
             *({name: value for name, value in saved.items() if name != left_out} for left_out in saved)]
    said = []
    for state in wrong:
        try:
            sync.load_state_dict(state)
            said.append(None)
        except atomo.Error as error:
            said.append(str(error))
    now = sync.state_dict()
    alike = all(torch.equal(now[part]["weight"], saved[part]["weight"]) for part in ("outer", "momentum"))
    return said, alike and torch.equal(now["compressors"][0], saved["compressors"][0]) and now["round"] == saved["round"]


def one_parameter_twice(rank, ranks):
    model = torch.nn.Module()
    model.a = torch.nn.Linear(4, 4, bias=False)
    model.b = torch.nn.Linear(4, 4, bias=False)
    model.b.weight = model.a.weight
    said = []
    for make in (lambda layers: atomo.torch.DDPState(layers, "qsgd:bits=2"),
                 lambda layers: atomo.torch.OuterSync(layers, "qsgd:bits=2", every=1)):
        try:
            make(model.state_dict(keep_vars=True))
            said.append(None)
        except atomo.Error as error:
            said.append(str(error))
    atomo.torch.DDPState(model, "qsgd:bits=2")  # named_parameters() has one name
    return said
