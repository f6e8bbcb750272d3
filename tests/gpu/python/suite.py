# SPDX-License-Identifier: Apache-2.0
"""Cases and figures in the files that tests/gpu/report.py reads, which are those of GoogleTest and Google Benchmark."""
import json
import os
import statistics
import sys
import time
import traceback


def write(path, value):
    """At once: what a process that is killed leaves is whole."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
    os.replace(path + ".new", path)


class Suite:
    """Runs cases one by one; what one raises is its failure, and the next begins."""

    def __init__(self, path):
        self.path, self.cases = path, []

    def run(self, group, name, work):
        began, failures = time.perf_counter(), []
        try:
            work()
        except Exception as error:
            traceback.print_exc()
            failures = [{"failure": f"{type(error).__name__}: {error}"}]
        seconds = time.perf_counter() - began
        print(f"{'FAILED' if failures else 'passed'} {group}.{name} ({seconds:.2f} s)", flush=True)
        self.cases.append({"classname": group, "name": name, "status": "RUN", "result": "COMPLETED", "time": f"{seconds:.3f}s",
                           **({"failures": failures} if failures else {})})
        if self.path:
            write(self.path, {"testsuites": [{"testsuite": self.cases}]})

    def end(self):
        """The exit status."""
        failed = [case for case in self.cases if "failures" in case]
        print(f"{len(self.cases) - len(failed)} passed, {len(failed)} failed")
        for case in failed:
            print(f"  {case['classname']}.{case['name']}: {case['failures'][0]['failure'][:500]}")
        sys.stdout.flush()
        return 1 if failed or not self.cases else 0


class Figures:
    """`add` writes the median, least and most of microseconds down, and what else there is to say."""

    def __init__(self, path, **context):
        self.path, self.context, self.all = path, context, []

    def add(self, name, times, **more):
        self._note({"name": f"python/{name}", "us": statistics.median(times), "us_least": min(times), "us_most": max(times),
                    **more})

    def measure(self, name, work):
        """`work()` adds the figure; an error is written in its place."""
        try:
            work()
        except Exception as error:
            traceback.print_exc()
            self._note({"name": f"python/{name}", "error_occurred": True, "error_message": f"{type(error).__name__}: {error}"})

    def _note(self, figure):
        self.all.append(figure)
        print(", ".join(f"{key} {value:.1f}" if isinstance(value, float) else f"{value}" for key, value in figure.items()),
              flush=True)
        if self.path:
            write(self.path, {"context": self.context, "benchmarks": self.all})

    def end(self):
        """The exit status."""
        return 1 if not self.all or any(figure.get("error_occurred") for figure in self.all) else 0
