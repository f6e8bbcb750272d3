# SPDX-License-Identifier: Apache-2.0
"""Whole runs of atomo-train over MPI on one machine: curves, faults, ends."""

import math
import os
import pathlib
import signal
import sys
import tempfile
import time
import unittest

from jobs import LONG, TRAINER, Job, data, finished, folder, losses, path

TIMEOUT_SECONDS = 3  # given to --timeout where a process is hurt
# What an end may take beyond the time-out: mpirun ends a job in steps of a second, and the machine may be busy.
GRACE_SECONDS = 20


class CurvesTest(unittest.TestCase):
    def test_same_seed_same_curve(self):
        # Three workers: with two, a sum in the order of arrival would still be the same.
        options = (4, "--model", "logistic", "--steps", 8, "--codec", "atomo:bits=1")
        first = losses(*options, "--seed", 3)
        self.assertEqual(len(first), 8)
        self.assertEqual(first, losses(*options, "--seed", 3))
        self.assertNotEqual(first, losses(*options, "--seed", 4))

    def test_a_slow_worker_changes_nothing(self):
        """Sums are taken in rank order, whoever is first: three workers, the first of them held up."""
        options = (4, "--model", "lenet", "--steps", 60, "--batch", 4, "--eval-samples", 10)
        undisturbed = losses(*options)
        job = Job(*options)
        for steps in (10, 25, 40):
            job.wait_for_steps(steps)
            worker = job.process_of(1)
            os.kill(worker, signal.SIGSTOP)
            time.sleep(0.3)
            os.kill(worker, signal.SIGCONT)
        self.assertEqual(job.end()[0], 0)
        self.assertEqual([event["loss"] for event in job.events("step")], undisturbed)

    def resumed(self, processes, *options):
        def story(*more):
            """Losses by step, test losses by steps done."""
            job = finished(processes, *options, *more)
            return ({event["step"]: event["loss"] for event in job.events("step")},
                    {event["steps"]: event["loss"] for event in job.events("evaluation")})

        whole, tests = story()
        saved = path(f"checkpoint-{len(os.listdir(folder.name))}.safetensors")
        begun, _ = story("--save", saved, "--stop-at", 4)
        resumed, resumed_tests = story("--resume", saved)
        self.assertEqual(begun | resumed, whole)
        self.assertEqual(min(resumed), 4)
        self.assertEqual(resumed_tests, {steps: loss for steps, loss in tests.items() if steps > 4})

    def test_resume_goes_on_to_the_same_curve(self):
        self.resumed(3, "--model", "lenet", "--steps", 9, "--codec", "atomo:bits=0.5", "--optimizer", "adamw", "--lr",
                     0.001)

    def test_resume_with_a_factored_second_moment(self):
        """Also at a step between two messages about squares. A loss scale that is a power of two changes nothing, whenever it begins."""
        options = ("--model", "logistic", "--codec", "atomo:bits=0.5", "--algorithm", "allgather", "--optimizer", "adamw", "--lr",
                   0.001, "--second-moment", "factored", "--squares-every", 3, "--max-update", 0.5)
        self.resumed(3, *options, "--steps", 9)
        self.assertEqual(losses(3, *options, "--steps", 9),
                         losses(3, *options, "--steps", 9, "--loss-scale", 8, "--loss-scale-from", 4))
        self.assertNotEqual(losses(2, *options, "--steps", 4), losses(2, *options[:-6], "--steps", 4))

    def test_precondition(self):
        """Changes what a codec loses and nothing else; at a step between two messages about squares a run goes on as it was."""
        for moment in (), ("--second-moment", "factored", "--squares-every", 3):
            with self.subTest(moment=moment):
                common = ("--model", "logistic", "--algorithm", "allgather", "--optimizer", "adamw", "--lr", 0.001, *moment, "--codec")
                whole, divided = (losses(2, *common, "identity:dtype=f32", "--steps", 8, *more) for more in ((), ("--precondition",)))
                self.assertNotEqual(whole, divided)
                for a, b in zip(whole, divided, strict=True):
                    self.assertAlmostEqual(a, b, delta=1e-5)
                coded = (*common, "atomo:bits=0.5", "--steps", 9)
                self.resumed(3, *coded, "--precondition")
                self.resumed(2, *common, "ef+topk:keep=0.1", "--steps", 9, "--precondition")
                self.assertNotEqual(losses(2, *coded), losses(2, *coded, "--precondition"))

    def test_rate_in_memory(self):
        """Where a memory keeps nothing it changes nothing but roundings; where it does the run is another, and goes on as it was."""
        common = ("--model", "logistic", "--algorithm", "allgather", "--steps", 9, "--codec")
        for more in (), ("--optimizer", "adamw", "--lr", 0.001, "--precondition", "--second-moment", "factored", "--squares-every", 2):
            with self.subTest(more=more):
                plain, rated = (losses(2, *common, "ef+identity:dtype=f32", *more, *with_rate) for with_rate in ((), ("--rate-in-memory",)))
                self.assertNotEqual(plain, rated)
                for a, b in zip(plain, rated, strict=True):
                    self.assertAlmostEqual(a, b, delta=1e-5)
                coded = (*common, "ef+topk:keep=0.1", *more)
                self.assertNotEqual(losses(2, *coded), losses(2, *coded, "--rate-in-memory"))
                self.resumed(2, *coded, "--rate-in-memory")

    def test_what_is_told_of_squares_is_counted(self):
        options = ("--model", "logistic", "--steps", 5, "--codec", "qsgd:bits=4", "--algorithm", "allgather", "--optimizer", "adamw",
                   "--lr", 0.001)
        plain, told = (finished(2, *options, *more).events("step") for more in
                       ((), ("--second-moment", "factored", "--squares-every", 3)))
        more = [b["bytes_per_worker"] - a["bytes_per_worker"] for a, b in zip(plain, told, strict=True)]
        self.assertTrue(more[0] == more[3] > 0 and more[1] == more[2] == more[4] == 0, more)

    def test_resume_with_batch_normalisation_over_all_gather(self):
        self.resumed(2, "--model", "resnet20", "--steps", 7, "--codec", "atomo:bits=0.5", "--algorithm", "allgather",
                     "--batch", 4, "--eval-every", 3, "--eval-samples", 20)

    def test_resume_refuses_other_options(self):
        saved = path("other.safetensors")
        losses(2, "--model", "logistic", "--steps", 4, "--save", saved)
        status, _, err = Job(2, "--model", "logistic", "--steps", 4, "--lr", 0.3, "--resume", saved).end()
        self.assertNotEqual(status, 0)
        self.assertIn("--lr 0.05", err)

    def test_killed_run_resumes_to_the_same_curve(self):
        options = ("--model", "logistic", "--steps", 100_000, "--codec", "atomo:bits=1", "--eval-samples", 10)
        saved = path("killed.safetensors")
        job = Job(3, *options, "--save", saved, "--save-every", 10)
        job.wait_for_steps(25)
        os.kill(job.process_of(1), signal.SIGKILL)
        job.end()
        seen = {event["step"]: event["loss"] for event in job.events("step")}
        step = job.events("checkpoint")[-1]["steps"]
        again = Job(3, *options, "--resume", saved, "--stop-at", step + 5)
        self.assertEqual(again.end()[0], 0)
        resumed = [event["loss"] for event in again.events("step")]
        whole = losses(3, *options, "--stop-at", step + 5)
        self.assertEqual(resumed, whole[step:])
        self.assertEqual([seen[s] for s in range(step)], whole[:step])

    def test_both_algorithms_agree_without_compression(self):
        options = ("--model", "lenet" if LONG else "logistic", "--steps", 6)
        served = losses(4, *options)
        gathered = losses(3, *options, "--algorithm", "allgather")
        for a, b in zip(served, gathered, strict=True):
            # Sums in the same order over the same numbers: at most a rounding a step.
            self.assertLessEqual(abs(a - b), 1e-5 * abs(a))

    def test_payloads_that_add_give_what_decoding_one_by_one_gives(self):
        """With a power of two of workers and a step that is one no sum is rounded, in whatever order."""
        options = ("--model", "logistic", "--steps", 4, "--codec", "atomo:atoms=coordinate,delta=0.00048828125")
        served = losses(5, *options)
        gathered = losses(4, *options, "--algorithm", "allgather")
        for a, b in zip(served, gathered, strict=True):
            self.assertLessEqual(abs(a - b), 1e-5 * abs(a))  # as above

    def test_two_shots_are_an_all_gather_without_compression(self):
        """Bit for bit: the same sums in the same order. The two layers of the logistic
        model leave two of four workers without a shard."""
        for model, workers in (("lenet", 3), *([("lenet", 5)] if LONG else []), ("logistic", 4)):
            options = (workers, "--model", model, "--steps", 4, "--batch", 8)
            with self.subTest(model=model, workers=workers):
                self.assertEqual(losses(*options, "--algorithm", "twoshot"),
                                 losses(*options, "--algorithm", "allgather"))

    def test_resume_over_two_shots(self):
        self.resumed(3, "--model", "logistic", "--steps", 7, "--codec", "atomo:bits=1", "--algorithm", "twoshot")

    def test_codecs_learn(self):
        for codec in ("identity:dtype=f32", "atomo:bits=1", "qsgd:bits=4", "terngrad"):
            with self.subTest(codec=codec):
                curve = losses(3, "--model", "logistic", "--steps", 30, "--codec", codec, "--lr", 0.02)
                self.assertLess(sum(curve[-5:]) / 5, 0.6 * curve[0])
                self.assertTrue(all(math.isfinite(loss) for loss in curve))


