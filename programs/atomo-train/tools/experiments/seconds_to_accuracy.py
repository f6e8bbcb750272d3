# SPDX-License-Identifier: Apache-2.0
"""ATOMO beside QSGD and TernGrad at equal bytes (Wang et al., 2018): seconds to a target accuracy over slow links.

The rows and the target are those of bytes_to_accuracy.py. Workers gather each other's messages, each a host whose link is
shaped to --link both ways; all of them share this machine's processors. Seconds are steps times the mean seconds of a step,
tests on the way left out.
"""

import argparse

from experiments import shaped_network
from experiments.bytes_to_accuracy import BELOW, SMOOTHED, codecs, reached, results, smoothed, target_of
from experiments.reports import Report, figure, label, markdown, mean, spread, with_spread
from experiments.series import TEST_SAMPLES, Row, Series, run, series_options

PHASES = ("compute", "encode", "wire", "decode")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--link", default="100mbit", help="rate of each worker's link, as tc has it (default: %(default)s)")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=32, help="of one worker")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tests", type=int, default=40, help="tests on the way")
    options = series_options(parser, "seconds-to-accuracy-{model}-{link}")
    if options.hostfile:
        parser.error("--hostfile does not go with hosts that are made here")
    if options.quick:
        options.workers = 2
        options.steps, options.batch, options.tests = 12, min(options.batch, 8), 6
    return options


def rows(options, specs):
    arguments_ = ("--algorithm", "allgather", "--model", options.model, "--batch", options.batch, "--lr", repr(options.lr),
                  "--schedule", "constant")
    return [Row(name, options.workers, options.steps, options.tests, (*arguments_, "--codec", spec))
            for name, spec in specs.items()]


def milliseconds(events):
    """Of a step of a training."""
    return sum(events[-1]["ms"][phase] for phase in PHASES)


def seconds_to(outcome, target):
    """(mean, spread over seeds) of the seconds to the target, or None. The step that reaches it is that of the seeds' mean."""
    at = reached(smoothed(outcome), target)
    if at is None:
        return None
    seconds = [at[0] * milliseconds(events) / 1000 for events in outcome.runs]
    return mean(seconds), spread(seconds)


def table(specs, outcomes, target):
    header = ["", "codec", "bytes a step", "ms a step: compute", "encode", "wire", "decode", f"steps to {target:.1f} %",
              f"seconds to {target:.1f} %", "accuracy at the end, all samples"]
    lines = []
    for name, spec in specs.items():
        outcome = outcomes[name]
        if outcome.failed:
            lines.append([name, f"`{spec}`", *[""] * 5, "failed", "", ""])
            continue
        ends = [events[-1] for events in outcome.runs]
        at, seconds = reached(smoothed(outcome), target), seconds_to(outcome, target)
        lines.append([name, f"`{spec}`", f"{mean([end['bytes_per_step'] for end in ends]):,.0f}",
                      *(f"{mean([end['ms'][phase] for end in ends]):.1f}" for phase in PHASES),
                      str(at[0]) if at else "not reached", f"{seconds[0]:.1f} ± {seconds[1]:.1f}" if seconds else "",
                      with_spread(outcome.percent(), 2)])
    return markdown(header, lines)


def plot(options, specs, outcomes, target):
    drawn, axes = figure(figsize=(8, 5))
    for name in specs:
        if not outcomes[name].failed:
            step = mean([milliseconds(events) for events in outcomes[name].runs]) / 1000
            points = smoothed(outcomes[name])
            axes.plot([steps * step for steps, *_ in points], [y for *_, y in points], label=name,
                      linestyle="--" if "published" in name else "-")
    axes.axhline(target, color="black", linestyle=":", linewidth=1, label="target")
    axes.set_xscale("log")
    label(axes, f"seconds over links of {options.link} (log scale)",
          f"accuracy on {TEST_SAMPLES:,} test samples, mean of seeds and {SMOOTHED} tests, %",
          f"{options.model}, {options.workers} workers")
    return drawn


def main():
    shaped_network.enter("experiments.seconds_to_accuracy")
    options = arguments()
    report = Report(options)
    with shaped_network.ShapedNetwork(options.workers, options.link) as network:
        options.hostfile = network.hostfile
        specs = codecs(options)
        outcomes = Series(options, rows(options, specs)).run_all()
    target = target_of(outcomes)
    text = (f"{options.model} on Fashion-MNIST, {options.workers} workers over an all-gather, each with a link of {options.link} "
            f"both ways, batch {options.batch} each, {options.steps} steps, SGD with momentum 0.9, rate {options.lr:g} constant, "
            f"no memory. The target, {target:.2f} %, is {BELOW:g} point below where uncompressed training ends, on the first "
            f"{TEST_SAMPLES:,} test samples, mean of {SMOOTHED} tests and over seeds; the same mean has to reach it. Seconds are "
            f"of steps, tests left out. {report.seeds()}. {report.place()}.")
    report.publish(text + "\n\n" + table(specs, outcomes, target), {"target": target, "link": options.link, "results": results(specs, outcomes)},
                   plot(options, specs, outcomes, target))
    return 1 if any(outcome.failed for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    run(main)
