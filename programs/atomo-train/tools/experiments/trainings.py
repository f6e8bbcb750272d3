# SPDX-License-Identifier: Apache-2.0
"""Runs of atomo-train under mpirun, with a live line each."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[4]
TRAINER = str(ROOT / "build/release/programs/atomo-train/atomo-train")
UNCOMPRESSED = "identity:dtype=f32"
# What the trainer's "measure" is called, its factor, decimals and unit when it is shown.
MEASURES = {
    "accuracy": ("test accuracy", 100, 2, "%"),
    "bits_per_character": ("test bits a character", 1, 3, ""),
}


def shown(measure, value, spread_of_values=None):
    _, factor, decimals, unit = MEASURES[measure]
    text = f"{factor * value:.{decimals}f}{unit}"
    return text if spread_of_values is None else f"{text} ± {factor * spread_of_values:.{decimals}f}"


def shown_end(measure, end):
    """Of a training's last event."""
    return (f"{MEASURES[measure][0]} {shown(measure, end[measure])}  {end['bytes_per_step']:.0f} bytes a step  "
            f"{end['seconds']:.1f} s")


def add_trainer_options(parser):
    parser.add_argument("--trainer", default=TRAINER)
    parser.add_argument("--data", help="as the trainer has it; its own default when left out")
    parser.set_defaults(simulate=0, until=None)  # where nothing offers to simulate


def check_trainer(parser, options):
    """Ends the program where nothing could be run."""
    if not os.access(options.trainer, os.X_OK):
        parser.error(f"there is no trainer at '{options.trainer}': build the target atomo-train")
    if shutil.which("mpirun") is None:
        parser.error("mpirun is missing: it is in the package openmpi-bin")


def launcher(processes, hostfile=None, outlives=False):
    # More processes than cores is normal here: no binding, and waiting ranks give way.
    launch = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
              "-x", "OMP_NUM_THREADS=1", "-n", str(processes)]
    if os.geteuid() == 0:
        launch.insert(1, "--allow-run-as-root")
    if hostfile:
        launch += ["--hostfile", hostfile]
    if outlives:  # one of its processes
        launch.insert(1, "--enable-recovery")
    return launch


def train(trainer, processes, arguments, on_event=lambda event: None, hostfile=None):
    """One training. Returns its JSON lines; raises RuntimeError with the trainer's own words."""
    command = [*launcher(processes, hostfile), trainer, "--json", *map(str, arguments)]
    events = []
    with (tempfile.TemporaryFile("w+") as errors,
          subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process):
        try:
            for line in process.stdout:
                events.append(json.loads(line))
                on_event(events[-1])
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        if process.wait() != 0 or not events or events[-1]["event"] != "end":
            errors.seek(0)
            said = [text.strip() for text in errors if text.startswith("atomo-train:")]
            raise RuntimeError(said[0].removeprefix("atomo-train: ") if said
                               else f"mpirun ended with {process.returncode}")
    return events


class LiveLine:
    """A line rewritten in place on a terminal, else a plain line at its end."""

    def __init__(self, title):
        self.title, self.live = title, sys.stdout.isatty()
        self.written = 0.0

    def update(self, text):
        now = time.monotonic()
        if self.live and now - self.written > 0.1:
            print(f"\r{self.title}  {text}\033[K", end="", flush=True)
            self.written = now

    def finish(self, text):
        print(f"\r{self.title}  {text}\033[K" if self.live else f"{self.title}  {text}", flush=True)


class Progress:
    """Follows a training's events on a live line."""

    def __init__(self, title, steps):
        self.line, self.steps, self.measure, self.tested = LiveLine(title), steps, None, "-"

    def __call__(self, event):
        if event["event"] == "start":
            self.measure = event["measure"]
        if event["event"] == "evaluation":
            self.tested = shown(self.measure, event[self.measure])
        if event["event"] == "step":
            self.line.update(f"step {event['step'] + 1}/{self.steps}  loss {event['loss']:.3f}  test {self.tested}  "
                             f"sent {event['sent_bytes_per_worker'] / 1e6:.2f} MB a worker  ms "
                             + " ".join(f"{phase} {ms:.1f}" for phase, ms in event["ms"].items()))

    def finish(self, events, remark=""):
        self.line.finish(shown_end(self.measure, events[-1]) + remark)
