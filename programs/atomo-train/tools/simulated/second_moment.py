# SPDX-License-Identifier: Apache-2.0
"""What workers tell of the squares of their gradients (learning/second_moment.hpp), and the running means of it."""

import torch

from simulated.messages import Messages
from simulated.optimisers import factored_layers
from simulated.replays import Replay

CHANNEL = 1  # of the draws of these messages
POLICY = "sums = identity\n* = natural"


class Told:
    """Running means of the row and column means, and of the sums of one worker's squares, of the average's and of what the
    messages average to."""

    def __init__(self, layers, options, device):
        self.layers, self.workers = factored_layers(layers), options.workers
        self.kept = options.beta2 ** options.squares_every
        self.sides = [side for matrix in self.layers for side in (matrix.rows, matrix.columns)]
        self.means = torch.zeros(sum(self.sides), device=device)
        self.sums = torch.zeros(3, len(self.layers), device=device)
        self.layer_of = torch.repeat_interleave(torch.arange(len(self.sides)) // 2, torch.tensor(self.sides)).to(device)

    @property
    def state(self):
        return [self.means, self.sums]

    def mix(self, means, sums):
        """A layer whose sums are not finite keeps what it had."""
        finite = sums.isfinite().all(0)
        self.means.copy_(torch.where(finite[self.layer_of], self.kept * self.means + (1 - self.kept) * means, self.means))
        self.sums.copy_(torch.where(finite, self.kept * self.sums + (1 - self.kept) * sums, self.sums))

    def factors(self, number, weight):
        """Two vectors whose outer product is the root of a layer's second moment. `weight`: of the means' first steps."""
        rows, columns = self.means.split(self.sides)[2 * number:2 * number + 2]
        one, average, _ = self.sums[:, number].unbind()
        ratio = torch.where(one > 0, (average / one).clamp(0.5 / self.workers, 1), torch.ones_like(one))
        mean = rows.mean()
        common = torch.where(mean > 0, ratio / (mean * weight), torch.zeros_like(mean))
        return rows.sqrt(), (common * columns).sqrt()

    def share(self, number):
        """Of the decoded average's squares, those that are the average's."""
        _, average, decoded = self.sums[:, number].unbind()
        return torch.where(decoded > 0, average / decoded, torch.ones_like(decoded))


class SquaresExchange:
    """The messages of a step about squares. `gradients` and `decoded` are workers x parameters, `mean` 1 x parameters: a
    worker's own, what its message decodes to, and what all messages average to."""

    def __init__(self, told, gradients, decoded, mean, seed, device):
        layers = told.layers
        shapes = {}
        for number, matrix in enumerate(layers):
            shapes |= {f"rows {number}": matrix.rows, f"columns {number}": matrix.columns}
        shapes["sums"] = 2 * len(layers)
        self.own = torch.zeros(told.workers, sum(shapes.values()), device=device)
        self.all = torch.zeros(sum(shapes.values()), device=device)
        *own, everyone = [dict(zip(shapes, row.split(list(shapes.values())))) for row in [*self.own, self.all]]
        self.messages = Messages(POLICY, own, everyone, seed, device, CHANNEL)

        def describe():
            squares = gradients.square()
            found, sums = [], []
            for matrix in layers:
                of_layer = matrix.of(squares)
                found += [of_layer.mean(2), of_layer.mean(1)]
                sums += [of_layer.sum((1, 2), dtype=torch.float64), matrix.of(decoded).double().square().sum((1, 2))]
            torch.cat([*found, torch.stack(sums, 1).float()], 1, out=self.own)

        def mix():
            sums = self.all[-2 * len(layers):].double().view(-1, 2)
            of_one, of_decoded = sums[:, 0], sums[:, 1]
            of_mean = torch.cat([matrix.of(mean).double().square().sum((1, 2)) for matrix in layers])
            # |sum c|^2 - sum |c|^2 = W^2 |average|^2 - W (mean of |c|^2).
            average = of_one / told.workers + of_mean - of_decoded / told.workers
            told.mix(self.all[:-2 * len(layers)], torch.stack([of_one, average, of_mean]).float())

        self.describe, self.mix = Replay(describe, [], device), Replay(mix, told.state, device)

    def tell(self, step):
        self.describe()
        self.messages.encode(step)
        self.messages.average()
        self.mix()
