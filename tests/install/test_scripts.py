#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the scripts around the build: what they answer, and that the count of tests is honest."""
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


class Scripts(unittest.TestCase):
    """Each script answers --help and refuses what it does not know."""

    def test_help_and_unknown_options(self):
        for script in ("scripts/install.sh", "tests/run.sh", "examples/quickstart.sh", "bench/run.sh"):
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

    def test_what_never_ran_has_failed(self):
        self.assertEqual(self.tally("passed", "not built"), ("1 passed, 1 failed", 1))
        self.assertEqual(self.tally("passed", options=["--build-failures", "1"]), ("1 passed, 1 failed", 1))
        self.assertEqual(self.tally("passed", options=["gone=no-such-file.xml"]), ("1 passed, 1 failed", 1))
        self.assertEqual(self.tally()[1], 1)


if __name__ == "__main__":
    unittest.main()
