# SPDX-License-Identifier: Apache-2.0
"""Trains a model of one's own over MPI with the algorithms of atomo-train: parameter servers, all-reduce, graphs of nodes.

    import atomo.train
    result = atomo.train.run(make_model, train_set, test_set, nodes=4, algorithm="allgather", codec="atomo:bits=0.25", epochs=2)
    print(result["accuracy"], result["bytes"])
    atomo.train.load(result["out"], model)

The model is a `torch.nn.Module` or a function that makes one, the data are map-style data sets. The trainer's loops, in
C++, call them for gradients, each layer's as soon as back-propagation has it. `run` starts the processes by mpirun; in a
script that mpirun started, every process calls `run` and is one of them.
"""

from __future__ import annotations

import json
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atomo import Error

try:
    import torch
except ImportError as error:
    raise ImportError("atomo.train needs PyTorch: pip install 'atomo[train]' installs it") from error
try:
    from atomo import _atomo_train
except ImportError as error:
    raise ImportError(
        "this build of atomo has no trainer, because MPI was not there when it was built; on Debian and Ubuntu "
        "apt-get install openmpi-bin libopenmpi-dev libcli11-dev nlohmann-json3-dev zlib1g-dev, "
        "then build atomo again (pip install --force-reinstall --no-deps .)"
    ) from error

from atomo._own import share_with

from . import _workers
from ._checkpoints import load, path_of
from ._connection import hosts_of, secret_of
from ._job import GOES_ON, Failed, Job, interruption, is_in_world, result_of, run_here, world
from ._launch import launch
from ._model import Model

share_with(_atomo_train)

__all__ = ["Failed", "algorithms", "cancel", "collect", "jobs", "load", "run", "workers"]

_JOB = "job.pkl"
_NO_TRAINING = ("check", "help", "list")  # options with which atomo-train says something and ends
_GOES_ON_HERE = "its checkpoint is in out: the same call with resume=True and without workers goes on, on this machine"


def algorithms() -> list[dict[str, Any]]:
    """The algorithms, a row each: `name`, `family`, `what` it does, its `origin` and what faults it bears."""
    return json.loads(_atomo_train.algorithms())


def _argument(name: str, value: Any) -> list[str]:
    """An option of atomo-train."""
    option = "--" + name.replace("_", "-")
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, (list, tuple)):
        value = ",".join(map(str, value))
    return [f"{option}={os.fspath(value) if isinstance(value, os.PathLike) else value}"]


