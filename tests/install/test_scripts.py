#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the scripts around the build: what they answer, and that the count of tests is honest."""
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class Scripts(unittest.TestCase):
    """Each script answers --help and refuses what it does not know."""

    def test_help_and_unknown_options(self):
        for script in ("scripts/install.sh", "scripts/python.sh", "scripts/wheel.sh", "scripts/docs.sh", "tests/run.sh", "tests/gpu.sh",
                       "examples/quickstart.sh", "bench/run.sh", "bench/roofline.sh"):
            path = os.path.join(ROOT, script)
            with self.subTest(script=script), tempfile.TemporaryDirectory() as folder:
                answer = run("bash", path, "--help", cwd=folder)
                self.assertEqual(answer.returncode, 0, answer.stderr)
                self.assertIn("usage: bash " + script, answer.stdout)
                answer = run("bash", path, "--no-such-option", cwd=folder)
                self.assertNotEqual(answer.returncode, 0)
                self.assertIn("--no-such-option", answer.stderr)

    def test_install_lists_packages_and_finds_them(self):
        script = os.path.join(ROOT, "scripts", "install.sh")
        packages = run("bash", script, "--list").stdout.split()
        self.assertIn("libblosc-dev", packages)
        self.assertEqual(len(packages), len(set(packages)))

    def test_ci_runs_the_tests(self):
        answer = run(os.path.join(ROOT, ".ci", "run"), "--help")
        self.assertEqual(answer.returncode, 0)
        self.assertIn("usage: bash tests/run.sh", answer.stdout)


