# SPDX-License-Identifier: Apache-2.0
"""What an encode costs beside an exact SVD of all layers and a step of PowerSGD, all on one thread of one process a time."""
import statistics
import time

import numpy as np

POWER_RANK = 4


class PowerSgd:
    """One worker's part of a step of PowerSGD (arXiv 1905.13727) with error feedback, f32, warm start, no network.

    Tensors of fewer than two dimensions are sent as they are and cost nothing here.
    """

    def __init__(self, tensors, rank):
        views = [x.reshape(x.shape[0], -1) for x in tensors.values() if x.ndim > 1]
        self.views = [np.ascontiguousarray(view, np.float32) for view in views]
        self.errors = [np.zeros_like(view) for view in self.views]
        random = np.random.default_rng(0)
        self.right = [random.standard_normal((view.shape[1], min(rank, *view.shape)), np.float32) for view in self.views]
        self.sums = [np.empty_like(view) for view in self.views]
        self.decoded = [np.empty_like(view) for view in self.views]

    def step(self):
        for i, view in enumerate(self.views):
            matrix = np.add(view, self.errors[i], out=self.sums[i])
            left = orthonormal(matrix @ self.right[i])
            self.right[i] = matrix.T @ left
            np.matmul(left, self.right[i].T, out=self.decoded[i])
            np.subtract(matrix, self.decoded[i], out=self.errors[i])


def orthonormal(columns):
    """Gram-Schmidt, in place: few columns, so this costs less than a QR."""
    for k in range(columns.shape[1]):
        column = columns[:, k]
        if k:
            column -= columns[:, :k] @ (columns[:, :k].T @ column)
        norm = np.sqrt(column @ column)
        column *= 1 / norm if norm > 0 else 0
    return columns


def exact_svd(tensors):
    """LAPACK's gesdd, f32, of the view dim0 x rest of every layer that has one."""
    for x in tensors.values():
        if x.ndim > 1 and min(x.shape[0], x.size // x.shape[0]) > 1:
            np.linalg.svd(x.reshape(x.shape[0], -1), full_matrices=False)


def milliseconds(work):
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def measure(tensors, specs, encode_ms, rounds, progress):
    """[{what, ms, least, most, of_svd, of_powersgd}]: medians of `rounds`, in each of which all take their turn.

    `encode_ms(spec)` measures an encode of all layers.
    """
    power = PowerSgd(tensors, POWER_RANK)
    power.step()
    works = {"exact SVD of all layers (LAPACK)": lambda: milliseconds(lambda: exact_svd(tensors)),
             f"PowerSGD rank {POWER_RANK}, a step": lambda: statistics.median(milliseconds(power.step) for _ in range(5))}
    works |= {spec: lambda spec=spec: encode_ms(spec) for spec in specs}
    times = {what: [] for what in works}
    for number in range(rounds):
        for what, work in works.items():
            progress(f"costs, round {number + 1} of {rounds}: {what}")
            times[what].append(work())
    middle = {what: statistics.median(each) for what, each in times.items()}
    svd, step = list(middle.values())[:2]
    return [{"what": what, "ms": middle[what], "least": min(each), "most": max(each), "of_svd": middle[what] / svd,
             "of_powersgd": middle[what] / step} for what, each in times.items()]