def _integer(name: str, value: Any, least: int, bound: int, more: str = "") -> int:
    """A number from `least` to below 2**`bound`, of Python or of NumPy."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number < 2**bound:
        raise Error(f"{name} is {value!r}: it must be an integer from {least} to 2**{bound} - 1{more}")
    return number


def _words_of(launcher: Any) -> list[str]:
    if isinstance(launcher, Sequence) and not isinstance(launcher, (str, bytes)):
        if all(isinstance(word, (str, os.PathLike)) for word in launcher):
            return [os.fsdecode(word) for word in launcher]
    raise Error(f"launcher is {launcher!r}: a list of words for mpirun is expected, such as ['--hostfile', 'hosts']")


def _policy(policy: str | Mapping[str, str] | None) -> str | None:
    if policy is None or isinstance(policy, str):
        return policy
    return "".join(f"{pattern} = {codec}\n" for pattern, codec in policy.items())


def run(
    model: torch.nn.Module | Callable[[], torch.nn.Module],
    data: Any,
    test: Any,
    *,
    nodes: int | None = None,
    algorithm: str = "allgather",
    codec: str | None = None,
    policy: str | Mapping[str, str] | None = None,
    loss: Callable[[Any, Any], torch.Tensor] = torch.nn.functional.cross_entropy,
    epochs: int | None = None,
    steps: int | None = None,
    batch: int = 32,
    optimizer: str | Callable[..., torch.optim.Optimizer] = "sgd",
    lr: float = 0.05,
    schedule: str | Callable[..., Any] | None = None,
    collate: Callable[[list], Any] | None = None,
    seed: int = 1,
    out: str | os.PathLike[str] = "run",
    resume: bool | str | os.PathLike[str] = False,
    plot: bool = True,
    launcher: Sequence[str] = (),
    workers: str | os.PathLike[str] | None = None,
    secret: str | os.PathLike[str] | None = None,
    wait: bool = True,
    **options: Any,
) -> dict[str, Any] | str | None:
    """Trains `model` in `nodes` processes, and returns how it ended.

    - `model`: a module, which is copied and left as it is, or a function that makes one, called in every process after torch,
      random and numpy.random were seeded. Its float32 parameters that require a gradient are trained, on the CPU.
    - `data`, `test`: data sets with `__len__` and `__getitem__`, or functions that make them, called in every process. A
      sample is (inputs..., target). Whole numbers as targets are classes, and a test tells accuracy beside the loss.
    - `nodes`: processes that train; those that serve come on top. In a script that mpirun started it is left out.
    - `algorithm`: a name of `algorithms()`; `codec`: one spec for every layer; `policy`: a codec for each, {pattern: spec}
      or its text. Codecs that were registered in Python go along.
    - `loss`: of outputs and targets, a mean over the batch. `collate`: samples to a batch; default: torch's.
    - `epochs` or `steps` say how long; `batch` is a node's. In a step torch, random and numpy.random draw from `seed`, the
      step and the node, so that a resumed run goes on to the same losses.
    - `optimizer`: a name of atomo-train's, at `lr`; or a function of parameters that makes torch's, with a rate of its own.
      It is called where a step is taken, at a server for its layers, with parameters that have no names.
    - `schedule`: a name of atomo-train's (default: cosine); for an optimiser of torch, which it multiplies the rates of, also
      a function of the optimiser that makes torch's, stepped once a step.
    - `out`: the folder of the run: job, log, tables, plot and checkpoints, those of `save_every` one beside the other.
      `resume`: True goes on from the checkpoint in it, a path from that one. `plot`: draw it, where there is matplotlib.
    - `launcher`: more words for mpirun, `("--hostfile", "hosts")`. `workers`: a host file of standing workers, the first of
      which that has no job runs this one; `secret`: the file of the secret that they have. Where the connection breaks, `Failed`
      has the job's name as `job`, which `collect` takes. `wait`: False returns that name once the job has begun there.
    - `sample_scores=True` leaves `sample-scores.csv` in `out` at the end: of each sample of the test its number, target,
      prediction and the probability of that by the softmax of the outputs (`score`), of the last checkpoint. For one class a sample.
    - `options`: any other option of atomo-train, `local_steps=8` for `--local-steps 8`, True for a flag.

    Returns a dictionary: `loss` and, where there are classes, `accuracy` of the last test, `steps`, `seconds`, `bytes` (of
    gradients that a worker sent), `bytes_per_step`, `ratio`, `ms`, `parameters`, `workers`, `algorithm`, `codec`, `out`; in a
    script that mpirun started on rank 0, elsewhere None. Waits for the end. Raises `atomo.Error` for what does not go
    together, `Failed` when a process dies or raises (in a script that mpirun started the job is ended, after a traceback with
    its rank), and KeyboardInterrupt on Ctrl-C, once a checkpoint was saved, which says how the run is gone on with.
    """
    own_optimiser = None if isinstance(optimizer, str) else optimizer
    own_schedule = None if schedule is None or isinstance(schedule, str) else schedule
    if not wait and workers is None:
        raise Error("wait: False goes with workers, who keep the job")
    if secret is not None and workers is None:
        raise Error("secret: goes with workers, a host file of those who have it")
    for name in _NO_TRAINING:
        if options.get(name):
            raise Error(f"{name}: leave it out, a run trains; in a shell atomo-train --{name} gives the answer")
    if nodes is not None:
        nodes = _integer("nodes", nodes, 1, 31, ", processes that train")
    seed = _integer("seed", seed, 0, 64)
    launcher = _words_of(launcher)
    if own_schedule is not None and own_optimiser is None:
        raise Error("schedule: a function goes with an optimizer of torch; for one by name take a name")
    folder = os.fspath(out)
    named = {
        "algorithm": algorithm,
        "codec": codec,
        "policy": _policy(policy),
        "epochs": epochs,
        "steps": steps,
        "batch": batch,
        "optimizer": None if own_optimiser else optimizer,
        "lr": lr,
        "schedule": "constant" if own_schedule else schedule,
        "seed": seed,
        "out": folder,
        "resume": folder if resume is True else resume,
    }
    options.setdefault("keep_checkpoints", bool(options.get("save_every")))
    arguments = [word for name, value in (named | options).items() for word in _argument(name, value)]
    job = Job(arguments,
              Model(model, data, test, loss=loss, collate=collate, optimiser=own_optimiser, schedule=own_schedule,
                    split=options.get("split", "iid"), seed=seed),
              folder, plot)
    wrong, servers = _atomo_train.check(arguments, job.model.optimiser_name)
    if is_in_world():
        if nodes is not None and nodes + servers != world()[1]:
            raise Error(f"nodes: {nodes} and {servers} to serve are {nodes + servers} processes, mpirun started {world()[1]}")
        return run_here(job)
    if wrong:
        raise Error(f"run: {wrong}")
    if nodes is None:
        raise Error("nodes: say how many processes are to train")
    if workers is not None and resume:
        raise Error("resume: a worker has a folder of its own for each job; begin with init=, a checkpoint")
    hosts, word = (hosts_of(workers), secret_of(secret or "")) if workers is not None else ([], b"")
    os.makedirs(job.out, exist_ok=True)
    file = Path(job.out, _JOB)
    job.write(file)
    if workers is not None:
        name = _workers.submit(file.read_bytes(), nodes + servers, launcher, Path(job.out), hosts, word, wait)
        if not wait:
            return name
    else:
        shown = ["--progress=on"] if sys.stdout.isatty() else []
        launch(["-m", "atomo.train", str(file), *shown], nodes + servers, launcher)
    result = result_of(job.out) | {"out": job.out}
    if result["interrupted"]:
        raise KeyboardInterrupt(interruption(job.out, GOES_ON if workers is None else _GOES_ON_HERE))
    return result


def jobs(*, workers: str | os.PathLike[str], secret: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """What the standing workers of a host file run and keep, the oldest first at each: `job` (its name), `state` ("runs",
    "ended", "failed"), `failure`, `processes`, `began` and `ended` (ISO 8601), `folder` there, `worker`.

    Raises `atomo.Error` where none answers; those that do not are named on standard error.
    """
    return _workers.jobs(hosts_of(workers), secret_of(secret))


def workers(*, workers: str | os.PathLike[str], secret: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The standing workers of a host file, in its order: `worker` (the address), `version`, `cores`, `job` (the name of the one that
    runs; None where it has none).

    Raises `atomo.Error` where none answers; those that do not, and those of another version, are named on standard error.
    """
    return _workers.workers(hosts_of(workers), secret_of(secret))


def collect(job: str, *, workers: str | os.PathLike[str], secret: str | os.PathLike[str],
            out: str | os.PathLike[str] = "run") -> dict[str, Any]:
    """Brings what is left of a job of standing workers to the folder `out`, and returns what `run` would have; `interrupted`
    where it was cancelled.

    Prints what the job printed, from its begin. Waits for its end while it runs; Ctrl-C leaves it running. May be called any number
    of times, by any number of clients. Raises `atomo.Error` where no worker knows the job or `out` holds a run, `Failed` where
    the job failed, once its files are there, or where the connection breaks, with nothing in `out`.
    """
    folder = os.fspath(out)
    _workers.collect(job, Path(folder), hosts_of(workers), secret_of(secret))
    return result_of(folder) | {"out": folder}


def cancel(job: str, *, workers: str | os.PathLike[str], secret: str | os.PathLike[str], now: bool = False) -> None:
    """Asks a job of standing workers to save a checkpoint and to end, or ends it at once (`now`). Does not wait for the end, which
    `collect` does. Raises `atomo.Error` where no worker knows the job, or it has ended."""
    _workers.cancel(job, now, hosts_of(workers), secret_of(secret))
