#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures every codec's variance at equal bytes on gradients of real training, beside what the reference model says.

Draws messages with the command line tool, predicts their size and error with bench/reference, and times encoders beside
an exact SVD and a PowerSGD step. `bash bench/variance.sh` installs and builds what this needs, then runs it.
"""
import argparse
import dataclasses
import datetime
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys

import captures
import variance_costs
import variance_report
from reference import Model

ROOT = pathlib.Path(__file__).resolve().parents[1]
RATES = (4, 2, 1, 0.5, 0.25, 0.125)
SIZE_TOLERANCE, ERROR_TOLERANCE = 0.03, 0.05
F32_FLOOR = 3e-8  # NMSE that the reference model leaves out: rounding of a sketch's products, of what is decoded


@dataclasses.dataclass(frozen=True)
class Codec:
    """A line of the table. `spec` has {bits}, or {keep} for the largest count or share that fits `bits`."""
    name: str
    spec: str
    biased: bool = False
    drawn: bool = True  # else only the reference model knows it
    rates: tuple = RATES
    counts: bool = False  # {keep} is a whole number


CODECS = (
    Codec("auto", "atomo:bits={bits},atoms=auto"),
    Codec("singular pairs", "atomo:bits={bits},atoms=svd"),
    Codec("sketch", "atomo:bits={bits},atoms=sketch"),
    Codec("sketch, rank 16", "atomo:bits={bits},atoms=sketch,rank=16"),
    Codec("sketch, rank 8", "atomo:bits={bits},atoms=sketch,rank=8"),
    Codec("rows", "atomo:bits={bits},atoms=rows"),
    Codec("blocks", "atomo:bits={bits},atoms=blocks"),
    *(Codec(f"{name}{variance_report.NEAREST}", f"atomo:bits={{bits}},atoms={atoms},content=nearest", biased=True)
      for name, atoms in (("auto", "auto"), ("singular pairs", "svd"), ("sketch", "sketch"), ("rows", "rows"), ("blocks", "blocks"))),
    Codec("coordinates", "atomo:bits={bits},atoms=coordinate"),
    Codec("ATOMO as published", "atomo:atoms=svd,keep={keep},values=f32", counts=True),
    Codec("QSGD", "qsgd:bits={bits}", rates=(4, 2)),
    Codec("QSGD, entropy-coded", "qsgd-entropy:bits={bits}", drawn=False),
    Codec("EDEN", "eden:bits={bits}", drawn=False),
    Codec("top-k (biased)", "topk:keep={keep}", biased=True),
)
QUICK = ("auto", "singular pairs", "sketch", "rows", "blocks", *(f"{name}{variance_report.NEAREST}" for name in (
    "auto", "singular pairs", "sketch", "rows", "blocks")), "coordinates", "ATOMO as published", "EDEN", "top-k (biased)")
FIRST = " (a first message)"
COSTS = ("atomo:bits=1,atoms=auto", "atomo:bits=1,atoms=auto" + FIRST, "atomo:bits=0.5,atoms=auto",
         "atomo:bits=0.25,atoms=auto", "atomo:bits=0.25,atoms=auto" + FIRST, "atomo:bits=1,atoms=sketch",
         "atomo:bits=1,atoms=sketch,rank=16", "atomo:bits=1,atoms=sketch,rank=8", "atomo:bits=1,atoms=sketch,rank=4",
         "atomo:bits=1,atoms=rows", "atomo:bits=1,atoms=blocks", "atomo:bits=1,atoms=coordinate", "atomo:bits=1,atoms=svd",
         "qsgd:bits=4")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0],
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--tool", default=str(ROOT / "build/release/programs/atomo/atomo"))
    parser.add_argument("--trainer", default=str(ROOT / "build/release/programs/atomo-train/atomo-train"))
    parser.add_argument("--model", action="append", dest="models", choices=sorted(captures.MODELS),
                        help="to train and capture; may be repeated (resnet18 and transformer when left out)")
    parser.add_argument("--capture", action="append", default=[], metavar="FILE",
                        help="a .npz or .safetensors of gradients to measure on; then nothing is trained but --model")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES), metavar="BITS", help="bits a parameter")
    parser.add_argument("--draws", type=int, default=8, help="messages of each codec and rate")
    parser.add_argument("--starts", type=int, default=4, help="random starts that a sketch's prediction is the mean of")
    parser.add_argument("--costs-only", action="store_true",
                        help="the tables of times, and of what ranks from earlier steps change, alone")
    parser.add_argument("--rounds", type=int, default=3, help="of the cost table; 0 leaves it out")
    parser.add_argument("--quick", action="store_true", help="one small model, two rates, few codecs")
    parser.add_argument("--check", action="store_true", help=f"exit 1 when sizes are more than {SIZE_TOLERANCE:.0%} or errors "
                        f"more than {ERROR_TOLERANCE:.0%} and three standard errors from the prediction")
    parser.add_argument("--out", default=str(ROOT / "bench/results/variance"),
                        help="written: OUT.txt, OUT.md, OUT.json and OUT.png")
    options = parser.parse_args()
    for name, least in (("draws", 2), ("starts", 1), ("rounds", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name} is {getattr(options, name)}, it has to be at least {least}")
    if min(options.rates) <= 0 or max(options.rates) > 16:
        parser.error("--rates are bits a parameter, above 0 and at most 16")
    if options.quick:
        options.rates, options.draws, options.rounds = [0.5, 0.125], min(options.draws, 6), min(options.rounds, 1)
        options.models = options.models or ([] if options.capture else ["lenet"])
    options.models = options.models or ([] if options.capture else ["resnet18", "transformer"])
    if not os.access(options.tool, os.X_OK):
        parser.error(f"there is no tool at '{options.tool}': build the target atomo_cli")
    if options.models and not os.access(options.trainer, os.X_OK):
        parser.error(f"there is no trainer at '{options.trainer}': build the target atomo-train")
    for path in options.capture:
        if not os.path.isfile(path):
            parser.error(f"there is no capture at '{path}'")
    return options


class Progress:
    """A line on the terminal, rewritten in place; nothing elsewhere."""

    def __init__(self):
        self.live = sys.stderr.isatty()

    def __call__(self, text):
        if self.live:
            print(f"\r{text[:110]}\033[K", end="", file=sys.stderr, flush=True)

    def clear(self):
        self("")


class Capture:
    """A gradient, the messages drawn of it and the predictions for them."""

    def __init__(self, name, path, options):
        self.name, self.path, self.options = name, path, options
        self.tensors = captures.read_tensors(path)
        self.models = [Model(self.tensors, start) for start in range(1, options.starts + 1)]

    def draw(self, spec, draws, history=False):
        """`history`: ranks of sketches follow from the draws before, as in a training; else every draw is a first message."""
        command = [self.options.tool, "measure", "--json", "--without-names", "--threads", "1", "--draws", str(draws),
                   *([] if history else ["--fixed-ranks"]), "--codec", spec, str(self.path)]
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode != 0:
            raise RuntimeError(f"{spec}: {found.stderr.strip()}")
        return json.loads(found.stdout)["codecs"][0]

    def predict(self, spec):
        sketches = spec.startswith("atomo:bits") and ("atoms=" not in spec or "atoms=auto" in spec or "atoms=sketch" in spec)
        found = [model.predict(spec) for model in (self.models if sketches else self.models[:1])]
        errors = [p.nmse for p in found]
        prediction = {"predicted_bits": statistics.mean(p.bits for p in found), "predicted_nmse": statistics.mean(errors),
                      "predicted_stderr": statistics.stdev(errors) / len(errors)**0.5 if len(errors) > 1 else 0.0}
        return prediction | ({"predicted_choices": found[0].choices} if len(set(found[0].choices.values())) > 1 else {})

    def spec_of(self, codec, bits):
        """The codec's spec at a rate; None when it cannot be that small."""
        if "{keep}" not in codec.spec:
            return codec.spec.format(bits=f"{bits:g}")
        least, most = (1, 1 << 14) if codec.counts else (1e-6, 1.0)
        def fits(keep):
            return self.models[0].predict(codec.spec.format(keep=keep)).bits <= bits
        if not fits(least):
            return None
        while (most - least > 1) if codec.counts else (most / least > 1.01):
            middle = (least + most) // 2 if codec.counts else math.sqrt(least * most)
            least, most = (middle, most) if fits(middle) else (least, middle)
        return codec.spec.format(keep=least if codec.counts else f"{least:.4g}" if least >= 1e-4 else f"{least:.4e}")

    def measure(self, codec, bits):
        spec = self.spec_of(codec, bits)
        if spec is None:
            return None
        row = {"model": self.name, "codec": codec.name, "biased": codec.biased, "rate": bits, "spec": spec}
        if codec.drawn:
            drawn = self.draw(spec, self.options.draws)
            spec = drawn["canonical"]
            row |= {"canonical": spec, "draws": self.options.draws, "bits": drawn["bits_per_parameter"], "nmse": drawn["nmse"],
                    "nmse_stderr": drawn["nmse_stderr"], "encode_ms": drawn["encode_ms"], "decode_ms": drawn["decode_ms"]}
        row |= self.predict(spec)
        return None if math.isnan(row["predicted_nmse"]) else row

    def costs(self, progress):
        def encode_ms(spec):
            spec, first, _ = spec.partition(FIRST)
            return self.draw(spec, 2 if "svd" in spec else 11, history=not first)["encode_ms"]
        return variance_costs.measure(self.tensors, COSTS, encode_ms, self.options.rounds, progress)

    def history(self, progress):
        """What ranks that follow from earlier steps add to the error: the default after ten steps beside first messages."""
        rows = []
        for bits in (1, 0.5, 0.25, 0.125):
            spec = f"atomo:bits={bits:g},atoms=auto"
            progress(f"{self.name}: {spec} after earlier steps")
            first, later = (self.draw(spec, 4 * self.options.draws, history=history) for history in (False, True))
            rows.append({"model": self.name, "spec": spec, "first_nmse": first["nmse"], "later_nmse": later["nmse"],
                         "first_ms": first["encode_ms"], "later_ms": later["encode_ms"]})
        return rows

    def facts(self):
        return {"model": self.name, "parameters": self.models[0].size, "tensors": len(self.tensors)}


