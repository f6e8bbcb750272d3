# SPDX-License-Identifier: Apache-2.0
"""The threads of a process: how many there are, what they do while the network computes, and that results do not depend
on them."""

import json
import os
import pathlib
import subprocess
import unittest

from jobs import LONG, Job, data, finished, launch, path
from test_use import lines_of

BRIEF = ("--model", "logistic", "--data", data, "--batch", 8, "--steps", 1, "--algorithm", "allgather")
WORKER = 2  # the rank whose time line is looked at
SMALL = ("--model", "lenet", "--batch", 4, "--steps", 3, "--eval-samples", 10)


def story(processes, *options):
    """What every step computed and sent."""
    events = finished(processes, *SMALL, *options).events("step")
    return [(e["loss"], e["bytes_per_worker"], e["traffic_per_worker"]) for e in events]


class ThreadsTest(unittest.TestCase):
    def threads(self, processes, *options, cores=None):
        log = path("threads.jsonl")
        before = ["taskset", "--cpu-list", ",".join(map(str, cores))] if cores else []
        subprocess.run([*before, *launch(processes), *map(str, BRIEF), "--log", log, *map(str, options)], check=True,
                       capture_output=True, timeout=600)
        return lines_of(log)[0]["threads"]

    def test_a_process_has_its_part_of_the_cores(self):
        cores = sorted(os.sched_getaffinity(0))
        self.assertEqual(self.threads(1, cores=cores[:1]), 1)
        self.assertEqual(self.threads(1, "--threads", 3, cores=cores[:1]), 3)
        for processes in (1, 2, len(cores) + 1):  # a limit of time may leave less than all cores
            self.assertIn(self.threads(processes), range(1, max(2, len(cores) // processes + 1)))

    def test_results_do_not_depend_on_them(self):
        """Nor those of an all-gather, a ring and two shots, which BesideTest looks at."""
        for processes, *options in ((3, "--algorithm", "ps", "--codec", "atomo:bits=0.5", "--down", "qsgd:bits=8"),
                                    (2, "--algorithm", "local", "--local-steps", 2, "--codec", "topk:keep=0.1"),
                                    (2, "--algorithm", "powersgd", "--residual", "atomo:bits=0.5"),
                                    (2, "--algorithm", "dpsgd", "--codec", "qsgd:bits=8+blosc")):
            with self.subTest(options):
                self.assertEqual(story(processes, *options, "--threads", 3), story(processes, *options, "--threads", 1))


class BesideTest(unittest.TestCase):
    def assert_encodes_early(self, trace, threads, leaves_early):
        """Worker 2 encodes layers or shards behind their gradients, on one thread before the last of them is there."""
        events = [e for e in json.loads(pathlib.Path(trace).read_text())["traceEvents"] if e["pid"] == WORKER]
        gradients = {e["args"]["layer"]: e["ts"] for e in events if e.get("cat") == "gradient"}
        self.assertEqual(len(gradients), 8)
        encodes = sorted(((e["ts"], e["args"]["layer"], e["tid"]) for e in events if e.get("cat") == "encode"))
        for begin, layer, _ in encodes:
            self.assertGreaterEqual(begin, gradients.get(layer, min(gradients.values())), layer)
        self.assertEqual(any(thread == 1 for *_, thread in encodes), threads > 1)
        if threads == 1 and leaves_early:  # another thread begins when the machine has a core for it
            self.assertLess(encodes[0][0], max(gradients.values()))

    def test_what_is_sent_is_the_same_and_is_encoded_early(self):
        """Each way in which what comes out of back-propagation is sent. Differences go as gradients to a server, and two shots
        begin as a ring does: they are compared where the long tests run."""
        ways = ((3, "--algorithm", "ps", "--double-buffer", "--codec", "atomo:bits=0.5"),
                (3, "--algorithm", "allgather", "--codec", "atomo:bits=0.5"),
                (3, "--algorithm", "ring", "--codec", "atomo:atoms=coordinate,delta=0.001"))
        more = ((3, "--algorithm", "difference", "--codec", "qsgd:bits=4"),
                (3, "--algorithm", "twoshot", "--codec", "atomo:bits=0.5"))
        for processes, *options in ways + more * LONG:
            stories = []
            for threads in (1, 3):
                with self.subTest(options, threads=threads):
                    trace = path("beside.json")
                    stories.append(story(processes, *options, "--threads", threads, "--timeline", trace, "--at", 1))
                    self.assert_encodes_early(trace, threads, leaves_early="allgather" not in options)
                    self.assertEqual(stories[-1], stories[0])

    def test_gradients_that_are_not_finite_end_the_run(self):
        """The loss is known to be none once back-propagation has ended: layers of it are encoded, some are sent."""
        for algorithm, processes in (("ps", 3), ("allgather", 2), ("twoshot", 2), ("ring", 2)):
            with self.subTest(algorithm):
                status, _, err = Job(processes, "--algorithm", algorithm, "--model", "logistic", "--steps", 20, "--lr", 1e38,
                                     "--codec", "atomo:bits=1", "--threads", 3).end(60)
                self.assertNotEqual(status, 0)
                self.assertIn("the training diverged", err)


if __name__ == "__main__":
    unittest.main()
