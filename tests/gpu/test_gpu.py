#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of tests/gpu.sh and its report with programs that stand in for the GPU's: what fails, what is cut short, what is
left when it is killed."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "python"))
import report as gpu_report  # noqa: E402
import suite  # noqa: E402

# Writes what GoogleTest writes: one case that passes, or fails where its filter matches FAIL; sleeps where SLOW asks.
CASES = """#!/usr/bin/env python3
import os, sys, time
options = dict(option.lstrip("-").split("=", 1) for option in sys.argv[1:] if "=" in option)
out = options.get("gtest_output")
if out:
    print("CUDA_MODULE_LOADING", os.environ.get("CUDA_MODULE_LOADING"), "entries", os.environ.get("ATOMO_TEST_ENTRIES"))
    time.sleep(float(os.environ.get("SLOW", "0")))
    fails = os.environ.get("FAIL", "no such filter") in options["gtest_filter"]
    case = '{"name": "n", "classname": "C", "status": "RUN", "result": "COMPLETED"%s}' % (
        ', "failures": [{"failure": "x"}]' if fails else "")
    with open(out[len("json:"):], "w") as file:
        file.write('{"testsuites": [{"testsuite": [%s]}]}' % case)
    sys.exit(fails)
print("[==========] 3 tests from 1 test suite ran. (1 ms total)")
"""
BENCH = """#!/usr/bin/env python3
import json, sys
options = dict(option.lstrip("-").split("=", 1) for option in sys.argv[1:] if "=" in option)
figures = [{"name": "25M/sign/encode/iterations:1/manual_time", "us": 70.0, "us_least": 69.0, "us_most": 72.0,
            "graph_us": 118.0, "graph_us_least": 117.0, "graph_us_most": 121.0, "of_limit": 0.3, "bits_per_parameter": 1.0},
           {"name": "machine/copy/iterations:1", "gbs": 3000.0},
           {"name": "25M/sign/encode/kernels/iterations:1/manual_time", "000 write_sign": 40.0, "001 seal": 9.0}]
with open(options["benchmark_out"], "w") as file:
    json.dump({"benchmarks": figures}, file)
"""
SMI = """#!/bin/sh
case "$1" in
  --query-gpu=compute_cap*) echo 9.0 ;;
  --query-gpu*) echo "GPU, 1.0, 9.0, 80 MiB" ;;
  *) echo clocks ;;
esac
"""
SANITIZER = """#!/bin/sh
echo "[==========] 3 tests from 1 test suite ran. (1 ms total)"
echo "========= ERROR SUMMARY: 0 errors"
"""


