# SPDX-License-Identifier: Apache-2.0
"""`atomo measure`: its numbers against the same draws made by encode and decode, its JSON, its plot."""
import json
import os
import shutil
import struct
import subprocess
import zlib

import numpy

from support import ATOMO, ToolTest, normal

KEYS = ["spec", "canonical", "bytes", "bits_per_parameter", "nmse", "nmse_stderr", "bias_z", "encode_ms", "decode_ms",
        "encode_gbs", "decode_gbs", "memcpy_gbs"]


def reject_constant(name):
    raise ValueError(f"{name} is no JSON")


class Measure(ToolTest):
    def measure(self, *arguments):
        return json.loads(self.succeed("measure", "--json", *arguments), parse_constant=reject_constant)

    def draws(self, spec, seed, count, *inputs):
        """The errors of the same draws through files: (bytes, |d - g|^2 / |g|^2, <d - g, g> / |g|^2)."""
        g = numpy.concatenate([x.ravel() for name in inputs for x in self.arrays(name)]).astype("f8")
        found = []
        for step in range(count):
            self.succeed("encode", "--codec", spec, "--seed", seed, "--step", step, *inputs, "d.atomo")
            self.succeed("decode", "d.atomo", "d.npz")
            error = numpy.concatenate([x.ravel() for x in self.arrays("d.npz")]).astype("f8") - g
            found.append((len(self.read("d.atomo")), error @ error / (g @ g), error @ g / (g @ g)))
        return numpy.array(found).T

    def arrays(self, name):
        content = self.load(name)
        return [content[key] for key in content.files] if name.endswith(".npz") else [content]

    def test_numbers_are_those_of_the_draws(self):
        numpy.savez(self.path("m.npz"), a=normal(60, 50, seed=1), b=normal(70, seed=2, dtype="<f2"))
        self.save("c.npy", 10 * normal(20, 30, seed=3))
        specs = ("qsgd:bits=2", "atomo:bits=1", "topk:keep=0.1", "identity:dtype=bf16")
        report = self.measure("--seed", 7, "--draws", 5, *(w for s in specs for w in ("--codec", s)), "m.npz", "c.npy")
        self.assertEqual(report["input"], {"tensors": 3, "elements": 3670})
        for spec, row in zip(specs, report["codecs"]):
            with self.subTest(spec=spec):
                size, nmse, bias = self.draws(spec, 7, 5, "m.npz", "c.npy")
                self.assertAlmostEqual(row["bytes"], size.mean(), places=9)
                self.assertAlmostEqual(row["bits_per_parameter"], 8 * size.mean() / 3670, places=9)
                self.assertLess(abs(row["nmse"] / nmse.mean() - 1), 1e-9)
                self.assertLess(abs(row["nmse_stderr"] - nmse.std(ddof=1) / 5**0.5), 1e-9 * nmse.mean())
                if bias.std() > 1e-12:
                    z = bias.mean() / (bias.std(ddof=1) / 5**0.5)
                    self.assertLess(abs(row["bias_z"] - z), 1e-6 * max(1, abs(z)))

    def test_schema(self):
        self.save("g.npy", normal(100, 100))
        report = self.measure("--codec", "qsgd:bits=2", "--codec", "sign", "--draws", 3, "--threads", 1, "g.npy")
        self.assertEqual(list(report), ["input", "device", "threads", "codecs"])
        self.assertEqual((report["device"], report["threads"]), ("cpu", 1))
        self.assertEqual(report["input"], {"tensors": 1, "elements": 10000})
        self.assertEqual([row["spec"] for row in report["codecs"]], ["qsgd:bits=2", "sign"])
        for row in report["codecs"]:
            self.assertEqual(list(row), KEYS)
            self.assertTrue(row["canonical"].startswith(row["spec"].split(":")[0]))
            for key in ("bytes", "encode_ms", "decode_ms", "encode_gbs", "decode_gbs", "memcpy_gbs"):
                self.assertGreater(row[key], 0)
            self.assertAlmostEqual(row["encode_gbs"] * row["encode_ms"] * 1e6, 40000, places=3)
            self.assertAlmostEqual(row["decode_gbs"] * row["decode_ms"] * 1e6, 40000, places=3)

    def test_one_thread_beside_several(self):
        self.save("g.npy", normal(100, 100))
        of_one, of_three = (self.measure("--codec", "atomo:bits=1", "--draws", 3, "--threads", threads, "g.npy")
                            for threads in (1, 3))
        self.assertEqual(of_three["threads"], 3)
        row, one = of_three["codecs"][0], of_three["codecs"][0]["one_thread"]
        self.assertEqual(list(row), [*KEYS, "one_thread"])
        for direction in ("encode", "decode"):
            self.assertGreater(one[direction + "_ms"], 0)
            self.assertAlmostEqual(one[direction + "_gbs"] * one[direction + "_ms"] * 1e6, 40000, places=3)
        for key in ("bytes", "nmse", "nmse_stderr", "bias_z"):
            self.assertEqual(row[key], of_one["codecs"][0][key])

    def test_threads_are_those_of_the_cores(self):
        self.save("g.npy", normal(10))
        command = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), ATOMO]
        done = subprocess.run([*command, "measure", "--json", "--codec", "sign", self.path("g.npy")], check=True,
                              capture_output=True)
        self.assertEqual(json.loads(done.stdout)["threads"], 1)

    def test_exact_biased_and_single_draws(self):
        self.save("g.npy", normal(1000))
        exact, biased = self.measure("--codec", "identity", "--codec", "topk:keep=0.1", "g.npy")["codecs"]
        self.assertEqual((exact["nmse"], exact["nmse_stderr"], exact["bias_z"]), (0, 0, 0))
        self.assertEqual(biased["nmse_stderr"], 0)
        self.assertLess(biased["bias_z"], -1e300)
        for row in self.measure("--codec", "identity", "--codec", "qsgd:bits=2", "--draws", 1, "g.npy")["codecs"]:
            self.assertIsNotNone(row["nmse"])
            self.assertIsNone(row["nmse_stderr"])
            self.assertIsNone(row["bias_z"])

    def test_unbiased_codecs_look_unbiased(self):
        """200 draws each of a fixed seed; 5 standard errors are exceeded by chance once in two million."""
        self.save("g.npy", normal(200, 64))
        specs = ("qsgd:bits=2", "terngrad", "atomo:bits=0.5", "atomo:atoms=coordinate,bits=1", "randomk:keep=0.1")
        report = self.measure("--draws", 200, *(word for spec in specs for word in ("--codec", spec)), "g.npy")
        for row in report["codecs"]:
            self.assertLess(abs(row["bias_z"]), 5, row["spec"])

    def test_default_is_twenty_draws(self):
        self.save("g.npy", normal(500))
        twenty, default = self.measure("--codec", "qsgd:bits=2", "--draws", 20, "g.npy"), self.measure(
            "--codec", "qsgd:bits=2", "g.npy")
        self.assertEqual(twenty["codecs"][0]["nmse"], default["codecs"][0]["nmse"])
        self.assertNotEqual(self.measure("--codec", "qsgd:bits=2", "--seed", 1, "g.npy")["codecs"][0]["nmse"],
                            default["codecs"][0]["nmse"])

    def test_what_has_no_error_to_speak_of(self):
        bad = normal(100)
        bad[5] = numpy.nan
        for content in (bad, numpy.zeros(100, "<f4"), numpy.zeros((0, 3), "<f4")):
            self.save("g.npy", content)
            for spec in ("qsgd:bits=2", "identity", "atomo:bits=2"):
                row = self.measure("--codec", spec, "--draws", 3, "g.npy")["codecs"][0]
                self.assertEqual((row["nmse"], row["nmse_stderr"], row["bias_z"]), (None, None, None))
                self.succeed("measure", "--codec", spec, "--draws", 3, "g.npy")

    def test_names_can_be_left_out(self):
        self.save("a_rather_long_name_for_a_tensor.npy", normal(100))
        with_names, without = (self.measure("--codec", "sign", *option, "a_rather_long_name_for_a_tensor.npy")["codecs"][0]
                               for option in ((), ("--without-names",)))
        self.assertGreaterEqual(with_names["bytes"], without["bytes"] + 31)

    def test_table(self):
        self.save("g.npy", normal(100, 100))
        long = "atomo:atoms=sketch,bits=0.5,iterations=2"
        for threads in (1, 2):
            lines = self.succeed("measure", "--codec", long, "--codec", "identity", "--threads", threads,
                                 "g.npy").decode().splitlines()
            self.assertLessEqual(max(map(len, lines)), 100)
            self.assertIn("1 tensor, 10,000 elements as one model; 20 draws; memcpy", lines[0])
            self.assertTrue(all(word in lines[2] for word in ("codec", "bytes", "bits", "NMSE", "bias z")))
            self.assertTrue(lines[4].startswith(long) and lines[5].startswith("identity"))
            self.assertEqual(lines[7].split(" ", maxsplit=1)[0], "")
            self.assertEqual([word for word in lines[7].replace("-", " ").split() if not word.startswith("thread")],
                             ["1"] if threads == 1 else ["1", "2"])
            self.assertEqual(lines[8].split(), ["codec", *["enc", "ms", "GB/s", "dec", "ms", "GB/s"] * threads])
            self.assertTrue(lines[10].startswith(long) and lines[11].startswith("identity"))
            self.assertEqual(len(lines[10].split()), 1 + 4 * threads)
            self.assertEqual(len(lines), 12)


