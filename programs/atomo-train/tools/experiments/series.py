# SPDX-License-Identifier: Apache-2.0
"""A series of trainings. Each is kept when it has ended, so an interrupted series goes on where it stopped."""

import dataclasses
import hashlib
import json
import os
import pathlib
import sys
import time

from experiments.reports import mean, write
from experiments.trainings import ROOT, LiveLine, Progress, add_trainer_options, check_trainer, shown_end, train
from simulated import pool

NOT_TRAINED = "not trained"  # in the time that --until gave
TEST_SAMPLES = 2000  # of a test on the way; the last one is of all
PROBED_STEPS = 4


@dataclasses.dataclass(frozen=True)
class Row:
    """What is trained once for each seed."""
    name: str
    processes: int
    steps: int
    tests: int  # on the way
    arguments: tuple  # of the trainer, besides those made from the rest

    def test_every(self):
        return max(1, self.steps // self.tests)


def tests_of(events):
    return [event for event in events if event["event"] == "evaluation"]


@dataclasses.dataclass
class Outcome:
    row: Row
    runs: list = dataclasses.field(default_factory=list)  # events of each seed, without those of steps
    failed: str = ""

    def percent(self, key="accuracy"):
        """Of the last tests, one a seed."""
        return [100 * tests_of(events)[-1][key] for events in self.runs]

    def on_the_way(self):
        """For each test before the last, which alone is of all samples, the events of the seeds."""
        return list(zip(*(tests_of(events)[:-1] for events in self.runs)))

    def curve(self, key="accuracy", factor=100):
        """(steps, accuracy in percent) of the tests on the way, means over seeds; or another figure, times `factor`."""
        tests = self.on_the_way()
        return [at[0]["steps"] for at in tests], [factor * mean([event[key] for event in at]) for at in tests]


def series_options(parser, name):
    """Adds the options of every series and reads the command line. The series' files are called `name`, in which
    {model} is the option's value."""
    add_trainer_options(parser)
    parser.add_argument("--hostfile", help="the machines to run on, as mpirun reads them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="SEED")
    parser.add_argument("--quick", action="store_true", help="a few steps of everything, to see that it works")
    parser.add_argument("--keep", metavar="FOLDER", help="of the trainings that have ended, which are not run again "
                        f"(default: build/reproduce/{name})")
    parser.add_argument("--out", help=f"written: OUT.json, OUT.md and OUT.png (default: bench/results/{name}, with "
                        f"--quick build/reproduce/{name}-quick)")
    options = parser.parse_args()
    name = name.format(**vars(options))
    folder = ROOT / "build/reproduce"
    options.keep = options.keep or str(folder / name)
    options.out = options.out or str(folder / f"{name}-quick" if options.quick else ROOT / "bench/results" / name)
    if options.until is not None and not options.simulate:
        parser.error("--until goes with --simulate")
    if options.simulate:
        check_simulation(parser, options)
    else:
        check_trainer(parser, options)
    return options


def add_simulation_options(parser):
    """For series whose trainings can be simulated."""
    parser.add_argument("--simulate", type=int, default=0, metavar="PROCESSES", help="train with PyTorch in place of the trainer, "
                        "on a GPU where there is one: so many trainings at once, each of one process that simulates all workers")
    parser.add_argument("--until", type=float, metavar="SECONDS", help="with --simulate: begin no training later than so many "
                        "seconds from the start, and tell of those arms and rates of which all seeds have ended")


def check_simulation(parser, options):
    """Ends the program where nothing could be simulated."""
    if options.simulate < 1:
        parser.error(f"--simulate: {options.simulate} processes are below 1")
    if options.hostfile:
        parser.error("--simulate trains on this machine: leave --hostfile out")
    pool.check(parser)


def duration(seconds):
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min" if minutes else "a minute"


class Series:
    """`options`: trainer, data, hostfile, seeds, quick, keep (a folder, or nothing to keep nothing), simulate, until."""

    def __init__(self, options, rows):
        self.options, self.rows, self.began = options, rows, time.monotonic()
        self.folder = pathlib.Path(options.keep) if options.keep else None
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.program = (pool.program() if options.simulate
                            else hashlib.sha256(pathlib.Path(options.trainer).read_bytes()).hexdigest())

    def arguments(self, row, seed):
        data = ["--data", self.options.data] if self.options.data else []
        return [*map(str, row.arguments), "--steps", str(row.steps), "--seed", str(seed), *data]

    def file(self, row, seed):
        """Of the training, by the program and all of its arguments."""
        key = json.dumps([self.program, row.processes, self.arguments(row, seed), row.tests])
        return self.folder / (hashlib.sha256(key.encode()).hexdigest()[:24] + ".json")

    def kept(self, row, seed):
        if not self.folder or not self.file(row, seed).exists():
            return None
        return json.loads(self.file(row, seed).read_text())["events"]

    def train(self, row, seed, *more, on_event):
        """Events and all. `more`: how far to train, and when to test."""
        arguments = [*self.arguments(row, seed), "--eval-samples", TEST_SAMPLES, *more]
        return train(self.options.trainer, row.processes, arguments, on_event, self.options.hostfile)

    def run(self, row, seed, title):
        progress, began = Progress(title, row.steps), time.monotonic()
        try:
            events = self.train(row, seed, "--eval-every", row.test_every(), on_event=progress)
        except RuntimeError as error:
            progress.line.finish(f"failed: {error}")
            raise
        events = [event for event in events if event["event"] != "step"]
        self.keep(row, seed, events)
        return events, time.monotonic() - began, progress

    def keep(self, row, seed, events):
        if self.folder:
            write(str(self.file(row, seed)), json.dumps({"arguments": self.arguments(row, seed), "events": events}))

    def probe(self, row):
        """(start, a step, a test on the way) in seconds, from a few steps, which are rounds of one step where a row has
        rounds: the trainer tells of steps at their round's end."""
        words = list(row.arguments)
        if "--local-steps" in words:
            words[words.index("--local-steps") + 1] = 1
            row = dataclasses.replace(row, arguments=tuple(words))
        at, began = {}, time.monotonic()
        stop = min(PROBED_STEPS, row.steps)
        def note(event):
            at[event["event"], event.get("step")] = time.monotonic() - began
        self.train(row, self.options.seeds[0], "--stop-at", stop, "--eval-every", stop, on_event=note)
        first, last = at["step", 0], at["step", stop - 1]
        return first, (last - first) / max(stop - 1, 1), at["evaluation", None] - last

    def estimates(self, missing):
        """Seconds of each row, from one probe for all rows of the same cost."""
        probes, result = {}, {}
        for row in missing:
            words = list(row.arguments)
            kind = (row.processes, *(words[words.index(key) + 1]
                                     for key in ("--model", "--batch", "--optimizer") if key in words))
            if kind not in probes:
                try:
                    probes[kind] = self.probe(row)
                except RuntimeError:
                    continue  # said again, and reported, when its turn comes
            start, step, test = probes[kind]
            result[row.name] = start + row.steps * step + (row.tests + 5) * test
        return result

    def run_all(self):
        """Outcomes by name, in the order of the rows."""
        if self.options.simulate:
            return self.simulate_all()
        outcomes = {row.name: Outcome(row) for row in self.rows}
        todo = [(row, seed) for row in self.rows for seed in self.options.seeds]
        missing = [job for job in todo if self.kept(*job) is None]
        foretold = self.folder and not self.options.quick
        expected = self.estimates(list(dict.fromkeys(row for row, _ in missing))) if foretold else {}
        if self.folder:
            print(f"{len(todo)} trainings, {len(todo) - len(missing)} of them kept in {self.folder}", flush=True)
        if expected:
            seconds = sum(expected.get(row.name, 0) for row, _ in missing)
            print(f"about {duration(seconds)} on this machine as it is now", flush=True)
        spent = foreseen = 0.0
        width = max(len(row.name) for row in self.rows)
        for number, (row, seed) in enumerate(todo, 1):
            outcome = outcomes[row.name]
            if outcome.failed:
                continue
            events = self.kept(row, seed)
            if events is None:
                title = f"[{number}/{len(todo)}] {row.name:{width}} seed {seed}"
                try:
                    events, took, progress = self.run(row, seed, title)
                except RuntimeError as error:
                    outcome.failed, outcome.runs = str(error), []
                    continue
                spent, foreseen = spent + took, foreseen + expected.get(row.name, 0)
                left = sum(expected.get(row.name, 0) for row, seed in todo[number:] if self.kept(row, seed) is None)
                progress.finish(events, f", about {duration(left * spent / foreseen)} left" if left and foreseen else "")
            outcome.runs.append(events)
        return outcomes

    def simulate_all(self):
        """The same of simulated trainings, several at once. A row has all of its seeds, or none."""
        outcomes = {row.name: Outcome(row) for row in self.rows}
        todo = [(row, seed) for row in self.rows for seed in self.options.seeds]
        found = {(row.name, seed): self.kept(row, seed) for row, seed in todo}
        jobs = [((row, seed), row.processes, [*self.arguments(row, seed), "--eval-samples", TEST_SAMPLES, "--eval-every",
                                              row.test_every()]) for row, seed in todo if found[row.name, seed] is None]
        if self.folder:
            print(f"{len(todo)} trainings, {len(todo) - len(jobs)} of them kept in {self.folder}", flush=True)
        until = None if self.options.until is None else self.began + self.options.until
        with pool.Pool(self.options.simulate) as processes:
            ended = processes.train(jobs, lambda job: outcomes[job[0][0].name].failed, until)
            for number, (((row, seed), *_), events, why) in enumerate(ended, 1):
                line = LiveLine(f"[{number}/{len(jobs)}] {row.name} seed {seed}")
                if why:
                    outcomes[row.name].failed = why
                    line.finish(f"failed: {why}")
                else:
                    self.keep(row, seed, events)
                    found[row.name, seed] = events
                    line.finish(shown_end(events[0]["measure"], events[-1]))
        for outcome in outcomes.values():
            runs = [found[outcome.row.name, seed] for seed in self.options.seeds]
            if None in runs:
                outcome.failed = outcome.failed or NOT_TRAINED
            if not outcome.failed:
                outcome.runs = runs
        return outcomes


def run(main):
    """`main` as a program: its result is the exit status; Ctrl-C keeps what has ended."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print(f"\n{os.path.basename(sys.argv[0])}: interrupted; the next call goes on with the training that was under way",
              file=sys.stderr)
        sys.exit(130)
