# SPDX-License-Identifier: Apache-2.0
"""Every algorithm takes with --device cuda the steps of --device cpu, to the bit. The models are computed on the
CPU, so that gradients are the same; they are encoded and decoded by the device's kernels, which the program given runs on
the CPU."""

import json
import subprocess
import sys
import unittest

import numpy
from jobs import LONG, TRAINER, Job, finished, path, read_safetensors

STEPS = ("--model", "logistic", "--steps", 4, "--seed", 3, "--eval-every", 2)
# Processes and options of a run that repeats to the bit: asynchronous servers have one worker.
RUNS = {
    "ps": (3,), "asgd": (2,), "dcasgd": (2, "--adaptive"), "fedavg": (3, "--local-steps", 2),
    "average": (3, "--local-steps", 2), "difference": (3, "--codec-scale", 0.5), "allgather": (3,), "twoshot": (3,),
    "ring": (3,), "local": (2, "--local-steps", 2), "dpsgd": (3, "--graph", "ring"), "dsgd": (3, "--graph", "ring"),
    "dsgd-stale": (3, "--graph", "ring"), "choco": (3, "--graph", "ring", "--gossip-step", 0.1, "--codec-scale", 0.5),
    "pdmm": (3, "--graph", "ring", "--momentum", 0), "admm": (3, "--graph", "ring", "--momentum", 0), "alone": (2,),
}
ALGORITHMS = ("ps", "twoshot", "ring")  # that every codec goes with
# PowerSGD with its memory and with messages of what it leaves, with gradients that are not factored at first and with a loss scale.
POWERSGD = (("--rank", 2), ("--rank", 2, "--start-step", 1, "--loss-scale", 64, "--loss-scale-from", 2),
            ("--rank", 2, "--optimizer", "adamw", "--lr", 0.002, "--second-moment", "factored", "--squares-every", 2),
            ("--rank", 2, "--residual", "qsgd:bits=4"), ("--rank", 1, "--residual", "*.bias = identity; * = atomo:atoms=rows,bits=1+blosc"))
TIMES = ("seconds", "ms", "encode_beside_ms")  # of an event, which no two runs have alike
# One of each kind of payload: fixed sizes, a budget, a cap, indices, grids that add undecoded, lossless stages, layers apart.
CODECS = ("identity:dtype=f16", "qsgd:bits=4", "sign:scale=mean", "terngrad", "natural", "topk:keep=0.05", "randomk:keep=0.1",
          "atomo:atoms=rows,bits=1", "fc.bias = identity; * = atomo:atoms=blocks,bits=2,cap=8", "atomo:atoms=coordinate,bits=1",
          "atomo:atoms=coordinate,delta=0.0078125", "qsgd:bits=8+blosc", "atomo:atoms=rows,bits=1+blosc:codec=zstd")


