#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures every codec beside a memcpy and beside what people take in its place, and prints tables. bench/run.sh calls it.

Every size is measured in parts: the codecs, then the peers, each on one thread and on two. A run that was stopped goes on
with the part that was not finished when the same command is given again.
"""
import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import floors
import peer_names
import table
from programs import PROGRAMS, ROOT, build, environment, pinned, processor, seconds, show, whole_number, write

SIZES = tuple(table.TITLES)
KEPT = ROOT / "build" / "bench"
VENV = ROOT / "build" / "venv" / "bin" / "python"
CONTEXT = ("num_cpus", "cpu", "compiler", "build", "atomo")
FIGURES = ("ms", "gbs", "memcpy_gbs", "of_memcpy", "bits_per_parameter")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bash bench/run.sh", description=__doc__.splitlines()[0],
        epilog="example: bash bench/run.sh --filter '1M_hot/(sign|qsgd)' --repetitions 3",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--filter", default=".", metavar="REGEX", help="only names, SIZE/CODEC/OPERATION, that it matches")
    parser.add_argument("--size", action="append", choices=SIZES, default=argparse.SUPPRESS,
                        help="may be repeated; all when left out")
    parser.add_argument("--repetitions", type=whole_number, default=3, metavar="N", help="of each operation")
    parser.add_argument("--min-time", type=seconds, default=0.05, metavar="SECONDS", help="of a repetition of small sizes")
    parser.add_argument("--threads", type=whole_number, nargs="+", default=[1, 2], metavar="N", help="each in turn")
    parser.add_argument("--target", choices=("best", "avx2"), default="best", help="instruction set")
    parser.add_argument("--plugin", action="append", type=pathlib.Path, metavar="FILE.so", default=argparse.SUPPRESS,
                        help="measure the codecs of a shared object too (docs/own-codec.md); may be repeated")
    parser.add_argument("--without-peers", action="store_true", help="the codecs alone; PyTorch is not needed then")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE.json", default=argparse.SUPPRESS,
                        help="figures of every repetition; the table goes beside it as .txt (default: bench/results/"
                        "codecs[-avx2]-DATE.json, build/codecs.json with --filter, --size or --plugin)")
    parser.add_argument("--json", action="store_true", help="print the figures in place of the table")
    parser.add_argument("--fresh", action="store_true", help="measure parts of a stopped run anew too")
    parser.add_argument("--floors", type=pathlib.Path, default=floors.FILE, metavar="FILE.json",
                        help="what --check compares with")
    last = parser.add_mutually_exclusive_group()
    last.add_argument("--check", action="store_true", help="exit 1 when a codec is slower than its floor at 25 M cold")
    last.add_argument("--update-floors", action="store_true", help="set the floors to 85 %% of what is reached")
    parser.add_argument("--built", nargs="?", type=pathlib.Path, const=PROGRAMS, metavar="FOLDER",
                        default=argparse.SUPPRESS, help="build nothing; FOLDER has the programs (build/release/bench)")
    options = argparse.Namespace(size=None, out=None, built=None, plugin=[])
    parser.parse_args(namespace=options)
    try:
        re.compile(options.filter)
    except re.error as error:
        parser.error(f"--filter is '{options.filter}', no regular expression: {error}")
    if any(threads > 64 for threads in options.threads):
        parser.error(f"--threads is {max(options.threads)}; 1 to 64 are accepted")
    for plugin in options.plugin:
        if not plugin.is_file():
            parser.error(f"--plugin is '{plugin}'; a shared object is wanted, and there is no such file")
    if options.plugin and (options.check or options.update_floors):
        parser.error("--plugin is given; the floors of --check and --update-floors are of the library's codecs alone")
    if options.out is None:
        whole = options.filter == "." and not options.size and not options.plugin
        suffix = "" if options.target == "best" else f"-{options.target}"
        options.out = (ROOT / "bench" / "results" / f"codecs{suffix}-{datetime.date.today()}.json" if whole
                       else ROOT / "build" / "codecs.json")
    if options.out.suffix != ".json":
        parser.error(f"--out is '{options.out}'; a name that ends in .json is wanted")
    return options


def programs_of(options: argparse.Namespace) -> pathlib.Path:
    return options.built or PROGRAMS


class Part:
    """The codecs or the peers of a size."""

    def __init__(self, options: argparse.Namespace, size: str, threads: int, peers: bool):
        self.options, self.size, self.threads, self.peers = options, size, threads, peers

    def name(self) -> str:
        many = "one thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.size}, {many}, {'peers' if self.peers else 'codecs'}"

    def choice(self) -> list[str]:
        """The program, and the words that say what it measures."""
        options = self.options
        plugins = [f"--plugin={plugin.resolve()}" for plugin in options.plugin]
        return [str(programs_of(options) / "bench_codecs"), *plugins, f"--size={self.size}", f"--threads={self.threads}",
                f"--target={options.target}", f"--benchmark_filter={options.filter}"]

    def command(self, out: pathlib.Path) -> list[str]:
        options = self.options
        if self.peers:
            library = programs_of(options) / "libbench_tensors.so"
            return [str(VENV), str(ROOT / "bench" / "peers.py"), f"--library={library}",
                    f"--size={self.size}", f"--threads={self.threads}", f"--filter={options.filter}",
                    f"--repetitions={options.repetitions}", f"--min-time={options.min_time}", f"--out={out}"]
        return [*self.choice(), f"--benchmark_repetitions={options.repetitions}", f"--benchmark_min_time={options.min_time}",
                f"--benchmark_out={out}", "--benchmark_out_format=json", "--benchmark_format=json"]

    def is_wanted(self) -> bool:
        """Whether the filter names anything of it."""
        if self.peers:
            return bool(peer_names.wanted(self.size, self.threads, self.options.filter))
        listed = subprocess.run([*self.choice(), "--benchmark_list_tests"],
                                capture_output=True, text=True, check=True).stdout
        return f"{self.size}/" in listed

    def measure(self, file: pathlib.Path) -> None:
        partial = file.with_suffix(".part")
        made = subprocess.run([*pinned(self.threads), *self.command(partial)], env=environment(self.options.target),
                              stdout=subprocess.DEVNULL, check=False)
        if made.returncode != 0:
            raise RuntimeError(f"{self.name()}: exit status {made.returncode}")
        partial.replace(file)

    def figures(self, file: pathlib.Path) -> tuple[dict, list[dict]]:
        """The context and the runs of a finished part, without the machine's name and what follows from the runs."""
        with open(file, encoding="utf-8") as opened:
            document = json.load(opened)
        if self.peers:
            return document["context"], [{**run, "peer": True} for run in document["benchmarks"]]
        runs = []
        for run in document["benchmarks"]:
            if run.get("error_occurred"):
                raise RuntimeError(f"{run['name']}: {run['error_message']}")
            if run.get("run_type") != "aggregate":
                runs.append({"name": "/".join(run["name"].split("/")[:3]), "threads": self.threads,
                             "repetition": run["repetition_index"], **{key: run[key] for key in FIGURES}})
        return {key: document["context"][key] for key in CONTEXT if key in document["context"]}, runs


