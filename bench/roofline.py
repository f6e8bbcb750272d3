#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures memory's bandwidths, then how far each codec is from the time that its bytes alone would take.

The limit of an operation is what moving its bytes takes at the best of these bandwidths, on one thread, from memory that no
cache holds. Encoding reads 4 bytes an entry and writes the message; decoding reads the message and writes 4 bytes an entry;
adding reads those 4 bytes too. As many bytes as are both read and written move at the speed of a copy, those that adding reads
and writes in their place at that of an update, the rest at that of reading or of writing.
"""
import argparse
import datetime
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

from programs import PROGRAMS, ROOT, aligned, build, environment, markdown, pinned, processor, show, whole_number, write

ENTRIES = 25_000_000
SIZE = "25M_cold"
WORDS = {"encode": "encode", "decode": "decode", "decode_add": "add"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bash bench/roofline.sh", description=__doc__, epilog="example: bash bench/"
                                     "roofline.sh --filter 'qsgd|atomo:bits' --out /tmp/mine",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default=".", metavar="REGEX", help="only CODEC/OPERATION that it matches")
    parser.add_argument("--repetitions", type=whole_number, default=5, metavar="N", help="of each operation, 5 by default")
    parser.add_argument("--target", choices=("best", "avx2"), default="best", help="instruction set")
    parser.add_argument("--out", metavar="PATH", help="PATH.md, PATH.json and PATH.png are written: bench/results/roofline by "
                        "default, build/roofline where --filter leaves something out")
    parser.add_argument("--json", action="store_true", help="print the figures in place of the table")
    parser.add_argument("--built", nargs="?", type=pathlib.Path, const=PROGRAMS, metavar="FOLDER",
                        help="build nothing; FOLDER has the programs (build/release/bench)")
    options = parser.parse_args()
    try:
        re.compile(options.filter)
    except re.error as error:
        parser.error(f"--filter is '{options.filter}', no regular expression: {error}")
    if options.out is None:
        options.out = str(ROOT / ("bench/results/roofline" if options.filter == "." else "build/roofline"))
    return options


def bandwidths(options: argparse.Namespace) -> list[dict]:
    """Every way of reading, writing and copying with its speeds; a byte read and a byte written count once each."""
    show("bandwidths of memory")
    command = [*pinned(1), str((options.built or PROGRAMS) / "bench_bandwidth"), f"--target={options.target}"]
    made = subprocess.run(command, env=environment(options.target), check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(made.stdout)["bandwidths"]


def best(found: list[dict], name: str) -> float:
    """The most bytes a second of any repetition."""
    return 1e9 * max(max(way["gbs"]) for way in found if way["name"] == name)


def traffic(operation: str, message: float) -> tuple[float, float]:
    """Bytes that an operation must read and must write."""
    whole = 4.0 * ENTRIES
    return {"encode": (whole, message), "decode": (message, whole), "decode_add": (message + whole, whole)}[operation]


def limit(operation: str, message: float, found: list[dict]) -> float:
    """Seconds that the bytes of an operation take."""
    read, written = traffic(operation, message)
    if operation == "decode_add":
        return 2 * written / best(found, "update") + message / best(found, "read")
    both = min(read, written)
    return 2 * both / best(found, "copy") + (read - both) / best(found, "read") + (written - both) / best(found, "write")


def codecs(options: argparse.Namespace, found: list[dict]) -> list[dict]:
    """A row for each codec and operation, the farthest from its limit first."""
    show("codecs at 25 M entries")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "codecs.json")
        command = [*pinned(1), str((options.built or PROGRAMS) / "bench_codecs"), f"--size={SIZE}",
                   f"--target={options.target}",
                   f"--benchmark_filter=^{SIZE}/.*({options.filter})", f"--benchmark_repetitions={options.repetitions}",
                   f"--benchmark_out={out}", "--benchmark_out_format=json", "--benchmark_format=json"]
        subprocess.run(command, env=environment(options.target), check=True, stdout=subprocess.DEVNULL)
        text = out.read_text(encoding="utf-8")
    runs: dict[tuple[str, str], list[dict]] = {}
    for run in json.loads(text)["benchmarks"] if text else []:
        codec, operation = run["name"].split("/")[1:3]
        if run.get("run_type") != "aggregate" and operation in WORDS:
            runs.setdefault((codec, operation), []).append(run)
    rows = []
    for (codec, operation), repeated in runs.items():
        times = [1e-3 * run["ms"] for run in repeated]
        message = repeated[0]["bits_per_parameter"] / 8 * ENTRIES
        (read, written), least = traffic(operation, message), limit(operation, message, found)
        rows.append({"codec": codec, "operation": operation, "read": read, "written": written, "limit_s": least,
                     "seconds": times, "distance": statistics.median(times) / least})
    show("")
    return sorted(rows, key=lambda row: -row["distance"])


def tables(report: dict) -> list[list[list[str]]]:
    speeds = [["one thread", "stores", "best GB/s", "median GB/s"]]
    speeds += [[way["name"], "-" if way["stores"] == "none" else way["stores"], f"{max(way['gbs']):.2f}",
                f"{statistics.median(way['gbs']):.2f}"] for way in report["bandwidths"]]
    rows = [["codec", "operation", "MB read", "MB written", "limit, ms", "median, ms", "spread", "x limit"]]
    for row in report["rows"]:
        middle = statistics.median(row["seconds"])
        rows.append([row["codec"], WORDS[row["operation"]], f"{row['read'] / 1e6:.1f}", f"{row['written'] / 1e6:.1f}",
                     f"{1e3 * row['limit_s']:.1f}", f"{1e3 * middle:.1f}",
                     f"{100 * (max(row['seconds']) - min(row['seconds'])) / middle:.0f}%", f"{row['distance']:.2f}"])
    return [speeds, rows]


def note(report: dict) -> str:
    return (f"Time of each codec at 25 M entries that no cache holds over the time that its bytes take at the best bandwidths, "
            f"on one thread. {report['processor']}, instruction set {report['target']}, medians of {report['repetitions']}, "
            f"{report['date'][:10]}. Bandwidths count a byte read and a byte written once each.")


def plot(report: dict, path: pathlib.Path) -> None:
    """A panel an operation: every codec's time beside its limit, the farthest at the top."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    kinds = [kind for kind in WORDS if any(row["operation"] == kind for row in report["rows"])]
    most = max(sum(row["operation"] == kind for row in report["rows"]) for kind in kinds)
    figure, axes = pyplot.subplots(1, len(kinds), figsize=(6 * len(kinds), 1.6 + 0.22 * most), squeeze=False,
                                   layout="constrained")
    for kind, ax in zip(kinds, axes[0]):
        rows = [row for row in report["rows"] if row["operation"] == kind][::-1]
        times = [1e9 * statistics.median(row["seconds"]) / ENTRIES for row in rows]
        limits = [1e9 * row["limit_s"] / ENTRIES for row in rows]
        places = range(len(rows))
        ax.hlines(places, limits, times, color="C0", alpha=0.5)
        ax.plot(limits, places, "|", color="C3", markersize=10, markeredgewidth=2, label="limit by bytes")
        ax.plot(times, places, "o", color="C0", markersize=5, label="measured")
        for place, row, right in zip(places, rows, times):
            ax.annotate(f"{row['distance']:.1f}x", (right, place), xytext=(6, -3), textcoords="offset points",
                        fontsize="x-small")
        ax.set_yticks(places, [row["codec"] for row in rows], fontsize="x-small")
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        ax.margins(x=0.15)
        ax.set_xlabel("ns an entry")
        ax.set_title({"encode": "encode", "decode": "decode", "decode_add": "decode and add"}[kind])
        ax.grid(True, axis="x", which="both", alpha=0.25)
    axes[0][0].legend(fontsize="small", loc="lower right")
    partial = path.with_name(path.name + ".part.png")
    figure.savefig(partial, dpi=130)
    partial.replace(path)


def main() -> int:
    options = arguments()
    try:
        if not options.built:
            build("bench_codecs", "bench_bandwidth")
        found = bandwidths(options)
        report = {"date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"), "processor": processor(),
                  "target": options.target, "repetitions": options.repetitions, "entries": ENTRIES, "bandwidths": found,
                  "rows": codecs(options, found)}
        if not report["rows"]:
            print(f"bench/roofline.sh: no codec matches --filter '{options.filter}'", file=sys.stderr)
            return 2
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"bench/roofline.sh: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nbench/roofline.sh: stopped, nothing was written", file=sys.stderr)
        return 130
    out = pathlib.Path(options.out)
    data = json.dumps(report, indent=1) + "\n"
    speeds, rows = tables(report)
    write(pathlib.Path(f"{out}.md"), f"{note(report)}\n\n{markdown(speeds, 2)}\n\n{markdown(rows, 2)}\n")
    write(pathlib.Path(f"{out}.json"), data)
    plot(report, pathlib.Path(f"{out}.png"))
    print(data if options.json else f"{note(report)}\n\n{aligned(speeds, 2)}\n\n{aligned(rows, 2)}\n", end="")
    print(f"written: {out}.md, .json and .png", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
