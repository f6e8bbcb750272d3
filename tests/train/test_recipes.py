# SPDX-License-Identifier: Apache-2.0
"""Recipes of a training: schedules, epochs, moved images, smoothed targets, figures, first weights."""

import json
import os
import pathlib
import subprocess
import tomllib
import unittest

import numpy

from jobs import TRAINER, TRAINING, Job, data, finished, make_images, path, read_safetensors, write_idx

BRIEF = ("--model", "logistic", "--batch", 8)


def check(*options):
    """What --check says is wrong; empty when nothing is."""
    done = subprocess.run([TRAINER, "--check", *map(str, options)], capture_output=True, text=True)
    if done.returncode != (2 if done.stderr else 0):
        raise AssertionError(f"exit status {done.returncode}: {done.stderr}")
    return done.stderr


def refused(*options, processes=2):
    status, _, err = Job(processes, *options).end()
    if status == 0:
        raise AssertionError("it was not refused")
    return err


def same_samples():
    """A folder whose test is its training set, whose accuracy is far from 0 and 1 for weights as drawn."""
    where = path("same")
    if not os.path.isdir(where):
        os.mkdir(where)
        images, labels = make_images(64, numpy.random.default_rng(6))
        for prefix in ("train", "t10k"):
            write_idx(f"{where}/{prefix}-images-idx3-ubyte", images, compress=False)
            write_idx(f"{where}/{prefix}-labels-idx1-ubyte", labels, compress=False)
    return where


def write_safetensors(name, tensors):
    header, body = {}, b""
    for key, tensor in tensors.items():
        header[key] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(body), len(body) + tensor.nbytes]}
        body += tensor.tobytes()
    text = json.dumps(header).encode()
    pathlib.Path(name).write_bytes(len(text).to_bytes(8, "little") + text + body)
    return name


class OptionsTest(unittest.TestCase):
    def test_values_that_are_wrong_are_named(self):
        for options, said in (
                (("--schedule", "exponential"), "--schedule: exponential needs --decay X, the factor a step, e.g. 0.999"),
                (("--decay", 0.5), "--decay: goes with --schedule step and exponential, not with cosine"),
                (("--schedule", "constant", "--decay-at", "0.5"), "--decay-at: goes with --schedule step and trapezoid, not with constant"),
                (("--schedule", "trapezoid"), "--decay-at: '0.5,0.75' is not one share of the run, from which on a trapezoid falls to 0"),
                (("--schedule", "trapezoid", "--decay-at", "0.2", "--decay", 0.5), "--decay: goes with --schedule step and exponential"),
                (("--schedule", "step", "--decay", 1), "--decay: '1' is not a number above 0 and below 1"),
                (("--schedule", "step", "--decay-at", "0.5,2"), "--decay-at: '2' is not a share of the run, between 0 and 1"),
                (("--schedule", "step", "--decay-at", "0.5,0.4"), "--decay-at: '0.4' is not above the share before it"),
                (("--epochs", 0), "--epochs: '0' is not a number above 0"),
                (("--epochs", 2, "--steps", 5), "--epochs: take one of --epochs and --steps"),
                (("--augment", "zoom"), "--augment: 'zoom' is none of crop and flip; write for example crop,flip"),
                (("--augment", "flip,flip"), "--augment: 'flip' is there twice"),
                (("--augment", "flip", "--model", "transformer"), "--augment: goes with models of images only, not with transformer"),
                (("--label-smoothing", 1), "--label-smoothing: '1' is not a number from 0 to below 1"),
                (("--label-smoothing", 0.1, "--model", "quadratic", "--data", "x"),
                 "--label-smoothing: goes with models that predict classes, not with quadratic"),
                (("--share-by-rate", 0.75, "--algorithm", "ring"),
                 "--share-by-rate: goes with --algorithm allgather, ps, asgd, dcasgd and difference, not with ring"),
                (("--sparsity-warmup", 5, "--codec", "topk:keep=0.01"),
                 "--sparsity-warmup: goes with --algorithm allgather, local, not with ps"),
                (("--sparsity-warmup", 5, "--algorithm", "local", "--codec", "sign"), "--sparsity-warmup: the policy has no keep=: "),
                (("--sparsity-warmup", 5, "--algorithm", "allgather", "--codec", "topk:keep=9"),
                 "--sparsity-warmup: keep=9 is a count: a share is expected, such as keep=0.01"),
                (("--test-batch", 0), "--test-batch: '0' is not a number above 0"),
                (("--init", "a.safetensors", "--resume", "b.safetensors"), "--init: leave it out: --resume has weights of its own")):
            with self.subTest(options=options):
                self.assertIn(said, check(*options))

    def test_values_that_are_right(self):
        for options in (("--schedule", "step"), ("--schedule", "step", "--decay", 0.2, "--decay-at", "0.3"),
                        ("--schedule", "exponential", "--decay", 0.999, "--warmup", 5), ("--epochs", 3),
                        ("--schedule", "trapezoid", "--decay-at", "0.3"),
                        ("--augment", "crop"), ("--augment", "flip,crop", "--model", "logistic"),
                        ("--label-smoothing", 0.1, "--model", "transformer"), ("--test-batch", 7), ("--init", "a.safetensors")):
            with self.subTest(options=options):
                self.assertEqual(check(*options), "")

    def test_a_job_has_one_length(self):
        job = path("length.toml")
        pathlib.Path(job).write_text("epochs = 2\nsteps = 9\n")
        self.assertIn("--epochs: take one of --epochs and --steps", check("--job", job))
        self.assertEqual(check("--job", job, "--epochs", 3), "")
        self.assertEqual(check("--job", job, "--steps", 3), "")