class DevicesTest(unittest.TestCase):
    def outcome(self, device, processes, *options):
        """What the run keeps, and the lines of its log that tell of more than time."""
        file = path(f"{device}.safetensors")
        job = finished(processes, *STEPS, "--device", device, "--save", file, *options)
        told = [{k: v for k, v in event.items() if k not in TIMES} for event in job.events("step") + job.events("evaluation")]
        return read_safetensors(file), told

    def compare(self, processes, *options):
        expected, told = self.outcome("cpu", processes, *options)
        kept, told_of_device = self.outcome("cuda", processes, *options)
        self.assertEqual(told_of_device, told)
        self.assertEqual(kept.keys(), expected.keys())
        for name, values in expected.items():
            numpy.testing.assert_array_equal(kept[name].view(numpy.uint8), values.view(numpy.uint8), name)

    def test_every_codec(self):
        """Layers apart, whole messages, and sums of payloads; a thread encodes beside back-propagation where there are two.
        Where the long tests do not run, a codec goes with one of the three algorithms."""
        for number, codec in enumerate(CODECS):
            for algorithm in ALGORITHMS if LONG else ALGORITHMS[number % 3:][:1]:
                with self.subTest(algorithm=algorithm, codec=codec):
                    kind = "--policy" if " = " in codec else "--codec"
                    self.compare(3, "--algorithm", algorithm, kind, codec, "--threads", 2)

    def test_the_ways_of_servers(self):
        for processes, *options in ((4, "--servers", 2), (3, "--down", "qsgd:bits=8"), (3, "--double-buffer"),
                                    (4, "--servers", 2, "--down", "topk:keep=0.2+blosc"),
                                    (3, "--algorithm", "difference", "--codec-scale", 0.3)):
            with self.subTest(options=options):
                self.compare(processes, "--codec", "atomo:atoms=blocks,bits=2", *options)

    def test_a_refusal_names_the_sender(self):
        refused = "sent a payload that is refused"
        for algorithm, what in (("ps", f"{refused}, layer 'fc.bias' of step 1"), ("twoshot", refused), ("dpsgd", refused)):
            with self.subTest(algorithm=algorithm):
                status, _, err = Job(3, *STEPS, "--device", "cuda", "--algorithm", algorithm, "--codec", "qsgd:bits=4",
                                     "--corrupt-payload-at", 1).end()
                self.assertNotEqual(status, 0)
                self.assertIn(what, err)
                self.assertIn("checksum does not match", err)

    def test_gradients_and_a_checkpoint_of_a_device(self):
        dumped, resumed = [], []
        for device in ("cpu", "cuda"):
            options = (3, *STEPS, "--device", device, "--codec", "atomo:atoms=rows,bits=1")
            file, whole = path("half.safetensors"), path("whole.safetensors")
            finished(*options, "--dump-gradients", path(device), "--at", 2, "--save", whole)
            finished(*options, "--save", file, "--stop-at", 2)
            finished(*options, "--save", file, "--resume", file)
            names = [f"{path(device)}/step2-{who}.safetensors" for who in ("worker1", "worker2", "mean")]
            dumped.append([read_safetensors(name) for name in names])
            resumed.append([read_safetensors(file), read_safetensors(whole)])
        for expected, found in ((dumped[0], dumped[1]), (resumed[0], resumed[1]), (resumed[0][:1], resumed[0][1:])):
            for of_one, of_other in zip(expected, found, strict=True):
                self.assertEqual(of_one.keys(), of_other.keys())
                for name, values in of_one.items():
                    numpy.testing.assert_array_equal(of_other[name].view(numpy.uint8), values.view(numpy.uint8), name)

    def test_memories(self):
        """Those of each worker, a checkpoint's too, behind one step and behind several; where the long tests do not run,
        in turn."""
        algorithms = ("allgather", "local")
        for number, codec in enumerate(("ef+topk:keep=0.05", "dgc+topk:keep=0.05", "ef:memory=bf16+sign:scale=mean",
                                        "dgc:memory=int8+topk:keep=0.05", "momentum+qsgd:bits=2+blosc",
                                        "ef21+topk:keep=0.05")):
            for algorithm in algorithms if LONG else algorithms[number % 2:][:1]:
                with self.subTest(algorithm=algorithm, codec=codec):
                    processes, *options = RUNS[algorithm]
                    self.compare(processes, *options, "--algorithm", algorithm, "--codec", codec)

    def test_memories_go_on_through_a_sparsity_warm_up(self):
        for algorithm in ("allgather", "local"):
            for codec in ("dgc+topk:keep=0.02", "*.bias = identity; * = ef:memory=int8+topk:keep=0.02+blosc"):
                with self.subTest(algorithm=algorithm, codec=codec):
                    processes, *options = RUNS[algorithm]
                    self.compare(processes, *options, "--algorithm", algorithm, "--policy" if " = " in codec else "--codec", codec,
                                 "--sparsity-warmup", 1)

    def test_a_biased_codec_without_one_is_told_of_it(self):
        for codec, told in (("topk:keep=0.05", True), ("ef+topk:keep=0.05", False), ("qsgd:bits=4", False)):
            status, out, _ = Job(2, *STEPS, "--device", "cuda", "--algorithm", "allgather", "--codec", codec).end()
            self.assertEqual(status, 0)
            self.assertEqual(f"ef+{codec} sends it later" in out, told, out)

    def test_no_algorithm_is_left_out(self):
        listed = subprocess.run([TRAINER, "--list", "--json"], capture_output=True, text=True, check=True).stdout
        self.assertEqual({row["name"] for row in json.loads(listed)}, {*RUNS, "powersgd"})

    def test_powersgd(self):
        for options in POWERSGD:
            with self.subTest(options=options):
                self.compare(3, "--algorithm", "powersgd", *options)

    def test_told_squares(self):
        """Each second moment that is told of, in steps that tell and in steps that do not; units of it; memories, lossless
        stages and loss scales between a gradient and its message."""
        for value, codec, *options in (
                ("factored", "atomo:atoms=rows,bits=1"), ("scaled", "qsgd:bits=4+blosc"), ("matched", "terngrad"),
                ("exact", "atomo:atoms=blocks,bits=1"), ("factored", "qsgd:bits=4", "--precondition"),
                ("scaled", "ef+topk:keep=0.05", "--precondition", "--rate-in-memory", "--loss-scale", 64, "--loss-scale-from", 2),
                ("factored", "ef+topk:keep=0.05+blosc", "--loss-scale", 64, "--loss-scale-from", 1)):
            with self.subTest(value=value, codec=codec, options=options):
                self.compare(3, "--algorithm", "allgather", "--optimizer", "adamw", "--lr", 0.002, "--codec", codec,
                             "--second-moment", value, *(() if value == "exact" else ("--squares-every", 2)), *options)

    def test_every_algorithm(self):
        codecs = ("atomo:atoms=rows,bits=2", "qsgd:bits=4")
        for number, (algorithm, (processes, *options)) in enumerate(RUNS.items()):
            for codec in codecs if LONG else codecs[number % 2:][:1]:
                with self.subTest(algorithm=algorithm, codec=codec):
                    self.compare(processes, "--algorithm", algorithm, "--codec", codec, *options)


if __name__ == "__main__":
    if not TRAINER:
        sys.exit("set ATOMO_TRAIN to the path of atomo-train")
    unittest.main()
