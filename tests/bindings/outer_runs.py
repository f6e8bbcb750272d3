# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_torch_outer.py do: small trainings that synchronise now and then, and planted bugs."""

import copy
import io
import time
import warnings

import atomo
import atomo.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

EXACT = "identity:dtype=f32"


class OwnOrder(atomo.torch.OuterSync):
    """Adds its own message first, then the others'. A check of replicas that passes with this one checks nothing."""

    def _begin(self, part, delay):
        from atomo.torch import outer_round

        add = outer_round._add
        outer_round._add = lambda fragment, messages, norms: add(
            fragment, [messages[self._rank], *(m for r, m in enumerate(messages) if r != self._rank)], norms)
        try:
            super()._begin(part, delay)
        finally:
            outer_round._add = add


KINDS = {kind.__name__: kind for kind in (atomo.torch.OuterSync, OwnOrder)}


def network(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 4)).to(dtype)


def teacher():
    with torch.random.fork_rng():
        return network(99)


def batch(rank, step, size=16):
    """Of that rank at that step: inputs, and what the teacher makes of them."""
    draw = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(size, 12, generator=draw)
    with torch.no_grad():
        return x, 3 * teacher()(x)


def local_step(model, optimiser, rank, step):
    """Returns the loss."""
    x, y = batch(rank, step)
    optimiser.zero_grad()
    kind = next(model.parameters()).dtype
    loss = nn.functional.mse_loss(model(x.to(kind)).float(), y)
    loss.backward()
    optimiser.step()
    return loss.item()


def parameters_of(model):
    return {name: p.detach().float().numpy().copy() for name, p in model.named_parameters()}


def outer_of(sync):
    return {name: tensor.numpy().copy() for name, tensor in sync.state_dict()["outer"].items()}


def inner(model, kind="adamw", lr=0.01):
    if kind == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=lr)
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def trained(rank, ranks, policy=EXACT, steps=12, kind="OuterSync", dtype="float32", optimiser="adamw", end=True, **options):
    """Trains, synchronises once more, and tells everything."""
    model = network(dtype=getattr(torch, dtype))
    optimiser = inner(model, optimiser)
    sync = KINDS[kind](model, policy, **{"every": 4, **options})
    losses, synchronised, replicas = [], [], []
    for step in range(steps):
        losses.append(local_step(model, optimiser, rank, step))
        synchronised.append(sync.step())
        replicas.append(parameters_of(model))
    if end:
        sync.synchronise()
    return {"parameters": parameters_of(model), "losses": losses, "synchronised": synchronised, "replicas": replicas,
            "outer": outer_of(sync), "log": sync.log(), "checksum": sync.checksum(), "repr": repr(sync)}


def idle(rank, ranks, dtype):
    """The outer parameters after some training, and after rounds without any."""
    model = network(dtype=getattr(torch, dtype))
    optimiser = inner(model)
    sync = atomo.torch.OuterSync(model, EXACT, every=4, outer="sgd", outer_lr=0.7)
    for step in range(8):
        local_step(model, optimiser, rank, step)
        sync.step()
    before = outer_of(sync)
    sync.synchronise()
    sync.synchronise()
    return before, outer_of(sync)


def later_momentum(rank, ranks, first):
    """The outer momentum becomes 0.9 before the first round."""
    model = network()
    optimiser = inner(model)
    sync = atomo.torch.OuterSync(model, EXACT, every=3, outer_momentum=first)
    for step in range(9):
        local_step(model, optimiser, rank, step)
        sync.outer_momentum = 0.9
        sync.step()
    return {"parameters": parameters_of(model)}


def momentum_of_later(rank, ranks, resume):
    """The outer momentum becomes 0.9 behind the fourth step, and of two fragments the first alone has had a step with it when all is
    loaded into new objects."""
    def fresh(momentum):
        model = network()
        return model, inner(model), atomo.torch.OuterSync(model, EXACT, every=4, fragments=2, outer_momentum=momentum)

    model, optimiser, sync = fresh(0.0)
    for step in range(12):
        if step == 4:
            sync.outer_momentum = 0.9
        if step == 6 and resume:
            state = saved({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "sync": sync.state_dict()})
            model, optimiser, sync = fresh(0.9)
            model.load_state_dict(state["model"])
            optimiser.load_state_dict(state["optimiser"])
            sync.load_state_dict(state["sync"])
        local_step(model, optimiser, rank, step)
        sync.step()
    return parameters_of(model)


