# SPDX-License-Identifier: Apache-2.0
"""A run in this process, and a job: a file with all that the processes of a run need."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy

from atomo import Error, _atomo_train, _own, _tool

from ._model import Model

try:
    import cloudpickle
except ImportError:
    cloudpickle = None

_FIGURES = ("accuracy", "loss", "top5", "training_accuracy", "steps", "seconds", "bytes_per_step", "ratio", "interrupted", "ms")


class Failed(RuntimeError):
    """A run that ended early: a process died, or raised; the message has what the processes said, tracebacks and ranks.
    `job`: its name at the standing worker that has it, else None."""

    def __init__(self, message: str, job: str | None = None) -> None:
        super().__init__(message)
        self.job = job

_TEST_BATCH = 100  # samples
GOES_ON = "the same call with resume=True goes on"


@dataclass
class Job:
    """`arguments` are options of atomo-train, as its command line has them."""

    arguments: list[str]
    model: Model
    out: str
    plot: bool

    def write(self, path: Path) -> None:
        """Where modules are, then the job and the codecs of one's own. Raises `atomo.Error` for what cannot be pickled."""
        content = (self, _own.registrations())
        try:
            body = (cloudpickle or pickle).dumps(content)
        except Exception as error:
            hint = "" if cloudpickle else "; pip install cloudpickle takes functions and classes of any kind"
            raise Error(f"run: model, data or a codec cannot be sent to other processes: {error}{hint}") from error
        if cloudpickle is None and b"__main__" in body:
            raise Error("run: model, data or a codec is defined in the script itself: "
                        "put it into a module, or pip install cloudpickle")
        places = [os.path.abspath(place) for place in sys.path]
        partial = path.with_suffix(f".part{os.getpid()}")
        partial.write_bytes(pickle.dumps(places) + body)
        partial.replace(path)

    def with_options(self, arguments: list[str]) -> Job:
        """With other options in place of those of the same name."""
        names = {argument.partition("=")[0] for argument in arguments}
        kept = [argument for argument in self.arguments if argument.partition("=")[0] not in names]
        outs = [argument.partition("=")[2] for argument in arguments if argument.startswith("--out=")]
        return Job([*kept, *arguments], self.model, outs[-1] if outs else self.out, self.plot)

    @staticmethod
    def read(path: Path) -> Job:
        """Runs code of that file."""
        with path.open("rb") as file:
            places = pickle.load(file)
            sys.path += [place for place in places if place not in sys.path]
            job, codecs = pickle.load(file)
        _own.register_all(codecs)
        return job


def is_in_world() -> bool:
    """Whether mpirun, or another launcher of MPI, started this process."""
    return any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"))


@functools.cache
def world() -> tuple[int, int]:
    """This process's number, and how many there are. Starts MPI, which ends with the interpreter; not after an exception:
    the others would be waited for, so the launcher has to end them."""
    failed = []
    before = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):  # of which all processes know
            failed.append(error)
        before(kind, error, trace)

    sys.excepthook = note
    atexit.register(lambda: failed or _atomo_train.end_mpi())
    return _atomo_train.world()


def run_here(job: Job) -> dict[str, Any] | None:
    """A run of whose processes this is one. The result on rank 0, else None."""
    rank, _ = world()
    _own.show_tracebacks(True)
    try:
        outcome = _atomo_train.run(job.arguments, job.model)
    finally:
        _own.show_tracebacks(False)
    if outcome == "cannot start":
        raise Failed("the run cannot start; rank 0 has said why")
    if rank == 0 and outcome == "finished" and "--sample-scores" in job.arguments:
        write_sample_scores(job)
    if rank == 0 and job.plot:
        draw(job.out)
    if outcome == "interrupted":
        raise KeyboardInterrupt(interruption(job.out, GOES_ON) if rank == 0 else "")
    return result_of(job.out) if rank == 0 else None


def write_sample_scores(job: Job) -> None:
    """How each sample of the test is classified by the weights of the last checkpoint: `sample-scores.csv` of the run."""
    count = job.model.samples(True)
    with Path(job.out, "sample-scores.csv").open("w", encoding="utf-8") as file:
        network = job.model.network(0)
        network.load(job.out)
        file.write("sample,target,prediction,score\n")
        for first in range(0, count, _TEST_BATCH):
            numbers = numpy.arange(first, min(first + _TEST_BATCH, count), dtype=numpy.uint32)
            for number, (target, prediction, score) in zip(numbers, network.scores(numbers)):
                file.write(f"{number},{target},{prediction},{score:.6g}\n")


def draw(out: str) -> None:
    """The plot of a run, where there is matplotlib."""
    script = _tool.FOLDER / "plot_runs.py"
    if importlib.util.find_spec("matplotlib") and script.exists():
        subprocess.run([sys.executable, str(script), "--quiet", "--out", os.path.join(out, "plot.png"), out], check=False)


def _events(out: str) -> list[dict[str, Any]]:
    lines = Path(out, "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def result_of(out: str) -> dict[str, Any]:
    """What the log of a run says at its end."""
    events = _events(out)
    start = [event for event in events if event["event"] == "start"][-1]
    end = [event for event in events if event["event"] == "end"][-1]
    steps = [event for event in events if event["event"] == "step"]
    result = {name: end[name] for name in _FIGURES if name in end}
    result["bytes"] = steps[-1]["sent_bytes_per_worker"] if steps else 0
    result |= {name: start[name] for name in ("algorithm", "codec", "parameters", "workers")}
    return result | {"out": out}


def interruption(out: str, way_on: str) -> str:
    """What an interrupted run says, which has left a checkpoint in `out`, and how it is gone on with."""
    return f"interrupted after {result_of(out)['steps']} steps; {way_on}"
