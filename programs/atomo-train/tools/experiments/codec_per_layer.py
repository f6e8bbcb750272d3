# SPDX-License-Identifier: Apache-2.0
"""A policy file with a codec a layer beside one codec for all at the same bytes."""

import argparse
import pathlib

from experiments.messages import bits_for, message_bytes
from experiments.reports import Report, figure, label, markdown, mean, with_spread
from experiments.series import Row, Series, run, series_options
from experiments.trainings import UNCOMPRESSED

ONE_FOR_ALL = ("atomo:bits={}", "atomo:bits={},atoms=rows", "atomo:bits={},atoms=coordinate")
PER_LAYER = "a codec a layer"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", required=True, help="file of lines 'pattern = codec'")
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="of one worker")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tests", type=int, default=20, help="tests on the way, for the plot")
    options = series_options(parser, "codec-per-layer")
    try:
        options.policy = pathlib.Path(options.policy).read_text()
    except OSError as error:
        parser.error(f"--policy: {error}")
    if options.quick:
        options.workers = 2
        options.steps, options.batch, options.tests = 8, min(options.batch, 8), 2
    return options


def rows(options):
    size, parameters = message_bytes(options, "--policy", options.policy)
    common = ("--algorithm", "ps", "--model", options.model, "--batch", options.batch, "--lr", repr(options.lr))
    specs = [UNCOMPRESSED, *(text.format(bits_for(size, parameters)) for text in ONE_FOR_ALL)]
    choices = {PER_LAYER: ("--policy", options.policy), **{spec: ("--codec", spec) for spec in specs}}
    return [Row(name, options.workers + 1, options.steps, options.tests, (*common, *choice))
            for name, choice in choices.items()]


def table(outcomes):
    lines = []
    for name, outcome in outcomes.items():
        if outcome.failed:
            lines.append([name, "", "", "failed"])
            continue
        ends = [events[-1] for events in outcome.runs]
        lines.append([name, f"{mean([end['bytes_per_step'] for end in ends]):,.0f}",
                      f"{mean([end['ratio'] for end in ends]):.1f}", with_spread(outcome.percent(), 2)])
    return markdown(["codec", "bytes a step", "ratio", "test accuracy, %"], lines)


def plot(options, outcomes):
    drawn, axes = figure(figsize=(8, 5))
    for name, outcome in outcomes.items():
        if not outcome.failed:
            axes.plot(*outcome.curve(), linewidth=2.5 if name == PER_LAYER else 1.2, label=name)
    label(axes, "steps",
          "accuracy on the first test samples, mean of seeds, %",
          f"{options.model}, {options.workers} workers; compressed ones at equal bytes")
    return drawn


def main():
    options = arguments()
    report = Report(options)
    outcomes = Series(options, rows(options)).run_all()
    text = (f"{options.model} on Fashion-MNIST, {options.workers} workers, batch {options.batch} each, {options.steps} steps, "
            f"SGD with momentum 0.9, rate {options.lr:g} cosine, no memory. One codec for all layers gets the bytes of the "
            f"policy. {report.seeds()}. {report.place()}.")
    results = [{"codec": name, "failed": outcome.failed, "runs": outcome.runs} for name, outcome in outcomes.items()]
    report.publish(f"{text}\n\nThe policy:\n\n```\n{options.policy.strip()}\n```\n\n{table(outcomes)}",
                   {"results": results}, plot(options, outcomes))
    return 1 if any(outcome.failed for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    run(main)
