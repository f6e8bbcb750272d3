#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package's calls on tensors of a GPU, against those on the CPU; and PyTorch's DDP and FSDP over NCCL.

usage: cases.py [--json FILE] [--only TEXT] [--rehearse]
"""
import argparse
import contextlib
import sys
import warnings

from machine import Gpu, Training, images, machine, small
from suite import Suite

import atomo
import gpu_runs
import torch
import torch.distributed as dist
from torch import nn

# Specs, and whether a GPU's messages have the bytes of the CPU's (docs/cuda.md: not those of sketches).
SPECS = {"sign": True, "qsgd:bits=4": True, "terngrad": True, "topk:keep=0.01": True, "randomk:keep=0.01": True,
         "identity:dtype=bf16": True, "minmax:bits=8": True, "natural": True, "atomo:atoms=blocks,bits=0.25": True,
         "atomo:atoms=rows,bits=1": True, "atomo:atoms=coordinate,bits=1": True, "atomo:bits=0.5": False}
ARRAYS = [(torch.float32, (1,)), (torch.float32, (33,)), (torch.float32, (3, 5, 7)), (torch.float32, (257, 301)),
          (torch.bfloat16, (257, 301)), (torch.float16, (257, 301)), (torch.float32, (1000, 1031))]
MODEL = {"conv.weight": (torch.float32, (16, 3, 7, 7)), "conv.bias": (torch.float32, (16,)),
         "head.weight": (torch.float32, (250, 129)), "half.weight": (torch.bfloat16, (64, 65)),
         "half.bias": (torch.float16, (65,))}
POLICIES = {"*.bias=identity:dtype=f32; *=qsgd:bits=4": True, "atomo:atoms=blocks,bits=1": True,
            "*.bias=sign; *=atomo:atoms=coordinate,bits=1": True, "ef+topk:keep=0.05": True, "atomo:bits=1": False}
MEANS = {"qsgd:bits=4": True, "atomo:atoms=blocks,bits=0.25,cap=0.26": True, "atomo:bits=0.5": False}
KEY = {"seed": 2**40 + 3, "worker": 5}


def values(dtype, shape, number=0):
    """A gradient's rough likeness: rows of very different size, some entries zero."""
    draw = torch.Generator().manual_seed(number)
    rows = torch.randn(shape[:1] + (1,) * (len(shape) - 1), generator=draw).exp()
    x = torch.randn(shape, generator=draw) * rows
    x[torch.rand(shape, generator=draw) < 0.1] = 0
    return x.to(dtype)


def bytes_of(message):
    return message.cpu().numpy().tobytes() if isinstance(message, torch.Tensor) else bytes(message)


def same(a, b):
    """To the bit, on the CPU."""
    a, b = (x.detach().cpu().contiguous().view(torch.uint8) for x in (a, b))
    return a.shape == b.shape and bool((a == b).all())


class Differences(list):
    """What was not as it should be; said at the end, so that one case tells all of it."""

    def expect(self, good, *what):
        if not good:
            self.append(" ".join(map(str, what)))

    def bytes(self, mine, expected, *what):
        if mine != expected:
            first = next((i for i, (a, b) in enumerate(zip(mine, expected)) if a != b), min(len(mine), len(expected)))
            self.append(" ".join(map(str, (*what, f"bytes differ from {first} on, {len(mine)} and {len(expected)} bytes"))))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None and self:
            raise AssertionError(f"{len(self)} differences: " + "; ".join(self[:12]))


def codec(place, spec, exact):
    one = atomo.Codec(spec)
    with Differences() as wrong, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small arrays are dear
        for dtype, shape in ARRAYS:
            what = (str(dtype), shape)
            x = values(dtype, shape)
            y = x.to(place.device)
            expected, made = one.encode(x, step=1, **KEY), one.encode(y, step=1, **KEY)
            wrong.expect(isinstance(made, torch.Tensor) == (place.device.type == "cuda"), *what, "a message of another kind")
            mine = bytes_of(made)
            if exact:
                wrong.bytes(mine, expected, *what)
            wrong.bytes(bytes_of(one.encode(y, step=1, **KEY)), mine, *what, "a second time")
            for payload in (made, expected):
                wrong.expect(same(one.decode(payload, like=y), one.decode(bytes_of(payload), like=x)), *what, "decode")
            sums = [values(torch.float32, shape, 2).to(device) for device in (place.device, "cpu")]
            messages = [mine, expected, bytes_of(one.encode(y, step=2, **KEY))]
            for total in sums:
                one.decode_add_all(messages, out=total, alpha=-0.3)
            wrong.expect(same(*sums), *what, "decode_add_all")


