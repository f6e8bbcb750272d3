# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_train.py run: `mpirun -n N python train_runs.py WHAT FOLDER`."""
import json
import sys
from pathlib import Path

import numpy
import torch

import atomo
import atomo.train

SERVERS = ("ps", "asgd", "dcasgd", "fedavg", "average", "difference")
MORE = {"fedavg": {"local_steps": 2, "outer_lr": 1.0}, "average": {"local_steps": 2}, "local": {"local_steps": 2},
        "pdmm": {"momentum": 0}, "admm": {"momentum": 0}, "powersgd": {"rank": 2}}


def samples(seed, count=96):
    """Points of three classes, around three centres."""
    draw = torch.Generator().manual_seed(seed)
    classes = torch.arange(count) % 3
    points = torch.randn(count, 8, generator=draw) + 3 * torch.eye(8)[classes]
    return torch.utils.data.TensorDataset(points, classes)


def network():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.2),
                               torch.nn.Linear(16, 3))


class Halves:
    """Every entry as a float16."""

    def encode(self, array, key):
        return array.astype("<f2").tobytes()

    def decode(self, body, shape):
        return numpy.frombuffer(body, "<f2").reshape(shape)


def train(folder, algorithm="allgather", **options):
    common = {"codec": "qsgd:bits=6", "steps": 12, "batch": 8, "lr": 0.05, "out": Path(folder, algorithm), "plot": False}
    common |= MORE.get(algorithm, {}) | options
    if algorithm == "powersgd":
        del common["codec"]
    return atomo.train.run(network, samples(1), samples(2, 48), algorithm=algorithm, **common)


def losses(folder, algorithm="allgather"):
    lines = Path(folder, algorithm, "steps.csv").read_text(encoding="utf-8").splitlines()
    column = lines[0].split(",").index("loss")
    return [float(line.split(",")[column]) for line in lines[1:]]


def all_algorithms(folder):
    """Each algorithm once, in one start: {name: result}."""
    names = [row["name"] for row in atomo.train.algorithms()]
    return {name: train(folder, name) for name in names}


def others(folder):
    """A codec in Python for some layers, a resumed run, optimisers and schedules of torch, a module that is left as it is."""
    atomo.register("halves", Halves)
    results = {"policy": train(f"{folder}/policy", policy={"*.bias": "halves", "*": "atomo:bits=2"}, codec=None, save_every=4)}
    whole = train(f"{folder}/whole", sample_scores=True)
    part = train(f"{folder}/part", stop_at=6, save_every=6)
    results |= {"whole": whole, "part": part, "resumed": train(f"{folder}/part", resume=True)}

    def adam(parameters):
        return torch.optim.AdamW(parameters, lr=0.01)

    def falling(optimiser):
        return torch.optim.lr_scheduler.StepLR(optimiser, 5, 0.5)

    results["torch"] = train(f"{folder}/torch", optimizer=adam, schedule=falling)
    train(f"{folder}/torch_part", optimizer=adam, schedule=falling, stop_at=6)
    train(f"{folder}/torch_part", optimizer=adam, schedule=falling, resume=True)
    results["own"] = train(f"{folder}/own", optimizer="adamw", lr=0.01, weight_decay=0.01, schedule="constant")
    results["torch_same"] = train(f"{folder}/torch_same", optimizer=adam, schedule="constant")
    line = torch.nn.Linear(8, 1)
    first = line.weight.detach().clone()
    points = samples(1).tensors[0]
    heights = torch.utils.data.TensorDataset(points, points.sum(1, keepdim=True))
    results["line"] = atomo.train.run(line, heights, heights, loss=torch.nn.functional.mse_loss, steps=20, batch=8, lr=0.01,
                                      momentum=0, codec="identity:dtype=f32", out=f"{folder}/line", plot=False)
    assert torch.equal(line.weight, first)
    return results


if __name__ == "__main__":
    told = globals()[sys.argv[1]](sys.argv[2])
    if atomo.train.world()[0] == 0:
        print("told", json.dumps(told))
