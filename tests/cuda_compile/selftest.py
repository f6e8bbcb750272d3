#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows that check_kernels.py refuses what it is there to refuse: each file of refused/ has one fault, named in its
first lines, and accepted/ has none. Also plants changes in the tables.

usage: selftest.py [--nvcc NVCC] --work DIR -- NVCC_FLAGS...
"""
import os
import re
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
CLEAN = os.path.join(HERE, "accepted", "clean.cu")


class Refusals(unittest.TestCase):
    """One run of check_kernels.py a case, for one architecture."""

    options, flags = (), ()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.allowed = os.path.join(folder.name, "allowed.txt")
        self.resources = os.path.join(folder.name, "resources.txt")
        self.instructions = os.path.join(folder.name, "instructions.txt")
        self.allow()

    def allow(self, *lines):
        with open(self.allowed, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)

    def check(self, source, *options, flags=()):
        command = [sys.executable, os.path.join(HERE, "check_kernels.py"), *self.options, "--architectures", "90",
                   "--allowed", self.allowed, "--resources", self.resources, "--instructions", self.instructions, *options,
                   source, "--", *self.flags, *flags]
        made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return made.returncode, made.stdout

    def assert_refused(self, pattern, answer):
        self.assertEqual(answer[0], 1, answer[1])
        self.assertRegex(answer[1], pattern)

    def assert_accepted(self, answer):
        self.assertEqual(answer[0], 0, answer[1])

    def refused(self, name):
        return os.path.join(HERE, "refused", name + ".cu")

    def test_each_fault_is_refused_for_itself(self):
        for name in sorted(os.listdir(os.path.join(HERE, "refused"))):
            source = os.path.join(HERE, "refused", name)
            with open(source, encoding="utf-8") as file:
                head = file.read()
            flags = re.search(r"^// flags: (.*)", head, re.MULTILINE)
            with self.subTest(fault=name):
                # --write: the table of resources is not what is tried here.
                answer = self.check(source, "--write", flags=flags[1].split() if flags else ())
                self.assert_refused(re.search(r"^// refused: (.*)", head, re.MULTILINE)[1], answer)
                self.assertFalse(os.path.exists(self.resources), "a refused file was written down")

    def test_a_clean_file_is_accepted(self):
        self.assert_refused(r"\+ clean\.cu +mean_kernel<true>", self.check(CLEAN))
        self.assert_accepted(self.check(CLEAN, "--write"))
        self.assert_accepted(self.check(CLEAN))

    def test_a_changed_figure_is_refused(self):
        self.assert_accepted(self.check(CLEAN, "--write"))
        with open(self.resources, encoding="utf-8") as file:
            text = file.read()
        changed = re.sub(r"(root_kernel +sm_90 +)(\d+)", lambda match: f"{match[1]}{int(match[2]) + 1}", text)
        self.assertNotEqual(text, changed)
        with open(self.resources, "w", encoding="utf-8") as file:
            file.write(changed)
        self.assert_refused(r"- clean\.cu +root_kernel.*\n +\+ clean\.cu +root_kernel.*\n.*--write", self.check(CLEAN))
        with open(self.resources, "w", encoding="utf-8") as file:
            file.write(text + "clean.cu gone_kernel sm_90 1 0 0 0 0\n")
        self.assert_refused(r"- clean\.cu +gone_kernel", self.check(CLEAN))

    def test_a_kernel_that_executes_more_is_refused(self):
        self.assert_accepted(self.check(CLEAN, "--write"))
        if not os.path.exists(self.instructions):
            self.skipTest("there is no nvdisasm")
        with open(self.instructions, encoding="utf-8") as file:
            text = file.read()
        row = re.search(r"^clean\.cu +mean_kernel<true>.*$", text, re.MULTILINE)[0]
        cells = row.split()
        for share, accepted in ((1.04, True), (1.06, False)):  # what the committed kernel had less
            less = "  ".join([*cells[:5], f"{int(cells[5]) / share:.1f}", *cells[6:]])
            with open(self.instructions, "w", encoding="utf-8") as file:
                file.write(text.replace(row, less))
            answer = self.check(CLEAN)
            if accepted:
                self.assert_accepted(answer)
            else:
                self.assert_refused(r"mean_kernel<true> for sm_90: way [\d.]+ -> \d+\n.*cuda_resources", answer)

    def test_allowances_are_exact(self):
        source = self.refused("explicit_fma")
        self.allow("explicit_fma.cu sum_.* fused 1 the format writes it")
        self.assert_accepted(self.check(source, "--write"))
        for wrong, pattern in (("explicit_fma.cu sum_.* fused 2 too many", "the most found is 1"),
                               ("explicit_fma.cu sum_.* fused 0 too few", "allows 0, not 1"),
                               ("explicit_fma.cu sum fused 1 not the whole name", "fused: 1 fma"),
                               ("another.cu sum_.* fused 1 another file", "fused: 1 fma"),
                               ("explicit_fma.cu sum_.* minmax 1 another rule", "fused: 1 fma")):
            with self.subTest(line=wrong):
                self.allow(wrong)
                self.assert_refused(pattern, self.check(source))
        self.allow("explicit_fma.cu sum_.* fused 1")
        self.assert_refused("is wanted", self.check(source))

    def test_stack_can_be_allowed_and_a_spill_cannot(self):
        self.allow("local_memory.cu table_kernel stack 128 a table of 32 words")
        self.assert_accepted(self.check(self.refused("local_memory"), "--write"))
        self.allow("local_memory.cu .* * * every rule of the instructions")
        self.assert_refused("stack: 128", self.check(self.refused("local_memory")))
        self.allow("spill.cu .* * * everything", "spill.cu .* stack * everything")
        self.assert_refused("spill_kernel: [0-9]+ bytes spilled on sm_90", self.check(self.refused("spill")))

    def test_tables_speak_of_the_files_that_are_compiled(self):
        self.assert_refused("resources.txt has no row of clean.cu", self.check(CLEAN, "--tables"))
        self.assert_accepted(self.check(CLEAN, "--write"))
        self.assert_accepted(self.check(CLEAN, "--tables"))
        self.allow("gone.cu kernel fused 1 once")
        self.assert_refused("allowed.txt speaks of gone.cu", self.check(CLEAN, "--tables"))
        self.assert_refused("resources.txt has rows of clean.cu", self.check(self.refused("spill"), "--tables"))


if __name__ == "__main__":
    split = sys.argv.index("--")
    Refusals.options, Refusals.flags = tuple(sys.argv[1:split]), tuple(sys.argv[split + 1:])
    unittest.main(argv=sys.argv[:1])
