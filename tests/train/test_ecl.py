# SPDX-License-Identifier: Apache-2.0
"""Edge-consensus learning (pdmm, admm) on quadratics whose nodes want different things."""

import json
import math
import sys
import unittest

import numpy
from jobs import LONG, TRAINER, Job, finished, path, read_safetensors
from test_quadratic import write_quadratic

ELEMENTS, START, RATE = 6, 1000, 0.1
COMMON = ("--model", "quadratic", "--batch", 1, "--split", "duplicate:r=1", "--schedule", "constant", "--momentum", 0)
# Node a comes third: hosts order the nodes. Degrees differ, and with them the slots' numbers of edges. Two edges have a slot
# of each of their ends.
HOSTS = ("b", "c", "a", "d", "e")
EDGES = {("b", "c"): (0, 0), ("b", "a"): (1, 3), ("b", "d"): (2, 2), ("b", "e"): (0, 2), ("a", "d"): (1, 1)}
PERIOD = 4


def problem(nodes):
    """Node k has sample k: curvatures and pulls that differ; the optimum of all is 0."""
    random = numpy.random.default_rng(nodes)
    curvature, pull = random.uniform(0.5, 2, (nodes, ELEMENTS)), random.normal(0, 1, (nodes, ELEMENTS))
    return curvature, pull - pull.mean(0)


def quadratics(nodes):
    return write_quadratic(f"nodes-{nodes}.json", *problem(nodes), start=START)


def topology():
    edges = {name: {} for name in sorted(HOSTS)}
    for (a, b), (at_a, at_b) in EDGES.items():
        edges[a][b], edges[b][a] = at_a, at_b
    with open(path("topology.json"), "w", encoding="utf-8") as file:
        json.dump({"nodes": {name: {"round": PERIOD, "edges": of} for name, of in edges.items()}}, file)
    with open(path("hosts.json"), "w", encoding="utf-8") as file:
        json.dump({"hosts": [{"name": name, "addr": "localhost", "port": "10000"} for name in HOSTS]}, file)
    return "--graph", path("topology.json"), "--hosts", path("hosts.json")


def simulated(kept, steps, decay):
    """RMS distances of the nodes after each step, in double precision, from the formulas alone."""
    curvature, pull = problem(len(HOSTS))
    slots = {}
    for (a, b), of_ends in EDGES.items():
        slots[HOSTS.index(a), HOSTS.index(b)] = slots[HOSTS.index(b), HOSTS.index(a)] = of_ends
    neighbours = {i: [j for k, j in slots if k == i] for i in range(len(HOSTS))}
    sign = {(i, j): 1 if j < i else -1 for i, j in slots}

    def eta(i, j):
        degree = max(len(neighbours[i]), len(neighbours[j]))
        return 1 / (RATE * (PERIOD * degree + PERIOD - degree))

    x = numpy.full(curvature.shape, float(START))
    z = {edge: numpy.zeros(ELEMENTS) for edge in slots}
    distances = []
    for step in range(steps):
        for i, of in neighbours.items():
            gradient = curvature[i] * x[i] - pull[i] + decay * x[i]
            towards = sum(eta(i, j) * sign[i, j] * z[i, j] for j in of)
            x[i] = (x[i] / RATE - gradient + towards) / (1 / RATE + sum(eta(i, j) for j in of))
        y = {(i, j): z[i, j] - 2 * sign[i, j] * x[i] for i, j in slots}
        for i, j in slots:
            if step % PERIOD in slots[i, j]:
                z[i, j] = kept * z[i, j] + (1 - kept) * y[j, i]
        distances.append(float(numpy.sqrt((x * x).sum(1).mean())))
    return distances


