#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains one network with several codecs and compares them.

Runs atomo-train over MPI once for each codec and seed, the same steps for all, with a live line a run, and ends with
an aligned table, the same as Markdown and JSON, and a plot of the test (accuracy of an image model, bits a character of
a language model) against megabytes of gradient sent.

    python3 programs/atomo-train/tools/compare.py --workers 4 --steps 400
"""

import argparse
import collections
import os
import subprocess

from experiments.reports import Report, figure, label, markdown, mean, spread
from experiments.series import TEST_SAMPLES, Row, Series, run
from experiments.trainings import MEASURES, ROOT, UNCOMPRESSED, add_trainer_options, check_trainer, shown

DEFAULT_CODECS = [
    UNCOMPRESSED,
    "atomo:bits=0.5",
    "atomo:bits=0.25",
    "qsgd:bits=2",
    "sign:scale=mean",
    "topk:keep=0.01",
]
PHASES = ("compute", "encode", "wire", "decode")


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add_trainer_options(parser)
    parser.add_argument("--workers", type=int, default=4, help="worker processes; the server comes on top")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--codec", action="append", dest="codecs", metavar="SPEC",
                        help="may be repeated; the uncompressed run is always there")
    parser.add_argument("--model", default="lenet", choices=["logistic", "lenet", "resnet20", "resnet18", "transformer"])
    parser.add_argument("--hostfile", help="the machines to run on, as mpirun reads them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="SEED")
    parser.add_argument("--batch", type=int, default=32, help="of one worker")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--warmup", type=int, default=0, help="steps over which the learning rate rises")
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adamw"])
    parser.add_argument("--algorithm", default="ps", choices=["ps", "allgather", "twoshot"])
    parser.add_argument("--tests", type=int, default=8, help="tests on the way, for the plot")
    parser.add_argument("--quick", action="store_true", help="a few steps of everything, to see that it works")
    parser.add_argument("--keep", metavar="FOLDER", help="of the trainings that have ended, which are not run again")
    parser.add_argument("--out", default=str(ROOT / "build/quickstart"),
                        help="written: OUT.json, OUT.md and OUT.png")
    options = parser.parse_args()
    for name in ("workers", "steps", "batch", "tests"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}, it has to be at least 1")
    if options.quick:
        options.steps, options.batch, options.tests = min(options.steps, 4), min(options.batch, 2), 1
    codecs = options.codecs or DEFAULT_CODECS
    options.codecs = list(dict.fromkeys([UNCOMPRESSED, *codecs]))
    check_trainer(parser, options)
    if options.hostfile and not os.path.isfile(options.hostfile):
        parser.error(f"cannot read the host file '{options.hostfile}'")
    for codec in options.codecs:
        checked = subprocess.run([options.trainer, "--check", "--codec", codec], capture_output=True, text=True)
        if checked.returncode != 0:
            parser.error(checked.stderr.strip().removeprefix("atomo-train: "))
    return options


def rows(options):
    arguments = ("--algorithm", options.algorithm, "--model", options.model, "--batch", options.batch, "--lr",
                 repr(options.lr), "--optimizer", options.optimizer, "--warmup", options.warmup)
    processes = options.workers + (1 if options.algorithm == "ps" else 0)
    return [Row(codec, processes, options.steps, options.tests, (*arguments, "--codec", codec)) for codec in options.codecs]


def summarise(codec, runs):
    ends = [events[-1] for events in runs]
    measure = runs[0][0]["measure"]
    scores = [end[measure] for end in ends]
    curve = collections.defaultdict(list)
    for events in runs:
        for event in events:
            if event["event"] == "evaluation":
                curve[event["steps"]].append((event["sent_bytes_per_worker"], event[measure]))
    return {
        "codec": codec,
        "unbiased": runs[0][0]["unbiased"],
        "bytes_per_step": mean([end["bytes_per_step"] for end in ends]),
        "ratio": mean([end["ratio"] for end in ends]),
        "measure": measure,
        "scores": scores,
        "score": mean(scores),
        "score_spread": spread(scores),
        "ms": {phase: mean([end["ms"][phase] for end in ends]) for phase in PHASES},
        "seconds": [end["seconds"] for end in ends],
        "curve": [{"steps": steps, "megabytes": mean([b for b, _ in points]) / 1e6,
                   "score": mean([score for _, score in points])} for steps, points in sorted(curve.items())],
    }


def title_of_measure(results):
    measures = [r["measure"] for r in results if "measure" in r]
    return MEASURES[measures[0]][0] if measures else "test"


def table(results):
    header = ["codec", "unbiased", "bytes a step", "ratio", title_of_measure(results), "ms a step: compute", "encode", "wire",
              "decode"]
    rows = []
    for r in results:
        if "failed" in r:
            rows.append([r["codec"], "", "", "", "failed", "", "", "", ""])
            continue
        score = shown(r["measure"], r["score"], r["score_spread"] if len(r["scores"]) > 1 else None)
        rows.append([r["codec"], "yes" if r["unbiased"] else "no", f"{r['bytes_per_step']:,.0f}", f"{r['ratio']:.1f}",
                     score, *(f"{r['ms'][phase]:.2f}" for phase in PHASES)])
    return markdown(header, rows)


def plot(results, options):
    crowded = len(results) > 12  # names beside the plot, and more colours
    drawn, axes = figure(figsize=(12, 6) if crowded else (8, 5))
    if crowded:
        from matplotlib import colormaps
        axes.set_prop_cycle(color=[*colormaps["tab20"].colors, *colormaps["tab20b"].colors])
    for r in results:
        if "failed" in r:
            continue
        # The last test is of all samples, those on the way of a part: they do not belong on one line.
        *on_the_way, last = [(p["megabytes"], MEASURES[r["measure"]][1] * p["score"]) for p in r["curve"]]
        line, = axes.plot([x for x, _ in on_the_way], [y for _, y in on_the_way], marker=".",
                          label=f"{r['codec']} ({r['ratio']:.0f}x)", linestyle="-" if r["unbiased"] else "--")
        axes.plot(*last, marker="x", markersize=8, color=line.get_color())
    axes.set_xscale("log")
    label(axes, "megabytes of gradient a worker sent (log scale)",
          f"{title_of_measure(results)} (lines: the first {TEST_SAMPLES:,} samples, crosses: all)",
          f"{options.model}, {options.workers} workers, {options.steps} steps (dashed: biased codecs)",
          **({"loc": "upper left", "bbox_to_anchor": (1, 1)} if crowded else {}))
    return drawn


def note(options, place):
    seeds = f"{len(options.seeds)} seeds (mean ± standard deviation)" if len(options.seeds) > 1 else "one seed"
    optimiser = {"sgd": "SGD with momentum 0.9,", "adamw": "AdamW,"}[options.optimizer]
    rise = f" after a rise over {options.warmup} steps" if options.warmup else ""
    return (f"{options.model}, {options.workers} workers, batch {options.batch} each, {options.steps} steps, "
            f"{optimiser} rate {options.lr:g} cosine{rise}, no memory, {seeds}; {options.algorithm}. Bytes are the gradient "
            f"bytes one worker sends{'; weights come back uncompressed' if options.algorithm == 'ps' else ''}. {place}.")


def main():
    options = arguments()
    report = Report(options)
    outcomes = Series(options, rows(options)).run_all()
    results = [{"codec": codec, "failed": outcome.failed} if outcome.failed else summarise(codec, outcome.runs)
               for codec, outcome in outcomes.items()]
    report.publish(note(options, report.place()) + "\n\n" + table(results), {"results": results}, plot(results, options))
    failed = [r for r in results if "failed" in r]
    for r in failed:
        print(f"{r['codec']} failed: {r['failed']}")
    return 1 if failed else 0


if __name__ == "__main__":
    run(main)
