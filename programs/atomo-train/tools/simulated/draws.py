# SPDX-License-Identifier: Apache-2.0
"""The order of samples, drawn as the trainer draws it (learning/data_order.cpp): C++'s seed_seq and mt19937_64."""

import functools

import numpy

_WORD = 0xFFFFFFFF
_SIZE, _MIDDLE = 312, 156  # of mt19937_64's state


def seed_words(seeds, count):
    """What std::seed_seq(seeds).generate fills `count` words with; C++20, [rand.util.seedseq]."""
    words, s = [0x8B8B8B8B] * count, len(seeds)
    t = 11 if count >= 623 else 7 if count >= 68 else 5 if count >= 39 else 3 if count >= 7 else (count - 1) // 2
    p = (count - t) // 2
    q, most = p + t, max(s + 1, count)

    def mixed(x):
        return x ^ x >> 27

    for k in range(most):
        at, next_p, next_q = k % count, (k + p) % count, (k + q) % count
        first = 1664525 * mixed(words[at] ^ words[next_p] ^ words[(k - 1) % count]) & _WORD
        more = s if k == 0 else at + seeds[k - 1] if k <= s else at
        second = first + more & _WORD
        words[next_p] = words[next_p] + first & _WORD
        words[next_q] = words[next_q] + second & _WORD
        words[at] = second
    for k in range(most, most + count):
        at, next_p, next_q = k % count, (k + p) % count, (k + q) % count
        third = 1566083941 * mixed(words[at] + words[next_p] + words[(k - 1) % count] & _WORD) & _WORD
        fourth = third - at & _WORD
        words[next_p] ^= third
        words[next_q] ^= fourth
        words[at] = fourth
    return words


def numbers(seeds, count):
    """The first `count` numbers of std::mt19937_64 seeded by std::seed_seq(seeds), as integers."""
    words = seed_words(seeds, 2 * _SIZE)
    state = numpy.array([low | high << 32 for low, high in zip(words[::2], words[1::2])], numpy.uint64)
    drawn = []
    while sum(map(len, drawn)) < count:
        state = _next(state)
        drawn.append(_tempered(state))
    return numpy.concatenate(drawn)[:count].tolist() if drawn else []


def _next(state):
    upper, lower = numpy.uint64(0xFFFFFFFF80000000), numpy.uint64(0x7FFFFFFF)

    def twisted(high, low, other):
        x = high & upper | low & lower
        return other ^ x >> numpy.uint64(1) ^ (x & numpy.uint64(1)) * numpy.uint64(0xB5026F5AA96619E9)

    new = state.copy()
    new[:_MIDDLE] = twisted(state[:_MIDDLE], state[1:_MIDDLE + 1], state[_MIDDLE:])
    new[_MIDDLE:-1] = twisted(state[_MIDDLE:-1], state[_MIDDLE + 1:], new[:_MIDDLE - 1])
    new[-1:] = twisted(state[-1:], new[:1], new[_MIDDLE - 1:_MIDDLE])
    return new


def _tempered(x):
    x = x ^ x >> numpy.uint64(29) & numpy.uint64(0x5555555555555555)
    x = x ^ x << numpy.uint64(17) & numpy.uint64(0x71D67FFFEDA60000)
    x = x ^ x << numpy.uint64(37) & numpy.uint64(0xFFF7EEE000000000)
    return x ^ x >> numpy.uint64(43)


@functools.lru_cache(maxsize=8)
def epoch_order(samples, seed, epoch):
    """A permutation of all samples."""
    order = list(range(samples))
    draws = numbers((seed & _WORD, seed >> 32, epoch, 0), max(samples - 1, 0))
    for i, draw in zip(range(samples, 1, -1), draws):
        j = draw % i
        order[i - 1], order[j] = order[j], order[i - 1]
    return numpy.array(order, numpy.int64)


def order_of(samples, steps, workers, batch, seed):
    """The samples of every step and worker: steps x workers x batch. Workers share an epoch's permutation."""
    a_step = workers * batch
    an_epoch = samples // a_step
    if an_epoch == 0:
        raise ValueError(f"a step of {workers} workers with --batch {batch} needs {a_step} samples, the training set has {samples}")
    epochs = -(-steps // an_epoch)
    rows = [epoch_order(samples, seed, epoch)[:an_epoch * a_step].reshape(an_epoch, workers, batch) for epoch in range(epochs)]
    return numpy.concatenate(rows)[:steps]
