# SPDX-License-Identifier: Apache-2.0
"""Patches from one state of a model to the next."""
import os
import sys

import numpy

from support import ToolTest, normal, safetensors

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))
from atomo_format import patches  # noqa: E402


def tensors(**arrays):
    """A .safetensors file of arrays of known types; uint16 stands for BF16."""
    types = {"float32": "F32", "float16": "F16", "float64": "F64", "uint16": "BF16", "int64": "I64", "uint8": "F8_E4M3",
             "bool": "BOOL"}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, array in arrays.items():
        begin, data = len(data), data + array.tobytes()
        header[name] = {"dtype": types[array.dtype.name], "shape": list(array.shape), "data_offsets": [begin, len(data)]}
    return safetensors(header, data)


def moved(array, share, seed=1):
    """The same with a share of the elements moved to a neighbour."""
    rng = numpy.random.default_rng(seed)
    bits = array.view({1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}[array.itemsize]).copy()
    flat = bits.reshape(-1)
    where = rng.random(flat.size) < share
    flat[where] ^= flat.dtype.type(1)
    return bits.view(array.dtype)


OLD = {"a": normal(300, 70), "b": normal(900, seed=2).astype("<f2"), "c": normal(65, 70, seed=3).view("<u2")[..., 1::2].copy(),
       "d": normal(20, 3).astype("<f8"), "steps": numpy.array(7), "e": numpy.arange(500, dtype="u1"), "f": numpy.zeros((0, 4), "f4"),
       "g": normal(40) > 0}


