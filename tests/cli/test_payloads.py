# SPDX-License-Identifier: Apache-2.0
"""Whatever the bytes of a payload, a refusal is exit 1 with one line; what is accepted is shown as it is."""
import json
import os
import random
import resource

import numpy
import xxhash

from support import ATOMO, ToolTest, normal, npy

# A spec of every way a body is written.
SPECS = ("identity:dtype=f32", "identity:dtype=bf16", "atomo:bits=2", "atomo:atoms=blocks,bits=1",
         "atomo:atoms=coordinate,bits=2", "atomo:atoms=svd,keep=2,values=f32", "atomo:atoms=sketch,bits=2",
         "atomo:atoms=auto,bits=2", "qsgd:bits=4", "terngrad", "sign:scale=mean", "topk:keep=0.1",
         "randomk:keep=0.1", "qsgd:bits=8+blosc:codec=zstd")
LONG = os.environ.get("ATOMO_TESTS_ALL") == "1"
STRIDE = 1 if LONG else 5  # of bytes; the library's own tests go through all of them


def with_rows(message, rows):
    """A message of one layer of a row of zeros, which has no bytes, with as many rows (FORMAT.md, "Container")."""
    assert message[64 + 8 + 6] == 2 and message[64 + 8 + 7] == 1, "rank 2, one row"
    groups = [rows >> shift & 127 for shift in range(0, 63, 7) if rows >> shift]
    dimension = bytes(group | 128 * (i + 1 < len(groups)) for i, group in enumerate(groups))
    tables = message[64:64 + 8 + 7] + dimension + message[64 + 8 + 8:64 + 8 + 10]
    tables += bytes(-len(tables) % 4)
    header = bytearray(message[:56])
    header[6:8] = bytes(2)  # without names
    header[8:16] = (64 + len(tables)).to_bytes(8, "little")
    seed = xxhash.xxh3_64_intdigest(bytes(header), seed=0)
    return bytes(header) + xxhash.xxh3_64_intdigest(tables, seed=seed).to_bytes(8, "little") + tables


