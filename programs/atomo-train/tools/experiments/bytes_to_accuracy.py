# SPDX-License-Identifier: Apache-2.0
"""ATOMO beside QSGD and TernGrad at equal bytes (Wang et al., 2018): bytes to a target accuracy.

For each rival, ATOMO as published (singular pairs, `keep` of them a layer, f32 factors) and ours (one price for the model)
get messages of the rival's size; one row of ours is smaller than any rival can be. The target is a point below what
uncompressed training ends at, on the same samples.
"""

import argparse

from experiments.messages import bits_for, message_bytes, pairs_for
from experiments.reports import Report, figure, label, markdown, mean, with_spread
from experiments.series import TEST_SAMPLES, Row, Series, run, series_options
from experiments.trainings import UNCOMPRESSED

RIVALS = {"QSGD": "qsgd:bits=2", "TernGrad": "terngrad"}
BELOW_A_BIT = {"ATOMO here, at an eighth of a bit": "atomo:bits=0.125"}  # where no rival goes
BELOW = 1  # percent; of the uncompressed end
SMOOTHED = 3  # tests in a mean


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="of one worker")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tests", type=int, default=40, help="tests on the way")
    options = series_options(parser, "bytes-to-accuracy-{model}")
    if options.quick:
        options.workers = 2
        options.steps, options.batch, options.tests = 12, min(options.batch, 8), 6
    return options


def codecs(options):
    """Spec of each row: uncompressed, each rival, and behind it both ATOMOs at its bytes."""
    found = {"uncompressed": UNCOMPRESSED}
    for rival, spec in list(RIVALS.items())[:1 if options.quick else None]:
        size, parameters = message_bytes(options, "--codec", spec)
        found[rival] = spec
        found[f"ATOMO as published, at {rival}'s bytes"] = pairs_for(options, size)
        found[f"ATOMO here, at {rival}'s bytes"] = f"atomo:bits={bits_for(size, parameters)}"
    return found if options.quick else {**found, **BELOW_A_BIT}


def rows(options, specs):
    arguments_ = ("--algorithm", "ps", "--model", options.model, "--batch", options.batch, "--lr", repr(options.lr),
                  "--schedule", "constant")
    return [Row(name, options.workers + 1, options.steps, options.tests, (*arguments_, "--codec", spec))
            for name, spec in specs.items()]


def smoothed(outcome):
    """[(steps, megabytes of a worker, percent)] of the tests on the way: means over seeds, then over a few tests."""
    steps, scores = outcome.curve()
    megabytes = [mean([event["sent_bytes_per_worker"] for event in at]) / 1e6 for at in outcome.on_the_way()]
    return [(steps[k], megabytes[k], mean(scores[max(0, k + 1 - SMOOTHED):k + 1])) for k in range(len(steps))]


def reached(points, target):
    """(steps, megabytes) of the first test at the target, or None."""
    return next(((steps, megabytes) for steps, megabytes, score in points if score >= target), None)


def table(specs, outcomes, target):
    header = ["", "codec", "bytes a step", f"megabytes to {target:.1f} %", "steps", "accuracy at the end, all samples"]
    lines = []
    for name, spec in specs.items():
        outcome = outcomes[name]
        if outcome.failed:
            lines.append([name, f"`{spec}`", "", "failed", "", ""])
            continue
        at = reached(smoothed(outcome), target)
        lines.append([name, f"`{spec}`", f"{mean([events[-1]['bytes_per_step'] for events in outcome.runs]):,.0f}",
                      f"{at[1]:.2f}" if at else "not reached", str(at[0]) if at else "",
                      with_spread(outcome.percent(), 2)])
    return markdown(header, lines)


def plot(options, specs, outcomes, target):
    drawn, axes = figure(figsize=(8, 5))
    for name in specs:
        if not outcomes[name].failed:
            points = smoothed(outcomes[name])
            axes.plot([x for _, x, _ in points], [y for *_, y in points], label=name,
                      linestyle="--" if "published" in name else "-")
    axes.axhline(target, color="black", linestyle=":", linewidth=1, label="target")
    axes.set_xscale("log")
    label(axes, "megabytes of gradient a worker sent (log scale)",
          f"accuracy on {TEST_SAMPLES:,} test samples, mean of seeds and {SMOOTHED} tests, %",
          f"{options.model}, {options.workers} workers")
    return drawn


def target_of(outcomes):
    """A point below where uncompressed training ends, percent."""
    if outcomes["uncompressed"].failed:
        raise SystemExit(f"without uncompressed training there is no target: {outcomes['uncompressed'].failed}")
    return smoothed(outcomes["uncompressed"])[-1][2] - BELOW


def results(specs, outcomes):
    """Of all rows, for the file of data."""
    return [{"name": name, "codec": spec, "failed": outcomes[name].failed,
             "curve": [] if outcomes[name].failed else smoothed(outcomes[name]), "runs": outcomes[name].runs}
            for name, spec in specs.items()]


def main():
    options = arguments()
    report = Report(options)
    specs = codecs(options)
    outcomes = Series(options, rows(options, specs)).run_all()
    target = target_of(outcomes)
    text = (f"{options.model} on Fashion-MNIST, {options.workers} workers, batch {options.batch} each, {options.steps} steps, "
            f"SGD with momentum 0.9, rate {options.lr:g} constant, no memory. The target, {target:.2f} %, is {BELOW:g} point "
            f"below where uncompressed training ends, on the first {TEST_SAMPLES:,} test samples, mean of {SMOOTHED} tests and "
            f"over seeds; the same mean has to reach it. Megabytes are those of gradient that a worker sends until then. "
            f"{report.seeds()}. {report.place()}.")
    report.publish(text + "\n\n" + table(specs, outcomes, target), {"target": target, "results": results(specs, outcomes)},
                   plot(options, specs, outcomes, target))
    return 1 if any(outcome.failed for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    run(main)
