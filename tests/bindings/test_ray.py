# SPDX-License-Identifier: Apache-2.0
"""examples/python/ray_train.py: it trains, replaces workers that die, and never uses a key twice."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import atomo
import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
sys.path.insert(0, str(EXAMPLES))
import ray_train

LOST = r"worker (\d) \(process (\d+) on [^)]*\) was dead in step (\d+): process (\d+) on .* took its place"


def start(*options):
    command = [sys.executable, EXAMPLES / "ray_train.py", *map(str, options)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process, output=""):
    rest, errors = process.communicate(timeout=600)
    assert process.returncode == 0, output + rest + errors
    return output + rest


def accuracy_of(output):
    return float(re.search(r"accuracy (\d+\.\d+)%", output)[1])


def test_a_worker_that_is_killed_is_replaced_and_training_goes_on():
    process = start("--workers", 2, "--steps", 60, "--codec", "atomo:bits=0.5")
    output, victim = "", None
    for line in process.stdout:
        output += line
        if match := re.match(r"worker 1 is process (\d+) on ", line):
            victim = int(match[1])
        if line.startswith("step   20 of 60"):
            os.kill(victim, signal.SIGKILL)
            break
    output = finish(process, output)
    lost = re.findall(LOST, output)
    assert len(lost) == 1, output
    worker, dead, step, new = map(int, lost[0])
    assert (worker, dead) == (1, victim) and new != victim and 19 <= step < 60
    assert "step   60 of 60" in output
    assert accuracy_of(output) > 50, "one class in ten is right by chance"
    fraction = int(re.search(r"1/(\d+) of f32", output)[1])
    assert 55 <= fraction <= 70, "half a bit of 32 is 1/64"


def test_no_two_messages_share_a_key():
    images, labels = np.random.default_rng(0).standard_normal((64, 784), np.float32), np.arange(64) % 10
    weights = ray_train.initial_weights(1)
    keys, sent = set(), 0
    for number in range(3):
        for life in range(2):
            worker = ray_train.Worker(number, life, "qsgd:bits=2", 1, 8, (images, labels))
            for step in range(3):
                message, _ = worker.step(step, weights)
                key = atomo.inspect(message).key
                keys.add((key.seed, key.step, key.tensor, key.worker, key.channel))
                sent += 1
    assert len(keys) == sent == 18


def test_gradients_are_the_losses_slopes():
    draw = np.random.default_rng(3)
    images, labels = draw.standard_normal((16, 784), np.float32), draw.integers(10, size=16)
    weights = {name: w.astype(np.float64) for name, w in ray_train.initial_weights(2).items()}
    _, gradient = ray_train.loss_and_gradient(weights, images, labels)
    for name, w in weights.items():
        direction = draw.standard_normal(w.shape)
        moved = [
            ray_train.loss_and_gradient(weights | {name: w + h * direction}, images, labels)[0] for h in (1e-5, -1e-5)
        ]
        assert (moved[0] - moved[1]) / 2e-5 == pytest.approx((gradient[name] * direction).sum(), rel=1e-5)


def test_what_cannot_be_trained_is_told():
    for options, told in [(["--codec", "qsgdd"], "qsgdd"), (["--data", "/nowhere"], "neither /nowhere/")]:
        process = start("--workers", 1, "--steps", 1, *options)
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 1 and told in errors and "Traceback" not in errors


@pytest.mark.long
def test_a_cluster_of_several_nodes():
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        cluster.add_node(num_cpus=2)
        output = finish(start("--address", cluster.address, "--workers", 3, "--steps", 200, "--kill-at", 50))
    finally:
        cluster.shutdown()
    ((worker, _, step, _),) = re.findall(LOST, output)
    # A worker that was quicker than the signal is missed in the step after.
    assert int(worker) == 2 and int(step) in (50, 51)
    assert accuracy_of(output) > 75