def damaged(place):
    one, x = atomo.Codec("qsgd:bits=4"), values(torch.float32, (257, 301))
    message = bytearray(one.encode(x, step=1))
    message[len(message) // 2] ^= 1
    for payload in (bytes(message), bytes(message[:100])):
        try:
            one.decode(payload, like=x.to(place.device))
        except atomo.DecodeError:
            continue
        raise AssertionError("a damaged message was decoded")


def model(place, policy, exact):
    """Three steps of a whole model's messages, then three layer by layer."""
    kinds = {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in MODEL.items()}
    cpu, gpu = atomo.Compressor(kinds, policy), atomo.Compressor(kinds, policy, device=place.device.type)
    with Differences() as wrong, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(6):
            x = {name: values(dtype, shape, 10 * step + i) for i, (name, (dtype, shape)) in enumerate(MODEL.items())}
            y = {name: of.to(place.device) for name, of in x.items()}
            if step < 3:
                expected, made = (of.encode(arrays, step=step, **KEY) for of, arrays in ((cpu, x), (gpu, y)))
                if exact:
                    wrong.bytes(bytes_of(made), expected, "step", step)
                on_gpu, on_cpu = gpu.decode(made, like=y), cpu.decode(bytes_of(made), like=x)
            else:
                pairs, on_gpu, on_cpu = {}, {}, {}
                for of in (cpu, gpu):
                    of.begin_step(step=step, **KEY)
                for name in MODEL:
                    pairs[name] = bytes_of(gpu.encode_layer(name, y[name])), cpu.encode_layer(name, x[name])
                    on_gpu[name] = gpu.decode_layer(name, pairs[name][0], like=y[name])
                    on_cpu[name] = cpu.decode_layer(name, pairs[name][0], like=x[name])
                    if exact:
                        wrong.bytes(*pairs[name], "step", step, name)
                for of in (cpu, gpu):
                    of.end_step()
            for name in MODEL:
                wrong.expect(same(on_gpu[name], on_cpu[name]), "step", step, name, "decode")


def hooked(place, net, batch, policy, **options):
    """A `Training` by atomo's hook."""
    state = place.state(net, policy, seed=options.pop("seed", 5), **options.pop("state", {}))
    return Training(place, net, batch, state, atomo.torch.ddp_hook, **options)


def check_mean(run, policy, exact, step):
    """The gradients that came, against the CPU's calls: by its own messages, and by those that travelled."""
    with Differences() as wrong:
        found, state = run.gradients(), run.state
        for number, bucket in state._on_gpu._of.items():
            own = {name: run.own[name] for name in bucket.names}
            sums = {name: torch.full_like(x, -0.0) if x.dtype == torch.float32 else x.clone() for name, x in own.items()}
            message, reader = bytes_of(bucket.model.payload[:bucket.sent]), atomo.Compressor(own, policy)
            if bucket.dtype == torch.float32:
                reader.decode_add_all([message], out=sums, alpha=1.0)
            else:
                sums = reader.decode(message, out=sums)
            for name in bucket.names:
                wrong.expect(same(found[name], sums[name]), "bucket", number, name, "is not what its message says")
        if exact:
            expected = gpu_runs.expected_means(0, 1, policy, state.seed, step, state.layout, run.own)
            for name, mean in expected.items():
                wrong.expect(same(found[name], mean), name, "is not the mean of the CPU's calls")


def ddp_mean(place, policy, exact):
    run = hooked(place, *images(place, 4), policy, half=False)
    run.step()
    run.keeps = True
    run.backward()
    check_mean(run, policy, exact, 1)


def ddp_halves(place):
    """Buckets of three types, whose means are rounded once."""
    run = hooked(place, *small(place, "mixed"), "qsgd:bits=6", half=False)
    run.backward()
    run.keeps = True
    run.backward()
    check_mean(run, "qsgd:bits=6", True, 1)


def ddp_steady(place, policy):
    """Steps in which the hook neither waits nor takes memory, of PyTorch or of the GPU."""
    run = hooked(place, *images(place, 4), policy)
    for _ in range(4):
        run.step()
    place.finish()
    run.strict, run.taken, free = True, 0, place.free_bytes()
    for _ in range(3):
        run.step()
    place.finish()
    with Differences() as wrong:
        wrong.expect(run.taken == 0, run.taken, "pieces of memory were taken in the hook")
        wrong.expect(place.free_bytes() >= free, free - place.free_bytes(), "bytes of the GPU were taken")
        last, wire = run.state.log()["last"], [of.model.wire for of in run.state._on_gpu._of.values()]
        wrong.expect(last["length_bytes"] == 0 and last["bytes_sent"] == sum(wire), "sent", last, "of", wire)
    run.state._on_gpu.look()


def ddp_learns(place, policy, **options):
    """A small net on one batch: the loss falls, and nothing that a step left says otherwise."""
    net, batch = small(place)
    run = hooked(place, net, batch, policy, half=False, lr=0.1, cap_mb=0.002, **options)
    losses = [run.step().item() for _ in range(12)]
    run.state._on_gpu.look()
    assert losses[-1] < 0.9 * losses[0], losses
    return run


def ddp_checkpoint(place):
    """A state's bytes, taken to a new state, give the steps that the old one would have made."""
    import pickle

    run = ddp_learns(place, "ef+topk:keep=0.1")
    saved = pickle.loads(pickle.dumps(run.state.state_dict()))
    again = hooked(place, *small(place), "ef+topk:keep=0.1", half=False, cap_mb=0.002)
    again.net.load_state_dict(run.net.state_dict())
    again.state.load_state_dict(saved)
    for one in (run, again):
        one.backward()
    found, expected = again.gradients(), run.gradients()
    with Differences() as wrong:
        for name, gradient in expected.items():
            wrong.expect(same(found[name], gradient), name)


def ddp_not_finite(place):
    """A step of Inf makes NaN of the gradients, leaves memories as they were and is gone with the next one."""
    run = hooked(place, *small(place), "ef+qsgd:bits=4", half=False, cap_mb=0.002)
    for _ in range(3):
        run.step()
    before = run.state.state_dict()["memories"]
    x, y = run.batch
    run.batch = (x * float("inf"), y)
    run.backward()
    assert not all(bool(gradient.isfinite().all()) for gradient in run.gradients().values())
    assert run.state.state_dict()["memories"] == before, "memories are not those before the step"
    run.batch = (x, y)
    run.backward()
    assert all(bool(gradient.isfinite().all()) for gradient in run.gradients().values())


def ddp_squares(place, every=2, precondition=False):
    net, batch = small(place)
    squares = atomo.torch.Squares(every=every, precondition=precondition)
    run = hooked(place, net, batch, "atomo:bits=2", half=False, state={"squares": squares},
                 optimiser=atomo.torch.AdamW(net.parameters(), lr=1e-2, squares=squares))
    losses = [run.step().item() for _ in range(8)]
    assert losses[-1] < losses[0], losses


def ddp_clipped(place):
    """Over three buckets, in hooks that wait for nothing."""
    run = hooked(place, *small(place), "identity:dtype=f32", half=False, cap_mb=0.002, state={"clip_norm": 0.01})
    run.step()
    place.finish()
    run.strict = run.keeps = True
    run.backward()
    norm = torch.cat([gradient.flatten() for gradient in run.own.values()]).norm()
    with Differences() as wrong:
        wrong.expect(run.state.last.buckets == 3 and norm > 0.01, run.state.last.buckets, "buckets, a norm of", norm)
        for name, gradient in run.gradients().items():
            wrong.expect(torch.allclose(gradient, run.own[name] * (0.01 / norm), rtol=1e-4, atol=1e-9), name)


def powersgd(place, residual):
    net, batch = small(place)
    if isinstance(place, Gpu):
        state = atomo.torch.PowerSGDState(net, rank=4, residual=residual)
    else:
        import powersgd_runs

        state = powersgd_runs.OnStandIn(net, rank=4, residual=residual)
    run = Training(place, net, batch, state, atomo.torch.ddp_hook, half=False, lr=0.1, cap_mb=0.002)
    losses = [run.step().item() for _ in range(8)]
    assert losses[-1] < losses[0], losses


def fsdp_reduce_scatter(place, spec):
    """The third call waits for nothing, takes no memory and gives the CPU's values."""
    comm = place.sharded(spec, seed=2)
    x = values(torch.float32, (300007,))
    y, out = x.to(place.device), torch.empty(300007, device=place.device)
    for _ in range(2):
        comm(out, y, dist.group.WORLD, dist.ReduceOp.AVG)
    place.finish()
    bounded, taken = comm.codec.traits.bounded, place.taken()
    with place.no_waits() if bounded else contextlib.nullcontext():
        comm(out, y, dist.group.WORLD, dist.ReduceOp.AVG)
    taken = place.taken() - taken
    place.finish()
    one, expected = atomo.Compressor({"chunk": x}, spec), torch.full_like(x, -0.0)
    one.decode_add_all([one.encode({"chunk": x}, seed=2, step=2, worker=0, channel=0)], out={"chunk": expected}, alpha=1.0)
    with Differences() as wrong:
        wrong.expect(same(out, expected), "other values than the CPU's")
        wrong.expect(not bounded or taken == 0, taken, "pieces of memory were taken")


def expect_learning(net, batch, after_step=lambda: None):
    """Eight steps of SGD lower the loss."""
    x, y = batch
    optimiser, losses = torch.optim.SGD(net.parameters(), lr=0.1), []
    for _ in range(8):
        optimiser.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        optimiser.step()
        after_step()
        losses.append(loss.item())
    assert losses[-1] < losses[0], losses


def fsdp_model(place):
    """fully_shard with the hook trains; whether a group of one calls it is up to PyTorch."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net, batch = small(place)
    mesh = init_device_mesh(place.device.type, (1,))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    comm = place.sharded("qsgd:bits=6").attach(net)
    expect_learning(net, batch)
    print(f"fully_shard called the reduce-scatter {comm.calls} times")


def outer(place, **options):
    """DiLoCo's round on tensors of a GPU."""
    net, batch = small(place)
    group = dist.new_group(backend="gloo") if "device" in options else None
    sync = atomo.torch.OuterSync(net, "qsgd:bits=6", every=2, process_group=group, **options)
    expect_learning(net, batch, sync.step)
    sync.synchronise()
    where = {tensor.device.type for tensor in sync.state_dict()["outer"].values()}
    assert where == {options.get("device", place.device.type)}, where


def all_cases(place):
    """Yields (group, name, work)."""
    for spec, exact in SPECS.items():
        yield "Codec", spec, lambda spec=spec, exact=exact: codec(place, spec, exact)
    yield "Codec", "damaged", lambda: damaged(place)
    for policy, exact in POLICIES.items():
        yield "Compressor", policy, lambda policy=policy, exact=exact: model(place, policy, exact)
    for policy, exact in MEANS.items():
        yield "Ddp", f"mean {policy}", lambda policy=policy, exact=exact: ddp_mean(place, policy, exact)
    yield "Ddp", "mean of halves", lambda: ddp_halves(place)
    for policy in ("qsgd:bits=4", "atomo:atoms=blocks,bits=0.25,cap=0.26", "sign", "ef+sign:scale=mean"):
        yield "Ddp", f"steady {policy}", lambda policy=policy: ddp_steady(place, policy)
    for policy in ("qsgd:bits=6", "atomo:bits=2", "ef+topk:keep=0.1"):
        yield "Ddp", f"learns {policy}", lambda policy=policy: ddp_learns(place, policy)
    yield "Ddp", "learns behind a warm-up", lambda: ddp_learns(place, "qsgd:bits=6", state={"start_step": 2})
    yield "Ddp", "checkpoint", lambda: ddp_checkpoint(place)
    yield "Ddp", "not finite", lambda: ddp_not_finite(place)
    yield "Ddp", "clipped", lambda: ddp_clipped(place)
    yield "Ddp", "squares", lambda: ddp_squares(place)
    yield "Ddp", "units", lambda: ddp_squares(place, every=0, precondition=True)
    for residual in (None, "atomo:bits=0.25,atoms=rows"):
        yield "PowerSgd", f"residual {residual}", lambda residual=residual: powersgd(place, residual)
    for spec in ("qsgd:bits=6", "atomo:atoms=blocks,bits=2,cap=2.2", "identity:dtype=f32", "atomo:atoms=blocks,bits=0.5"):
        yield "Fsdp", f"reduce-scatter {spec}", lambda spec=spec: fsdp_reduce_scatter(place, spec)
    yield "Fsdp", "fully_shard", lambda: fsdp_model(place)
    for options in ({}, {"delay": 1, "alpha": 0.5}, {"memory": "ef:memory=int8"}, {"device": "cpu", "memory": "ef"}):
        yield "Outer", f"learns {options}", lambda options=options: outer(place, **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their group or name")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with a stand-in for streams and events")
    options = parser.parse_args()
    place, suite = machine(options.rehearse).join(), Suite(options.json)
    print(f"atomo {atomo.__version__} of {atomo.__file__}, torch {torch.__version__}, {place.device}", flush=True)
    for group, name, work in all_cases(place):
        if options.only in f"{group}.{name}":
            suite.run(group, name, work)
    status = suite.end()
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
