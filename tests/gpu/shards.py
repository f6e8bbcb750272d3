#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a GoogleTest program in several processes at once, a share of its tests each.

usage: shards.py COUNT [--json FILE] -- COMMAND...

Prints what the processes print, one after another, and writes their reports into one. Exits with the largest exit
status; a process that a signal ended counts as 128 and the signal. A signal to this process ends them all.
"""
import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile


def end(processes):
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(count, command, folder, reports):
    """Runs the shards; yields the exit status and the output of each."""
    processes, outputs = [], []
    try:
        for i in range(count):
            outputs.append(open(os.path.join(folder, f"{i}.log"), "w+b"))
            processes.append(subprocess.Popen(
                [*command, f"--gtest_output=json:{folder}/{i}.json"] if reports else command,
                stdout=outputs[-1], stderr=subprocess.STDOUT, start_new_session=True,
                env={**os.environ, "GTEST_TOTAL_SHARDS": str(count), "GTEST_SHARD_INDEX": str(i)}))
        for process, output in zip(processes, outputs):
            status = process.wait()
            output.seek(0)
            yield 128 - status if status < 0 else status, output.read()
    finally:
        end(processes)


def report_of(path, shard, status):
    """Returns the suites of a report; of a process that left none, one with a test that failed."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)["testsuites"]
    except (OSError, ValueError, KeyError):
        failure = {"failure": f"no report, exit status {status}"}
        return [{"testsuite": [{"classname": "Shard", "name": shard, "result": "COMPLETED", "failures": [failure]}]}]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, metavar="COUNT")
    parser.add_argument("--json", metavar="FILE", help="where the joined report of the tests goes")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"COUNT is {options.count}; 1 or more is wanted")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    worst, suites = 0, []
    with tempfile.TemporaryDirectory() as folder:
        shards = run(options.count, options.command, folder, bool(options.json))
        for i, (status, output) in enumerate(shards):
            sys.stdout.buffer.write(output)
            sys.stdout.buffer.flush()
            worst = max(worst, status)
            suites += report_of(os.path.join(folder, f"{i}.json"), f"{i} of {options.count}", status)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"testsuites": suites}, file)
    return worst


if __name__ == "__main__":
    sys.exit(main())
