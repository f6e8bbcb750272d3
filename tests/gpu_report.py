#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gathers what tests/gpu.sh left into one JSON file, and prints a summary.

usage: gpu_report.py --results DIR --commit ID --out FILE.json

Exits 1 when a step failed, when a test program ran no test, or when nothing ran at all.
"""
import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


def output_of(*command):
    """Returns what a command prints, or "" where it is missing or fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine():
    """Says on what the figures were taken; no names of hosts or users."""
    fields = ("name", "driver_version", "compute_cap", "memory.total")
    gpu = output_of("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader").splitlines()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = re.search(r"^model name\s*: (.*)", file.read(), re.MULTILINE)
    nvcc = re.search(r"V(\d+\.\d+\.\d+)", output_of("nvcc", "--version") or output_of("/usr/local/cuda/bin/nvcc",
                                                                                     "--version"))
    return {
        "gpu": dict(zip(("name", "driver", "compute_capability", "memory"), gpu[0].split(", "))) if gpu else None,
        "gpus": len(gpu),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "nvcc": nvcc[1] if nvcc else None,
        "system": platform.platform(),
    }


def read_steps(folder):
    """Returns the steps in order, the last run of each."""
    steps = {}
    with open(os.path.join(folder, "steps.tsv"), encoding="utf-8") as file:
        for line in file:
            name, status, seconds = line.split("\t")
            steps.pop(name, None)
            steps[name] = {"name": name, "exit_status": int(status), "seconds": int(seconds)}
    return list(steps.values())


def read_suite(folder, step):
    """Returns the outcome of one test program from googletest's JSON."""
    suite = {"name": step["name"].split(".", 1)[1], "passed": 0, "failed": 0, "skipped": 0, "failures": []}
    try:
        with open(os.path.join(folder, step["name"] + ".json"), encoding="utf-8") as file:
            cases = [case for part in json.load(file)["testsuites"] for case in part["testsuite"]]
    except (OSError, ValueError, KeyError):
        return {**suite, "failed": 1, "failures": ["it ended without a report"]}
    for case in cases:
        failed = bool(case.get("failures"))
        outcome = "failed" if failed else "passed" if case.get("result") == "COMPLETED" else "skipped"
        suite[outcome] += 1
        if failed:
            suite["failures"].append(f"{case['classname']}.{case['name']}")
    if step["exit_status"] and not suite["failed"]:
        suite["failed"] = 1
        suite["failures"].append(f"exit status {step['exit_status']}")
    return suite


def read_sanitizer(folder, step):
    """Returns the outcome of one tool over one test program."""
    _, tool, suite = step["name"].split(".", 2)
    with open(os.path.join(folder, step["name"] + ".log"), encoding="utf-8", errors="replace") as file:
        text = file.read()
    found = re.findall(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", text)
    ran = re.search(r"\[==========\] (\d+) tests? from .* ran", text)
    errors = sum(int(number) for pair in found for number in pair if number) if found else None
    return {"tool": tool, "suite": suite, "passed": step["exit_status"] == 0 and errors == 0 and bool(ran) and int(ran[1]) > 0,
            "errors": errors, "tests": int(ran[1]) if ran else 0, "exit_status": step["exit_status"]}


def read_bench(folder):
    """Returns Google Benchmark's figures, or None."""
    try:
        with open(os.path.join(folder, "bench.json"), encoding="utf-8") as file:
            return json.load(file)["benchmarks"]
    except (OSError, ValueError, KeyError):
        return None


def faults(report):
    """Yields what failed, a line each."""
    if not report["suites"] and not report["sanitizer"] and report["bench"] is None:
        yield "nothing was run"
    for step in report["steps"]:
        if step["exit_status"]:
            yield f"{step['name']}: exit status {step['exit_status']}"
    for suite in report["suites"]:
        yield from (f"{suite['name']}: {failure}" for failure in suite["failures"])
        if not suite["passed"]:
            yield f"{suite['name']}: no test passed"
    for run in report["sanitizer"]:
        if not run["passed"] and not run["exit_status"]:
            yield f"{run['tool']} {run['suite']}: ended well, but its log shows errors, no summary or no test"
    for figure in report["bench"] or []:
        if figure.get("error_occurred"):
            yield f"{figure['name']}: {figure.get('error_message', 'no reason given')}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", required=True, metavar="DIR")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--out", required=True, metavar="FILE.json")
    options = parser.parse_args()

    steps = read_steps(options.results)
    named = {part: [step for step in steps if step["name"].startswith(part + ".")] for part in ("tests", "sanitizer")}
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": options.commit,
        "machine": machine(),
        "suites": [read_suite(options.results, step) for step in named["tests"] if step["name"] != "tests.found"],
        "sanitizer": [read_sanitizer(options.results, step) for step in named["sanitizer"]],
        "bench": read_bench(options.results),
        "steps": steps,
    }
    wrong = list(faults(report))
    report["passed"] = not wrong
    os.makedirs(os.path.dirname(os.path.abspath(options.out)), exist_ok=True)
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
        file.write("\n")

    for suite in report["suites"]:
        print(f"{suite['name']}: {suite['passed']} passed, {suite['failed']} failed, {suite['skipped']} skipped")
    for tool in TOOLS:
        runs = [run for run in report["sanitizer"] if run["tool"] == tool]
        if runs:
            print(f"{tool}: {sum(run['passed'] for run in runs)} of {len(runs)} programs without an error")
    if report["bench"] is not None:
        print(f"bench: {len(report['bench'])} figures")
    print("\n".join(wrong))
    print(f"written: {options.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
