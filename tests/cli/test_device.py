# SPDX-License-Identifier: Apache-2.0
"""`--device` where there is no GPU to use: one line that says why and what would help, and nothing is written."""
import os

from support import ToolTest, normal

COMMANDS = (("encode", "--codec", "qsgd:bits=4", "g.npy", "o.atomo"), ("decode", "g.atomo", "o.npy"),
            ("measure", "--codec", "qsgd:bits=4", "--plot", "o.png", "g.npy"))


class Device(ToolTest):
    def setUp(self):
        super().setUp()
        self.save("g.npy", normal(20, 30))
        self.succeed("encode", "--codec", "qsgd:bits=4", "g.npy", "g.atomo")

    def test_no_backend_no_driver_or_no_gpu(self):
        hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        for command in COMMANDS:
            with self.subTest(command=command[0]):
                error = self.refuse(2, ["--device cuda: ", "take --device cpu"], *command, "--device", "cuda", env=hidden)
                self.assertRegex(error, "no CUDA backend; build with -DATOMO_CUDA=ON|no NVIDIA driver.* install one|"
                                        "no GPU is visible .*CUDA_VISIBLE_DEVICES")

    def test_lossless_stages_are_not_measured(self):
        spec = "qsgd:bits=8+blosc:codec=zstd"
        self.refuse(2, ["a lossless stage runs on the CPU only", "leave '+blosc:codec=zstd", "take --device cpu"],
                    "measure", "--codec", spec, "g.npy", "--device", "cuda")

    def test_other_devices(self):
        for command in COMMANDS:
            self.refuse(2, ["--device", "tpu", "cpu", "cuda"], *command, "--device", "tpu")

    def test_the_cpu_by_name(self):
        self.succeed("encode", "--device", "cpu", "--codec", "qsgd:bits=4", "g.npy", "named.atomo")
        self.assertEqual(self.read("named.atomo"), self.read("g.atomo"))
        self.succeed("decode", "--device", "cpu", "g.atomo", "named.npy")
        report = self.succeed_json("measure", "--codec", "qsgd:bits=4", "--draws", 2, "--device", "cpu", "g.npy")
        self.assertEqual(report["device"], "cpu")

    def test_help(self):
        for command, wanted in (("encode", "the bytes are the same"), ("decode", "the tensors are the same"),
                                ("measure", "times are the GPU's own, without copies to and from the host")):
            text = " ".join(self.succeed(command, "--help").decode().split())
            self.assertIn("--device cpu|cuda", text)
            self.assertIn(wanted, text)
        self.assertIn("memcpy is a copy in its memory",
                      " ".join(self.succeed("measure", "--help").decode().split()))
