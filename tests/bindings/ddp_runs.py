# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_torch.py do: small trainings whose outcome a test compares, and planted bugs."""

import contextlib
import io
import pathlib
import pickle
import sys
import warnings

import atomo.torch
import numpy as np
import torch
import torch.distributed as dist
from atomo.torch.ddp_steps import scale_to_norm
from stand_in import StandIn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SHAPES = {"small": (24, 48, 48, 10), "million": (784, 512, 512, 512, 256, 10)}


class Watched(atomo.torch.DDPState):
    """As it should be; `layout` is that of the last step: the names of each bucket."""

    layout: list[list[str]]

    def _layers_of(self, bucket):
        layers = super()._layers_of(bucket)
        self.layout = [] if bucket.index() == 0 else self.layout
        self.layout.append([name for name, _ in layers])
        return layers


class Clipped(Watched):
    """With a bound that most gradients are above."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, clip_norm=0.05, **options)


class OnStandIn(Watched):
    """Takes the way of gradients on a GPU, with a stand-in for it."""

    place: StandIn | None = None

    def _place_of(self, buffer):
        self.place = self._on_gpu._place = self.place or StandIn()
        return self.place


class ShardedOnStandIn(atomo.torch.FSDPReduceScatter):
    """The same for FSDP."""

    def _place_of(self, tensor):
        self._place = self._place or StandIn()
        return self._place


# Planted bugs: a check that passes with one of these in place of DDPState checks nothing.


class KeyedByBucket(Watched):
    """Remembers layers by their place in the buckets of the first step."""

    def _layers_of(self, bucket):
        places = self.__dict__.setdefault("places", {})
        layers = super()._layers_of(bucket)
        return [(places.setdefault((bucket.index(), i), name), gradient) for i, (name, gradient) in enumerate(layers)]


class OneWorker(Watched):
    """All ranks draw alike."""

    def _begin_step(self, rank, ranks):
        super()._begin_step(0, ranks)


class NotDivided(Watched):
    """The sum in place of the mean."""

    def _decode(self, layers, table, gathered):
        super()._decode(layers, table, gathered)
        for _, gradient in layers:
            gradient.mul_(len(table))


class OwnOrder(Watched):
    """Adds its own message first, then the others'."""

    def _decode(self, layers, table, gathered):
        order = sorted(range(len(table)), key=lambda r: r != self._key["worker"])
        super()._decode(layers, [table[r] for r in order], [gathered[r] for r in order])


class ClippedByBucket(Watched):
    """Each bucket by its own norm."""

    def reduce(self, bucket):
        scale_to_norm([bucket.buffer()], self.clip_norm * self._scale_now())
        return self._send(bucket)


class ForgetsStep(Watched):
    """A checkpoint without the step's number: a resumed run draws again what it has drawn."""

    def state_dict(self):
        return {**super().state_dict(), "step": 0}

    def __getstate__(self):
        return {**super().__getstate__(), "step": 0}


# Networks


class Branches(nn.Module):
    """The second branch is used in odd steps only, and never by rank 0: `step` and `rank` say so."""

    def __init__(self):
        super().__init__()
        self.trunk, self.even, self.odd = nn.Linear(24, 48), nn.Linear(48, 10), nn.Linear(48, 10)
        self.never = nn.Linear(48, 10)
        self.use_odd = False

    def forward(self, x):
        hidden = torch.relu(self.trunk(x))
        return self.even(hidden) + (self.odd(hidden) if self.use_odd else 0)


class Mixed(nn.Module):
    """Layers of all three types."""

    def __init__(self):
        super().__init__()
        self.f32 = nn.Linear(24, 48)
        self.bf16 = nn.Linear(48, 48, dtype=torch.bfloat16)
        self.f16 = nn.Linear(48, 10, dtype=torch.float16)

    def forward(self, x):
        hidden = torch.relu(self.f32(x))
        return self.f16(torch.relu(self.bf16(hidden.bfloat16())).half()).float()


class Unusual(nn.Module):
    """A convolution whose weight is stored channels last, and a parameter without dimensions."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(2, 8, 3, padding=1).to(memory_format=torch.channels_last)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.last = nn.Linear(96, 10)

    def forward(self, x):
        return self.last(self.scale * torch.relu(self.convolution(x.view(-1, 2, 3, 4))).flatten(1))


class SparseFirst(nn.Module):
    """A layer of sparse gradients, which come last."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(2, 24, sparse=True)
        self.hidden, self.last = nn.Linear(24, 48), nn.Linear(48, 10)

    def forward(self, x):
        return self.last(torch.relu(self.hidden(x + self.embedding((x[:, 0] > 0).long()))))


