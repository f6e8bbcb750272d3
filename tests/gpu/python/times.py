#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a training step of ResNet-50 on a GPU under DDP over NCCL, with atomo's hook and with PyTorch's own.

usage: times.py [--out FILE.json] [--rehearse]

A step is zero_grad, forward, backward and SGD on 32 random images, products in bf16 (autocast), gradients in f32. The group
has one rank, so nothing travels: what a hook adds is its work on the GPU and its calls on the host. `us` is the median of 15
steps that follow one another, between events of the GPU, after 6 that are not timed; `host_us` what the hook's calls took of
the host in a step, `memory` the pieces of memory that they asked PyTorch for, `sent` the bytes that a rank would send.
"""
import argparse
import gc
import sys

from machine import Gpu, Training, images, machine
from suite import Figures

import atomo
import atomo.torch
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_powersgd

STEPS, BEFORE = 15, 6
POLICIES = ("qsgd:bits=4", "atomo:atoms=blocks,bits=0.25,cap=0.26", "sign", "identity:dtype=bf16", "ef+topk:keep=0.01",
            "atomo:atoms=blocks,bits=0.25", "atomo:bits=0.5,cap=0.55", "atomo:bits=0.5")


def hooks(place):
    """Yields (name, what makes a state of a net, the hook)."""
    yield "all-reduce", None, None
    yield "torch-fp16", lambda net: None, default_hooks.fp16_compress_hook
    yield "torch-powersgd-rank4", lambda net: torch_powersgd.PowerSGDState(
        None, matrix_approximation_rank=4, start_powerSGD_iter=2), torch_powersgd.powerSGD_hook
    for policy in POLICIES if isinstance(place, Gpu) else POLICIES[:2]:
        yield policy, lambda net, policy=policy: place.state(net, policy), atomo.torch.ddp_hook
    if isinstance(place, Gpu):
        yield "atomo-powersgd-rank4", lambda net: atomo.torch.PowerSGDState(net, rank=4), atomo.torch.ddp_hook


def time_step(place, figures, name, make, hook, count):
    net, batch = images(place, count)
    state = make(net) if make else None
    run = Training(place, net, batch, state, hook)
    for _ in range(BEFORE):
        run.step()
    place.finish()
    run.host_seconds, run.taken = 0.0, 0
    steps = STEPS if isinstance(place, Gpu) else 3
    times = place.times(run.step, steps)
    more = {"host_us": 1e6 * run.host_seconds / steps, "memory": run.taken / steps} if hook else {}
    if isinstance(state, atomo.torch.DDPState):
        more["sent"] = state.last.bytes_sent
        state._on_gpu.look()
    figures.add(f"step {name}", times, **more)


def time_codec(place, figures, spec, entries):
    """One tensor's encode and decode by the package's plain calls, which wait for the message's length."""
    codec, x = atomo.Codec(spec), torch.randn(entries, device=place.device)
    message, out = codec.encode(x, step=0), torch.empty_like(x)
    for name, work in (("encode", lambda: codec.encode(x, step=1)), ("decode", lambda: codec.decode(message, out=out))):
        place.times(work, 3)
        figures.add(f"{name} 25M {spec}", place.times(work, STEPS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE.json")
    parser.add_argument("--rehearse", action="store_true", help="a small net on the CPU")
    options = parser.parse_args()
    place = machine(options.rehearse).join()
    count, entries = (2, 100_000) if options.rehearse else (32, 25_000_000)
    figures = Figures(options.out, torch=torch.__version__, step=f"{count} images, products in bf16, gradients in f32, 1 rank")
    if not options.rehearse:
        torch.backends.cudnn.benchmark = True
    for name, make, hook in hooks(place):
        figures.measure(f"step {name}", lambda: time_step(place, figures, name, make, hook, count))
        gc.collect()
    for spec in ("qsgd:bits=4", "atomo:bits=0.5"):
        figures.measure(f"encode 25M {spec}", lambda: time_codec(place, figures, spec, entries))
    status = figures.end()
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
