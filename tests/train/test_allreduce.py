# SPDX-License-Identifier: Apache-2.0
"""Runs of atomo-train without a server: sums round a ring, local steps with an outer one."""

import json
import os
import pathlib
import signal
import sys
import time
import unittest

import numpy

from jobs import TRAINER, Job, finished, losses, path, read_safetensors

TIMEOUT_SECONDS = 3  # given to --timeout where a process is hurt
GRACE_SECONDS = 20   # what an end may take beyond it: mpirun ends a job in steps of a second


class AllReduceTest(unittest.TestCase):
    def close(self, some, others):
        """Sums of the same numbers in another order: at most a rounding a step."""
        self.assertEqual(len(some), len(others))
        for a, b in zip(some, others):
            self.assertLessEqual(abs(a - b), 1e-5 * abs(a))

    def story(self, *arguments):
        """Losses by step, test losses by steps done, and the run."""
        job = finished(*arguments)
        return ({event["step"]: event["loss"] for event in job.events("step")},
                {event["steps"]: event["loss"] for event in job.events("evaluation")}, job)

    def resumed(self, stop_at, begins, *options):
        """What a run that stops and goes on sees is what a whole one does. Returns the whole run and the checkpoint."""
        saved = path(f"resumed-{len(os.listdir(os.path.dirname(path(''))))}.safetensors")
        whole, tests, job = self.story(*options)
        begun, begun_tests, _ = self.story(*options, "--save", saved, "--stop-at", stop_at)
        resumed, resumed_tests, _ = self.story(*options, "--resume", saved)
        self.assertEqual(min(resumed), begins)
        self.assertEqual(begun | resumed, whole)
        self.assertEqual(begun_tests | resumed_tests, tests)
        return job, read_safetensors(saved)

    def hurt(self, how, rank, *options):
        """The line in which a run ends whose rank is killed or frozen: one, and it names the rank."""
        job = Job(3, "--model", "logistic", "--steps", 10_000_000, "--lr", 1e-4, "--timeout", TIMEOUT_SECONDS,
                  "--retries", 0, *options)
        job.wait_for_steps(5)
        process = job.process_of(rank)
        began = time.monotonic()
        os.kill(process, how)
        status, out, err = job.end(TIMEOUT_SECONDS + GRACE_SECONDS)
        said = [line for line in err.splitlines() if line.startswith("atomo-train:")]
        self.assertNotEqual(status, 0)
        self.assertEqual(len(set(said)), 1, f"{time.monotonic() - began:.1f} s\n{out}\n{err}")
        self.assertIn(f"worker {rank + 1} (rank {rank}, process {process}", said[0])
        return said[0]

    def refuses(self, processes, step, done, *options):
        """The first worker's payload of a step has a bit flipped: all stop before that step is done."""
        job = Job(processes, "--model", "logistic", "--steps", 50, "--codec", "atomo:bits=1", "--corrupt-payload-at", 7,
                  *options)
        status, _, err = job.end(60)
        self.assertNotEqual(status, 0)
        self.assertRegex(err, rf"worker 1 \(rank 0, .*\) sent a payload that is refused, step {step}: "
                              "the checksum does not match")
        self.assertEqual(len(job.events("step")), done)


