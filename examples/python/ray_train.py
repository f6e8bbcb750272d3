#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A parameter server and workers as Ray actors: the gradients travel as atomo's messages.

    python3 examples/python/ray_train.py --workers 4 --codec atomo:bits=0.5
    python3 examples/python/ray_train.py --address 10.0.0.1:6379 --codec "*.bias=identity; *=qsgd:bits=4"
    python3 examples/python/ray_train.py --kill-at 100        # a worker is killed on the way, and replaced

Trains a network of two layers on Fashion-MNIST. A worker that dies, or is silent for `--timeout` seconds, is replaced
by a new one that computes the step again; the server's death ends the run. On a cluster every node needs atomo; the
data travel from here.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from pathlib import Path

import atomo
import fashion_mnist
import numpy as np
import ray

HIDDEN = 64  # units between the layers
CLASSES = 10
LIVES = 3  # deaths of one worker in one step that end the run
Tensors = dict[str, np.ndarray]


def initial_weights(seed: int) -> Tensors:
    draw = np.random.default_rng(seed)
    return {
        "first.weight": (draw.standard_normal((784, HIDDEN)) / 28).astype(np.float32),
        "first.bias": np.zeros(HIDDEN, np.float32),
        "second.weight": (draw.standard_normal((HIDDEN, CLASSES)) / 8).astype(np.float32),
        "second.bias": np.zeros(CLASSES, np.float32),
    }