def make_net(name, seed=1):
    torch.manual_seed(seed)
    if name == "sparse first":
        return SparseFirst()
    if name == "unusual":
        return Unusual()
    if name == "branches":
        return Branches()
    if name == "mixed":
        return Mixed()
    layers = []
    for inputs, outputs in zip(SHAPES[name], SHAPES[name][1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def batch_of(step, rank, inputs, seed=0, size=16):
    """Inputs and the outputs of a fixed random teacher."""
    generator = torch.Generator().manual_seed(1000 * seed + 100 * step + rank)
    x = torch.randn(size, inputs, generator=generator)
    teacher = torch.randn(inputs, 10, generator=torch.Generator().manual_seed(7)) / inputs**0.5
    return x, torch.tanh(x @ teacher)


def in_rank_order(group, bucket):
    """A hook that gathers the gradients as they are and adds gradient / ranks in rank order."""
    buffer, ranks = bucket.buffer(), dist.get_world_size(group)
    gathered = [torch.empty_like(buffer) for _ in range(ranks)]
    dist.all_gather(gathered, buffer, group=group)
    buffer.zero_()
    for gradient in gathered:
        buffer.add_(gradient * (1 / ranks))
    done = torch.futures.Future()
    done.set_result(buffer)
    return done


class CountedCollectives:
    """Counts the bytes that this process hands to collectives from Python, for each rank that gets them."""

    def __enter__(self):
        self.bytes, self.originals = 0, (dist.all_gather_into_tensor, dist.all_to_all_single)
        gather, swap = self.originals

        def all_gather_into_tensor(output, own, **options):
            self.bytes += own.nbytes
            return gather(output, own, **options)

        def all_to_all_single(output, own, *splits, **options):
            self.bytes += own.nbytes // (dist.get_world_size() - 1)
            return swap(output, own, *splits, **options)

        dist.all_gather_into_tensor, dist.all_to_all_single = all_gather_into_tensor, all_to_all_single
        return self

    def __exit__(self, *_):
        dist.all_gather_into_tensor, dist.all_to_all_single = self.originals


# Runs


def parameters_of(model):
    return {name: p.detach().float().numpy().copy() for name, p in model.named_parameters()}


def train(rank, ranks, policy=None, *, steps=8, net="small", state_class="Watched", cap_mb=25.0, accumulate=1, lr=0.1,
          checkpoint_at=None, way="dict", ddp=None, seed=0):
    """Trains a net; returns losses, parameters and what the state tells. `policy`: None for PyTorch's own all-reduce,
    "rank order" for `in_rank_order`. With `checkpoint_at` everything is made anew there, from bytes alone."""
    model = make_net(net)
    wrapped, state = wrap(model, policy, state_class, cap_mb, ddp or {}, seed)
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=lr, momentum=0.9)
    losses, buckets, layouts = [], [], []
    with CountedCollectives() as counted:
        for step in range(steps):
            if step == checkpoint_at:
                wrapped, state, optimiser = restart(wrapped, state, optimiser, policy, net, state_class, cap_mb, lr,
                                                    way, ddp or {}, seed)
            if net == "branches":
                wrapped.module.use_odd = step % 2 == 1 and rank != 0
            optimiser.zero_grad()
            for part in range(accumulate):
                x, y = batch_of(accumulate * step + part, rank, SHAPES.get(net, SHAPES["small"])[0])
                with wrapped.no_sync() if part + 1 < accumulate else contextlib.nullcontext():
                    loss = nn.functional.mse_loss(wrapped(x), y)
                    loss.backward()
            optimiser.step()
            losses.append(loss.item())
            if state is not None:
                buckets.append(state.last.buckets)
                layouts.append(state.layout)
    result = {"losses": losses, "parameters": parameters_of(wrapped.module), "counted": counted.bytes}
    if state is not None:
        result |= {"bytes_sent": state.bytes_sent, "budget_bytes": state.compressor.budget_bytes, "log": state.log(),
                   "buckets": buckets, "layouts": layouts}
    return result


def sizes_of_steps(rank, ranks, state_class, shares):
    """What each step sends whose budget has its share of the whole, and the whole budget."""
    model = make_net("million")
    state = globals()[state_class](model, "atomo:bits=0.5,atoms=blocks", budget_share=shares)
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
    sizes = []
    for _ in shares:
        x, y = batch_of(0, rank, SHAPES["million"][0])
        wrapped.zero_grad()
        nn.functional.mse_loss(wrapped(x), y).backward()
        sizes.append(state.last.bytes_sent)
    return sizes, 0.5 / 8 * sum(parameter.numel() for parameter in model.parameters())


def wrap(model, policy, state_class, cap_mb, ddp, seed, state=None):
    wrapped = DistributedDataParallel(model, bucket_cap_mb=cap_mb, **ddp)
    if policy == "rank order":
        wrapped.register_comm_hook(dist.group.WORLD, in_rank_order)
    elif policy is not None:
        state = state or globals()[state_class](model, policy, seed=seed)
        wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
    return wrapped, state


def restart(wrapped, state, optimiser, policy, net, state_class, cap_mb, lr, way, ddp, seed):
    """A checkpoint to bytes and back: nothing of the old objects is used. `way`: the state's dict, or a pickle."""
    model, kept, revived = reloaded(wrapped.module, optimiser, state, way, net)
    again, found = wrap(model, policy, state_class, cap_mb, ddp, seed, None if way == "dict" else revived.bind(model))
    if way == "dict":
        found.load_state_dict(revived)
    optimiser = torch.optim.SGD(again.parameters(), lr=lr, momentum=0.9)
    optimiser.load_state_dict(kept)
    return again, found, optimiser


def reloaded(model, optimiser, state, way, net):
    """A new net with what a checkpoint in bytes held, what it held of the optimiser, and the hook's state or its dict."""
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, saved)
    revived = pickle.loads(pickle.dumps(state.state_dict() if way == "dict" else state))
    saved.seek(0)
    loaded = torch.load(saved)
    again = make_net(net, seed=99)
    again.load_state_dict(loaded["model"])
    return again, loaded["optimiser"], revived


