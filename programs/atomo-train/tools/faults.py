#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hurts runs of every algorithm and writes down what becomes of them.

For each algorithm of `atomo-train --list`: a worker is killed, frozen for good, frozen for one and a half time-outs and
woken, slowed ten times; a link is cut and restored; a message is damaged; the first process (the
server, where there is one) is killed and frozen; the disk fills up between two checkpoints; Ctrl-C.
A run has to go on as its algorithm promises, or to stop within its time-out with one line
that names the process; what it left has to be resumed to the same curve, or, where the same
options do not give the same curve twice, to the end. Ends with 1 when anything hangs or a promise is broken.

    python3 programs/atomo-train/tools/faults.py --out docs/faults-tried
    python3 programs/atomo-train/tools/faults.py --algorithm ps --fault frozen --fault woken
"""

import argparse
import contextlib
import dataclasses
import datetime
import json
import math
import os
import pathlib
import resource
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from experiments.fault_jobs import Broken, Job
from experiments.reports import commit, machine, markdown, write
from experiments.trainings import ROOT, TRAINER, LiveLine, check_trainer

SAVE_EVERY = 20
HURT_AFTER = 30  # steps: by then there is a checkpoint
GO_ON = 20  # steps after a fault that show that a run goes on
MORE = 5  # steps of a resumed run
CORRUPT_AT, RETRIES = 7, 1
ELEMENTS = 25600
CHECKPOINT = 4 * ELEMENTS  # bytes at least
WITHOUT_MOMENTUM = ("pdmm", "admm")


@dataclasses.dataclass
class Case:
    """An algorithm with the options that make it another one."""
    name: str
    family: str
    options: list
    repeats: bool  # the same options give the same curve
    outlives_silent: bool  # goes on without a worker that gives no sign of life
    outlives_killed: bool = False  # and without one that died

    @property
    def title(self):
        return " ".join([self.name, *self.options])

    def processes(self, workers):
        """Servers come on top; a ring of one node more has nodes that are no neighbours."""
        return workers + {"server": int(self.value("--servers", 1)), "graph": 1}.get(self.family, 0)

    @property
    def codec_option(self):
        """The one that says how messages are encoded."""
        return "--residual" if self.name == "powersgd" else "--codec"

    def value(self, option, default):
        return self.options[self.options.index(option) + 1] if option in self.options else default


@dataclasses.dataclass
class Result:
    kept: bool
    happened: str  # a few words for the table
    said: str = ""  # the line on standard error
    seconds: float = 0  # from the fault to the end


class Trial:
    """All faults of one algorithm. A method a fault; its first line is what the table says of it."""

    references = {}  # undisturbed losses, the longest so far, by the case's title

    def __init__(self, options, case, folder):
        self.options, self.case, self.folder = options, case, folder
        self.saved = os.path.join(folder, "checkpoint.safetensors")
        self.last = case.processes(options.workers) - 1
        self.first = int(case.value("--servers", 1)) - 1
        self.silence = options.timeout * (1 + RETRIES)

    @contextlib.contextmanager
    def job(self, *more):
        job = Job(self.options.trainer, self.case.processes(self.options.workers), "--algorithm", self.case.name,
                  *self.case.options, "--model", "quadratic", "--data", self.options.data, self.case.codec_option,
                  self.options.codec, "--steps", 1000000, "--batch", 1, "--lr", 0.001, "--schedule", "constant", "--timeout",
                  self.options.timeout, "--retries", RETRIES, *more,
                  *(("--momentum", 0) if self.case.name in WITHOUT_MOMENTUM else ()), folder=self.folder,
                  outlives=self.case.outlives_killed)
        try:
            yield job
        finally:
            job.clear()

    def saving_job(self, *more):
        return self.job("--save", self.saved, "--save-every", SAVE_EVERY, *more)

    def reference(self, steps):
        """Losses of the first steps of a run that nothing disturbs."""
        known = self.references.get(self.case.title, {})
        if len(known) < steps:
            with self.job("--stop-at", steps + 100) as job:
                status, _ = job.end(300)
                if status != 0:
                    raise Broken(f"an undisturbed run fails: {job.said()}")
                known = self.references[self.case.title] = job.losses()
        return known

    def check_curve(self, losses):
        """The losses are those of an undisturbed run, or at least numbers."""
        if not losses:
            raise Broken("no step was logged")
        if self.case.repeats:
            known = self.reference(max(losses) + 1)
            for step, loss in losses.items():
                if known[step] != loss:
                    raise Broken(f"step {step} has the loss {loss}, undisturbed {known[step]}")
        elif not all(math.isfinite(loss) for loss in losses.values()):
            raise Broken("a loss is not finite")

    def saved_step(self):
        """Of the checkpoint itself: its line in the log may be missing."""
        with open(self.saved, "rb") as file:
            length, = struct.unpack("<Q", file.read(8))
            return int(json.loads(file.read(length))["__metadata__"]["step"])

    def resume(self, as_if_undisturbed=True):
        step = self.saved_step()
        with self.job("--resume", self.saved, "--stop-at", step + MORE) as job:
            status, _ = job.end(120)
            losses = job.losses()
            if status != 0:
                raise Broken(f"cannot be resumed: {job.said()}")
            if not losses or min(losses) < step or max(losses) != step + MORE - 1:
                raise Broken(f"resumed at {step}, logged the steps {sorted(losses)}")
            if as_if_undisturbed:
                self.check_curve(losses)
        return "same curve" if self.case.repeats and as_if_undisturbed else "resumes"

    def stops(self, job, within, *words):
        """The run ends with an error that has the words, and what it left can be resumed."""
        status, seconds = job.end(within + self.options.grace)
        said = job.said()
        # A mpirun that outlives its processes ends with 0.
        if job.events("end") if self.case.outlives_killed else status == 0:
            raise Broken("ended without an error")
        for word in words:
            if word not in said or " / " in said:
                raise Broken(f"the error is '{said}', not one line with '{word}'")
        self.check_curve(job.losses())
        curve = self.resume() if os.path.exists(self.saved) else "nothing saved"
        return Result(True, f"stops in {seconds:.1f} s; {curve}", said, seconds)

    def ends_on_request(self, job):
        """Ends a run that goes on, as a user would."""
        job.process.send_signal(signal.SIGUSR1)
        job.end(self.silence + self.options.grace)
        ends = job.events("end")
        if not ends:
            raise Broken(f"did not end in order: {job.said()}")

    def hurt(self, how, rank, words, goes_on=False):
        with self.saving_job() as job:
            before = job.wait_for_steps(HURT_AFTER)
            process = job.process_of(rank)
            os.kill(process, how)
            if goes_on:
                job.wait_for_steps(before + 10 * GO_ON, self.silence + self.options.grace)
                self.ends_on_request(job)
                return Result(True, f"goes on without it; {self.resume(as_if_undisturbed=False)}", job.said())
            within = 0 if how == signal.SIGKILL else self.silence
            return self.stops(job, within, f"rank {rank}, process {process} ", words)

    def killed(self):
        """a worker is killed"""
        return self.hurt(signal.SIGKILL, self.last, "has died", self.case.outlives_killed)

    def frozen(self):
        """a worker is frozen"""
        return self.hurt(signal.SIGSTOP, self.last, "no sign of life", self.case.outlives_silent)

    def woken(self):
        """a worker is frozen and woken"""
        with self.saving_job() as job:
            before = job.wait_for_steps(HURT_AFTER)
            process = job.process_of(self.last)
            os.kill(process, signal.SIGSTOP)
            time.sleep(1.5 * self.options.timeout)
            os.kill(process, signal.SIGCONT)
            job.wait_for_steps(before + GO_ON, self.silence + self.options.grace)
            self.ends_on_request(job)
            asked, back = job.count("asking again"), job.count("is back after")
            if not self.case.outlives_silent and (asked != 1 or back != 1):
                raise Broken(f"said {asked} times that it asks, {back} times that it is back")
            self.check_curve(job.losses())
            return Result(True, f"goes on; {self.resume()}", job.said())

    def cut(self):
        """a link is cut and restored"""
        ends = f"{self.first if self.case.family == 'server' else self.last - 1},{self.last}"
        begins, lasts = 0.5, 1.5 * self.options.timeout
        with self.saving_job("--cut-link", ends, "--cut-after", begins, "--cut-for", lasts) as job:
            job.wait_for_steps(1)
            time.sleep(begins + lasts + 0.5)
            job.wait_for_steps(len(job.events("step")) + GO_ON, self.silence + self.options.grace)
            self.ends_on_request(job)
            # Others do not wait for the other end, or not for long.
            if self.case.repeats and self.case.name != "alone" and not job.count("is back after"):
                raise Broken("nobody said that an end is back")
            self.check_curve(job.losses())
            return Result(True, f"goes on; {self.resume()}", job.said())

    def slowed(self):
        """a worker is slowed 10x"""
        computing, took = [], []
        for more in ((), ("--slow-rank", self.last, "--slow-factor", 10)):
            with self.job("--stop-at", 2 * HURT_AFTER, *more) as job:
                status, _ = job.end(120)
                if status != 0:
                    raise Broken(f"stops: {job.said()}")
                self.check_curve(job.losses())
                computing.append(statistics.median(event["ms"]["compute"] for event in job.events("step")))
                took.append(statistics.median(sum(event["ms"].values()) for event in job.events("step")))
        if self.case.repeats and computing[1] < 1.5 * computing[0]:  # means over the workers, of which one is slow
            raise Broken(f"is not slow: computes for {computing[1]:.2f} ms instead of {computing[0]:.2f}")
        return Result(True, f"goes on; a step takes {took[1] / took[0]:.1f} times as long")

    def corrupt(self):
        """a message is damaged"""
        # Where the late are dropped, somebody else has to be late: what is dropped is not read.
        late = ("--slow-rank", self.last) if self.case.outlives_silent else ()
        with self.job("--corrupt-payload-at", CORRUPT_AT, "--stop-at", HURT_AFTER, *late) as job:
            if job.end(120)[0] == 0 and not any(event["bytes_per_worker"] for event in job.events("step")):
                return Result(True, "sends no messages")
            # Who waits for nobody reads it at a step of his own.
            step = "step" if "--asynchronous" in self.case.options else f"step {CORRUPT_AT}"
            result = self.stops(job, 20, "worker 1 (", "sent a payload that is refused", step)
            if job.losses() and max(job.losses()) >= CORRUPT_AT and self.case.repeats:
                raise Broken("went on behind the damaged message")
            return Result(True, "stops when it is read", result.said)

    def first_killed(self):
        """a server, or rank 0, is killed"""
        return self.hurt(signal.SIGKILL, self.first, "has died")

    def first_frozen(self):
        """a server, or rank 0, is frozen"""
        return self.hurt(signal.SIGSTOP, self.first, "no sign of life")

    def full_disk(self):
        """the disk is full at a checkpoint"""
        with self.disk() as (place, fill):
            saved, self.saved = self.saved, os.path.join(place, "checkpoint.safetensors")
            try:
                with self.saving_job() as job:
                    job.wait_for_steps(HURT_AFTER)
                    fill(job)
                    result = self.stops(job, 20, f"cannot write '{self.saved}'", self.reason)
                    left = [name for name in os.listdir(place) if ".part" in name]
                    if left:
                        raise Broken(f"leaves {left}")
                    return result
            finally:
                self.saved = saved

    @contextlib.contextmanager
    def disk(self):
        """A folder, and what fills its disk up. A small disk of its own where that can be mounted, which takes root; else
        the process that writes is no longer allowed files as large as a checkpoint, only its log a little longer."""
        place = tempfile.mkdtemp(dir=self.folder)
        mounted = os.geteuid() == 0 and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], capture_output=True).returncode == 0
        self.reason = "No space left on device" if mounted else "File too large"

        def fill(job):
            if mounted:
                with open(os.path.join(place, "filler"), "wb", buffering=0) as file, contextlib.suppress(OSError):
                    while file.write(bytes(4096)) > 0:
                        pass
            else:
                most = os.path.getsize(job.log) + CHECKPOINT // 2
                resource.prlimit(job.process_of(0), resource.RLIMIT_FSIZE, (most, most))

        try:
            yield place, fill
        finally:
            if mounted:
                subprocess.run(["umount", place], check=True)

    def ctrl_c(self):
        """Ctrl-C"""
        with self.saving_job() as job:
            job.wait_for_steps(HURT_AFTER)
            job.process.send_signal(signal.SIGINT)
            _, seconds = job.end(self.options.grace)
            ends = job.events("end")
            if not ends or not ends[-1]["interrupted"]:
                raise Broken(f"did not end in order: {job.said()}")
            if self.saved_step() != ends[-1]["steps"]:
                raise Broken(f"ended after {ends[-1]['steps']} steps, saved after {self.saved_step()}")
            self.check_curve(job.losses())
            return Result(True, f"saves, ends in {seconds:.1f} s; {self.resume()}", "", seconds)


# Options that change what an algorithm promises: whether it repeats, whether it outlives the silent.
VARIANTS = (
    ("ps", ["--servers", "2"], True, False),
    ("ps", ["--aggregate", "2"], False, True),
    ("ps", ["--aggregate", "2", "--servers", "2"], False, True),
    ("dpsgd", ["--on-lost-node", "go-on"], True, True),
    ("dsgd", ["--on-lost-node", "go-on"], True, True),
    ("dsgd", ["--asynchronous"], False, False),
    ("choco", ["--on-lost-node", "go-on"], True, True),
    ("pdmm", ["--on-lost-node", "go-on"], True, True),
    ("pdmm", ["--asynchronous"], False, False),
    ("admm", ["--on-lost-node", "go-on"], True, True),
    ("dsgd-stale", ["--on-lost-node", "go-on"], True, True),
)
FAULTS = ("killed", "frozen", "woken", "cut", "slowed", "corrupt", "first_killed", "first_frozen", "full_disk", "ctrl_c")
QUICK = ("frozen", "woken", "full_disk")


def cases(options):
    listed = subprocess.run([options.trainer, "--list", "--json"], capture_output=True, text=True, check=True)
    found = [Case(row["name"], row["family"], [], row["repeats"], row["outlives-silent"])
             for row in json.loads(listed.stdout)]
    rows = {case.name: case for case in found}
    for name, more, repeats, outlives_silent in VARIANTS:
        if name in rows:
            place = max(i for i, case in enumerate(found) if case.name == name)
            found.insert(place + 1, Case(name, rows[name].family, more, repeats, outlives_silent, "go-on" in more))
    if options.quick:  # one of each family
        found = list({case.family: case for case in reversed(found)}.values())[::-1]
    if options.algorithms:
        unknown = set(options.algorithms) - {case.name for case in found}
        if unknown:
            raise SystemExit(f"faults.py: there is no algorithm {', '.join(sorted(unknown))}; see {options.trainer} --list")
        found = [case for case in found if case.name in options.algorithms]
    if options.titles:
        found = [case for case in found if any(case.title == title for title in options.titles)]
    return found


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--trainer", default=TRAINER)
    parser.add_argument("--algorithm", action="append", dest="algorithms", metavar="NAME", help="may be repeated (all)")
    parser.add_argument("--title", action="append", dest="titles", metavar="TEXT",
                        help="only this row, for example 'dpsgd --on-lost-node go-on'; may be repeated")
    parser.add_argument("--fault", action="append", dest="faults", choices=FAULTS, help="may be repeated (all)")
    parser.add_argument("--workers", type=int, default=3, help="worker processes; servers come on top")
    parser.add_argument("--timeout", type=float, default=3, help="the trainer's, seconds; it asks once before it gives up")
    parser.add_argument("--grace", type=float, default=8, help="seconds that mpirun may take on top to end a job")
    parser.add_argument("--codec", default="qsgd:bits=8")
    parser.add_argument("--quick", action="store_true", help="three faults, one algorithm of each family")
    parser.add_argument("--add", action="store_true", help="keep what OUT.json has of algorithms that are not tried now")
    parser.add_argument("--out", default=str(ROOT / "build/faults-tried"), help="written: OUT.json and OUT.md")
    options = parser.parse_args()
    if options.workers < 2:
        parser.error(f"--workers is {options.workers}, with fewer than 2 nobody is left when one is hurt")
    check_trainer(parser, options)
    options.faults = options.faults or list(QUICK if options.quick else FAULTS)
    return options


def words_of(fault):
    return getattr(Trial, fault).__doc__


def write_data(path):
    """Parabolas with their minima round 0, one a sample: nothing to load, and no training that diverges."""
    samples = [{"curvature": [1 + (i + k) % 3 for i in range(ELEMENTS)],
                "pull": [((i + k) % 7 - 3) / 10 for i in range(ELEMENTS)]} for k in range(8)]
    pathlib.Path(path).write_text(json.dumps({"rows": 1, "columns": ELEMENTS, "samples": samples}))


def try_fault(options, case, fault):
    with tempfile.TemporaryDirectory() as folder:
        options.data = os.path.join(folder, "parabolas.json")
        write_data(options.data)
        try:
            result = getattr(Trial(options, case, folder), fault)()
        except Broken as broken:
            result = Result(False, str(broken))
        result.said = result.said.replace(folder, "FOLDER")
        return result


def row_of(options, case, results):
    return {**dataclasses.asdict(case), "title": case.title, "date": f"{datetime.date.today()}", "commit": commit(),
            "workers": options.workers, "timeout": options.timeout, "machine": machine(),
            "faults": {fault: dataclasses.asdict(result) for fault, result in results.items()}}


def table(rows):
    faults = [fault for fault in FAULTS if any(fault in row["faults"] for row in rows)]

    def cell(result):
        return "" if result is None else result["happened"] if result["kept"] else "**broken**"

    return markdown(
        ["algorithm", "without a silent worker it", "repeats to the bit", *map(words_of, faults), "tried on"],
        [[f"`{row['title']}`", "goes on" if row["outlives_silent"] else "stops", "yes" if row["repeats"] else "no",
          *(cell(row["faults"].get(fault)) for fault in faults), row["date"]] for row in rows])


def report(options, rows):
    """The table and the lines that were said."""
    host = rows[0]["machine"]
    text = ["# Faults that were tried", "",
            "What becomes of a run of `atomo-train` when something happens to it. A run goes on as its algorithm promises, or",
            "stops with one line that names the process and the reason. `same curve`: resumed from its last checkpoint it has",
            "the losses of an undisturbed run, to the bit; `resumes`: it goes on, for algorithms whose curve depends on who is",
            "first.", "",
            f"{options.workers} workers, servers on top, a node more in graphs; `--timeout {options.timeout:g} --retries "
            f"{RETRIES}`: a silent process",
            f"is given up after {options.timeout * (1 + RETRIES):g} seconds, and mpirun takes one or two more to end a job. "
            "It also ends a job in which a process dies,",
            "so no algorithm outlives that without `mpirun --enable-recovery`, which the rows with `go-on` have. A link is cut",
            "between the last worker and the server, or the worker before it: what arrives is held up for one and a half",
            "time-outs. All of it counts when it comes. The disk that fills up is a small one of its own where the script is",
            "root; else the process that writes may no longer write files of that size. The model is `--model quadratic`.", "",
            table(rows), ""]
    results = [(f"`{row['title']}`, {words_of(fault)}", fault, result) for row in rows
               for fault, result in row["faults"].items()]
    if broken := [f"- {title}: {result['happened']}" for title, _, result in results if not result["kept"]]:
        text += ["Promises that were broken:", "", *broken, ""]
    text += ["What the runs said, one example each:", ""]
    for fault in FAULTS:
        said = next((result["said"] for _, of, result in results if of == fault and result["said"]), "")
        if said:
            text.append(f"- {words_of(fault)}: `{said}`")
    text += ["", f"Made by `python3 programs/atomo-train/tools/faults.py` on {host['cores']} cores, {host['processor']}, "
             "all processes on them."]
    return "\n".join(text) + "\n"


def joined(before, row):
    """A row with the faults of before that were not tried again."""
    if before is row or set(before["faults"]) <= set(row["faults"]):
        return row
    faults = {**before["faults"], **row["faults"]}
    dates = [*before["date"].split(", "), row["date"]]
    faults = {fault: faults[fault] for fault in FAULTS if fault in faults}
    return {**row, "date": ", ".join(dict.fromkeys(dates)), "faults": faults}


def keep(options, rows):
    """Writes the rows that are new, behind or instead of those that were there."""
    known = []
    if options.add and os.path.exists(options.out + ".json"):
        known = json.loads(pathlib.Path(options.out + ".json").read_text())["rows"]
    made = {row["title"]: row for row in rows}
    rows = [joined(row, made.pop(row["title"], row)) for row in known] + list(made.values())
    pathlib.Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    write(options.out + ".json", json.dumps({"rows": rows}, indent=1) + "\n")
    write(options.out + ".md", report(options, rows))


def main():
    options, rows = arguments(), []
    listed = cases(options)
    total, number, broken = len(listed) * len(options.faults), 0, 0
    width = max(len(case.title) for case in listed)
    for case in listed:
        results = {}
        for fault in options.faults:
            number += 1
            line = LiveLine(f"[{number}/{total}] {case.title:{width}}  {words_of(fault):35}")
            line.update("...")
            results[fault] = try_fault(options, case, fault)
            broken += not results[fault].kept
            line.finish(("" if results[fault].kept else "BROKEN: ") + results[fault].happened)
        rows.append(row_of(options, case, results))
        keep(options, rows)
    print(f"{number} tried, {broken} broken; table {options.out}.md, data {options.out}.json")
    return 1 if broken else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to leave no processes and no disk behind
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nfaults.py: interrupted", file=sys.stderr)
        sys.exit(130)