class EclTest(unittest.TestCase):
    def distance(self, nodes, *options):
        """Of the farthest node at most, as a part of the distance at the start."""
        job = finished(nodes, *COMMON, *options, data_folder=quadratics(nodes))
        rms = job.events("evaluation")[-1]["distance"]
        return rms * math.sqrt(nodes) / (START * math.sqrt(ELEMENTS))

    def test_every_node_reaches_the_optimum_of_all(self):
        """Regular graphs and others, with and without steps between two exchanges. What edges a name stands for is
        test_graph.cpp's affair: a commit takes one of each kind an algorithm."""
        every = (("pdmm", 4, "ring", 4), ("pdmm", 5, "random:edges=6,seed=2", 1), ("admm", 4, "ring", 1),
                 ("admm", 5, "random:edges=6,seed=2", 4))
        more = (("pdmm", 5, "double-ring", 1), ("pdmm", 4, "star", 4), ("pdmm", 6, "torus", 1), ("admm", 6, "double-ring", 4),
                ("admm", 4, "star", 1))
        for algorithm, nodes, graph, period in every + more * LONG:
            with self.subTest(algorithm=algorithm, graph=graph, period=period):
                rate, steps = (0.3, 300) if period == 1 else (0.1, 900)
                self.assertLess(self.distance(nodes, "--algorithm", algorithm, "--graph", graph, "--period", period, "--lr",
                                              rate, "--steps", steps), 1e-8)

    def test_averages_alone_do_not(self):
        for graph in ("ring", "star"):
            self.assertGreater(self.distance(4, "--algorithm", "dsgd", "--graph", graph, "--lr", 0.3, "--steps", 300), 1e-5)

    def test_nor_do_nodes_that_wait_for_nobody_miss_it(self):
        """Sooner or later: how many messages are taken in so many steps is the machine's affair. What misses the optimum
        stays where it is, however long it runs. Round a cycle z keeps a flow that moves no x, as large as the first steps
        happened to make it, and x carries roundings of that."""
        saved = path("asynchronous.safetensors")
        every, more = (("pdmm", "star", 4), ("admm", "ring", 4)), (("admm", "star", 1), ("pdmm", "ring", 1))
        for algorithm, graph, period in every + more * LONG:
            with self.subTest(algorithm=algorithm, graph=graph):
                for steps in (3000, 9000, 27000):
                    distance = self.distance(4, "--algorithm", algorithm, "--graph", graph, "--period", period, "--lr", 0.1,
                                             "--steps", steps, "--asynchronous", "--save", saved)
                    flow = max(abs(z).max() for name, z in read_safetensors(saved).items() if ".z." in name)
                    near = 1e-8 if graph == "star" else 16 * flow * 2 ** -24 / START
                    if distance < near:
                        break
                self.assertLess(distance, near)

    def test_steps_are_those_of_the_formulas(self):
        """Through a topology with slots and a hosts file; then again from a checkpoint in the middle."""
        graph = topology()
        for algorithm, kept in (("pdmm", 0), ("admm", 0.5)):
            with self.subTest(algorithm=algorithm):
                options = (len(HOSTS), *COMMON, "--algorithm", algorithm, *graph, "--lr", RATE, "--steps", 20, "--weight-decay",
                           0.05, "--eval-every", 1)
                data, saved = quadratics(len(HOSTS)), path(f"{algorithm}.safetensors")

                def tests(*more, options=options, data=data):
                    return [event["distance"] for event in finished(*options, *more, data_folder=data).events("evaluation")]

                whole = tests()
                for ours, theirs in zip(whole, simulated(kept, 20, 0.05), strict=True):
                    self.assertLess(abs(ours - theirs), 1e-5 * theirs)
                self.assertEqual(tests("--save", saved, "--stop-at", 8), whole[:8])
                self.assertEqual(tests("--resume", saved), whole[8:])

    def test_codecs_of_little_error_come_close(self):
        self.assertLess(self.distance(4, "--algorithm", "pdmm", "--lr", 0.3, "--steps", 300, "--codec", "identity:dtype=bf16"),
                        1e-2)

    def test_an_optimiser_is_refused(self):
        for options in (COMMON[:-1] + (0.9,), (*COMMON[:-2], "--optimizer", "adam")):
            status, _, err = Job(2, "--algorithm", "pdmm", *options, "--steps", 2, data_folder=quadratics(2)).end()
            self.assertNotEqual(status, 0)
            self.assertIn("--momentum 0", err)


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
