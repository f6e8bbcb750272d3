# SPDX-License-Identifier: Apache-2.0
"""The trainer's optimisers (learning/optimiser.cpp, adam.cpp), of arrays copies x parameters.

`step` reads the numbers of the step that `columns` has made, and waits for nothing, so that it can be replayed.
"""

import math

import torch

from simulated.options import TOLD

EPSILON = 1e-8
LEAST_SIDE = 4  # of a matrix that is factored
LEAST_SHARE = 1 / 1024
LEAST_ROOT = 1 / 1024  # of a matrix's root mean square
LEAST_RATE = 1 / 1024  # of the highest, that a memory has


def learning_rates(options):
    """The schedule behind a linear rise (learning/schedule.cpp)."""
    def rise(step):
        return (step + 1) / options.warmup if step < options.warmup else 1.0

    return [rise(step) * options.lr * part for step, part in enumerate(_left(options))]


def rates_in_memory(options):
    """What a memory has of each step's rate: its part of the highest one, as if it did not rise at first."""
    return [max(part, LEAST_RATE) for part in _left(options)]


def _left(options):
    """What is left of the highest rate at each step: half a cosine, or a line from a share of the run on."""
    if options.schedule == "trapezoid":
        return [min(1.0, (1 - step / options.steps) / (1 - options.decay_at)) for step in range(options.steps)]
    return [0.5 * (1 + math.cos(math.pi * step / options.steps)) for step in range(options.steps)]


