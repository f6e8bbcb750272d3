# SPDX-License-Identifier: Apache-2.0
"""The commands of programs/atomo-train/reproduce, at a few steps on made-up data, and the series of trainings behind them."""

import math
import os
import pathlib
import subprocess
import sys
import types
import unittest

import numpy
from jobs import TOOLS, TRAINER, data, finished, path  # where the experiments are, too
from reproduce_commands import COMMANDS, CommandTest
from test_quadratic import write_quadratic

from experiments import bytes_to_accuracy, seconds_to_accuracy
from experiments.series import Outcome, Row, Series
from experiments.shorter_test import with_first_tests

# Sends 500,000 bytes from one host of a shaped network to another and tells the seconds until they are there.
SENDS = """
import subprocess, sys
from experiments.shaped_network import ShapedNetwork
def on(host, program, **keywords):
    return subprocess.Popen(["nsenter", "--net", "--target", str(host.pid), sys.executable, "-c", program], text=True, **keywords)
with ShapedNetwork(2, "8mbit") as network:
    receiver = on(network.holders[0], '''
import socket, time
server = socket.create_server(("10.77.0.1", 5000))
print("ready", flush=True)
client, _ = server.accept()
began, got = time.monotonic(), 0
while got < 500_000:
    got += len(client.recv(65536))
print(time.monotonic() - began)
''', stdout=subprocess.PIPE)
    receiver.stdout.readline()
    on(network.holders[1], "import socket; socket.create_connection(('10.77.0.1', 5000)).sendall(bytes(500_000))").wait()
    print(receiver.stdout.read())
"""
# Takes the trainer's options, leaves a line in a log for each training, and fails where an argument says so.
FAKE_TRAINER = """#!/usr/bin/env python3
import json, sys
words = sys.argv[1:]
value = lambda key: words[words.index(key) + 1]
with open({log!r}, "a") as log:
    print(*words, file=log)
if "broken" in words:
    sys.exit("atomo-train: cannot start: it is broken")
steps = int(value("--stop-at") if "--stop-at" in words else value("--steps"))
def say(event, **more):
    print(json.dumps({{"event": event, **more}}), flush=True)
say("start", measure="accuracy", parameters=8)
for step in range(steps):
    say("step", step=step, loss=1.0, sent_bytes_per_worker=step, ms={{"compute": 1.0}})
    if (step + 1) % int(value("--eval-every")) == 0:
        say("evaluation", steps=step + 1, accuracy=int(value("--seed")) / 10, sent_bytes_per_worker=step)
say("end", steps=steps, accuracy=int(value("--seed")) / 10, bytes_per_step=1.0, seconds=0.1)
"""

# Runs its program once, in this place.
FAKE_LAUNCHER = """#!/usr/bin/env bash
while [ "$1" != -n ]; do shift; done
exec "${@:3}"
"""

# A series of two rows as a program.
PROGRAM = """
import argparse, sys
sys.path.insert(0, {package!r})
from experiments.series import Row, Series, run, series_options
options = series_options(argparse.ArgumentParser(), "two-rows")
def main():
    rows = [Row("one", 1, 4, 2, ("--model", "m")), Row("other", 1, 4, 2, ("--model", "m", {word!r}))]
    for name, outcome in Series(options, rows).run_all().items():
        print(name, outcome.failed or outcome.percent(), [event["event"] for event in sum(outcome.runs, [])])
run(main)
"""


