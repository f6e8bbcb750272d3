#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions an entry of every codec, which no other program on the machine changes, and compares them with
the committed ones.

bench_count runs each operation on one tensor of 65,536 entries, with AVX2 and OpenBLAS's kernels for Haswell, so that figures
of different machines compare. They are counted by perf, or by valgrind's callgrind where perf may not count; where both work,
by what counted the committed ones. Set-up is not counted.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from programs import AVX2, PROGRAMS, ROOT, aligned, build, environment, has_avx2, show, write

FIGURES = ROOT / "bench" / "results" / "instructions.json"
ENTRIES = 65536
REPEATS = 20  # under perf; callgrind's counts do not vary
TOLERANCE = 0.05
SKIPPED = 77
OPERATIONS = ("encode", "decode", "decode_add")


class Skipped(Exception):
    """Nothing can be compared here."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python3 bench/instructions.py --check",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    last = parser.add_mutually_exclusive_group()
    last.add_argument("--check", action="store_true",
                      help=f"exit 1 when a figure is off by more than {100 * TOLERANCE:.0f} %%, {SKIPPED} where nothing can be "
                      "compared: no AVX2, another compiler, neither perf nor valgrind")
    last.add_argument("--update", action="store_true", help="write the figures, after a change that was meant")
    parser.add_argument("--codec", action="append", default=[], metavar="SPEC", help="count this one alone; may be repeated")
    parser.add_argument("--tool", choices=("perf", "callgrind"), help="what counts; chosen when left out")
    parser.add_argument("--program", metavar="PATH", help="bench_count; built in build/release when left out")
    parser.add_argument("--figures", type=pathlib.Path, default=FIGURES, metavar="FILE.json",
                        help="the committed figures; a table goes beside them as .txt (bench/results/instructions.json)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if options.update and options.codec:
        parser.error("--update counts all codecs; --codec does not go with it")
    if options.program and not os.access(options.program, os.X_OK):
        parser.error(f"--program is '{options.program}', which cannot be run")
    return options


def counting_environment() -> dict[str, str]:
    """No wider copies than AVX2's in the C library either, and none by `rep movsb`, which the tools count differently."""
    return dict(environment(AVX2), GLIBC_TUNABLES="glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-ERMS,-FSRM")


