# SPDX-License-Identifier: Apache-2.0
"""The messages of all workers, made and added up without waiting for the device.

`atomo.Compressor.encode` waits for the length of the array that it returns. Here a message stays in memory as long as the
longest may be, of which its head tells the end, and lengths are added up where they are. On a GPU each worker encodes on a
stream of its own.
"""

import atomo
import torch
from atomo import _atomo

RESULT_BYTES = 16  # of a call: a length (u64) and a status (i32)


class Messages:
    """`values`: of each worker, its arrays by name; `mean`: what their messages average to. Each worker has a compressor."""

    def __init__(self, policy, values, mean, seed, device, channel=0):
        self.seed, self.channel, self.device = seed, channel, device
        self.compressors = [atomo.Compressor(arrays, policy, device=device.type) for arrays in values]
        self._calls = [compressor._model for compressor in self.compressors]
        self._values = [calls.bind(list(arrays.values()), True) for calls, arrays in zip(self._calls, values)]
        self._mean, self._mean_arrays = self._calls[0].bind(list(mean.values()), False), list(mean.values())
        # Of layers whose messages are differences: the mean, and what means add up to.
        self.sums = [(array, torch.zeros_like(array)) for name, array in mean.items()
                     if self.compressors[0].codec(name).traits.differences]
        self.remember = self.compressors[0].memory_bytes > 0
        self.payloads = [self._memory(compressor.max_encoded_bytes) for compressor in self.compressors]
        self._workspaces = [self._memory(calls.encode_workspace_bytes()) for calls in self._calls]
        self._decoding = self._memory(self._calls[0].decode_workspace_bytes())
        # Of each worker's last encoding, then of the last decoding.
        self._results = torch.zeros(len(values) + 1, RESULT_BYTES, dtype=torch.uint8, device=device)
        self._bytes = torch.zeros((), dtype=torch.int64, device=device)
        self._worst = torch.zeros((), dtype=torch.int32, device=device)
        self._streams = [torch.cuda.Stream() for _ in values] if device.type == "cuda" else []

    def _memory(self, count):
        return torch.zeros(max(count, 1), dtype=torch.uint8, device=self.device)

    def _current(self):
        return torch.cuda.current_stream().cuda_stream if self._streams else 0

    def encode(self, step):
        here = torch.cuda.current_stream() if self._streams else None
        for worker, calls in enumerate(self._calls):
            stream = 0
            if self._streams:
                self._streams[worker].wait_stream(here)
                stream = self._streams[worker].cuda_stream
            calls.encode_on(self._values[worker], self.payloads[worker], self._results[worker], self._workspaces[worker], stream,
                            self.seed, step, worker, self.channel)
        for stream in self._streams:
            here.wait_stream(stream)
        self._bytes += self._results[:-1, :8].view(torch.int64).sum()
        self._note(self._results[:-1])

    def average(self):
        """Of the messages that `encode` made; of differences, what they add up to."""
        torch._foreach_zero_(self._mean_arrays)
        self._calls[0].decode_on(self.payloads, self._mean, 1 / len(self.payloads), self._results[-1], self._decoding,
                                 self._current())
        for mean, total in self.sums:
            mean.copy_(total.add_(mean))
        self._note(self._results[-1:])

    def own(self, rows):
        """Arrays of each worker, as `decode_own` takes them."""
        return [calls.bind(list(arrays.values()), False) for calls, arrays in zip(self._calls, rows)]

    def decode_own(self, rows):
        """What each worker's message decodes to."""
        for calls, payload, arrays in zip(self._calls, self.payloads, rows):
            calls.decode_on([payload], arrays, None, self._results[-1], self._decoding, self._current())
            self._note(self._results[-1:])

    def _note(self, results):
        torch.maximum(self._worst, results[:, 8:12].view(torch.int32).max(), out=self._worst)

    def bytes(self):
        """That the workers have sent, all together. Waits. Raises `atomo.Error` where a message could not be made or read."""
        name, description, failed = _atomo.status_of(int(self._worst))
        if failed:
            raise atomo.Error(description, name)
        return int(self._bytes)
