# SPDX-License-Identifier: Apache-2.0
"""Edge-consensus learning (PDMM-ISVR, ADMM-ISVR; Niwa et al., ICML 2021) beside what was published.

Eight nodes, each with 8 of the 10 classes, on the published double ring and random graph, in files beside the commands:
every edge is used twice in a round of eight steps, where both its ends have the same slot once.
Published are the accuracies at the end of curves that are 550 epochs of 128 steps long, on pixels in [0, 1]; `--setting`
also takes other lengths and pixels, to see what they change.
"""

import argparse
import dataclasses
import pathlib

from experiments.reports import Report, figure, markdown, mean, with_spread
from experiments.series import TEST_SAMPLES, Row, Series, run, series_options
from experiments.shorter_test import with_first_tests

SPLIT = "classes:k=8,shift=4"
STALE = "DSGD, last models at every step"
METHODS = {  # name in tables: algorithm of the trainer
    "DSGD": "dsgd",
    STALE: "dsgd-stale",
    "ADMM-ISVR": "admm",
    "PDMM-ISVR": "pdmm",
}
ALONE, ONE_MACHINE = "each node alone", "one machine"
# Percent. The published DSGD averages at every step with the last models that a node has, our `dsgd` over the edges due.
PUBLISHED = {
    ("logistic", "double-ring"): {"DSGD": 65.5, "ADMM-ISVR": 81.0, "PDMM-ISVR": 80.9, ONE_MACHINE: 82.0},
    ("logistic", "random"): {"DSGD": 65.4, "ADMM-ISVR": 80.5, "PDMM-ISVR": 80.5, ONE_MACHINE: 81.7},
    ("ecl-resnet32", "double-ring"): {"DSGD": 86.6, "ADMM-ISVR": 90.8, "PDMM-ISVR": 90.6, ONE_MACHINE: 91.4},
    ("ecl-resnet32", "random"): {"DSGD": 85.3, "ADMM-ISVR": 90.6, "PDMM-ISVR": 90.6, ONE_MACHINE: 91.2},
}
# A smaller network of the name under which the other one was published.
PUBLISHED["resnet32", "double-ring"] = PUBLISHED["ecl-resnet32", "double-ring"]
ANOTHER_NETWORK = "The published figures are of another network, `ecl-resnet32`, the layout of ResNet-34 with 21.28 million parameters. "


@dataclasses.dataclass(frozen=True)
class Setting:
    """How long to train, and on which pixels."""
    steps: int
    pixels: str

    def title(self):
        return f"{self.steps:,} steps, {self.pixels} pixels"


def setting(text):
    steps, _, pixels = text.partition(",")
    if not steps.isdigit() or int(steps) < 1 or pixels not in ("plain", "standardised"):
        raise argparse.ArgumentTypeError(f"'{text}' is not STEPS,plain or STEPS,standardised; write for example 1000,plain")
    return Setting(int(steps), pixels)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, choices=["logistic", "resnet32", "ecl-resnet32"])
    parser.add_argument("--graph", action="append", dest="graphs", required=True, help="may be repeated")
    parser.add_argument("--setting", action="append", dest="settings", type=setting, required=True, metavar="STEPS,PIXELS",
                        help="plain pixels are in [0, 1], standardised ones have mean 0 and deviation 1; may be repeated, "
                             "the first one is put beside what was published")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS.values()), default=list(METHODS.values()),
                        help="algorithms beside `alone` and one machine (default: all)")
    parser.add_argument("--batch", type=int, required=True, help="of one node")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--period", type=int, default=8, help="steps of a round, in which an edge is used once; not in a file")
    parser.add_argument("--tests", type=int, default=20, help="tests on the way, for the plot")
    parser.add_argument("--test-samples", type=int, default=0, metavar="N", help="test on the first N samples (0: all): a node of "
                        "a large network takes longer over 10,000 than over its training")
    options = series_options(parser, "ecl-{model}")
    if options.quick:
        options.settings = [Setting(16, s.pixels) for s in options.settings[:1]]
        options.graphs, options.nodes, options.tests, options.batch = ["double-ring"], 4, 4, min(options.batch, 8)
    return options


def methods(options):
    """Name in tables: algorithm, of those asked for."""
    return {name: algorithm for name, algorithm in METHODS.items() if algorithm in options.methods}


def lines_of(options):
    """Of a table, and of a plot."""
    return (*methods(options), ALONE, ONE_MACHINE)


def name_of(graph):
    return pathlib.Path(graph.split(":")[0]).stem


def row_name(how, method, graph=""):
    return f"{method}{', ' + name_of(graph) if graph else ''}, {how.title()}"