def perf_count(command: list[str]) -> int | None:
    """Instructions in user mode of a whole program, None where perf may not count."""
    with tempfile.NamedTemporaryFile(mode="r") as file:
        try:
            made = subprocess.run(["perf", "stat", "-x", ",", "-e", "instructions:u", "-o", file.name, "--", *command],
                                  env=counting_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        except OSError:
            return None
        found = re.search(r"^(\d+),[^\n]*instructions:u", file.read(), re.M)
    return int(found.group(1)) if made.returncode == 0 and found else None


def tool(wanted: str | None, committed: dict) -> str:
    works = {"perf": shutil.which("perf") is not None and perf_count(["true"]) is not None,
             "callgrind": shutil.which("valgrind") is not None}
    for name in [wanted] if wanted else [str(committed.get("tool")), "perf", "callgrind"]:
        if works.get(name):
            return name
    raise Skipped(f"{wanted} does not count here" if wanted else
                  "perf may not count here and there is no valgrind; 'bash scripts/install.sh' installs it")


def names(options: argparse.Namespace) -> tuple[str, list[str]]:
    """The compiler, and SPEC/OPERATION of all codecs or of the chosen ones."""
    chosen = [f"{codec}/{operation}" for codec in options.codec for operation in OPERATIONS]
    command = [options.program, f"--target={AVX2}", "1", *chosen]
    made = subprocess.run(command, env=counting_environment(), capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise RuntimeError(made.stderr.strip())
    compiler, *listed = made.stdout.splitlines()
    return compiler, listed


def count_by_perf(options: argparse.Namespace, listed: list[str]) -> dict[str, float]:
    """What twice the repeats add."""
    counts = {}
    for name in listed:
        show(name)
        once, twice = (perf_count([options.program, f"--target={AVX2}", str(repeats), name])
                       for repeats in (REPEATS, 2 * REPEATS))
        if once is None or twice is None:
            raise RuntimeError(f"perf did not count {name}")
        counts[name] = (twice - once) / REPEATS / ENTRIES
    return counts


def count_by_callgrind(options: argparse.Namespace, listed: list[str]) -> dict[str, float]:
    """One run of all; callgrind writes a file whenever `bench_counted`, which it counts alone, has ended."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--toggle-collect=bench_counted", "--dump-after=bench_counted",
                   f"--callgrind-out-file={folder}/counts", options.program, f"--target={AVX2}", "1"]
        command += listed if options.codec else []
        with open(f"{folder}/log", "w+", encoding="utf-8") as log, subprocess.Popen(
                command, env=counting_environment(), stdout=subprocess.PIPE, stderr=log, text=True) as made:
            for line in made.stdout or ():
                show(line.strip())
            if made.wait() != 0:
                log.seek(0)
                raise RuntimeError(f"valgrind: exit status {made.returncode}\n{log.read()[-2000:]}")
        counts = {}
        for number, name in enumerate(listed):
            text = pathlib.Path(folder, f"counts.{number + 1}").read_text(encoding="utf-8")
            found = re.search(r"^totals: (\d+)", text, re.M)
            if "--dump-after=bench_counted" not in text or not found:
                raise RuntimeError(f"callgrind left no count of {name}")
            counts[name] = int(found.group(1)) / ENTRIES
    return counts


def rows_of(figures: dict[str, float]) -> dict[str, dict[str, float]]:
    rows: dict[str, dict[str, float]] = {}
    for name, value in figures.items():
        codec, _, operation = name.rpartition("/")
        rows.setdefault(codec, {})[operation] = value
    return rows


def text_of(report: dict, committed: dict) -> str:
    """The table, with how far each figure is from the committed one where there is one."""
    before = committed.get("figures", {})
    def cell(codec: str, operation: str, value: float) -> str:
        old = before.get(codec, {}).get(operation)
        return f"{value:.2f}" + (f" ({value / old - 1:+.1%})" if old and abs(value / old - 1) >= 5e-4 else "")
    lines = [["instructions an entry", *OPERATIONS]]
    lines += [[codec, *(cell(codec, name, row[name]) for name in OPERATIONS)] for codec, row in report["figures"].items()]
    return (f"In user mode, {ENTRIES:,} entries, one thread, AVX2, OpenBLAS's kernels for Haswell; "
            f"counted by {report['tool']}; {report['compiler']}.\n\n{aligned(lines)}\n")


def faults(report: dict, committed: dict, whole: bool) -> list[str]:
    """A line for every figure that is off, that is new, or that is gone."""
    before, now = committed["figures"], report["figures"]
    found = []
    for codec, row in now.items():
        for operation, value in row.items():
            old = before.get(codec, {}).get(operation)
            if old is None:
                found.append(f"{codec} {operation}: no committed figure")
            elif abs(value / old - 1) > TOLERANCE:
                found.append(f"{codec} {operation}: {value:.2f} instructions an entry, {old:.2f} are committed "
                             f"({value / old - 1:+.1%}, {TOLERANCE:.0%} are allowed)")
    if whole:
        found += [f"{codec}: committed, and there is no such codec" for codec in before if codec not in now]
    return found


def run(options: argparse.Namespace) -> int:
    committed = json.loads(options.figures.read_text(encoding="utf-8")) if options.figures.exists() else {}
    if options.check and not committed:
        raise RuntimeError(f"{options.figures}: no committed figures; --update writes them")
    if not has_avx2():
        raise Skipped("this processor has no AVX2")
    chosen = tool(options.tool, {} if options.update else committed)
    if not options.program:
        build("bench_count")
        options.program = str(PROGRAMS / "bench_count")
    compiler, listed = names(options)
    if options.check and compiler != committed["compiler"]:
        raise Skipped(f"the committed figures are of {committed['compiler']}, this is {compiler}")
    counted = (count_by_perf if chosen == "perf" else count_by_callgrind)(options, listed)
    show("")
    report = {"tool": chosen, "compiler": compiler, "target": AVX2, "openblas": "Haswell", "entries": ENTRIES,
              "figures": rows_of({name: round(value, 4) for name, value in counted.items()})}
    data = json.dumps(report, indent=1) + "\n"
    if options.update:
        write(options.figures, data)
        write(options.figures.with_suffix(".txt"), text_of(report, {}))
    print(data if options.json else text_of(report, committed), end="")
    wrong = faults(report, committed, not options.codec) if options.check else []
    if wrong:
        print("\n" + "\n".join(wrong) + "\nWhere that was meant: python3 bench/instructions.py --update", file=sys.stderr)
    return 1 if wrong else 0


def main() -> int:
    options = arguments()
    try:
        return run(options)
    except Skipped as reason:
        print(f"bench/instructions.py: skipped: {reason}", file=sys.stderr)
        return SKIPPED
    except (RuntimeError, OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
        print(f"bench/instructions.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nbench/instructions.py: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
