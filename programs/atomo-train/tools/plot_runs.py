#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws runs of atomo-train in one plot: the loss, the test's measure and the bytes that a worker sent.

The legend names the runs by what differs between them, or, where nothing does, by their folders.
"""

import argparse
import json
import os
import pathlib
import sys

WIDTH = 50  # windows that the loss of a run is averaged in
LEGEND_FIRST = ("algorithm", "codec", "graph")  # values that say by themselves what they are
LEGEND_NEVER = {"event", "policy", "parameters", "unbiased", "measure"}  # follow from others, or are long
MEASURES = {"accuracy": "test accuracy", "bits_per_character": "test bits a character"}
AXES = {"steps": "steps", "bytes": "MB that a worker sent", "seconds": "seconds"}


def arguments():
    parser = argparse.ArgumentParser(
        prog="atomo-train plot", description=__doc__.splitlines()[0],
        epilog="example: atomo-train plot runs/ps runs/dsgd --x bytes --out both.png")
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of --out, or file of --log")
    parser.add_argument("--out", metavar="FILE", default="plot.png", help="the plot (default: plot.png)")
    parser.add_argument("--x", choices=AXES, default="steps", help="below the loss and the test (default: steps)")
    parser.add_argument("--json", action="store_true", help="say as JSON what is drawn")
    parser.add_argument("--quiet", action="store_true", help="say nothing")
    return parser.parse_args()


def fail(message, status=1):
    print(f"atomo-train plot: {message}", file=sys.stderr)
    sys.exit(status)


class Run:
    def __init__(self, path):
        given = pathlib.Path(path)
        self.path = given / "log.jsonl" if given.is_dir() else given
        self.name = given.resolve().name
        events = self.read_events()
        starts = [event for event in events if event.get("event") == "start"]
        self.steps = [event for event in events if event.get("event") == "step"]
        self.tests = [event for event in events if event.get("event") == "evaluation"]
        if not starts or not self.steps:
            fail(f"'{self.path}' has no step of a run")
        self.start = starts[-1]
        self.measure = self.start["measure"]

    def read_events(self):
        try:
            lines = self.path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            fail(f"cannot read '{self.path}': {getattr(error, 'strerror', None) or error}")
        events = []
        for number, line in enumerate(lines, 1):
            try:
                events.append(dict(json.loads(line)))
            except (ValueError, TypeError):
                if number < len(lines):  # the last line of a run that goes on may be half there
                    fail(f"'{self.path}', line {number}: not an event of a log in JSON lines")
        return events

    def along(self, events, x):
        """Where events lie on an axis. A step counts when it is done, like a test after it."""
        if x == "bytes":
            return [event["sent_bytes_per_worker"] / 1e6 for event in events]
        if x == "seconds":
            return [event["seconds"] for event in events]
        return [event["steps"] if "steps" in event else event["step"] + 1 for event in events]


def labels_of(runs):
    starts = [run.start for run in runs]
    keys = [key for key in starts[0] if key not in LEGEND_NEVER and key not in LEGEND_FIRST]
    differing = [key for key in [*LEGEND_FIRST, *keys]
                 if all(key in start for start in starts) and len({str(start[key]) for start in starts}) > 1]
    labels = [", ".join(str(run.start[key]) if key in LEGEND_FIRST else f"{key} {run.start[key]}" for key in differing)
              for run in runs]
    # Runs that are alike are told apart by name.
    return [label if labels.count(label) == 1 and label else ", ".join(filter(None, (label, run.name)))
            for label, run in zip(labels, runs, strict=True)]


def smooth(x, y):
    """Means of a run's neighbouring steps, where there are more than can be seen."""
    size = max(len(y) // WIDTH, 1)
    starts = range(0, len(y) - size + 1, size)
    return [x[i + size - 1] for i in starts], [sum(y[i:i + size]) / size for i in starts]


def draw(runs, labels, x, pyplot):
    figure, (loss, test, sent) = pyplot.subplots(1, 3, figsize=(15, 4.5))
    for number, (run, label) in enumerate(zip(runs, labels, strict=True)):
        colour = f"C{number % 10}"
        at, losses = run.along(run.steps, x), [step["loss"] for step in run.steps]
        if len(losses) > 2 * WIDTH:
            loss.plot(at, losses, color=colour, alpha=0.15, linewidth=0.6)
        loss.plot(*smooth(at, losses), color=colour, label=label)
        test.plot(run.along(run.tests, x), [event[run.measure] for event in run.tests], "o-", color=colour, markersize=3)
        sent.plot(run.along(run.steps, "seconds" if x == "seconds" else "steps"), run.along(run.steps, "bytes"), color=colour)
    loss.set(title="training loss", xlabel=AXES[x])
    test.set(title=MEASURES.get(runs[0].measure, f"test {runs[0].measure}"), xlabel=AXES[x])
    sent.set(title=AXES["bytes"], xlabel=AXES["seconds" if x == "seconds" else "steps"])
    for axes in (loss, test, sent):
        axes.grid(True, alpha=0.3)
    columns = max(1, min(len(runs), 120 // max(map(len, labels))))
    legend = figure.legend(loc="lower center", ncols=columns, frameon=False)
    rows = -(-len(runs) // columns)
    figure.tight_layout(rect=(0, 0.06 * rows + 0.01, 1, 1))
    return figure, [text.get_text() for text in legend.get_texts()]


def save(figure, path):
    """Whole or not at all."""
    partial = pathlib.Path(path).with_name(f".{pathlib.Path(path).name}.part{os.getpid()}.png")
    try:
        figure.savefig(partial, dpi=120, format="png")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        fail(f"cannot write '{path}': {error.strerror}")


def ends_of(axes):
    """Where the curves of a panel end."""
    return [[float(line.get_xdata()[-1]), float(line.get_ydata()[-1])] for line in axes.get_lines() if len(line.get_xdata())]


def said(runs, labels):
    width = max(map(len, labels))
    for run, label in zip(runs, labels, strict=True):
        test = f"{run.tests[-1][run.measure]:.4f}" if run.tests else "not tested"
        yield (f"{label:{width}}  {run.steps[-1]['step'] + 1} steps, loss {run.steps[-1]['loss']:.4f}, {run.measure} {test}, "
               f"{run.steps[-1]['sent_bytes_per_worker'] / 1e6:.3f} MB a worker")


def main():
    options = arguments()
    try:
        import matplotlib
        matplotlib.use("Agg")  # needs no display
        from matplotlib import pyplot
    except ImportError as error:
        fail(f"{error}; install python3-matplotlib")
    runs = [Run(path) for path in options.runs]
    measures = {run.measure for run in runs}
    if len(measures) > 1:
        fail(f"the runs are told by different measures, {', '.join(sorted(measures))}: they do not go into one plot")
    figure, labels = draw(runs, labels_of(runs), options.x, pyplot)
    save(figure, options.out)
    if options.json:
        print(json.dumps({"plot": options.out, "x": options.x, "legend": labels,
                          "panels": {axes.get_title(): ends_of(axes) for axes in figure.axes}}))
    elif not options.quiet:
        print("\n".join(said(runs, labels)) + f"\nplot {options.out}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("interrupted", 130)
