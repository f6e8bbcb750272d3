# SPDX-License-Identifier: Apache-2.0
"""`--device cuda` with a device, be it the host executor: the same containers and tensors as on the CPU, and `measure`."""
import numpy

from support import ToolTest, normal

# Every codec whose twin writes the same bytes, and each way it writes a body.
SPECS = ("identity:dtype=f32", "identity:dtype=f16", "identity:dtype=bf16", "atomo:bits=0.5,atoms=rows",
         "atomo:bits=4,atoms=rows",
         "atomo:atoms=blocks,bits=1", "atomo:price=0.5,atoms=rows", "atomo:atoms=coordinate,bits=0.2",
         "atomo:atoms=coordinate,bits=3", "atomo:atoms=coordinate,keep=0.1", "atomo:atoms=coordinate,delta=0.25",
         "qsgd:bits=1", "qsgd:bits=4,bucket=100,norm=l2", "qsgd:bits=8", "terngrad", "terngrad:clip=2.5", "sign",
         "sign:scale=mean", "topk:keep=0.1", "topk:keep=7", "randomk:keep=0.1", "randomk:keep=3")
NAMES = ("weights*", "weights?", "bias", "scalar", "none", "long")


class OnDevice(ToolTest):
    def setUp(self):
        super().setUp()
        numpy.savez(self.path("m.npz"), **dict(zip(NAMES, (normal(40, 3, 5, 5, seed=1), normal(30, 64, seed=2),
                                                           normal(33, seed=3, dtype="<f2"), normal(seed=4),
                                                           normal(0, 4), normal(5000, seed=5)))))

    def both(self, out, *arguments):
        """What the command writes on the CPU and on the device."""
        contents, said = [], []
        for device in ("cpu", "cuda"):
            done = self.run_tool(*arguments, device + out, "--device", device)
            self.assertEqual(done.returncode, 0, done.stderr)
            contents.append(self.read(device + out))
            said.append(done.stderr)
        self.assertEqual(*said)
        return contents

    def test_containers_and_tensors_are_the_cpus(self):
        for spec in SPECS:
            with self.subTest(spec=spec):
                cpu, cuda = self.both(".atomo", "encode", "--codec", spec, "--seed", 5, "--step", 3, "--worker", 2, "m.npz")
                self.assertEqual(cpu, cuda)
                for dtype in ("f32", "f16", "same"):
                    cpu, cuda = self.both(".npz", "decode", "--dtype", dtype, "cuda.atomo")
                    self.assertEqual(cpu, cuda)

    def test_containers_without_names(self):
        cpu, cuda = self.both(".atomo", "encode", "--without-names", "--codec", "atomo:bits=1,atoms=rows", "m.npz")
        self.assertEqual(cpu, cuda)
        self.assertEqual(*self.both(".npz", "decode", "cuda.atomo"))

    def test_more_than_a_piece_of_pinned_memory(self):
        self.save("g.npy", normal(9 << 20))  # 36 MiB
        cpu, cuda = self.both(".atomo", "encode", "--codec", "identity", "g.npy")
        self.assertEqual(cpu, cuda)
        self.assertEqual(*self.both(".npy", "decode", "cuda.atomo"))

    def test_a_layer_that_is_not_finite(self):
        bad = normal(10, 20)
        bad[3, 4] = numpy.inf
        numpy.savez(self.path("m.npz"), good=normal(10, 20), bad=bad)
        cpu, cuda = self.both(".atomo", "encode", "--codec", "atomo:bits=2,atoms=rows", "m.npz")
        self.assertEqual(cpu, cuda)
        self.assertEqual(*self.both(".npz", "decode", "cuda.atomo"))
        self.assertIn(b"atomo: note: ", self.run_tool("decode", "--device", "cuda", "cuda.atomo", "o.npz").stderr)

    def test_messages_of_a_cap(self):
        self.save("g.npy", normal(64, 256))
        self.succeed("encode", "--codec", "atomo:bits=3,cap=3.2", "g.npy", "g.atomo")
        self.assertEqual(*self.both(".npy", "decode", "g.atomo"))

    def test_sketches_decode_alike(self):
        """A device adds up a sketch's products in another order: the message is another, what it decodes to is not."""
        self.save("g.npy", normal(64, 256))
        cpu, cuda = self.both(".atomo", "encode", "--codec", "atomo:bits=1", "g.npy")
        self.assertLess(abs(len(cpu) - len(cuda)), 0.1 * len(cpu))
        for message in ("cpu.atomo", "cuda.atomo"):
            self.assertEqual(*self.both(".npy", "decode", message))

    def test_an_exact_svd_runs_or_is_refused(self):
        """Pairs take libraries on the device, and their own encoder's rounding."""
        self.save("g.npy", normal(64, 256))
        for spec in ("atomo:atoms=svd,bits=1", "atomo:atoms=svd,keep=3,values=f32"):
            for command, out in ((("encode", "--codec", spec, "g.npy"), "o.atomo"), (("decode", "g.atomo"), "o.npy")):
                with self.subTest(spec=spec, command=command[0]):
                    self.succeed("encode", "--codec", spec, "g.npy", "g.atomo")
                    done = self.run_tool(*command, out, "--device", "cuda")
                    if done.returncode != 0:
                        self.refuse(2, ["has no CUDA twin", "encode it on the CPU"], *command, "p" + out, "--device", "cuda")
                    elif command[0] == "decode":
                        self.assertEqual(*self.both(".npy", *command))
                    else:
                        self.assertEqual(self.succeed_json("inspect", out)["elements"], 64 * 256)

    def test_lossless_stages_run_on_the_cpu(self):
        self.save("g.npy", numpy.ones(5000, "<f4"))
        for spec in ("identity+blosc:codec=zstd", "qsgd:bits=8+blosc", "topk:keep=0.01+blosc:codec=zstd,shuffle=bit"):
            for source in ("g.npy", "m.npz"):
                with self.subTest(spec=spec, source=source):
                    cpu, cuda = self.both(".atomo", "encode", "--codec", spec, source)
                    self.assertEqual(cpu, cuda)
                    self.assertEqual(*self.both(".npz", "decode", "cuda.atomo"))
        self.assertTrue(self.succeed_json("inspect", "cuda.atomo")["layers"])

    def test_damage_is_refused(self):
        self.succeed("encode", "--codec", "qsgd:bits=4", "m.npz", "m.atomo")
        content = bytearray(self.read("m.atomo"))
        content[len(content) // 2] ^= 1
        self.write("m.atomo", bytes(content))
        self.refuse(1, "m.atomo: refused", "decode", "--device", "cuda", "m.atomo", "o.npz")

    def test_measure(self):
        specs = ("identity", "atomo:bits=1,atoms=rows", "qsgd:bits=2", "topk:keep=0.1")
        codecs = [word for spec in specs for word in ("--codec", spec)]
        reports = [self.succeed_json("measure", *codecs, "--draws", 3, "--seed", 4, "--device", device, "m.npz")
                   for device in ("cpu", "cuda")]
        self.assertEqual([report["device"] for report in reports], ["cpu", "cuda"])
        for cpu, cuda in zip(reports[0]["codecs"], reports[1]["codecs"]):
            for key in ("spec", "canonical", "bytes", "bits_per_parameter", "nmse", "nmse_stderr", "bias_z"):
                self.assertEqual(cpu[key], cuda[key], key)
            for key in ("encode_ms", "decode_ms", "encode_gbs", "decode_gbs", "memcpy_gbs"):
                self.assertGreater(cuda[key], 0, key)
        text = self.succeed("measure", "--codec", "sign", "--draws", 2, "--device", "cuda", "m.npz").decode()
        self.assertIn("2 draws; on cuda; memcpy there ", text.splitlines()[0])