class RingTest(AllReduceTest):
    def test_without_compression_it_is_an_all_gather(self):
        """Bit for bit where each sum has two terms. Two layers leave two of four ranks without a shard."""
        for model, ranks, exact in (("lenet", 2, True), ("logistic", 1, True), ("logistic", 4, False)):
            options = (ranks, "--model", model, "--steps", 4, "--batch", 8)
            with self.subTest(model=model, ranks=ranks):
                job = finished(*options, "--algorithm", "ring")
                found = [event["loss"] for event in job.events("step")]
                expected = losses(*options, "--algorithm", "allgather")
                if exact:
                    self.assertEqual(found, expected)
                self.close(found, expected)
                parameters = job.events("start")[0]["parameters"]
                for event in job.events("step"):
                    traffic = event["traffic_per_worker"]
                    share = 2 * (ranks - 1) / ranks * 4 * parameters  # bytes; heads come on top
                    self.assertEqual(traffic["sent"], traffic["received"])
                    self.assertTrue(share <= traffic["sent"] < share + 1000, traffic)

    def mean_of(self, algorithm, codec, *more):
        """The mean gradient that the optimiser gets in the first step of three ranks, and its NMSE."""
        gradients = path(f"gradients-{algorithm}-{len(os.listdir(os.path.dirname(path(''))))}")
        finished(3, "--model", "lenet", "--steps", 3, "--stop-at", 1, "--at", 0, "--algorithm", algorithm, "--codec", codec,
                 "--dump-gradients", gradients, *more)
        own = [read_safetensors(f"{gradients}/step0-worker{k}.safetensors") for k in (1, 2, 3)]
        used = read_safetensors(f"{gradients}/step0-mean.safetensors")
        exact = {name: sum(o[name].astype(float) for o in own) / 3 for name in used}
        error = sum(((used[name] - exact[name]) ** 2).sum() for name in used)
        return used, error / sum((exact[name] ** 2).sum() for name in used)

    def test_payloads_that_add_are_not_encoded_again(self):
        """Sums of whole levels, and no more error than rounding each gradient once gives: on a grid, whichever draws."""
        codec, trace = "atomo:atoms=coordinate,delta=0.0009765625", path("ring.json")
        used, error = self.mean_of("ring", codec, "--timeline", trace)
        _, expected = self.mean_of("allgather", codec)
        self.assertTrue(0.9 * expected < error < 1.1 * expected, (error, expected))
        for name, values in used.items():
            levels = values.astype(float) * 3 * 1024
            self.assertLess(numpy.abs(levels - numpy.round(levels)).max(), 1e-4, name)
        events = json.loads(pathlib.Path(trace).read_text())["traceEvents"]
        for rank in range(3):  # each adds to what comes of two shards, and lets the third begin
            mine = [e.get("cat") for e in events if e["pid"] == rank]
            self.assertEqual((mine.count("add payloads"), mine.count("encode")), (2, 3))

    def test_other_payloads_are_encoded_at_every_hop(self):
        """Each encoding adds an error: with qsgd those of three sums of one, two and three gradients."""
        _, once = self.mean_of("allgather", "qsgd:bits=4")
        _, error = self.mean_of("ring", "qsgd:bits=4")
        self.assertGreater(once, 1e-4)
        self.assertTrue(1.1 * once < error < 10 * once, (error, once))

    def test_resume(self):
        self.resumed(4, 4, 3, "--model", "logistic", "--steps", 7, "--codec", "atomo:bits=1", "--algorithm", "ring",
                     "--eval-samples", 20)

    def test_hurt(self):
        self.assertIn("has died", self.hurt(signal.SIGKILL, 0, "--algorithm", "ring"))
        self.assertIn("no sign of life", self.hurt(signal.SIGSTOP, 2, "--algorithm", "ring"))

    def test_refused_payload(self):
        for processes in (2, 4):
            self.refuses(processes, 7, 7, "--algorithm", "ring")


