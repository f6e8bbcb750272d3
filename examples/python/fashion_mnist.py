# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST as arrays, from the four files that it is published as (Debian: dataset-fashion-mnist)."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

FOLDER = Path("/usr/share/datasets/fashion-mnist")
Split = tuple[np.ndarray, np.ndarray]


def load(folder: Path = FOLDER) -> tuple[Split, Split]:
    """Training and test images, float32[n, 784] of mean 0 and variance 1, and their classes, int64[n].

    Raises FileNotFoundError that says what to install.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is missing: apt-get install dataset-fashion-mnist, or name its folder (--data)"
        )
    train, test = (_split(folder, name) for name in ("train", "t10k"))
    mean, deviation = train[0].mean(), train[0].std()
    return tuple(((images - mean) / deviation, labels) for images, labels in (train, test))


def _split(folder: Path, name: str) -> Split:
    # Headers of 16 bytes (magic, count, rows, columns) and 8 (magic, count).
    with gzip.open(folder / f"{name}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return images.astype(np.float32), labels.astype(np.int64)