def disagreements(rows):
    """Lines for drawn figures that are not where they were predicted."""
    for row in rows:
        if "nmse" not in row:
            continue
        where = f"{row['model']}, {row['spec']}"
        if abs(row["bits"] / row["predicted_bits"] - 1) > SIZE_TOLERANCE:
            yield f"{where}: {row['bits']:.4g} bits a parameter, {row['predicted_bits']:.4g} were predicted"
        noise = math.hypot(row["nmse_stderr"] or 0, row["predicted_stderr"])
        allowed = ERROR_TOLERANCE * row["predicted_nmse"] + 3 * noise + F32_FLOOR
        if abs(row["nmse"] - row["predicted_nmse"]) > allowed:
            yield f"{where}: NMSE {row['nmse']:.4g}, {row['predicted_nmse']:.4g} was predicted"


def machine():
    names = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]
    return {"processor": (names or [platform.machine()])[0], "cores": os.cpu_count(), "system": platform.platform(),
            "load": round(os.getloadavg()[0], 1)}


def main():
    options, progress, began = arguments(), Progress(), datetime.datetime.now()
    codecs = [codec for codec in CODECS if not options.costs_only and (not options.quick or codec.name in QUICK)]
    sources = [(pathlib.Path(path).stem, path) for path in options.capture]
    for model in options.models:
        folder = ROOT / "build/variance" / model
        sources.append((model, captures.capture(model, options.trainer, folder, progress)))
    rows, costs, history, facts = [], [], [], []
    for name, path in sources:
        capture = Capture(name, path, options)
        facts.append(capture.facts())
        for codec in codecs:
            for bits in options.rates:
                progress(f"{name}: {codec.name} at {bits:g} bits")
                found = capture.measure(codec, bits) if codec.rates == RATES or bits in codec.rates else None
                rows += [found] if found else []
            progress.clear()
            print(variance_report.line(name, codec.name, [r for r in rows if (r["model"], r["codec"]) == (name, codec.name)]),
                  flush=True)
        if options.rounds:
            costs += [{"model": name, **row} for row in capture.costs(progress)]
            history += capture.history(progress)
            progress.clear()
    report = {"date": began.isoformat(timespec="seconds"), "machine": machine(), "draws": options.draws,
              "starts": options.starts, "rounds": options.rounds, "captures": facts, "rows": rows, "costs": costs,
              "history": history}
    variance_report.write(report, [codec.name for codec in codecs], options.out)
    if options.costs_only:
        print(pathlib.Path(options.out + ".txt").read_text() + f"\nwritten: {options.out}.txt, .md, .json")
        return 0
    wrong = list(disagreements(rows))
    print("\n".join(["", *wrong, f"{len(wrong)} of {sum('nmse' in row for row in rows)} figures away from their prediction",
                     f"written: {options.out}.txt, .md, .json, .png"]))
    return 1 if wrong and options.check else 0


if __name__ == "__main__":
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":  # read when NumPy is loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"OPENBLAS_NUM_THREADS": "1"})
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nvariance.py: interrupted", file=sys.stderr)
        sys.exit(130)
    except (RuntimeError, ValueError) as error:
        sys.exit(f"variance.py: {error}")
