# SPDX-License-Identifier: Apache-2.0
"""Decentralised runs of atomo-train: where theory says they go, and how they end."""

import json
import os
import pathlib
import signal
import sys
import time
import unittest

import numpy
import test_train
from jobs import LONG, TRAINER, Job, finished, folder, losses, path, read_safetensors

# A graph that is not regular, written in another order than the hosts': the weights are not all the same, and who has
# them is.
ORDER = ("dora", "bob", "ann", "carl")
SLOTS = {("ann", "bob"): 0, ("bob", "carl"): 1, ("carl", "dora"): 0, ("bob", "dora"): 1}
RATE = 0.2
STEPS = 250  # the slowest quadratic shrinks by 1 - 0.2 * 0.5 a step
NODES = len(ORDER)


def write_json(name, content):
    pathlib.Path(path(name)).write_text(json.dumps(content), encoding="utf-8")
    return path(name)


def topology(period):
    nodes = {name: {"round": period, "device": "cuda:0", "edges": {}} for name in sorted(ORDER)}
    for (a, b), slot in SLOTS.items():
        nodes[a]["edges"][b] = nodes[b]["edges"][a] = slot % period
    hosts = [{"name": name, "addr": "10.0.0.1", "port": "10000"} for name in ORDER]
    return ("--graph", write_json(f"topology{period}.json", {"nodes": nodes}),
            "--hosts", write_json("hosts.json", {"hosts": hosts}))


def weights(slot=None):
    """Metropolis weights, of all edges or of those with a slot."""
    degree = {name: sum(name in edge for edge in SLOTS) for name in ORDER}
    matrix = numpy.eye(NODES)
    for (a, b), at in SLOTS.items():
        if slot in (None, at):
            i, j, w = ORDER.index(a), ORDER.index(b), 1 / (1 + max(degree[a], degree[b]))
            matrix[i, j] += w
            matrix[j, i] += w
            matrix[i, i] -= w
            matrix[j, j] -= w
    return matrix


