# SPDX-License-Identifier: Apache-2.0
"""Decentralised runs that go on without lost nodes: against a plain re-computation from what the log says of them."""

import json
import os
import signal
import sys
import time
import unittest

import numpy
from jobs import TRAINER, Job, path, read_safetensors
from test_quadratic import write_quadratic

NODES, ELEMENTS, RATE, START = 5, 6, 0.02, 4
TIMEOUT_SECONDS = 1
PERIOD = 3  # of pdmm, whose weights depend on degrees only where edges have slots
CHOCO_STEP = 0.3
# Nodes count from 0. Without node 4, degrees and so weights of edges change that it is not an end of.
NEIGHBOURS_OF_4 = {1, 3}
EDGES = {(0, 1), (1, 2), (2, 3), (0, 2), (1, 4), (3, 4)}
# Without node 2, two parts are left.
PATH = {(0, 1), (1, 2), (2, 3), (3, 4)}


def problem():
    random = numpy.random.default_rng(7)
    return random.uniform(0.5, 2, (NODES, ELEMENTS)), random.normal(0, 1, (NODES, ELEMENTS))


def slots(edges, period):
    return {edge: number % period for number, edge in enumerate(sorted(edges))}


def topology(name, edges, period=1):
    nodes = {str(k + 1): {"round": period, "edges": {}} for k in range(NODES)}
    for (a, b), slot in slots(edges, period).items():
        nodes[str(a + 1)]["edges"][str(b + 1)] = nodes[str(b + 1)]["edges"][str(a + 1)] = slot
    with open(path(name), "w", encoding="utf-8") as file:
        json.dump({"nodes": nodes}, file)
    return path(name)


def degrees(edges):
    return [sum(k in edge for edge in edges) for k in range(NODES)]


def metropolis(edges):
    degree, matrix = degrees(edges), numpy.zeros((NODES, NODES))
    for a, b in edges:
        matrix[a, b] = matrix[b, a] = 1 / (1 + max(degree[a], degree[b]))
    return matrix


class Recomputed:
    """The steps in double precision. An edge to the lost node ends at the step that its other end says in the log; from the
    step on that the log says, all weights are those of the graph without it."""

    def __init__(self, edges, lost):
        self.a, self.c = problem()
        self.edges, self.node = edges, lost["worker"] - 1
        self.dropped = {int(worker) - 1: step for worker, step in lost["dropped_from"].items()}
        self.reweighted = lost["reweighted_from"]
        self.x = numpy.full((NODES, ELEMENTS), float(START))
        self.z = {}
        self.left = [k for k in range(NODES) if k != self.node]

    def edges_at(self, step):
        return self.edges if step < self.reweighted else {edge for edge in self.edges if self.node not in edge}

    def counts(self, i, j, step):
        """Whether node i counts the message of j."""
        return j != self.node or step < self.dropped.get(i, self.reweighted)

    def mixed(self, step):
        weights, change = metropolis(self.edges_at(step)), numpy.zeros_like(self.x)
        for i in range(NODES):
            for j in range(NODES):
                if weights[i, j] and self.counts(i, j, step):
                    change[i] += weights[i, j] * (self.x[j] - self.x[i])
        return change

    def losses(self):
        """Of the mean over all nodes and over those left."""
        each = (self.a * self.x ** 2 / 2 - self.c * self.x).sum(1)
        return each.mean(), each[self.left].mean()

    def dpsgd(self, step):
        self.x = self.x + self.mixed(step) - RATE * (self.a * self.x - self.c)

    def choco(self, step):
        """Without a codec the copies are the weights themselves."""
        self.x = self.x - RATE * (self.a * self.x - self.c)
        self.x = self.x + CHOCO_STEP * self.mixed(step)

    def dsgd(self, step):
        self.x = self.x - RATE * (self.a * self.x - self.c)
        self.x = self.x + self.mixed(step)

    @staticmethod
    def eta(degree):
        return 1 / (RATE * (PERIOD * degree + PERIOD - degree))

    def pdmm(self, step):
        edges = self.edges_at(step)
        degree, eta = degrees(edges), {}
        for a, b in edges:
            for i, j in ((a, b), (b, a)):
                if not self.counts(i, j, step - 1):
                    continue  # it was dropped, and its dual with it, in an exchange before
                eta[i, j] = self.eta(max(degree[i], degree[j]))
                self.z.setdefault((i, j), numpy.zeros(ELEMENTS))
        sign = {(i, j): 1 if j < i else -1 for i, j in eta}
        x = self.x.copy()
        for i in range(NODES):
            own = [edge for edge in eta if edge[0] == i]
            towards = sum(eta[edge] * sign[edge] * self.z[edge] for edge in own)
            gradient = self.a[i] * x[i] - self.c[i]
            self.x[i] = (x[i] / RATE - gradient + towards) / (1 / RATE + sum(eta[edge] for edge in own))
        y = {(i, j): self.z[i, j] - 2 * sign[i, j] * self.x[i] for i, j in eta}
        due = {edge for edge, slot in slots(self.edges, PERIOD).items() if slot == step % PERIOD}
        for i, j in eta:
            if (min(i, j), max(i, j)) in due and (j, i) in y and self.counts(i, j, step):
                self.z[i, j] = y[j, i]


