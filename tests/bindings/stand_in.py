# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a GPU under atomo.torch: memory of the host's, streams and events that write down what is asked of them.

The models are the CPU's, so a call is done when it returns; what the tests look at is which calls there are, in which
order on which stream, and what PyTorch is asked for meanwhile.
"""

import contextlib

import torch
from atomo.torch.device import Place
from torch.utils._python_dispatch import TorchDispatchMode


class Event:
    def __init__(self, log, number):
        self.log, self.number, self.done = log, number, True

    def query(self):
        self.log.append(("query", self.number))
        return self.done

    def synchronize(self):
        self.log.append(("synchronize", self.number))
        self.done = True


class Stream:
    cuda_stream = 0

    def __init__(self, name, log):
        self.name, self.log = name, log

    def record_event(self, event):
        self.log.append(("record", self.name, event.number))

    def wait_event(self, event):
        self.log.append(("wait", self.name, event.number))


class StandIn(Place):
    """`log`: what streams and events were asked for; `taken`: pieces of memory."""

    kind = "cpu"

    def __init__(self):
        self.log, self.taken, self.events = [], 0, []
        self.computing, self.encoding, self.wire = (Stream(name, self.log) for name in ("computing", "encoding", "wire"))
        self.device = torch.device("cpu")

    def memory(self, n):
        self.taken += 1
        return torch.full((max(n, 1),), 0xEE, dtype=torch.uint8)  # stale bytes are no zeros

    def pinned(self, n):
        self.taken += 1
        return torch.zeros(n, dtype=torch.uint8)

    def event(self):
        self.events.append(Event(self.log, len(self.events)))
        return self.events[-1]

    def current(self):
        return self.computing

    @contextlib.contextmanager
    def on(self, stream):
        self.log.append(("on", stream.name))
        yield
        self.log.append(("off", stream.name))

    def lend(self, tensor, stream):
        self.log.append(("lend", stream.name))

    def future(self):
        return torch.futures.Future()


class Operations(TorchDispatchMode):
    """Writes down every operation of PyTorch that a block runs, views apart, collectives too."""

    VIEWS = {"aten.view", "aten.slice", "aten.select", "aten.split", "aten.detach", "aten.alias", "aten.unbind",
             "aten.as_strided", "aten.narrow", "aten._unsafe_view", "aten.split_with_sizes"}

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = ".".join(str(function).split(".")[:2])
        if name not in self.VIEWS:
            self.names.append(name)
        return function(*args, **(kwargs or {}))
