# SPDX-License-Identifier: Apache-2.0
"""A data set of images with fewer samples to test on, for networks whose tests take longer than their training."""

import gzip
import math
import pathlib

FASHION_MNIST = "/usr/share/datasets/fashion-mnist"


def content(path):
    packed = path.with_name(path.name + ".gz")
    return gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()


def first_of(data, count):
    """The first `count` entries of an IDX file's bytes, as such a file: a header, of a magic number whose last byte is the
    number of dimensions and of these as big-endian 32-bit numbers, and bytes of samples."""
    sizes = [int.from_bytes(data[4 * k:4 * k + 4], "big") for k in range(1, data[3] + 1)]
    begin = 4 * (1 + len(sizes))
    kept = min(count, sizes[0])
    return data[:4] + kept.to_bytes(4, "big") + data[8:begin + kept * math.prod(sizes[1:])]


def with_first_tests(source, count, folder):
    """`folder`, with the training files of `source` (nothing: Fashion-MNIST) and the first `count` samples of its test."""
    source, folder = pathlib.Path(source or FASHION_MNIST), pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        for there in source.glob(f"train-{name}*"):
            link = folder / there.name
            link.unlink(missing_ok=True)
            link.symlink_to(there.resolve())
        cut = folder / f"t10k-{name}"
        part = cut.with_name(cut.name + ".part")
        part.write_bytes(first_of(content(source / f"t10k-{name}"), count))
        part.replace(cut)
    return str(folder)