def key_of(options: argparse.Namespace) -> str:
    """What the figures of a part depend on."""
    made = hashlib.sha256()
    folder = programs_of(options)
    for path in (folder / "bench_codecs", folder / "libbench_tensors.so", ROOT / "bench" / "peers.py", *options.plugin):
        made.update(path.read_bytes())
    made.update(repr((options.filter, options.repetitions, options.min_time, options.target, processor())).encode())
    return made.hexdigest()[:12]


def measure(options: argparse.Namespace) -> dict:
    folder = KEPT / key_of(options)
    if options.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    kinds = (False,) if options.without_peers else (False, True)
    parts = [Part(options, size, threads, peers) for size in options.size or SIZES
             for threads in options.threads for peers in kinds]
    parts = [part for part in parts if part.is_wanted()]
    if not parts:
        raise RuntimeError(f"no benchmark matches --filter '{options.filter}'")
    folder.mkdir(parents=True, exist_ok=True)
    context: dict = {}
    runs: list[dict] = []
    for number, part in enumerate(parts):
        file = folder / f"{part.size}-{part.threads}-{'peers' if part.peers else 'codecs'}.json"
        began, kept = time.monotonic(), file.exists()
        if not kept:
            show(f"[{number + 1}/{len(parts)}] {part.name()}\n")
            part.measure(file)
        show("")
        print(f"[{number + 1}/{len(parts)}] {part.name()}: "
              + ("kept from before" if kept else f"{time.monotonic() - began:.0f} s"), file=sys.stderr, flush=True)
        told, found = part.figures(file)
        context |= told
        runs += found
    load = os.getloadavg()[1]
    return {"context": {**context, "target": options.target, "filter": options.filter if not options.size else
                        f"{options.size} {options.filter}", "load": load,
                        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds")},
            "benchmarks": runs, "folder": str(folder)}


def finish(options: argparse.Namespace, document: dict) -> int:
    """Writes and prints what was measured, and looks at the floors."""
    folder = document.pop("folder")
    text = table.text_of(document)
    data = json.dumps(document, indent=1) + "\n"
    write(options.out, data)
    write(options.out.with_suffix(".txt"), text)
    shutil.rmtree(folder)  # finished: the same command measures anew
    print(data if options.json else "\n" + text, end="")
    print(f"written: {options.out} and {options.out.with_suffix('.txt').name}", file=sys.stderr)
    if options.update_floors:
        count = floors.update(document, options.floors)
        print(f"{count} floors set in {options.floors}", file=sys.stderr)
    faults = floors.faults(document, options.floors) if options.check else []
    if faults:
        print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


def main() -> int:
    options = arguments()
    try:
        if not options.built:
            build("bench_codecs", "bench_tensors")
            if not options.without_peers:
                script = str(ROOT / "scripts" / "python.sh")
                subprocess.run(["bash", script, "--without-package"], check=True, stdout=sys.stderr)
        return finish(options, measure(options))
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        print(f"\nbench/run.sh: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nbench/run.sh: stopped; the same command goes on with the part that was not finished", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