def capture(**tensors):
    header, body = {}, b""
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(body), len(body) + array.nbytes]}
        body += array.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


class Magnitudes(ToolTest):
    """Errors of large and small entries apart, of files and of a folder of captures."""

    def test_classes_are_those_of_the_draws(self):
        g = normal(60, 50, seed=1)
        g[0, :10] = 0
        self.save("g.npy", g)
        report = self.succeed_json("measure", "--magnitudes", "--codec", "qsgd:bits=2", "--codec", "identity", "--draws", 3,
                                   "g.npy")
        rms = numpy.sqrt((g.astype("f8") ** 2).mean())
        octave = numpy.clip(numpy.floor(numpy.log2(numpy.abs(g) / rms, where=g != 0, out=numpy.full(g.shape, -99.0))), -10, 6)
        decoded = []
        for step in range(3):
            self.succeed("encode", "--codec", "qsgd:bits=2", "--step", step, "g.npy", "d.atomo")
            self.succeed("decode", "d.atomo", "d.npy")
            decoded.append(self.load("d.npy").astype("f8"))
        squared = numpy.mean([(d - g) ** 2 for d in decoded], axis=0)
        found = report["codecs"][0]["magnitudes"]
        for row in found["octaves"]:
            of = (octave == row["octave"]) & (g != 0)
            self.assertEqual(row["entries"], of.sum())
            if of.any():
                nmse = squared[of].sum() / (g[of].astype("f8") ** 2).sum()
                self.assertAlmostEqual(row["nmse"], nmse, delta=1e-6 * nmse)
        self.assertEqual((found["zeros"]["entries"], found["zeros"]["nmse"]), (10, None))
        small = numpy.abs(g) < rms
        self.assertEqual(found["small"]["entries"] + found["large"]["entries"], g.size)
        self.assertEqual(found["small"]["entries"], small.sum())
        self.assertAlmostEqual(found["large"]["share_of_error"], squared[~small].sum() / squared.sum(), places=6)
        self.assertAlmostEqual(found["small"]["share_of_energy"] + found["large"]["share_of_energy"], 1)
        self.assertEqual((report["input"]["largest"], report["input"]["most_negative"]), (g.max(), g.min()))
        self.assertEqual(found["decoded"], {"largest": numpy.max(decoded), "most_negative": numpy.min(decoded)})
        self.assertEqual(report["codecs"][1]["magnitudes"]["large"]["nmse"], 0)
        (histogram,) = report["histograms"]
        bins = numpy.clip(numpy.floor(g.astype("f8") / rms * 8), -33, 32).astype(int) + 33
        self.assertEqual(histogram["counts"], numpy.bincount(bins.ravel(), minlength=66).tolist())

    def test_a_folder_of_captures(self):
        """Each worker's gradient is a model; means of two captures are those of both measured alone."""
        os.mkdir(self.path("grads"))
        for step, scale in ((2, 1), (10, 3)):
            self.write(f"grads/step{step}-worker1.safetensors",
                       capture(w=scale * normal(40, 30, seed=step), b=normal(30, seed=step)))
            self.write(f"grads/step{step}-mean.safetensors", capture(w=9 * normal(40, 30)))
        codec = ("--codec", "qsgd:bits=2", "--draws", 4)
        both = self.succeed_json("measure", *codec, "grads")
        alone = [self.succeed_json("measure", *codec, "--magnitudes", f"grads/step{step}-worker1.safetensors")
                 for step in (2, 10)]
        self.assertEqual(both["input"]["captures"], 2)
        self.assertEqual(both["input"]["elements"], 1230)
        for key in ("bytes", "nmse"):
            self.assertAlmostEqual(both["codecs"][0][key], sum(one["codecs"][0][key] for one in alone) / 2)
        large, parts = both["codecs"][0]["magnitudes"]["large"], [one["codecs"][0]["magnitudes"]["large"] for one in alone]
        self.assertEqual(large["entries"], sum(part["entries"] for part in parts))
        self.assertEqual(both["input"]["largest"], max(one["input"]["largest"] for one in alone))
        for layer, a, b in zip(both["histograms"], *(one["histograms"] for one in alone)):
            self.assertEqual(layer["counts"], [x + y for x, y in zip(a["counts"], b["counts"])])

        text = self.succeed("measure", *codec, "--plot", "p.png", "grads").decode()
        self.assertTrue(self.read("p.png").startswith(b"\x89PNG"))
        self.assertIn("2 tensors, 1,230 elements in each of 2 captures; 4 draws", text)
        for line in ("below 2^-9 ", "2^-1 to 2^0 ", "2^6 and above ", "small: below 1 ", "large: 1 and above ",
                     "  decoded, qsgd:bits=2: "):
            self.assertIn("\n" + line, text)

        self.write("grads/step3-worker1.safetensors", capture(other=normal(4)))
        self.refuse(2, ["step3-worker1.safetensors", "its tensors are others than those of the files before it"], "measure", *codec,
                    "grads")
        self.save("g.npy", normal(10))
        self.refuse(2, ["grads is a folder of captures, which is measured alone"], "measure", *codec, "grads", "g.npy")
        os.mkdir(self.path("empty"))
        self.refuse(2, ["empty: is a directory without .safetensors files"], "measure", *codec, "empty")