def join(rank, ranks, policy, state_class="Watched"):
    """Rank 0 has 6 batches, the others 4."""
    wrapped, _ = wrap(make_net("small"), policy, state_class, 0.002, {}, 0)
    optimiser = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    with wrapped.join():
        for step in range(6 if rank == 0 else 4):
            optimiser.zero_grad()
            x, y = batch_of(step, rank, 24)
            nn.functional.mse_loss(wrapped(x), y).backward()
            optimiser.step()
    return {"parameters": parameters_of(wrapped.module)}


def error_of_mean(rank, ranks, policy, state_class="Watched", steps=20, alone=False):
    """Mean of |mean over ranks - G|^2 / |G|^2 where every rank has the same gradient G. `alone`: groups of one rank."""
    groups = [dist.new_group([r]) for r in range(ranks)] if alone else None
    group = groups[rank] if alone else None
    layer = nn.Linear(64, 64, bias=False)
    target = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    wrapped = DistributedDataParallel(layer, process_group=group)
    wrapped.register_comm_hook(globals()[state_class](layer, policy, process_group=group), atomo.torch.ddp_hook)
    eye, errors = torch.eye(64), []
    for _ in range(steps):
        layer.weight.grad = None
        (wrapped(eye) * target.t()).sum().backward()
        errors.append(((layer.weight.grad - target).norm() / target.norm()).item() ** 2)
    return float(np.mean(errors))


def clipped(rank, ranks, most, state_class, scale=1.0):
    """The second step's mean of clipped gradients and, by hand, the mean of what PyTorch clips; this rank's norm, and how
    many buckets there were."""
    model = make_net("small")
    x, y = batch_of(0, rank, 24)

    def loss_of(net):
        model.zero_grad()
        return scale * nn.functional.mse_loss(net(x), y)

    loss_of(model).backward()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), most * scale)) / scale
    by_hand = {name: p.grad.clone() for name, p in model.named_parameters()}
    for gradient in by_hand.values():
        dist.all_reduce(gradient)
    state = globals()[state_class](model, "identity:dtype=f32", clip_norm=most, scale=scale)
    wrapped, _ = wrap(model, "", state_class, 0.002, {}, 0, state)
    for _ in range(2):
        loss_of(wrapped).backward()
    return {"found": {name: p.grad.numpy() for name, p in model.named_parameters()}, "norm": norm,
            "by_hand": {name: (gradient / ranks).numpy() for name, gradient in by_hand.items()}, "buckets": state.last.buckets}


