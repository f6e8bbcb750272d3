# SPDX-License-Identifier: Apache-2.0
"""Round trips through every format, names, models of several files, pipes."""
import io
import os
import zipfile

import numpy

from support import ToolTest, normal, npy, read_safetensors, safetensors

SHAPES = [(), (0,), (1,), (7,), (0, 5), (3, 4), (64, 3, 7, 7), (2, 1, 2, 1, 2, 1, 2, 3)]


def bf16(array):
    """The upper halves of float32 values: bfloat16 by truncation."""
    return (array.astype("<f4").view("<u4") >> 16).astype("<u2")


class RoundTrip(ToolTest):
    def there_and_back(self, source, target, *decode_options):
        self.succeed("encode", "--codec", "identity", source, "g.atomo")
        self.succeed("decode", *decode_options, "g.atomo", target)

    def assert_same(self, a, b):
        self.assertEqual((a.shape, a.dtype), (b.shape, b.dtype))
        self.assertEqual(a.tobytes(), b.tobytes())

    def test_npy_of_every_shape_and_type(self):
        for shape in SHAPES:
            for dtype in ("<f4", "<f2"):
                with self.subTest(shape=shape, dtype=dtype):
                    g = normal(*shape, dtype=dtype)
                    self.there_and_back(self.save("g.npy", g), "same.npy", "--dtype", "same")
                    self.assert_same(self.load("same.npy"), g)
                    self.there_and_back("g.npy", "f32.npy")
                    self.assert_same(self.load("f32.npy"), g.astype("<f4"))

    def test_every_half_is_read_exactly(self):
        halves = numpy.arange(65536, dtype="<u2")
        finite = halves[(halves & 0x7c00) != 0x7c00].view("<f2")
        self.there_and_back(self.save("g.npy", finite), "o.npy")
        self.assert_same(self.load("o.npy"), finite.astype("<f4"))

    def test_npy_of_later_versions_and_odd_headers(self):
        g = normal(3, 4)
        for version in ((1, 0), (2, 0), (3, 0)):
            for header in ("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }",
                           '{"shape":(3,4),"descr":"<f4","fortran_order":False}',
                           "{ 'fortran_order' : False , 'shape' : ( 3 , 4 , ) , 'descr' : '<f4' }   "):
                with self.subTest(version=version, header=header):
                    self.write("g.npy", npy(header, g.tobytes(), version))
                    self.there_and_back("g.npy", "o.npy")
                    self.assert_same(self.load("o.npy"), g)

    def test_written_npy_is_what_numpy_writes(self):
        for shape in SHAPES:
            self.save("g.npy", normal(*shape))
            self.there_and_back("g.npy", "o.npy")
            self.assertEqual(self.read("o.npy"), self.read("g.npy"))

    def test_npz_stored_and_deflated(self):
        model = {"a/weight": normal(30, 20), "b": normal(5, dtype="<f2"), "scalar": normal(), "none": normal(0, 3)}
        for save in (numpy.savez, numpy.savez_compressed):
            with self.subTest(save=save.__name__):
                save(self.path("m.npz"), **model)
                self.there_and_back("m.npz", "o.npz", "--dtype", "same")
                back = self.load("o.npz")
                self.assertEqual(back.files, list(model))
                for name, g in model.items():
                    self.assert_same(back[name], g)

    def test_written_npz_is_sound_and_repeatable(self):
        numpy.savez(self.path("m.npz"), a=normal(9), b=normal(2, 2))
        self.there_and_back("m.npz", "o.npz")
        first = self.read("o.npz")
        self.assertIsNone(zipfile.ZipFile(io.BytesIO(first)).testzip())
        self.there_and_back("m.npz", "o.npz")
        self.assertEqual(self.read("o.npz"), first)

    def test_safetensors_of_every_type(self):
        parts = {"f32": ("F32", (3, 4), normal(3, 4).tobytes()), "f16": ("F16", (5,), normal(5, dtype="<f2").tobytes()),
                 "bf16": ("BF16", (2, 3), bf16(normal(2, 3)).tobytes()), "é \"quoted\"": ("F32", (), normal().tobytes()),
                 "none": ("F32", (0, 2), b"")}
        header, data = {"__metadata__": {"format": "pt"}}, b""
        for name, (dtype, shape, content) in parts.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
            data += content
        self.write("m.safetensors", safetensors(header, data))
        self.there_and_back("m.safetensors", "o.safetensors", "--dtype", "same")
        self.assertEqual(read_safetensors(self.read("o.safetensors")), parts)
        self.there_and_back("m.safetensors", "f32.npz")
        wanted = numpy.frombuffer(parts["bf16"][2], "<u2").astype("<u4") << 16
        self.assertEqual(self.load("f32.npz")["bf16"].tobytes(), wanted.tobytes())

    def test_misaligned_safetensors(self):
        g = normal(6)
        for pad in range(4):  # shifts the data by one byte each
            header = b'{"g":{"dtype":"F32","shape":[6],"data_offsets":[0,24]}}' + b" " * pad
            self.write("m.safetensors", safetensors(header, g.tobytes()))
            self.there_and_back("m.safetensors", "o.npy")
            self.assert_same(self.load("o.npy"), g)

    def test_decoding_to_halves(self):
        g = normal(1000)
        self.there_and_back(self.save("g.npy", g), "o.npy", "--dtype", "f16")
        half = self.load("o.npy")
        self.assertEqual(half.dtype, numpy.dtype("<f2"))
        self.assertLess(numpy.abs(half.astype("f4") - g).max(), 2**-8)
        self.there_and_back("g.npy", "o.safetensors", "--dtype", "bf16")
        self.assertEqual(read_safetensors(self.read("o.safetensors"))["g"][0], "BF16")
        self.refuse(2, ["bf16", ".safetensors"], "decode", "--dtype", "bf16", "g.atomo", "no.npy")


