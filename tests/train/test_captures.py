# SPDX-License-Identifier: Apache-2.0
"""What a run keeps at more than one step: gradients and checkpoints; scores of nodes; networks with dropout."""

import csv
import json
import os
import subprocess
import unittest

import numpy

from jobs import TRAINER, Job, finished, losses, path, read_safetensors

BRIEF = ("--model", "logistic", "--batch", 8)


class CapturesTest(unittest.TestCase):
    def test_gradients_of_every_so_many_steps(self):
        for processes, options, workers in ((2, ("--algorithm", "allgather"), 2), (3, ("--algorithm", "ps"), 2)):
            gradients = path(f"every-{options[-1]}")
            finished(processes, *BRIEF, *options, "--steps", 8, "--dump-gradients", gradients, "--at", 1, "--every", 3)
            whose = [*(f"worker{k + 1}" for k in range(workers)), "mean"]
            self.assertEqual(sorted(os.listdir(gradients)),
                             sorted(f"step{step}-{who}.safetensors" for step in (1, 4, 7) for who in whose))
            for step in (1, 7):
                mean, *own = (read_safetensors(f"{gradients}/step{step}-{who}.safetensors")["fc.weight"]
                              for who in ("mean", *whose[:workers]))
                numpy.testing.assert_allclose(mean, numpy.mean(own, axis=0), rtol=1e-4, atol=1e-7)
        rounds = path("every-rounds")
        finished(3, *BRIEF, "--algorithm", "fedavg", "--local-steps", 3, "--steps", 9, "--dump-gradients", rounds, "--at", 0,
                 "--every", 4)
        means = sorted(name for name in os.listdir(rounds) if name.endswith("-mean.safetensors"))
        self.assertEqual(means, [f"step{step}-mean.safetensors" for step in (0, 4, 8)])

    def test_gradients_that_are_clipped(self):
        """Each worker's has the bound as its norm and its direction of before, under any loss scale, and is what
        goes on its way. A bound above the norms changes nothing."""
        for processes, algorithm in ((2, "allgather"), (3, "ps")):
            dumped = {}
            for most in (0, 0.01, 1e6):
                folder = path(f"clipped-{algorithm}-{most}")
                finished(processes, *BRIEF, "--algorithm", algorithm, "--clip-norm", most, "--loss-scale", 8, "--steps", 1,
                         "--dump-gradients", folder, "--at", 0)
                dumped[most] = [numpy.concatenate([read_safetensors(f"{folder}/step0-{who}.safetensors")[layer].ravel()
                                                   for layer in ("fc.weight", "fc.bias")]) for who in ("worker1", "worker2", "mean")]
            for plain, same in zip(dumped[0], dumped[1e6]):
                numpy.testing.assert_array_equal(plain, same)
            for plain, clipped in zip(dumped[0][:2], dumped[0.01]):
                numpy.testing.assert_allclose(clipped, plain * (8 * 0.01 / numpy.linalg.norm(plain)), rtol=1e-5, atol=1e-9)
            numpy.testing.assert_allclose(dumped[0.01][2], (dumped[0.01][0] + dumped[0.01][1]) / 2, rtol=1e-4, atol=1e-8)

    def test_a_memory_is_of_gradients_that_are_clipped(self):
        """What goes on its way are the largest entries of all that is left of them, under a loss scale that begins later."""
        keep, scales, most, captured = 40, (1, 1, 8, 8), 0.01, path("clipped-memory")
        finished(2, *BRIEF, "--algorithm", "allgather", "--codec", f"ef+topk:keep={keep}", "--clip-norm", most, "--loss-scale", 8,
                 "--loss-scale-from", 2, "--steps", len(scales), "--dump-gradients", captured, "--at", 0, "--every", 1)
        memories = [{"fc.weight": 0, "fc.bias": 0} for _ in range(2)]
        for step, scale in enumerate(scales):
            *own, mean = (read_safetensors(f"{captured}/step{step}-{who}.safetensors") for who in ("worker1", "worker2", "mean"))
            sent = {layer: numpy.zeros_like(part) for layer, part in mean.items()}
            for memory, gradient in zip(memories, own):
                norm = numpy.sqrt(sum((part**2).sum() for part in gradient.values()))
                self.assertAlmostEqual(norm / scale, most, delta=1e-5 * most)
                for layer, part in gradient.items():
                    x = part / scale + memory[layer]
                    kept = numpy.abs(x) >= numpy.sort(numpy.abs(x), axis=None)[-min(keep, x.size)]
                    sent[layer] += x * kept / 2
                    memory[layer] = x * ~kept
            for layer, part in mean.items():
                numpy.testing.assert_allclose(part / scale, sent[layer], rtol=1e-4, atol=1e-8)

    def test_checkpoints_that_are_kept(self):
        out = path("kept")
        options = (*BRIEF, "--algorithm", "allgather", "--steps", 7, "--save-every", 3, "--keep-checkpoints", "--out", out)
        status, _, err = Job(2, *options).end()
        self.assertEqual(status, 0, err)
        names = sorted(name for name in os.listdir(out) if name.startswith("checkpoint"))
        self.assertEqual(names, [*(f"checkpoint-step{step}.safetensors" for step in (3, 6, 7)), "checkpoint.safetensors"])
        for step in (3, 6, 7):
            done = subprocess.run([TRAINER, "evaluate", f"{out}/checkpoint-step{step}.safetensors"], capture_output=True,
                                  text=True, check=True)
            self.assertIn(f"tested after {step} steps", done.stdout)

    def test_each_node_has_a_score_and_losses(self):
        out = path("losses")
        finished(3, *BRIEF, "--algorithm", "dpsgd", "--steps", 4, "--out", out)
        with open(f"{out}/log.jsonl", encoding="utf-8") as file:
            events = [json.loads(line) for line in file]
        for kind, what, mean, count in (("evaluation", "accuracy_of_nodes", "accuracy", 1), ("evaluation", "loss_of_nodes", "loss", 1),
                                        ("step", "loss_of_nodes", "loss", 4)):
            of_kind = [event for event in events if event["event"] == kind]
            self.assertEqual(len(of_kind), count)
            for event in of_kind:
                self.assertEqual(sorted(event[what]), ["0", "1", "2"])
                self.assertAlmostEqual(sum(event[what].values()) / 3, event[mean])
        for table, steps in (("steps.csv", 4), ("evaluations.csv", 1)):
            with open(f"{out}/{table}", newline="") as file:
                rows = list(csv.DictReader(file))
            self.assertEqual(len(rows), steps)
            self.assertTrue(all(float(row[f"loss_of_nodes.{node}"]) > 0 for row in rows for node in range(3)))
        self.assertNotIn("loss_of_nodes", finished(2, *BRIEF, "--algorithm", "allgather", "--steps", 1).events("step")[0])

    def test_dropout_is_repeated_and_resumed(self):
        """Its draws are another worker's and step's own, and a function of the seed."""
        saved = path("dropout.safetensors")
        options = ("--model", "vgg11", "--norm", "group:32", "--algorithm", "allgather", "--batch", 1, "--steps", 3, "--lr", 0.001,
                   "--eval-samples", 1)
        whole = losses(1, *options, "--stop-at", 3)
        finished(1, *options, "--stop-at", 2, "--save", saved)
        self.assertEqual(losses(1, *options, "--resume", saved, "--stop-at", 3), whole[2:])

    def test_options_that_are_wrong_are_named(self):
        for options, said in ((("--every", 2), "--every: needs --dump-gradients FOLDER"),
                              (("--keep-checkpoints",), "--keep-checkpoints: needs --save-every N"),
                              (("--model", "resnet21"), "--model: there is no model 'resnet21'; there are logistic, mlp"),
                              (("--model", "lenet", "--norm", "batch"), "--norm: lenet has no normalisation"),
                              (("--image-size", 32, "--model", "transformer"), "--image-size: goes with models of images only"),
                              (("--model", "mlp:hidden=3,4"), "hidden is '3,4'")):
            with self.subTest(options=options):
                done = subprocess.run([TRAINER, "--check", *map(str, options)], capture_output=True, text=True)
                self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
