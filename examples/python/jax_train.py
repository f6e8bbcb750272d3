#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training in JAX: each device encodes its gradient, all gather the messages, each adds them up.

    python3 examples/python/jax_train.py --workers 4 --policy "atomo:bits=0.5,cap=1.1"

The whole step is one jitted `shard_map`. Payloads have one length, that of the cap, which holds for every message. All
devices add the same messages in the same order, so their weights stay the same bit for bit, and nobody sends weights.
Without accelerators the devices are threads of this process.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from pathlib import Path

# XLA runs every device on threads of its own: BLAS, which atoms of sketches call, needs none beside them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import atomo
import atomo.jax
import fashion_mnist
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

HIDDEN = 64  # units between the layers


def initial_weights(seed: int) -> dict:
    first, second = jax.random.split(jax.random.key(seed))
    return {
        "first": {"weight": jax.random.normal(first, (784, HIDDEN)) / 28, "bias": jnp.zeros(HIDDEN)},
        "second": {"weight": jax.random.normal(second, (HIDDEN, 10)) / 8, "bias": jnp.zeros(10)},
    }


def predict(weights: dict, images: jax.Array) -> jax.Array:
    """Scores of the classes, [n, 10]."""
    hidden = jax.nn.relu(images @ weights["first"]["weight"] + weights["first"]["bias"])
    return hidden @ weights["second"]["weight"] + weights["second"]["bias"]


def loss_of(weights: dict, images: jax.Array, labels: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(predict(weights, images))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


def make_step(mesh: Mesh, policy: str, seed: int, rate: float):
    """A jitted step: (weights, momentum, step, images, labels) to (weights, momentum, losses, message bytes)."""
    workers = mesh.size

    def step_of_one(weights, momentum, step, images, labels):
        # This device's copy: by itself, JAX would add up the gradients of weights that all devices share.
        weights, momentum = jax.tree.map(lambda leaf: leaf[0], (weights, momentum))
        loss, gradient = jax.value_and_grad(loss_of)(weights, images, labels)
        rank = jax.lax.axis_index("workers")
        payload, length = atomo.jax.encode_tree(gradient, policy, seed=seed, step=step, worker=rank)
        payloads = jax.lax.all_gather(payload, "workers")
        zeros = jax.tree.map(jnp.zeros_like, gradient)
        mean = atomo.jax.decode_add_tree(payloads, 1 / workers, zeros, policy)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, mean)
        weights = jax.tree.map(lambda w, m: w - rate * m, weights, momentum)
        return *jax.tree.map(lambda leaf: leaf[None], (weights, momentum)), loss[None], length[None]

    split = P("workers")
    step = jax.shard_map(step_of_one, mesh=mesh, in_specs=(split, split, P(), split, split), out_specs=split)
    return jax.jit(step, donate_argnums=(0, 1))


def train(options: argparse.Namespace) -> float:
    """The accuracy on the test images after the last step."""
    (images, labels), test = fashion_mnist.load(options.data)
    mesh = jax.make_mesh((options.workers,), ("workers",), axis_types=(jax.sharding.AxisType.Auto,))
    place = functools.partial(jax.device_put, device=NamedSharding(mesh, P("workers")))
    weights = initial_weights(options.seed)
    plain = sum(leaf.nbytes for leaf in jax.tree.leaves(weights))
    weights = place(jax.tree.map(lambda leaf: np.stack([leaf] * options.workers), weights))
    momentum = jax.tree.map(jnp.zeros_like, weights)
    step = make_step(mesh, options.policy, options.seed, options.rate)
    draw = np.random.default_rng(options.seed)
    sent, started = 0, time.perf_counter()
    for number in range(options.steps):
        batch = draw.integers(len(labels), size=options.workers * options.batch)
        shares = place(images[batch]), place(labels[batch].astype(np.int32))
        weights, momentum, losses, bytes_sent = step(weights, momentum, np.uint32(number), *shares)
        sent += int(bytes_sent.sum())
        if number % 20 == 19 or number == options.steps - 1:
            print(
                f"step {number + 1:4} of {options.steps}  loss {losses.mean():.3f}  bytes {int(bytes_sent[0]):,}",
                flush=True,
            )
    seconds = time.perf_counter() - started
    for leaf in jax.tree.leaves(weights):
        copies = np.asarray(leaf)
        if any(copy.tobytes() != copies[0].tobytes() for copy in copies):
            raise RuntimeError("the devices' weights differ")
    weights = jax.tree.map(lambda leaf: np.asarray(leaf[0]), weights)
    accuracy = float((predict(weights, test[0]).argmax(axis=1) == test[1]).mean())
    mean = sent / (options.steps * options.workers)
    print(
        f"{options.policy}: accuracy {accuracy:.2%}, {mean:,.0f} bytes a message, 1/{plain / mean:.0f} of f32, "
        f"{1000 * seconds / options.steps:.1f} ms a step"
    )
    return accuracy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--policy", default="atomo:bits=0.5,cap=1.1", help="a spec, or rules (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="devices (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=64, help="images a worker and step (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.02, help="the learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights, batches and codec (default: %(default)s)")
    parser.add_argument("--data", type=Path, default=fashion_mnist.FOLDER, help="the folder of Fashion-MNIST")
    options = parser.parse_args()
    if options.workers < 1 or options.steps < 1 or options.batch < 1:
        parser.error("--workers, --steps and --batch are at least 1")
    jax.config.update("jax_num_cpu_devices", options.workers)
    try:
        if jax.device_count() < options.workers:
            raise RuntimeError(f"--workers {options.workers}, but there are {jax.device_count()} devices")
        train(options)
    except (atomo.Error, OSError, RuntimeError) as error:
        print(f"jax_train: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
