#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains for a while at each of several learning rates, and says which ends best.

What stands behind -- goes to the trainer as it is: model, algorithm, codec, batch. A rate at which the training diverges is a line
of the table too.

    python3 programs/atomo-train/tools/tune.py --processes 5 --steps 100 -- --model lenet --budget 0.5bit
"""

import argparse
import sys

from experiments.reports import markdown, mean, spread
from experiments.series import run
from experiments.trainings import MEASURES, Progress, add_trainer_options, check_trainer, shown, train

RATES = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1]
LAST = 10  # steps whose loss is averaged


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add_trainer_options(parser)
    parser.add_argument("--processes", type=int, default=4, help="with a server, that counts")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, nargs="+", default=RATES, metavar="RATE")
    parser.add_argument("--schedule", default="constant", choices=["constant", "cosine"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="SEED")
    parser.add_argument("--hostfile", help="the machines to run on, as mpirun reads them")
    parser.add_argument("words", nargs="*", metavar="-- OPTION", help="of the trainer")
    options = parser.parse_args()
    check_trainer(parser, options)
    return options


def trained(options, rate):
    """(measure, its values, losses of the last steps) of the seeds at a rate. Raises RuntimeError where one fails."""
    measure, values, losses = None, [], []
    for seed in options.seeds:
        progress = Progress(f"rate {rate:g} seed {seed}", options.steps)
        words = [*options.words, "--steps", options.steps, "--lr", repr(rate), "--schedule", options.schedule, "--seed", seed,
                 *(("--data", options.data) if options.data else ())]
        try:
            events = train(options.trainer, options.processes, words, progress, options.hostfile)
        except RuntimeError as error:
            progress.line.finish(f"failed: {error}")
            raise
        progress.finish(events)
        measure = events[0]["measure"]
        values.append(events[-1][measure])
        losses.append(mean([event["loss"] for event in events if event["event"] == "step"][-LAST:]))
    return measure, values, losses


def main():
    options = arguments()
    measure, found, lines = None, {}, []
    for rate in options.lr:
        try:
            measure, values, losses = trained(options, rate)
        except RuntimeError:
            lines.append([f"{rate:g}", "failed", ""])
            continue
        found[rate] = mean(values)
        lines.append([f"{rate:g}", shown(measure, mean(values), spread(values) if len(values) > 1 else None), f"{mean(losses):.3f}"])
    title = MEASURES[measure][0] if measure else "test"
    print("\n" + markdown(["rate", title, f"loss of the last {LAST} steps"], lines))
    if not found:
        print(f"{sys.argv[0]}: no training ended", file=sys.stderr)
        return 1
    least_is_best = measure == "bits_per_character"
    print(f"\nbest: --lr {(min if least_is_best else max)(found, key=found.get):g}")
    return 0


if __name__ == "__main__":
    run(main)