class Models(ToolTest):
    def names(self, *arguments):
        self.succeed("encode", "--codec", "identity", *arguments, "m.atomo")
        return [layer["name"] for layer in self.succeed_json("inspect", "m.atomo")["layers"]]

    def test_several_files_are_one_model(self):
        numpy.savez(self.path("m.npz"), a=normal(3), b=normal(4))
        self.save("c.npy", normal(5))
        self.assertEqual(self.names("m.npz", "c.npy"), ["a", "b", "c"])
        self.succeed("decode", "m.atomo", "o.npz")
        self.assertEqual(self.load("o.npz")["c"].tobytes(), normal(5).tobytes())

    def test_clashing_names_take_their_files_stem(self):
        numpy.savez(self.path("x.npz"), a=normal(3), b=normal(4))
        numpy.savez(self.path("y.npz"), a=normal(3), c=normal(4))
        self.assertEqual(self.names("x.npz", "y.npz"), ["x/a", "b", "y/a", "c"])
        self.assertEqual(len(set(self.names("x.npz", "x.npz"))), 4)

    def test_names_that_an_archive_cannot_have(self):
        for name in ("w\0b", "w\0", "w\u00e9ight\x01"):
            with self.subTest(name=name):
                entry = {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
                self.write("m.safetensors", safetensors(entry, bytes(8)))
                self.succeed("encode", "--codec", "identity", "m.safetensors", "m.atomo")
                self.refuse(2, ["tensor 'w", "cannot have that name; write .safetensors"], "decode", "m.atomo", "o.npz")
                self.succeed("decode", "m.atomo", "o.safetensors")
                self.assertEqual(list(read_safetensors(self.read("o.safetensors"))), [name])

    def test_a_name_that_safetensors_cannot_have(self):
        g = normal(3)
        numpy.savez(self.path("m.npz"), __metadata__=g)
        self.succeed("encode", "--codec", "identity", "m.npz", "m.atomo")
        self.refuse(2, ["cannot hold a tensor of the name '__metadata__'", "write .npz"], "decode", "m.atomo", "o.safetensors")
        self.succeed("decode", "m.atomo", "o.npz")
        self.assertEqual(self.load("o.npz")["__metadata__"].tobytes(), g.tobytes())

    def test_a_file_name_that_is_not_utf8(self):
        with open(os.path.join(os.fsencode(self.directory), b"bad\xff.npy"), "wb") as file:
            numpy.save(file, normal(3))
        self.refuse(2, ["is not UTF-8 from byte 3 on", "names must be"], "encode", "--codec", "sign", os.fsdecode(b"bad\xff.npy"), "o.atomo")

    def test_one_tensor_fits_npy_and_several_do_not(self):
        numpy.savez(self.path("m.npz"), a=normal(3), b=normal(4))
        self.names("m.npz")
        self.refuse(2, ["2 tensors", ".npz or .safetensors"], "decode", "m.atomo", "o.npy")

    def test_layers_without_names_are_numbered(self):
        numpy.savez(self.path("m.npz"), a=normal(3), b=normal(4))
        self.assertEqual(self.names("--without-names", "m.npz"), ["tensor_0", "tensor_1"])
        self.succeed("decode", "m.atomo", "o.npz")
        self.assertEqual(self.load("o.npz").files, ["tensor_0", "tensor_1"])

    def test_threads_do_not_change_the_bytes(self):
        numpy.savez(self.path("m.npz"), a=normal(300, 200), b=normal(400))
        for spec in ("identity:dtype=f16", "qsgd:bits=2", "atomo:bits=0.5"):
            found = set()
            for threads in (1, 2, 7):
                self.succeed("encode", "--codec", spec, "--threads", threads, "m.npz", "m.atomo")
                found.add(self.read("m.atomo"))
            self.assertEqual(len(found), 1, spec)

    def test_the_key_changes_the_draws(self):
        self.save("g.npy", normal(500))
        found = set()
        for key in ((), ("--seed", 1), ("--step", 1), ("--worker", 1)):
            self.succeed("encode", "--codec", "qsgd:bits=2", *key, "g.npy", "g.atomo")
            self.succeed("decode", "g.atomo", "o.npy")
            found.add(self.read("o.npy"))
        self.assertEqual(len(found), 4)

    def test_reports(self):
        self.save("g.npy", normal(25, 40))
        report = self.succeed_json("encode", "--codec", "identity", "g.npy", "g.atomo")
        self.assertEqual((report["tensors"], report["elements"]), (1, 1000))
        self.assertEqual(report["bytes"], len(self.read("g.atomo")))
        self.assertEqual(report["bits_per_parameter"], 8 * report["bytes"] / 1000)
        report = self.succeed_json("decode", "g.atomo", "o.npy")
        self.assertEqual(report["tensors"], [{"name": "g", "dtype": "f32", "shape": [25, 40]}])


class Pipes(ToolTest):
    def test_every_format_comes_through_pipes(self):
        g = normal(20, 30)
        self.save("g.npy", g)
        numpy.savez(self.path("g.npz"), g=g)
        header = {"g": {"dtype": "F32", "shape": [20, 30], "data_offsets": [0, g.nbytes]}}
        self.write("g.safetensors", safetensors(header, g.tobytes()))
        for name in ("g.npy", "g.npz", "g.safetensors"):
            payload = self.succeed("encode", "--codec", "identity", "-", "-", input=self.read(name))
            for form in (None, "npy", "npz", "safetensors"):
                options = ("--format", form) if form else ()
                out = self.succeed("decode", *options, "-", "-", input=payload)
                if form == "safetensors":
                    back = numpy.frombuffer(list(read_safetensors(out).values())[0][2], "<f4")
                else:
                    back = numpy.load(io.BytesIO(out))
                    back = back[back.files[0]] if form == "npz" else back
                self.assertEqual(back.tobytes(), g.tobytes())
        self.assertEqual(self.succeed("encode", "--codec", "identity", "g.npz", "-"),
                         self.succeed("encode", "--codec", "identity", "g.npy", "-"))

    def test_several_tensors_on_a_pipe_are_an_npz(self):
        buffer = io.BytesIO()
        numpy.savez(buffer, a=normal(3), b=normal(4))
        payload = self.succeed("encode", "--codec", "identity", "-", "-", input=buffer.getvalue())
        self.assertEqual(numpy.load(io.BytesIO(self.succeed("decode", "-", "-", input=payload))).files, ["a", "b"])

    def test_inspect_and_measure_read_pipes(self):
        g = self.read(self.save("g.npy", normal(50)))
        payload = self.succeed("encode", "--codec", "identity", "-", "-", input=g)
        self.assertEqual(self.succeed_json("inspect", "-", input=payload)["elements"], 50)
        self.assertEqual(self.succeed_json("measure", "--codec", "identity", "-", input=g)["input"],
                         {"tensors": 1, "elements": 50})

    def test_the_report_leaves_the_pipe_alone(self):
        self.save("g.npy", normal(50))
        done = self.run_tool("encode", "--json", "--codec", "identity", "g.npy", "-")
        self.assertEqual(done.stdout, self.succeed("encode", "--codec", "identity", "g.npy", "-"))
        self.assertIn(b'"bits_per_parameter"', done.stderr)

    def test_what_is_no_tensor_is_refused(self):
        for content in (b"", b"hello", b"\x00" * 100):
            self.refuse(2, ["standard input", ".npy, .npz and .safetensors"], "encode", "--codec", "identity", "-", "o",
                        input=content)