def error(rank, ranks, policy, step, **options):
    """The last loss of the outer parameters on data that nobody trains on, after so many steps."""
    result = trained(rank, ranks, policy, step, **options)
    model = network()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.from_numpy(result["outer"][name]))
        x, y = batch(77, 0, 512)
        return nn.functional.mse_loss(model(x), y).item(), result["log"]["bytes_sent"]


def reference(ranks, steps, every, nesterov, lr, momentum, optimiser="adamw"):
    """DiLoCo as its paper has it, all workers in one process, the outer step by torch.optim.SGD."""
    models = [network() for _ in range(ranks)]
    optimisers = [inner(model, optimiser) for model in models]
    outer = network()
    step_of = torch.optim.SGD(outer.parameters(), lr=lr, momentum=momentum, nesterov=nesterov)
    for step in range(steps):
        for rank, model in enumerate(models):
            local_step(model, optimisers[rank], rank, step)
        if (step + 1) % every:
            continue
        with torch.no_grad():
            for own, *of_ranks in zip(outer.parameters(), *(model.parameters() for model in models)):
                own.grad = torch.zeros_like(own)
                for p in of_ranks:
                    own.grad.add_(own - p, alpha=1 / ranks)
            step_of.step()
            for model in models:
                for own, p in zip(outer.parameters(), model.parameters()):
                    p.copy_(own)
    return parameters_of(outer)


def streaming_reference(ranks, steps, every, parts, delay, alpha, lr, momentum, dtype=torch.float32):
    """Streaming DiLoCo, algorithm 2: `parts` holds the names of each fragment. Returns each worker's parameters and the
    outer ones before anything pending is applied."""
    models = [dict((model := network(dtype=dtype)).named_parameters()) | {"model": model} for _ in range(ranks)]
    modules = [model.pop("model") for model in models]
    optimisers = [inner(module) for module in modules]
    outer = {name: p.detach().float().clone() for name, p in models[0].items()}
    velocity = {name: torch.zeros_like(p) for name, p in outer.items()}
    sent = {}
    for step in range(1, steps + 1):
        for rank, module in enumerate(modules):
            local_step(module, optimisers[rank], rank, step - 1)
        with torch.no_grad():
            for number, names in enumerate(parts):
                if step % every == (number + 1) * every // len(parts) % every:
                    sent[number] = {name: sum((outer[name] - model[name]) / ranks for model in models) for name in names}
                if (step - delay) % every == (number + 1) * every // len(parts) % every and number in sent:
                    for name, mean in sent.pop(number).items():
                        velocity[name] = momentum * velocity[name] + mean
                        outer[name] = outer[name] - lr * (mean + momentum * velocity[name])
                        for model in models:
                            model[name].copy_(alpha * model[name] + (1 - alpha) * outer[name])
    return [{name: p.detach().numpy().copy() for name, p in model.items()} for model in models], \
        {name: p.numpy().copy() for name, p in outer.items()}


# Checkpoints


def saved(state):
    """As `torch.save` and `torch.load` with its default of weights only give it back."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return torch.load(io.BytesIO(buffer.getvalue()), weights_only=True)


def resumed(rank, ranks, policy, at, steps=14, resume=True, donor=None, **options):
    """Trains; at step `at` everything is saved and, if asked, loaded into new objects. `donor`: the rank whose state is
    loaded by all, or "next", with which each loads the next one's."""
    def fresh(seed):
        model = network(seed)
        return model, inner(model), atomo.torch.OuterSync(model, policy, **{"every": 4, **options})

    model, optimiser, sync = fresh(0)
    losses = []
    for step in range(steps):
        if step == at:
            state = saved({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "sync": sync.state_dict()})
            if donor is not None:
                of_all = [None] * ranks
                dist.all_gather_object(of_all, state)
                state["sync"] = of_all[(rank + 1) % ranks if donor == "next" else donor]["sync"]
            if resume:
                model, optimiser, sync = fresh(5)
                model.load_state_dict(state["model"])
                optimiser.load_state_dict(state["optimiser"])
                sync.load_state_dict(state["sync"])
        losses.append(local_step(model, optimiser, rank, step))
        sync.step()
    sync.synchronise()
    return {"parameters": parameters_of(model), "losses": losses, "bytes_sent": sync.bytes_sent, "round": sync.round,
            "outer": outer_of(sync), "learnt": [part.compressor.state() for part in sync._fragments]}


def refused_state(rank, ranks, what):
    """Loading what is of another run."""
    model = network()
    state = atomo.torch.OuterSync(model, "atomo:bits=1", every=4).state_dict()
    other = {"policy": {"policy": "qsgd:bits=4"}, "fragments": {"fragments": 2}, "momentum": {"outer_momentum": 0.0}}
    layers = {"model": nn.Linear(3, 4)} if what == "layers" else {"model": network()}
    sync = atomo.torch.OuterSync(layers["model"], **{"policy": "atomo:bits=1", "every": 4, **other.get(what, {})})
    sync.load_state_dict(state)


