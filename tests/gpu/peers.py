#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times what PyTorch takes on a GPU for work that the codecs also do: PowerSGD's arithmetic and top-k.

usage: peers.py --out FILE.json [--device DEVICE]

PowerSGD is one step of Vogels et al. 2019, algorithm 1, on one worker: the error added, two products, a QR
decomposition, the product subtracted, for every matrix of a ResNet-50. Medians of 15 runs between two events; the
figures are in the shape of Google Benchmark's.
"""
import argparse
import json
import statistics
import sys
import time

import torch

SAMPLES = 15


def resnet50_matrices():
    """Returns the shapes of ResNet-50's convolutions and head as matrices."""
    shapes, width = [(64, 3 * 49)], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for block in range(blocks):
            shapes += [(inner, width), (inner, 9 * inner), (4 * inner, inner)]
            if block == 0:
                shapes.append((4 * inner, width))
            width = 4 * inner
    return shapes + [(1000, width)]


def powersgd(rank, device, narrower):
    """Returns a step of PowerSGD at a rank, with its state bound."""
    shapes = [(max(rank, rows // narrower), max(rank, columns // narrower)) for rows, columns in resnet50_matrices()]
    gradients = [torch.randn(shape, device=device) for shape in shapes]
    errors = [torch.zeros(shape, device=device) for shape in shapes]
    right = [torch.randn(columns, rank, device=device) for _, columns in shapes]

    def step():
        for i, gradient in enumerate(gradients):
            matrix = gradient + errors[i]
            left = torch.linalg.qr(matrix @ right[i]).Q
            right[i] = matrix.T @ left
            errors[i] = matrix - left @ right[i].T

    return step


def top_k(count, device):
    values = torch.randn(count, device=device)
    return lambda: torch.topk(values.abs(), count // 100, sorted=False)


def copy(count, device):
    source, target = torch.randn(count, device=device), torch.empty(count, device=device)
    return lambda: target.copy_(source)


def microseconds(work, device):
    """Returns the times of SAMPLES runs after three that are not timed."""
    found = []
    for sample in range(SAMPLES + 3):
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            spent = 1e3 * begin.elapsed_time(end)
        else:
            started = time.perf_counter()
            work()
            spent = 1e6 * (time.perf_counter() - started)
        if sample >= 3:
            found.append(spent)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, metavar="FILE.json")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    device = torch.device(options.device)
    narrower, count = (1, 25_000_000) if device.type == "cuda" else (16, 100_000)
    works = {"copy_25M": copy(count, device), "topk_25M": top_k(count, device)}
    for rank in (4, 8):
        works[f"powersgd_resnet50_rank{rank}"] = powersgd(rank, device, narrower)
    figures = []
    for name, work in works.items():
        times = microseconds(work, device)
        figures.append({"name": f"torch/{name}", "us": statistics.median(times), "us_least": min(times),
                        "us_most": max(times)})
        print(f"{name:28} {figures[-1]['us']:10.1f} us")
        with open(options.out, "w", encoding="utf-8") as file:
            json.dump({"context": {"torch": torch.__version__}, "benchmarks": figures}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
