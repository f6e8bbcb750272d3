# SPDX-License-Identifier: Apache-2.0
"""The tensors that bench_codecs works on, from the same code (tensors.cpp)."""
import ctypes

import numpy as np

SIZES = ("1M_hot", "25M_cold", "lenet", "resnet18", "resnet50", "gpt2")


class Tensors:
    """Gradients of a size: `values` holds all layers one after another, `matrices` their rows and columns."""

    def __init__(self, library: str, size: str):
        self._library = ctypes.CDLL(library)
        self._library.bench_layers.restype = ctypes.c_int64
        count = self._library.bench_layers(size.encode(), None)
        if count < 0:
            raise ValueError(f"the size is '{size}'; {', '.join(SIZES)} are accepted")
        pairs = (ctypes.c_int64 * (2 * count))()
        self._library.bench_layers(size.encode(), pairs)
        self.matrices = [(pairs[2 * i], pairs[2 * i + 1]) for i in range(count)]
        self.values = np.empty(sum(rows * columns for rows, columns in self.matrices), np.float32)
        self._library.bench_fill(size.encode(), self.values.ctypes.data_as(ctypes.c_void_p))

    def layers(self):
        """A view of each layer as a matrix; a layer of one dimension has one column."""
        at = 0
        for rows, columns in self.matrices:
            yield self.values[at:at + rows * columns].reshape(rows, columns)
            at += rows * columns

    def flush(self, array: np.ndarray) -> None:
        """Drops an array from every cache."""
        self._library.bench_flush(ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(array.nbytes))
