# SPDX-License-Identifier: Apache-2.0
"""The quadratic model: runs against the same steps in double precision, and files that are refused."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy
from jobs import TRAINER, Job, finished, path, read_safetensors


def write_quadratic(name, curvature, pull, **more):
    """A file of samples; `curvature` and `pull` are samples x elements."""
    samples = [{"curvature": list(a), "pull": list(c)} for a, c in zip(curvature.tolist(), pull.tolist(), strict=True)]
    with open(path(name), "w", encoding="utf-8") as file:
        json.dump({"rows": 1, "columns": curvature.shape[1], "samples": samples, **more}, file)
    return path(name)


class QuadraticTest(unittest.TestCase):
    def test_a_run_takes_the_steps_of_gradient_descent(self):
        """Two workers with both samples in every step: the order of the data does not matter."""
        random = numpy.random.default_rng(4)
        curvature, pull = random.uniform(0.5, 2, (2, 6)), random.normal(0, 1, (2, 6))
        start = random.normal(0, 3, 6).astype(numpy.float32).astype(float)
        data = write_quadratic("descent.json", curvature, pull, rows=2, columns=3, start=start.tolist())
        job = finished(3, "--model", "quadratic", "--batch", 1, "--steps", 20, "--schedule", "constant", "--lr", 0.3,
                       "--momentum", 0.5, "--eval-every", 1, data_folder=data)
        self.assertEqual(job.events("start")[0]["parameters"], 6)
        self.assertEqual(job.events("start")[0]["measure"], "distance")
        x, velocity = start, numpy.zeros(6)
        a, c = curvature.mean(0), pull.mean(0)
        tests = job.events("evaluation")
        self.assertEqual(len(tests), 20)
        for step, test in zip(job.events("step"), tests, strict=True):
            self.assertAlmostEqual(step["loss"], (a * x * x / 2 - c * x).sum(), places=5)
            velocity = 0.5 * velocity + a * x - c
            x = x - 0.3 * velocity
            self.assertAlmostEqual(test["distance"], float(numpy.linalg.norm(x - c / a)), places=5)
            self.assertAlmostEqual(test["loss"], (a * x * x / 2 - c * x).sum(), places=5)

    def test_a_far_start_resolves_small_relative_errors(self):
        data = write_quadratic("far.json", numpy.array([[1.0, 2.0], [2.0, 1.0]]), numpy.array([[0.5, -1.0], [-0.5, 1.0]]),
                               start=1000)
        job = finished(3, "--model", "quadratic", "--batch", 1, "--steps", 300, "--schedule", "constant", "--lr", 0.3,
                       "--momentum", 0, data_folder=data)
        self.assertLess(job.events("evaluation")[-1]["distance"], 1e-9 * 1000)

    def far(self):
        """Two samples whose gradients at the start are above 3."""
        return write_quadratic("diverging.json", numpy.array([[1.0] * 16, [2.0] * 16]), numpy.zeros((2, 16)), rows=4, columns=4, start=5)

    def ends_with(self, said, step, processes, *options):
        """A run that saves each step ends for what is `said`, and leaves the checkpoint of `step`."""
        saved = tempfile.mktemp(suffix=".safetensors", dir=os.path.dirname(path("x")))
        job = Job(processes, "--model", "quadratic", "--batch", 1, "--schedule", "constant", "--save", saved, "--save-every", 1,
                  *options, data_folder=self.far())
        status, _, err = job.end()
        self.assertEqual(status, 1, err)
        self.assertRegex(err, said)
        self.assertEqual(err.count("atomo-train:"), 1, err)
        self.assertEqual(job.events("end"), [])
        content = pathlib.Path(saved).read_bytes()
        header = json.loads(content[8: 8 + int.from_bytes(content[:8], "little")])
        self.assertEqual(header["__metadata__"]["step"], str(step))
        for name, values in read_safetensors(saved).items():
            if values.dtype == numpy.float32:
                self.assertTrue(numpy.isfinite(values).all(), name)

    def test_a_gradient_that_is_not_finite_ends_the_run(self):
        scaled = ("--lr", 0.01, "--loss-scale", 3e38, "--loss-scale-from", 3)
        for steps, processes, *options in (
                (6, 2, "allgather"), (4, 2, "allgather"), (4, 2, "allgather", "--codec", "qsgd:bits=4"),
                (4, 2, "allgather", "--optimizer", "signsgd"), (6, 3, "ps"), (4, 3, "ps"), (4, 2, "ring"),
                (6, 2, "local", "--local-steps", 3), (6, 3, "fedavg", "--local-steps", 3), (4, 2, "dpsgd"), (4, 2, "admm")):
            without = () if "signsgd" in options else ("--momentum", 0)
            with self.subTest(options, steps=steps):
                self.ends_with("the gradient of step 3 is not finite", 3, processes, "--steps", steps, "--algorithm", *options,
                               *scaled, *without)

    def test_weights_that_are_not_finite_are_not_kept(self):
        """Of finite gradients: the steps are 1e18 times as long."""
        weights, change = "the weights are not finite after 3 steps: the training diverged", "the gradient of round 2 is not finite"
        for steps, processes, algorithm, said in ((3, 2, "allgather", weights), (5, 2, "allgather", weights), (3, 3, "ps", weights),
                                                  (5, 3, "ps", weights), (3, 2, "dpsgd", weights), (3, 2, "local", change)):
            with self.subTest(algorithm, steps=steps):
                self.ends_with(said, 2, processes, "--steps", steps, "--lr", 1e18, "--momentum", 0, "--algorithm", algorithm)

    def test_the_end_is_no_model_that_is_not_finite(self):
        for processes, algorithm in ((2, "allgather"), (3, "ps"), (2, "dpsgd")):
            with self.subTest(algorithm):
                job = Job(processes, "--model", "quadratic", "--batch", 1, "--steps", 3, "--lr", 1e18, "--schedule", "constant",
                          "--momentum", 0, "--algorithm", algorithm, data_folder=self.far())
                status, _, err = job.end()
                self.assertEqual(status, 1, err)
                self.assertIn("the weights are not finite after 3 steps", err)
                self.assertEqual(job.events("evaluation") + job.events("end"), [])

    def test_bad_files_are_refused(self):
        good = {"rows": 1, "columns": 2, "samples": [{"curvature": [1, 1], "pull": [0, 0]}]}
        cases = (("{", "parse error"), ("[1]", '"samples"'), (json.dumps({**good, "samples": []}), '"samples"'),
                 (json.dumps({**good, "rows": 0}), "'rows' is 0"), (json.dumps({**good, "columns": 2.5}), "'columns' is 2.5"),
                 (json.dumps({**good, "columns": 3}), "rows x columns = 3 numbers"),
                 (json.dumps({**good, "samples": [{"curvature": [1, 1]}]}), "'samples[0].pull'"),
                 (json.dumps({**good, "samples": [{"curvature": [1, "1"], "pull": [0, 0]}]}), "'samples[0].curvature'"),
                 (json.dumps({**good, "samples": [5]}), "samples[0] is no object"),
                 (json.dumps({**good, "start": [1]}), "'start'"),
                 (json.dumps({**good, "samples": [{"curvature": [1, -1], "pull": [0, 0]}]}),
                  "no optimum: the curvatures of element 1"))
        name = path("bad.json")
        for text, expected in cases:
            with self.subTest(text=text):
                with open(name, "w", encoding="utf-8") as file:
                    file.write(text)
                # Without mpirun a process is the server alone; all-gather needs one process and no start-up of others.
                run = subprocess.run([TRAINER, "--algorithm", "allgather", "--model", "quadratic", "--data", name, "--batch",
                                      "1", "--steps", "1"], capture_output=True, text=True, check=False, timeout=600)
                self.assertNotEqual(run.returncode, 0)
                self.assertIn(expected, run.stderr)
                self.assertIn(name, run.stderr)

    def test_no_file(self):
        run = subprocess.run([TRAINER, "--model", "quadratic", "--check"], capture_output=True, text=True, check=False)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("--model quadratic needs a file of its own", run.stderr)
        status, _, err = Job(2, "--model", "quadratic", "--steps", 1, data_folder=path("none.json")).end()
        self.assertNotEqual(status, 0)
        self.assertIn("cannot be opened", err)


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