class FaultsTest(unittest.TestCase):
    def hurt(self, how, rank, named, algorithm="ps", processes=None, retries=0):
        processes = processes or (3 if algorithm == "ps" else 2)
        job = Job(processes, "--algorithm", algorithm, "--model", "logistic", "--steps", 10_000_000, "--lr", 1e-4,
                  "--timeout", TIMEOUT_SECONDS, "--retries", retries)
        job.wait_for_steps(5)
        process = job.process_of(rank)
        began = time.monotonic()
        os.kill(process, how)
        status, out, err = job.end(TIMEOUT_SECONDS * (1 + retries) + GRACE_SECONDS)
        took = time.monotonic() - began
        said = [line for line in err.splitlines() if line.startswith("atomo-train:")]
        asked = [line for line in said if "asking again" in line]
        self.assertNotEqual(status, 0)
        self.assertEqual(len(asked), retries, err)
        for number, line in enumerate(asked, 1):
            self.assertIn(f"{named} (rank {rank}, process {process} ", line)
            self.assertIn(f"({number} of {retries})", line)
            said.remove(line)
        if how == signal.SIGSTOP:
            self.assertGreater(took, TIMEOUT_SECONDS * (1 + retries))
        self.assertEqual(len(set(said)), 1, f"{took:.1f} s\n{out}\n{err}")
        self.assertIn(f"{named} (rank {rank}, process {process}", said[0])
        return said[0]

    def test_killed_worker(self):
        self.assertIn("has died", self.hurt(signal.SIGKILL, 2, "worker 2"))

    def test_killed_server(self):
        self.assertIn("has died", self.hurt(signal.SIGKILL, 0, "the server"))

    def test_frozen_worker(self):
        self.assertIn("no sign of life", self.hurt(signal.SIGSTOP, 1, "worker 1"))
        self.assertIn("no sign of life", self.hurt(signal.SIGSTOP, 1, "worker 1", retries=2))

    def test_frozen_server(self):
        self.assertIn("no sign of life", self.hurt(signal.SIGSTOP, 0, "the server"))

    def test_killed_in_all_gather(self):
        self.assertIn("has died", self.hurt(signal.SIGKILL, 0, "worker 1", "allgather"))

    def test_frozen_in_all_gather(self):
        self.assertIn("no sign of life", self.hurt(signal.SIGSTOP, 1, "worker 2", "allgather"))

    def test_killed_in_two_shots(self):
        self.assertIn("has died", self.hurt(signal.SIGKILL, 0, "worker 1", "twoshot", 3))

    def test_frozen_in_two_shots(self):
        self.assertIn("no sign of life", self.hurt(signal.SIGSTOP, 2, "worker 3", "twoshot", 3))

    def test_refused_payload(self):
        for algorithm, processes in (("ps", 3), ("allgather", 2), ("twoshot", 2), ("twoshot", 4)):
            with self.subTest(algorithm=algorithm, processes=processes):
                rank = 1 if algorithm == "ps" else 0
                job = Job(processes, "--algorithm", algorithm, "--model", "logistic", "--steps", 50, "--codec",
                          "atomo:bits=1", "--corrupt-payload-at", 7)
                status, _, err = job.end(60)
                self.assertNotEqual(status, 0)
                self.assertRegex(err, rf"worker 1 \(rank {rank}, .*\) sent a payload that is refused.*step 7: "
                                      "the checksum does not match")
                self.assertEqual(len(job.events("step")), 7)
                self.assertEqual(err.count("atomo-train:"), 1, err)

    def test_divergence_is_said(self):
        status, _, err = Job(3, "--model", "lenet", "--steps", 50, "--lr", 1e6).end(60)
        self.assertNotEqual(status, 0)
        self.assertRegex(err, r"worker \d .*the training diverged")

    def test_missing_data(self):
        status, _, err = Job(2, "--steps", 2, data_folder=path("nowhere")).end()
        self.assertNotEqual(status, 0)
        self.assertIn("dataset-fashion-mnist", err)
        self.assertIn("train-images-idx3-ubyte", err)
        self.assertIn("data_batch_1.bin", err)

    def test_damaged_data(self):
        broken = path("broken")
        os.mkdir(broken)
        for name in os.listdir(data):
            os.symlink(f"{data}/{name}", f"{broken}/{name}")
        os.remove(f"{broken}/t10k-labels-idx1-ubyte")
        pathlib.Path(f"{broken}/t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x09abc")
        status, _, err = Job(2, "--steps", 2, data_folder=broken).end()
        self.assertNotEqual(status, 0)
        self.assertIn("t10k-labels-idx1-ubyte", err)

    def test_wrong_usage(self):
        for options, expected in ((("--codec", "qsdg"), "qsgd"), (("--budget", "1kg"), "0.5bit"),
                                  (("--steps", 0), "steps"), (("--codec", "sign", "--budget", "1bit"), "codec")):
            with self.subTest(options=options):
                status, _, err = Job(2, *options).end()
                self.assertNotEqual(status, 0)
                self.assertIn(expected, err)
        self.assertIn("at least one worker", Job(1, "--steps", 2).end()[2])


