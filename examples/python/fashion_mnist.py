# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST as arrays, from the four files that it is published as (Debian: dataset-fashion-mnist)."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np

FOLDER = Path("/usr/share/datasets/fashion-mnist")
Split = tuple[np.ndarray, np.ndarray]


def load(folder: str | Path = FOLDER) -> tuple[Split, Split]:
    """Training and test images, float32[n, 784] of mean 0 and variance 1, and their classes, int64[n].

    Raises FileNotFoundError that says what to install, ValueError for files that are not what their names say.
    """
    parts = ((_read_idx(folder, f"{part}-images-idx3-ubyte", 3), _read_idx(folder, f"{part}-labels-idx1-ubyte", 1))
             for part in ("train", "t10k"))
    train, test = ((images.reshape(len(images), -1).astype(np.float32), labels.astype(np.int64))
                   for images, labels in parts)
    mean, deviation = train[0].mean(), train[0].std()
    return tuple(((images - mean) / deviation, labels) for images, labels in (train, test))


def _read_idx(folder: str | Path, name: str, dimensions: int) -> np.ndarray:
    """An idx file of bytes, packed or not, as an array."""
    path, packed = Path(folder, name), Path(folder, name + ".gz")
    if not path.exists() and not packed.exists():
        raise FileNotFoundError(f"neither {path} nor {packed} is there: apt-get install dataset-fashion-mnist, or name "
                                "the folder (--data)")
    raw = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    header = np.frombuffer(raw, ">u4", 1 + dimensions) if len(raw) >= 4 * (1 + dimensions) else np.zeros(1)
    shape = tuple(int(extent) for extent in header[1:])
    if header[0] != 0x800 + dimensions or len(raw) != header.nbytes + math.prod(shape):
        raise ValueError(f"{path} is not an idx file of bytes with {dimensions} dimensions")
    return np.frombuffer(raw, np.uint8, offset=header.nbytes).reshape(shape)
