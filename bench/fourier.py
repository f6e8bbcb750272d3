#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What Fourier atoms would gain: blocks, rows and coordinates of tensors whose rows went through an orthonormal DCT-II first, in pieces of
one length (a last shorter piece as it is).

For each capture NMSE at equal bytes, predicted by reference/model.py, everything on the wire counted. The transform is orthonormal, so
the errors are those of what a decoder would transform back.
"""
import argparse
import json
import pathlib

import numpy as np

import captures
from reference.haar import HaarModel

LENGTHS = (8, 16, 32, 64, 256)
LENET = pathlib.Path(__file__).resolve().parents[1] / "tests" / "data" / "lenet_gradient.bf16"
LENET_SHAPES = {"conv1.weight": (20, 1, 5, 5), "conv1.bias": (20,), "conv2.weight": (50, 20, 5, 5), "conv2.bias": (50,),
                "fc1.weight": (500, 800), "fc1.bias": (500,), "fc2.weight": (10, 500), "fc2.bias": (10,)}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("captures", nargs="*", default=[LENET], metavar="FILE",
                        help="gradients, .npz or .safetensors, as variance.sh leaves them; LeNet's of the tests")
    parser.add_argument("--rates", type=float, nargs="+", default=[1, 0.5, 0.25, 0.125], metavar="BITS", help="bits a parameter")
    parser.add_argument("--atoms", nargs="+", default=["blocks", "rows", "coordinate"], help="of what is transformed")
    parser.add_argument("--no-sketch", action="store_true", help="leave sketches out, which are not transformed")
    parser.add_argument("--json", metavar="PATH", help="the same figures, to this file")
    return parser.parse_args()


def read(path):
    if path != LENET:
        return captures.read_tensors(path)
    values = (np.fromfile(path, "<u2").astype(np.uint32) << 16).view(np.float32)
    ends = np.cumsum([np.prod(shape) for shape in LENET_SHAPES.values()])
    return {name: part.reshape(shape) for (name, shape), part in zip(LENET_SHAPES.items(), np.split(values, ends[:-1]))}


def dct_matrix(length):
    """Orthonormal DCT-II: row k is the k-th wave."""
    k, i = np.meshgrid(np.arange(length), np.arange(length), indexing="ij")
    waves = np.cos(np.pi * (2 * i + 1) * k / (2 * length)) * np.sqrt(2 / length)
    waves[0] /= np.sqrt(2)
    return waves


def transformed(x, length):
    """Pieces of the rows of the matrix that has the tensor's first dimension."""
    view = x.reshape(x.shape[0], -1) if x.ndim > 1 else x.reshape(1, -1)
    whole = view.shape[1] // length * length
    y = view.astype(np.float64)
    pieces = y[:, :whole].reshape(len(y), -1, length) @ dct_matrix(length).T
    return np.concatenate([pieces.reshape(len(y), whole), y[:, whole:]], axis=1).astype(np.float32).reshape(x.shape)


def share_of_low_waves(tensors, length):
    """Of the energy of whole pieces, what the lower half of the waves has: 1/2 where entries have no order."""
    low = whole = 0.0
    for x in tensors.values():
        y = transformed(x, length).reshape(x.shape[0] if x.ndim > 1 else 1, -1)
        y = y[:, :y.shape[1] // length * length].reshape(-1, length).astype(np.float64)
        low, whole = low + (y[:, :length // 2]**2).sum(), whole + (y**2).sum()
    return low / whole


def line(name, cells):
    print(f"{name:18}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def measure(path, options):
    tensors = read(path)
    models = {length: HaarModel({name: transformed(x, length) for name, x in tensors.items()}) for length in LENGTHS}
    plain, rows = HaarModel(tensors), []
    print(f"\n{path}: {plain.size:,} parameters, {len(tensors)} tensors; energy in the lower half of the waves: "
          + ", ".join(f"{length}: {share_of_low_waves(tensors, length):.2f}" for length in LENGTHS))
    line("", [f"{bits:g} b" for bits in options.rates])

    def add(name, nmse, beside=None):
        rows.append({"atoms": name, "nmse": dict(zip(options.rates, nmse))})
        line(name, [f"{e:.4g}" + (f" (/ {b / e:.3f})" if beside else "") for e, b in zip(nmse, beside or nmse)])

    for atoms in options.atoms:
        beside = [plain.matched(atoms, bits) for bits in options.rates]
        add(atoms, beside)
        for length, model in models.items():
            add(f"dct/{length} {atoms}", [model.matched(atoms, bits) for bits in options.rates], beside)
    if not options.no_sketch:
        add("sketch", [plain.matched("sketch", bits) for bits in options.rates])
    return {"capture": pathlib.Path(path).name, "parameters": plain.size, "rows": rows}


def main():
    options = arguments()
    print("NMSE at equal bytes; in brackets how many times less than of tensors as they are")
    results = [measure(path, options) for path in options.captures]
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