class InterruptsTest(unittest.TestCase):
    def saves(self, how, algorithm="ps"):
        options = ("--algorithm", algorithm, "--model", "logistic", "--steps", 1_000_000, "--codec", "atomo:bits=1",
                   "--lr", 1e-3)
        saved = path(f"interrupted-{int(how)}.safetensors")
        job = Job(3, *options, "--save", saved)
        job.wait_for_steps(10)
        job.process.send_signal(how)
        _, out, err = job.end()
        self.assertIn("interrupted after", out, err)
        done = job.events("end")[0]["steps"]
        self.assertTrue(job.events("end")[0]["interrupted"])
        self.assertEqual(job.events("checkpoint")[-1]["steps"], done)
        self.assertEqual([name for name in os.listdir(folder.name) if ".part" in name], [])
        again = Job(3, *options, "--resume", saved, "--stop-at", done + 3)
        self.assertEqual(again.end()[0], 0)
        self.assertEqual([event["step"] for event in again.events("step")], [done, done + 1, done + 2])

    def told_by_tests(self, job):
        return [(event["steps"], event["loss"], event["accuracy"]) for event in job.events("evaluation")]

    def test_tests_are_those_of_a_run_that_nobody_interrupted(self):
        """With one behind each step or round an interrupt falls before one, where steps are long, or mostly into one."""
        before, into = ("--slow-factor", 300, "--slow-rank"), ()
        for when, processes, algorithm, *more in (
                ((before, into), 3, "ps"), ((before, into), 3, "ps", "--double-buffer"),
                ((into,), 4, "ps", "--servers", 2), ((into,), 2, "asgd"), ((before, into), 2, "allgather"),
                ((into,), 3, "fedavg", "--local-steps", 2),
                ((into,), 2, "local", "--local-steps", 2), ((before, into), 3, "dpsgd")):
            options = (processes, "--algorithm", algorithm, *more, "--model", "logistic", "--batch", 8, "--steps", 40,
                       "--eval-every", 1, "--test-batch", 1)
            whole = self.told_by_tests(finished(*options))
            for slow in when:
                with self.subTest(algorithm=algorithm, more=more, slow=slow):
                    saved = tempfile.mktemp(suffix=".safetensors", dir=folder.name)
                    job = Job(*options, *slow, *((processes - 1,) if slow else ()), "--save", saved)
                    job.wait_for_steps(2)
                    job.process.send_signal(signal.SIGUSR1)
                    job.end()
                    self.assertTrue(job.events("end")[0]["interrupted"])
                    again = finished(*options, "--resume", saved)
                    self.assertEqual(self.told_by_tests(job) + self.told_by_tests(again), whole)

    def test_ctrl_c_saves(self):
        self.saves(signal.SIGINT)

    def test_user_signal_saves(self):
        self.saves(signal.SIGUSR1)

    def test_termination_saves_in_all_gather(self):
        self.saves(signal.SIGTERM, "allgather")


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
