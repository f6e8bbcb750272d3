# SPDX-License-Identifier: Apache-2.0
"""What workers exchange (algorithms/allgather.cpp, local.cpp, powersgd.cpp). `advance` takes one step, or the steps of a
round, and returns how many these were; `bytes` waits and tells what the workers have sent, all together."""

import types

import atomo
import torch

from simulated import Refusal
from simulated.low_rank import LowRank
from simulated.messages import Messages
from simulated.optimisers import Sgd, columns, first_moment_of, learning_rates, optimiser_of, rates_in_memory
from simulated.options import TOLD
from simulated.replays import Replay, Table
from simulated.second_moment import SquaresExchange, Told


class _Algorithm:
    """`order`: the samples of each step, steps x workers x batch."""

    def __init__(self, options, data, fleet, order, device):
        self.options, self.fleet, self.device = options, fleet, device
        self.table = Table(columns(options), device)
        self.losses = torch.zeros(options.steps, options.workers, device=device)
        self._data, self._order = data, order

    def back_propagate(self):
        """Of the step that the table is at."""
        which = self._order.index_select(0, self.table.step)[0]
        losses = self.fleet.back_propagate(*self._data.gather("training", which))
        if self.options.clip_norm:
            scale_to_norm(self.fleet.gradients, self.options.clip_norm)
        self.losses.index_copy_(0, self.table.step, losses[None])

    @property
    def computed(self):
        """What a back-propagation changes."""
        return [self.losses, *self.fleet.buffers.values()]

    def replay(self, work, *state):
        return Replay(work, [self.table.step, *state], self.device)


def scale_to_norm(gradients, most):
    """Scales rows down where their norm is above `most`."""
    norms = gradients.norm(dim=1, keepdim=True)
    gradients.mul_(torch.where(norms.isfinite(), (most / norms).clamp(max=1), torch.ones_like(norms)))


def rows_of(fleet, flat):
    """The layers of each row of copies x parameters."""
    views = fleet.views(flat)
    return [{name: part[k] for name, part in views.items()} for k in range(len(flat))]


def messages_of(options, fleet, values, mean, device):
    return Messages(options.policy or f"* = {options.codec}", rows_of(fleet, values), rows_of(fleet, mean)[0], options.seed, device)


class AllGather(_Algorithm):
    def __init__(self, options, data, fleet, order, device):
        super().__init__(options, data, fleet, order, device)
        mean, told, exact = torch.zeros_like(fleet.weights), None, None
        self.squares = None
        if options.second_moment in TOLD:
            told, decoded = Told(fleet.layers, options, device), torch.zeros_like(fleet.gradients)
            self.squares = SquaresExchange(told, fleet.gradients, decoded, mean, options.seed, device)
        if options.second_moment == "exact":
            exact = torch.zeros_like(mean)
        self.mean, self.units = mean, torch.ones_like(mean) if options.precondition else None
        self.rates = rates_in_memory(options) if options.rate_in_memory else []
        as_they_are = self.units is None and not self.rates
        self.encoded = fleet.gradients if as_they_are else torch.zeros_like(fleet.gradients)
        self.messages = messages_of(options, fleet, self.encoded, mean, device)
        if self.rates and (self.messages.sums or not self.messages.remember):
            raise Refusal("--rate-in-memory: needs a codec with a memory, such as ef+topk:keep=0.01, and none of ef21+")
        if self.squares is not None:
            if self.messages.sums:
                raise Refusal(f"--second-moment: {options.second_moment} compares gradients with what their messages decode to, and "
                              "those of ef21+ are differences: take own, or ef+")
            self.own, self.own_rows = decoded, self.messages.own(rows_of(fleet, decoded))
        self.shares = []
        if options.share_by_rate:
            self.shares = atomo.budget_shares(learning_rates(options), options.share_by_rate, 0.1, first_moment_of(options))
        optimiser = optimiser_of(options, fleet.layers, fleet.weights, told, exact)

        def move():
            if exact is not None:
                exact.copy_(fleet.gradients.mean(0, keepdim=True))
            optimiser.step(fleet.weights, mean, self.table.now())
            if self.units is not None:
                optimiser.find_units(self.units, self.table.now())
            self.table.advance()

        self.compute = self.replay(self.back_propagate, *self.computed)
        self.move = self.replay(move, fleet.weights, *optimiser.state, *([] if self.units is None else [self.units]))

    def advance(self, step):
        if self.shares:
            for compressor in self.messages.compressors:
                compressor.budget_share = self.shares[step]
        self.compute()
        if self.encoded is not self.fleet.gradients:
            self._prepare(step)
        self.messages.encode(step)
        self.messages.average()
        self._restore(self.mean, step)
        if self.squares is not None and step % self.options.squares_every == 0:
            self.messages.decode_own(self.own_rows)
            self._restore(self.own, step)
            self.squares.tell(step)
        self.move()
        return 1

    def _prepare(self, step):
        """What is encoded: gradients in their units, times the rate that a memory has."""
        self.encoded.copy_(self.fleet.gradients)
        if self.units is not None:
            self.encoded.div_(self.units)
        if self.rates:
            self.encoded.mul_(self.rates[step])

    def _restore(self, decoded, step):
        """Gradients again."""
        if self.rates:
            decoded.div_(self.rates[step])
        if self.units is not None:
            decoded.mul_(self.units)

    def bytes(self, steps):
        return self.messages.bytes() + (0 if self.squares is None else self.squares.messages.bytes())