class LostNodesTest(unittest.TestCase):
    def job(self, algorithm, graph, *more, goes_on=True):
        data = write_quadratic("lost-nodes.json", *problem(), start=START)
        options = ("--on-lost-node", "go-on", "--timeout", TIMEOUT_SECONDS) if goes_on else ()
        return Job(NODES, "--algorithm", algorithm, "--graph", graph, "--model", "quadratic", "--batch", 1, "--split",
                   "duplicate:r=1", "--momentum", 0, "--schedule", "constant", "--lr", RATE, "--steps", 1_000_000, *options,
                   *more, data_folder=data, launcher=("--enable-recovery",) if goes_on else ())

    def wait_for(self, job, what):
        deadline = time.monotonic() + 60
        while not what():
            self.assertIsNone(job.process.poll(), "the run has ended")
            self.assertLess(time.monotonic(), deadline, "nothing has happened for a minute")
            time.sleep(0.05)

    def lose(self, algorithm, edges, node, how, *more):
        """Loses a node and goes on for some steps. The job's events, and what it said."""
        saved = path(f"lost-{algorithm}.safetensors")
        graph = topology(f"{algorithm}.json", edges, PERIOD if algorithm == "pdmm" else 1)
        job = self.job(algorithm, graph, "--save", saved, *more)
        job.wait_for_steps(10)
        os.kill(job.process_of(node), how)
        self.wait_for(job, lambda: job.events("lost"))
        lost, = job.events("lost")
        self.wait_for(job, lambda: len(job.events("step")) > lost["reweighted_from"] + 30)
        job.process.send_signal(signal.SIGUSR1)
        _, out, err = job.end(60)
        said = [line for line in err.splitlines() if line.startswith("atomo-train:") and "asking" not in line]
        self.assertEqual(len(said), 1, err)
        self.assertRegex(said[0], rf"worker {node + 1} \(rank {node}, .*: the others go on without it")
        self.assertEqual(lost["worker"], node + 1)
        self.check_steps(job, Recomputed(edges, lost), algorithm, saved)
        return job, lost, out, saved

    def check_steps(self, job, recomputed, algorithm, saved):
        steps = job.events("step")
        self.assertEqual([event["step"] for event in steps], list(range(len(steps))))
        for event in steps:
            of_all, of_left = recomputed.losses()
            nearer = min((of_all, of_left) if event["step"] < recomputed.reweighted else (of_left,),
                         key=lambda loss: abs(loss - event["loss"]))
            self.assertLess(abs(event["loss"] - nearer), 1e-4 * max(1, abs(nearer)), event)
            getattr(recomputed, algorithm)(event["step"])
        tensors = read_safetensors(saved)
        for k in recomputed.left:
            found = tensors[f"worker{k + 1}.own.weights"]
            self.assertLess(abs(found - recomputed.x[k]).max(), 2e-5 * START, k)
        self.assertNotIn(f"worker{recomputed.node + 1}.own.weights", tensors)
        mean = recomputed.x[recomputed.left].mean(0)
        layer, = [key for key in tensors if key.startswith("weights.")]
        self.assertLess(abs(tensors[layer].ravel() - mean).max(), 2e-5 * START)

    def test_dpsgd_goes_on_without_a_killed_node(self):
        _, lost, out, _ = self.lose("dpsgd", EDGES, 4, signal.SIGKILL, "--eval-every", 50)
        self.assertEqual({int(worker) - 1 for worker in lost["dropped_from"]}, NEIGHBOURS_OF_4)
        self.assertEqual(lost["parts"], [[1, 2, 3, 4]])
        self.assertIn("lost worker 5 (rank 4", out)

    def test_choco_goes_on_without_a_frozen_node_which_begins_afresh_when_resumed(self):
        job, _, _, saved = self.lose("choco", EDGES, 4, signal.SIGSTOP, "--gossip-step", CHOCO_STEP)
        done = job.events("end")[0]["steps"]
        again = self.job("choco", path("choco.json"), "--gossip-step", CHOCO_STEP, "--resume", saved, "--stop-at", done + 3)
        status, _, err = again.end(60)
        self.assertEqual(status, 0, err)
        # It begins at the mean of the others, which is where they are, nearly.
        a, c = problem()
        tensors = read_safetensors(saved)
        x = [tensors[f"worker{k + 1}.own.weights"].astype(float) for k in range(NODES - 1)]
        x = numpy.array([*x, numpy.mean(x, 0)])
        self.assertAlmostEqual(again.events("step")[0]["loss"], (a * x ** 2 / 2 - c * x).sum(1).mean(), places=4)

    def test_pdmm_drops_the_edge_and_its_dual_and_the_parts_go_on(self):
        _, lost, out, _ = self.lose("pdmm", PATH, 2, signal.SIGKILL)
        self.assertEqual(lost["parts"], [[1, 2], [4, 5]])
        self.assertIn("the graph has fallen apart, each part goes on by itself: workers 1, 2 | 4, 5", out)

    def test_nothing_goes_on_without_rank_0(self):
        for how, word in ((signal.SIGKILL, "has died"), (signal.SIGSTOP, "no sign of life")):
            job = self.job("dsgd", topology("dsgd.json", EDGES))
            job.wait_for_steps(10)
            os.kill(job.process_of(0), how)
            _, _, err = job.end(60)
            said = [line for line in err.splitlines() if line.startswith("atomo-train:") and "asking" not in line]
            self.assertEqual(len(said), 1, err)
            self.assertRegex(said[0], rf"worker 1 \(rank 0, .*{word}.* cannot go on without rank 0")

    def test_what_a_cut_link_holds_up_counts_when_it_comes(self):
        options = ("--stop-at", 30)
        graph = topology("cut.json", EDGES)
        undisturbed = self.job("dpsgd", graph, *options, goes_on=False)
        self.assertEqual(undisturbed.end(60)[0], 0)
        cut = self.job("dpsgd", graph, *options, "--cut-link", "1,4", "--cut-after", 0, "--cut-for", 1.5)
        status, _, err = cut.end(60)
        self.assertEqual(status, 0, err)
        self.assertIn("is back after", err)
        self.assertEqual([event["loss"] for event in cut.events("step")],
                         [event["loss"] for event in undisturbed.events("step")])
        self.assertGreater(cut.events("step")[0]["seconds"], 1)


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