def rows(options):
    found = []
    for how in options.settings:
        common = ("--model", options.model, "--batch", options.batch, "--lr", repr(options.lr), "--schedule", "constant",
                  "--momentum", 0, "--weight-decay", options.weight_decay, "--pixels", how.pixels)
        shared = (*common, "--split", SPLIT)
        found.append(Row(row_name(how, ONE_MACHINE), 1, how.steps, options.tests, ("--algorithm", "allgather", *common)))
        found.append(Row(row_name(how, ALONE), options.nodes, how.steps, options.tests, ("--algorithm", "alone", *shared)))
        for graph in options.graphs:
            for method, algorithm in methods(options).items():
                found.append(Row(row_name(how, method, graph), options.nodes, how.steps, options.tests,
                                 ("--algorithm", algorithm, "--graph", graph, "--period", options.period, *shared)))
    return found


def published(options, graph, method):
    return PUBLISHED.get((options.model, name_of(graph)), {}).get("DSGD" if method == STALE else method)


def found(outcomes, how, method, graph):
    """The outcome of a line of the table: who does not talk is on every graph the same."""
    return outcomes[row_name(how, method, "" if method in (ALONE, ONE_MACHINE) else graph)]


def cell(outcome):
    return "failed" if outcome.failed else with_spread(outcome.percent(), 1)


def table(options, outcomes):
    header = ["graph, method", "published", *(how.title() for how in options.settings), "distance of the first"]
    lines = []
    for graph in options.graphs:
        for method in lines_of(options):
            theirs = published(options, graph, method)
            mine = [found(outcomes, how, method, graph) for how in options.settings]
            away = "" if theirs is None or mine[0].failed else f"{mean(mine[0].percent()) - theirs:+.1f}"
            lines.append([f"{name_of(graph)}: {method}", f"{theirs:.1f}" if theirs else "", *map(cell, mine), away])
    return markdown(header, lines)


def plot(options, outcomes):
    how = options.settings[0]
    columns = len(options.graphs)
    drawn, grid = figure(2, columns, figsize=(6.5 * columns, 8), squeeze=False, sharex=True)
    for above, below, graph in zip(*grid, options.graphs):
        for number, method in enumerate(lines_of(options)):
            outcome, theirs = found(outcomes, how, method, graph), published(options, graph, method)
            if outcome.failed:
                continue
            above.plot(*outcome.curve(), color=f"C{number}", label=method)
            below.plot(*outcome.curve("loss", 1), color=f"C{number}")
            if theirs:
                above.axhline(theirs, color=f"C{number}", linestyle=":", linewidth=1)
        above.set_title(name_of(graph))
        below.set_xlabel("steps of each node")
        for axes in (above, below):
            axes.grid(True, alpha=0.3)
    tested = min(TEST_SAMPLES, options.test_samples or TEST_SAMPLES)
    grid[0][0].set_ylabel(f"accuracy on {tested:,} test samples, %\n(mean over nodes; dotted: published, of all)")
    grid[1][0].set_ylabel("loss on them")
    grid[0][-1].legend(fontsize="small")
    drawn.suptitle(f"{options.model}, {options.nodes} nodes with 8 of 10 classes each,\n{how.title()}")
    return drawn


def with_data(options):
    """The options of the trainings: with a data set of --test-samples."""
    if not options.test_samples:
        return options
    folder = f"{options.keep}/first-{options.test_samples}"
    return argparse.Namespace(**{**vars(options), "data": with_first_tests(options.data, options.test_samples, folder)})


def note(options, report):
    tested = f", on the first {options.test_samples:,} test samples" if options.test_samples else ""
    return (f"Test accuracy in %, of {options.model} on Fashion-MNIST, mean over {options.nodes} nodes of each node's own "
            f"model, after the last step{tested}. Each node has 8 of the 10 classes (`--split {SPLIT}`), batch {options.batch}, SGD "
            f"with rate {options.lr:g} constant, no momentum, L2 {options.weight_decay:g}; a round of the graph has "
            f"{options.period} steps. {ANOTHER_NETWORK if options.model == 'resnet32' else ''}{report.seeds()}. {report.place()}.")


def results(options, outcomes):
    lines = []
    for how in options.settings:
        for graph in options.graphs:
            for method in lines_of(options):
                outcome = found(outcomes, how, method, graph)
                decentralised = not outcome.failed and method != ONE_MACHINE
                lines.append({"graph": name_of(graph), "method": method, "steps": how.steps, "pixels": how.pixels,
                              "published": published(options, graph, method), "failed": outcome.failed,
                              "accuracy": outcome.percent(),
                              "accuracy_of_mean": outcome.percent("accuracy_of_mean") if decentralised else [],
                              "curve": [] if outcome.failed else outcome.curve(),
                              "loss_curve": [] if outcome.failed else outcome.curve("loss", 1)})
    return lines


def main():
    options = arguments()
    report = Report(options)
    outcomes = Series(with_data(options), rows(options)).run_all()
    report.publish(note(options, report) + "\n\n" + table(options, outcomes), {"results": results(options, outcomes)},
                   plot(options, outcomes))
    return 1 if any(outcome.failed for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    run(main)
