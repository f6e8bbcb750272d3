#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the JSON of bench_codecs into an aligned table.

usage: table.py [--check] [--tidy OUT.json] FILE.json

Each figure is the median of the repetitions; the spread is (largest - smallest) / median of the operation that varies
most in that row. Speeds are GB/s of the f32 tensor; `x memcpy` relates them to a memcpy of the same
tensor in the same process.

  --tidy OUT   also writes the JSON without what names the machine's owner (host name, path of the program), and without means
               and medians, which follow from the repetitions
  --check      exits 1 when a codec is below its floor: 0.2 GB/s for all but exact SVD, 2 GB/s for encoding sign and qsgd
"""
import argparse
import collections
import json
import statistics
import sys

OPERATIONS = ("encode", "decode", "decode_add")


def read(path):
    """Returns (context, {(size, spec): {operation: [run, ...]}}) and fails on a benchmark that failed."""
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    rows = collections.OrderedDict()
    for run in document["benchmarks"]:
        if run.get("run_type") == "aggregate":
            continue
        if run.get("error_occurred"):
            sys.exit(f"{run['name']}: {run['error_message']}")
        # A name is size/spec/operation, and the library adds what it was told, e.g. /iterations:1/real_time.
        size, rest = run["name"].split("/", 1)
        spec, operation = rest.split("/")[:2]
        rows.setdefault((size, spec), {}).setdefault(operation, []).append(run)
    return document, rows


def median(runs, counter):
    return statistics.median(run[counter] for run in runs)


def spread(runs):
    """Returns (largest - smallest) / median of the speeds of one operation."""
    speeds = [run["gbs"] for run in runs]
    return (max(speeds) - min(speeds)) / statistics.median(speeds)


def figure(value):
    """Two decimals, more where they would all be zero."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def lines_of(rows):
    """Yields the cells of every line, heads first."""
    yield (["size", "codec", "bits"] + [f"{name} GB/s" for name in OPERATIONS]
           + [f"{name} x memcpy" for name in OPERATIONS] + ["memcpy GB/s", "spread"])
    for (size, spec), operations in rows.items():
        runs = [operations.get(name) for name in OPERATIONS]
        present = [one for one in runs if one]
        yield ([size, spec, f"{median(present[0], 'bits_per_parameter'):.3f}"]
               + [figure(median(one, "gbs")) if one else "-" for one in runs]
               + [figure(median(one, "of_memcpy")) if one else "-" for one in runs]
               + [f"{statistics.median(median(one, 'memcpy_gbs') for one in present):.1f}",
                  f"{100 * max(spread(one) for one in present):.0f}%"])


def print_table(lines):
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2])]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:])]
        print("  ".join(left + right).rstrip())


def below_floor(rows):
    """Yields a line for every operation that is slower than it may be."""
    for (size, spec), operations in rows.items():
        if "atoms=svd" in spec:
            continue
        for name, runs in operations.items():
            quick = name == "encode" and spec.split(":")[0] in ("sign", "qsgd") and "+" not in spec
            floor = 2.0 if quick else 0.2
            speed = median(runs, "gbs")
            if speed < floor:
                yield f"below its floor of {floor} GB/s: {size} {spec} {name} at {speed:.2f} GB/s"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 when a codec is below its floor")
    parser.add_argument("--tidy", metavar="OUT", help="also write the JSON without host name, paths and means")
    parser.add_argument("file")
    arguments = parser.parse_args()

    document, rows = read(arguments.file)
    if not rows:
        sys.exit(f"{arguments.file}: no benchmark in it")
    context = document["context"]
    if arguments.tidy:
        tidy = {"context": {key: value for key, value in context.items() if key not in ("host_name", "executable")},
                "benchmarks": [run for run in document["benchmarks"] if run.get("run_type") != "aggregate"]}
        with open(arguments.tidy, "w", encoding="utf-8") as file:
            json.dump(tidy, file, indent=1)
            file.write("\n")
    repetitions = max(len(runs) for operations in rows.values() for runs in operations.values())
    print(f"{context.get('cpu', 'unknown processor')}, {context['num_cpus']} processors, one thread used; "
          f"{context.get('compiler', '')}, {context.get('build', '')}; {context['date']}; "
          f"median of {repetitions}")
    print_table(list(lines_of(rows)))
    slow = list(below_floor(rows))
    if slow:
        print("\n".join(slow))
    return 1 if slow and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