def predict(weights: Tensors, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the hidden units say, [n, HIDDEN], and the classes' probabilities, [n, CLASSES]."""
    hidden = np.maximum(images @ weights["first.weight"] + weights["first.bias"], 0)
    scores = hidden @ weights["second.weight"] + weights["second.bias"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, odds / odds.sum(axis=1, keepdims=True)


def loss_and_gradient(weights: Tensors, images: np.ndarray, labels: np.ndarray) -> tuple[float, Tensors]:
    """The mean cross-entropy in nats, and its gradient."""
    hidden, error = predict(weights, images)
    rows = np.arange(len(labels))
    loss = -np.log(np.maximum(error[rows, labels], 1e-30)).mean()
    error[rows, labels] -= 1
    error /= len(labels)
    back = (error @ weights["second.weight"].T) * (hidden > 0)
    return float(loss), {
        "first.weight": images.T @ back,
        "first.bias": back.sum(axis=0),
        "second.weight": hidden.T @ error,
        "second.bias": error.sum(axis=0),
    }


class Server:
    """Holds the weights; adds the workers' messages and takes the optimiser's step."""

    def __init__(self, codec: str, seed: int, rate: float) -> None:
        self.weights = initial_weights(seed)
        self.model = atomo.Compressor(self.weights, codec)
        self.momentum = {name: np.zeros_like(w) for name, w in self.weights.items()}
        self.rate = rate

    def read(self) -> Tensors:
        return self.weights

    def learn(self, messages: list[bytes]) -> Tensors:
        """The weights after a step. Messages are added in the workers' order, so the sum is the same in every run."""
        mean = {name: np.zeros_like(w) for name, w in self.weights.items()}
        self.model.decode_add_all(messages, out=mean, alpha=1 / len(messages))
        for name, gradient in mean.items():
            self.momentum[name] = 0.9 * self.momentum[name] + gradient
            self.weights[name] = self.weights[name] - self.rate * self.momentum[name]
        return self.weights


class Worker:
    """Computes gradients on its share of the data and encodes them.

    `life` counts the processes that had this number before. It is part of the key: no two messages share theirs, also
    where a step is computed again.
    """

    def __init__(self, number: int, life: int, codec: str, seed: int, batch: int, data: fashion_mnist.Split) -> None:
        self.number, self.life, self.seed, self.batch, self.data = number, life, seed, batch, data
        self.model = atomo.Compressor(initial_weights(seed), codec)

    def place(self) -> str:
        return f"process {os.getpid()} on {socket.gethostname()}"

    def step(self, step: int, weights: Tensors) -> tuple[bytes, float]:
        images, labels = self.data
        batch = np.random.default_rng((self.seed, step, self.number)).integers(len(labels), size=self.batch)
        loss, gradient = loss_and_gradient(weights, images[batch], labels[batch])
        key = {"seed": self.seed, "step": step, "worker": self.number, "channel": self.life}
        return bytes(self.model.encode(gradient, **key)), loss


RemoteServer = ray.remote(num_cpus=1)(Server)
RemoteWorker = ray.remote(num_cpus=1)(Worker)


class Team:
    """The workers, by number. Whoever is lost is replaced."""

    def __init__(self, options: argparse.Namespace, data: ray.ObjectRef) -> None:
        self.options, self.data = options, data
        self.lives = [0] * options.workers
        self.workers = [self.hire(number) for number in range(options.workers)]
        self.places = ray.get([worker.place.remote() for worker in self.workers])

    def hire(self, number: int) -> ray.actor.ActorHandle:
        o = self.options
        return RemoteWorker.remote(number, self.lives[number], o.codec, o.seed, o.batch, self.data)

    def replace(self, number: int, step: int, reason: Exception) -> None:
        ray.kill(self.workers[number])  # one that is silent may still be there
        lost = self.places[number]
        self.lives[number] += 1
        self.workers[number] = self.hire(number)
        self.places[number] = ray.get(self.workers[number].place.remote(), timeout=self.options.timeout)
        why = "silent" if isinstance(reason, ray.exceptions.GetTimeoutError) else "dead"
        say(f"worker {number} ({lost}) was {why} in step {step}: {self.places[number]} took its place")

    def step(self, step: int, weights: ray.ObjectRef) -> tuple[list[bytes], float]:
        """All workers' messages, in the order of their numbers, and the mean of their losses."""
        answers = [worker.step.remote(step, weights) for worker in self.workers]
        if step == self.options.kill_at:
            ray.kill(self.workers[-1])
        results = []
        for number in range(len(self.workers)):
            results.append(self.answer(number, step, weights, answers[number]))
        return [message for message, _ in results], float(np.mean([loss for _, loss in results]))

    def answer(self, number: int, step: int, weights: ray.ObjectRef, answer: ray.ObjectRef) -> tuple[bytes, float]:
        for _ in range(LIVES):
            try:
                return ray.get(answer, timeout=self.options.timeout)
            except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as lost:
                self.replace(number, step, lost)
                answer = self.workers[number].step.remote(step, weights)
        raise RuntimeError(f"worker {number} was lost {LIVES} times in step {step}")


def say(line: str) -> None:
    print(line, flush=True)


def train(options: argparse.Namespace, training: fashion_mnist.Split, test: fashion_mnist.Split) -> float:
    """The accuracy on the test images after the last step."""
    server = RemoteServer.remote(options.codec, options.seed, options.rate)
    weights = server.read.remote()
    plain = sum(w.nbytes for w in ray.get(weights).values())
    team = Team(options, ray.put(training))
    for number, place in enumerate(team.places):
        say(f"worker {number} is {place}")
    sent, started = 0, time.perf_counter()
    for step in range(options.steps):
        messages, loss = team.step(step, weights)
        weights = server.learn.remote(messages)
        sent += sum(map(len, messages))
        if step % 20 == 19 or step == options.steps - 1:
            say(
                f"step {step + 1:4} of {options.steps}  loss {loss:.3f}  bytes {len(messages[0]):,} (as f32: {plain:,})"
            )
    seconds = time.perf_counter() - started
    accuracy = float((predict(ray.get(weights), test[0])[1].argmax(axis=1) == test[1]).mean())
    mean = sent / max(options.steps * options.workers, 1)
    say(
        f"{options.codec}: accuracy {accuracy:.2%}, {mean:,.0f} bytes a message, 1/{plain / mean:.0f} of f32, "
        f"{1000 * seconds / options.steps:.1f} ms a step"
    )
    return accuracy


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--codec", default="atomo:bits=0.5", help="a spec, or rules for the layers (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=64, help="images a worker and step (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.02, help="the learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights, batches and codec (default: %(default)s)")
    parser.add_argument("--address", help="of a Ray cluster; without it Ray is started on this machine")
    parser.add_argument(
        "--kill-at", type=int, metavar="STEP", help="kill the last worker in this step, to see it replaced"
    )
    parser.add_argument("--timeout", type=float, default=60, help="seconds until a silent worker counts as lost")
    parser.add_argument("--data", type=Path, default=fashion_mnist.FOLDER, help="the folder of Fashion-MNIST")
    options = parser.parse_args(arguments)
    if options.workers < 1 or options.steps < 1 or options.batch < 1:
        parser.error("--workers, --steps and --batch are at least 1")
    return options


def main() -> int:
    options = parse()
    try:
        atomo.Compressor(initial_weights(options.seed), options.codec)  # a mistake in it is told before Ray starts
        data = fashion_mnist.load(options.data)
        # Without a cluster there are as many places as actors, however few cores the machine has.
        local = {} if options.address else {"num_cpus": options.workers + 1, "include_dashboard": False}
        ray.init(address=options.address, log_to_driver=False, logging_level="error", **local)
        train(options, *data)
    except (atomo.Error, OSError, RuntimeError, ray.exceptions.RayError) as error:
        print(f"ray_train: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
