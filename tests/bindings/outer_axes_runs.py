# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_torch_outer_axes.py do: trainings over two dimensions of a mesh, and planted bugs."""

import warnings

import atomo
import atomo.torch
import torch
import torch.distributed as dist
from outer_runs import EXACT, inner, local_step, network, outer_of, parameters_of, saved
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel


class LeftBehind(atomo.torch.OuterSync):
    """Does not tell the OuterSync within what the parameters have become."""

    def _write(self, part, alpha):
        part.write(self._current(part), alpha)


KINDS = {kind.__name__: kind for kind in (atomo.torch.OuterSync, LeftBehind)}
NODE = {"every": 2, "outer": "nesterov", "outer_lr": 0.5, "outer_momentum": 0.8}
SITE = {"every": 6, "outer": "nesterov", "outer_lr": 0.7, "outer_momentum": 0.9}


class Meshes:
    """Of two sites with two nodes each; a mesh is made by all ranks once."""

    of = None


def mesh():
    if Meshes.of is None:
        Meshes.of = init_device_mesh("cpu", (2, 2), mesh_dim_names=("site", "node"))
    return Meshes.of


def synchronised(model, node, site, kind="OuterSync"):
    """The two, as options say."""
    within = atomo.torch.OuterSync(model, **{"policy": EXACT, **NODE, "process_group": mesh()["node"], **node})
    return within, KINDS[kind](model, **{"policy": EXACT, **SITE, "process_group": mesh()["site"], "within": within, **site})


def nested(rank, ranks, node=(), site=(), steps=14, kind="OuterSync", dtype="float32", end=False, at=None, resume=True):
    """Trains; at step `at` everything is saved and, if asked, loaded into new objects."""
    def fresh(seed):
        model = network(seed, dtype=getattr(torch, dtype))
        return model, inner(model), *synchronised(model, dict(node), dict(site), kind)

    model, optimiser, within, sync = fresh(0)
    losses, done = [], []
    for step in range(steps):
        if step == at:
            state = saved({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "sync": sync.state_dict()})
        if step == at and resume:
            model, optimiser, within, sync = fresh(5)
            model.load_state_dict(state["model"])
            optimiser.load_state_dict(state["optimiser"])
            sync.load_state_dict(state["sync"])
        losses.append(local_step(model, optimiser, rank, step))
        done.append(sync.step())
    if end:
        sync.synchronise()
    return {"parameters": parameters_of(model), "outer": outer_of(sync), "shared": outer_of(within), "losses": losses, "done": done,
            "bytes": (within.bytes_sent, sync.bytes_sent, sync.last.length_bytes), "rounds": (within.round, sync.round),
            "learnt": [part.compressor.state() for part in sync._fragments], "repr": repr(sync)}


def reference(steps, node=NODE, site=SITE):
    """The same of exact messages, all ranks in one process, the outer steps by torch.optim.SGD."""
    models = [network() for _ in range(4)]
    optimisers = [inner(model) for model in models]
    shared, outer = [network(), network()], network()

    def optimiser_of(module, of):
        return torch.optim.SGD(module.parameters(), lr=of["outer_lr"], momentum=of["outer_momentum"], nesterov=True)

    steps_within, step_between = [optimiser_of(module, node) for module in shared], optimiser_of(outer, site)

    def outer_step(module, optimiser, of):
        for own, *theirs in zip(module.parameters(), *(model.parameters() for model in of)):
            own.grad = sum(own.detach() - p.detach() for p in theirs) / len(theirs)
        optimiser.step()

    def write(module, to):
        for model in to:
            model.load_state_dict(module.state_dict())

    for step in range(1, steps + 1):
        for rank, model in enumerate(models):
            local_step(model, optimisers[rank], rank, step - 1)
        for number in range(2) if step % node["every"] == 0 else ():
            outer_step(shared[number], steps_within[number], models[2 * number:2 * number + 2])
            write(shared[number], models[2 * number:2 * number + 2])
        if step % site["every"] == 0:
            outer_step(outer, step_between, models[::2])
            write(outer, [*models, *shared])
    return [parameters_of(model) for model in models]


def in_ddp(rank, ranks, policy, site, steps=12, forgotten=False):
    """DDP keeps the nodes of a site equal, with a policy of its own; `forgotten`: there is no DDP."""
    model = network()
    if not forgotten:
        wrapped = DistributedDataParallel(model, process_group=mesh()["node"].get_group())
        wrapped.register_comm_hook(atomo.torch.DDPState(wrapped, policy, seed=3), atomo.torch.ddp_hook)
    optimiser = inner(model)
    sync = atomo.torch.OuterSync(model, **{"policy": EXACT, **SITE, "process_group": mesh()["site"], "within": mesh()["node"], **site})
    for step in range(steps):
        local_step(model if forgotten else wrapped, optimiser, rank, step)
        sync.step()
    return {"parameters": parameters_of(model), "outer": outer_of(sync), "bytes": sync.bytes_sent, "tables": sync.last.length_bytes}