class LocalTest(AllReduceTest):
    def test_a_step_between_exchanges_is_an_all_gather(self):
        """With the momentum of each rank too: the mean of their momenta is the momentum of their mean."""
        options = (3, "--model", "lenet", "--steps", 6, "--batch", 8, "--lr", 0.02)
        self.close(losses(*options, "--algorithm", "local"), losses(*options, "--algorithm", "allgather"))

    def test_outer_momentum_is_that_of_the_optimiser(self):
        """One rank, plain steps at a constant rate: the outer optimiser does what the rank's own would."""
        options = (1, "--model", "logistic", "--steps", 8, "--schedule", "constant", "--lr", 0.02)
        curves = []
        for name in ("sgd", "nesterov"):
            outer = losses(*options, "--algorithm", "local", "--momentum", 0, "--outer-optimizer", name,
                           "--outer-momentum", 0.5)
            self.close(outer, losses(*options, "--algorithm", "allgather", "--optimizer", name, "--momentum", 0.5))
            curves.append(outer)
        self.assertEqual(curves[0][0], curves[1][0])  # before any step
        self.assertNotEqual(curves[0][1:], curves[1][1:])

    def test_rounds(self):
        """Eleven steps in rounds of four: three exchanges. Tests and --stop-at come behind the round that they are in."""
        job, saved = self.resumed(3, 4, 3, "--model", "logistic", "--steps", 11, "--algorithm", "local", "--local-steps",
                                  4, "--optimizer", "adam", "--lr", 0.002, "--outer-lr", 0.7, "--outer-momentum", 0.9,
                                  "--outer-optimizer", "nesterov", "--eval-every", 3)
        steps = job.events("step")
        self.assertEqual([event["step"] for event in steps], list(range(11)))
        once = steps[3]["bytes_per_worker"]
        self.assertTrue(4 * 7850 < once < 4 * 7850 + 200, once)
        self.assertEqual([event["bytes_per_worker"] for event in steps],
                         [once if step in (3, 7, 10) else 0 for step in range(11)])
        self.assertEqual(steps[-1]["sent_bytes_per_worker"], 3 * once)
        self.assertEqual([event["steps"] for event in job.events("evaluation")], [4, 8, 11])
        self.assertLess(steps[-1]["loss"], 0.6 * steps[0]["loss"])
        own = [saved[f"worker{k}.own.moment0"] for k in (1, 2, 3)]
        self.assertGreater(numpy.abs(own[0]).max(), 0)
        self.assertFalse(numpy.array_equal(own[0], own[1]))
        self.assertEqual(saved["moment0.fc.weight"].shape, (10, 784))

    def test_every_codec_and_policy(self):
        """Of what Muon changed, by Nesterov: DiLoCo with any message. Exact messages are no better than they should be."""
        options = (2, "--model", "logistic", "--steps", 12, "--batch", 16, "--algorithm", "local", "--local-steps", 4,
                   "--optimizer", "muon", "--lr", 0.002, "--outer-optimizer", "nesterov", "--outer-lr", 0.7, "--outer-momentum",
                   0.9)
        exact = losses(*options)
        for codec in ("identity:dtype=bf16", "atomo:bits=1", "atomo:atoms=rows,bits=1", "atomo:atoms=sketch,bits=2",
                      "atomo:atoms=coordinate,bits=1", "qsgd:bits=4", "terngrad", "natural", "topk:keep=0.1",
                      "randomk:keep=0.5", "sign:scale=mean", "qsgd:bits=2+blosc:codec=zstd"):
            with self.subTest(codec):
                curve = losses(*options, "--codec", codec)
                self.assertEqual(curve[:4], exact[:4])  # before anything was exchanged
                self.assertTrue(all(numpy.isfinite(curve)))
        curve = losses(*options, "--policy", "*.bias=identity; *=qsgd:bits=4")
        self.assertEqual(curve[:4], exact[:4])
        self.assertNotEqual(curve[4:], exact[4:])
        self.assertLess(min(exact[8:]), 0.8 * exact[0])

    def test_muon_goes_on_from_a_checkpoint(self):
        job, saved = self.resumed(3, 4, 2, "--model", "logistic", "--steps", 8, "--batch", 8, "--algorithm", "local",
                                  "--local-steps", 4, "--optimizer", "muon", "--lr", 0.002, "--codec", "qsgd:bits=4")
        self.assertEqual(len(job.events("step")), 8)
        self.assertGreater(numpy.abs(saved["worker1.own.moment0"]).max(), 0)

    def test_interrupted_within_a_round(self):
        """The round is taken back: the checkpoint is of where it began, and a resumed run takes it again."""
        options = (2, "--model", "logistic", "--algorithm", "local", "--local-steps", 300, "--steps", 1_000_000, "--lr",
                   1e-3, "--codec", "atomo:bits=1")
        saved = path("interrupted.safetensors")
        job = Job(*options, "--save", saved)
        job.wait_for_steps(300)
        job.process.send_signal(signal.SIGUSR1)
        _, out, err = job.end()
        self.assertIn("interrupted after", out, err)
        done = job.events("end")[0]["steps"]
        self.assertEqual(done % 300, 0)
        again = finished(*options, "--resume", saved, "--stop-at", done + 1)
        self.assertEqual(again.events("step")[0]["step"], done)
        whole = finished(*options, "--stop-at", done + 300)
        self.assertEqual([event["loss"] for event in again.events("step")],
                         [event["loss"] for event in whole.events("step")][done:])

    def test_hurt(self):
        options = ("--algorithm", "local", "--local-steps", 5)
        self.assertIn("has died", self.hurt(signal.SIGKILL, 1, *options))
        self.assertIn("no sign of life", self.hurt(signal.SIGSTOP, 0, *options))

    def test_refused_payload(self):
        """The round of steps 6 to 8, encoded behind its last."""
        self.refuses(2, 8, 6, "--algorithm", "local", "--local-steps", 3)