class ReproduceTest(CommandTest):
    def test_ecl_goes_on_where_it_stopped(self):
        said, written, table = self.command("ecl", "--quick")
        self.assertRegex(said, "6 trainings, 0 of them kept in ")
        self.assertEqual([line["method"] for line in written["results"]],
                         ["DSGD", "DSGD, last models at every step", "ADMM-ISVR", "PDMM-ISVR", "each node alone",
                          "one machine"])
        self.assertIn("| double-ring: PDMM-ISVR", table)
        self.assertEqual([line["published"] for line in written["results"]], [65.5, 65.5, 81.0, 80.9, None, 82.0])
        for line in written["results"]:
            steps, losses = line["loss_curve"]
            self.assertEqual(steps, [4, 8, 12])
            for loss in losses:
                self.assertLess(abs(loss - math.log(10)), 0.5, line["method"])  # of ten classes, at the beginning
        kept = sorted(pathlib.Path(path("kept-ecl")).iterdir())
        self.assertEqual(len(kept), 6)
        kept[0].unlink()
        again, rewritten, _ = self.command("ecl", "--quick")
        self.assertRegex(again, "6 trainings, 5 of them kept")
        self.assertEqual(rewritten["results"], written["results"])  # the same curve to the last bit

        fewer, some, _ = self.command("ecl", "--quick", "--methods", "pdmm")
        self.assertRegex(fewer, "3 trainings, 3 of them kept")
        self.assertEqual(some["results"], [line for line in written["results"]
                                           if line["method"] in ("PDMM-ISVR", "each node alone", "one machine")])

    def test_codec_per_layer(self):
        _, written, table = self.command("codec-per-layer", "--quick")
        self.assertIn((COMMANDS / "codec-per-layer.policy").read_text().strip(), table)
        per_layer, uncompressed, *others = [result["runs"][0][-1]["bytes_per_step"] for result in written["results"]]
        self.assertGreater(uncompressed, 10 * per_layer)
        for size in others:
            self.assertLess(abs(size / per_layer - 1), 0.1, others)

    def test_bytes_to_accuracy(self):
        _, written, _ = self.command("bytes-to-accuracy", "--quick")
        uncompressed, rival, published, ours = written["results"]
        self.assertEqual(uncompressed["codec"], "identity:dtype=f32")
        self.assertEqual(rival["codec"], "qsgd:bits=2")
        self.assertRegex(published["codec"], "^atomo:atoms=svd,keep=[0-9]+,values=f32$")
        size = [result["runs"][0][-1]["bytes_per_step"] for result in (rival, published, ours)]
        self.assertEqual(ours["codec"], f"atomo:bits={8 * size[0] / 431080:.4g}")
        self.assertLess(max(size), 1.05 * size[0])

    def test_bytes_to_a_target(self):
        """The first test at which the mean over seeds and over three tests is there."""
        def run_of(*scores):
            return [{"event": "evaluation", "steps": 10 * (k + 1), "accuracy": score, "sent_bytes_per_worker": 1e6 * (k + 1)}
                    for k, score in enumerate(scores)]

        outcome = Outcome(Row("", 1, 50, 5, ()), [run_of(.1, .5, .9, .9, .9, 1), run_of(.3, .5, .7, .9, .9, 1)])
        points = bytes_to_accuracy.smoothed(outcome)
        self.assertEqual([(steps, megabytes) for steps, megabytes, _ in points], [(10, 1), (20, 2), (30, 3), (40, 4), (50, 5)])
        for (*_, found), expected in zip(points, (20, 35, 50, 220 / 3, 260 / 3), strict=True):
            self.assertAlmostEqual(found, expected)
        self.assertEqual(bytes_to_accuracy.reached(points, 50), (30, 3))
        self.assertIsNone(bytes_to_accuracy.reached(points, 90))

    def test_seconds_to_a_target(self):
        """Steps to the target times what a step of each seed takes."""
        def run(ms):
            return [*({"event": "evaluation", "steps": 10 * k, "sent_bytes_per_worker": 0, "accuracy": 0.1 * k} for k in range(1, 8)),
                    {"event": "end", "ms": {"compute": ms, "encode": 1, "wire": 2, "decode": 3}}]
        outcome = Outcome(Row("", 2, 70, 7, ()), [run(94), run(194)])
        # Means of three tests: 20 % after 30 steps, 30 % after 40.
        self.assertEqual(seconds_to_accuracy.seconds_to(outcome, 29)[0], 40 * 0.15)
        self.assertIsNone(seconds_to_accuracy.seconds_to(outcome, 90))

    @unittest.skipIf(subprocess.run(["unshare", "--map-root-user", "--net", "true"], capture_output=True).returncode != 0,
                     "no network namespaces here")
    def test_links_take_the_time_that_bytes_take(self):
        done = subprocess.run(["unshare", "--map-root-user", "--net", sys.executable, "-c", SENDS], capture_output=True, text=True,
                              env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}, cwd=TOOLS, timeout=600)
        self.assertEqual(done.returncode, 0, done.stderr)
        # 500 kB at 8 Mbit/s take half a second, less the 128 kB that pass at once at each of two buckets.
        self.assertGreater(float(done.stdout), 0.24)

    def test_old_models_slow_down(self):
        """One neighbour, whose model comes every P steps: P of them move as far as 1 - 2^-P gradients."""
        period, rate, steps = 4, 0.002, 400
        data_folder = write_quadratic("equal.json", numpy.ones((2, 1)), numpy.zeros((2, 1)), start=1000)
        moved = {}
        for algorithm, options in (("alone", ()), ("dsgd", ("--period", period)), ("dsgd-stale", ("--period", period))):
            (end,) = finished(2, "--model", "quadratic", "--batch", 1, "--split", "duplicate:r=1", "--schedule", "constant",
                              "--momentum", 0, "--lr", rate, "--steps", steps, "--algorithm", algorithm, *options,
                              data_folder=data_folder).events("end")
            moved[algorithm] = math.log(end["distance"] / 1000)
        self.assertAlmostEqual(moved["alone"] / (steps * math.log(1 - rate)), 1, places=3)
        self.assertAlmostEqual(moved["dsgd"] / moved["alone"], 1, places=3)
        slower = period / (1 - 0.5 ** period)
        self.assertLess(abs(moved["alone"] / moved["dsgd-stale"] / slower - 1), 0.01, moved)


