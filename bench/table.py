#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the figures that bench/run.sh keeps as aligned tables, one for each size and number of threads.

Each figure is the median of the repetitions; the spread is (largest - smallest) / median of the operation that varies most
in that row. Speeds are GB/s of the f32 tensor; `x memcpy` relates them to a memcpy of it in the same process, by one thread.
`steps` is the time of an encode over that of a step of PowerSGD of rank 4, decoding included.
"""
import argparse
import json
import statistics
import sys

from peer_names import POWERSGD_4
from programs import aligned

OPERATIONS = ("first", "encode", "decode", "decode_add", "decode_add_8")
HEADS = {"first": "first", "encode": "encode", "decode": "decode", "decode_add": "add", "decode_add_8": "add 8"}
TITLES = {"1M_hot": "1 M entries, hot: 1024 x 1024, worked on again and again",
          "25M_cold": "25 M entries, cold: 5000 x 5000, flushed from all caches before each call",
          "lenet": "LeNet, 431 k entries in 8 layers", "resnet18": "ResNet-18, 11.7 M entries in 62 layers",
          "resnet50": "ResNet-50, 25.6 M entries in 161 layers", "gpt2": "GPT-2 small, 124.4 M entries in 148 layers"}


def grouped(document: dict) -> dict:
    """{(size, threads): {codec: {operation: [run, ...]}}} in the order of the document."""
    groups: dict = {}
    for run in document["benchmarks"]:
        size, codec, operation = run["name"].split("/")
        groups.setdefault((size, run["threads"]), {}).setdefault(codec, {}).setdefault(operation, []).append(run)
    return groups


def median(runs: list, counter: str) -> float:
    return statistics.median(run[counter] for run in runs)


def spread(runs: list) -> float:
    """(largest - smallest) / median of the speeds of one operation."""
    speeds = [run["gbs"] for run in runs]
    return (max(speeds) - min(speeds)) / statistics.median(speeds)


def figure(value: float) -> str:
    """Two decimals, four where they would say little."""
    return f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def cells(codec: str, operations: dict, shown: list[str], step: float | None) -> list[str]:
    def of(name: str, counter: str) -> str:
        return figure(median(operations[name], counter)) if name in operations else "-"
    present = list(operations.values())
    encode = operations.get("encode")
    return [codec, f"{median(present[0], 'bits_per_parameter'):.3f}", *(of(name, "gbs") for name in shown),
            *(of(name, "of_memcpy") for name in shown),
            f"{median(encode, 'ms') / step:.2f}" if encode and step else "-",
            f"{100 * max(map(spread, present)):.0f}%"]


def step_of(codecs: dict) -> float | None:
    """Milliseconds of a step of PowerSGD, None where it was not measured."""
    operations = codecs.get(POWERSGD_4, {})
    if not {"encode", "decode"} <= operations.keys():
        return None
    return median(operations["encode"], "ms") + median(operations["decode"], "ms")


def table(codecs: dict) -> str:
    """The table of a size, the fastest encoder first."""
    shown = [name for name in OPERATIONS if any(name in operations for operations in codecs.values())]
    step = step_of(codecs)
    def speed(codec: str) -> float:
        runs = codecs[codec].get("encode") or next(iter(codecs[codec].values()))
        return -median(runs, "gbs")
    lines = [["", "", "GB/s", *[""] * (len(shown) - 1), "x memcpy", *[""] * (len(shown) - 1), "", ""],
             ["codec", "bits", *(HEADS[name] for name in shown), *(HEADS[name] for name in shown), "steps", "spread"]]
    lines += [cells(codec, codecs[codec], shown, step) for codec in sorted(codecs, key=speed)]
    return aligned(lines)


def head(document: dict) -> str:
    context = document["context"]
    repetitions = max((run["repetition"] for run in document["benchmarks"]), default=0) + 1
    peers = ", ".join(f"{name} {version}" for name, version in context.get("peers", {}).items())
    return "\n".join([
        f"{context['cpu']}, {context['num_cpus']} processors; {context['compiler']}, {context['build']}; instruction set "
        f"{context['target']}; {peers + '; ' if peers else ''}{context['date']}; medians of {repetitions}.",
        "GB/s of the f32 tensor and its ratio to a memcpy of it. Steps: time of an encode over a step of PowerSGD of rank 4.",
        "First: a new Compressor's first message, cold data. Add 8: eight messages in one call, as one of eight tensors. Peers have the name of their package before theirs."])


def text_of(document: dict) -> str:
    parts = [head(document)]
    for (size, threads), codecs in grouped(document).items():
        copies = [run["memcpy_gbs"] for operations in codecs.values() for runs in operations.values() for run in runs]
        many = "one thread" if threads == 1 else f"{threads} threads"
        parts.append(f"{TITLES.get(size, size)}; {many}; memcpy {statistics.median(copies):.1f} GB/s\n{table(codecs)}")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="of bench/run.sh, .json")
    arguments = parser.parse_args()
    try:
        with open(arguments.file, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError) as error:
        parser.error(f"{arguments.file} cannot be read: {error}")
    if not document.get("benchmarks") or "threads" not in document["benchmarks"][0]:
        parser.error(f"{arguments.file} holds no figures of bench/run.sh")
    print(text_of(document), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
