#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the traffic and the error of the algorithms without a server beside each other.

Trains a few steps with --algorithm allgather, twoshot and ring for each codec and number of workers, and measures at one
step: the bytes of gradient that a worker sends to others and receives from them, every copy counted, and how far the
mean gradient that the optimiser gets is from that of the workers' own gradients (NMSE, |g - mean|^2 / |mean|^2).

    python3 programs/atomo-train/tools/traffic.py --model lenet --workers 2 4 8 --codec atomo:bits=1 --codec qsgd:bits=4
"""

import argparse
import pathlib
import struct
import sys
import tempfile

import numpy
from experiments.reports import Report, figure, markdown, mean, spread
from experiments.trainings import ROOT, add_trainer_options, check_trainer, train

ALGORITHMS = {"allgather": "--", "twoshot": "-", "ring": ":"}  # and the line of each in the plot


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add_trainer_options(parser)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--codec", action="append", dest="codecs", metavar="SPEC", help="may be repeated")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--batch", type=int, default=16, help="of one worker")
    parser.add_argument("--at", type=int, default=5, help="the step that is measured, from 0")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="SEED")
    parser.add_argument("--out", default=str(ROOT / "build/traffic"), help="written: OUT.json, OUT.md and OUT.png")
    options = parser.parse_args()
    options.codecs = options.codecs or ["identity:dtype=f32", "atomo:bits=1", "qsgd:bits=4"]
    if min(options.workers) < 2:
        parser.error(f"--workers is {min(options.workers)}, with fewer than 2 nothing is sent")
    check_trainer(parser, options)
    return options


def read_gradient(path):
    """All layers of a .safetensors file of f32, one behind the other, in the order of the model."""
    content = pathlib.Path(path).read_bytes()
    (header,) = struct.unpack("<Q", content[:8])
    return numpy.frombuffer(content[8 + header:], numpy.float32).astype(float)


def measure(options, algorithm, codec, workers, seed):
    """Bytes that a worker sends and receives, and the NMSE of the mean gradient, at one step."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--algorithm", algorithm, "--model", options.model, "--batch", options.batch, "--seed", seed,
                     "--codec", codec, "--at", options.at, "--steps", 10 * (options.at + 1), "--stop-at",
                     options.at + 1, "--dump-gradients", folder]
        if options.data:
            arguments += ["--data", options.data]
        events = train(options.trainer, workers, arguments)
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


def plot(results, options):
    drawn, (traffic, error) = figure(1, 2, figsize=(13, 4.5))
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
    error.legend(*traffic.get_legend_handles_labels(), fontsize="small", bbox_to_anchor=(1.02, 1), loc="upper left")
    drawn.suptitle(f"{options.model}, step {options.at}")
    return drawn


def main():
    options = arguments()
    report, results = Report(options), []
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
    note = (f"{options.model}, batch {options.batch} each, step {options.at}, {len(options.seeds)} seeds. Bytes of "
            f"gradient a worker and step, every copy counted, {report.began:%Y-%m-%d}.")
    report.publish(note + "\n\n" + table(results), {"results": results}, plot(results, options))


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as error:
        sys.exit(f"traffic.py: {error}")