class MemoryTest(AllReduceTest):
    def test_resume(self):
        """Each worker's memory comes back, to the bit, beside back-propagation and behind rounds of local steps."""
        for codec in ("ef+topk:keep=0.01", "*.bias = identity; * = ef21+topk:keep=0.01"):
            options = (2, "--model", "logistic", "--policy" if " = " in codec else "--codec", codec, "--lr", 0.05)
            self.resumed(4, 4, *options, "--steps", 9, "--algorithm", "allgather", "--threads", 2)
            self.resumed(3, 4, *options, "--steps", 9, "--algorithm", "local", "--local-steps", 4)

    def test_differences_add_up(self):
        """Of whole gradients they are the gradients; what is left out of one is new in the next."""
        for algorithm in (("--algorithm", "allgather"), ("--algorithm", "local", "--local-steps", 3)):
            options = (2, "--model", "logistic", "--steps", 60, *algorithm, "--lr", 0.1, "--momentum", 0, "--schedule", "constant")
            exact, whole, sparse, lost = (losses(*options, "--codec", codec) for codec in (
                "identity:dtype=f32", "ef21+identity:dtype=f32", "ef21+topk:keep=0.001", "topk:keep=0.001"))
            numpy.testing.assert_allclose(whole, exact, rtol=1e-4)
            self.assertLess(sum(sparse[-20:]), sum(lost[-20:]), (algorithm, sparse, lost))

    def test_a_sparsity_warm_up(self):
        """Shares fall to a quarter, down to the codec's own; a message has the largest of the gradient and all that was left out."""
        gradients, warm = path("warm"), ("--codec", "ef+topk:keep=0.01", "--sparsity-warmup", 2)
        job = finished(1, "--model", "logistic", "--algorithm", "allgather", *warm, "--steps", 8, "--dump-gradients", gradients,
                       "--at", 0, "--every", 1)
        left = {}
        for step, share in enumerate(numpy.repeat((0.25, 0.0625, 0.015625, 0.01), 2)):
            own, sent = (read_safetensors(f"{gradients}/step{step}-{who}.safetensors") for who in ("worker1", "mean"))
            for name, values in own.items():
                whole = values + left.get(name, numpy.float32(0))
                where = sent[name] != 0
                self.assertEqual(numpy.count_nonzero(where), max(1, int(share * values.size + 0.5)), (step, name))
                numpy.testing.assert_array_equal(sent[name][where], whole[where], (step, name))
                left[name] = whole - sent[name]
        sizes = [event["bytes_per_worker"] for event in job.events("step")]
        for before, after, ratio in ((1, 2, 3), (3, 4, 3), (5, 6, 1.3)):
            self.assertGreater(sizes[before], ratio * sizes[after], sizes)

    def test_resume_within_a_sparsity_warm_up(self):
        """With the first steps of a share, and within one; local steps end rounds in the middle of a share."""
        options = (2, "--model", "logistic", "--codec", "dgc+topk:keep=0.01", "--sparsity-warmup", 2, "--steps", 9, "--threads", 2)
        self.resumed(4, 4, *options, "--algorithm", "allgather")
        self.resumed(5, 5, *options, "--algorithm", "allgather")
        self.resumed(3, 3, *options, "--algorithm", "local", "--local-steps", 3)

    def test_what_is_left_out_is_sent_later(self):
        """One in a thousand entries a step: with a memory the training loss falls further."""
        options = (2, "--model", "logistic", "--steps", 60, "--algorithm", "allgather", "--lr", 0.1, "--momentum", 0,
                   "--schedule", "constant", "--batch", 32)
        means = []
        for codec in ("identity", "ef+topk:keep=0.001", "topk:keep=0.001"):
            means.append(sum(losses(*options, "--codec", codec)[-10:]) / 10)
        exact, kept, lost = means
        self.assertLess(kept, lost, means)
        self.assertLess(kept - exact, 0.7 * (lost - exact), means)

    def test_a_biased_codec_without_one_is_told_of_it(self):
        options = ("--model", "logistic", "--steps", 1, "--algorithm", "allgather", "--codec")
        for codec, said in (("topk:keep=0.01", True), ("atomo:bits=1,content=nearest", True), ("ef+topk:keep=0.01", False),
                            ("atomo:bits=1", False)):
            status, out, _ = Job(2, *options, codec).end()
            self.assertEqual(status, 0)
            self.assertEqual("ef+" + codec.split(",")[0] in out and "sends it later" in out, said, out)


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
