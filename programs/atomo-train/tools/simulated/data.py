# SPDX-License-Identifier: Apache-2.0
"""Text and images on the device, as the trainer has them (learning/text.cpp, learning/images.cpp)."""

import functools
import gzip
import math
import pathlib

import numpy
import torch

from simulated import Refusal

WINDOW = 64  # characters of a sample
BLOCK = 4096  # characters that stay in one split
TEST_SHARE = 10  # one block of so many is for the test
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"


def _unpacked(path):
    content = path.read_bytes()
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


class Text:
    """A file, or all files below a folder, as bytes; a sample predicts each of its characters but the first."""

    measure = "bits_per_character"
    test_batch = 250

    def __init__(self, path, device):
        if not path:
            found = sorted(pathlib.Path("/usr/share").glob("cmake-*/Help"))
            if not found:
                raise Refusal("CMake's manual is not here: give a text by --data")
            path = found[-1]
        path = pathlib.Path(path)
        files = sorted((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.parts) if path.is_dir() else [path]
        try:
            text = b"".join(map(_unpacked, files))
        except OSError as error:
            raise Refusal(f"--data: {error}") from error
        if len(text) < TEST_SHARE * BLOCK:
            raise Refusal(f"the text at '{path}' has {len(text)} characters, training and test need at least {TEST_SHARE * BLOCK}")
        of_test = numpy.arange(len(text)) // BLOCK % TEST_SHARE == TEST_SHARE - 1
        characters = numpy.frombuffer(text, numpy.uint8)
        self.training, self.test = (self._windows(characters[mask], device) for mask in (~of_test, of_test))

    @staticmethod
    def _windows(characters, device):
        """Samples of one character more than they predict from. The last character of a split predicts nothing."""
        count = (len(characters) - 1) // WINDOW
        places = numpy.arange(count)[:, None] * WINDOW + numpy.arange(WINDOW + 1)
        return torch.from_numpy(characters[places].astype(numpy.int64)).to(device)

    @property
    def shape(self):
        return (WINDOW,)

    def samples(self, split):
        return len(getattr(self, split))

    def gather(self, split, which):
        """Inputs and targets of samples, in the shape of `which` and then that of a sample."""
        windows = getattr(self, split)[which]
        return windows[..., :-1], windows[..., 1:]

    @staticmethod
    def score(logits, targets):
        """(what the measure adds up, what it divides by) of a batch, and the loss's sum."""
        loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum").double()
        return loss / math.log(2), loss


class Images:
    """A folder of idx files, plain or .gz; each channel has mean 0 and deviation 1 over the training set."""

    measure = "accuracy"
    test_batch = 1000

    def __init__(self, path, device):
        folder = pathlib.Path(path or FASHION_MNIST)
        self._pixels, self._labels = {}, {}
        for split, prefix in (("training", "train"), ("test", "t10k")):
            pixels = _idx(folder, f"{prefix}-images-idx3-ubyte")
            labels = _idx(folder, f"{prefix}-labels-idx1-ubyte")
            if len(pixels) != len(labels):
                raise Refusal(f"'{folder}' has {len(pixels)} images and {len(labels)} labels of {split}")
            if split == "training":
                whole = pixels.astype(numpy.float64) / 255
                mean, deviation = whole.mean(), whole.std() or 1
                self.classes = int(labels.max()) + 1
            standard = ((pixels.astype(numpy.float32) / numpy.float32(255)) - numpy.float32(mean)) / numpy.float32(deviation)
            self._pixels[split] = torch.from_numpy(standard).to(device)
            self._labels[split] = torch.from_numpy(labels.astype(numpy.int64)).to(device)

    @property
    def shape(self):
        return (1, *self._pixels["training"].shape[1:])

    def samples(self, split):
        return len(self._pixels[split])

    def gather(self, split, which):
        return self._pixels[split][which].unsqueeze(-3), self._labels[split][which]

    @staticmethod
    def score(logits, targets):
        loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum").double()
        return logits.argmax(1).eq(targets).sum().double(), loss


def _idx(folder, name):
    found = [path for path in (folder / name, folder / f"{name}.gz") if path.exists()]
    if not found:
        raise Refusal(f"'{folder}' has no {name}, plain or .gz")
    content = _unpacked(found[0])
    sizes = [int.from_bytes(content[4 * k:4 * k + 4], "big") for k in range(1, content[3] + 1)] if len(content) > 4 else []
    begin = 4 * (1 + len(sizes))
    if content[:3] != b"\0\0\x08" or math.prod(sizes) != len(content) - begin:
        raise Refusal(f"{found[0]} is not an idx file of bytes")
    return numpy.frombuffer(content, numpy.uint8, offset=begin).reshape(sizes)


@functools.lru_cache(maxsize=1)
def data_of(model, path, device):
    """Of the model; kept for the next training on them."""
    return (Text if model == "transformer" else Images)(path, device)
