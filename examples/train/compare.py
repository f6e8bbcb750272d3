#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains one network with several codecs and compares them.

Runs atomo-train over MPI once for each codec and seed, the same steps for all, with a live line a run, and ends with
an aligned table, the same as Markdown and JSON, and a plot of the test (accuracy of an image model, bits a character of
a language model) against megabytes of gradient sent.

    python3 examples/train/compare.py --trainer build/release/examples/train/atomo-train --workers 4 --steps 400
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNCOMPRESSED = "identity:dtype=f32"
DEFAULT_CODECS = [
    UNCOMPRESSED,
    "atomo:bits=0.5",
    "atomo:bits=0.25",
    "qsgd:bits=2",
    "sign:scale=mean",
    "topk:keep=0.01",
]
PHASES = ("compute", "encode", "wire", "decode")
TEST_SAMPLES = 2000  # of a test on the way; the last one is of all
# What the trainer's "measure" is called, its factor, decimals and unit when it is shown.
MEASURES = {
    "accuracy": ("test accuracy", 100, 2, "%"),
    "bits_per_character": ("test bits a character", 1, 3, ""),
}


def shown(measure, value, spread_of_values=None):
    _, factor, decimals, unit = MEASURES[measure]
    text = f"{factor * value:.{decimals}f}{unit}"
    return text if spread_of_values is None else f"{text} ± {factor * spread_of_values:.{decimals}f}"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "build/release/examples/train/atomo-train"))
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
    parser.add_argument("--data", help="as the trainer has it; its own default when left out")
    parser.add_argument("--tests", type=int, default=8, help="tests on the way, for the plot")
    parser.add_argument("--out", default=str(ROOT / "build/quickstart"),
                        help="written: OUT.json, OUT.md and OUT.png")
    options = parser.parse_args()
    for name in ("workers", "steps", "batch", "tests"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is {getattr(options, name)}, it has to be at least 1")
    codecs = options.codecs or DEFAULT_CODECS
    options.codecs = list(dict.fromkeys([UNCOMPRESSED, *codecs]))
    if not os.access(options.trainer, os.X_OK):
        parser.error(f"there is no trainer at '{options.trainer}': build the target atomo-train")
    if shutil.which("mpirun") is None:
        parser.error("mpirun is missing: it is in the package openmpi-bin")
    if options.hostfile and not os.path.isfile(options.hostfile):
        parser.error(f"cannot read the host file '{options.hostfile}'")
    for codec in options.codecs:
        checked = subprocess.run([options.trainer, "--check", "--codec", codec], capture_output=True, text=True)
        if checked.returncode != 0:
            parser.error(checked.stderr.strip().removeprefix("atomo-train: "))
    return options


def launcher(processes, hostfile=None):
    # More processes than cores is normal here: no binding, and waiting ranks give way.
    launch = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
              "-x", "OMP_NUM_THREADS=1", "-n", str(processes)]
    if os.geteuid() == 0:
        launch.insert(1, "--allow-run-as-root")
    if hostfile:
        launch += ["--hostfile", hostfile]
    return launch


