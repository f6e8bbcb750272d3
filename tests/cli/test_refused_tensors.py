# SPDX-License-Identifier: Apache-2.0
"""Tensor files that are refused: each with one line that names the file and what would be right."""
import io
import json
import os
import random
import resource
import struct
import warnings
import zipfile

import numpy

from support import ToolTest, normal, npy, obey_permissions, safetensors

GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"


def npz(entries, method=zipfile.ZIP_STORED):
    """A zip archive of (name, bytes) pairs."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that stand twice
        for name, content in entries:
            archive.writestr(name, content)
    return buffer.getvalue()


class Refused(ToolTest):
    def refuse_file(self, name, content, *wanted, **options):
        """Both commands that read tensors refuse the file."""
        self.write(name, content)
        self.refuse(2, [name, *wanted], "encode", "--codec", "identity", name, "out.atomo", **options)
        self.refuse(2, [name, *wanted], "measure", "--codec", "identity", name, **options)


class Npy(Refused):
    def saved(self, array):
        buffer = io.BytesIO()
        numpy.save(buffer, array, allow_pickle=True)
        return buffer.getvalue()

    def test_types(self):
        for array, wanted in ((numpy.zeros(3), "'<f8'"), (numpy.zeros(3, "<i4"), "'<i4'"), (numpy.zeros(3, "?"), "'|b1'"),
                              (numpy.zeros(3, "<c8"), "'<c8'"), (numpy.zeros(3, ">f4"), "big-endian"),
                              (numpy.zeros(3, ">f2"), "big-endian"), (numpy.array([{}, None]), "Python objects"),
                              (numpy.zeros(3, "V2"), "bfloat16"), (numpy.array(["text"]), "'<U4'"),
                              (numpy.zeros(3, [("a", "<f4"), ("b", "<f4")]), "structured")):
            with self.subTest(wanted=wanted):
                self.refuse_file("g.npy", self.saved(array), wanted, "accepted are '<f4' and '<f2'")

    def test_fortran_order(self):
        self.refuse_file("g.npy", self.saved(numpy.asfortranarray(normal(3, 4))), "Fortran", "ascontiguousarray")

    def test_every_truncation(self):
        content = self.saved(normal(2, 2))
        for length in range(len(content)):
            with self.subTest(length=length):
                self.write("g.npy", content[:length])
                self.refuse(2, "g.npy: truncated" if length > 5 else "g.npy", "encode", "--codec", "identity", "g.npy", "o")

    def test_bytes_after_the_array(self):
        self.refuse_file("g.npy", self.saved(normal(3)) + b"\0", "1 bytes after the array")

    def test_foreign_and_damaged(self):
        good = npy(GOOD, bytes(48))
        self.refuse_file("g.npy", b"", "is empty")
        self.refuse_file("g.npy", npz([("a.npy", good)]), "must begin with")
        self.refuse_file("g.npy", npy(GOOD, bytes(48), (4, 0)), "version 4.0", "accepted are 1.0, 2.0 and 3.0")
        self.refuse_file("g.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + bytes(100), "header of 2147483648")
        self.refuse_file("g.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", 5000) + bytes(100), "truncated")

    def test_headers(self):
        for header in ("", "{", "{}", "[]", "{'descr': '<f4'}", GOOD + "x", GOOD.replace("False", "false"),
                       GOOD.replace("'<f4'", "None"), GOOD.replace("(3, 4)", "3"), GOOD.replace("(3, 4)", "(3 4)"),
                       GOOD.replace("(3, 4)", "(-3, 4)"), GOOD.replace("(3, 4)", "(3.0, 4)"),
                       GOOD.replace("(3, 4)", "(99999999999999999999,)"), GOOD.replace("'shape'", "'sharp'"),
                       GOOD.replace("'fortran_order': False", "'descr': '<f4'"), GOOD.replace("'descr", "descr"),
                       GOOD.replace("}", "'extra': 1}"), "{'descr': '<f4"):
            with self.subTest(header=header):
                self.refuse_file("g.npy", npy(header, bytes(48)), "damaged .npy header")

    def test_shapes(self):
        self.refuse_file("g.npy", npy(GOOD.replace("(3, 4)", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), bytes(4)), "8")
        self.refuse_file("g.npy", npy(GOOD.replace("(3, 4)", "(4611686018427387904, 4)"), bytes(48)), "g.npy")
        self.refuse_file("g.npy", npy(GOOD.replace("(3, 4)", "(1099511627776,)"), bytes(48)), "truncated", "4398046511104")


class Npz(Refused):
    def test_archives(self):
        self.refuse_file("m.npz", b"hello there", "not a zip archive")
        self.refuse_file("m.npz", npy(GOOD, bytes(48)), "not a zip archive")
        self.refuse_file("m.npz", npz([]), "holds no tensors")
        self.refuse_file("m.npz", npz([("readme.txt", b"x")]), "entry 'readme.txt'", "must end in .npy")
        self.refuse_file("m.npz", npz([("a.npy", npy(GOOD, bytes(48)))] * 2), "'a.npy'", "twice")
        self.refuse_file("m.npz", npz([("a.npy", npy(GOOD, bytes(47)))]), "'a.npy'", "truncated")
        self.refuse_file("m.npz", npz([("a.npy", npy(GOOD.replace("f4", "f8"), bytes(96)))]), "'a.npy'", "'<f8'")

    def test_compression_methods(self):
        for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
            self.refuse_file("m.npz", npz([("a.npy", npy(GOOD, bytes(48)))], method), "stored (0) and deflated (8)")

    def test_truncations(self):
        content = npz([("a.npy", npy(GOOD, bytes(48))), ("b.npy", npy(GOOD, bytes(48)))], zipfile.ZIP_DEFLATED)
        for length in range(0, len(content), 7):
            with self.subTest(length=length):
                self.write("m.npz", content[:length])
                self.refuse(2, "m.npz", "encode", "--codec", "identity", "m.npz", "o")

    def test_damaged_content(self):
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            content = bytearray(npz([("a.npy", npy(GOOD, normal(3, 4).tobytes()))], method))
            content[150 if method == zipfile.ZIP_STORED else 80] ^= 4
            self.refuse_file("m.npz", bytes(content), "'a.npy'", "damaged")

    def test_sizes_that_cannot_be(self):
        content = npz([("a.npy", npy(GOOD, bytes(48)))], zipfile.ZIP_DEFLATED)
        central = content.rindex(b"PK\x01\x02")
        huge = content[:central + 24] + struct.pack("<I", 2**31) + content[central + 28:]
        self.refuse_file("m.npz", huge, "'a.npy'")


class Safetensors(Refused):
    ENTRY = {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}

    def refuse_entry(self, changes, *wanted):
        self.refuse_file("m.safetensors", safetensors({"g": {**self.ENTRY, **changes}}, bytes(12)), *wanted)

    def test_types(self):
        for dtype, size in (("F64", 24), ("I64", 24), ("BOOL", 3), ("F8_E4M3", 3)):
            header = {"g": {"dtype": dtype, "shape": [3], "data_offsets": [0, size]}}
            self.refuse_file("m.safetensors", safetensors(header, bytes(size)), "'g'", f"'{dtype}'",
                             "accepted are F32, F16 and BF16")

    def test_every_truncation(self):
        content = safetensors({"g": self.ENTRY}, bytes(12))
        for length in range(len(content)):
            with self.subTest(length=length):
                self.write("m.safetensors", content[:length])
                self.refuse(2, "m.safetensors", "encode", "--codec", "identity", "m.safetensors", "o")

    def test_headers(self):
        for header in (b"", b"{", b"[]", b"3", b"{}}", b'{"g": 1', b"\xff\xfe"):
            self.refuse_file("m.safetensors", safetensors(header, bytes(8)), "header is not a JSON object")
        for header in ({"g": 1}, {"g": {}}, {"g": []}):
            self.refuse_file("m.safetensors", safetensors(header), "'g'", "needs dtype, shape and data_offsets")
        self.refuse_file("m.safetensors", safetensors({}), "holds no tensors")
        self.refuse_file("m.safetensors", struct.pack("<Q", 2**40) + b"{}", "at most 100000000")
        self.refuse_file("m.safetensors", struct.pack("<Q", 2**64 - 1) + b"{}", "at most 100000000")
        for nested in (b"[" * 4_000_000, b'{"a":' * 9 + b"1" + b"}" * 9):  # megabytes of brackets stay megabytes
            self.refuse_file("m.safetensors", safetensors(nested), "nests more than 8 lists",
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20)))

    def test_long_lists(self):
        """At once: dimensions by the million would take a value of 16 bytes each, and be looked at last."""
        entry = b'{"g":{"dtype":"F32","shape":[' + b"0," * 8_000_000 + b'0],"data_offsets":[0,0]}}'
        self.refuse_file("m.safetensors", safetensors(entry), "a list of more than 64 values",
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20)))
        many = {str(i): "" for i in range(100)}  # a map, not a list
        self.refuse_file("m.safetensors", safetensors({"__metadata__": many}), "holds no tensors")

    def test_entries(self):
        self.refuse_entry({"shape": [2]}, "do not span the 8 bytes")
        self.refuse_entry({"data_offsets": [0, 16]}, "its data end at byte 16, 12 are there")
        self.refuse_entry({"data_offsets": [12, 0]}, "end before they begin")
        self.refuse_entry({"data_offsets": [4, 16]}, "truncated")
        self.refuse_entry({"data_offsets": [0]}, "two integers")
        self.refuse_entry({"data_offsets": [-1, 11]}, "integers from 0")
        self.refuse_entry({"shape": [-3]}, "integers from 0")
        self.refuse_entry({"shape": [3.0]}, "integers from 0")
        self.refuse_entry({"shape": 3}, "must be a list")
        self.refuse_entry({"shape": [2**64 - 1]}, "'g'")
        self.refuse_entry({"shape": [1] * 9}, "8")
        self.refuse_entry({"dtype": 5}, "accepted are F32")

    def test_gaps_overlaps_and_rests(self):
        other = {"dtype": "F32", "shape": [1], "data_offsets": [16, 20]}
        self.refuse_file("m.safetensors", safetensors({"g": self.ENTRY, "h": other}, bytes(20)), "'h'", "12 was expected")
        other["data_offsets"] = [8, 12]
        self.refuse_file("m.safetensors", safetensors({"g": self.ENTRY, "h": other}, bytes(12)), "'h'", "12 was expected")
        self.refuse_file("m.safetensors", safetensors({"g": self.ENTRY}, bytes(13)), "1 bytes after")
        twice = json.dumps({"g": self.ENTRY})[:-1] + ', "g": {"dtype":"F32","shape":[1],"data_offsets":[12,16]}}'
        self.refuse_file("m.safetensors", safetensors(twice.encode(), bytes(16)), "m.safetensors")


class Mutated(ToolTest):
    """Files changed at random: taken or refused, always cleanly."""

    def test_random_changes(self):
        header = {"g": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}
        array = npy(GOOD, normal(3, 4).tobytes())
        for name, content in (("g.npy", array), ("g.npz", npz([("a.npy", array)])),
                              ("g.npz", npz([("a.npy", array)], zipfile.ZIP_DEFLATED)),
                              ("g.safetensors", safetensors(header, bytes(48)))):
            draw = random.Random(name)
            for _ in range(2000 if os.environ.get("ATOMO_TESTS_ALL") == "1" else 30):
                changed = bytearray(content)
                for _ in range(draw.randrange(1, 4)):
                    at = draw.randrange(len(changed))
                    changed[at] = draw.choice((0, 255, changed[at] ^ 1 << draw.randrange(8), draw.randrange(256)))
                self.write(name, bytes(changed))
                done = self.run_tool("encode", "--codec", "identity", name, "o")
                self.assertIn(done.returncode, (0, 2), bytes(changed))
                self.assertLessEqual(done.stderr.count(b"\n"), 1, bytes(changed))


class Unreadable(Refused):
    def test_permissions(self):
        self.save("g.npy", normal(3))
        os.chmod(self.path("g.npy"), 0)
        os.mkdir(self.path("closed"), 0)
        self.addCleanup(os.chmod, self.path("closed"), 0o700)
        for name in ("g.npy", "closed/g.npy"):
            for command in (("encode", "--codec", "identity", name, "o"), ("measure", "--codec", "identity", name),
                            ("inspect", name), ("decode", name, "o.npy")):
                self.refuse(2, [name, "Permission denied"], *command, preexec_fn=obey_permissions)
