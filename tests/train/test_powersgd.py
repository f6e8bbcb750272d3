# SPDX-License-Identifier: Apache-2.0
"""Runs of atomo-train --algorithm powersgd: factors that add up, with a memory or with residuals."""

import json
import subprocess
import sys
import unittest

import numpy
from jobs import LONG, TRAINER, Job, data, finished, launch, losses, path, read_safetensors
from test_allreduce import AllReduceTest

POWERSGD = ("--algorithm", "powersgd", "--rank", 2)
RESIDUAL = ("--residual", "atomo:atoms=rows,bits=1")
ROWS, COLUMNS = 10, 784  # of the logistic model's matrix; its bias goes along


def said_of(*options):
    """What is wrong with a command line."""
    return subprocess.run([TRAINER, *map(str, options), "--check"], capture_output=True, text=True, check=False).stderr


class PowerSgdTest(AllReduceTest):
    def test_replicas_stay_equal(self):
        """Workers 1 and 2, and 3 and 4, see the same samples: their gradients are the same where their weights are. Q is the
        same on all four."""
        for name, model, more in (("memory", "lenet", ()), ("residual", "lenet" if LONG else "logistic", RESIDUAL)):
            gradients, saved = path(f"replicas-{name}"), path(f"replicas-{name}.safetensors")
            finished(4, "--model", model, "--batch", 4, "--steps", 8, "--stop-at", 6, "--at", 5, "--split", "duplicate:r=2",
                     *POWERSGD, "--min-ratio", 1, *more, "--dump-gradients", gradients, "--save", saved)
            own = [read_safetensors(f"{gradients}/step5-worker{k}.safetensors") for k in (1, 2, 3, 4)]
            for layer, values in own[0].items():
                with self.subTest(name, layer=layer):
                    numpy.testing.assert_array_equal(values, own[1][layer])
                    numpy.testing.assert_array_equal(own[2][layer], own[3][layer])
                    self.assertGreater(numpy.abs(values - own[2][layer]).max(), 0)
            kept = read_safetensors(saved)
            for k in (2, 3, 4):
                numpy.testing.assert_array_equal(kept["worker1.own.q"], kept[f"worker{k}.own.q"])
            self.assertGreater(numpy.abs(kept["worker1.own.q"]).max(), 0)

    def test_it_learns(self):
        for more in ((), RESIDUAL):
            curve = losses(3, "--model", "logistic", "--steps", 30, "--lr", 0.02, *POWERSGD, *more)
            self.assertLess(sum(curve[-5:]) / 5, 0.6 * curve[0], more)

    def test_of_a_large_rank_it_is_exact(self):
        options = (3, "--model", "logistic", "--steps", 6, "--batch", 8)
        saved = path("exact.safetensors")
        exact = losses(*options, "--algorithm", "allgather")
        found = losses(*options, "--algorithm", "powersgd", "--rank", ROWS, "--min-ratio", 0.1, "--save", saved)
        self.close(found, exact)
        self.assertGreater(max(abs(a - b) for a, b in zip(found, losses(*options, *POWERSGD))), 1e-3)
        memory = sum(read_safetensors(saved)[f"worker{k}.own.memory"].astype(float) for k in (1, 2, 3))
        self.assertLess(numpy.abs(memory).max(), 1e-5)  # each has what it differs by from the mean

    def test_layers_that_are_not_factored_add_up(self):
        """Bit for bit where each sum has two terms; and so do all gradients before --start-step."""
        options = (2, "--model", "logistic", "--steps", 4, "--batch", 8)
        exact = losses(*options, "--algorithm", "allgather")
        self.assertEqual(losses(*options, *POWERSGD, "--min-ratio", 1e6), exact)
        for more in ((), RESIDUAL):
            found = losses(*options, *POWERSGD, "--start-step", 2, *more)
            self.assertEqual(found[:3], exact[:3])
            self.assertNotEqual(found[3], exact[3])

    def test_what_is_left_is_kept(self):
        """A worker's memory is its gradient and its memory before, less what the step went along."""
        states = []
        for done in (2, 3):
            gradients, saved = path("kept-gradients"), path(f"kept-{done}.safetensors")
            finished(2, "--model", "logistic", "--steps", 5, "--stop-at", done, "--at", 2, *POWERSGD,
                     "--dump-gradients", gradients, "--save", saved)
            states.append(read_safetensors(saved))
        used = read_safetensors(f"{gradients}/step2-mean.safetensors")["fc.weight"]
        self.assertLessEqual(numpy.linalg.matrix_rank(used, tol=1e-5 * numpy.linalg.norm(used)), 2)
        for k in (1, 2):
            own = read_safetensors(f"{gradients}/step2-worker{k}.safetensors")["fc.weight"]
            before, after = (state[f"worker{k}.own.memory"][:ROWS * COLUMNS].reshape(ROWS, COLUMNS) for state in states)
            numpy.testing.assert_allclose(after, own + before - used, atol=1e-6)
            self.assertGreater(numpy.abs(before).max(), 1e-4)
            self.assertFalse(states[1][f"worker{k}.own.memory"][ROWS * COLUMNS:].any())

    def test_bytes(self):
        """P, Q and the bias in f32, each once; of every copy two thirds twice, as in a ring of three."""
        factors = 4 * 2 * (ROWS + COLUMNS)
        for more, reduced in (((), factors + 4 * 10), (RESIDUAL, factors)):
            for event in finished(3, "--model", "logistic", "--steps", 3, *POWERSGD, *more).events("step"):
                self.assertEqual(event["all_reduced_bytes_per_worker"], reduced)
                message = event["bytes_per_worker"] - reduced
                traffic = event["traffic_per_worker"]
                self.assertEqual(message > 0, bool(more))
                self.assertAlmostEqual(traffic["sent"], traffic["received"])
                self.assertGreaterEqual(traffic["sent"] + 1e-6, 4 / 3 * reduced + 2 * message)
                self.assertLess(traffic["sent"], 4 / 3 * reduced + 2.2 * message + 1)

    def test_resume(self):
        for model, more in (("lenet" if LONG else "logistic", ()), ("logistic", RESIDUAL), ("logistic", ("--start-step", 5))):
            _, saved = self.resumed(4, 4, 3, "--model", model, "--steps", 7, *POWERSGD, "--min-ratio", 1, *more,
                                    "--eval-samples", 20)
            self.assertEqual(saved["worker1.own.q"].any(), more[:1] != ("--start-step",))
            self.assertEqual(saved["worker1.own.memory"].any(), not more)

    def test_squares_beside_factors(self):
        """With every rank a matrix can have, before --start-step, and where nothing is factored, steps are those that an
        all-gather of gradients as they are takes: the second moment is of the same squares."""
        options = (3, "--model", "logistic", "--steps", 6, "--batch", 8, "--optimizer", "adamw", "--lr", 0.01)
        moment = ("--second-moment", "factored", "--squares-every", 2)
        exact, own = (losses(*options, "--algorithm", "allgather", *more) for more in (moment, ()))
        self.assertGreater(max(abs(a - b) for a, b in zip(exact, own)), 1e-3)
        for more in (("--rank", ROWS, "--min-ratio", 0.1), ("--rank", 2, "--start-step", 6), ("--rank", 2, "--min-ratio", 1e9)):
            with self.subTest(more):
                self.close(losses(*options, "--algorithm", "powersgd", *more, *moment), exact)

    def test_squares_are_counted_and_told_again_after_a_return(self):
        """From a checkpoint the run goes on as if it had not stopped."""
        moment = ("--second-moment", "factored", "--squares-every", 3)
        options = (2, "--model", "logistic", "--steps", 8, "--batch", 4, "--optimizer", "adamw", "--lr", 0.01, *POWERSGD)
        plain, told = (finished(*options, *more).events("step") for more in ((), moment))
        for key in ("bytes_per_worker", "traffic_per_worker"):
            of_step = [[event[key] if key == "bytes_per_worker" else event[key]["sent"] for event in events] for events in (plain, told)]
            self.assertEqual([b > a for a, b in zip(*of_step)], [step % 3 == 0 for step in range(8)], key)
        saved = path("told.safetensors")
        finished(*options, *moment, "--stop-at", 5, "--save", saved)
        again = finished(*options, *moment, "--resume", saved).events("step")
        self.assertEqual([event["loss"] for event in told[5:]], [event["loss"] for event in again[-3:]])

    def test_the_memory_is_of_gradients_without_their_scale(self):
        """A power of two rounds nothing."""
        options = (2, "--model", "logistic", "--steps", 6, *POWERSGD)
        moment = ("--optimizer", "adamw", "--lr", 0.01, "--second-moment", "factored", "--squares-every", 2)
        for more in ((), moment):
            self.assertEqual(losses(*options, *more, "--loss-scale", 1024, "--loss-scale-from", 3), losses(*options, *more))

    def test_a_step_that_is_not_finite_ends_the_run(self):
        for more in ((), ("--optimizer", "adamw", "--lr", 0.01, "--second-moment", "factored", "--squares-every", 3)):
            saved = path("finite.safetensors")
            status, _, err = Job(2, "--model", "logistic", "--steps", 4, *POWERSGD, *more, "--save", saved, "--save-every", 1,
                                 "--loss-scale", 1e39, "--loss-scale-from", 3).end()
            self.assertEqual(status, 1, err)
            self.assertIn("the gradient of step 3 is not finite", err)
            for name, values in read_safetensors(saved).items():
                if values.dtype == numpy.float32:
                    self.assertTrue(numpy.isfinite(values).all(), name)

    def test_refused_payload(self):
        job = Job(2, "--model", "logistic", "--steps", 50, *POWERSGD, *RESIDUAL, "--corrupt-payload-at", 7)
        status, _, err = job.end(60)
        self.assertNotEqual(status, 0)
        self.assertRegex(err, r"worker 1 \(rank 0, .*\) sent a payload that is refused, step 7: the checksum does not match")
        self.assertEqual(len(job.events("step")), 7)

    def test_options(self):
        self.assertEqual(said_of(*POWERSGD, *RESIDUAL, "--min-ratio", 1.5, "--start-step", 10), "")
        self.assertEqual(said_of(*POWERSGD, "--device", "cuda"), "")
        for options, wrong in (((*POWERSGD, "--codec", "qsgd:bits=4"), "--codec: goes with .*, not with powersgd"),
                               ((*POWERSGD, "--budget", "1bit"), "--budget: goes with .*, not with powersgd"),
                               ((*POWERSGD, "--servers", 2), "--servers: goes with .*, not with powersgd"),
                               (("--algorithm", "ring", "--rank", 2), "--rank: goes with --algorithm powersgd, not with ring"),
                               (("--residual", "sign"), "--residual: goes with --algorithm powersgd, not with ps"),
                               ((*POWERSGD, "--residual", "qsgd:bit=4"), "unknown key 'bit'"),
                               (("--algorithm", "powersgd", "--rank", 0), "--rank"),
                               ((*POWERSGD, "--optimizer", "adamw", "--second-moment", "exact"), "exact goes with --algorithm allgather"),
                               ((*POWERSGD, *RESIDUAL, "--optimizer", "adamw", "--second-moment", "factored"),
                                "--second-moment: factored of powersgd .* leave --residual out"),
                               ((*POWERSGD, "--min-ratio", 0), "--min-ratio")):
            with self.subTest(options=options):
                self.assertRegex(said_of(*options), wrong)

    def test_a_job_repeats_the_run(self):
        out, options = path("again"), ("--batch", "16", "--progress", "off")
        curves = []
        for more in (("--model", "logistic", "--steps", 4, *POWERSGD, *RESIDUAL, "--data", data, "--out", out),
                     ("--job", f"{out}/job.toml")):
            log = path(f"again-{len(curves)}.jsonl") if curves else f"{out}/log.jsonl"
            done = subprocess.run([*launch(2), *options, *map(str, more), *(("--log", log) if curves else ())],
                                  capture_output=True, text=True, check=False, timeout=600)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(log, encoding="utf-8") as file:
                events = [json.loads(line) for line in file]
            curves.append([event["loss"] for event in events if event["event"] == "step"])
        self.assertEqual(curves[0], curves[1])
        self.assertEqual((events[0]["codec"], events[0]["unbiased"]), ("rank=2+atomo:atoms=rows,bits=1", True))


class ResidualTest(unittest.TestCase):
    def test_residuals_are_unbiased(self):
        """The error along the mean gradient is 0 on average over 24 seeds, within 4.5 standard errors. Weights and data depend
        on the seed too, so each run is compared to its own gradients."""
        errors, along = [], []
        for seed in range(24):
            gradients = path(f"unbiased-{seed}")
            finished(2, "--model", "logistic", "--steps", 2, "--stop-at", 1, "--at", 0, "--seed", seed, "--algorithm",
                     "powersgd", "--rank", 1, "--residual", "qsgd:bits=2", "--dump-gradients", gradients)
            own = [read_safetensors(f"{gradients}/step0-worker{k}.safetensors")["fc.weight"].astype(float) for k in (1, 2)]
            exact = sum(own) / 2
            error = read_safetensors(f"{gradients}/step0-mean.safetensors")["fc.weight"] - exact
            along.append((error * exact).sum() / (exact**2).sum())
            errors.append((error**2).sum() / (exact**2).sum())
        self.assertGreater(numpy.mean(errors), 0.01)
        self.assertLess(abs(numpy.mean(along)), 4.5 * numpy.std(along, ddof=1) / numpy.sqrt(24))


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
