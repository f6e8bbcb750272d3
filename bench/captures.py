# SPDX-License-Identifier: Apache-2.0
"""Gradients to measure on: trained and captured with atomo-train, or read from a file."""
import json
import os
import pathlib
import shutil
import subprocess

import numpy as np

# One worker and a server; the step whose gradient is kept, and what leads there.
MODELS = {
    "lenet": {"at": 100, "options": ["--batch", "32"]},
    "resnet18": {"at": 40, "options": ["--batch", "256"]},
    "transformer": {"at": 150, "options": ["--batch", "64", "--optimizer", "adamw", "--lr", "0.001"]},
}


def read_tensors(path):
    """{name: f32 array} of a .npz, or of a .safetensors of F32 tensors, in the file's order."""
    path = pathlib.Path(path)
    if path.suffix == ".npz":
        with np.load(path) as file:
            return {name: file[name].astype(np.float32) for name in file.files}
    if path.suffix != ".safetensors":
        raise ValueError(f"{path}: gradients are read from .npz and .safetensors")
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    entries = {name: entry for name, entry in json.loads(data[8:start]).items() if name != "__metadata__"}
    tensors = {}
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        if entry["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {entry['dtype']}, F32 is needed")
        begin, end = (start + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], "<f4").reshape(entry["shape"])
    return tensors


def capture(model, trainer, folder, progress):
    """Trains `model` up to its step and returns the path of the gradient of its only worker."""
    at = MODELS[model]["at"]
    shutil.rmtree(folder, ignore_errors=True)
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "-n", "2",
               trainer, "--json", "--model", model, "--steps", str(10 * at), "--stop-at", str(at + 1),
               "--dump-gradients", str(folder), "--at", str(at), *MODELS[model]["options"]]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            event = json.loads(line)
            if event.get("event") == "step":
                progress(f"training {model}: step {event['step'] + 1} of {at + 1}, loss {event['loss']:.3f}")
        said = process.stderr.read()
    found = sorted(pathlib.Path(folder).glob("*-worker*.safetensors"))
    if process.returncode != 0 or len(found) != 1:
        raise RuntimeError(f"{model}: atomo-train left no gradient: {said.strip()[-300:]}")
    return found[0]
