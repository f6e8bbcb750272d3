#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What blocks would gain if they were sent as signs in a rotation that all share (reference/haar.py), and what that would cost.

For each capture NMSE at equal bytes, everything on the wire counted, and a few drawn messages beside the predictions. Then the
time to encode: what atoms of that length take where none is kept, the rotated entries at what bench_haar takes for one, dithered
entries at what they take today, over today's encode. The making of the rotation is not in it (5 ms for 256 by a QR).
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy as np

import captures
from reference import haar

ROOT = pathlib.Path(__file__).resolve().parents[1]
NO_CONTENT, ALL_CONTENT = 0.002, 1.0  # bits


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("captures", nargs="+", metavar="FILE", help="gradients, .npz or .safetensors, as variance.sh leaves them")
    parser.add_argument("--rates", type=float, nargs="+", default=[1, 0.5, 0.25, 0.125], metavar="BITS", help="bits a parameter")
    parser.add_argument("--lengths", type=int, nargs="+", choices=(64, 128, 256), default=[256, 128, 64], help="of a block")
    parser.add_argument("--program", default=str(ROOT / "build/release/bench/bench_haar"))
    parser.add_argument("--draws", type=int, default=4, help="messages of each length at the last rate; 0 draws none")
    parser.add_argument("--no-times", action="store_true", help="leave bench_haar out")
    parser.add_argument("--no-sketch", action="store_true", help="leave sketches out, which take most of the time")
    parser.add_argument("--json", metavar="PATH", help="the same figures, to this file")
    return parser.parse_args()


def times(tensors, rates, program):
    """What bench_haar says of the tensors as one."""
    with tempfile.NamedTemporaryFile(suffix=".f32") as file:
        np.concatenate([x.ravel() for x in tensors.values()]).astype("<f4").tofile(file.name)
        words = [f"{bits:g}" for bits in sorted({NO_CONTENT, ALL_CONTENT, *rates})]
        return json.loads(subprocess.run([program, file.name, *words], check=True, capture_output=True, text=True).stdout)


def encode_ratio(found, shares, length, bits, dithered_at_one):
    """Of the encode of rotated blocks and today's, from bench_haar's times and the shares of entries that are sent."""
    encode = {float(rate): ns for rate, ns in found["encode_ns"].items()}
    own = next(row for row in found["blocks"] if row["length"] == length)
    dithered_ns = (encode[ALL_CONTENT] - encode[NO_CONTENT]) / dithered_at_one
    rotated, dithered = shares
    return (own["none_ns"] + rotated * own["all_ns"] + dithered * dithered_ns) / encode[bits]


def line(name, cells):
    print(f"{name:18}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def measure(path, options):
    tensors = captures.read_tensors(path)
    model, rows = haar.HaarModel(tensors), []
    print(f"\n{path}: {model.size:,} parameters, {len(tensors)} tensors")
    line("", [f"{bits:g} b" for bits in options.rates])

    def add(atoms, beside=None):
        row = {"atoms": atoms, "nmse": {bits: model.matched(atoms, bits) for bits in options.rates}}
        if beside:
            row |= {"beside": beside["atoms"], "gain": {bits: beside["nmse"][bits] / row["nmse"][bits] for bits in options.rates}}
        rows.append(row)
        line(atoms, [f"{row['nmse'][bits]:.4g}" + (f" (/ {row['gain'][bits]:.3f})" if beside else "") for bits in options.rates])
        return row

    blocks, by_rows = add("blocks"), add("rows")
    for length in options.lengths:
        add(f"haar/{length}", blocks)
    add(f"haar/{options.lengths[0]}/entropy", blocks)
    for length in options.lengths:
        add(f"haar-rows/{length}", by_rows)
    if not options.no_sketch:
        sketch = add("sketch")
        for length in options.lengths:
            add(f"haar-sketch/{length}", sketch)
    draw(model, options)
    found = None if options.no_times else times(tensors, options.rates, options.program)
    if found:
        one = model.shares("blocks", ALL_CONTENT)[1]
        print(f"ns an entry: today's encode {found['encode_ns']}; rotated " + ", ".join(
                f"{row['length']}: {row['all_ns']} (product {row['product_ns']}; {row['none_ns']} where none is kept)"
                for row in found["blocks"]))
        for length in options.lengths:
            shares = {bits: model.shares(f"haar/{length}", bits) for bits in options.rates}
            ratios = {bits: encode_ratio(found, shares[bits], length, bits, one) for bits in options.rates}
            line(f"encode, {length}", [f"x {ratios[bits]:.2f} ({shares[bits][0]:.0%} rotated)" for bits in options.rates])
            rows.append({"encode": length, "ratio": ratios, "rotated": {bits: shares[bits][0] for bits in options.rates}})
    return {"capture": pathlib.Path(path).name, "parameters": model.size, "rows": rows, "times": found}


def draw(model, options):
    """Messages beside their predictions, at the last rate."""
    rng = np.random.default_rng(1)
    for length in options.lengths if options.draws else []:
        price = model.price_of(f"haar/{length}", options.rates[-1])
        families = [family for layer in model.layers for family in layer.families(f"haar/{length}")]
        errors = []
        for _ in range(options.draws):
            rotation = haar.rotation_of(length, rng)
            errors.append(sum(((family.draw(price, rotation, rng) - family.x)**2).sum() for family in families) / model.energy)
        print(f"drawn, {length}: {np.mean(errors):.4g} +- {np.std(errors) / len(errors)**0.5:.2g}, "
              f"predicted {sum(family.at(price)[1] for family in families) / model.energy:.4g}", flush=True)


def main():
    options = arguments()
    print("NMSE at equal bytes; in brackets how many times less than today's")
    results = [measure(path, options) for path in options.captures]
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
