# SPDX-License-Identifier: Apache-2.0
"""What the ranks of test_torch_ranks.py and test_torch_changes.py do: where DDP, its groups and wrappers meet a state."""

import datetime
import pickle
import sys
import threading
import time
import types
import warnings

import atomo.torch
import torch
import torch.distributed as dist
from ddp_runs import batch_of, make_net, parameters_of
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

WRAPPERS = {"f16": default_hooks.fp16_compress_wrapper, "bf16": default_hooks.bf16_compress_wrapper,
            None: lambda hook: hook}


class Run:
    """A small net under DDP with a state; `state` None: DDP's own all-reduce."""

    def __init__(self, policy, *, cap_mb=0.002, group=None, wrapper=None, net=None, state=None, unused=False,
                 **options):
        self.net = net or make_net("small")
        self.wrapped = DistributedDataParallel(self.net, bucket_cap_mb=cap_mb, process_group=group,
                                               find_unused_parameters=unused)
        self.state = state
        if policy is not None:
            self.state = state or atomo.torch.DDPState(self.net, policy, **options)
            self.wrapped.register_comm_hook(self.state, WRAPPERS[wrapper](atomo.torch.ddp_hook))
        elif wrapper is not None:
            hook = {"f16": default_hooks.fp16_compress_hook, "bf16": default_hooks.bf16_compress_hook}[wrapper]
            self.wrapped.register_comm_hook(group or dist.group.WORLD, hook)
        self.optimiser = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.losses = []

    def steps(self, rank, numbers):
        for step in numbers:
            self.optimiser.zero_grad()
            x, y = batch_of(step, rank, 24)
            loss = nn.functional.mse_loss(self.wrapped(x), y)
            loss.backward()
            self.optimiser.step()
            self.losses.append(loss.item())
        return self

    def result(self):
        told = {"losses": self.losses, "parameters": parameters_of(self.net)}
        return told if self.state is None else told | {"log": self.state.log(), "layers": self.state.layers}


# Groups


