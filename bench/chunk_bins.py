#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What two-bit values of chunked top-k cost and lose: bins as SparseLoCo's published code cuts them, and bins of least squared error.

64 of each 4,096 entries are kept, of the four synthetic sets of tests/unit/test_chunk_topk.cpp (other draws). Bits a parameter are the
entropy of places and values together; the error is that of the kept values, as a share of their squares. Both decode to the mean of a bin;
bins are of the whole set here, of a group of a thousand values in messages.
"""
import argparse
import math

import numpy as np

CHUNK, KEPT = 4096, 64


def samples(n):
    """Yields (name, entries)."""
    draw, i = np.random.default_rng(11), np.arange(n)
    yield "normal", draw.standard_normal(n)
    yield "laplace", draw.laplace(size=n)
    yield "student", draw.standard_t(3, size=n)
    rows = np.exp2(i // 1024 * 2654435761 % 64 / 16) * np.where(i % 1024 % 41 == 0, 3, 1)
    yield "rows", rows * draw.standard_normal(n)


def kept_of(x):
    chunks = x.reshape(-1, CHUNK)
    places = np.argpartition(-np.abs(chunks), KEPT, axis=1)[:, :KEPT]
    return np.take_along_axis(chunks, places, 1).ravel()


def published(values):
    """tplr-ai/templar at c2397ac5: four bins of 1.5 standard deviations each, about the mean."""
    return np.clip(np.round((values - values.mean()) / (1.5 * values.std(ddof=1)) + 2), 0, 3).astype(int)


def least_squares(values):
    """The sign, and one of two bins of magnitudes."""
    ascending = np.sort(np.abs(values))
    count, sums = np.arange(1, len(ascending)), np.cumsum(ascending)
    explained = sums[:-1] ** 2 / count + (sums[-1] - sums[:-1]) ** 2 / (len(ascending) - count)
    return 2 * (values < 0) + (np.abs(values) > ascending[explained.argmax()])


def cost(values, bins):
    """Bits a parameter, and the share of the values' squares that is lost."""
    counts = np.bincount(bins, minlength=4)
    share = counts[counts > 0] / len(values)
    places = (math.lgamma(CHUNK + 1) - math.lgamma(KEPT + 1) - math.lgamma(CHUNK - KEPT + 1)) / math.log(2) / KEPT
    means = np.bincount(bins, weights=values, minlength=4) / np.maximum(counts, 1)
    bits = (places - share @ np.log2(share)) * KEPT / CHUNK
    return bits, np.square(values - means[bins]).sum() / np.square(values).sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=2**22, help="of a set; a multiple of 4096")
    entries = parser.parse_args().entries
    print(f"{'entries':10} {'published':>10} {'error':>7} {'least sq.':>10} {'error':>7}")
    costs = []
    for name, x in samples(entries):
        values = kept_of(x)
        costs.append([*cost(values, published(values)), *cost(values, least_squares(values))])
        print(f"{name:10} {costs[-1][0]:10.4f} {costs[-1][1]:7.4f} {costs[-1][2]:10.4f} {costs[-1][3]:7.4f}")
    mean = np.mean(costs, axis=0)
    print(f"{'mean':10} {mean[0]:10.4f} {'':7} {mean[2]:10.4f}")


if __name__ == "__main__":
    main()