def gradients_of(rank, ranks, policy, net="mixed", **options):
    """One step's mean gradients, and every rank's own ones before."""
    model = make_net(net)
    x, y = batch_of(0, rank, 24)
    nn.functional.mse_loss(model(x), y).backward()
    own = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    wrapped = DistributedDataParallel(model)
    if policy is not None:
        wrapped.register_comm_hook(atomo.torch.DDPState(model, policy, **options), atomo.torch.ddp_hook)
    nn.functional.mse_loss(wrapped(x), y).backward()
    return {name: (own[name].double().numpy(), p.grad.double().numpy(), str(p.grad.dtype))
            for name, p in model.named_parameters()}


def scaled_step(rank, ranks, policy, bad_rank):
    """A step under a GradScaler with an Inf in one rank's loss: gradients, and what the scaler made of it."""
    model = make_net("small")
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.005)
    wrapped.register_comm_hook(atomo.torch.DDPState(model, policy), atomo.torch.ddp_hook)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before, scales, finite = parameters_of(model), [], []
    for step in range(2):
        optimiser.zero_grad()
        x, y = batch_of(step, rank, 24)
        loss = nn.functional.mse_loss(wrapped(x), y) * (float("inf") if step == 0 and rank == bad_rank else 1.0)
        scaler.scale(loss).backward()
        finite.append({name: bool(p.grad.isfinite().all()) for name, p in model.named_parameters()})
        scaler.step(optimiser)
        scaler.update()
        scales.append(scaler.get_scale())
        if step == 0:
            kept = all(np.array_equal(before[name], value) for name, value in parameters_of(model).items())
    return {"finite": finite, "scales": scales, "kept": kept, "parameters": parameters_of(model)}


def backward_with(rank, ranks, broken_rank, what):
    """One backward in which something is wrong; raises what `backward` raises."""
    model = make_net("small")
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.005)
    state = atomo.torch.DDPState(make_net("small") if what == "other model" else model, "qsgd:bits=4")
    if what == "encode" and rank == broken_rank:
        def refuse(name, gradient):
            raise atomo.Error(f"'{name}' cannot be encoded today")
        state.compressor.encode_layer = refuse
    wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
    x, y = batch_of(0, rank, 24)
    nn.functional.mse_loss(wrapped(x), y).backward()


def fashion(rank, ranks, hook, seed):
    """Trains LeNet with the example's own function; returns the accuracy on all test images."""
    example = pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"
    sys.path.insert(0, str(example))
    import ddp

    data = ddp.load()
    return ddp.train(data, hook=hook, codec="atomo:bits=0.5", steps=300, seed=seed)["accuracy"]


def scatter(rank, ranks, what):
    """One call of the reduce-scatter in which something is wrong."""
    comm = atomo.torch.FSDPReduceScatter("qsgd:bits=4")
    if what == "encode" and rank == 1:
        comm.codec = None
    x = torch.ones(8, dtype=torch.float64 if what == "float64" else torch.float32)
    op = dist.ReduceOp.MAX if what == "max" else dist.ReduceOp.AVG
    comm(x.new_empty(8 // ranks), x, dist.group.WORLD, op, async_op=what == "async")


def sharded_to_a_few(rank, ranks, codec, steps=200):
    """Linear(2, 2) under fully_shard: in how many steps this rank's gradients are not all zero, and how many warnings."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(2, 2)
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    atomo.torch.FSDPReduceScatter(codec).attach(model)
    sent, largest = 0, 0.0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(steps):
            model.zero_grad()
            model(torch.randn(8, 2, generator=torch.Generator().manual_seed(ranks * step + rank))).square().mean().backward()
            size = max(p.grad.to_local().abs().max().item() for p in model.parameters())
            sent, largest = sent + (size > 0), max(largest, size)
    return {"sent": sent, "largest": largest, "warnings": sum("does not pay" in str(w.message) for w in caught)}


def sharded(rank, ranks, codec, steps=6, hooked=True, dtype=torch.float32, comm_class=atomo.torch.FSDPReduceScatter):
    """Trains under fully_shard on the CPU; returns losses, full parameters and bytes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = make_net("small")
    mesh = init_device_mesh("cpu", (ranks,))
    mixed = MixedPrecisionPolicy(reduce_dtype=dtype)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=mixed)
    fully_shard(model, mesh=mesh, mp_policy=mixed)
    comm = comm_class(codec).attach(model) if hooked else None
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        optimiser.zero_grad()
        x, y = batch_of(step, rank, 24)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    parameters = {name: p.full_tensor().detach().numpy() for name, p in model.named_parameters()}
    return {"losses": losses, "parameters": parameters, "bytes_sent": comm.bytes_sent if comm else None,
            "calls": comm.calls if comm else None}