class Refused(ToolTest):
    def refuse_payload(self, content, *wanted):
        self.write("x.atomo", content)
        self.refuse(1, ["x.atomo: refused", *wanted], "decode", "x.atomo", "o.npy")
        self.refuse(1, ["x.atomo: refused", *wanted], "inspect", "x.atomo")

    def payload(self, spec="identity", shape=(6, 5)):
        self.save("g.npy", normal(*shape))
        self.succeed("encode", "--codec", spec, "g.npy", "g.atomo")
        return self.read("g.atomo")

    def test_empty(self):
        self.refuse_payload(b"", "empty")
        for command in (("decode", "-", "o.npy"), ("inspect", "-")):
            self.refuse(1, ["standard input: refused", "empty"], *command, input=b"")

    def test_foreign(self):
        self.payload()
        self.refuse_payload(self.read("g.npy"))
        self.refuse_payload(bytes(4096))
        self.refuse_payload(b"\xff" * 100)
        self.refuse_payload(random.Random(1).randbytes(100000))

    def test_truncations(self):
        content = self.payload()
        for length in range(0, len(content), STRIDE):
            with self.subTest(length=length):
                self.refuse_payload(content[:length])

    def test_damaged_bytes(self):
        content = self.payload("qsgd:bits=4")
        for at in range(0, len(content), STRIDE):
            with self.subTest(at=at):
                damaged = bytearray(content)
                damaged[at] ^= 1 << at % 8
                self.refuse_payload(bytes(damaged))

    def test_truncated_damaged_and_longer_messages_of_every_codec(self):
        for spec in SPECS:
            with self.subTest(spec=spec):
                content = self.payload(spec, (40, 30))
                self.refuse_payload(content[:-1])
                self.refuse_payload(content[:len(content) // 2])
                self.refuse_payload(content + b"\0", "1 bytes after the end of the container")
                self.refuse_payload(content + content, f"{len(content)} bytes after the end")
                draw = random.Random(spec)
                for _ in range(40 if LONG else 4):
                    damaged = bytearray(content)
                    damaged[draw.randrange(len(content))] ^= draw.randrange(1, 256)
                    self.refuse_payload(bytes(damaged))

    def test_refusals_leave_an_old_output_alone(self):
        content = self.payload()
        self.write("o.npy", b"old")
        self.refuse_payload(content[:-1])
        self.assertEqual(self.read("o.npy"), b"old")

    def test_more_than_the_memory(self):
        """A short message may stand for a huge tensor of zeros."""
        with open(ATOMO, "rb") as binary:
            if b"__asan_init" in binary.read():
                self.skipTest("the address sanitizer needs more address space than this test leaves")
        header = npy("{'descr': '<f2', 'fortran_order': False, 'shape': (400000, 256), }")
        self.write("g.npy", header)
        os.truncate(self.path("g.npy"), len(header) + 2 * 400000 * 256)  # a hole reads as zeros
        self.succeed("encode", "--codec", "atomo:bits=0.5", "g.npy", "g.atomo")
        self.assertLess(len(self.read("g.atomo")), 1_000_000)
        os.remove(self.path("g.npy"))
        space = 350 << 20  # the libraries below fit, 400 MB of float32 do not
        self.refuse(1, ["g.atomo: refused", "102,400,000 elements"], "decode", "--threads", 1, "g.atomo", "o.npy",
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (space, space)),
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})

    def test_more_than_what_is_free_of_the_memory(self):
        """The tensors would fit, but not what decoding them takes beside them."""
        with open(ATOMO, "rb") as binary:
            if b"__asan_init" in binary.read():
                self.skipTest("the address sanitizer needs more address space than this test leaves")
        with open("/proc/meminfo", encoding="ascii") as file:
            memory = {name: int(rest.split()[0]) for name, rest in (line.split(":") for line in file)}
        free = 1024 * (memory["MemAvailable"] + memory["SwapFree"])
        self.save("m.npy", numpy.zeros((1, 256), "f4"))
        self.succeed("encode", "--codec", "atomo:bits=0.5,atoms=blocks", "m.npy", "m.atomo")
        rows = free // 2 // 1024
        self.write("m.atomo", with_rows(self.read("m.atomo"), rows))
        limit = free * 3 // 4
        self.refuse(1, [f"m.atomo: refused: it claims tensors of {rows * 1024} bytes, and decoding takes", "are free"],
                    "decode", "--threads", 1, "m.atomo", "o.npy",
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))

    def test_a_refusal_writes_nothing_to_a_pipe(self):
        content = self.payload()
        self.refuse(1, "standard input: refused", "decode", "-", "-", input=content[:-1])