class Delta(ToolTest):
    def states(self, share=0.01):
        self.write("old.safetensors", tensors(**OLD))
        new = {name: array if name in "fg" else moved(array, share) for name, array in OLD.items()}
        return self.write("new.safetensors", tensors(**new))

    def round_trip(self):
        self.succeed("delta", "old.safetensors", "new.safetensors", "-o", "p.patch")
        self.succeed("apply", "old.safetensors", "p.patch", "-o", "made.safetensors")
        self.assertEqual(self.read("made.safetensors"), self.read("new.safetensors"))

    def test_the_file_comes_back_byte_for_byte(self):
        for share in (0, 0.003, 0.2, 1):
            with self.subTest(share):
                self.states(share)
                self.round_trip()

    def test_tensors_may_come_go_and_move(self):
        self.states()
        new = {"z": normal(30, seed=9), "c": OLD["a"], "a": moved(OLD["a"], 0.01)}
        self.write("new.safetensors", tensors(**new))
        self.round_trip()
        report = self.succeed_json("delta", "old.safetensors", "new.safetensors", "-o", "p.patch")
        forms = {tensor["name"]: tensor["form"] for tensor in report["tensors"]}
        self.assertEqual(forms, {"z": "whole", "c": "whole", "a": "changes"})

    def test_reports_pipes_and_a_patch_in_its_own_place(self):
        self.states()
        text = self.succeed("delta", "old.safetensors", "new.safetensors", "-o", "p.patch").decode()
        self.assertRegex(text, r"^p\.patch: [\d,]+ bytes for [\d,]+ \(1/[\d.]+\); [\d.]+ % of [\d,]+ elements changed; "
                               r"of 8 tensors, \d sent as changes, \d whole, \d as before\n$")
        piped = self.succeed("delta", "-", "new.safetensors", "-o", "-", input=self.read("old.safetensors"))
        self.assertEqual(piped, self.read("p.patch"))
        self.succeed("apply", "old.safetensors", "-", "-o", "old.safetensors", input=piped)
        self.assertEqual(self.read("old.safetensors"), self.read("new.safetensors"))
        one = self.succeed("delta", "old.safetensors", "new.safetensors", "-o", "-", "--threads", 1)
        self.assertEqual(one, self.succeed("delta", "old.safetensors", "new.safetensors", "-o", "-", "--threads", 3))

    def test_a_patch_takes_no_inputs_place(self):
        self.states()
        before = {name: self.read(name) for name in ("old.safetensors", "new.safetensors")}
        for output in ("old.safetensors", "./new.safetensors"):
            self.refuse(2, [f"{output}: the patch would take the place of a file that it is made from"], "delta", "old.safetensors",
                        "new.safetensors", "-o", output)
        self.assertEqual({name: self.read(name) for name in before}, before)

    def test_a_made_file_takes_no_patchs_place(self):
        self.states()
        self.succeed("delta", "old.safetensors", "new.safetensors", "-o", "p.patch")
        patch = self.read("p.patch")
        self.refuse(2, ["./p.patch: the file would take the place of the patch that makes it"], "apply", "old.safetensors", "p.patch",
                    "-o", "./p.patch")
        self.assertEqual(self.read("p.patch"), patch)

    def test_inspect_shows_a_patch(self):
        self.states()
        made = self.succeed_json("delta", "old.safetensors", "new.safetensors", "-o", "p.patch")
        shown = self.succeed_json("inspect", "p.patch")
        self.assertEqual(shown.pop("file"), made.pop("output"))
        self.assertEqual(shown, made)
        text = self.succeed("inspect", "p.patch").decode()
        self.assertRegex(text, r"^p\.patch: atomo patch, [\d,]+ bytes for [\d,]+ \(1/[\d.]+\); ")
        row = {tensor["name"]: tensor for tensor in made["tensors"]}["a"]
        self.assertRegex(text, rf"(?m)^a +F32 +\[300, 70\] +changes +21,000 +{row['changed']} +{row['bytes']:,}$")
        self.write("bad.patch", self.read("p.patch")[:-1])
        self.refuse(1, ["bad.patch: refused", "are there"], "inspect", "bad.patch")

    def test_an_independent_reader_makes_the_same_tensors(self):
        for share in (0.01, 0.5):
            self.states(share)
            self.succeed("delta", "old.safetensors", "new.safetensors", "-o", "p.patch")
            old = patches.stored_tensors(self.read("old.safetensors"))
            made = patches.apply(self.read("p.patch"), old)
            self.assertEqual(made, patches.stored_tensors(self.read("new.safetensors")))

    def test_what_cannot_be_used_is_refused_by_its_name(self):
        self.states()
        self.succeed("delta", "old.safetensors", "new.safetensors", "-o", "p.patch")
        patch = self.read("p.patch")
        apply = ("apply", "old.safetensors", "bad.patch", "-o", "made.safetensors")
        for wanted, content in (("bytes, a patch has at least", b""), ("does not begin with 'ATMPATCH'", b"x" * 100),
                                ("are there", patch[:-1]), ("are there", patch + b"\0"),
                                ("checksum differs", patch[:200] + bytes([patch[200] ^ 1]) + patch[201:]),
                                ("version 2", patch[:8] + b"\2" + patch[9:])):
            with self.subTest(wanted):
                self.write("bad.patch", content)
                self.refuse(1, ["bad.patch: refused", wanted], *apply)
        self.refuse(1, ["p.patch: refused", "not the one that the patch was made from"],
                    "apply", "new.safetensors", "p.patch", "-o", "made.safetensors")
        self.write("other.safetensors", tensors(a=normal(3)))
        self.refuse(1, ["p.patch: refused", "another file than other.safetensors"],
                    "apply", "other.safetensors", "p.patch", "-o", "made.safetensors")
        self.save("g.npy", normal(3))
        self.refuse(2, ["g.npy", "not a .safetensors file"], "delta", "old.safetensors", "g.npy", "-o", "p.patch")
        self.refuse(2, ["nowhere", "No such file"], "delta", "nowhere", "new.safetensors", "-o", "p.patch")
        self.refuse(2, "--output is required", "delta", "old.safetensors", "new.safetensors")

    def test_a_header_that_claims_more_than_the_patch_has(self):
        """A small patch may not take much memory: what it claims is held against what is there."""
        self.states()
        self.succeed("delta", "old.safetensors", "new.safetensors", "-o", "p.patch")
        huge = patches.with_record(self.read("p.patch"), 0, bytes=1 << 50)
        self.write("huge.patch", huge)
        self.refuse(1, "huge.patch: refused", "apply", "old.safetensors", "huge.patch", "-o", "made.safetensors")

    def test_a_note_that_is_no_header(self):
        """Patches of other programs have notes of their own."""
        self.states()
        self.write("none.safetensors", safetensors({}))
        self.succeed("delta", "none.safetensors", "new.safetensors", "-o", "p.patch")
        patch = self.read("p.patch")
        self.write("bad.patch", patches.with_note(patch, b"{" * patches.note_bytes(patch)))
        self.refuse(1, "bad.patch: refused: its header", "apply", "none.safetensors", "bad.patch", "-o", "made.safetensors")
