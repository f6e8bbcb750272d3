#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the outcomes in the JUnit files of ctest and pytest, one row a part, and names what failed.

usage: tally.py [--build-failures N] NAME=FILE.xml[,FOLDER]...

FOLDER holds a file TEST.xml for each of ctest's tests that is a run of GoogleTest cases: its cases are counted in its place.
Prints the rows to standard output and ends with `N passed, N failed` alone on its line (`, N skipped` is added when a
test was skipped; skipped tests are never counted as passed). Exits 1 when anything failed or nothing passed.
A file that is missing counts as one failure: the part never ran.
"""
import argparse
import os
import sys
import xml.etree.ElementTree as ElementTree


def outcome(case):
    """Says how one test case ended: "passed", "failed" or "skipped"."""
    status = case.get("status")
    if status is None:  # pytest's: says what went wrong, and nothing when nothing did
        if case.find("failure") is not None or case.find("error") is not None:
            return "failed"
        return "passed" if case.find("skipped") is None else "skipped"
    if status == "run":
        return "passed"
    if status == "disabled":
        return "skipped"
    skipped = case.find("skipped")
    # A test that says itself that it was skipped matched a skip rule; any other that did not run was broken.
    if status == "notrun" and skipped is not None and "SKIP_" in (skipped.get("message") or ""):
        return "skipped"
    return "failed"


def outcome_of_case(case):
    """The same of a case of GoogleTest."""
    if case.find("failure") is not None:
        return "failed"
    return "passed" if case.get("result") == "completed" else "skipped"


def cases_of(path):
    """Returns [(outcome, name)] of GoogleTest's file; none where its program ended before it wrote one."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return []
    return [(outcome_of_case(case), f"{case.get('classname')}.{case.get('name')}") for case in root.iter("testcase")]


def read(path, folder):
    """Returns {outcome: [names]} of a JUnit file and of the cases in a folder."""
    found = {"passed": [], "failed": [], "skipped": []}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        module = case.get("classname") if case.get("status") is None else None
        name = f"{module}.{case.get('name')}" if module else case.get("name")
        ended = outcome(case)
        cases = cases_of(os.path.join(folder, name + ".xml")) if folder else []
        # A program may end badly without a case that failed: it crashed, it leaked, its time was up.
        if not cases or (ended == "failed" and all(how != "failed" for how, _ in cases)):
            cases.append((ended, name))
        for how, which in cases:
            found[how].append(which if which == name else f"{name}: {which}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-failures", type=int, default=0, metavar="N")
    parser.add_argument("parts", nargs="+", metavar="NAME=FILE.xml[,FOLDER]")
    arguments = parser.parse_args()

    total = {"passed": 0, "failed": arguments.build_failures, "skipped": 0}
    for part in arguments.parts:
        name, path = part.split("=", 1)
        path, _, folder = path.partition(",")
        if not os.path.exists(path):
            print(f"{name}: did not run")
            total["failed"] += 1
            continue
        found = read(path, folder)
        for key, names in found.items():
            total[key] += len(names)
        print(f"{name}: {len(found['passed'])} passed, {len(found['failed'])} failed, {len(found['skipped'])} skipped")
        for key in ("failed", "skipped"):
            for test in found[key]:
                print(f"  {key}: {test}")
    skipped = f", {total['skipped']} skipped" if total["skipped"] else ""
    print(f"{total['passed']} passed, {total['failed']} failed{skipped}")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
