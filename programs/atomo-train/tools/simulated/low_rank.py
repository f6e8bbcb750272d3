# SPDX-License-Identifier: Apache-2.0
"""PowerSGD with a memory (algorithms/powersgd.cpp, learning/low_rank.cpp), of all workers' gradients at once."""

import torch

from simulated.optimisers import matrices

ROUNDING = 1e-6  # of the norm of the largest column of Q, or of a column of P before others are taken from it


def orthonormal(p):
    """Columns by Gram-Schmidt in f64, done twice; those in the span of the ones before become 0."""
    columns = []
    for column in p.double().unbind(1):
        before = column.norm()
        for _ in range(2):
            for known in columns:
                column = column - (column @ known) * known
        left = column.norm()
        columns.append(torch.where(left > ROUNDING * before, column / left, torch.zeros_like(column)))
    return torch.stack(columns, 1).float()


class LowRank:
    """`find` puts what the workers' gradients average to by their factors into `mean`, 1 x parameters, and what of each
    worker's, without its memory, lies in the span of P into `own`, workers x parameters, where that is given."""

    def __init__(self, layers, options, gradients, mean, seed, own=None):
        self.gradients, self.mean, self.own = gradients, mean, own
        self.layers, self.others = [], []
        draws = torch.Generator().manual_seed(seed)
        for matrix in matrices(layers):
            rank = min(options.rank, matrix.rows, matrix.columns)
            smaller = matrix.elements > options.min_ratio * rank * (matrix.rows + matrix.columns)
            if len(matrix.shape) > 1 and matrix.rows > 1 and smaller:
                drawn = torch.randn(matrix.columns, rank, generator=draws).to(mean.device)
                self.layers.append((matrix, drawn, torch.zeros_like(drawn)))
            else:
                self.others.append(matrix)
        self.memory = torch.zeros_like(gradients)
        factors = sum(q.numel() + matrix.rows * q.shape[1] for matrix, _, q in self.layers)
        self.reduced_bytes = 4 * (factors + sum(matrix.elements for matrix in self.others))  # by a worker in a step

    @property
    def state(self):
        return [self.memory, *(q for _, _, q in self.layers), *([] if self.own is None else [self.own])]

    def find(self):
        whole = self.gradients + self.memory
        for matrix in self.others:
            matrix.of(self.mean).copy_(matrix.of(whole).mean(0, keepdim=True))
            if self.own is not None:
                matrix.of(self.own).copy_(matrix.of(whole))
        found = []
        for matrix, drawn, q in self.layers:
            m = matrix.of(whole)
            p = orthonormal(torch.matmul(m, self._start(drawn, q)).mean(0))
            mean_q = torch.matmul(m.transpose(1, 2), p).mean(0)
            found.append(mean_q)
            if self.own is not None:
                matrix.of(self.own).copy_(torch.matmul(p, torch.matmul(p.t(), matrix.of(self.gradients))))
            matrix.of(self.mean).copy_((p @ mean_q.t()).unsqueeze(0))
        finite = self.mean.isfinite().all()
        for (matrix, _, q), new in zip(self.layers, found):
            rest = matrix.of(whole) - matrix.of(self.mean)
            matrix.of(self.memory).copy_(torch.where(finite, rest, matrix.of(self.memory)))
            q.copy_(torch.where(new.isfinite().all(), new, q))

    @staticmethod
    def _start(drawn, q):
        """Q of the step before, its columns brought to norm 1; those that were of no use begin as at first."""
        norms = q.norm(dim=0)
        return torch.where(norms > ROUNDING * norms.max(), q / norms, drawn)