def command(options, codec, seed):
    launch = launcher(options.workers + (1 if options.algorithm == "ps" else 0), options.hostfile)
    launch += [options.trainer, "--json", "--algorithm", options.algorithm, "--model", options.model,
               "--steps", str(options.steps), "--batch", str(options.batch), "--lr", repr(options.lr),
               "--optimizer", options.optimizer, "--warmup", str(options.warmup),
               "--seed", str(seed), "--codec", codec,
               "--eval-every", str(max(1, options.steps // options.tests)), "--eval-samples", str(TEST_SAMPLES)]
    if options.data:
        launch += ["--data", options.data]
    return launch


class LiveLine:
    """A line rewritten in place on a terminal, else a plain line now and then."""

    def __init__(self, title):
        self.title, self.live = title, sys.stdout.isatty()
        self.shown = 0.0

    def update(self, text):
        now = time.monotonic()
        if self.live and now - self.shown > 0.1:
            print(f"\r{self.title}  {text}\033[K", end="", flush=True)
            self.shown = now

    def finish(self, text):
        print(f"\r{self.title}  {text}\033[K" if self.live else f"{self.title}  {text}", flush=True)


def run(options, codec, seed, title):
    """One training. Returns its JSON lines; raises RuntimeError with the trainer's own words."""
    line, events, tested = LiveLine(title), [], "-"
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command(options, codec, seed), stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            for text in process.stdout:
                event = json.loads(text)
                events.append(event)
                measure = events[0]["measure"]
                if event["event"] == "evaluation":
                    tested = shown(measure, event[measure])
                if event["event"] == "step":
                    ms = event["ms"]
                    line.update(f"step {event['step'] + 1}/{options.steps}  loss {event['loss']:.3f}  "
                                f"test {tested}  sent {event['sent_bytes_per_worker'] / 1e6:.2f} MB a worker  ms "
                                + " ".join(f"{phase} {ms[phase]:.1f}" for phase in PHASES))
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        if process.wait() != 0 or not events or events[-1]["event"] != "end":
            errors.seek(0)
            said = [text.strip() for text in errors if text.startswith("atomo-train:")]
            reason = said[0].removeprefix("atomo-train: ") if said else f"mpirun ended with {process.returncode}"
            line.finish(f"failed: {reason}")
            raise RuntimeError(reason)
    end = events[-1]
    line.finish(f"{MEASURES[measure][0]} {shown(measure, end[measure])}  {end['bytes_per_step']:.0f} bytes a step  "
                f"{end['seconds']:.1f} s")
    return events


def mean(values):
    return sum(values) / len(values)


def spread(values):
    """Sample standard deviation; 0 with one value."""
    centre = mean(values)
    return (sum((v - centre) ** 2 for v in values) / max(len(values) - 1, 1)) ** 0.5


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


def markdown(header, rows):
    """An aligned table; the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    def draw(row):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        return "| " + " | ".join(cells) + " |"
    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([draw(header), rule, *map(draw, rows)])


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


def plot(results, options, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(8, 5))
    for r in results:
        if "failed" in r:
            continue
        # The last test is of all samples, those on the way of a part: they do not belong on one line.
        *on_the_way, last = [(p["megabytes"], MEASURES[r["measure"]][1] * p["score"]) for p in r["curve"]]
        line, = axes.plot([x for x, _ in on_the_way], [y for _, y in on_the_way], marker=".",
                          label=f"{r['codec']} ({r['ratio']:.0f}x)", linestyle="-" if r["unbiased"] else "--")
        axes.plot(*last, marker="x", markersize=8, color=line.get_color())
    axes.set_xscale("log")
    axes.set_xlabel("megabytes of gradient a worker sent (log scale)")
    axes.set_ylabel(f"{title_of_measure(results)} (lines: the first {TEST_SAMPLES:,} samples, crosses: all)")
    axes.set_title(f"{options.model}, {options.workers} workers, {options.steps} steps (dashed: biased codecs)")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize="small")
    save_figure(figure, path)


def save_figure(figure, path):
    figure.tight_layout()
    partial = f"{path}.part.png"
    figure.savefig(partial, dpi=150)
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


def note(options, began):
    seeds = f"{len(options.seeds)} seeds (mean ± standard deviation)" if len(options.seeds) > 1 else "one seed"
    host = machine()
    optimiser = {"sgd": "SGD with momentum 0.9,", "adamw": "AdamW,"}[options.optimizer]
    rise = f" after a rise over {options.warmup} steps" if options.warmup else ""
    return (f"{options.model}, {options.workers} workers, batch {options.batch} each, {options.steps} steps, "
            f"{optimiser} rate {options.lr:g} cosine{rise}, no memory, {seeds}; {options.algorithm}. Bytes are the gradient "
            f"bytes one worker sends; weights come back uncompressed. {host['cores']} cores, {host['processor']}, "
            f"all processes on them, {began:%Y-%m-%d}.")


def main():
    options = arguments()
    began, results, failed = datetime.datetime.now(), [], False
    total, number = len(options.codecs) * len(options.seeds), 0
    width = max(map(len, options.codecs))
    for codec in options.codecs:
        runs = []
        try:
            for seed in options.seeds:
                number += 1
                title = f"[{number}/{total}] {codec:{width}}" + (f" seed {seed}" if len(options.seeds) > 1 else "")
                runs.append(run(options, codec, seed, title))
            results.append(summarise(codec, runs))
        except RuntimeError as error:
            number = len(options.seeds) * (options.codecs.index(codec) + 1)
            results.append({"codec": codec, "failed": str(error)})
            failed = True
    text = table(results)
    pathlib.Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    write(options.out + ".md", note(options, began) + "\n\n" + text + "\n")
    write(options.out + ".json", json.dumps({
        "date": began.isoformat(timespec="seconds"), "commit": commit(), "machine": machine(),
        "options": {k: v for k, v in vars(options).items() if k not in ("trainer", "out")}, "results": results,
    }, indent=1) + "\n")
    plot(results, options, options.out + ".png")
    print("\n" + note(options, began) + "\n\n" + text + "\n")
    for r in results:
        if "failed" in r:
            print(f"{r['codec']} failed: {r['failed']}")
    print(f"table {options.out}.md, data {options.out}.json, plot {options.out}.png")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ncompare.py: interrupted", file=sys.stderr)
        sys.exit(130)
