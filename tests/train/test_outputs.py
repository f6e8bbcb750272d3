# SPDX-License-Identifier: Apache-2.0
"""What whole runs of atomo-train write and say: files, tables, figures, models, refusals."""

import gzip
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
import unittest.mock

import numpy

from jobs import TOOLS, TRAINER, Job, data, finished, launch, losses, make_images, path, read_safetensors, write_idx

LENET_LAYERS = ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight", "fc1.bias", "fc2.weight",
                "fc2.bias"]


class OutputsTest(unittest.TestCase):
    def test_pixels(self):
        """Where all samples are the same, a weight's gradient is its class's times the pixel."""
        folder_of_one, random = path("one-image"), numpy.random.default_rng(6)
        os.mkdir(folder_of_one)
        image, label = make_images(1, random)
        for prefix in ("train", "t10k"):
            write_idx(f"{folder_of_one}/{prefix}-images-idx3-ubyte", image.repeat(64, axis=0), compress=False)
            write_idx(f"{folder_of_one}/{prefix}-labels-idx1-ubyte", label.repeat(64), compress=False)
        plain = image[0].ravel() / 255
        for pixels, expected in (("plain", plain), ("standardised", (plain - plain.mean()) / plain.std())):
            gradients = path(f"pixels-{pixels}")
            finished(2, "--model", "logistic", "--steps", 2, "--stop-at", 1, "--at", 0, "--pixels", pixels,
                     "--dump-gradients", gradients, data_folder=folder_of_one)
            dumped = read_safetensors(f"{gradients}/step0-mean.safetensors")
            numpy.testing.assert_allclose(dumped["fc.weight"], numpy.outer(dumped["fc.bias"], expected), rtol=1e-3, atol=1e-6)

    def test_layers_leave_while_back_propagation_runs(self):
        name = path("timeline.json")
        status, out, err = Job(3, "--model", "lenet", "--steps", 4, "--timeline", name, "--at", 3).end()
        self.assertEqual(status, 0, err)
        events = json.loads(pathlib.Path(name).read_text())["traceEvents"]
        for rank in (1, 2):
            mine = [event for event in events if event["pid"] == rank]
            gradients = {e["args"]["layer"]: e["ts"] for e in mine if e.get("cat") == "gradient"}
            sends = {e["args"]["layer"]: e["ts"] for e in mine if e.get("cat") == "send"}
            self.assertEqual(sorted(gradients), sorted(LENET_LAYERS))
            self.assertEqual(sorted(sends), sorted(LENET_LAYERS))
            for last in ("fc2.weight", "fc2.bias", "fc1.weight"):
                for first in ("conv1.weight", "conv1.bias"):
                    self.assertLess(sends[last], gradients[first])
            (backward,) = [e for e in mine if e.get("cat") == "backward"]
            self.assertLess(sends["fc2.weight"], backward["ts"] + backward["dur"])
        decoded = [e for e in events if e["pid"] == 0 and e.get("cat", "").startswith("decode")]
        self.assertEqual(len(decoded), 2 * len(LENET_LAYERS))
        for layer in LENET_LAYERS:  # in rank order, whoever was first
            order = [e["cat"] for e in sorted(decoded, key=lambda e: e["ts"]) if e["args"]["layer"] == layer]
            self.assertEqual(order, ["decode worker 1", "decode worker 2"])
        self.assertIn("Time line of rank 1 in step 3", out)
        self.assertRegex(out, r"send fc2.weight .*>")
        drawn = subprocess.run([sys.executable, str(TOOLS / "plot_timeline.py"), name, "--out",
                                path("timeline.png")], capture_output=True, text=True, check=True)
        self.assertRegex(drawn.stdout, "[67] of 8 layers left before the last gradient was there")
        self.assertEqual(pathlib.Path(path("timeline.png")).read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_dumped_gradients(self):
        gradients = path("gradients")
        status, _, err = Job(3, "--model", "lenet", "--steps", 3, "--dump-gradients", gradients, "--at", 1).end()
        self.assertEqual(status, 0, err)
        self.assertEqual(sorted(os.listdir(gradients)),
                         ["step1-mean.safetensors", "step1-worker1.safetensors", "step1-worker2.safetensors"])
        first, second = (read_safetensors(f"{gradients}/step1-worker{k}.safetensors") for k in (1, 2))
        mean = read_safetensors(f"{gradients}/step1-mean.safetensors")
        self.assertEqual(sorted(first), sorted(LENET_LAYERS))
        self.assertEqual(first["conv2.weight"].shape, (50, 20, 5, 5))
        self.assertEqual(first["fc1.weight"].shape, (500, 800))
        for name in LENET_LAYERS:
            self.assertTrue(numpy.isfinite(first[name]).all())
            self.assertGreater(numpy.abs(first[name]).max(), 0)
            self.assertFalse(numpy.array_equal(first[name], second[name]))
            numpy.testing.assert_array_equal(mean[name], first[name] / 2 + second[name] / 2)

    def test_one_step_of_sgd(self):
        """The weights move by the learning rate times the mean of the workers' gradients."""
        options = ("--model", "logistic", "--steps", 2, "--schedule", "constant", "--lr", 0.5, "--momentum", 0)
        gradients = path("one-step")
        losses(3, *options, "--save", path("one.safetensors"), "--stop-at", 1)
        losses(3, *options, "--resume", path("one.safetensors"), "--save", path("two.safetensors"),
               "--dump-gradients", gradients, "--at", 1)
        before, after = read_safetensors(path("one.safetensors")), read_safetensors(path("two.safetensors"))
        dumped = [read_safetensors(f"{gradients}/step1-worker{k}.safetensors") for k in (1, 2)]
        for name in ("fc.weight", "fc.bias"):
            mean = (dumped[0][name].astype(float) + dumped[1][name]) / 2
            expected = before[f"weights.{name}"] - 0.5 * mean
            numpy.testing.assert_allclose(after[f"weights.{name}"], expected, rtol=1e-6, atol=1e-7)

    def test_json_lines_and_bytes(self):
        job = Job(3, "--model", "lenet", "--steps", 6, "--json", "--budget", "0.5bit", "--eval-every", 3)
        status, out, err = job.end()
        self.assertEqual(status, 0, err)
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([line["event"] for line in lines],
                         ["start", *["step"] * 3, "evaluation", *["step"] * 3, "evaluation", "end"])
        self.assertEqual(lines[0]["parameters"], 431080)
        self.assertEqual(lines[0]["measure"], "accuracy")
        self.assertTrue(0 <= lines[-1]["accuracy"] <= 1)
        self.assertTrue(lines[0]["unbiased"])
        sent = [line["bytes_per_worker"] for line in lines if line["event"] == "step"]
        self.assertEqual(lines[-2]["sent_bytes_per_worker"], sum(sent))
        self.assertAlmostEqual(lines[-1]["ratio"], 4 * 431080 * 6 / sum(sent))
        self.assertGreater(lines[-1]["ratio"], 40)
        self.assertEqual(sorted(lines[-1]["ms"]), ["compute", "decode", "encode", "wire"])

    def test_policy_file(self):
        policy = path("policy")
        pathlib.Path(policy).write_text("*.bias = identity:dtype=f32\n* = qsgd:bits=4\n")
        job = Job(3, "--model", "lenet", "--steps", 2, "--policy", policy)
        status, out, err = job.end()
        self.assertEqual(status, 0, err)
        bytes_sent = job.events("step")[0]["bytes_per_worker"]
        self.assertTrue(431080 / 2 < bytes_sent < 431080 / 2 * 1.1 + 4 * 580, bytes_sent)
        self.assertIn("test accuracy", out)

    def test_cifar(self):
        cifar = path("cifar")
        os.mkdir(cifar)
        random = numpy.random.default_rng(9)
        for name in [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]:
            records = random.integers(0, 256, (40, 3073)).astype(numpy.uint8)
            records[:, 0] %= 10
            records.tofile(f"{cifar}/{name}")
        curve = losses(3, "--model", "resnet20", "--steps", 2, "--batch", 8, data_folder=cifar)
        self.assertEqual(len(curve), 2)
        self.assertTrue(all(math.isfinite(loss) for loss in curve))

    def test_resnet18(self):
        job = finished(2, "--model", "resnet18", "--steps", 2, "--batch", 2, "--lr", 0.01, "--stop-at", 1)
        self.assertEqual(job.events("start")[0]["parameters"], 11172810)
        self.assertTrue(math.isfinite(job.events("step")[0]["loss"]))

    def test_help_has_an_example(self):
        done = subprocess.run([TRAINER, "--help"], capture_output=True, text=True, check=True)
        self.assertIn("mpirun", done.stdout)
        self.assertNotIn("--corrupt-payload-at", done.stdout)


class TextTest(unittest.TestCase):
    """The transformer, on a text in which every character follows from the one before it."""

    @classmethod
    def setUpClass(cls):
        cls.text = path("text")
        pathlib.Path(cls.text).write_bytes(bytes(ord("a") + 7 * k % 26 for k in range(45_000)))

    def test_learns_and_resumes_to_the_same_curve(self):
        options = (2, "--algorithm", "allgather", "--model", "transformer", "--steps", 10, "--batch", 4, "--optimizer",
                   "adamw", "--lr", 0.002, "--schedule", "constant", "--budget", "4bit", "--eval-every", 5,
                   "--eval-samples", 4)
        saved, gradients = path("text.safetensors"), path("text-gradients")
        whole = finished(*options, data_folder=self.text)
        curve = [event["loss"] for event in whole.events("step")]
        self.assertEqual(whole.events("start")[0]["parameters"], 3307264)
        self.assertLess(abs(curve[0] - math.log(256)), 0.5)  # before it has learnt anything
        finished(*options, "--stop-at", 6, "--save", saved, data_folder=self.text)
        resumed = finished(*options, "--resume", saved, "--dump-gradients", gradients, "--at", 8, data_folder=self.text)
        self.assertEqual([event["loss"] for event in resumed.events("step")], curve[6:])
        first, last = whole.events("evaluation")
        self.assertAlmostEqual(first["bits_per_character"], first["loss"] / math.log(2))
        self.assertLess(last["bits_per_character"], first["bits_per_character"])
        self.assertEqual(whole.events("end")[0]["bits_per_character"], last["bits_per_character"])
        dumped = read_safetensors(f"{gradients}/step8-worker2.safetensors")
        self.assertEqual(dumped["characters.weight"].shape, (256, 256))
        self.assertEqual(dumped["positions"].shape, (64, 256))
        seen = numpy.abs(dumped["characters.weight"]).max(axis=1) > 0
        self.assertEqual(set(numpy.flatnonzero(seen)), set(range(ord("a"), ord("z") + 1)))

    def test_a_folder_is_its_files_in_order(self):
        folder_of_parts = path("parts")
        os.makedirs(f"{folder_of_parts}/b")
        content = pathlib.Path(self.text).read_bytes()
        with gzip.open(f"{folder_of_parts}/a.gz", "wb") as file:
            file.write(content[:20_000])
        pathlib.Path(f"{folder_of_parts}/b/c").write_bytes(content[20_000:])
        options = (2, "--model", "transformer", "--steps", 2, "--batch", 2, "--stop-at", 1)
        self.assertEqual(losses(*options, data_folder=folder_of_parts), losses(*options, data_folder=self.text))

    def test_compared_by_bits_a_character(self):
        done = subprocess.run([sys.executable, str(TOOLS / "compare.py"), "--trainer", TRAINER, "--data",
                               self.text, "--workers", "2", "--steps", "2", "--batch", "2", "--tests", "1", "--model",
                               "transformer", "--optimizer", "adamw", "--lr", "0.001", "--codec", "atomo:bits=1",
                               "--algorithm", "twoshot", "--out", path("texts")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| test bits a character |", done.stdout)
        for result in json.loads(pathlib.Path(path("texts.json")).read_text())["results"]:
            self.assertTrue(0 < result["score"] < 9, result)

    def test_bad_texts(self):
        short = path("short")
        pathlib.Path(short).write_text("too short")
        for name, expected in ((short, "has 9 characters, training and test need at least 40960"),
                               (path("no-text"), "cannot open")):
            status, _, err = Job(2, "--model", "transformer", "--steps", 2, data_folder=name).end()
            self.assertNotEqual(status, 0)
            self.assertIn(expected, err)


class TwoShotTest(unittest.TestCase):
    def test_what_travels(self):
        """Uncompressed: a payload of n elements has 4 n bytes and a little. Every copy to or from another worker."""
        workers, parameters = 4, 7850  # 7840 weights are worker 1's, 10 biases worker 2's, the others have none
        job = finished(workers, "--model", "logistic", "--steps", 3, "--algorithm", "twoshot", "--stop-at", 2)
        for event in job.events("step"):
            traffic = event["traffic_per_worker"]
            # Each shard goes from three workers to its owner and from its owner to three.
            everything = 2 * (workers - 1) * 4 * parameters / workers
            self.assertEqual(traffic["sent"], traffic["received"])
            self.assertTrue(everything < traffic["sent"] < everything + 1000, traffic)
            # Each message once: of a shard three on their way to its owner, one on its way back.
            once = workers * 4 * parameters / workers
            self.assertTrue(once < event["bytes_per_worker"] < once + 1000, event)

    def test_the_second_shot_adds_an_error_of_its_own(self):
        """A codec that rounds to a grid: encoded once, and once more, the mean is off by more, but not far off."""
        errors = {}
        for algorithm in ("allgather", "twoshot"):
            gradients = path(f"errors-{algorithm}")
            finished(3, "--model", "lenet", "--steps", 3, "--stop-at", 1, "--at", 0, "--algorithm", algorithm,
                     "--codec", "qsgd:bits=4", "--dump-gradients", gradients)
            own = [read_safetensors(f"{gradients}/step0-worker{k}.safetensors") for k in (1, 2, 3)]
            used = read_safetensors(f"{gradients}/step0-mean.safetensors")
            exact = {name: sum(o[name].astype(float) for o in own) / 3 for name in used}
            errors[algorithm] = (sum(((used[name] - exact[name]) ** 2).sum() for name in used)
                                 / sum((exact[name] ** 2).sum() for name in used))
        self.assertGreater(errors["allgather"], 1e-4)
        self.assertGreater(errors["twoshot"], 1.1 * errors["allgather"])
        self.assertLess(errors["twoshot"], 10 * errors["allgather"])

    def test_all_workers_take_the_same_step(self):
        """Where all samples are the same, so are the gradients of workers whose weights are the same."""
        same = path("same")
        os.mkdir(same)
        random = numpy.random.default_rng(8)
        image, label = (array[:1] for array in make_images(1, random))
        for prefix in ("train", "t10k"):
            write_idx(f"{same}/{prefix}-images-idx3-ubyte", image.repeat(64, axis=0), compress=False)
            write_idx(f"{same}/{prefix}-labels-idx1-ubyte", label.repeat(64), compress=False)
        for algorithm, *more in (("allgather",), ("twoshot",), ("ring",), ("local", "--local-steps", 2)):
            gradients = path(f"same-{algorithm}")
            finished(3, "--model", "lenet", "--batch", 4, "--steps", 4, "--stop-at", 3, "--at", 2, "--codec",
                     "qsgd:bits=2", "--algorithm", algorithm, *more, "--dump-gradients", gradients, data_folder=same)
            first, *others = (read_safetensors(f"{gradients}/step2-worker{k}.safetensors") for k in (1, 2, 3))
            for name in LENET_LAYERS:
                self.assertGreater(numpy.abs(first[name]).max(), 0)
                for other in others:
                    numpy.testing.assert_array_equal(other[name], first[name], f"{algorithm} {name}")

    def test_traffic_script(self):
        done = subprocess.run([sys.executable, str(TOOLS / "traffic.py"), "--trainer", TRAINER, "--data",
                               data, "--model", "logistic", "--workers", "2", "4", "--codec", "identity:dtype=f32",
                               "--at", "1", "--seeds", "1", "--out", path("traffic")], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        results = json.loads(pathlib.Path(path("traffic.json")).read_text())["results"]
        self.assertEqual([(r["workers"], r["algorithm"]) for r in results],
                         [(workers, algorithm) for workers in (2, 4) for algorithm in ("allgather", "twoshot", "ring")])
        received = [r["received"] / (4 * 7850) for r in results]
        for found, expected in zip(received, (1, 1, 1, 3, 1.5, 1.5), strict=True):
            self.assertTrue(expected < found < 1.05 * expected, received)
        self.assertLess(max(r["nmse"] for r in results), 1e-12)
        self.assertEqual(pathlib.Path(path("traffic.png")).read_bytes()[:8], b"\x89PNG\r\n\x1a\n")


class DeviceTest(unittest.TestCase):
    def check(self, *options):
        return subprocess.run([TRAINER, "--check", *options], capture_output=True, text=True)

    def test_what_does_not_go_with_a_device(self):
        for options, expected in (
                (("--device", "cuda", "--cuda-aware-mpi"), "--cuda-aware-mpi: goes with --algorithm allgather and local only: "
                 "messages of ps go through host memory"),
                (("--device", "cuda", "--algorithm", "ring", "--cuda-aware-mpi"), "--cuda-aware-mpi: goes with --algorithm allgather "
                 "and local only: messages of ring go through host memory"),
                (("--algorithm", "allgather", "--cuda-aware-mpi"), "--cuda-aware-mpi: goes with --device cuda only")):
            with self.subTest(options=options):
                done = self.check(*options)
                self.assertEqual(done.returncode, 2)
                self.assertTrue(done.stderr.startswith(f"atomo-train: {expected}"), done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for options in (("--device", "cpu"), ("--device", "cuda", "--algorithm", "allgather", "--cuda-aware-mpi"),
                        ("--device", "cuda"), ("--device", "cuda", "--algorithm", "twoshot", "--dump-gradients", "g")):
            self.assertEqual(self.check(*options).returncode, 0)

    def start(self, *both, algorithm="allgather"):
        """Two processes whose command lines end in other options."""
        lines = [[*launch(1), "--algorithm", algorithm, "--model", "logistic", *map(str, options)] for options in both]
        return subprocess.run([*lines[0], ":", *lines[1][lines[1].index("-n"):]], capture_output=True, text=True, timeout=600)

    def assert_unlike(self, name, *both, values=None, **how):
        done = self.start(*both, **how)
        self.assertEqual(done.returncode, 2, done.stderr)
        for k in (0, 1):
            value = values[k] if values else both[k][-1]
            self.assertRegex(done.stderr, rf"cannot start: the processes were not started alike: {name} = {value} \[worker {k + 1} \(")

    def test_processes_that_were_started_unlike(self):
        for name, *values in (("lr", 0.1, 0.2), ("stop-at", 1, 2), ("eval-every", 0, 1), ("eval-samples", 5, 6)):
            with self.subTest(name):
                self.assert_unlike(name, *(("--data", data, "--steps", 2, f"--{name}", value) for value in values))
        more = ("--data", data, "--steps", 2)
        saved = (*more, "--save", path("unlike.safetensors"))
        self.assert_unlike("save", more, saved, values=("false", "true"))
        self.assert_unlike("save-every", *((*saved, "--save-every", every) for every in (1, 2)))
        recorded = (*more, "--timeline", path("unlike.json"))
        self.assert_unlike("timeline", more, recorded, values=("false", "true"))
        self.assert_unlike("at", *((*recorded, "--at", step) for step in (0, 1)))
        dumped = (*more, "--dump-gradients", path("unlike"))
        self.assert_unlike("dump-gradients", more, dumped, values=("false", "true"))
        self.assert_unlike("every", *((*dumped, "--every", steps) for steps in (1, 2)))
        self.assert_unlike("on-lost-node", *((*more, "--on-lost-node", what) for what in ("stop", "go-on")), algorithm="dpsgd")
        self.assert_unlike("epochs", *(("--data", data, "--epochs", epochs) for epochs in (1, 2)))

    def test_data_of_other_lengths_have_other_steps(self):
        for name, samples in (("few", 64), ("more", 96)):
            os.mkdir(path(name))
            images, labels = make_images(samples, numpy.random.default_rng(6))
            for prefix in ("train", "t10k"):
                write_idx(f"{path(name)}/{prefix}-images-idx3-ubyte", images, compress=False)
                write_idx(f"{path(name)}/{prefix}-labels-idx1-ubyte", labels, compress=False)
        self.assert_unlike("steps", *(("--batch", 8, "--epochs", 1, "--data", path(name)) for name in ("few", "more")), values=(4, 6))

    def test_files_that_a_run_begins_with_are_alike(self):
        """Their content is, wherever they lie."""
        options = ("--data", data, "--batch", 16, "--steps", 4)
        for name, done in (("one", 1), ("two", 2)):
            finished(2, "--algorithm", "allgather", "--model", "logistic", "--steps", 4, "--stop-at", done, "--save",
                     path(f"{name}.safetensors"))
        one, two, same = (path(f"{name}.safetensors") for name in ("one", "two", "same"))
        shutil.copy(one, same)
        checksum = "xxh3 [0-9a-f]{16}"
        for option, values in (("init", (checksum, checksum)), ("resume", (f"step 1, {checksum}", f"step 2, {checksum}"))):
            with self.subTest(option):
                self.assert_unlike(option, *((*options, f"--{option}", name) for name in (one, two)), values=values)
                self.assert_unlike(option, (*options, f"--{option}", one), options, values=(values[0], ""))
                done = self.start(*((*options, f"--{option}", name) for name in (one, same)))
                self.assertEqual(done.returncode, 0, done.stderr)

    def test_no_gpu(self):
        with unittest.mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):
            status, out, err = Job(2, "--algorithm", "allgather", "--device", "cuda", "--steps", 2).end()
        self.assertEqual(status, 2, err)
        said = [line for line in err.splitlines() if "atomo-train" in line and "cannot start" in line]
        self.assertEqual(len(said), 1, err)
        self.assertRegex(said[0], r"--device cuda: .*this libtorch has no CUDA, or sees no GPU; .* take --device cpu")
        self.assertNotIn("step", out)


class BudgetTest(unittest.TestCase):
    def run_script(self, *options):
        return subprocess.run([sys.executable, str(TOOLS / "budget.py"), "--trainer", str(TRAINER), "--model",
                               "logistic", "--data", data, "--out", path("budget"), *options],
                              capture_output=True, text=True)

    def test_what_a_run_sends(self):
        done = self.run_script("--steps", "120", "--jump-at", "60", "--bits", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(pathlib.Path(path("budget.json")).read_text())
        self.assertEqual(len(result["shares"]), 120)
        self.assertAlmostEqual(result["result"]["first"], numpy.mean(result["shares"][3:53]))
        self.assertGreater(result["shares"][60], 1.5)  # no prediction knew of the jump
        self.assertIn("| mean of the 50 steps after the first 3 |", pathlib.Path(path("budget.md")).read_text())
        self.assertEqual(pathlib.Path(path("budget.png")).read_bytes()[:8], b"\x89PNG\r\n\x1a\n")

    def test_too_few_steps(self):
        done = self.run_script("--steps", "100", "--jump-at", "60")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--jump-at is 60", done.stderr)

    def test_a_jump_of_nothing(self):
        for jump in ("1", "0", "-2", "nan", "inf"):
            done = self.run_script("--jump", jump)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f"--jump is {jump}: give a positive factor other than 1", done.stderr)

    def test_a_loss_scale_changes_nothing_but_rounding(self):
        options = (3, "--model", "logistic", "--steps", 6, "--codec", "identity:dtype=f32")
        self.assertEqual(losses(*options), losses(*options, "--loss-scale", 1024, "--loss-scale-from", 2))

    def test_memories_are_of_gradients_without_the_loss_scale(self):
        """A power of two leaves every bit, so a scale that comes in the middle of a run changes nothing. With one that rounds the
        losses are near, and not those of a run whose memories were formed under another scale."""
        for number, codec in enumerate(("ef+topk:keep=0.02", "dgc:momentum=0.9+topk:keep=0.02", "momentum:beta=0.9+sign:scale=mean",
                                        "ef:decay=0.9+topk:keep=0.02", "ef21+topk:keep=0.02",
                                        "ef+atomo:bits=0.25,content=nearest")):
            algorithm = ("allgather", "local")[number % 2]
            options = (2, "--algorithm", algorithm, "--model", "logistic", "--steps", 8, "--codec", codec, "--lr", 0.02,
                       *(("--local-steps", 2) if algorithm == "local" else ()))
            with self.subTest(codec=codec):
                plain = losses(*options)
                self.assertEqual(plain, losses(*options, "--loss-scale", 1024, "--loss-scale-from", 3))
                numpy.testing.assert_allclose(losses(*options, "--loss-scale", 1000, "--loss-scale-from", 3), plain, rtol=0.01)


class CompareTest(unittest.TestCase):
    def compare(self, *options):
        return subprocess.run([sys.executable, str(TOOLS / "compare.py"), "--trainer", TRAINER,
                               "--data", data, "--workers", "2", "--steps", "8", "--batch", "16", "--tests", "2",
                               "--model", "logistic", "--out", path("compare"), *options],
                              capture_output=True, text=True)

    def test_table_and_plot(self):
        done = self.compare("--codec", "atomo:bits=1", "--codec", "sign:scale=mean", "--seeds", "1", "2")
        self.assertEqual(done.returncode, 0, done.stderr)
        results = json.loads(pathlib.Path(path("compare.json")).read_text())["results"]
        self.assertEqual([r["codec"] for r in results], ["identity:dtype=f32", "atomo:bits=1", "sign:scale=mean"])
        self.assertEqual([r["unbiased"] for r in results], [True, True, False])
        self.assertEqual([len(r["scores"]) for r in results], [2, 2, 2])
        self.assertEqual([point["steps"] for point in results[0]["curve"]], [4, 8])
        self.assertIn("| codec", done.stdout)
        self.assertEqual(pathlib.Path(path("compare.png")).read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.assertIn("| atomo:bits=1 ", pathlib.Path(path("compare.md")).read_text())

    def test_refuses_a_wrong_codec_before_training(self):
        done = self.compare("--codec", "qsgd:bits=99")
        self.assertEqual(done.returncode, 2)
        self.assertIn("bits=99", done.stderr)
        self.assertEqual(done.stdout, "")

    def test_rates(self):
        """A rate too small to learn, a better one, and one that diverges."""
        done = subprocess.run([sys.executable, str(TOOLS / "tune.py"), "--trainer", TRAINER, "--data", data, "--processes", "1",
                               "--steps", "12", "--lr", "1e-9", "0.01", "1e30", "--", "--algorithm", "allgather", "--model",
                               "mlp:hidden=8", "--batch", "16"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"\| 1e-09 +\| +\d+\.\d+% \| +2\.\d+ \|")
        self.assertRegex(done.stdout, r"\| 1e\+30 +\| +failed \|")
        self.assertEqual(done.stdout.splitlines()[-1], "best: --lr 0.01")


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