class Local(_Algorithm):
    """Workers train alone for the steps of a round, then take an outer step along the mean of what these changed."""

    def __init__(self, options, data, fleet, order, device):
        super().__init__(options, data, fleet, order, device)
        self.agreed, self.change = fleet.weights[:1].clone(), torch.zeros_like(fleet.weights)
        inner = optimiser_of(options, fleet.layers, fleet.weights)
        self.mean = torch.zeros_like(self.agreed)
        self.messages = messages_of(options, fleet, self.change, self.mean, device)
        plain = types.SimpleNamespace(momentum=options.outer_momentum, weight_decay=0)
        self.outer = Sgd(plain, fleet.layers, self.agreed, options.outer_optimizer == "nesterov")

        def own_step():
            self.back_propagate()
            inner.step(fleet.weights, fleet.gradients, self.table.now())
            self.table.advance()

        self.own_step = self.replay(own_step, *self.computed, fleet.weights, *inner.state)

    def advance(self, step):
        length = self.options.local_steps
        end = min((step // length + 1) * length, self.options.steps)
        for _ in range(step, end):
            self.own_step()
        torch.sub(self.agreed, self.fleet.weights, out=self.change)
        self.messages.encode(end - 1)
        self.messages.average()
        self.outer.step(self.agreed, self.mean, {"lr": self.options.outer_lr})
        self.fleet.weights.copy_(self.agreed.expand_as(self.fleet.weights))
        return end - step

    def bytes(self, steps):
        return self.messages.bytes()


class PowerSgd(_Algorithm):
    def __init__(self, options, data, fleet, order, device):
        super().__init__(options, data, fleet, order, device)
        mean, own, told, self.squares = torch.zeros_like(fleet.weights), None, None, None
        if options.second_moment in TOLD:
            told, own = Told(fleet.layers, options, device), torch.zeros_like(fleet.gradients)
            self.squares = SquaresExchange(told, fleet.gradients, own, mean, options.seed, device)
        factors = LowRank(fleet.layers, options, fleet.gradients, mean, options.seed, own)
        optimiser = optimiser_of(options, fleet.layers, fleet.weights, told)
        self.of_a_step = options.workers * factors.reduced_bytes

        def factor():
            self.back_propagate()
            factors.find()

        def move():
            optimiser.step(fleet.weights, mean, self.table.now())
            self.table.advance()

        self.factor = self.replay(factor, *self.computed, mean, *factors.state)
        self.move = self.replay(move, fleet.weights, *optimiser.state)

    def advance(self, step):
        self.factor()
        if self.squares is not None and step % self.options.squares_every == 0:
            self.squares.tell(step)
        self.move()
        return 1

    def bytes(self, steps):
        return steps * self.of_a_step + (0 if self.squares is None else self.squares.messages.bytes())


ALGORITHMS = {"allgather": AllGather, "local": Local, "powersgd": PowerSgd}
