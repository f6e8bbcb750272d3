#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gathers what tests/gpu.sh has left so far into gpu.json, and into gpu.txt with predictions beside figures.

usage: report.py --results DIR --commit ID --out DIR [--quiet]

Exits 1 when a step failed or was not run, when a test program ran no test, or when nothing ran at all. A step that
needs a GPU fails no rehearsal.
"""
import argparse
import datetime
import glob
import json
import os
import platform
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
NEEDS_GPU = "it needs a GPU"


def output_of(*command):
    """Returns what a command prints, or "" where it is missing or fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def machine():
    """Says on what the figures were taken; no names of hosts or users."""
    fields = ("name", "driver_version", "compute_cap", "memory.total")
    gpu = output_of("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader").splitlines()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = re.search(r"^model name\s*: (.*)", file.read(), re.MULTILINE)
    nvcc = re.search(r"V(\d+\.\d+\.\d+)",
                     output_of("nvcc", "--version") or output_of("/usr/local/cuda/bin/nvcc", "--version"))
    return {
        "gpu": dict(zip(fields, gpu[0].split(", "))) if gpu else None,
        "gpus": len(gpu),
        "cpu": cpu[1] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "nvcc": nvcc[1] if nvcc else None,
        "system": platform.platform(),
    }


def machine_of(folder):
    """Returns what machine() says, asked for once a run."""
    path = os.path.join(folder, "machine.json")
    if not os.path.exists(path):
        write(path, json.dumps(machine()))
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def read_steps(folder):
    """Returns the steps in order, the last run of each; the outcome is an exit status or why it did not run."""
    steps = {}
    with open(os.path.join(folder, "steps.tsv"), encoding="utf-8") as file:
        for line in file:
            name, outcome, seconds = line.rstrip("\n").split("\t")
            steps.pop(name, None)
            ran = outcome.isdigit()
            steps[name] = {"name": name, "exit_status": int(outcome) if ran else None,
                           "not_run": None if ran else outcome, "seconds": int(seconds)}
    return list(steps.values())


