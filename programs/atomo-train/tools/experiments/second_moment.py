# SPDX-License-Identifier: Apache-2.0
"""Adam's own second moment beside the factored one of the workers' squares, at equal bits and several rates."""

import argparse

from experiments.reports import Report, figure, label, markdown, mean, with_spread
from experiments.series import Row, Series, run, series_options, tests_of
from experiments.trainings import UNCOMPRESSED

MEASURE = "bits_per_character"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=8, help="of one worker")
    parser.add_argument("--lr", type=float, nargs="+", default=[0.001, 0.002], help="rates that each arm is trained with")
    parser.add_argument("--bits", type=float, nargs="+", default=[0.25], help="a parameter")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tests", type=int, default=6, help="tests on the way, for the plot")
    options = series_options(parser, "second-moment")
    if options.quick:
        options.workers, options.steps, options.batch, options.tests, options.lr = 2, 6, 2, 2, options.lr[:1]
    return options


def arms(options):
    """What a codec and a second moment add to the command line, by name."""
    own = {UNCOMPRESSED: ("--codec", UNCOMPRESSED)}
    for bits in options.bits:
        codec = ("--codec", f"atomo:bits={bits:g}")
        own[f"{codec[1]}, own"] = codec
        own[f"{codec[1]}, factored"] = (*codec, "--second-moment", "factored")
    return own


def rows(options):
    common = ("--algorithm", "allgather", "--model", "transformer", "--optimizer", "adamw", "--batch", options.batch, "--warmup",
              options.steps // 6)
    return [Row(f"{name}, rate {lr:g}", options.workers, options.steps, options.tests, (*common, "--lr", repr(lr), *choice))
            for name, choice in arms(options).items() for lr in options.lr]


def ends(outcome):
    """Of the last tests, one a seed."""
    return [tests_of(events)[-1][MEASURE] for events in outcome.runs]


def table(options, outcomes):
    lines = []
    for name in arms(options):
        of_rates = [outcomes[f"{name}, rate {lr:g}"] for lr in options.lr]
        sound = [outcome for outcome in of_rates if not outcome.failed]
        if not sound:
            lines.append([name, *[""] * 2, *["failed"] * len(of_rates)])
            continue
        last = [events[-1] for events in sound[0].runs]
        lines.append([name, f"{mean([end['bytes_per_step'] for end in last]):,.0f}", f"{mean([end['ratio'] for end in last]):.1f}",
                      *("failed" if outcome.failed else with_spread(ends(outcome), 3) for outcome in of_rates)])
    return markdown(["codec, second moment", "bytes a step", "ratio", *(f"rate {lr:g}" for lr in options.lr)], lines)


def plot(options, outcomes):
    drawn, axes = figure(figsize=(8, 5))
    for name in arms(options):
        sound = [outcomes[f"{name}, rate {lr:g}"] for lr in options.lr if not outcomes[f"{name}, rate {lr:g}"].failed]
        if not sound:
            continue
        best = min(sound, key=lambda outcome: mean(ends(outcome)))
        tests = best.on_the_way()
        axes.plot([at[0]["steps"] for at in tests], [mean([event[MEASURE] for event in at]) for at in tests], label=best.row.name)
    label(axes, "steps", "test bits a character, mean of seeds", f"a transformer of 3.3 M parameters, {options.workers} workers, best rate")
    return drawn


def main():
    options = arguments()
    report = Report(options)
    outcomes = Series(options, rows(options)).run_all()
    text = (f"A transformer of 3.3 M parameters on CMake's manual, {options.workers} workers over an all-gather, batch {options.batch} each, "
            f"{options.steps} steps, AdamW, rates cosine behind {options.steps // 6} steps of rising, no memory: test bits a "
            f"character. Bytes count what is told of squares. {report.seeds()}. {report.place()}.")
    results = [{"name": name, "failed": outcome.failed, "runs": outcome.runs} for name, outcome in outcomes.items()]
    report.publish(f"{text}\n\n{table(options, outcomes)}", {"results": results}, plot(options, outcomes))
    return 1 if any(outcome.failed for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    run(main)
