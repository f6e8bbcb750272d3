# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_torch_gpu.py do: DDP and FSDP on the way of a GPU, on a stand-in for one."""

import atomo.torch
import torch
import torch.distributed as dist
from atomo.torch.bucket import DeviceBucket
from atomo.torch.device import seed_of_bucket
from ddp_runs import OnStandIn, ShardedOnStandIn, batch_of, make_net, parameters_of
from stand_in import Operations
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def expected_means(rank, ranks, policy, seed, step, layout, own):
    """By the calls of the CPU: a message a bucket and rank, added up in rank order."""
    everyones = [None] * ranks
    dist.all_gather_object(everyones, own)
    means = {}
    for number, names in enumerate(layout):
        model = atomo.Compressor({name: own[name] for name in names}, policy)
        messages = [model.encode({name: of[name] for name in names}, seed=seed_of_bucket(seed, number), step=step, worker=r)
                    for r, of in enumerate(everyones)]
        sums = {name: torch.full_like(own[name], -0.0) for name in names}
        means |= model.decode_add_all(messages, out=sums, alpha=1 / ranks)
    return means


def first_mean(rank, ranks, policy, net="small", seed=5, cap_mb=0.002):
    """The mean gradients of the second step, whose buckets stay, and those that the CPU's calls find."""
    model = make_net(net)
    x, y = batch_of(0, rank, 24)
    nn.functional.mse_loss(model(x), y).backward()
    own = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=cap_mb)
    state = OnStandIn(model, policy, seed=seed)
    wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
    gather, groups = dist.all_gather_into_tensor, []
    dist.all_gather_into_tensor = lambda *tensors, group: groups.append(group) or gather(*tensors, group=group)
    try:
        for _ in range(2):
            model.zero_grad()
            nn.functional.mse_loss(wrapped(x), y).backward()
    finally:
        dist.all_gather_into_tensor = gather
    expected = expected_means(rank, ranks, policy, seed, 1, state.layout, own)
    return {"buckets": len(state.layout), "ddps_group": bool(groups) and all(group is wrapped.process_group for group in groups),
            "equal": {name: bool((p.grad.view(torch.uint8) == expected[name].view(torch.uint8)).all())
                      for name, p in model.named_parameters()}}


class Run:
    """A net under DDP, whose hook's operations are written down bucket by bucket."""

    def __init__(self, policy, net="small", cap_mb=0.002, **options):
        self.net = make_net(net)
        self.wrapped = DistributedDataParallel(self.net, bucket_cap_mb=cap_mb)
        self.state = OnStandIn(self.net, policy, **options)
        self.operations = []
        self.wrapped.register_comm_hook(self.state, self._hook)

    def _hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        with Operations() as operations:
            done = atomo.torch.ddp_hook(state, bucket)
        self.operations.append(operations.names)
        return done

    def step(self, rank, number):
        self.operations = []
        self.wrapped.zero_grad()
        x, y = batch_of(number, rank, 24)
        nn.functional.mse_loss(self.wrapped(x), y).backward()


def steady_step(rank, ranks, policy, cap_mb=0.002):
    """What the fourth step asks of PyTorch, of streams and events, and of memory; calls of the models."""
    run = Run(policy, cap_mb=cap_mb)
    for number in range(3):
        run.step(rank, number)
    place, calls = run.state.place, []
    place.log.clear()
    taken, events = place.taken, len(place.events)
    count_calls(run.state._on_gpu._of.values(), calls)
    run.step(rank, 3)
    return {"operations": run.operations, "log": place.log, "taken": place.taken - taken,
            "events": len(place.events) - events, "calls": calls, "wire": [of.model.wire for of in run.state._on_gpu._of.values()],
            "state": run.state.log()}


def count_calls(buckets, calls):
    """Puts a counter in front of each bucket's native calls."""
    for bucket in buckets:
        bucket.model._calls = Counted(bucket.model._calls, calls)


class Counted:
    def __init__(self, model, calls):
        self._model, self._counted = model, calls

    def __getattr__(self, name):
        def call(*args):
            self._counted.append(name)
            return getattr(self._model, name)(*args)

        return call


