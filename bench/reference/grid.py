# SPDX-License-Identifier: Apache-2.0
"""Coordinates: entries rounded at random to a grid step."""
import math

import numpy as np

SEGMENT = 32768


def _gap(listed, entries):
    stay = 1 - min(max(listed / entries, 1e-9), 1)
    return min(36, *(k + 1 / (1 - stay**2**k) for k in range(16)))


def _rice(counts, escape=49):
    """Bits of counts[v] values v under the best parameter; `escape` is what values far above the others cost."""
    value, mean = np.arange(len(counts)), max(1.0, counts @ np.arange(len(counts)) / max(counts.sum(), 1e-9))
    around = range(max(int(math.log2(mean)) - 5, 0), int(math.log2(mean)) + 3)
    return min(counts @ np.where(value >> k < 20, 1 + k + (value >> k), escape) for k in around)


class Grid:
    """One layer. Magnitudes are sorted, so that sums at any step are differences of prefix sums."""

    def __init__(self, x):
        self.x = np.abs(x.ravel())
        self.sorted = np.sort(self.x)
        self.sums, self.squares = (np.append(0, np.cumsum(self.sorted**k)) for k in (1, 2))

    def at(self, step, exact=False):
        """(bits, variance). The size follows from the expected counts of levels or, when `exact`, from a draw."""
        top = int(min(self.sorted[-1] / step, 2e6)) + 1
        edge = np.searchsorted(self.sorted, np.arange(top + 1) * step)
        edge[-1], level = len(self.x), np.arange(top)
        count, sums, squares = (np.diff(one) for one in (edge, self.sums[edge], self.squares[edge]))
        up = np.clip(sums / step - level * count, 0, count)
        variance = (sums * step * (2 * level + 1) - squares - count * level * (level + 1.0) * step**2).sum()
        levels = np.append(count - up, 0) + np.append(0, up)
        return self.drawn_bits(step) if exact else self.expected_bits(levels), max(variance, 0.0)

    def expected_bits(self, levels):
        """The best of two lists, one, or dense levels, were entries in no order."""
        n, nonzero, large = len(self.x), levels[1:].sum(), levels[2:].sum()
        written, ones = min(nonzero, math.ceil(n / SEGMENT)), nonzero - large
        one_list = (nonzero + written) * _gap(nonzero, n) + _rice(levels[1:])
        two_lists = (ones + written) * _gap(ones, n) + (large + written) * _gap(large, n) + _rice(levels[2:])
        return min(_rice(levels), one_list, two_lists) + nonzero + 36 * written

    def drawn_bits(self, step):
        """Of one draw as FORMAT.md has it: systematic in chunks of 4,096, visited in the order 1597 i."""
        at, order = np.pad(self.x / step, (0, -len(self.x) % 4096)).reshape(-1, 4096), np.arange(4096) * 1597 % 4096
        whole, part = np.floor(at), np.cumsum((at - np.floor(at))[:, order], axis=1)
        carries = np.floor(part + np.random.default_rng(0).random((len(at), 1)))
        whole[:, order] += np.diff(carries, axis=1, prepend=0)
        levels, bits = whole.ravel()[:len(self.x)].astype(int), 0.0
        for level in (levels[i:i + SEGMENT] for i in range(0, len(levels), SEGMENT)):
            gaps = [_rice(np.bincount(np.diff(np.flatnonzero(of), prepend=-1, append=len(of)) - 1), 36)
                    for of in (level > 0, level == 1, level > 1)]
            dense, one, two = (_rice(np.bincount(level[level >= least] - least, minlength=1)) for least in (0, 1, 2))
            bits += 32 + (level.any() and min(dense, gaps[0] + one, gaps[1] + gaps[2] + two) + (level > 0).sum() + 4)
        return bits