def read_suite(folder, step):
    """Returns the outcome of one run of tests from GoogleTest's JSON."""
    suite = {"name": step["name"].split(".", 1)[1], "passed": 0, "failed": 0, "skipped": 0, "failures": []}
    try:
        with open(os.path.join(folder, step["name"] + ".json"), encoding="utf-8") as file:
            cases = [case for part in json.load(file)["testsuites"] for case in part["testsuite"]]
    except (OSError, ValueError, KeyError):
        return {**suite, "failed": 1, "failures": ["it ended without a report"]}
    for case in cases:
        if case.get("status") == "NOTRUN":
            continue
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
    """Returns the outcome of one tool over one run of tests."""
    _, tool, suite = step["name"].split(".", 2)
    with open(os.path.join(folder, step["name"] + ".log"), encoding="utf-8", errors="replace") as file:
        text = file.read()
    found = re.findall(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard", text)
    ran = sum(int(number) for number in re.findall(r"\[==========\] (\d+) tests? from .* ran", text))
    errors = sum(int(number) for pair in found for number in pair if number) if found else None
    return {"tool": tool, "suite": suite,
            "passed": step["exit_status"] == 0 and errors == 0 and ran > 0,
            "errors": errors, "tests": ran, "exit_status": step["exit_status"]}


def read_figures(path):
    """Returns Google Benchmark's figures, of a file that was cut short those that are whole; None without a file."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return None
    for whole in (text, text[:text.rfind("}") + 1] + "]}", text[:text.rfind("},") + 1] + "]}"):
        try:
            return json.loads(whole)["benchmarks"]
        except (ValueError, KeyError):
            continue
    return []


def read_bench(folder):
    """Returns the figures of all runs of the benchmark, without the library's own suffixes in their names."""
    found = []
    for path in sorted(glob.glob(os.path.join(folder, "bench.*.json"))):
        for figure in read_figures(path) or []:
            found.append({**figure, "name": re.sub(r"/iterations:.*", "", figure["name"])})
    return found


def read_profile(folder):
    """Returns the names of the files with Nsight Compute's counters that hold a line for a kernel at least."""
    found = []
    for path in sorted(glob.glob(os.path.join(folder, "profile.*.csv"))):
        with open(path, encoding="utf-8", errors="replace") as file:
            if "gpu__time_duration" in file.read():
                found.append(os.path.basename(path))
    return found


def predictions_for(gpu):
    """Returns what is predicted for the GPU of that name, of one that nothing is predicted for what an H100 would take."""
    with open(os.path.join(HERE, "predictions.json"), encoding="utf-8") as file:
        known = json.load(file)
    return known[next((name for name in known if name in gpu.lower()), "h100")]


def compare(bench, predictions):
    """Yields (model, codec, operation, predicted us, figure) for whole calls."""
    for figure in bench:
        parts = figure["name"].split("/")
        if len(parts) != 3 or "us" not in figure:
            continue
        model, spec, operation = parts
        yield model, spec, operation, predictions.get(model, {}).get(spec, {}).get(operation), figure


def tables(report):
    """Yields the lines of gpu.txt."""
    gpu = report["machine"]["gpu"]
    yield f"{gpu['name'] if gpu else 'no GPU'}; {report['date']}; {report['commit']}"
    rows = [("model", "codec", "operation", "bits", "stream us", "graph us", "spread", "of limit", "predicted us",
             "measured/predicted")]
    for model, spec, operation, predicted, figure in compare(report["bench"], report["predictions"]):
        us = figure.get("graph_us", figure["us"])
        spread = (figure.get("graph_us_most", figure["us_most"]) - figure.get("graph_us_least", figure["us_least"])) / us
        ratio = f"{us / predicted:.2f}{' <--' if not 2 / 3 < us / predicted < 1.5 else ''}" if predicted else ""
        rows.append((model, spec, operation, f"{figure['bits_per_parameter']:.3f}", f"{figure['us']:.1f}",
                     f"{figure['graph_us']:.1f}" if "graph_us" in figure else "-", f"{100 * spread:.0f}%",
                     f"{100 * figure['of_limit']:.0f}%", f"{predicted:g}" if predicted else "", ratio))
    if len(rows) > 1:
        yield ""
        yield from aligned(rows)
    for figure in report["bench"]:
        if figure["name"].endswith("/kernels"):
            times = {key: value for key, value in figure.items() if re.match(r"\d{3} ", key)}
            yield ""
            yield f"{figure['name']}: {sum(times.values()):.1f} us"
            yield from aligned([(key, f"{times[key]:.1f}") for key in sorted(times)])
    rest = [figure for figure in report["bench"] if figure["name"].split("/")[0] in ("machine", "peers", "python")]
    if rest:
        yield ""
        units = ("gbs", "us", "host_us", "memory", "sent", "ns", "cycles", "stream_us", "graph_us")
        yield from aligned([(figure["name"], ", ".join(f"{figure[unit]:.4g} {unit}" for unit in units if unit in figure))
                            for figure in rest])


def aligned(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()


def faults(report):
    """Yields what failed, a line each."""
    if not report["suites"] and not report["sanitizer"] and not report["bench"]:
        yield "nothing was run"
    for step in report["steps"]:
        if step["exit_status"]:
            yield f"{step['name']}: exit status {step['exit_status']}"
        elif step["not_run"] and step["not_run"] != NEEDS_GPU:
            yield f"{step['name']}: not run, {step['not_run']}"
    for suite in report["suites"]:
        yield from (f"{suite['name']}: {failure}" for failure in suite["failures"])
        if not suite["passed"]:
            yield f"{suite['name']}: no test passed"
    for run in report["sanitizer"]:
        if not run["passed"] and not run["exit_status"]:
            yield f"{run['tool']} {run['suite']}: ended well, but its log shows errors, no summary or no test"
    for figure in report["bench"]:
        if figure.get("error_occurred"):
            yield f"{figure['name']}: {figure.get('error_message', 'no reason given')}"


def write(path, text):
    """Replaces the file at once: a reader, or a process that is killed, never leaves half of it."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", required=True, metavar="DIR")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--quiet", action="store_true", help="write, print nothing")
    options = parser.parse_args()

    steps = read_steps(options.results)
    ran = {part: [step for step in steps if step["name"].startswith(part + ".") and not step["not_run"]]
           for part in ("tests", "sanitizer")}
    on = machine_of(options.results)
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": options.commit,
        "machine": on,
        "suites": [read_suite(options.results, step) for step in ran["tests"]],
        "sanitizer": [read_sanitizer(options.results, step) for step in ran["sanitizer"]],
        "bench": read_bench(options.results),
        "torch": read_figures(os.path.join(options.results, "peers.torch.json")),
        "profile": read_profile(options.results),
        "predictions": predictions_for(on["gpu"]["name"] if on["gpu"] else ""),
        "steps": steps,
    }
    wrong = list(faults(report))
    report["passed"] = not wrong
    os.makedirs(options.out, exist_ok=True)
    write(os.path.join(options.out, "gpu.json"), json.dumps(report, indent=1) + "\n")
    text = "\n".join(tables(report))
    write(os.path.join(options.out, "gpu.txt"), text + "\n")
    if options.quiet:
        return 0
    print(text)
    print()
    for suite in report["suites"]:
        print(f"{suite['name']}: {suite['passed']} passed, {suite['failed']} failed, {suite['skipped']} skipped")
    for tool in TOOLS:
        runs = [run for run in report["sanitizer"] if run["tool"] == tool]
        if runs:
            print(f"{tool}: {sum(run['passed'] for run in runs)} of {len(runs)} runs without an error")
    only_named = [step["name"] for step in steps if step["not_run"] == NEEDS_GPU]
    if only_named:
        print(f"needs a GPU: {', '.join(only_named)}")
    print("\n".join(wrong) if wrong else "every step passed")
    print(f"written: {options.out}/gpu.json, gpu.txt, gpu-logs.tar.gz")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
