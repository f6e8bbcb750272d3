#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains LeNet on Fashion-MNIST with DistributedDataParallel, with atomo's hook, a PowerSGD hook or none.

    torchrun --nproc-per-node 4 examples/python/ddp.py --hook atomo --codec atomo:bits=0.5

Works without a GPU, over gloo. The images are those of Debian's dataset-fashion-mnist, or of any folder with the four
idx files, packed or not. `import ddp` gives `train` and what it needs to other programs (bench/ddp.py).
"""

import argparse
import json
import os
import pathlib
import sys
import time

import atomo
import atomo.torch
import fashion_mnist
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

HOOKS = ("none", "atomo", "atomo-powersgd", "powersgd")  # the last is PyTorch's


def load(folder=fashion_mnist.FOLDER):
    """Training and test images, [n, 1, 28, 28] in f32 of mean 0 and variance 1, each with its labels [n]."""
    return [(torch.from_numpy(images).view(-1, 1, 28, 28), torch.from_numpy(labels))
            for images, labels in fashion_mnist.load(folder)]


def lenet():
    """Two convolutions, two fully connected layers: 431,080 parameters, as programs/atomo-train has it."""
    return nn.Sequential(nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2),
                         nn.ReLU(), nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10))


class Counted:
    """Counts the bytes of gradients that this process hands to PyTorch's own all-reduce, through Python."""

    def __init__(self):
        self.bytes = 0

    def __enter__(self):
        self.original = dist.all_reduce

        def all_reduce(tensor, *args, **options):
            self.bytes += tensor.nbytes
            return self.original(tensor, *args, **options)

        dist.all_reduce = all_reduce
        return self

    def __exit__(self, *_):
        dist.all_reduce = self.original


def register(model, hook, codec, rank, residual, seed, start, counted):
    """Registers a hook; returns a function that tells the bytes so far of all that was handed to collectives."""
    if hook.startswith("atomo"):
        state = (atomo.torch.DDPState(model, codec, seed=seed) if hook == "atomo" else
                 atomo.torch.PowerSGDState(model, rank, residual=residual, seed=seed, start_step=start))
        model.register_comm_hook(state, atomo.torch.ddp_hook)
        return lambda: state.bytes_sent
    if hook == "powersgd":
        state = powersgd.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=start)
        model.register_comm_hook(state, powersgd.powerSGD_hook)
    else:  # what DDP does without a hook, called through Python
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    return lambda: counted.bytes


def accuracy(model, images, labels):
    """Of this process's copy, on all test images."""
    model.eval()
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in zip(images.split(1000), labels.split(1000)))
    model.train()
    return hits / len(labels)


def on_the_wire(handed, reduced, workers):
    """Bytes that leave a worker: an all-reduce in a ring passes everything on twice, in parts of 1/workers; a message
    of atomo goes to every other worker."""
    return (workers - 1) * (handed - reduced + 2.0 * reduced / workers)


def train(data, *, hook="atomo", codec="atomo:bits=0.5", rank=1, residual=None, steps=800, batch=32, lr=0.05, seed=1, tests=8,
          start=10, bucket_mb=25.0, report=lambda event: None):
    """Trains in every process of the default group; `data` is what `load` gives. Returns what
    it came to: accuracy, bytes a step, milliseconds a step, the curve. `rank` and `start` are of both
    PowerSGDs, `residual` of atomo's."""
    (images, labels), test = data
    worker, workers = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    net = lenet()
    model = DistributedDataParallel(net, bucket_cap_mb=bucket_mb)
    optimiser = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    order = torch.Generator().manual_seed(1000 * seed + worker)
    times, curve = [], []
    with Counted() as counted:
        sent = register(model, hook, codec, rank, residual, seed, start, counted)
        for step in range(steps):
            began = time.perf_counter()
            chosen = torch.randint(len(labels), (batch,), generator=order)
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimiser.step()
            schedule.step()
            times.append(time.perf_counter() - began)
            if (step + 1) % max(steps // tests, 1) == 0 and step + 1 < steps:
                part = accuracy(net, test[0][:2000], test[1][:2000])
                curve.append({"steps": step + 1, "handed": sent(), "accuracy": part})
                report({"step": step + 1, "loss": loss.item(), "accuracy": part, "handed": sent()})
        handed = sent()
    factored = "powersgd" in hook
    return {"hook": hook, "codec": codec if hook == "atomo" else None, "rank": rank if factored else None,
            "residual": residual if factored else None, "seed": seed, "workers": workers, "steps": steps, "accuracy": accuracy(net, *test),
            "handed_a_step": handed / steps, "wire_a_step": on_the_wire(handed, counted.bytes, workers) / steps,
            "ms_a_step": 1000 * float(np.median(times)), "curve": curve}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--hook", default="atomo", choices=HOOKS)
    parser.add_argument("--codec", default="atomo:bits=0.5", help="of atomo, or rules by a parameter's name")
    parser.add_argument("--rank", type=int, default=1, help="of PowerSGD")
    parser.add_argument("--residual", metavar="SPEC", help="of atomo's PowerSGD: sends what it leaves, in place of a memory")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=32, help="of one worker")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default=fashion_mnist.FOLDER, help="folder of the idx files")
    parser.add_argument("--json", help="file for the outcome")
    options = parser.parse_args()
    for name in ("rank", "steps", "batch"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}, it has to be at least 1")
    if "RANK" not in os.environ:
        parser.error("start it with torchrun: torchrun --nproc-per-node 4 examples/python/ddp.py")
    return options


def main():
    options = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    first = dist.get_rank() == 0
    def report(event):
        if first:
            print(f"step {event['step']}/{options.steps}  loss {event['loss']:.3f}  "
                  f"test {100 * event['accuracy']:.2f}%  {event['handed'] / 1e6:.2f} MB a worker", flush=True)
    try:
        data = load(options.data)
        end = train(data, hook=options.hook, codec=options.codec, rank=options.rank, residual=options.residual, steps=options.steps,
                    batch=options.batch, lr=options.lr, seed=options.seed, report=report)
    except (atomo.Error, OSError, ValueError) as error:
        print(f"ddp.py: {error}", file=sys.stderr)
        return 1
    if first:
        print(f"test accuracy {100 * end['accuracy']:.2f}%  {end['handed_a_step']:,.0f} bytes a step handed to "
              f"collectives  {end['ms_a_step']:.1f} ms a step")
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(end, indent=1) + "\n")
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
