#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every test of a build tree is in exactly one tier, and that the filters of its cases name some.

usage: tiers.py BUILD_FOLDER

The tiers are the labels commit, devices, kernels and long (cmake/testing.cmake). A filter of a GoogleTest program whose program is
built must match a case: one that matches none would pass without running anything. Cases that two commit tests of one
program would both run are named too.
"""
import json
import os
import subprocess
import sys

TIERS = {"commit", "devices", "kernels", "long"}


def tests_of(folder):
    """Returns the tests of a build tree as ctest describes them."""
    made = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], check=True, capture_output=True, text=True)
    return json.loads(made.stdout)["tests"]


def properties(test):
    return {entry["name"]: entry["value"] for entry in test.get("properties", [])}


def cases_of(command):
    """Returns the cases that a command of GoogleTest would run in all its shards, or None where it is not built."""
    if not os.access(command[0], os.X_OK):
        return None
    wanted = [word for word in command if word.startswith("--gtest_filter=")]
    listed = subprocess.run([command[0], "--gtest_list_tests", *wanted], check=True, capture_output=True, text=True).stdout
    cases, suite = set(), ""
    for line in listed.splitlines():
        word = line.split("#", maxsplit=1)[0].rstrip()
        if line.startswith("  "):
            cases.add(suite + word.strip())
        elif word.endswith("."):
            suite = word
    return cases


def main():
    folder = sys.argv[1]
    wrong, of_program, listed = [], {}, {}
    tests = tests_of(folder)
    if not tests:
        wrong.append(f"{folder} has no tests")
    for test in tests:
        name, command, told = test["name"], test.get("command"), properties(test)
        tier = told.get("LABELS", [])
        if len(tier) != 1 or tier[0] not in TIERS:
            wrong.append(f"{name}: its labels are {tier or 'none'}; one of {', '.join(sorted(TIERS))} is wanted")
        if not command or not any(word.startswith("--gtest_filter=") for word in command):
            continue
        key = tuple(word for word in command if not word.startswith("--gtest_output="))
        if key not in listed:
            listed[key] = cases_of(command)
            if listed[key] is not None and not listed[key]:
                wrong.append(f"{name}: no case of {os.path.basename(command[0])} matches {key[-1]}")
            if tier == ["commit"]:
                for other in of_program.setdefault(command[0], []):
                    twice = (listed[key] or set()) & (listed[other] or set())
                    wrong.extend(f"{name}: {case} runs twice" for case in sorted(twice)[:3])
                of_program[command[0]].append(key)
    print("\n".join(wrong) or "every test is in one tier")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