class Plot(ToolTest):
    def assert_png(self, content):
        """A PNG whose every chunk has its checksum, from header to end."""
        self.assertTrue(content.startswith(b"\x89PNG\r\n\x1a\n"))
        at, kinds = 8, []
        while at < len(content):
            (length,) = struct.unpack(">I", content[at:at + 4])
            kind, (checksum,) = content[at + 4:at + 8], struct.unpack(">I", content[at + 8 + length:at + 12 + length])
            self.assertEqual(zlib.crc32(content[at + 4:at + 8 + length]), checksum)
            kinds.append(kind)
            at += 12 + length
        self.assertEqual((kinds[0], kinds[-1]), (b"IHDR", b"IEND"))

    def test_plot_beside_a_table_and_beside_json(self):
        self.save("g.npy", normal(100, 100))
        specs = ("identity", "qsgd:bits=2", "qsgd:bits=4", "atomo:bits=0.5", "atomo:bits=2", "sign")
        codecs = [word for spec in specs for word in ("--codec", spec)]
        self.succeed("measure", *codecs, "--plot", "p.png", "g.npy")
        self.assert_png(self.read("p.png"))
        os.remove(self.path("p.png"))
        json.loads(self.succeed("measure", *codecs, "--json", "--plot", "p.png", "g.npy"))
        self.assert_png(self.read("p.png"))

    def test_a_plot_without_a_single_point(self):
        self.save("g.npy", numpy.full(10, numpy.nan, "<f4"))
        self.succeed("measure", "--codec", "sign", "--plot", "p.png", "g.npy")
        self.assert_png(self.read("p.png"))

    def test_a_missing_script(self):
        os.mkdir(self.path("bin"))
        shutil.copy(ATOMO, self.path("bin/atomo"))
        self.save("g.npy", normal(10))
        done = self.run_elsewhere("measure", "--codec", "identity", "--plot", "p.png", "g.npy")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, rb"^atomo: --plot needs plot.py in .*\n$")
        self.assertFalse(os.path.exists(self.path("p.png")))

    def test_an_installed_script(self):
        os.makedirs(self.path("share/atomo"))
        os.mkdir(self.path("bin"))
        shutil.copy(ATOMO, self.path("bin/atomo"))
        shutil.copy(os.path.join(os.path.dirname(ATOMO), "plot.py"), self.path("share/atomo/plot.py"))
        self.save("g.npy", normal(10))
        self.assertEqual(self.run_elsewhere("measure", "--codec", "identity", "--plot", "p.png", "g.npy").returncode, 0)
        self.assert_png(self.read("p.png"))

    def run_elsewhere(self, *arguments):
        return subprocess.run([self.path("bin/atomo"), *arguments], cwd=self.directory, capture_output=True, check=False)

    def test_a_script_that_fails(self):
        os.mkdir(self.path("bin"))
        shutil.copy(ATOMO, self.path("bin/atomo"))
        self.write("bin/plot.py", b"import sys\nsys.exit('first\\nmatplotlib is missing: install it')\n")
        self.save("g.npy", normal(10))
        done = self.run_elsewhere("measure", "--codec", "identity", "--plot", "p.png", "g.npy")
        self.assertEqual((done.returncode, done.stderr), (2, b"atomo: --plot: matplotlib is missing: install it\n"))
        self.assertFalse(os.path.exists(self.path("p.png")))