class SeriesTest(unittest.TestCase):
    def series(self, word, *options):
        """Output of a series of a row and one with the argument `word`, with a made-up trainer, and its trainings."""
        trainer, program, log, launcher = path("fake/trainer"), path("program.py"), path("fake.log"), path("fake/mpirun")
        pathlib.Path(log).write_text("")
        if not os.path.exists(trainer):
            os.mkdir(path("fake"))
            for file, text in ((trainer, FAKE_TRAINER.format(log=log)), (launcher, FAKE_LAUNCHER)):
                pathlib.Path(file).write_text(text)
                os.chmod(file, 0o755)
        pathlib.Path(program).write_text(PROGRAM.format(package=str(TOOLS), word=word))
        done = subprocess.run([sys.executable, program, "--trainer", trainer, "--keep", path("kept-series"), *options],
                              capture_output=True, text=True, check=True,
                              env={**os.environ, "PATH": path("fake") + ":" + os.environ["PATH"]})
        return done.stdout, [line for line in pathlib.Path(log).read_text().splitlines() if "--stop-at" not in line]

    def test_what_is_kept(self):
        said, trained = self.series("this", "--seeds", "1", "2")
        self.assertEqual(len(trained), 4)
        self.assertRegex(said, "4 trainings, 0 of them kept in .*\nabout (a minute|[0-9]+ min) on this machine")
        self.assertIn("one [10.0, 20.0] ['start', 'evaluation', 'evaluation', 'end'", said)
        again, trained = self.series("this", "--seeds", "1", "2")
        self.assertEqual(trained, [])
        self.assertIn("one [10.0, 20.0]", again)
        _, trained = self.series("this", "--seeds", "1", "2", "3")  # one seed more
        self.assertEqual(["--seed 3" in line for line in trained], [True, True])
        _, trained = self.series("that", "--seeds", "1")  # another argument
        self.assertEqual(len(trained), 1)
        with open(path("fake/trainer"), "a", encoding="utf-8") as file:
            file.write("# another program\n")
        _, trained = self.series("this", "--seeds", "1")
        self.assertEqual(len(trained), 2)

    def test_a_row_that_fails(self):
        said, _ = self.series("broken", "--seeds", "7", "8")
        self.assertIn("failed: cannot start: it is broken", said)
        self.assertIn("one [70.0, 80.0]", said)
        self.assertIn("other cannot start: it is broken", said)
        self.assertEqual(said.count("failed:"), 1)  # not once a seed

    def test_a_shorter_test(self):
        """30 of the 200 samples: the model is right about a thirtieth of them or about several."""
        for _ in range(2):  # what is there is made anew
            folder = with_first_tests(data, 30, path("first-30"))
        job = finished(1, "--algorithm", "allgather", "--model", "logistic", "--steps", 2, data_folder=folder)
        right = 30 * job.events("end")[0]["accuracy"]
        self.assertAlmostEqual(right, round(right), places=4)
        self.assertNotEqual(job.events("end")[0]["loss"], finished(
            1, "--algorithm", "allgather", "--model", "logistic", "--steps", 2).events("end")[0]["loss"])

    def test_rounds_are_probed_as_single_steps(self):
        """The trainer tells of steps at their round's end."""
        probed = []

        class Probed(Series):
            def train(self, row, seed, *more, on_event):
                probed.append((row.arguments, more))
                for step in range(4):
                    on_event({"event": "step", "step": step})
                on_event({"event": "evaluation"})

        row = Row("", 2, 600, 6, ("--local-steps", 100, "--lr", "0.1"))
        Probed(types.SimpleNamespace(keep=None, seeds=[1]), [row]).probe(row)
        self.assertEqual(probed, [(("--local-steps", 1, "--lr", "0.1"), ("--stop-at", 4, "--eval-every", 4))])


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