class Tally(unittest.TestCase):
    """The last line counts what happened, a case at a time."""

    CASES = {
        "passed": '<testcase name="a" status="run"/>',
        "failed": '<testcase name="b" status="fail"><failure message="x"/></testcase>',
        "skipped": '<testcase name="c" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>',
        "disabled": '<testcase name="d" status="disabled"><skipped message="Disabled"/></testcase>',
        "not built": '<testcase name="e" status="notrun"><skipped message="Unable to find executable"/></testcase>',
    }

    def tally(self, *cases, options=()):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "part.xml")
            with open(path, "w", encoding="utf-8") as file:
                file.write("<testsuite>" + "".join(self.CASES[case] for case in cases) + "</testsuite>")
            answer = run(sys.executable, os.path.join(ROOT, "tests", "tally.py"), *options, f"part={path}")
        return answer.stdout.splitlines()[-1], answer.returncode

    def test_counts(self):
        self.assertEqual(self.tally("passed", "passed"), ("2 passed, 0 failed", 0))
        self.assertEqual(self.tally("passed", "failed"), ("1 passed, 1 failed", 1))
        self.assertEqual(self.tally("passed", "skipped", "disabled"), ("1 passed, 0 failed, 2 skipped", 0))

    def test_counts_of_pytest(self):
        for body, line in (("", "1 passed, 0 failed"), ('<failure message="x"/>', "0 passed, 1 failed"),
                           ('<error message="x"/>', "0 passed, 1 failed"),
                           ('<skipped message="x"/>', "0 passed, 0 failed, 1 skipped")):
            with self.subTest(body=body), mock.patch.dict(self.CASES, {
                    "pytest": f'<testcase classname="test_a" name="b" time="0.1">{body}</testcase>'}):
                self.assertEqual(self.tally("pytest")[0], line)

    def test_what_never_ran_has_failed(self):
        self.assertEqual(self.tally("passed", "not built"), ("1 passed, 1 failed", 1))
        self.assertEqual(self.tally("passed", options=["--build-failures", "1"]), ("1 passed, 1 failed", 1))
        self.assertEqual(self.tally("passed", options=["gone=no-such-file.xml"]), ("1 passed, 1 failed", 1))
        self.assertEqual(self.tally()[1], 1)

    def cases(self, ended, cases):
        """Returns the last line for one test of ctest that wrote these cases of GoogleTest; none where `cases` is None."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "part.xml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f'<testsuite><testcase name="x" status="{ended}"/></testsuite>')
            if cases is not None:
                with open(os.path.join(folder, "x.xml"), "w", encoding="utf-8") as file:
                    file.write(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
            answer = run(sys.executable, os.path.join(ROOT, "tests", "tally.py"), f"part={path},{folder}")
        return answer.stdout.splitlines()[-1]

    def test_counts_cases_in_place_of_their_program(self):
        good = '<testcase classname="A" name="b" status="run" result="completed"/>'
        bad = good.replace("/>", '><failure message="x"/></testcase>')
        skipped = good.replace("completed", "skipped")
        self.assertEqual(self.cases("run", good + good + skipped), "2 passed, 0 failed, 1 skipped")
        self.assertEqual(self.cases("fail", good + bad), "1 passed, 1 failed")
        self.assertEqual(self.cases("fail", good), "1 passed, 1 failed", "a crash behind the last case")
        self.assertEqual(self.cases("fail", None), "0 passed, 1 failed", "a crash before the file was written")
        self.assertEqual(self.cases("run", None), "1 passed, 0 failed", "no program of cases")
        self.assertEqual(self.cases("fail", good + "<testcase"), "0 passed, 1 failed", "a file that was cut")


class Tiers(unittest.TestCase):
    """A test without a tier, with two, or whose filter matches nothing, is found."""

    def verdict(self, *tests):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
                for number, (command, labels) in enumerate(tests):
                    file.write(f"add_test(t{number} {command})\nset_tests_properties(t{number} PROPERTIES LABELS \"{labels}\")\n")
            answer = run(sys.executable, os.path.join(ROOT, "tests", "tiers.py"), folder)
        return answer.returncode, answer.stdout

    def test_each_has_one(self):
        self.assertEqual(self.verdict(("true", "commit"), ("true", "kernels"), ("true", "long")),
                         (0, "every test is in one tier\n"))
        for labels in ("", "nightly", "commit;long"):
            with self.subTest(labels=labels):
                status, told = self.verdict(("true", labels))
                self.assertEqual(status, 1)
                self.assertIn("t0: its labels are", told)
        self.assertEqual(self.verdict()[0], 1, "a tree without tests")

    def test_filters_name_cases(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "cases")
            with open(program, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\ncase "$*" in *none*) ;; *) printf "Suite.\\n  Case\\n";; esac\n')
            os.chmod(program, 0o755)
            self.assertEqual(self.verdict((f"{program} --gtest_filter=Suite.*", "commit"))[0], 0)
            self.assertIn("no case of cases matches", self.verdict((f"{program} --gtest_filter=none", "commit"))[1])
            self.assertIn("Suite.Case runs twice", self.verdict((f"{program} --gtest_filter=Suite.*", "commit"),
                                                                (f"{program} --gtest_filter=S*", "commit"))[1])


class Unaffected(unittest.TestCase):
    """Which files of kernels tests/run.sh does not compile, since they compile as they did."""

    FILES = {
        "src/cuda/a.cu": '#include "cuda/deep.cuh"\n',
        "src/cuda/b.cu": "#include <atomo/types.hpp>\n#  include \"beside.cuh\"\n",
        "src/cuda/deep.cuh": '#include "core/far.hpp"\n',
        "src/cuda/beside.cuh": "",
        "src/core/far.hpp": "",
        "include/atomo/types.hpp": "",
        "tests/cuda_compile/check_kernels.py": "",
        "tests/cuda_compile/allowed.txt": "",
        "tests/cuda_compile/resources.txt": "a.cu  x::first  sm_80  1\nb.cu  y::second  sm_80  1\n",
        "tests/cuda_compile/instructions.txt": "a.cu  x::first  sm_80  1\nb.cu  y::second  sm_80  1\n",
        "tools/gpu_model/kernels.toml": '["x::first"]\nunit = 1\n["y::second"]\nunit = 1\n',
    }

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for path, text in self.FILES.items():
            self.write(path, text)
        with open(os.path.join(ROOT, "tests", "cuda_compile", "unaffected.py"), encoding="utf-8") as script:
            self.write("tests/cuda_compile/unaffected.py", script.read())
        for command in (("init", "-q"), ("add", "."), ("commit", "-qm", "x")):
            run("git", "-c", "user.name=a", "-c", "user.email=b", *command, cwd=self.folder)

    def write(self, path, text):
        path = os.path.join(self.folder, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def names(self, commit="HEAD"):
        answer = run(sys.executable, os.path.join(self.folder, "tests", "cuda_compile", "unaffected.py"), commit)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return answer.stdout.split()

    def test_what_a_change_reaches(self):
        self.assertEqual(self.names(), ["a", "b"])
        for path, left in (("src/cuda/a.cu", ["b"]), ("src/core/far.hpp", ["b"]), ("include/atomo/types.hpp", ["a"]),
                           ("src/cuda/beside.cuh", ["a"]), ("tests/cuda_compile/check_kernels.py", [])):
            with self.subTest(path=path):
                self.write(path, self.FILES[path] + "int changed;\n")
                self.assertEqual(self.names(), left)
                self.write(path, self.FILES[path])
        self.write("src/cuda/new.cu", "")
        self.assertEqual(self.names(), ["a", "b"])

    def test_comments_compile_as_they_did(self):
        path = "src/core/far.hpp"
        for text in ("// \"changed\n\n", "/* changed\nof \"two */\n", "// a /* in a comment\n"):
            with self.subTest(text=text):
                self.write(path, text)
                self.assertEqual(self.names(), ["a", "b"])
        for text in ("const char* changed = \"//\";\n", "#define CHANGED '\"' // x\n", "/* x */ int changed;\n", "#pragma once // x\n"):
            with self.subTest(text=text):
                self.write(path, text)
                self.assertEqual(self.names(), ["b"])
        self.write(path, "const char* a = \"x//y\";\n")
        run("git", "-c", "user.name=a", "-c", "user.email=b", "commit", "-qam", "y", cwd=self.folder)
        self.write(path, "const char* a = \"x//z\";\n")
        self.assertEqual(self.names(), ["b"])

    def test_what_is_said_of_a_kernel(self):
        for path in ("tests/cuda_compile/resources.txt", "tests/cuda_compile/instructions.txt", "tools/gpu_model/kernels.toml"):
            with self.subTest(path=path):
                head, tail = self.FILES[path].rsplit("1", 1)
                self.write(path, f"{head}2{tail}")
                self.assertEqual(self.names(), ["a"])
                self.write(path, self.FILES[path])
        self.write("tests/cuda_compile/allowed.txt", "a.cu  first  fused  1  a reason\n")
        self.assertEqual(self.names(), ["b"])

    def test_a_commit_that_is_not_there(self):
        answer = run(sys.executable, os.path.join(self.folder, "tests", "cuda_compile", "unaffected.py"), "no-such-commit")
        self.assertNotEqual(answer.returncode, 0)
        self.assertEqual(answer.stdout, "")


class TestRun(unittest.TestCase):
    """What tests/run.sh refuses before it does anything, and what it tells the tests."""

    def test_the_variables_that_tests_read_are_set(self):
        """A name that nobody sets would leave the long form of a test out for ever."""
        read, assigned = set(), set()
        for folder, _, files in os.walk(os.path.join(ROOT, "tests")):
            for file in files:
                if file.endswith((".py", ".cpp", ".hpp", ".sh", ".cmake", "CMakeLists.txt")):
                    with open(os.path.join(folder, file), encoding="utf-8") as source:
                        text = source.read()
                    read |= set(re.findall(r"(?:getenv\(|environ\.get\(|environ\[)[\"'](ATOMO_TEST\w+)", text))
                    assigned |= set(re.findall(r"\b(ATOMO_\w+)(?:=|[\"']\]? *[=:] )", text))
        self.assertIn("ATOMO_TESTS_ALL", read)
        self.assertEqual(read - assigned, set())

    def test_parts(self):
        script = os.path.join(ROOT, "tests", "run.sh")
        for options, said in ((("--all", "--part", "3/2"), "'3/2'"), (("--all", "--part"), "--part is ''"),
                              (("--part", "1/2"), "--all alone"), (("--base", "no-such-commit"), "no-such-commit")):
            with self.subTest(options=options):
                answer = run("bash", script, *options)
                self.assertEqual(answer.returncode, 2)
                self.assertIn(said, answer.stderr)


if __name__ == "__main__":
    unittest.main()
