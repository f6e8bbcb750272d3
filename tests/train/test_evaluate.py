# SPDX-License-Identifier: Apache-2.0
"""atomo-train evaluate: a process without MPI that tests what a run saves."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

from jobs import TRAINER, Job, data, finished, path


class EvaluateTest(unittest.TestCase):
    def evaluate(self, *arguments):
        """Exit status, what it says, what it complains of."""
        done = subprocess.run([TRAINER, "evaluate", *map(str, arguments)], capture_output=True, text=True, timeout=600)
        return done.returncode, done.stdout, done.stderr

    def follow(self, *arguments):
        return subprocess.Popen([TRAINER, "evaluate", *map(str, arguments), "--follow"], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def scores(self, lines):
        """Test and its loss by steps done, of JSON lines."""
        events = [json.loads(line) for line in lines.splitlines()]
        return {e["steps"]: (e["accuracy"], e["loss"]) for e in events if e["event"] == "evaluation"}

    def close(self, found, expected):
        """A run adds up its workers' shares of the test: the same but for rounding."""
        self.assertEqual(sorted(found), sorted(expected))
        for steps, (accuracy, loss) in expected.items():
            self.assertEqual(found[steps][0], accuracy)
            self.assertAlmostEqual(found[steps][1], loss, delta=1e-6 * loss)

    def test_tests_what_the_run_tested(self):
        """Statistics of batch normalisation are the mean over the workers, as in the run."""
        saved, log = path("evaluated.safetensors"), path("evaluated.jsonl")
        job = finished(2, "--algorithm", "allgather", "--model", "resnet20", "--steps", 4, "--batch", 4, "--lr", 0.01,
                       "--save", saved)
        status, out, err = self.evaluate(saved, "--json", "--log", log)
        self.assertEqual(status, 0, err)
        self.assertEqual(out, pathlib.Path(log).read_text())
        expected = job.events("evaluation")[0]
        self.close(self.scores(out), {4: (expected["accuracy"], expected["loss"])})
        first, tested = map(json.loads, out.splitlines())
        self.assertEqual((first["event"], first["model"], first["data"], first["parameters"]),
                         ("start", "resnet20", data, 272186))
        self.assertEqual(tested["sent_bytes_per_worker"], expected["sent_bytes_per_worker"])
        status, out, _ = self.evaluate(saved, "--progress", "on")
        self.assertIn("testing after 4 of 4 steps: 50 %\n", out)  # a carriage return, read as text
        self.assertIn(f"tested after 4 steps: accuracy {100 * expected['accuracy']:.2f} %", out)

    def test_scores_of_samples(self):
        """In the folder of a run and from its checkpoint alone, for classifiers here and torch's."""
        for model in ("logistic", "mlp:hidden=8"):
            with self.subTest(model):
                out = path(f"scores-{model[:3]}")
                finished(2, "--algorithm", "ps", "--model", model, "--steps", 3, "--batch", 4, "--out", out, "--sample-scores")
                text = pathlib.Path(out, "sample-scores.csv").read_text()
                rows = [line.split(",") for line in text.splitlines()]
                self.assertEqual(rows[0], ["sample", "target", "prediction", "score"])
                self.assertEqual([int(row[0]) for row in rows[1:]], list(range(len(rows) - 1)))
                self.assertTrue(all(0.1 <= float(row[3]) <= 1 for row in rows[1:]))
                right = sum(row[1] == row[2] for row in rows[1:]) / (len(rows) - 1)
                end, = [json.loads(line) for line in pathlib.Path(out, "log.jsonl").read_text().splitlines() if '"end"' in line]
                self.assertAlmostEqual(right, end["accuracy"], places=9)
                again = path("scores.csv")
                status, _, err = self.evaluate(f"{out}/checkpoint.safetensors", "--sample-scores", again)
                self.assertEqual((status, pathlib.Path(again).read_text()), (0, text), err)

    def test_follows_a_run_to_its_end(self):
        """It waits for the file, tests versions once each and in order, and ends with the last."""
        saved = path("followed.safetensors")
        evaluator = self.follow(saved, "--json", "--timeout", 60)
        job = finished(2, "--algorithm", "allgather", "--model", "logistic", "--steps", 300, "--save", saved,
                       "--save-every", 10, "--eval-every", 10, "--lr", 0.001)
        out, err = evaluator.communicate(timeout=600)
        self.assertEqual(evaluator.returncode, 0, err)
        found = self.scores(out)
        self.assertEqual(len(found), out.count('"event":"evaluation"'))
        self.assertEqual(list(found), sorted(found))
        self.assertEqual(max(found), 300)
        expected = {e["steps"]: (e["accuracy"], e["loss"]) for e in job.events("evaluation") if e["steps"] in found}
        self.close(found, expected)

    def test_each_version_once(self):
        """A file that is replaced by the same version, or an older one, is not tested again."""
        first, second, watched = path("first.safetensors"), path("second.safetensors"), path("watched.safetensors")
        options = (2, "--algorithm", "allgather", "--model", "logistic", "--steps", 6)
        finished(*options, "--save", first, "--stop-at", 2)
        finished(*options, "--save", second, "--stop-at", 4)

        def put(name):
            shutil.copy(name, watched + ".part")
            os.replace(watched + ".part", watched)
            time.sleep(1)

        put(second)
        evaluator = self.follow(watched, "--json")
        line = ""
        while '"event":"evaluation"' not in line:
            line = evaluator.stdout.readline()
        put(second)
        put(first)
        evaluator.send_signal(signal.SIGINT)
        out, err = evaluator.communicate(timeout=600)
        self.assertEqual((evaluator.returncode, out), (130, ""), err)
        self.assertEqual(json.loads(line)["steps"], 4)

    def test_refusals(self):
        short, log = path("short.safetensors"), path("short.jsonl")
        pathlib.Path(short).write_text("too short")
        dumped = path("dumped")
        job = Job(1, "--algorithm", "allgather", "--model", "logistic", "--steps", 1, "--dump-gradients", dumped, "--at", 0,
                  "--save", path("one.safetensors"))
        self.assertEqual(job.end()[0], 0)
        for arguments, status, expected in (
                ((), 2, "FILE is required"), ((short, "--sometimes"), 2, "--sometimes"),
                ((path("none"),), 1, "cannot read"), ((short,), 1, "is no .safetensors file, or damaged: "),
                ((f"{dumped}/step0-mean.safetensors",), 1, "is not a checkpoint"),
                ((path("one.safetensors"), "--data", path("none")), 1, "train-images-idx3-ubyte"),
                ((path("one.safetensors"), "--log", f"{log}/x"), 1, "cannot write the log"),
                ((path("none"), "--follow", "--timeout", 0.5), 1, "has not been written for")):
            with self.subTest(arguments=arguments):
                found, out, err = self.evaluate(*arguments)
                self.assertEqual(found, status, err)
                self.assertTrue(err.startswith("atomo-train evaluate: "), err)
                self.assertIn(expected, err)
                self.assertEqual(out, "")
        self.assertIn("--follow", self.evaluate("--help")[1])


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
