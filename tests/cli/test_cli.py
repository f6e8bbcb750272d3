# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the command line tool.

usage: test_cli.py --atomo PATH [NAME...]    e.g. test_cli.py --atomo build/release/programs/atomo/atomo test_formats

test_on_device runs only when it is named: it needs a tool that finds a device.
"""
import argparse
import os
import sys
import unittest

AREAS = ["test_usage", "test_formats", "test_refused_tensors", "test_payloads", "test_output", "test_measure",
         "test_device", "test_add", "test_delta", "test_plugin", "test_verify"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atomo", required=True, help="the binary to test")
    parser.add_argument("--verbose", "-v", action="store_true")
    parser.add_argument("names", nargs="*", default=AREAS, help="modules, classes or tests; without any all but test_on_device")
    arguments = parser.parse_args()
    os.environ["ATOMO_BINARY"] = os.path.abspath(arguments.atomo)
    if not os.access(os.environ["ATOMO_BINARY"], os.X_OK):
        sys.exit(f"{arguments.atomo}: no such program; build the target atomo_cli first")
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    suite = unittest.defaultTestLoader.loadTestsFromNames(arguments.names)
    outcome = unittest.TextTestRunner(verbosity=2 if arguments.verbose else 1).run(suite)
    sys.exit(0 if outcome.wasSuccessful() and outcome.testsRun else 1)


if __name__ == "__main__":
    main()