class RecipesTest(unittest.TestCase):
    def test_a_run_of_all_of_them_is_repeated_and_resumed(self):
        """By its job file, and from the middle of an epoch, to the same losses and figures."""
        out, part = path("recipe"), path("recipe-part")
        options = (*BRIEF, "--algorithm", "allgather", "--codec", "atomo:bits=1", "--epochs", 1, "--augment", "crop,flip",
                   "--label-smoothing", 0.1, "--schedule", "step", "--decay-at", "0.25,0.5", "--eval-every", 10)
        whole = finished(2, *options, "--save", path("whole.safetensors"))
        steps = TRAINING // 16
        self.assertEqual([event["step"] for event in whole.events("step")], list(range(steps)))
        self.assertEqual(whole.events("start")[0]["decay"], 0.1)

        def told(job):
            keys = ("step", "loss", "training_accuracy")
            return [tuple(event[key] for key in keys) for event in job.events("step")]

        finished(2, *options, "--stop-at", 10, "--save", path("part.safetensors"))
        resumed = finished(2, *options, "--resume", path("part.safetensors"), "--save", path("resumed.safetensors"))
        self.assertEqual(told(resumed), told(whole)[10:])
        tests = [{key: value for key, value in event.items() if key != "seconds"} for event in whole.events("evaluation")]
        self.assertEqual([{key: value for key, value in event.items() if key != "seconds"} for event in resumed.events("evaluation")],
                         tests[1:])
        for name, values in read_safetensors(path("whole.safetensors")).items():
            numpy.testing.assert_array_equal(values, read_safetensors(path("resumed.safetensors"))[name], name)

        for folder, more in ((part, ("--stop-at", 10)), (part, ("--resume", part)), (out, ())):
            how = options if "--stop-at" in more else ("--job", f"{part}/job.toml", "--batch", 8)
            status, _, err = Job(2, *how, "--out", folder, *more).end()
            self.assertEqual(status, 0, err)
        kept = tomllib.loads(pathlib.Path(f"{out}/job.toml").read_text())
        self.assertNotIn("steps", kept)
        self.assertEqual([kept[name] for name in ("epochs", "augment", "label-smoothing", "schedule", "decay-at", "test-batch")],
                         [1, "crop,flip", 0.1, "step", "0.25,0.5", 100])
        for folder in (part, out):
            table = pathlib.Path(f"{folder}/steps.csv").read_text().splitlines()
            column = table[0].split(",").index("loss")
            self.assertEqual([float(row.split(",")[column]) for row in table[1:]], [loss for _, loss, _ in told(whole)])

    def test_steps_have_shares_of_the_budget_by_their_rates(self):
        """Layers one by one and whole messages: bytes follow the rates at which the momentum takes a gradient along, those of the run stay, and
        it goes on from its middle."""
        rates = numpy.where(numpy.arange(40) < 20, 1, 0.25) / (1 - 0.9 ** numpy.arange(1, 41))
        felt = numpy.array([sum(0.1 * 0.9 ** age * rate for age, rate in enumerate(rates[step:])) for step in range(40)])
        felt = numpy.maximum(felt, 0.1 * felt.max())
        for algorithm, processes in (("ps", 3), ("allgather", 2)):
            with self.subTest(algorithm=algorithm):
                options = ("--model", "logistic", "--batch", 32, "--lr", 0.01, "--schedule", "step", "--decay", 0.25, "--decay-at", "0.5",
                           "--algorithm", algorithm, "--codec", "atomo:bits=4,atoms=blocks", "--steps", 40)
                plain, shared = (finished(processes, *options, *more) for more in ((), ("--share-by-rate", 1)))
                sizes = [event["bytes_per_worker"] for event in shared.events("step")]
                early, late = slice(4, 20), slice(24, 40)
                expected = felt[early].mean() / felt[late].mean()
                self.assertAlmostEqual(numpy.mean(sizes[early]) / numpy.mean(sizes[late]) / expected, 1, delta=0.06)
                spent = numpy.mean(sizes[1:]) / plain.events("end")[0]["bytes_per_step"]  # a first step's layers know no price
                self.assertAlmostEqual(spent / (felt[1:].mean() / felt.mean()), 1, delta=0.04)
                part, more = path(f"share-{algorithm}"), (*options, "--share-by-rate", 1)
                finished(processes, *more, "--stop-at", 10, "--save", part)
                resumed = finished(processes, *more, "--resume", part)
                self.assertEqual([event["loss"] for event in resumed.events("step")],
                                 [event["loss"] for event in shared.events("step")][10:])

    def test_shares_know_the_momentum_of_the_optimiser(self):
        """Without momentum nesterov takes the steps of sgd, and the bits of each."""
        options = (2, "--algorithm", "allgather", *BRIEF, "--momentum", 0, "--schedule", "step", "--decay", 0.25, "--decay-at", "0.5",
                   "--codec", "atomo:bits=1", "--steps", 12, "--share-by-rate", 1)
        sgd, nesterov = ([(event["loss"], event["bytes_per_worker"]) for event in
                          finished(*options, "--optimizer", name).events("step")] for name in ("sgd", "nesterov"))
        self.assertEqual(sgd, nesterov)
        self.assertGreater(sgd[4][1], 2 * sgd[10][1])

    def test_steps_go_along_the_majority(self):
        """Three workers' signs have one, and momentum begins at it; without --vote at the mean of the signs."""
        options = ("--model", "logistic", "--batch", 4, "--algorithm", "allgather", "--optimizer", "sgd", "--momentum", 0, "--lr", 0.125,
                   "--weight-decay", 0, "--schedule", "constant", "--codec", "sign", "--steps", 1)
        finished(3, *options, "--vote", "--save", path("vote.safetensors"))
        finished(3, *options, "--save", path("mean.safetensors"))
        votes, means = (read_safetensors(path(f"{name}.safetensors")) for name in ("vote", "mean"))
        for name in ("moment0.fc.weight", "moment0.fc.bias"):
            self.assertLess(numpy.abs(means[name]).min(), 0.4)
            numpy.testing.assert_array_equal(votes[name], numpy.sign(means[name]))
        self.assertIn("--vote: needs layers of sign alone, not of qsgd", check(*options[:-4], "--codec", "qsgd", "--vote"))

    def test_a_run_goes_on_with_its_own_recipe_only(self):
        saved = path("own.safetensors")
        options = {"--schedule": "step", "--decay": 0.5, "--decay-at": "0.5", "--augment": "crop", "--label-smoothing": 0.1}
        words = [word for pair in options.items() for word in pair]
        finished(1, *BRIEF, "--algorithm", "allgather", "--epochs", 1, *words, "--stop-at", 2, "--save", saved)
        for name, value in (("--decay", 0.25), ("--decay-at", "0.6"), ("--augment", "flip"), ("--label-smoothing", 0.2)):
            other = [word for pair in {**options, name: value}.items() for word in pair]
            said = refused(*BRIEF, "--algorithm", "allgather", "--epochs", 1, *other, "--resume", saved, processes=1)
            self.assertIn(f"it was written with {name} {json.dumps(options[name])}, this run has {json.dumps(value)}", said)
        said = refused(*BRIEF, "--algorithm", "allgather", "--epochs", 2, *words, "--resume", saved, processes=1)
        self.assertIn("it was written with --steps 80, this run has 160", said)

    def test_each_recipe_changes_the_curve(self):
        """From the second step on, or the first where the first batch or loss is another one."""
        plain = self.losses()
        for options, first in ((("--augment", "crop"), 0), (("--augment", "flip"), 0), (("--label-smoothing", 0.2), 0),
                               (("--schedule", "exponential", "--decay", 0.5), 2), (("--schedule", "constant"), 2),
                               (("--schedule", "step", "--decay-at", "0.3"), 3), (("--schedule", "trapezoid", "--decay-at", "0.3"), 3)):
            with self.subTest(options=options):
                changed = self.losses(*options)
                base = self.losses("--schedule", "constant") if "--decay-at" in options else plain
                self.assertEqual([a == b for a, b in zip(changed, base, strict=True)].index(False), first)

    def losses(self, *options):
        return [event["loss"] for event in finished(1, *BRIEF, "--algorithm", "allgather", "--steps", 6, *options).events("step")]

    def test_other_ranks_see_the_same_moved_images(self):
        """Two workers of 8 samples and four of 4 see the same 16 at each step, moved alike."""
        options = ("--model", "logistic", "--algorithm", "allgather", "--steps", 50, "--augment", "crop,flip")
        two, four = (finished(n, *options, "--batch", batch).events("step") for n, batch in ((2, 8), (4, 4)))
        for a, b in zip(two, four, strict=True):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-4 * a["loss"])  # sums in another order

    def test_figures_of_weights_that_stay(self):
        """Where the test is on the training set, what training and test find of the same weights is the same."""
        for model in ("logistic", "lenet"):
            common = ("--model", model, "--algorithm", "allgather", "--batch", 8, "--epochs", 1, "--lr", 1e-30)
            job = finished(2, *common, data_folder=same_samples())
            steps, test, end = job.events("step"), job.events("evaluation")[-1], job.events("end")[0]
            self.assertEqual(len(steps), 4)
            self.assertEqual(test["training_accuracy"], test["accuracy"])
            self.assertAlmostEqual(sum(step["training_accuracy"] for step in steps) / 4, test["accuracy"])
            self.assertAlmostEqual(sum(step["loss"] for step in steps) / 4, test["loss"], delta=1e-5)
            self.assertTrue(test["accuracy"] < test["top5"] < 1, test)
            for key in ("accuracy", "top5", "loss", "training_accuracy"):
                self.assertEqual(end[key], test[key])
            # A loss under smoothing is a straight line in the share, at weights that stay.
            half, most = (finished(2, *common, "--label-smoothing", share, data_folder=same_samples()) for share in (0.4, 0.8))
            for a, b, c in zip(steps, half.events("step"), most.events("step"), strict=True):
                self.assertAlmostEqual(b["loss"], (a["loss"] + c["loss"]) / 2, delta=1e-5)
            self.assertNotAlmostEqual(steps[0]["loss"], most.events("step")[0]["loss"], delta=1e-4)
            self.assertEqual(half.events("evaluation")[-1]["loss"], test["loss"])

    def test_five_of_ten_classes_are_the_first_five(self):
        """Of images that are all the same, each class once in ten, any network is right about one and has five on top."""
        where = path("alike")
        os.mkdir(where)
        for prefix in ("train", "t10k"):
            write_idx(f"{where}/{prefix}-images-idx3-ubyte", numpy.full((40, 28, 28), 7, numpy.uint8), compress=False)
            write_idx(f"{where}/{prefix}-labels-idx1-ubyte", numpy.arange(40, dtype=numpy.uint8) % 10, compress=False)
        for model in ("logistic", "lenet"):
            job = finished(1, "--model", model, "--pixels", "plain", "--algorithm", "allgather", "--steps", 1, data_folder=where)
            test = job.events("evaluation")[-1]
            self.assertEqual((test["accuracy"], test["top5"]), (0.1, 0.5))

    def test_every_role_counts_what_it_predicted(self):
        for processes, options in ((3, ("--algorithm", "ps")), (3, ("--algorithm", "difference")),
                                   (3, ("--algorithm", "fedavg", "--local-steps", 2)),
                                   (2, ("--algorithm", "local", "--local-steps", 2)), (2, ("--algorithm", "dpsgd"))):
            with self.subTest(options=options):
                job = finished(processes, *BRIEF, *options, "--epochs", 1, "--lr", 1e-30, data_folder=same_samples())
                test, steps = job.events("evaluation")[-1], job.events("step")
                self.assertEqual(test["training_accuracy"], test["accuracy"])
                self.assertAlmostEqual(sum(step["training_accuracy"] for step in steps) / len(steps), test["accuracy"])

    def test_batches_of_a_test(self):
        """Their size changes nothing but roundings, and is what `evaluate` has too."""
        saved = path("batches.safetensors")
        one, other = (finished(2, *BRIEF, "--steps", 4, "--test-batch", size, "--save", saved).events("evaluation")[-1]
                      for size in (7, 1000))
        self.assertEqual((one["accuracy"], one["top5"]), (other["accuracy"], other["top5"]))
        self.assertAlmostEqual(one["loss"], other["loss"], delta=1e-5)
        done = subprocess.run([TRAINER, "evaluate", saved, "--test-batch", "33"], capture_output=True, text=True, check=True)
        self.assertIn(f"top-5 {100 * one['top5']:.2f} %", done.stdout)

    def test_the_last_lines_have_the_figures(self):
        status, out, err = Job(2, *BRIEF, "--steps", 3).end()
        self.assertEqual(status, 0, err)
        self.assertRegex(out, r"\ntested after 3 steps: accuracy [\d.]+ %, loss [\d.]+, top-5 [\d.]+ %, training accuracy [\d.]+ %\n")
        self.assertRegex(out.splitlines()[-1], r"^last test: loss [\d.]+, top-5 [\d.]+ %, training accuracy [\d.]+ %$")

    def test_epochs_that_are_too_many(self):
        self.assertIn("4000000000 epochs of 80 steps are more than a run can have", refused(*BRIEF, "--epochs", 4_000_000_000))


