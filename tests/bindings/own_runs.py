# SPDX-License-Identifier: Apache-2.0
"""The codecs of test_python_own.py, and what its ranks do."""
import threading

import numpy as np

import atomo


class Levels:
    """Levels of the largest magnitude, a byte an entry, drawn: the codec of docs/own-codec.md in NumPy."""

    unbiased = averages_over_workers = fixed_size = True
    bias_bound = 1e-5
    threads = set()

    def __init__(self, levels: int = 8):
        self.levels = np.float32(levels)

    def max_bytes(self, shape):
        return 4 + int(np.prod(shape))

    def encode(self, array, key):
        Levels.threads.add(threading.get_ident())
        largest = np.abs(array).max()
        up = (atomo.draws(key, array.shape) >> 8).astype(np.float32) * np.float32(2.0**-24)
        level = np.floor(array / largest * self.levels + up) if largest > 0 else np.zeros(array.shape)
        return np.float32(largest).tobytes() + (level.astype(np.int64) + 128).astype(np.uint8).tobytes()

    def decode(self, body, shape):
        if len(body) != self.max_bytes(shape):
            raise ValueError("a body of another length")
        levels = np.frombuffer(body, np.uint8, offset=4).astype(np.float32) - 128
        return (levels * (np.frombuffer(body, "<f4", 1)[0] / self.levels)).reshape(shape)


def register_levels():
    if "levels" not in [row.name for row in atomo.codecs()]:
        atomo.register("levels", Levels, keys={"levels": range(1, 128)}, summary="a test's")


def train(rank, ranks, policy, **options):
    import ddp_runs

    register_levels()
    return ddp_runs.train(rank, ranks, policy, **options)
