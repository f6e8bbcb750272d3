#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small network on several workers that synchronise every so many steps, and tells what each codec came to.

    python3 examples/python/outer.py --workers 2 --every 10
    python3 examples/python/outer.py --policy qsgd:bits=4 --fragments 3 --delay 2 --alpha 0.5

Works without a GPU, over gloo, and starts its workers itself. Each has data of its own, made by a network that the trained
one does not know; the loss is on data that no worker trains on.
"""

import argparse
import os
import sys
import tempfile

import atomo
import atomo.torch
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn

POLICIES = ["identity:dtype=f32", "qsgd:bits=4", "*.bias=identity:dtype=f32; *=atomo:bits=1"]


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))


def batch(teacher, draw, n):
    x = torch.randn(n, 32, generator=draw)
    with torch.no_grad():
        return x, 3 * teacher(x)


def train(rank, policy, options):
    """Of one worker. Returns the loss of the parameters that all agree on, and the bytes that it sent."""
    teacher, model, draw = network(99), network(0), torch.Generator().manual_seed(rank)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.005)
    sync = atomo.torch.OuterSync(model, policy, every=options.every, outer=options.outer, outer_lr=options.outer_lr,
                                 fragments=options.fragments, delay=options.delay, alpha=options.alpha, verify_every=1)
    for _ in range(options.steps):
        x, y = batch(teacher, draw, 16)
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
        sync.step()
    sync.synchronise()  # what was trained since the last exchange
    x, y = batch(teacher, torch.Generator().manual_seed(1000), 2000)
    with torch.no_grad():
        return nn.functional.mse_loss(model(x), y).item(), sync.bytes_sent


def work(rank, store, options):
    """A process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.workers)
    size = 4 * sum(p.numel() for p in network(0).parameters())
    for policy in [options.policy] if options.policy else POLICIES:
        loss, sent = train(rank, policy, options)
        if rank == 0:
            ratio = options.steps * size / sent
            print(f"{policy:42} loss {loss:.4f}  {sent:9,d} bytes sent, 1/{ratio:.0f} of a gradient a step", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300, help="of each worker")
    parser.add_argument("--every", type=int, default=10, help="steps between two exchanges")
    parser.add_argument("--policy", help="one codec, or rules by a parameter's name; several are compared without it")
    parser.add_argument("--outer", default="nesterov", choices=["nesterov", "sgd"])
    parser.add_argument("--outer-lr", type=float, default=0.7)
    parser.add_argument("--fragments", type=int, default=1)
    parser.add_argument("--delay", type=int, default=0, help="steps that an exchange goes on in the background")
    parser.add_argument("--alpha", type=float, default=0.0, help="how much of what is local stays behind a delay")
    options = parser.parse_args()
    for name in ("workers", "steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}, it has to be at least 1")
    return options


def main():
    options = arguments()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory(prefix="atomo-outer-") as folder:
        try:
            multiprocessing.spawn(work, (os.path.join(folder, "store"), options), nprocs=options.workers)
        except multiprocessing.ProcessRaisedException as error:
            print(f"outer.py: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
