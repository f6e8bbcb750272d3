# SPDX-License-Identifier: Apache-2.0
"""Algorithms with servers: what each must agree with, several servers, ways back, late and silent workers."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

import numpy
from jobs import TRAINER, Job, finished, folder, losses, make_images, path, read_safetensors, write_idx

PARAMETERS = 7850  # of the logistic model, in two layers
LOGISTIC = ("--model", "logistic", "--steps", 7, "--batch", 8)


def close(test, first, second, relative=1e-4):
    test.assertEqual(len(first), len(second))
    for a, b in zip(first, second, strict=True):
        test.assertLessEqual(abs(a - b), relative * abs(a), (first, second))


def last_test(job):
    return job.events("evaluation")[-1]["loss"]


def write_quadratics(name, curvature, pull, start):
    """Samples x elements. The sum of all is least at the mean pull over the mean curvature."""
    samples = [{"curvature": list(a), "pull": list(c)} for a, c in zip(curvature.tolist(), pull.tolist(), strict=True)]
    with open(path(name), "w", encoding="utf-8") as file:
        json.dump({"rows": 1, "columns": curvature.shape[1], "samples": samples, "start": list(start)}, file)
    return path(name)


class ServersTest(unittest.TestCase):
    def test_one_worker_without_others_is_sgd(self):
        """Bit for bit: nobody else moves the weights, so there is no delay and nothing to compensate."""
        options = (2, *LOGISTIC, "--codec", "atomo:bits=1")
        alone = losses(*options)
        self.assertEqual(losses(*options, "--algorithm", "asgd"), alone)
        self.assertEqual(losses(*options, "--algorithm", "dcasgd", "--adaptive", "--compensation", 3), alone)

    def test_asynchronous_steps_are_as_many_messages_as_workers(self):
        job = finished(4, "--algorithm", "asgd", *LOGISTIC, "--lr", 0.01, "--momentum", 0.5)
        steps = job.events("step")
        self.assertEqual([event["step"] for event in steps], list(range(7)))
        for event in steps:
            self.assertTrue(4 * PARAMETERS < event["bytes_per_worker"] < 4 * PARAMETERS + 500, event)
        self.assertLess(steps[-1]["loss"], steps[0]["loss"])

    def test_one_local_step_is_a_step_of_the_server(self):
        served = losses(4, *LOGISTIC)
        for algorithm in ("fedavg", "average"):
            close(self, served, losses(4, *LOGISTIC, "--algorithm", algorithm))

    def test_local_steps_of_one_worker_are_sgd(self):
        served = finished(2, *LOGISTIC)
        for algorithm in ("fedavg", "average"):
            job = finished(2, *LOGISTIC, "--algorithm", algorithm, "--local-steps", 3, "--eval-every", 5)
            self.assertEqual([event["step"] for event in job.events("step")], [2, 5, 6])
            self.assertEqual([event["steps"] for event in job.events("evaluation")], [6, 7])
            close(self, [last_test(served)], [last_test(job)])
            self.assertAlmostEqual(job.events("end")[0]["bytes_per_step"] * 7 / 3 / PARAMETERS, 4, delta=0.1)

    def test_outer_optimizer(self):
        """Momentum, and adam, whose corrections count rounds."""
        random = numpy.random.default_rng(2)
        curvature, pull = random.uniform(0.5, 2, (1, 4)), random.normal(0, 1, (1, 4))
        start = random.normal(0, 2, 4).astype(numpy.float32).astype(float)
        data = write_quadratics("outer.json", curvature, pull, start)

        def change(x):
            local = x
            for _ in range(3):
                local = local - 0.1 * (curvature[0] * local - pull[0])
            return x - local

        for optimizer, *momentum in (("sgd", "--outer-momentum", 0.5), ("adam",)):
            job = finished(2, "--algorithm", "fedavg", "--model", "quadratic", "--steps", 9, "--batch", 1, "--local-steps", 3,
                           "--lr", 0.1, "--schedule", "constant", "--momentum", 0, "--outer-optimizer", optimizer,
                           "--outer-lr", 0.5, *momentum, "--eval-every", 3, data_folder=data)
            x, first, second = start, numpy.zeros(4), numpy.zeros(4)
            for t, event in enumerate(job.events("evaluation"), 1):
                d = change(x)
                if optimizer == "sgd":
                    first = 0.5 * first + d
                    x = x - 0.5 * first
                else:
                    first, second = 0.9 * first + 0.1 * d, 0.999 * second + 0.001 * d * d
                    x = x - 0.5 * first / (1 - 0.9 ** t) / (numpy.sqrt(second / (1 - 0.999 ** t)) + 1e-8)
                self.assertAlmostEqual(event["loss"], float((curvature * x * x / 2 - pull * x).sum()), places=4)
            self.assertEqual(t, 3)

    def test_several_servers_are_one(self):
        """Bit for bit: the same sums over the same numbers. Of three servers of two layers one has none."""
        for servers, options in ((3, ("--codec", "atomo:bits=1", "--optimizer", "adamw", "--lr", 0.01, "--double-buffer")),
                                 (2, ("--algorithm", "fedavg", "--local-steps", 2))):
            with self.subTest(options=options):
                whole = losses(3, *LOGISTIC, *options)
                self.assertEqual(losses(2 + servers, *LOGISTIC, *options, "--servers", servers), whole)

    def test_gradient_of_several_servers(self):
        gradients = path("sharded")
        finished(4, *LOGISTIC, "--stop-at", 2, "--at", 1, "--servers", 2, "--dump-gradients", gradients)
        first, second = (read_safetensors(f"{gradients}/step1-worker{k}.safetensors") for k in (1, 2))
        for name, mean in read_safetensors(f"{gradients}/step1-mean.safetensors").items():
            numpy.testing.assert_array_equal(mean, first[name] / 2 + second[name] / 2)

    def test_way_back(self):
        plain = finished(3, *LOGISTIC)
        whole = finished(3, *LOGISTIC, "--down", "identity:dtype=f32")
        close(self, [e["loss"] for e in plain.events("step")], [e["loss"] for e in whole.events("step")])
        for options in (("--servers", 2), ("--algorithm", "asgd")):
            job = finished(4 if options[:1] == ("--servers",) else 3, *LOGISTIC, *options, "--down", "qsgd:bits=4")
            steps = job.events("step")
            for event in steps:
                self.assertTrue(PARAMETERS / 2 < event["traffic_per_worker"]["received"] < 0.7 * PARAMETERS, event)
                self.assertGreater(event["traffic_per_worker"]["sent"], 4 * PARAMETERS)
            self.assertLess(steps[-1]["loss"], 0.8 * steps[0]["loss"])
        received = [e["traffic_per_worker"]["received"] for e in plain.events("step")]
        self.assertEqual(received, [4 * PARAMETERS] * 7)

    def test_double_buffer_is_a_step_late(self):
        """Where all samples are the same, the loss tells the weights."""
        same = path("same-samples")
        os.mkdir(same)
        image, label = (array[:1] for array in make_images(1, numpy.random.default_rng(8)))
        for prefix in ("train", "t10k"):
            write_idx(f"{same}/{prefix}-images-idx3-ubyte", image.repeat(64, axis=0), compress=False)
            write_idx(f"{same}/{prefix}-labels-idx1-ubyte", label.repeat(64), compress=False)
        options = ("--model", "logistic", "--steps", 4, "--batch", 4, "--momentum", 0, "--lr", 1e-4, "--schedule", "constant")
        prompt = losses(3, *options, data_folder=same)
        late = losses(3, *options, "--double-buffer", data_folder=same)
        self.assertEqual(len(set(prompt)), 4)
        self.assertEqual(late[:3], [prompt[0], prompt[0], prompt[1]])
        self.assertEqual(len(set(late)), 3)

    def test_compensation(self):
        """Two workers at the same weights: the second gradient is compensated for the first one's step. The second
        message may also be the first worker's next, which is not late."""
        random = numpy.random.default_rng(6)
        a, c = random.uniform(0.5, 1, 5), random.normal(0, 1, 5)
        start = random.normal(0, 2, 5).astype(numpy.float32).astype(float)
        data = write_quadratics("late.json", numpy.array([a, a]), numpy.array([c, c]), start)
        rate, g = 0.1, a * start - c
        prompt = start - rate * g
        undisturbed = prompt - rate * (a * prompt - c)
        for options, compensation in ((("--compensation", 2), 2 * numpy.ones(5)), (("--compensation", 0), numpy.zeros(5)),
                                      (("--compensation", 2, "--adaptive"), 2 / numpy.sqrt(0.0975 * g * g + 1e-7))):
            late = prompt - rate * (g + compensation * g * g * (prompt - start))
            for _ in range(8):
                saved = path("late.safetensors")
                finished(3, "--algorithm", "dcasgd", "--model", "quadratic", "--batch", 1, "--steps", 1, "--lr", rate,
                         "--schedule", "constant", "--momentum", 0, "--save", saved, *options, data_folder=data)
                (weights,) = (v for k, v in read_safetensors(saved).items() if k.startswith("weights."))
                if numpy.allclose(weights.ravel(), late, rtol=1e-5, atol=1e-6):
                    break
                numpy.testing.assert_allclose(weights.ravel(), undisturbed, rtol=1e-5, atol=1e-6)
            else:
                self.fail("no message was late in eight runs")

    def test_differences_reach_the_optimum(self):
        """The error of a coarse codec dies away with what is new about the gradients, but not with the gradients: at the
        common optimum every worker has one of its own."""
        random = numpy.random.default_rng(3)
        curvature, pull = random.uniform(0.5, 1.5, (3, 8)), random.normal(0, 1, (3, 8))
        data = write_quadratics("consensus.json", curvature, pull, [5.0] * 8)
        distances = {}
        for algorithm in ("ps", "difference"):
            job = finished(4, "--algorithm", algorithm, "--model", "quadratic", "--batch", 1, "--steps", 400, "--lr", 0.2,
                           "--split", "duplicate:r=1", "--schedule", "constant", "--momentum", 0, "--codec",
                           "qsgd:bits=2", data_folder=data)
            distances[algorithm] = job.events("evaluation")[-1]["distance"]
        self.assertGreater(distances["ps"], 1e-3)
        self.assertLess(distances["difference"], 1e-5)

    def test_lazy_workers(self):
        """LAQ's rule, computed again from the numbers of the run: who sends when, the bytes, and where the weights get to."""
        random = numpy.random.default_rng(7)
        curvature, pull = random.uniform(0.5, 1.5, (3, 8)), random.normal(0, 1, (3, 8))
        rate, xi, steps = 0.2, 0.1, 60
        weights, memory, last, skipped = numpy.full(8, 5.0), numpy.zeros((3, 8)), numpy.zeros(3), numpy.zeros(3)
        before, moves, senders = None, [], []
        for step in range(steps):
            moves = moves if before is None else [((weights - before)**2).sum(), *moves][:10]
            before = weights
            senders.append(0)
            for k in range(3):
                news = curvature[k] * weights - pull[k] - memory[k]
                sent = numpy.where(abs(news) > abs(news).min(), news, 0)  # seven of eight
                change, error = (sent**2).sum(), ((news - sent)**2).sum()
                if step > 0 and skipped[k] < 100 and change <= xi / 10 * sum(moves) / rate**2 + 3 * (error + last[k]):
                    skipped[k] += 1
                    continue
                memory[k] += sent
                last[k], skipped[k] = error, 0
                senders[-1] += 1
            weights = (weights - rate * memory.mean(0)).astype("float32").astype(float)
        self.assertLess(sum(senders), steps)  # of 180 messages

        data, saved = write_quadratics("lazy.json", curvature, pull, [5.0] * 8), path("lazy.safetensors")
        job = finished(4, "--algorithm", "difference", "--model", "quadratic", "--batch", 1, "--steps", steps, "--lr", rate,
                       "--split", "duplicate:r=1", "--schedule", "constant", "--momentum", 0, "--codec", "topk:keep=0.875",
                       "--codec-scale", 1, "--down", "identity", "--lazy", xi, "--save", saved, data_folder=data)
        found = [3 * event["bytes_per_worker"] for event in job.events("step")]
        message = found[0] / 3  # the first time all send; later one who does not sends a byte
        numpy.testing.assert_allclose(found, [k * message + 3 - k for k in senders])
        (trained,) = (v for k, v in read_safetensors(saved).items() if k.startswith("weights."))
        numpy.testing.assert_allclose(trained.ravel(), weights, atol=1e-5)

    def test_a_coarse_way_back_leaves_no_error(self):
        """What a message leaves out comes with the next ones, so the workers get to the optimum as well."""
        random = numpy.random.default_rng(5)
        curvature, pull = random.uniform(0.5, 1.5, (1, 8)).repeat(2, axis=0), random.normal(0, 1, (1, 8)).repeat(2, axis=0)
        data = write_quadratics("back.json", curvature, pull, [5.0] * 8)
        for algorithm, steps in (("ps", 400), ("asgd", 4000)):  # how fast that is, is the order's affair
            job = finished(3, "--algorithm", algorithm, "--model", "quadratic", "--batch", 1, "--steps", steps, "--lr", 0.1,
                           "--schedule", "constant", "--momentum", 0, "--down", "topk:keep=0.25", data_folder=data)
            self.assertLess(job.events("evaluation")[-1]["distance"], 1e-5)

    def test_wrong_options(self):
        for options, expected in ((("--down", "qsgd:bits=99"), "bits=99"),
                                  (("--algorithm", "asgd", "--aggregate", 1), "--aggregate")):
            done = subprocess.run([TRAINER, "--check", *map(str, options)], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn(expected, done.stderr)
        for options, expected in ((("--aggregate", 3), "there are 2 workers"),
                                  (("--aggregate", 1, "--double-buffer"), "--double-buffer does not go with --aggregate"),
                                  (("--algorithm", "difference", "--codec", "atomo:bits=1"), "give --codec-scale")):
            with self.subTest(options=options):
                status, _, err = Job(3, *LOGISTIC, *options).end(60)
                self.assertNotEqual(status, 0)
                self.assertIn(expected, err)


class ResumesTest(unittest.TestCase):
    def resumed(self, processes, *options):
        def story(*more):
            job = finished(processes, *LOGISTIC, *options, *more)
            return {event["step"]: event["loss"] for event in job.events("step")}, last_test(job) if not more else None

        whole, score = story()
        saved = path(f"servers-{len(os.listdir(folder.name))}.safetensors")
        begun, _ = story("--save", saved, "--stop-at", 4)
        job = finished(processes, *LOGISTIC, *options, "--resume", saved)
        resumed = {event["step"]: event["loss"] for event in job.events("step")}
        self.assertEqual(begun | resumed, whole)
        self.assertEqual(len(begun) + len(resumed), len(whole))
        self.assertEqual(last_test(job), score)

    def test_double_buffer(self):
        self.resumed(3, "--double-buffer", "--codec", "atomo:bits=1")

    def test_compressed_way_back_of_two_servers(self):
        self.resumed(4, "--servers", 2, "--down", "qsgd:bits=4", "--optimizer", "adamw", "--lr", 0.01)

    def test_local_steps(self):
        self.resumed(3, "--algorithm", "fedavg", "--local-steps", 2, "--outer-momentum", 0.5, "--codec", "qsgd:bits=4")

    def test_differences(self):
        self.resumed(3, "--algorithm", "difference", "--codec", "qsgd:bits=4")
        self.resumed(3, "--algorithm", "difference", "--codec", "qsgd:bits=4", "--lazy", 0.8)

    def test_asynchronous_with_one_worker(self):
        self.resumed(2, "--algorithm", "dcasgd", "--adaptive", "--codec", "atomo:bits=1", "--down", "qsgd:bits=4")


    def test_a_finished_run_says_again_what_it_came_to(self):
        for algorithm, *more in (("ps",), ("ps", "--servers", 2), ("asgd",), ("allgather",), ("dpsgd",)):
            options = (4, *LOGISTIC, "--algorithm", algorithm, *more)
            saved = path(f"finished-{algorithm}-{len(more)}.safetensors")
            with self.subTest(algorithm, more=more):
                whole, again = finished(*options, "--save", saved), finished(*options, "--resume", saved)
                self.assertEqual(again.events("step"), [])
                for figure in ("accuracy", "loss"):
                    self.assertIsNotNone(whole.events("end")[0][figure])
                    self.assertEqual(again.events("end")[0][figure], whole.events("end")[0][figure])

    def test_a_finished_folder_has_each_test_once(self):
        to = path("a-finished-folder")
        options = (2, *LOGISTIC, "--algorithm", "allgather", "--eval-every", 4, "--out", to)
        finished(*options)
        finished(*options, "--resume", os.path.join(to, "checkpoint.safetensors"))
        with open(os.path.join(to, "log.jsonl"), encoding="utf-8") as file:
            events = [json.loads(line) for line in file]
        self.assertEqual([event["steps"] for event in events if event["event"] == "evaluation"], [4, 7])
        self.assertEqual([event["accuracy"] for event in events if event["event"] == "end"],
                         [event["accuracy"] for event in events if event["event"] == "evaluation"][-1:])


class LateTest(unittest.TestCase):
    def test_refused_payloads(self):
        for algorithm, servers, step in (("dcasgd", 2, 3), ("fedavg", 1, 3), ("difference", 1, 3)):
            with self.subTest(algorithm=algorithm):
                local = ("--local-steps", 2) if algorithm == "fedavg" else ()
                codec = "qsgd:bits=4" if algorithm == "difference" else "atomo:bits=4"
                status, _, err = Job(2 + servers, "--algorithm", algorithm, *LOGISTIC, "--servers", servers, "--codec", codec,
                                     *local, "--corrupt-payload-at", step).end(60)
                self.assertNotEqual(status, 0)
                self.assertRegex(err, rf"worker 1 \(rank {servers}, .*\) sent a payload that is refused.*step "
                                      rf"{step - len(local) // 2}: the checksum does not match")

    def test_late_gradients(self):
        """A slow worker's gradients are dropped, beside two others a step, or are among the two."""
        messages = {}
        for late in ("drop", "add"):
            job = finished(4, "--model", "logistic", "--steps", 60, "--batch", 8, "--aggregate", 2, "--late", late,
                           "--slow-rank", 1, "--slow-factor", 8)
            steps = job.events("step")
            messages[late] = [round(3 * event["bytes_per_worker"] / (4 * PARAMETERS)) for event in steps]
            self.assertLess(steps[-1]["loss"], steps[0]["loss"])
        self.assertEqual(messages["add"], [2] * 60)
        self.assertEqual(min(messages["drop"]), 2)
        self.assertGreater(sum(messages["drop"]), 2 * 60)

    def aggregate(self, *more):
        job = Job(4, "--model", "logistic", "--batch", 8, "--aggregate", 2, "--timeout", 2, "--lr", 1e-3, *more)
        job.wait_for_steps(5)
        return job

    def test_a_frozen_worker_is_left_behind(self):
        job = self.aggregate("--steps", 600)
        os.kill(job.process_of(2), signal.SIGSTOP)
        status, _, err = job.end(60)
        self.assertEqual(status, 0, err)
        self.assertEqual(job.events("end")[0]["steps"], 600)
        self.assertTrue(0 <= job.events("evaluation")[0]["accuracy"] <= 1)

    def test_a_frozen_worker_comes_back(self):
        job = self.aggregate("--steps", 1_000_000)
        worker = job.process_of(2)

        def messages_of_next_steps():
            before = len(job.events("step"))
            job.wait_for_steps(before + 60)
            return [round(3 * e["bytes_per_worker"] / (4 * PARAMETERS)) for e in job.events("step")[before + 10:]]

        os.kill(worker, signal.SIGSTOP)
        time.sleep(0.3)
        self.assertEqual(set(messages_of_next_steps()), {2})
        os.kill(worker, signal.SIGCONT)
        time.sleep(0.3)
        self.assertGreater(max(messages_of_next_steps()), 2)
        job.process.send_signal(signal.SIGUSR1)
        _, out, err = job.end(60)
        self.assertIn("interrupted after", out, err)

    def test_a_frozen_worker_that_comes_with_the_resumed_run_has_the_servers_weights(self):
        """Differences travel, so both ends have to begin with the same ones."""
        options = ("--model", "logistic", "--batch", 8, "--aggregate", 2, "--down", "qsgd:bits=8", "--timeout", 1, "--lr", 1e-3,
                   "--steps", 400)
        saved, whole = path("frozen.safetensors"), path("back.safetensors")
        job = Job(4, *options, "--stop-at", 200, "--save", saved)
        job.wait_for_steps(5)
        os.kill(job.process_of(2), signal.SIGSTOP)
        status, _, err = job.end(60)
        self.assertEqual(status, 0, err)
        self.assertEqual(sum(name.endswith("view") for name in read_safetensors(saved)), 2)
        finished(4, *options, "--resume", saved, "--save", whole)
        stored = read_safetensors(whole)
        views = {name: values for name, values in stored.items() if name.endswith("view")}
        self.assertEqual(len(views), 3)
        distances = {name: float(numpy.abs(values - views[min(views)]).max()) for name, values in views.items()}
        self.assertLess(max(distances.values()), 0.02 * float(numpy.abs(views[min(views)]).max()), distances)

    def test_too_few_are_left(self):
        job = self.aggregate("--steps", 1_000_000, "--retries", 0)
        processes = [job.process_of(rank) for rank in (1, 3)]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        status, _, err = job.end(60)
        self.assertNotEqual(status, 0)
        self.assertRegex(err, rf"worker [13] \(rank [13], process ({processes[0]}|{processes[1]}).* no sign of life")


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