def columns(options):
    """What an optimiser needs of each step."""
    steps = range(options.steps)
    every = options.squares_every
    return {"lr": learning_rates(options), "first": [1 - options.beta1 ** (t + 1) for t in steps],
            "second": [1 - options.beta2 ** (t + 1) for t in steps],
            "told": [1 - options.beta2 ** (every * (t // every + 1)) for t in steps]}


class Matrix:
    """A layer as its first dimension by all others."""

    def __init__(self, name, offset, shape):
        self.name, self.offset, self.shape = name, offset, shape
        self.elements = math.prod(shape)
        self.rows = shape[0] if shape else 1
        self.columns = self.elements // max(self.rows, 1)

    def of(self, flat):
        """Copies x rows x columns of copies x parameters."""
        return flat[:, self.offset:self.offset + self.elements].view(len(flat), self.rows, self.columns)


def matrices(layers):
    """All layers."""
    found, offset = [], 0
    for name, shape in layers.items():
        found.append(Matrix(name, offset, shape))
        offset += found[-1].elements
    return found


def factored_layers(layers):
    return [matrix for matrix in matrices(layers) if min(matrix.rows, matrix.columns) >= LEAST_SIDE]


def root_mean_square(x):
    return x.square().mean((1, 2), keepdim=True).sqrt()


class Sgd:
    def __init__(self, options, layers, like, nesterov=False):
        self.momentum, self.decay, self.nesterov = options.momentum, options.weight_decay, nesterov
        self.state = [torch.zeros_like(like)]

    def step(self, weights, gradient, at):
        v, = self.state
        if self.decay:
            gradient = gradient + self.decay * weights
        v.mul_(self.momentum).add_(gradient)
        weights.sub_(at["lr"] * (self.momentum * v + gradient if self.nesterov else v))


class SignSgd:
    state = ()

    def __init__(self, options, layers, like):
        self.decay = options.weight_decay

    def step(self, weights, gradient, at):
        weights.sub_(at["lr"] * (gradient.sign() + self.decay * weights))


class Adam:
    """Adam, AdamW where `decoupled`; `told` holds what workers tell of their squares, `exact` the mean of their gradients as
    they were, each only where the second moment is of it."""

    def __init__(self, options, layers, like, decoupled=True, told=None, exact=None):
        self.beta1, self.beta2, self.decay = options.beta1, options.beta2, options.weight_decay
        self.max_update, self.kind, self.workers = options.max_update, options.second_moment, options.workers
        self.decoupled, self.told, self.exact = decoupled, told, exact
        self.largest = (1 - self.beta1) / math.sqrt(1 - self.beta2)
        self.all, self.factored = matrices(layers), factored_layers(layers) if self.kind in TOLD else []
        self.m, self.s = torch.zeros_like(like), torch.zeros_like(like)
        self.state = [self.m, self.s]

    def step(self, weights, gradient, at):
        update = self.find_update(weights, gradient, at)
        if self.max_update:
            for matrix in self.all:
                part = matrix.of(update)
                part.mul_((self.max_update / root_mean_square(part)).clamp(max=1))
        if self.decoupled and self.decay:
            update = update + self.decay * weights
        weights.sub_(at["lr"] * update)

    def find_update(self, weights, gradient, at):
        m, s = self.m, self.s
        squared = gradient if self.exact is None else self.exact
        if not self.decoupled and self.decay:
            gradient, squared = gradient + self.decay * weights, squared + self.decay * weights
        m.mul_(self.beta1).add_(gradient, alpha=1 - self.beta1)
        s.mul_(self.beta2).addcmul_(squared, squared, value=1 - self.beta2)
        update = m / at["first"] / ((s / at["second"]).sqrt() + EPSILON)
        if self.exact is not None:
            update.clamp_(-self.largest, self.largest)
        for number, matrix in enumerate(self.factored):
            part = matrix.of(update)
            part.copy_(self._matrix_update(number, matrix, part, at))
        return update

    def find_units(self, units, at):
        """For each entry the fourth root of the second moment that this step, whose numbers are `at`, has left
        (learning/optimiser.hpp)."""
        told = {matrix.name: number for number, matrix in enumerate(self.factored)}
        for matrix in self.all:
            s = matrix.of(self.s) / at["second"]
            if matrix.name in told:
                row, column = self.told.factors(told[matrix.name], at["told"])
            elif min(matrix.rows, matrix.columns) >= LEAST_SIDE:
                squares = s[0]
                row, column = squares.mean(1).sqrt(), (squares.mean(0) / squares.mean()).nan_to_num(0).sqrt()
            else:
                row, column = s.mean().sqrt().expand(matrix.rows), s.new_ones(matrix.columns)
            least = LEAST_ROOT * (row.square().mean() * column.square().mean()).sqrt()
            root = torch.maximum(row[:, None] * column, least)
            matrix.of(units).copy_(torch.where(least > 0, root, torch.ones_like(root)).sqrt())

    def _matrix_update(self, number, matrix, own, at):
        if self.kind == "scaled":
            share = self.told.share(number).clamp(LEAST_SHARE, 1)
            m, s = matrix.of(self.m), matrix.of(self.s)
            return m / at["first"] / ((s * share / at["second"]).sqrt() + EPSILON)
        row, column = self.told.factors(number, at["told"])
        factored = matrix.of(self.m) / at["first"] / (row[:, None] * column + EPSILON)
        factored.clamp_(-self.largest, self.largest)
        if self.kind == "factored":
            return factored
        length = root_mean_square(own)
        return torch.where(length > 0, own * (root_mean_square(factored) / length), own)


class Muon(Adam):
    """Matrices move along their momentum with singular values near 1, the others as AdamW has them."""

    MOMENTUM, SCALE = 0.95, 0.2
    TABLES = ("characters", "positions", "head")

    def __init__(self, options, layers, like):
        super().__init__(options, layers, like)
        self.shapes = {}
        for matrix in self.all:
            if len(matrix.shape) > 1 and min(matrix.rows, matrix.columns) > 1 and not matrix.name.startswith(self.TABLES):
                self.shapes.setdefault((matrix.rows, matrix.columns), []).append(matrix)
        self.momentum = torch.zeros_like(like)
        self.state.append(self.momentum)

    def find_update(self, weights, gradient, at):
        update = super().find_update(weights, gradient, at)
        self.momentum.mul_(self.MOMENTUM).add_(gradient)
        direction = gradient + self.MOMENTUM * self.momentum
        for (rows, columns), group in self.shapes.items():
            found = orthogonalised(torch.cat([matrix.of(direction) for matrix in group]))
            found = self.SCALE * math.sqrt(max(rows, columns)) * found
            for matrix, part in zip(group, found.split(len(weights))):
                matrix.of(update).copy_(part)
        return update


def orthogonalised(x):
    """Five steps of Newton-Schulz (learning/newton_schulz.cpp), of a batch of matrices."""
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    norm = x.square().sum((1, 2), keepdim=True).sqrt()
    x = torch.where(norm > 0, x / norm, x)
    for _ in range(5):
        a = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.transpose(1, 2) if tall else x


class Adafactor:
    """With a first moment, and the rate in place of a relative one."""

    EPSILON = 1e-30

    def __init__(self, options, layers, like):
        self.beta1, self.beta2, self.decay = options.beta1, options.beta2, options.weight_decay
        self.all, self.factored = matrices(layers), {matrix.name for matrix in factored_layers(layers)}
        # Of a matrix the sums of its rows, then those of its columns, at its own place.
        self.state = [torch.zeros_like(like), torch.zeros_like(like)]

    def step(self, weights, gradient, at):
        m, s = self.state
        update = torch.empty_like(gradient)
        for matrix in self.all:
            g = matrix.of(gradient)
            u = self._divided(matrix, g, s, at)
            matrix.of(update).copy_(u / root_mean_square(u).clamp(min=1))
        m.mul_(self.beta1).add_(update, alpha=1 - self.beta1)
        weights.sub_(at["lr"] * (m + self.decay * weights))

    def _divided(self, matrix, g, s, at):
        squares, kept = g.square() + self.EPSILON, self.beta2
        if matrix.name not in self.factored:
            part = matrix.of(s)
            part.mul_(kept).add_(squares, alpha=1 - kept)
            return g / (part / at["second"]).sqrt()
        room = s[:, matrix.offset:matrix.offset + matrix.elements]
        rows, columns = room[:, :matrix.rows], room[:, matrix.rows:matrix.rows + matrix.columns]
        rows.mul_(kept).add_(squares.sum(2), alpha=1 - kept)
        columns.mul_(kept).add_(squares.sum(1), alpha=1 - kept)
        row = rows / (rows.sum(1, keepdim=True) * at["second"])
        return g / (row.sqrt()[:, :, None] * columns.sqrt()[:, None, :])


def first_moment_of(options):
    """The part of an optimiser's first moment that stays from step to step; 0 of one that has none."""
    name = options.optimizer
    if name in ("sgd", "nesterov"):
        return options.momentum
    return {"muon": Muon.MOMENTUM, "signsgd": 0.0}.get(name, options.beta1)


def optimiser_of(options, layers, like, told=None, exact=None):
    """`like`: the weights that it moves."""
    name = options.optimizer
    if name in ("adam", "adamw"):
        return Adam(options, layers, like, name == "adamw", told, exact)
    if name in ("sgd", "nesterov"):
        return Sgd(options, layers, like, name == "nesterov")
    return {"muon": Muon, "adafactor": Adafactor, "signsgd": SignSgd}[name](options, layers, like)