class Accepted(ToolTest):
    def test_every_codec_there_and_back(self):
        g = {"conv": normal(40, 3, 5, 5), "fc": normal(30, 64), "bias": normal(33), "scalar": normal(), "none": normal(0, 4)}
        numpy.savez(self.path("m.npz"), **g)
        for spec in SPECS:
            with self.subTest(spec=spec):
                self.succeed("encode", "--codec", spec, "m.npz", "m.atomo")
                self.succeed("decode", "m.atomo", "o.npz")
                back = self.load("o.npz")
                self.assertEqual(back.files, list(g))
                for name, x in g.items():
                    self.assertEqual(back[name].shape, x.shape)
                    self.assertTrue(numpy.isfinite(back[name]).all())
                dot = sum(float((back[name] * g[name]).sum()) for name in g)
                self.assertGreater(dot, 0)

    def test_inspect_tells_the_whole_container(self):
        g = {"fc": normal(30, 64), "bias": normal(33)}
        numpy.savez(self.path("m.npz"), **g)
        for spec in SPECS:
            with self.subTest(spec=spec):
                self.succeed("encode", "--codec", spec, "--seed", 3, "m.npz", "m.atomo")
                report = self.succeed_json("inspect", "m.atomo")
                self.assertEqual(report["bytes"], len(self.read("m.atomo")))
                self.assertEqual(report["elements"], 30 * 64 + 33)
                self.assertEqual(report["bits_per_parameter"], 8 * report["bytes"] / report["elements"])
                self.assertEqual(report["checksums"], "verified")
                self.assertEqual([(layer["name"], layer["shape"], layer["dtype"]) for layer in report["layers"]],
                                 [("fc", [30, 64], "f32"), ("bias", [33], "f32")])
                self.assertLessEqual(report["head_bytes"] + sum(layer["bytes"] for layer in report["layers"]),
                                     report["bytes"])
                for layer in report["layers"]:
                    self.assertLessEqual(layer["kept"], layer["atoms"])
                    self.assertEqual(layer["lossless"], "blosc" in spec and layer["lossless"])
                text = self.succeed("inspect", "m.atomo").decode()
                self.assertIn("checksums verified", text)
                self.assertIn("fc", text)

    def test_prices_and_atoms_are_shown(self):
        self.save("g.npy", normal(64, 256))
        self.succeed("encode", "--codec", "atomo:atoms=rows,bits=0.5", "g.npy", "g.atomo")
        report = self.succeed_json("inspect", "g.atomo")
        layer = report["layers"][0]
        self.assertGreater(report["price"], 0)
        self.assertEqual(layer["atoms"], 64)
        self.assertTrue(0 < layer["kept"] < 64)
        self.succeed("encode", "--codec", "topk:keep=100", "g.npy", "g.atomo")
        self.assertEqual(self.succeed_json("inspect", "g.atomo")["layers"][0]["kept"], 100)

    def test_a_budget_that_pays_for_no_message(self):
        numpy.save(self.path("g.npy"), numpy.array([.3, -.2, .1], numpy.float32))
        done = self.run_tool("encode", "--codec", "atomo:bits=0.5,atoms=blocks", "--step", "885468578", "g.npy", "g.atomo")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count(b"atomo: note: done, but the budget does not pay for a message"), 1)
        self.assertEqual(self.succeed_json("inspect", "g.atomo")["layers"][0]["kept"], 1)
        self.succeed("decode", "g.atomo", "o.npy")
        self.assertTrue(0 < abs(self.load("o.npy")).max() < 1.2)

    def test_biased_codecs_are_noted_in_one_line(self):
        self.save("g.npy", normal(64, 64))
        note = "atomo: note: biased: {}; what a message leaves out is lost, and in a training a memory sends it later: ef+{}\n"
        nearest = "atomo:bits=1,atoms=rows,content=nearest"
        for codec, told in ((nearest, note.format(nearest, nearest)), ("topk:keep=0.1", note.format("topk:keep=0.1", "topk:keep=0.1")),
                            ("atomo:bits=1,atoms=rows", ""), ("qsgd", "")):
            done = self.run_tool("encode", "--codec", codec, "g.npy", "g.atomo")
            self.assertEqual((done.returncode, done.stderr.decode()), (0, told))
        measured = ("--codec", "qsgd", "--codec", "sign", "--codec", nearest, "--draws", 1)
        done = self.run_tool("measure", "--json", *measured, "g.npy")
        self.assertEqual((done.returncode, done.stderr.decode()), (0, note.format(f"sign, {nearest}", "sign")))
        self.assertEqual(len(json.loads(done.stdout)["codecs"]), 3)

    def test_a_layer_that_is_not_finite(self):
        bad = normal(10, 20)
        bad[3, 4] = numpy.inf
        numpy.savez(self.path("m.npz"), good=normal(10, 20), bad=bad)
        done = self.run_tool("encode", "--codec", "atomo:bits=2", "m.npz", "m.atomo")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count(b"atomo: note: "), 1)
        report = self.succeed_json("inspect", "m.atomo")
        self.assertEqual([layer["non_finite"] for layer in report["layers"]], [False, True])
        self.assertIn("non-finite", self.succeed("inspect", "m.atomo").decode())
        self.assertEqual(self.run_tool("decode", "m.atomo", "o.npz").returncode, 0)
        self.assertTrue(numpy.isnan(self.load("o.npz")["bad"]).all())
        self.assertTrue(numpy.isfinite(self.load("o.npz")["good"]).all())