def goes_wrong(rank, ranks, what):
    """Steps until a backward raises: its number and text. Something is wrong from the third on."""
    run = Run("qsgd:bits=4")
    for number in range(8):
        if number == 2:
            buckets = list(run.state._on_gpu._of.values())
            if what in ("status", "status, the GPU behind"):  # as a kernel would tell it: 262 is "corrupt"
                for bucket in buckets[:1]:
                    tell = bucket.model.tell

                    def with_failure(stream, model=bucket.model, tell=tell):
                        model._results[1][8:12] = torch.tensor([6, 1, 0, 0], dtype=torch.uint8)
                        tell(stream)
                        model._results[1][8:12] = 0
                        model.tell = tell

                    bucket.model.tell = with_failure
            if what == "seed" and rank == 1:
                run.state.seed = 77
            if what == "step" and rank == 1:
                run.state.step = 40
            if what == "not seen":
                run.state.seed = 77 + rank
            if what in ("not seen", "status, the GPU behind"):
                for event in run.state.place.events:
                    event.done = False
        if what == "not seen" and number == 4:
            for event in run.state.place.events:
                event.done = True
        try:
            run.step(rank, number)
        except atomo.Error as error:
            return number, str(error)
    return None, ""


def without_a_place(rank, ranks):
    """A tensor of a GPU in a package that was built without CUDA."""
    from atomo.torch.device import Place

    Place(torch.device("cuda", 0))


def warm_up(rank, ranks, steps=3):
    """Two steps by all-reduce, one by messages: bytes of each."""
    run = Run("qsgd:bits=4", start_step=2)
    sent = []
    for number in range(steps):
        run.step(rank, number)
        sent.append(run.state.last.bytes_sent)
    return {"sent": sent, "parameters": parameters_of(run.net)}


def embeddings(rank, ranks):
    """A sparse gradient beside a dense one."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(20, 8, sparse=True), nn.Flatten(), nn.Linear(24, 10))
    wrapped = DistributedDataParallel(model)
    wrapped.register_comm_hook(OnStandIn(model, "identity:dtype=f32"), atomo.torch.ddp_hook)
    wrapped(torch.tensor([[rank, 2, 3]])).sum().backward()
    return model[0].weight.grad.to_dense().numpy()


def sharded_step(rank, ranks, codec):
    """A reduce-scatter of the third call: operations, memory, and what came."""
    comm = ShardedOnStandIn(codec, seed=2)
    x = torch.randn(ranks * 30000, generator=torch.Generator().manual_seed(rank))
    out = x.new_empty(30000)
    for _ in range(2):
        comm(out, x, dist.group.WORLD, dist.ReduceOp.AVG)
    taken = comm._place.taken
    with Operations() as operations:
        comm(out, x, dist.group.WORLD, dist.ReduceOp.AVG)
    everyones = [None] * ranks
    dist.all_gather_object(everyones, x)
    model, expected = atomo.Compressor({"chunk": out}, codec), torch.full_like(out, -0.0)
    messages = [model.encode({"chunk": of.view(ranks, -1)[rank]}, seed=2, step=2, worker=r, channel=rank)
                for r, of in enumerate(everyones)]
    model.decode_add_all(messages, out={"chunk": expected}, alpha=1 / ranks)
    return {"operations": operations.names, "taken": comm._place.taken - taken, "equal": bool((out == expected).all()),
            "sent": comm.bytes_sent, "wire": next(iter(comm._models.values())).wire}


def other_draws(rank, ranks):
    """Two buckets of one layer each with one gradient: whether their messages drew alike."""
    layer = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    state = OnStandIn({"a": nn.Parameter(layer)}, "qsgd:bits=2")
    group, means = dist.group.WORLD, []
    place = state._place_of(layer)
    for number in range(2):
        gradient = layer.clone()
        bucket = DeviceBucket({"a": gradient}, "qsgd:bits=2", place, group)
        bucket.reduce(gradient, [gradient], {"seed": seed_of_bucket(1, number), "step": 0, "worker": rank, "channel": 0}, lambda: None)
        means.append(gradient)
    return bool((means[0] == means[1]).all())