def frozen(rank, ranks, seconds):
    """Rank 1 sleeps in the third step: what rank 0 raises, and after how many seconds. The group's limit is 1 s. In the
    second DDP makes its buckets anew, which is a collective of its own."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    run = Run("qsgd:bits=4", group=group, process_group=group).steps(rank, [0, 1])
    if rank == 1:
        time.sleep(seconds)
        return None
    began = time.monotonic()
    try:
        run.steps(rank, [2])
    except RuntimeError as error:
        return time.monotonic() - began, str(error)
    return time.monotonic() - began, "no error"


def mean_over_a_subgroup(rank, ranks, how):
    """Two groups of two ranks; a rank's gradient is its number. `how` the state learns of the group."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    layer = nn.Linear(4, 4, bias=False)
    ddp = DistributedDataParallel(layer, process_group=pairs[rank // 2])
    group = pairs[rank // 2] if how == "given" else None
    model = ddp if how == "from DDP" else layer
    ddp.register_comm_hook(atomo.torch.DDPState(model, "identity:dtype=f32", process_group=group),
                           atomo.torch.ddp_hook)
    (ddp(torch.eye(4)).sum() * rank).backward()
    return set(layer.weight.grad.flatten().tolist())


def groups_made_anew(rank, ranks, store, given):
    """The default group is destroyed and made again between steps."""
    group = dist.new_group() if given else None
    run = Run("atomo:bits=1", process_group=group).steps(rank, range(3))
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=60))
    return Run("", net=run.net, state=run.state).steps(rank, range(3, 6)).result()


# Agreement


def disagree(rank, ranks, what, after, state_class=atomo.torch.DDPState):
    """Ranks that agree for `after` steps, then not, in one thing; raises what backward raises."""
    one = {what: rank} if after == 0 and what in ("seed", "channel", "start_step") else {}
    one = {what: 1 + rank} if what in ("clip_norm", "scale") else one
    policy = "qsgd:bits=4" if after == 0 and what == "policy" and rank else "qsgd:bits=6"
    if what == "rate_in_memory":
        one, policy = {what: 1 / (1 + rank)}, "ef+topk:keep=0.1"
    net = make_net("small")
    names = {f"other.{name}" if what == "layers" and rank else name: p for name, p in net.named_parameters()}
    run = Run("", net=net, state=state_class(names, policy, **one))
    run.steps(rank, range(after))
    if after and rank:
        run.state.load_state_dict({**run.state.state_dict(), what: 7})
    run.steps(rank, [after])


# Checkpoints


def one_checkpoint(rank, ranks, policy, at=4, steps=8, resume=True, wrapper=None):
    """All ranks go on from rank 0's state. The run, and the state that each rank had at `at`."""
    run = Run(policy, wrapper=wrapper).steps(rank, range(at))
    state = run.state.state_dict()
    if resume:
        told = [state]
        dist.broadcast_object_list(told, src=0)
        again = atomo.torch.DDPState(make_net("small"), policy)
        again.load_state_dict(told[0])
        run = Run("", net=run.net, state=again.bind(run.net), wrapper=wrapper)
    run.steps(rank, range(at, steps))
    return run.result() | {"state": state, "bytes_sent": run.state.bytes_sent}


# Changes in mid-run


def trained(rank, ranks, policy, steps=8, moves_to=None, **options):
    """A whole run. `moves_to`: the type that the model gets behind the state's back."""
    net = make_net("small")
    state = atomo.torch.DDPState(net, policy, **{k: options.pop(k) for k in ("start_step", "seed", "threads") if k in options}) \
        if policy else None
    if moves_to:
        net.to(getattr(torch, moves_to))
    run = Run(policy, net=net, state=state, **options)
    if not moves_to:
        return run.steps(rank, range(steps)).result()
    for step in range(steps):
        x, y = batch_of(step, rank, 24)
        loss = nn.functional.mse_loss(run.wrapped(x.to(getattr(torch, moves_to))).float(), y)
        loss.backward()
        run.losses.append(loss.item())
    return run.result()


def policies_in_turn(rank, ranks, policies, steps=3):
    """Bytes of each step under policies that follow one another, and the parameters."""
    run = Run(policies[0])
    sent = []
    for number, policy in enumerate(policies):
        if number:
            run.state.set_policy(policy)
        for step in range(number * steps, (number + 1) * steps):
            run.steps(rank, [step])
            sent.append(run.state.last.bytes_sent)
    return run.result() | {"sent": sent}


def thaw(rank, ranks, resume, policy):
    """The first layer gets gradients from step 3 on; with `resume` all goes on from a checkpoint at step 5."""
    net = make_net("small")
    net[0].requires_grad_(False)
    run = Run(policy, net=net).steps(rank, range(3))
    price = run.state.compressor.predicted_prices.atoms
    net[0].requires_grad_(True)
    run = Run("", net=net, state=run.state.bind(net)).steps(rank, range(3, 4))
    told = {"step": run.state.step, "price": price, "used": run.state.last.price}
    run.steps(rank, range(4, 5))
    if resume:
        again = atomo.torch.DDPState(net, policy, seed=5)
        again.load_state_dict(run.state.state_dict())
        run = Run("", net=net, state=again)
    return run.steps(rank, range(5, 8)).result() | told


def sparse(rank, ranks, hooked):
    """A sparse embedding under a dense layer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.EmbeddingBag(50, 8, sparse=True), nn.Linear(8, 4))
    wrapped = DistributedDataParallel(net)
    state = atomo.torch.DDPState(net, "identity:dtype=f32")
    if hooked:
        wrapped.register_comm_hook(state, atomo.torch.ddp_hook)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        optimiser.zero_grad()
        words = torch.randint(50, (6, 5), generator=torch.Generator().manual_seed(10 * step + rank))
        wrapped(words).square().sum().backward()
        optimiser.step()
    return {"parameters": parameters_of(net), "sent": state.last.bytes_sent}


def goes_on_after_an_error(rank, ranks, resume, layer):
    """Rank 1 cannot encode a layer in step 3; all catch it and go on."""
    run = Run("atomo:bits=1").steps(rank, range(3))
    state, encode = run.state, run.state.compressor.encode_layer

    def refuse(name, gradient):
        if name == layer:
            raise atomo.Error(f"'{name}' cannot be encoded today")
        return encode(name, gradient)

    if rank == 1:
        state.compressor.encode_layer = refuse
    try:
        run.steps(rank, [3])
        raise AssertionError("no error")
    except atomo.Error:
        state.compressor.__dict__.pop("encode_layer", None)
    if resume:
        told = [state.state_dict()]
        dist.broadcast_object_list(told, src=0)
        again = atomo.torch.DDPState(run.net, "atomo:bits=1", seed=5)
        again.load_state_dict(told[0])
        run = Run("", net=run.net, state=again)
    return run.steps(rank, range(4, 8)).result()


def lazy(rank, ranks, way):
    """A state that is made before its model, or that comes without one from a pickle or a checkpoint."""
    net = make_net("small")
    state = atomo.torch.DDPState(net if way == "bound" else None, "atomo:bits=1", seed=5)
    if way == "pickled":
        state = pickle.loads(pickle.dumps(atomo.torch.DDPState(net, "atomo:bits=1", seed=5)))
    if way == "loaded":
        state.load_state_dict(atomo.torch.DDPState(net, "atomo:bits=1", seed=5).state_dict())
    run = Run("", net=net, state=state).steps(rank, range(3))
    if way == "twice":
        Run("", net=make_net("small"), state=atomo.torch.DDPState(policy="sign")).steps(rank, [0])
    return run.result()


def lightning_fits(rank, ranks, way):
    """Two fits of a net, whose first layer thaws in between, by a trainer that does to callbacks what Lightning does.
    `way`: the second by the same callback, by another one from a checkpoint, or all of it without Lightning."""
    package = types.ModuleType("lightning.pytorch")
    package.Callback = type("Callback", (), {})
    sys.modules.setdefault(package.__name__, package)
    callback = atomo.torch.LightningCallback("atomo:bits=1", seed=5)
    net = make_net("small")
    bare = atomo.torch.DDPState(policy="atomo:bits=1", seed=5)
    for numbers in (range(3), range(3, 6)):
        net[0].requires_grad_(numbers.start > 0)
        if way == "resumed" and numbers.start:
            saved, callback = callback.state_dict(), atomo.torch.LightningCallback("atomo:bits=1")
            callback.load_state_dict(saved)
        run = Run("", net=net, state=bare.bind(net)) if way == "bare" else Run(None, net=net, state=callback.state)
        if way != "bare":
            callback.on_train_start(types.SimpleNamespace(strategy=types.SimpleNamespace(model=run.wrapped), world_size=ranks), net)
        run.steps(rank, numbers)
    return run.result()


def lightning_with_differences(rank, ranks):
    package = types.ModuleType("lightning.pytorch")
    package.Callback = type("Callback", (), {})
    sys.modules.setdefault(package.__name__, package)
    wrapped = torch.nn.parallel.DistributedDataParallel(make_net("small"))
    trainer = types.SimpleNamespace(strategy=types.SimpleNamespace(model=wrapped), world_size=ranks)
    atomo.torch.LightningCallback("ef21+topk:keep=0.05").on_train_start(trainer, wrapped.module)


def raises_once(rank, ranks):
    """The share of the budget is no number once, on rank 1. What is said in four steps."""
    run = Run("atomo:bits=1", net=make_net("small"))
    run.state.budget_share = lambda step: 1 / (step - 1) if rank == 1 else 1.0
    said = []
    for number in range(4):
        try:
            run.steps(rank, [number])
            said.append("")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def replicas_of_shards(rank, ranks, codec):
    """What comes of one gradient in two pairs of ranks, each a sharded model."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    comm = atomo.torch.FSDPReduceScatter(codec, seed=1)
    gradient = torch.randn(2 * 4096, generator=torch.Generator().manual_seed(0)).bfloat16()
    out = gradient.new_empty(4096)
    comm(out, gradient, pairs[rank // 2], dist.ReduceOp.AVG)
    return out.float().numpy()


def of_two_models(rank, ranks):
    """Which one a state without a model belongs to is not known."""
    state = atomo.torch.DDPState(policy="sign")
    runs = [Run("", net=make_net("small"), state=state) for _ in range(2)]
    runs[0].steps(rank, [0])


def at_once(rank, ranks, threads):
    """How many layers are encoded, and decoded, at the same time: each call waits a while for company."""
    run = Run("qsgd:bits=4", cap_mb=25, threads=threads).steps(rank, [0])
    compressor, most = run.state.compressor, {}

    def watched(name):
        call, lock, inside = getattr(compressor, name), threading.Lock(), []

        def wrapper(*args, **options):
            with lock:
                inside.append(1)
                most[name] = max(most.get(name, 0), len(inside))
            time.sleep(0.02)
            with lock:
                inside.pop()
            return call(*args, **options)
        return wrapper

    for name in ("encode_layer", "decode_layer_add_all"):
        setattr(compressor, name, watched(name))
    run.steps(rank, [1])
    return most


def resumed_from(rank, ranks, state):
    """Two steps from a state of another number of ranks; `price` is that of the first."""
    again = atomo.torch.DDPState(make_net("small"), state["policy"])
    again.load_state_dict(state)
    net = make_net("small")
    run = Run("", net=net, state=again.bind(net)).steps(rank, [4])
    price = run.state.last.price
    return run.steps(rank, [5]).result() | {"price": price}


def compiled(rank, ranks, way):
    """A run of the net as it is, or of `DDP(torch.compile(net))`."""
    net = make_net("small")
    inner = torch.compile(net, backend="eager") if way == "inside" else net
    run = Run("0.*=qsgd:bits=8; *=atomo:bits=1", net=inner, cap_mb=25).steps(rank, range(3))
    return run.result() | {"parameters": parameters_of(net)}


def states_of_one_net(rank, ranks):
    """How many warnings a second state brings, by what it differs in from the first."""
    run = Run("qsgd:bits=4").steps(rank, [0])
    told = {}
    for what, options in (("same", {}), ("seed", {"seed": 1}), ("channel", {"channel": 1}), ("net", {})):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            atomo.torch.DDPState(make_net("small") if what == "net" else run.net, "qsgd:bits=4", **options)
        told[what] = sum("draw the same again" in str(w.message) for w in caught)
    return told
