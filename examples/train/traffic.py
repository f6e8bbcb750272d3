#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the traffic and the error of the algorithms without a server beside each other.

Trains a few steps with --algorithm allgather, twoshot and ring for each codec and number of workers, and measures at one
step: the bytes of gradient that a worker sends to others and receives from them, every copy counted, and how far the
mean gradient that the optimiser gets is from that of the workers' own gradients (NMSE, |g - mean|^2 / |mean|^2).

    python3 examples/train/traffic.py --model lenet --workers 2 4 8 --codec atomo:bits=1 --codec qsgd:bits=4
"""

import argparse
import datetime
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy
from compare import ROOT, commit, launcher, machine, markdown, mean, save_figure, spread, write

ALGORITHMS = {"allgather": "--", "twoshot": "-", "ring": ":"}  # and the line of each in the plot


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "build/release/examples/train/atomo-train"))
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--codec", action="append", dest="codecs", metavar="SPEC", help="may be repeated")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--data", help="as the trainer has it; its own default when left out")
    parser.add_argument("--batch", type=int, default=16, help="of one worker")
    parser.add_argument("--at", type=int, default=5, help="the step that is measured, from 0")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="SEED")
    parser.add_argument("--out", default=str(ROOT / "build/traffic"), help="written: OUT.json, OUT.md and OUT.png")
    options = parser.parse_args()
    options.codecs = options.codecs or ["identity:dtype=f32", "atomo:bits=1", "qsgd:bits=4"]
    if min(options.workers) < 2:
        parser.error(f"--workers is {min(options.workers)}, with fewer than 2 nothing is sent")
    if not os.access(options.trainer, os.X_OK):
        parser.error(f"there is no trainer at '{options.trainer}': build the target atomo-train")
    return options


def read_gradient(path):
    """All layers of a .safetensors file of f32, one behind the other, in the order of the model."""
    content = pathlib.Path(path).read_bytes()
    (header,) = struct.unpack("<Q", content[:8])
    return numpy.frombuffer(content[8 + header:], numpy.float32).astype(float)


def measure(options, algorithm, codec, workers, seed):
    """Bytes that a worker sends and receives, and the NMSE of the mean gradient, at one step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*launcher(workers), options.trainer, "--json", "--algorithm", algorithm, "--model", options.model,
                   "--batch", str(options.batch), "--seed", str(seed), "--codec", codec, "--at", str(options.at),
                   "--steps", str(10 * (options.at + 1)), "--stop-at", str(options.at + 1),
                   "--dump-gradients", folder]
        if options.data:
            command += ["--data", options.data]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)
        events = map(json.loads, done.stdout.splitlines())
        (step,) = [event for event in events if event["event"] == "step" and event["step"] == options.at]
        own = [read_gradient(f"{folder}/step{options.at}-worker{k + 1}.safetensors") for k in range(workers)]
        exact = sum(own) / workers
        used = read_gradient(f"{folder}/step{options.at}-mean.safetensors")
    return {"sent": step["traffic_per_worker"]["sent"], "received": step["traffic_per_worker"]["received"],
            "nmse": float(numpy.sum((used - exact) ** 2) / numpy.sum(exact ** 2))}


def table(results):
    header = ["codec", "workers", "algorithm", "bytes sent a step", "received", "NMSE of the mean"]
    rows = []
    for r in results:
        error = f"{r['nmse']:.3g}" + (f" ± {r['nmse_spread']:.2g}" if r["seeds"] > 1 and r["nmse"] > 0 else "")
        rows.append([r["codec"], str(r["workers"]), r["algorithm"], f"{r['sent']:,.0f}", f"{r['received']:,.0f}", error])
    return markdown(header, rows)


def plot(results, options, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, (traffic, error) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    for number, codec in enumerate(options.codecs):
        for algorithm, line in ALGORITHMS.items():
            mine = [r for r in results if r["codec"] == codec and r["algorithm"] == algorithm]
            style = {"marker": ".", "linestyle": line, "color": f"C{number}", "label": f"{codec}, {algorithm}"}
            traffic.plot([r["workers"] for r in mine], [r["received"] / 1e6 for r in mine], **style)
            if all(r["nmse"] > 1e-12 for r in mine):  # what rounding alone leaves does not belong on this axis
                error.plot([r["workers"] for r in mine], [r["nmse"] for r in mine], **style)
    for axes, name in ((traffic, "megabytes that a worker receives in a step"), (error, "NMSE of the mean gradient")):
        axes.set_xscale("log", base=2)
        axes.set_xticks(options.workers, [str(workers) for workers in options.workers])
        axes.set_yscale("log")
        axes.set_xlabel("workers")
        axes.set_ylabel(name)
        axes.grid(True, alpha=0.3)
    traffic.legend(fontsize="small")
    figure.suptitle(f"{options.model}, step {options.at}")
    save_figure(figure, path)


def main():
    options = arguments()
    began, made_of, results = datetime.datetime.now(), commit(), []
    for codec in options.codecs:
        for workers in options.workers:
            for algorithm in ALGORITHMS:
                runs = [measure(options, algorithm, codec, workers, seed) for seed in options.seeds]
                errors = [run["nmse"] for run in runs]
                results.append({"codec": codec, "workers": workers, "algorithm": algorithm, "seeds": len(runs),
                                "sent": mean([run["sent"] for run in runs]),
                                "received": mean([run["received"] for run in runs]),
                                "nmse": mean(errors), "nmse_spread": spread(errors)})
                print(f"{codec}, {workers} workers, {algorithm}: {results[-1]['received']:,.0f} bytes received, "
                      f"NMSE {results[-1]['nmse']:.3g}", flush=True)
    text = table(results)
    note = (f"{options.model}, batch {options.batch} each, step {options.at}, {len(options.seeds)} seeds. Bytes of "
            f"gradient a worker and step, every copy counted, {began:%Y-%m-%d}.")
    pathlib.Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    write(options.out + ".md", note + "\n\n" + text + "\n")
    write(options.out + ".json", json.dumps({
        "date": began.isoformat(timespec="seconds"), "commit": made_of, "machine": machine(),
        "options": {k: v for k, v in vars(options).items() if k not in ("trainer", "out")}, "results": results,
    }, indent=1) + "\n")
    plot(results, options, options.out + ".png")
    print("\n" + note + "\n\n" + text + "\n")
    print(f"table {options.out}.md, data {options.out}.json, plot {options.out}.png")


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"traffic.py: {error}")
