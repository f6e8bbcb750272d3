#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of docs/one-price.md and prints their numbers.

    python3 docs/figures/make.py                          # one-atom.png, from the tables of FORMAT.md
    python3 docs/figures/make.py --tool build/release/programs/atomo/atomo    # cap.png too, from messages of a real gradient
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import matplotlib
import numpy

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from reference.families import ATOM_STEPS  # noqa: E402
from reference.duo_code import COSTS, DELTA, by_class, classes_of  # noqa: E402

LAYERS = (("conv1.weight", (20, 1, 5, 5)), ("conv1.bias", (20,)), ("conv2.weight", (50, 20, 5, 5)),
          ("conv2.bias", (50,)), ("fc1.weight", (500, 800)), ("fc1.bias", (500,)), ("fc2.weight", (10, 500)),
          ("fc2.bias", (10,)))


def save(figure, name):
    figure.tight_layout()
    figure.savefig(HERE / name, dpi=130)
    print(f"  {HERE.relative_to(ROOT) / name}")


def one_atom():
    """What an atom of Gaussian content costs and what its estimate is off by, against its rms, the price being 1."""
    ratio = numpy.exp2(numpy.linspace(-4, 5, 400))
    p, (number, part) = numpy.minimum(ratio, 1), classes_of(ratio)
    bits = p * by_class(ATOM_STEPS)[number, part]
    moment = (ratio / p)**2 + DELTA[number]**2 / 12 * (1 + 1 / 256)
    error = p * moment - ratio**2
    figure, (cost, loss) = pyplot.subplots(1, 2, figsize=(10, 3.8))
    cost.plot(ratio, bits, color="C0", label="bits an entry")
    cost.plot(ratio, p, color="C1", linestyle="--", label="probability")
    cost.set_ylabel("bits an entry, probability")
    loss.plot(ratio, error, color="C0", label="variance an entry")
    loss.plot(ratio, ratio**2, color="C7", linestyle=":", label="its energy")
    loss.set_yscale("log")
    loss.set_ylabel("in squared prices")
    for axes in (cost, loss):
        axes.axvline(1, color="black", linewidth=0.8, linestyle=":")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("rms of the atom / price")
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize="small")
    print(f"content of an uncertain atom: {COSTS[ATOM_STEPS[0], 0]:.3f} bits an entry at steps of {DELTA[0]:.2f} rms; "
          f"variance of certain ones {error[ratio >= 1].min():.2f} to {error[ratio >= 1].max():.2f} squared prices")
    save(figure, "one-atom.png")


def write_gradient(folder):
    """The tests' real gradient as .npz."""
    values = numpy.fromfile(ROOT / "tests/data/lenet_gradient.bf16", "<u2").astype(numpy.uint32) << 16
    values, layers, at = values.view(numpy.float32), {}, 0
    for name, shape in LAYERS:
        layers[name] = values[at:at + math.prod(shape)].reshape(shape)
        at += math.prod(shape)
    path = pathlib.Path(folder) / "gradient.npz"
    numpy.savez(path, **layers)
    return path


def cap(tool):
    """NMSE with the cap at 1.2 to 1 times the budget, over NMSE without."""
    rooms = (1.2, 1.1, 1.05, 1.02, 1.01, 1.0)
    cases = [(bits, atoms) for atoms in ("rows", "auto") for bits in (0.5, 1)]
    figure, axes = pyplot.subplots(figsize=(6, 3.8))
    with tempfile.TemporaryDirectory() as folder:
        gradient = write_gradient(folder)
        for bits, atoms in cases:
            specs = [f"atomo:bits={bits},atoms={atoms}"]
            specs += [f"atomo:bits={bits},cap={bits * room:g},atoms={atoms}" for room in rooms]
            command = [tool, "measure", "--json", "--draws", "100", *(f"--codec={spec}" for spec in specs), gradient]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(done.stderr)
            free, *capped = (codec["nmse"] for codec in json.loads(done.stdout)["codecs"])
            axes.plot(rooms, [nmse / free for nmse in capped], marker=".", label=f"atoms={atoms}, {bits} bit")
            print(f"{specs[0]}: NMSE {free:.3g}; " + ", ".join(f"cap {room:g}: x {nmse / free:.2f}"
                                                             for room, nmse in zip(rooms, capped)))
    axes.set_xlabel("cap / budget")
    axes.set_ylabel("NMSE / NMSE without a cap")
    axes.set_yscale("log")
    axes.invert_xaxis()
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small")
    save(figure, "cap.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", help="the command line tool, which measures what a cap costs")
    options = parser.parse_args()
    one_atom()
    if options.tool:
        cap(options.tool)


if __name__ == "__main__":
    main()