class Quadratics:
    """One quadratic a node, 1/2 sum a x^2 - sum c x: node k has sample k alone."""

    def __init__(self, nodes, elements=40):
        random = numpy.random.default_rng(nodes)
        self.a = random.uniform(0.5, 2, (nodes, elements))
        self.c = random.normal(0, 1, (nodes, elements))
        samples = [{"curvature": list(a), "pull": list(c)} for a, c in zip(self.a, self.c, strict=True)]
        self.data = write_json(f"quadratics{nodes}.json",
                               {"rows": 4, "columns": elements // 4, "samples": samples})
        self.nodes = nodes

    def job(self, algorithm, steps, *options, start=Job):
        return start(self.nodes, "--algorithm", algorithm, "--model", "quadratic", "--batch", 1, "--split",
                     "duplicate:r=1", "--momentum", 0, "--schedule", "constant", "--lr", RATE, "--steps", steps,
                     *options, data_folder=self.data)

    def end(self, algorithm, steps, *options):
        """Where the nodes end, a row each."""
        saved = path(f"quadratic-{len(os.listdir(folder.name))}.safetensors")
        self.job(algorithm, steps, "--save", saved, *options, start=finished)
        return points(saved, self.nodes)

    def optimum(self):
        return self.c.sum(axis=0) / self.a.sum(axis=0)

    def fixed_point(self, rounds, decay=0.0):
        """Of x <- after @ (before @ x - RATE ((a + decay) x - c)) for the (before, after) of `rounds` in turn."""
        found = []
        for a, c in zip(self.a.T, self.c.T, strict=True):
            matrix, shift = numpy.eye(self.nodes), numpy.zeros(self.nodes)
            for before, after in rounds:
                step = after @ (before - RATE * numpy.diag(a + decay))
                matrix, shift = step @ matrix, step @ shift + after @ (RATE * c)
            found.append(numpy.linalg.solve(numpy.eye(self.nodes) - matrix, shift))
        return numpy.array(found).T


def points(saved, nodes):
    tensors = read_safetensors(saved)
    return numpy.array([tensors[f"worker{k + 1}.own.weights"] for k in range(nodes)])


ONE = numpy.eye(NODES)


class GraphsTest(unittest.TestCase):
    def same(self, found, expected, roundings=4):
        """A step rounds a few times, by 2^-24 of the largest value, and later ones shrink that by a tenth each."""
        bound = roundings * 10 * 2**-24 * abs(expected).max()
        self.assertLessEqual(abs(found - expected).max(), bound)

    def biased(self, point, quadratics):
        """Far from the optimum, as theory says."""
        self.assertGreater(abs(point - quadratics.optimum()).max(), 0.1)

    def test_dpsgd_reaches_the_biased_point_of_theory(self):
        quadratics = Quadratics(NODES)
        for decay in (0, 0.3):
            point = quadratics.fixed_point([(weights(), ONE)], decay)
            found = quadratics.end("dpsgd", STEPS, *topology(1), "--weight-decay", decay)
            self.same(found, point)
            self.biased(found, quadratics)

    def test_dsgd_reaches_the_biased_point_of_theory(self):
        quadratics = Quadratics(NODES)
        point = quadratics.fixed_point([(ONE, weights(0)), (ONE, weights(1))])
        found = quadratics.end("dsgd", STEPS, *topology(2))
        self.same(found, point)
        self.biased(found, quadratics)

    def test_asynchronous_dsgd_reaches_that_of_the_synchronous(self):
        """A step brings all nodes nearer to it, whichever messages a node has seen. One is held up on the way, so that
        the others go on without it."""
        quadratics = Quadratics(NODES)
        saved = path("asynchronous.safetensors")
        job = quadratics.job("dsgd", 4000, *topology(1), "--asynchronous", "--save", saved)
        job.wait_for_steps(5)
        process = job.process_of(1)
        os.kill(process, signal.SIGSTOP)
        time.sleep(0.2)
        os.kill(process, signal.SIGCONT)
        status, _, err = job.end()
        self.assertEqual(status, 0, err)
        self.same(points(saved, NODES), quadratics.fixed_point([(ONE, weights())]))

    def test_alone_everybody_finds_an_optimum_of_his_own(self):
        quadratics = Quadratics(2)
        self.same(quadratics.end("alone", STEPS), quadratics.c / quadratics.a)

    def test_choco_converges_scaled_and_diverges_unscaled(self):
        """With x^ = x nothing is lost any more: the point is that of gossip with the step gamma."""
        quadratics = Quadratics(NODES)
        for codec, gamma in (("qsgd:bits=2,norm=l2,bucket=64", 0.1), ("randomk:keep=0.1", 0.2)):
            mixed = ONE + gamma * (weights() - ONE)
            options = (*topology(1), "--codec", codec, "--gossip-step", gamma)
            with self.subTest(codec=codec):
                self.same(quadratics.end("choco", 600, *options), quadratics.fixed_point([(ONE, mixed)]))
                status, _, err = quadratics.job("choco", 1500, *options, "--codec-scale", 1).end()
                self.assertNotEqual(status, 0)
                self.assertIn("the training diverged", err)

    def test_choco_takes_the_step_of_theory(self):
        """On a complete graph of two W has the eigenvalues 1 and 0: gap = beta = 1."""
        quadratics = Quadratics(2)
        delta = 1 / (1 + (1.5 / 0.5 - 1))  # randomk keeps two thirds of what it is told at least
        gamma = delta / (16 + 1 + 4 + 2 - 8 * delta)
        mixed = numpy.eye(2) * (1 - gamma / 2) + (1 - numpy.eye(2)) * gamma / 2
        self.same(quadratics.end("choco", 600, "--codec", "randomk:keep=0.5"),
                  quadratics.fixed_point([(numpy.eye(2), mixed)]))

    def test_a_complete_graph_of_equal_data_is_an_all_gather(self):
        options = (3, "--model", "logistic", "--steps", 6, "--batch", 8, "--split", "duplicate:r=3", "--weight-decay", 0.01)
        alike = losses(*options, "--algorithm", "dpsgd", "--graph", "complete")
        for a, b in zip(alike, losses(*options, "--algorithm", "allgather"), strict=True):
            self.assertLessEqual(abs(a - b), 1e-5 * abs(b))  # a sum of three equal numbers over three is rounded

    def test_one_node_trains_as_if_alone_and_two_have_one_edge(self):
        options = ("--model", "logistic", "--steps", 6, "--batch", 8)
        single = losses(1, *options, "--algorithm", "allgather")
        for algorithm in ("dpsgd", "dsgd", "choco"):
            job = finished(1, *options, "--algorithm", algorithm)
            self.assertEqual([event["loss"] for event in job.events("step")], single)
            self.assertEqual(job.events("end")[0]["bytes_per_step"], 0)
        for nodes, edges in ((2, 1), (4, 2)):
            for event in finished(nodes, *options, "--algorithm", "dpsgd").events("step"):
                message = event["bytes_per_worker"]
                self.assertGreater(message, 4 * 7850)
                self.assertEqual(event["traffic_per_worker"], {"sent": edges * message, "received": edges * message})

    def test_statistics_are_mixed(self):
        """With two nodes b_i <- 0.9 b_i + 0.1 s_i + (b_j - b_i) / 2. Where weights do not move, the nodes' distance d
        after two steps follows from that of nodes alone, e after one and after two: d = e(2) - e(1)."""
        options = (2, "--model", "resnet20", "--batch", 2, "--lr", 1e-30, "--steps", 3, "--eval-samples", 1)

        def statistics(algorithm, steps):
            saved = path(f"statistics-{algorithm}-{steps}.safetensors")
            finished(*options, "--algorithm", algorithm, "--stop-at", steps, "--save", saved)
            tensors = read_safetensors(saved)
            return numpy.array([tensors[f"worker{k}.buffers"].astype(float) for k in (1, 2)])

        once, twice, mixed = statistics("alone", 1), statistics("alone", 2), statistics("dpsgd", 2)
        expected = (twice[0] - twice[1]) - (once[0] - once[1])
        self.assertGreater(abs(expected).max(), 1e-3)
        # Some ten roundings, each by 2^-24 of the largest value.
        self.assertLessEqual(abs((mixed[0] - mixed[1]) - expected).max(), 10 * 2**-24 * abs(twice).max())

    def test_the_mean_model_is_tested_and_kept(self):
        saved = path("mean.safetensors")
        job = finished(3, "--algorithm", "alone", "--model", "logistic", "--steps", 6, "--batch", 4, "--split",
                       "classes:k=2,shift=3", "--save", saved)
        test = job.events("evaluation")[-1]
        self.assertGreater(test["accuracy_of_mean"], test["accuracy"] + 0.05)  # a node knows two classes
        tensors = read_safetensors(saved)
        layers = sorted((key for key in tensors if key.startswith("weights.")), reverse=True)  # the weight, the bias
        mean = numpy.concatenate([tensors[key].ravel() for key in layers])
        own = points(saved, 3).astype(float)
        self.assertLessEqual(abs(mean - own.mean(axis=0)).max(), 2**-22 * abs(own).max())
        self.assertGreater(abs(own[0] - own[1]).max(), 1e-3)

    def test_resume_goes_on_to_the_same_curve(self):
        resumed = test_train.CurvesTest.resumed
        options = ("--model", "logistic", "--steps", 7, "--batch", 4, "--codec", "qsgd:bits=4", "--eval-every", 3)
        resumed(self, 3, *options, "--algorithm", "dsgd", "--period", 2)
        resumed(self, 3, *options, "--algorithm", "choco", "--optimizer", "adamw", "--lr", 0.001)
        # What every layer has alike; batch normalisation is test_statistics_are_mixed's, and resumed where LONG.
        resumed(self, 2, "--algorithm", "dpsgd", "--model", "resnet20" if LONG else "logistic", "--steps", 6, "--batch", 2,
                "--codec", "atomo:bits=4", "--eval-samples", 5)

    def test_wrong_usage_is_named(self):
        for algorithm, options, expected in (("dpsgd", ("--graph", "rign"), "'rign' is neither a file nor one of ring"),
                                             ("dpsgd", ("--graph", "torus"), "torus with 2 processes: .* not a prime"),
                                             ("dpsgd", topology(1), "has 4 nodes, the run has 2 processes"),
                                             ("dpsgd", ("--asynchronous",), "goes with --algorithm dsgd"),
                                             ("choco", ("--codec", "atomo:bits=1"), "omega.*--codec-scale"),
                                             ("choco", ("--codec", "sign"), "--gossip-step")):
            with self.subTest(algorithm=algorithm, options=options):
                status, _, err = Job(2, "--algorithm", algorithm, "--model", "logistic", "--steps", 2, *options).end()
                self.assertNotEqual(status, 0)
                self.assertRegex(err, expected)


class GraphFaultsTest(unittest.TestCase):
    hurt = test_train.FaultsTest.hurt

    def test_killed_neighbour(self):
        self.assertIn("has died", self.hurt(signal.SIGKILL, 2, "worker 3", "dpsgd", 4))

    def test_frozen_neighbour(self):
        self.assertIn("no sign of life", self.hurt(signal.SIGSTOP, 0, "worker 1", "choco", 3))

    def test_refused_payload(self):
        for algorithm in ("dpsgd", "choco"):
            with self.subTest(algorithm=algorithm):
                status, _, err = Job(3, "--algorithm", algorithm, "--model", "logistic", "--steps", 50, "--codec",
                                     "qsgd:bits=4", "--corrupt-payload-at", 7).end(60)
                self.assertNotEqual(status, 0)
                self.assertRegex(err, r"worker 1 \(rank 0, .*\) sent a payload that is refused.*step 7: "
                                      "the checksum does not match")

    def test_interruption_stops_all_behind_the_same_step(self):
        saved = path("interrupted.safetensors")
        options = ("--algorithm", "dsgd", "--model", "logistic", "--steps", 1_000_000, "--lr", 1e-3)
        job = Job(3, *options, "--save", saved)
        job.wait_for_steps(10)
        job.process.send_signal(signal.SIGUSR1)
        _, out, err = job.end()
        done = job.events("end")[0]["steps"]
        self.assertIn(f"interrupted after {done}", out, err)
        self.assertEqual([event["step"] for event in job.events("step")], list(range(done)))
        again = finished(3, *options, "--resume", saved, "--stop-at", done + 3)
        self.assertEqual([event["step"] for event in again.events("step")], [done, done + 1, done + 2])


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