class InitTest(unittest.TestCase):
    def test_a_run_starts_from_another_ones_weights(self):
        """Under another algorithm and other options: its first test is the other's last."""
        saved = path("init.safetensors")
        first = finished(2, *BRIEF, "--steps", 5, "--save", saved).events("evaluation")[-1]
        weights = read_safetensors(saved)
        plain = write_safetensors(path("plain.safetensors"), {name.removeprefix("weights."): weights[name] for name in weights
                                                              if name.startswith("weights.")})
        for file, options in ((saved, ("--algorithm", "allgather", "--optimizer", "adamw")), (plain, ("--algorithm", "dpsgd")),
                              (saved, ("--algorithm", "ps", "--down", "qsgd:bits=8"))):
            with self.subTest(file=file, options=options):
                job = finished(3, *BRIEF, *options, "--seed", 7, "--steps", 1, "--lr", 1e-30, "--init", file)
                test = job.events("evaluation")[-1]
                self.assertAlmostEqual(test["loss"], first["loss"], delta=1e-6 * first["loss"])
                self.assertEqual(job.events("start")[0]["init"], file)

    def test_statistics_of_batch_normalisation_come_with_them(self):
        saved, again = path("bn.safetensors"), path("bn-again.safetensors")
        options = ("--model", "resnet20", "--algorithm", "allgather", "--batch", 4, "--steps", 1)
        finished(1, *options, "--save", saved, data_folder=same_samples())
        tensors = read_safetensors(saved)
        for worker, value in (("worker1", 100), ("worker2", 200)):
            tensors[f"{worker}.buffers"] = numpy.full_like(tensors["worker1.buffers"], value)
        floats = {name: values for name, values in tensors.items() if values.dtype == numpy.float32}
        file = write_safetensors(path("bn-changed.safetensors"), floats)
        finished(1, *options, "--lr", 1e-30, "--init", file, "--save", again, data_folder=same_samples())
        # The mean of both, of which a step takes a tenth away.
        statistics = read_safetensors(again)["worker1.buffers"]
        self.assertGreater(statistics.min(), 130)
        self.assertGreater(140, numpy.median(statistics))
        del floats["worker1.buffers"], floats["worker2.buffers"]
        bare = write_safetensors(path("bn-bare.safetensors"), floats)
        self.assertIn("it has 0 running statistics of batch normalisation, the model ", refused(*options, "--init", bare, processes=1))

    def test_what_does_not_fit_is_named(self):
        saved = path("misfit.safetensors")
        finished(2, *BRIEF, "--steps", 1, "--save", saved)
        said = refused("--model", "lenet", "--steps", 1, "--init", saved)
        self.assertIn(f"--init: '{saved}' does not fit --model lenet: it has no 'weights.conv1.weight', 20 x 1 x 5 x 5; ", said)
        self.assertIn("; and 6 more [", said)
        other = write_safetensors(path("shape.safetensors"), {"fc.weight": numpy.zeros((10, 700), numpy.float32),
                                                              "fc.bias": numpy.zeros(10, numpy.float32),
                                                              "more": numpy.zeros((), numpy.float32)})
        said = refused(*BRIEF, "--steps", 1, "--init", other)
        self.assertIn("'fc.weight' is 10 x 700, the model's 10 x 784; the model has no 'more', a single number", said)
        self.assertIn(path("none.safetensors"), refused(*BRIEF, "--steps", 1, "--init", path("none.safetensors")))
        pathlib.Path(path("text.safetensors")).write_text("some text that is long enough")
        self.assertIn(f"--init: '{path('text.safetensors')}' is no .safetensors file, or damaged",
                      refused(*BRIEF, "--steps", 1, "--init", path("text.safetensors")))

    def test_a_run_goes_on_without_its_first_weights(self):
        """The job names them, and the checkpoint has what became of them."""
        saved, out = path("gone.safetensors"), path("init-run")
        finished(2, *BRIEF, "--steps", 2, "--save", saved)
        options = (*BRIEF, "--steps", 6, "--init", saved)
        whole = [event["loss"] for event in finished(2, *options).events("step")]
        status, _, err = Job(2, *options, "--stop-at", 3, "--out", out).end()
        self.assertEqual(status, 0, err)
        os.remove(saved)
        self.assertEqual(tomllib.loads(pathlib.Path(f"{out}/job.toml").read_text())["init"], saved)
        status, _, err = Job(2, "--job", f"{out}/job.toml", "--batch", 8, "--out", out, "--resume", out).end()
        self.assertEqual(status, 0, err)
        table = pathlib.Path(f"{out}/steps.csv").read_text().splitlines()
        column = table[0].split(",").index("loss")
        self.assertEqual([float(row.split(",")[column]) for row in table[1:]], whole)


if __name__ == "__main__":
    unittest.main()