def clipped(rank, ranks, scales, policy=EXACT):
    """Each rank's change is its scale times one direction. Returns the step that all took and the norms."""
    model = nn.Linear(5, 3, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    sync = atomo.torch.OuterSync(model, policy, every=1, outer="sgd", outer_lr=1.0, clip="median")
    with torch.no_grad():
        model.weight.fill_(-scales[rank])
    sync.step()
    return {"parameters": parameters_of(model), "norms": sync.last.norms}


def drawn(rank, ranks, policy, rounds):
    """The norms of what the ranks decode of changes that are the same on all ranks and in all rounds."""
    model = nn.Linear(40, 30, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-1, 1, 1200).view(30, 40))
    sync = atomo.torch.OuterSync(model, policy, every=1, clip="median")
    told = []
    for _ in range(rounds):
        sync.restore()
        with torch.no_grad():
            model.weight += torch.linspace(-1, 3, 1200).view(30, 40)
        sync.step()
        told.append(sync.last.norms)
    return told


def early_and_late(rank, ranks, seconds):
    """The second rank comes later to a step whose exchange is due."""
    model = network()
    sync = atomo.torch.OuterSync(model, EXACT, every=4, delay=3)
    for _ in range(3):
        sync.step()
    if rank == 1:
        time.sleep(seconds)
    began = time.monotonic()
    for _ in range(3):
        sync.step()
    between, pending = time.monotonic(), sync.pending
    sync.step()
    return {"seconds": between - began, "waited": time.monotonic() - between, "pending": pending}


def in_pairs(rank, ranks):
    """Ranks 0 and 1 synchronise, and ranks 2 and 3."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return trained(rank, ranks, "qsgd:bits=4", process_group=groups[rank // 2])


# Shards


class Meshes:
    """One for a number of islands; a mesh is made by all ranks once."""

    of = {}


def mesh_of(ranks, islands):
    if (ranks, islands) not in Meshes.of:
        Meshes.of[ranks, islands] = init_device_mesh("cpu", (islands, ranks // islands), mesh_dim_names=("outer", "shard"))
    return Meshes.of[ranks, islands]


def sharded(rank, ranks, islands, policy=EXACT, steps=8, wrong_group=False, **options):
    """Islands of fully sharded models, each with data of its own; synchronised over the islands."""
    mesh = mesh_of(ranks, islands)
    model = network()
    for layer in (model[0], model[2], model[4], model):
        fully_shard(layer, mesh=mesh["shard"])
    group = mesh["shard"] if wrong_group else mesh["outer"]
    optimiser = inner(model)
    sync = atomo.torch.OuterSync(model, policy, **{"every": 4, "process_group": group, **options})
    island = mesh.get_coordinate()[0]
    for step in range(steps):
        local_step_of_shards(model, optimiser, island, step)
        sync.step()
    whole = {name: p.full_tensor().detach().numpy().copy() for name, p in model.named_parameters()}
    return {"parameters": whole, "log": sync.log(), "seed": sync._seed(), "state": saved(sync.state_dict())["round"]}


def sharded_and_not_finite(rank, ranks):
    """Of two workers with two shards each, rank 2's shard alone."""
    mesh = mesh_of(ranks, 2)
    model = network()
    fully_shard(model, mesh=mesh["shard"])
    sync = atomo.torch.OuterSync(model, EXACT, every=1, process_group=mesh["outer"])
    with torch.no_grad():
        if rank == 2:
            model[0].weight.to_local()[0, 0] = float("nan")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        sync.step()
    return {"nonfinite": sync.last.nonfinite, "seen": [str(w.message) for w in said if "skipped" in str(w.message)]}


def local_step_of_shards(model, optimiser, island, step):
    x, y = batch(island, step)
    optimiser.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimiser.step()


def thawed_copy(rank, ranks):
    """A pair of names and tensors in place of a module, and a model in a wrapper."""
    first, second = network(), nn.ModuleDict({"_orig_mod": network()})
    pairs = atomo.torch.OuterSync(list(first.named_parameters()), EXACT, every=1, outer="sgd", outer_lr=1.0)
    wrapped = atomo.torch.OuterSync(copy.deepcopy(second), EXACT, every=1)
    with torch.no_grad():
        first[0].weight += rank
    pairs.step()
    return parameters_of(first)["0.weight"] - parameters_of(network())["0.weight"], [row[0] for row in wrapped._table()]
