# SPDX-License-Identifier: Apache-2.0
"""The weights of a checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import torch

from atomo import Error

CHECKPOINT = "checkpoint"


def path_of(run: str | os.PathLike[str], step: int | None = None) -> Path:
    """A run's last checkpoint, or that after `step` steps; a file is its own."""
    path = Path(run)
    if path.is_file() and step is None:
        return path
    return path / (CHECKPOINT + ("" if step is None else f"-step{step}") + ".safetensors")


def load(run: str | os.PathLike[str], model: torch.nn.Module | None = None, *,
         step: int | None = None) -> dict[str, torch.Tensor]:
    """The weights of a run, by the names of the model's parameters; of a run whose nodes have weights of their own, their mean.

    `run`: the folder of `run(out=...)`, or a checkpoint. `step`: one of the series that `save_every` left, by the steps that
    were done; None: the last. `model`: takes them, and the mean of the workers' running statistics, in place. Reads the whole
    file. Raises `atomo.Error` for a file that cannot be read or does not fit the model.
    """
    path = path_of(run, step)
    try:
        raw = path.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:8 + size])
    except (OSError, ValueError) as error:
        raise Error(f"load: cannot read '{path}': {error}") from error
    weights, statistics = {}, []
    for name, row in header.items():
        if name == "__metadata__" or row["dtype"] != "F32":
            continue
        begin, end = row["data_offsets"]
        values = np.frombuffer(raw, "<f4", (end - begin) // 4, 8 + size + begin)
        if name.startswith("weights."):
            weights[name.removeprefix("weights.")] = torch.tensor(values).view(row["shape"])
        elif name.startswith("worker") and name.endswith(".buffers"):
            statistics.append(values)
    if model is not None:
        _fill(path, model, weights, np.mean(statistics, axis=0) if statistics else np.empty(0))
    return weights


def statistics_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """The buffers that checkpoints have: of floating point, and counts of batches, which f32 holds up to 2^24."""
    return [buffer for buffer in module.buffers() if buffer.is_floating_point() or buffer.dim() == 0]


def _fill(path: Path, model: torch.nn.Module, weights: dict[str, torch.Tensor], statistics: np.ndarray) -> None:
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    if shapes != {name: tuple(value.shape) for name, value in weights.items()}:
        raise Error(f"load: the layers of '{path}' are not those of {type(model).__name__}")
    buffers = statistics_of(model)
    if sum(buffer.numel() for buffer in buffers) != len(statistics):
        raise Error(f"load: the statistics in '{path}' are not those of {type(model).__name__}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
        at = 0
        for buffer in buffers:
            buffer.copy_(torch.tensor(statistics[at:at + buffer.numel()]).view(buffer.shape))
            at += buffer.numel()
