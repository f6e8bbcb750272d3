#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what people take in place of atomo, on the tensors of bench_codecs. bench/run.sh calls it.

PowerSGD is the arithmetic of torch.distributed's hook without its collectives and its error feedback: encoding is P = M Q,
orthogonalise, Q = M^T P; decoding is P Q^T. Casts, QSGD and the lossless ones take all layers as one array.
"""
import argparse
import ctypes
import json
import pathlib
import sys
import time

import numpy as np
import peer_names
from programs import show, write
from tensors import SIZES, Tensors

LARGE = 1 << 21  # entries of a model that one call a repetition suffices for


class PowerSgd:
    """One worker's part of a step."""

    def __init__(self, tensors: Tensors, decoded: np.ndarray, rank: int):
        import torch
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize
        self._torch, self._orthogonalize = torch, _orthogonalize
        self._low, self._plain = [], []
        self._sent, at = 0, 0
        torch.manual_seed(1)
        for layer in tensors.layers():
            rows, columns = layer.shape
            used = min(rank, rows, columns)
            out = torch.from_numpy(decoded[at:at + layer.size].reshape(1, rows, columns))
            matrix = torch.from_numpy(layer).unsqueeze(0)
            at += layer.size
            if (rows + columns) * used * 2 < layer.size:  # the hook's rule, at its default rate
                self._low.append((matrix, torch.empty(1, rows, used), torch.randn(1, columns, used), out))
                self._sent += (rows + columns) * used
            else:
                self._plain.append((matrix.view(-1), out.view(-1)))
                self._sent += layer.size

    def encode(self) -> int:
        for matrix, p, q, _ in self._low:
            self._orthogonalize(q)
            self._torch.bmm(matrix, q, out=p)
        if self._plain:
            self._message = self._torch.cat([values for values, _ in self._plain])
        for matrix, p, q, _ in self._low:
            self._orthogonalize(p)
            self._torch.bmm(matrix.transpose(1, 2), p, out=q)
        return 4 * self._sent

    def decode(self) -> None:
        for _, p, q, out in self._low:
            self._torch.bmm(p, q.transpose(1, 2), out=out)
        at = 0
        for values, out in self._plain:
            out.copy_(self._message[at:at + values.numel()])
            at += values.numel()


class Cast:
    def __init__(self, tensors: Tensors, decoded: np.ndarray, dtype: str):
        import torch
        self._from, self._to = torch.from_numpy(tensors.values), torch.from_numpy(decoded)
        self._half = torch.empty(len(decoded), dtype={"fp16": torch.float16, "bf16": torch.bfloat16}[dtype])

    def encode(self) -> int:
        self._half.copy_(self._from)
        return 2 * len(self._half)

    def decode(self) -> None:
        self._to.copy_(self._half)


class TopK:
    """The largest entries of every layer with 32-bit indices."""

    def __init__(self, tensors: Tensors, decoded: np.ndarray, keep: float):
        import torch
        self._torch, self._keep, at = torch, keep, 0
        self._layers: list = []
        self._kept: list = []
        for layer in tensors.layers():
            out = torch.from_numpy(decoded[at:at + layer.size])
            self._layers.append((torch.from_numpy(layer.reshape(-1)), out))
            at += layer.size

    def encode(self) -> int:
        self._kept = []
        for values, _ in self._layers:
            count = max(1, int(self._keep * len(values)))
            indices = self._torch.topk(values.abs(), count, sorted=False).indices
            self._kept.append((values[indices], indices.to(self._torch.int32)))
        return 8 * sum(len(values) for values, _ in self._kept)

    def decode(self) -> None:
        for (values, indices), (_, out) in zip(self._kept, self._layers):
            out.zero_()
            out[indices.long()] = values


class Qsgd:
    """Levels of a bucket's largest magnitude, rounded at random, two to a byte."""

    def __init__(self, tensors: Tensors, decoded: np.ndarray, bucket: int):
        self._values, self._decoded, self._bucket = tensors.values, decoded, bucket
        self._random = np.random.default_rng(1)

    def encode(self) -> int:
        missing = -len(self._values) % self._bucket
        whole = np.pad(self._values, (0, missing)) if missing else self._values
        padded = whole.reshape(-1, self._bucket)
        self._norms = np.abs(padded).max(axis=1, keepdims=True)
        scale = np.float32(7) / np.where(self._norms > 0, self._norms, np.float32(1))
        levels = np.floor(padded * scale + self._random.random(padded.shape, np.float32)).astype(np.int8) + np.int8(8)
        flat = levels.reshape(-1).view(np.uint8)
        self._bytes = flat[0::2] | flat[1::2] << 4
        return self._bytes.nbytes + self._norms.nbytes

    def decode(self) -> None:
        levels = np.empty(2 * len(self._bytes), np.float32)
        levels[0::2] = self._bytes & 15
        levels[1::2] = self._bytes >> 4
        whole = (levels.reshape(-1, self._bucket) - np.float32(8)) * (self._norms / np.float32(7))
        self._decoded[:] = whole.reshape(-1)[:len(self._decoded)]


