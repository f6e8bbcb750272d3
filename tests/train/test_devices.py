# SPDX-License-Identifier: Apache-2.0
"""Every algorithm with --device cuda takes the steps of --device cpu, to the bit. The models are computed on the CPU, so that
gradients are the same; they are encoded and decoded by the device's kernels, which the program given runs on the CPU."""

import sys
import unittest

import numpy
from jobs import TRAINER, Job, finished, path, read_safetensors

STEPS = ("--model", "logistic", "--steps", 4, "--seed", 3, "--eval-every", 2)
# Processes and options of a run that repeats to the bit: asynchronous servers have one worker.
RUNS = {
    "ps": (3,), "asgd": (2,), "dcasgd": (2, "--adaptive"), "fedavg": (3, "--local-steps", 2),
    "average": (3, "--local-steps", 2), "difference": (3, "--codec-scale", 0.5), "allgather": (3,), "twoshot": (3,), "ring": (3,),
    "local": (2, "--local-steps", 2), "dpsgd": (3, "--graph", "ring"), "dsgd": (3, "--graph", "ring"),
    "dsgd-stale": (3, "--graph", "ring"), "choco": (3, "--graph", "ring", "--gossip-step", 0.1, "--codec-scale", 0.5),
    "pdmm": (3, "--graph", "ring", "--momentum", 0), "admm": (3, "--graph", "ring", "--momentum", 0), "alone": (2,),
}
# One of each kind of payload: fixed sizes, a budget, a cap, indices, grids that add undecoded, lossless stages, layers apart.
CODECS = ("identity:dtype=f16", "qsgd:bits=4", "sign:scale=mean", "terngrad", "natural", "topk:keep=0.05", "randomk:keep=0.1",
          "atomo:atoms=rows,bits=1", "atomo:atoms=blocks,bits=2,cap=8", "atomo:atoms=coordinate,bits=1",
          "atomo:atoms=coordinate,delta=0.0078125", "qsgd:bits=8+blosc", "atomo:atoms=rows,bits=1+blosc:codec=zstd")


class DevicesTest(unittest.TestCase):
    def outcome(self, device, processes, *options):
        """What the run keeps, and the lines of its log that tell of more than time."""
        file = path(f"{device}.safetensors")
        job = finished(processes, *STEPS, "--device", device, "--save", file, *options)
        told = [{k: step[k] for k in ("loss", "bytes", "sent", "received")} for step in job.events("step")]
        told += [{k: test[k] for k in ("loss", "accuracy")} for test in job.events("evaluation")]
        return read_safetensors(file), told

    def compare(self, processes, *options):
        expected, told = self.outcome("cpu", processes, *options)
        kept, told_of_device = self.outcome("cuda", processes, *options)
        self.assertEqual(told_of_device, told)
        self.assertEqual(kept.keys(), expected.keys())
        for name, values in expected.items():
            numpy.testing.assert_array_equal(kept[name].view(numpy.uint8), values.view(numpy.uint8), name)

    def test_every_algorithm(self):
        for algorithm, (processes, *options) in RUNS.items():
            for codec in ("atomo:atoms=rows,bits=2", "qsgd:bits=4"):
                with self.subTest(algorithm=algorithm, codec=codec):
                    self.compare(processes, "--algorithm", algorithm, "--codec", codec, *options)


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