class Script(unittest.TestCase):
    """The whole script, in a tree of its own."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = self.folder.name
        shutil.copytree(HERE, os.path.join(self.root, "tests", "gpu"))
        shutil.copy(os.path.join(HERE, "..", "gpu.sh"), os.path.join(self.root, "tests", "gpu.sh"))
        for name, text in (("nvidia-smi", SMI), ("gpu_cases", CASES), ("bench_gpu", BENCH), ("compute-sanitizer", SANITIZER)):
            self.program(name, text)

    def program(self, name, text):
        path = os.path.join(self.root, "bin", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def start(self, *options, **environment):
        path = os.path.join(self.root, "bin")
        return subprocess.Popen(
            ["bash", os.path.join(self.root, "tests", "gpu.sh"), *options, "--out", os.path.join(self.root, "out"),
             "--commit", "c0ffee"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env={**os.environ, "PATH": path + os.pathsep + os.environ["PATH"], "ATOMO_GPU_PROGRAMS": path, **environment})

    def run_script(self, *options, **environment):
        process = self.start(*options, **environment)
        said = process.communicate(timeout=600)[0]
        return process.returncode, said

    def report(self):
        with open(os.path.join(self.root, "out", "gpu.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_without_a_gpu_nothing_is_run(self):
        self.program("nvidia-smi", "#!/bin/sh\nexit 9\n")
        status, said = self.run_script("smoke")
        self.assertEqual(status, 2)
        self.assertIn("no NVIDIA GPU", said)
        self.assertIn("--rehearse", said)

    def test_parts_leave_a_report_figures_and_logs(self):
        status, said = self.run_script("smoke", "correctness", "times")
        self.assertEqual(status, 0, said)
        found = self.report()
        self.assertTrue(found["passed"])
        self.assertEqual((found["commit"], found["machine"]["gpu"]["name"]), ("c0ffee", "GPU"))
        names = [step["name"] for step in found["steps"]]
        for name in ("clocks", "tests.lazy_graphs", "sanitizer.memcheck.three", "tests.two_streams", "tests.others", "bench.gpt2",
                     "bench.25M-kernels"):
            self.assertIn(name, names)
        with open(os.path.join(self.root, "out", "gpu.txt"), encoding="utf-8") as file:
            table = file.read()
        # Twice as long as sign's encoding was predicted, or nearly so, is pointed at.
        predicted = found["predictions"]["25M"]["sign"]["encode"]
        self.assertRegex(table, rf"25M +sign +encode +1\.000 +70\.0 +118\.0 +3% +30% +{predicted:g} +{118 / predicted:.2f} <--")
        self.assertRegex(table, r"25M/sign/encode/kernels: 49\.0 us\n000 write_sign +40\.0")
        self.assertRegex(table, r"machine/copy +3000 gbs")
        with tarfile.open(os.path.join(self.root, "out", "gpu-logs.tar.gz")) as archive:
            logs = {member.name: archive.extractfile(member).read().decode() for member in archive if member.isfile()}
        self.assertIn("CUDA_MODULE_LOADING LAZY", logs["./tests.lazy_graphs.log"])
        self.assertIn("entries 67108864", logs["./tests.two_streams.log"])

    def test_a_failure_in_smoke_ends_the_run(self):
        status, said = self.run_script("smoke", "times", FAIL="Graphs")
        self.assertEqual(status, 1)
        self.assertIn("nothing else is run", said)
        found = self.report()
        self.assertFalse(found["passed"])
        self.assertEqual(found["suites"][0]["failures"], ["C.n"])
        self.assertFalse([step for step in found["steps"] if step["name"].startswith("bench.25M")])

    def test_the_deadline_ends_a_step_and_names_the_rest(self):
        status, said = self.run_script("correctness", "--deadline", "9", SLOW="60")
        self.assertEqual(status, 1)
        self.assertIn("it ran out of time", said)
        steps = {step["name"]: step for step in self.report()["steps"]}
        self.assertEqual(steps["tests.parity"]["exit_status"], 124)
        self.assertEqual(steps["tests.large"]["not_run"], "the deadline was near")

    def test_what_was_done_before_a_kill_is_kept(self):
        process = self.start("smoke", SLOW="60")
        path = os.path.join(self.root, "out", "gpu.json")
        try:
            for _ in range(300):
                if os.path.exists(path) and any(step["name"] == "bench.machine" for step in self.report()["steps"]):
                    break
                time.sleep(0.1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self.assertEqual([step["name"] for step in self.report()["steps"]], ["clocks", "bench.machine"])
        self.assertTrue(os.path.exists(os.path.join(self.root, "out", "gpu-logs.tar.gz")))

    def test_a_rehearsal_names_what_needs_a_gpu(self):
        folder = os.path.join(self.root, "build", "release", "tests", "hostexec")
        os.makedirs(folder)
        shutil.copy(os.path.join(self.root, "bin", "gpu_cases"), os.path.join(folder, "hostexec_cases"))
        shutil.copy(os.path.join(self.root, "bin", "bench_gpu"), os.path.join(folder, "hostexec_bench"))
        self.program("nvidia-smi", "#!/bin/sh\nexit 9\n")
        status, said = self.run_script("--rehearse")
        self.assertEqual(status, 0, said)
        self.assertRegex(said, "needs a GPU: clocks, bench.machine, .*profile.default.*peers.torch")

    def test_a_package_that_cannot_be_built_is_said_and_not_tested(self):
        status, said = self.run_script("python")
        self.assertEqual(status, 1)
        self.assertRegex(said, "python/build.sh: there is no ")
        self.assertEqual([step["name"] for step in self.report()["steps"]], ["build.python"])

    def test_bad_arguments_are_named(self):
        for options, said in ((("--deadline", "soon"), "'soon'"), (("smok",), "'smok'"), (("--out",), "--out needs a value")):
            with self.subTest(options=options):
                answer = subprocess.run(["bash", os.path.join(self.root, "tests", "gpu.sh"), *options], capture_output=True,
                                        text=True, check=False)
                self.assertEqual(answer.returncode, 1)
                self.assertIn(said, answer.stderr)


class Report(unittest.TestCase):
    """The report is as honest as the tally."""

    CASE = '{"name": "n", "classname": "C", "status": "RUN", "result": "%s"%s}'
    FAILURE = ', "failures": [{"failure": "x"}]'
    CLEAN = "[==========] 3 tests from 1 test suite ran. (1 ms total)\n========= ERROR SUMMARY: 0 errors\n"

    def report(self, files, steps):
        """Writes what a run leaves, `steps` as (name, outcome), and returns (exit status, the JSON)."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {**files, "steps.tsv": "".join(f"{name}\t{code}\t1\n" for name, code in steps)}.items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            answer = subprocess.run([sys.executable, os.path.join(HERE, "report.py"), "--results", folder, "--commit", "c0ffee",
                                     "--out", folder], capture_output=True, text=True, check=False)
            with open(os.path.join(folder, "gpu.json"), encoding="utf-8") as file:
                return answer.returncode, json.load(file)

    def suite(self, *cases):
        return {"tests.a.json": '{"testsuites": [{"testsuite": [' + ", ".join(cases) + "]}]}"}

    def test_outcomes_are_counted(self):
        passed, skipped = self.CASE % ("COMPLETED", ""), self.CASE % ("SKIPPED", "")
        status, found = self.report(self.suite(passed, passed, skipped), [("build.programs", 0), ("tests.a", 0)])
        self.assertEqual((status, found["passed"], found["commit"]), (0, True, "c0ffee"))
        self.assertEqual([found["suites"][0][key] for key in ("passed", "failed", "skipped")], [2, 0, 1])
        failed = self.CASE % ("COMPLETED", self.FAILURE)
        status, found = self.report(self.suite(passed, failed), [("tests.a", 1)])
        self.assertEqual((status, found["suites"][0]["failures"]), (1, ["C.n"]))

    def test_what_did_not_run_has_failed(self):
        passed, skipped = self.CASE % ("COMPLETED", ""), self.CASE % ("SKIPPED", "")
        for files, steps in (({}, []), ({}, [("build.programs", 1)]), ({}, [("build.programs", 0)]),
                             ({}, [("tests.a", 139)]), ({}, [("tests.a", 0)]), (self.suite(skipped), [("tests.a", 0)]),
                             (self.suite(passed), [("tests.a", 124)]),
                             (self.suite(passed), [("tests.a", 0), ("tests.b", "the deadline was near")])):
            with self.subTest(steps=steps):
                status, found = self.report(files, steps)
                self.assertEqual((status, found["passed"]), (1, False))

    def test_a_sanitizer_passes_only_with_a_summary_and_tests(self):
        name = "sanitizer.memcheck.a"
        for text, code, passes in ((self.CLEAN, 0, True), (self.CLEAN, 9, False), ("", 0, False),
                                   (self.CLEAN.replace("0 errors", "2 errors"), 0, False),
                                   (self.CLEAN.replace("3 tests", "0 tests"), 0, False),
                                   (self.CLEAN.splitlines()[0], 0, False), (self.CLEAN.splitlines()[1], 0, False)):
            with self.subTest(text=text, code=code):
                status, found = self.report({name + ".log": text}, [(name, code)])
                self.assertEqual((status == 0, found["sanitizer"][0]["passed"]), (passes, passes))

    def test_a_figure_with_an_error_has_failed(self):
        for figure, passes in (('{"name": "a"}', True), ('{"name": "a", "error_occurred": true}', False)):
            status, found = self.report({"bench.a.json": '{"benchmarks": [%s]}' % figure}, [("bench.a", 0)])
            self.assertEqual((status == 0, found["passed"]), (passes, passes))

    def test_cases_and_figures_of_the_python_package_are_read(self):
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w", encoding="utf-8") as nowhere, \
                contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            cases = suite.Suite(os.path.join(folder, "tests.python.json"))
            figures = suite.Figures(os.path.join(folder, "bench.python.json"), torch="2")
            cases.run("Group", "good", lambda: None)
            self.assertEqual(cases.end(), 0)
            cases.run("Group", "bad", lambda: 1 / 0)
            figures.measure("step sign", lambda: figures.add("step sign", [3.0, 1.0, 2.0], host_us=1.0))
            self.assertEqual(figures.end(), 0)
            figures.measure("step qsgd", lambda: 1 / 0)
            self.assertEqual((cases.end(), figures.end()), (1, 1))
            found = gpu_report.read_suite(folder, {"name": "tests.python", "exit_status": 1})
            self.assertEqual((found["passed"], found["failed"], found["failures"]), (1, 1, ["Group.bad"]))
            first, second = gpu_report.read_bench(folder)
            self.assertEqual([first[key] for key in ("name", "us", "us_least", "us_most")], ["python/step sign", 2.0, 1.0, 3.0])
            self.assertIn("ZeroDivisionError", second["error_message"])

    def test_figures_of_a_file_that_was_cut_short_are_kept(self):
        whole = json.dumps({"context": {}, "benchmarks": [{"name": "a", "us": 1.0}, {"name": "b", "us": 2.0}]}, indent=1)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "bench.a.json")
            for end, names in ((len(whole), ["a", "b"]), (whole.index('"b"'), ["a"]), (whole.index('"us": 2'), ["a"]),
                               (whole.index('"a"'), []), (3, [])):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(whole[:end])
                self.assertEqual([figure["name"] for figure in gpu_report.read_figures(path)], names, whole[:end])


if __name__ == "__main__":
    unittest.main()