class Zstd:
    def __init__(self, tensors: Tensors, decoded: np.ndarray, threads: int):
        import zstandard
        self._values, self._decoded = tensors.values, decoded
        self._packer = zstandard.ZstdCompressor(level=1, threads=threads if threads > 1 else 0)
        self._reader = zstandard.ZstdDecompressor()

    def encode(self) -> int:
        self._message = self._packer.compress(self._values)
        return len(self._message)

    def decode(self) -> None:
        self._decoded[:] = np.frombuffer(self._reader.decompress(self._message), np.float32)


class Blosc:
    def __init__(self, tensors: Tensors, decoded: np.ndarray, threads: int):
        import blosc2
        self._blosc, self._values, self._decoded = blosc2, tensors.values, decoded
        blosc2.set_nthreads(threads)

    def encode(self) -> int:
        self._message = self._blosc.compress(self._values, typesize=4, clevel=1, filter=self._blosc.Filter.SHUFFLE,
                                             codec=self._blosc.Codec.LZ4)
        return len(self._message)

    def decode(self) -> None:
        self._blosc.decompress(self._message, dst=self._decoded)


def make(name: str, tensors: Tensors, decoded: np.ndarray, threads: int):
    value = name.rpartition("=")[2]
    if "powersgd" in name:
        return PowerSgd(tensors, decoded, int(value))
    if "cast" in name:
        return Cast(tensors, decoded, name.partition(":")[2])
    if "topk" in name:
        return TopK(tensors, decoded, float(value))
    if "qsgd" in name:
        return Qsgd(tensors, decoded, int(value))
    return Zstd(tensors, decoded, threads) if "zstd" in name else Blosc(tensors, decoded, threads)


class Measurer:
    """Times calls as bench_codecs does: processor time of one thread, time of day of several, cold where the size is."""

    def __init__(self, options: argparse.Namespace):
        self._options = options
        self._clock = time.process_time if options.threads == 1 else time.perf_counter
        self.tensors = Tensors(options.library, options.size)
        self.decoded = np.zeros_like(self.tensors.values)
        self._is_cold = "cold" in options.size
        self._memcpy = self._memcpy_speed()

    def _flush(self) -> None:
        if self._is_cold:
            self.tensors.flush(self.tensors.values)
            self.tensors.flush(self.decoded)

    def _once(self, work) -> float:
        self._flush()
        start = self._clock()
        work()
        return self._clock() - start

    def _memcpy_speed(self) -> float:
        values, decoded = self.tensors.values, self.decoded
        def copy():
            ctypes.memmove(decoded.ctypes.data, values.ctypes.data, values.nbytes)
        copy()
        times = sorted(self._once(copy) for _ in range(5 if self._is_cold else max(5, (1 << 26) // values.nbytes)))
        return values.nbytes / times[len(times) // 2]

    def _calls(self, once: float) -> int:
        large = len(self.tensors.values) > LARGE
        return 1 if large else max(1, int(self._options.min_time / max(once, 1e-6)))

    def runs(self, name: str, work, bits: float):
        """Yields the figures of every repetition."""
        calls = self._calls(self._once(work))
        nbytes = self.tensors.values.nbytes
        for repetition in range(self._options.repetitions):
            spent = sum(self._once(work) for _ in range(calls)) / calls
            speed = nbytes / max(spent, 1e-9)
            yield {"name": name, "threads": self._options.threads, "repetition": repetition, "ms": 1e3 * spent,
                   "gbs": 1e-9 * speed, "memcpy_gbs": 1e-9 * self._memcpy, "of_memcpy": speed / self._memcpy,
                   "bits_per_parameter": bits}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", required=True, help="libbench_tensors.so")
    parser.add_argument("--size", required=True, choices=SIZES)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--filter", default=".", metavar="REGEX", help="of SIZE/PEER/OPERATION")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--min-time", type=float, default=0.1, help="seconds of a repetition")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="FILE.json")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    wanted = peer_names.wanted(options.size, options.threads, options.filter)
    try:
        import blosc2  # noqa: F401
        import torch
        import zstandard  # noqa: F401
    except ImportError as error:
        print(f"peers.py: {error.name} is missing; 'bash scripts/python.sh --without-package' installs it", file=sys.stderr)
        return 1
    torch.set_num_threads(options.threads)
    measurer = Measurer(options)
    found = []
    for name in dict.fromkeys(name for name, _ in wanted):
        show(f"  {options.size}/{name}")
        peer = make(name, measurer.tensors, measurer.decoded, options.threads)
        bits = 8 * peer.encode() / len(measurer.decoded)
        for operation in peer_names.OPERATIONS:
            if (name, operation) in wanted:
                found += measurer.runs(f"{options.size}/{name}/{operation}", getattr(peer, operation), bits)
    show("")
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    write(options.out, json.dumps({"context": {"peers": versions}, "benchmarks": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
