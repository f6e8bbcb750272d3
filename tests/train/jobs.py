# SPDX-License-Identifier: Apache-2.0
"""Runs of atomo-train under mpirun, over a small made-up data set in the format of MNIST.

A process that trains a network loads libtorch: 0.7 s of a processor, thirty times what one of the logistic model takes. Where a
test is of what all layers have alike, its model is that.
"""

import gzip
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import time

import numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / "programs/atomo-train/tools"
sys.path.insert(0, str(TOOLS))

from experiments.fault_jobs import process_of  # noqa: E402 (found by the line before)

TRAINER = os.environ.get("ATOMO_TRAIN", "")
LONG = os.environ.get("ATOMO_TESTS_ALL") == "1"
TRAINING, TEST = 640, 200
folder = tempfile.TemporaryDirectory()  # of all files of this process; goes when it ends


def write_idx(path, array, compress):
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    with (gzip.open if compress else open)(path + (".gz" if compress else ""), "wb") as file:
        file.write(header + array.tobytes())


def make_images(count, random):
    """Each class is a bright square somewhere else, under noise."""
    labels = random.integers(0, 10, count).astype(numpy.uint8)
    images = random.integers(0, 60, (count, 28, 28))
    for image, label in zip(images, labels):
        row, column = divmod(int(label), 4)
        image[2 + 8 * row: 8 + 8 * row, 1 + 7 * column: 7 + 7 * column] += 150
    return images.astype(numpy.uint8), labels


def make_data():
    """A folder of 640 images to train on and 200 for tests."""
    where = os.path.join(folder.name, "data")
    os.mkdir(where)
    random = numpy.random.default_rng(5)
    for prefix, count in (("train", TRAINING), ("t10k", TEST)):
        images, labels = make_images(count, random)
        write_idx(f"{where}/{prefix}-images-idx3-ubyte", images, compress=prefix == "train")
        write_idx(f"{where}/{prefix}-labels-idx1-ubyte", labels, compress=False)
    return where


def path(name):
    return os.path.join(folder.name, name)


def launch(processes, *more):
    """The beginning of a command line."""
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", *root, *more, "-n",
            str(processes), TRAINER]


class Job:
    """A run under mpirun. `processes` counts the server."""

    def __init__(self, processes, *options, data_folder=None, launcher=()):
        self.log = tempfile.mktemp(suffix=".jsonl", dir=folder.name)
        batch = () if "--batch" in options else ("--batch", "16")
        log = () if "--out" in options else ("--log", self.log)
        self.process = subprocess.Popen(
            [*launch(processes, *launcher), "--data", data_folder or data, *batch, *log, "--progress", "off",
             *map(str, options)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"})

    def end(self, seconds=120):
        """Exit status, standard output, standard error."""
        try:
            out, err = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise AssertionError(f"still running after {seconds} s:\n{out}\n{err}") from None
        return self.process.returncode, out, err

    def events(self, kind):
        if not os.path.exists(self.log):
            return []
        with open(self.log, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
        return [line for line in lines if line["event"] == kind]

    def wait_for_steps(self, steps):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if os.path.exists(self.log) and len(self.events("step")) >= steps:
                return
            if self.process.poll() is not None:
                raise AssertionError(f"ended early: {self.end()}")
            time.sleep(0.05)
        raise AssertionError("no steps within a minute")

    def process_of(self, rank):
        found = process_of(self.process, rank)
        if found is None:
            raise AssertionError(f"rank {rank} was not found")
        return found


def finished(*arguments, **keywords):
    job = Job(*arguments, **keywords)
    status, out, err = job.end()
    if status != 0:
        raise AssertionError(f"exit status {status}\n{out}\n{err}")
    return job


def losses(*arguments, **keywords):
    return [event["loss"] for event in finished(*arguments, **keywords).events("step")]


def read_safetensors(name):
    content = pathlib.Path(name).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8: 8 + length])
    tensors = {}
    for key, entry in header.items():
        if key != "__metadata__":
            begin, end = entry["data_offsets"]
            kind = {"F32": numpy.float32, "U8": numpy.uint8}[entry["dtype"]]
            tensors[key] = numpy.frombuffer(content[8 + length:][begin:end], kind).reshape(entry["shape"])
    return tensors


data = make_data()