def reference_of_ddp(steps):
    """Two workers, each of which trains on both of its nodes' batches."""
    models, outer = [network(), network()], network()
    optimisers = [inner(model) for model in models]
    between = torch.optim.SGD(outer.parameters(), lr=SITE["outer_lr"], momentum=SITE["outer_momentum"], nesterov=True)
    for step in range(1, steps + 1):
        for number, (model, optimiser) in enumerate(zip(models, optimisers)):
            gradients = []
            for rank in (2 * number, 2 * number + 1):
                before = {name: p.clone() for name, p in model.state_dict().items()}
                local_step(model, torch.optim.SGD(model.parameters(), lr=0.0), rank, step - 1)
                model.load_state_dict(before)
                gradients.append([p.grad.clone() for p in model.parameters()])
            for p, first, second in zip(model.parameters(), *gradients):
                p.grad = (first + second) / 2
            optimiser.step()
        if step % SITE["every"] == 0:
            for own, *theirs in zip(outer.parameters(), *(model.parameters() for model in models)):
                own.grad = sum(own.detach() - p.detach() for p in theirs) / 2
            between.step()
            for model in models:
                model.load_state_dict(outer.state_dict())
    return parameters_of(outer)


def not_finite(rank, ranks, where):
    """Rank 3's parameters, or what its change decodes to, are not finite in the first exchange of sites; it is cured then."""
    model = network()
    optimiser = inner(model)
    policy = "identity:dtype=f16" if where == "message" else EXACT
    within, sync = synchronised(model, {"policy": policy, "outer": "sgd", "outer_lr": 1.0, "outer_momentum": 0.0}, {})
    applied, said_of, outer = [], [], []
    for step in range(12):
        local_step(model, optimiser, rank, step)
        if step == 5 and rank == 3:
            with torch.no_grad():
                model[2].weight[3, 4] = 1e6 if where == "message" else float("nan")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            applied.append(sync.step())
        said_of += [str(w.message) for w in said]
        outer.append(outer_of(sync))
        if within.last.nonfinite and step == 5 and rank in (2, 3):  # the worker
            sync.restore()
            optimiser.state.clear()
    return {"applied": applied, "said": said_of, "parameters": parameters_of(model), "outer": outer_of(sync),
            "kept": all((outer[5][name] == network().state_dict()[name].numpy()).all() for name in outer[5])}


def refused(rank, ranks, what):
    """Options that cannot work, or a program that does what it must not."""
    model = network()
    group = mesh()["site"]
    if what == "every":
        synchronised(model, {}, {"every": 7})
    elif what == "fragments":
        synchronised(model, {}, {"every": 6, "fragments": 2})
    elif what == "delay":
        synchronised(model, {"delay": 1}, {})
    elif what == "parts":
        synchronised(model, {"fragments": 2}, {})
    elif what == "parameters":
        within = atomo.torch.OuterSync(nn.Linear(3, 3), EXACT, every=2, process_group=mesh()["node"], broadcast=True)
        atomo.torch.OuterSync(model, EXACT, every=6, process_group=group, within=within)
    elif what == "no mesh":  # ranks 0 and 3, and 1 and 2, are between workers of 0 and 1, and of 2 and 3
        pairs = [dist.new_group([0, 3]), dist.new_group([1, 2])]
        atomo.torch.OuterSync(model, EXACT, every=6, process_group=pairs[rank in (1, 2)], within=mesh()["node"])
    elif what == "disagree":
        atomo.torch.OuterSync(model, EXACT, every=6, outer_lr=0.7 if rank % 2 else 0.5, process_group=group, within=mesh()["node"])
    elif what == "stepped twice":
        within, sync = synchronised(model, {}, {})
        for _ in range(6):
            within.step()
            sync.step()
    elif what == "later":
        within = atomo.torch.OuterSync(model, EXACT, every=2, process_group=mesh()["node"])
        within.step()
        atomo.torch.OuterSync(model, EXACT, every=6, process_group=group, within=within)
    elif what == "one fails":
        within, sync = synchronised(model, {}, {})
        sync.step()
        if rank == 3:
            sync._fragments[0].subtract = None
        for _ in range(6):
            sync.step()
    elif what in ("saved without", "saved with"):
        within, sync = synchronised(model, {}, {})
        plain = atomo.torch.OuterSync(model, EXACT, **SITE, process_group=group)
        source, target = (plain, sync) if what == "saved without" else (sync, plain)
        target.load_state_dict(source.state_dict())
