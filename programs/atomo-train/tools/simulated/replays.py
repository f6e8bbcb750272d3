# SPDX-License-Identifier: Apache-2.0
"""Work that is the same in every step: on a GPU it is recorded once as a CUDA graph and replayed with one launch."""

import torch

WARM_UPS = 3


class Replay:
    """`work()` takes and leaves its values in tensors that stay where they are, and waits for nothing. `state` are those that
    it changes and that a later call reads."""

    def __init__(self, work, state, device):
        self.work = work
        if device.type != "cuda":
            return
        self.kept = work, state  # a graph has addresses of tensors, and does not keep them
        before = [tensor.clone() for tensor in state]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(aside)
        for tensor, value in zip(state, before):
            tensor.copy_(value)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            work()
        self.work = self.graph.replay

    def __call__(self):
        self.work()


class Table:
    """Numbers of each step, on the device, and the step that is under way there."""

    def __init__(self, columns, device):
        """`columns`: name to a number a step."""
        self.names = list(columns)
        self.rows = torch.tensor(list(zip(*columns.values())), dtype=torch.float64).to(torch.float32).to(device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)

    def now(self):
        """The step's numbers by name."""
        return dict(zip(self.names, self.rows.index_select(0, self.step)[0].unbind()))

    def advance(self):
        self.step += 1
