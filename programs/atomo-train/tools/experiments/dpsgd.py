# SPDX-License-Identifier: Apache-2.0
"""D-PSGD on a ring beside all-reduce SGD at equal epochs (Lian et al., 2017): the gap in accuracy.

The paper finds no gap: at equal epochs both reach the same. Each node sends its weights to two neighbours and averages
with theirs, where all-reduce averages the gradients of all. The recipe is that published for ResNet-20: images moved by up to 4
pixels and mirrored, momentum 0.9, the rate a tenth after half and after three quarters of the run.
"""

import argparse

from experiments.reports import Report, figure, label, markdown, with_spread
from experiments.series import Row, Series, run, series_options

ALL_REDUCE = "all-reduce"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--nodes", type=int, nargs="+", required=True, help="sizes of the ring")
    parser.add_argument("--steps", type=int, required=True, help="of each node, where there are as many as the first size; "
                        "others take as many as make the epochs equal")
    parser.add_argument("--batch", type=int, required=True, help="of one node")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--schedule", default="step", choices=["step", "cosine"])
    parser.add_argument("--augment", default="crop,flip", help="as the trainer has it; empty: images as they are")
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--tests", type=int, default=10, help="tests on the way, for the plot")
    options = series_options(parser, "dpsgd")
    if options.quick:
        options.nodes, options.steps, options.batch, options.tests = options.nodes[:1], 4, min(options.batch, 4), 2
    return options


def name(nodes, method):
    return f"{nodes} nodes, {method}"


def rows(options):
    found = []
    for nodes in options.nodes:
        steps = round(options.steps * options.nodes[0] / nodes)
        common = ("--model", options.model, "--batch", options.batch, "--lr", repr(options.lr), "--weight-decay",
                  options.weight_decay,
                  "--schedule", options.schedule, *(("--decay", 0.1, "--decay-at", "0.5,0.75") if options.schedule == "step" else ()),
                  *(("--augment", options.augment) if options.augment else ()))
        for method, words in ((ALL_REDUCE, ("--algorithm", "allgather")),
                              ("D-PSGD", ("--algorithm", "dpsgd", "--graph", "ring"))):
            found.append(Row(name(nodes, method), nodes, steps, options.tests, (*words, *common)))
    return found


def table(options, outcomes):
    header = ["nodes", "steps of a node", ALL_REDUCE, "D-PSGD", "gap, seed by seed", "D-PSGD's mean model"]
    lines = []
    for nodes in options.nodes:
        reduced, gossip = outcomes[name(nodes, ALL_REDUCE)], outcomes[name(nodes, "D-PSGD")]
        if reduced.failed or gossip.failed:
            lines.append([str(nodes), "", *("failed" if o.failed else "" for o in (reduced, gossip)), "", ""])
            continue
        gaps = [theirs - ours for ours, theirs in zip(reduced.percent(), gossip.percent())]
        lines.append([str(nodes), str(gossip.row.steps), with_spread(reduced.percent(), 2), with_spread(gossip.percent(), 2),
                      with_spread(gaps, 2, "+"), with_spread(gossip.percent("accuracy_of_mean"), 2)])
    return markdown(header, lines)


def plot(options, outcomes):
    drawn, axes = figure(figsize=(7.5, 5))
    for number, nodes in enumerate(options.nodes):
        for method, line in ((ALL_REDUCE, "--"), ("D-PSGD", "-")):
            outcome = outcomes[name(nodes, method)]
            if outcome.failed:
                continue
            epochs = nodes * options.batch / 60_000
            steps, scores = outcome.curve()
            axes.plot([step * epochs for step in steps], scores, linestyle=line, marker=".", color=f"C{number}",
                      label=name(nodes, method))
    label(axes, "epochs",
          "test accuracy, mean over nodes and seeds, %",
          f"{options.model} on Fashion-MNIST")
    return drawn


def main():
    options = arguments()
    report = Report(options)
    outcomes = Series(options, rows(options)).run_all()
    text = (f"{options.model} on Fashion-MNIST, batch {options.batch} a node, SGD with momentum 0.9, rate {options.lr:g}, "
            f"schedule {options.schedule}{', a tenth after half and three quarters' if options.schedule == 'step' else ''}, "
            f"L2 {options.weight_decay:g}, augmentation {options.augment or 'none'}, uncompressed. Test accuracy in %: with D-PSGD the mean over nodes of each "
            f"node's own model. {report.seeds()}. {report.place()}.")
    results = [{"name": row, "failed": outcome.failed, "runs": outcome.runs} for row, outcome in outcomes.items()]
    report.publish(text + "\n\n" + table(options, outcomes), {"results": results}, plot(options, outcomes))
    return 1 if any(outcome.failed for outcome in outcomes.values()) else 0


if __name__ == "__main__":
    run(main)
