# SPDX-License-Identifier: Apache-2.0
"""Tables, plots and what was measured where, as every experiment writes them."""

import datetime
import json
import os
import pathlib
import platform
import subprocess

from experiments.trainings import ROOT


def mean(values):
    return sum(values) / len(values)


def spread(values):
    """Sample standard deviation; 0 with one value."""
    centre = mean(values)
    return (sum((v - centre) ** 2 for v in values) / max(len(values) - 1, 1)) ** 0.5


def with_spread(values, decimals, sign=""):
    """Mean and, of several, standard deviation."""
    text = f"{mean(values):{sign}.{decimals}f}"
    return f"{text} ± {spread(values):.{decimals}f}" if len(values) > 1 else text


def markdown(header, rows):
    """An aligned table; the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    def draw(row):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        return "| " + " | ".join(cells) + " |"
    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([draw(header), rule, *map(draw, rows)])


def figure(*arguments, **keywords):
    """Figure and axes of matplotlib, without a screen."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    return pyplot.subplots(*arguments, **keywords)


def label(axes, x, y, title, **legend):
    """The finish of one plot of lines with names; `legend` says more to matplotlib about where these are."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title)
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small", **legend)


def save_figure(drawn, path):
    drawn.tight_layout()
    partial = f"{path}.part.png"
    drawn.savefig(partial, dpi=150)
    os.replace(partial, path)


def machine():
    model = platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {"processor": model, "cores": os.cpu_count(), "system": platform.platform()}


def commit():
    try:
        found = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except OSError:
        return None  # no git here, or the sources came without it
    return found.stdout.strip() or None


def write(path, text):
    partial = path + ".part"
    pathlib.Path(partial).write_text(text)
    os.replace(partial, path)


class Report:
    """Takes the time and the commit when an experiment begins, and writes its files at its end."""

    def __init__(self, options):
        self.options, self.began, self.commit = options, datetime.datetime.now(), commit()

    def seeds(self):
        many = len(self.options.seeds)
        return f"{many} seeds (mean ± standard deviation)" if many > 1 else "one seed"

    def place(self):
        """Where and when, for the end of a note."""
        host = machine()
        return f"{host['cores']} cores, {host['processor']}, all processes on them, {self.began:%Y-%m-%d}"

    def simulated_place(self, devices):
        """The same of simulated trainings."""
        return (f"Each training is one process that simulates all workers: every worker's messages are encoded, counted and "
                f"decoded, but no network carries them. {', '.join(devices) or 'Nothing was trained'}, {self.began:%Y-%m-%d}.")

    def publish(self, text, results, drawn):
        """OUT.md with `text`, OUT.json with `results` (a dictionary) and OUT.png with the figure `drawn`. Results of simulated
        trainings name their devices, which need not be of the machine that reports."""
        out = self.options.out
        pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
        write(out + ".md", text + "\n")
        where = {} if "simulated_on" in results else {"machine": machine()}
        data = json.dumps({
            "date": self.began.isoformat(timespec="seconds"), "commit": self.commit, **where,
            "options": {k: v for k, v in vars(self.options).items() if k not in ("trainer", "out", "keep", "until")}, **results,
        }, indent=1, default=str)
        write(out + ".json", data.replace(f"{ROOT}/", "") + "\n")
        save_figure(drawn, out + ".png")
        print(f"\n{text}\n\ntable {out}.md, data {out}.json, plot {out}.png")
