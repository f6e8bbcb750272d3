# SPDX-License-Identifier: Apache-2.0
"""What the commands of the benchmarks share: building, running on chosen processors, tables, and the machine's name."""
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "release"
PROGRAMS = BUILD / "bench"
AVX2 = "avx2"


def build(*targets: str) -> None:
    """Installs what is missing and builds targets of the release preset; says no more than a line each."""
    subprocess.run(["bash", str(ROOT / "scripts" / "install.sh")], check=True, stdout=sys.stderr)
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    subprocess.run(["cmake", "--preset", "release", *launcher], check=True, cwd=ROOT, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(BUILD), "--target", *targets], check=True, stdout=sys.stderr)


def pinned(threads: int) -> list[str]:
    """The words before a command that keep it on the last processors, as many as it has threads."""
    usable = sorted(os.sched_getaffinity(0))[-threads:]
    return ["taskset", "-c", ",".join(map(str, usable))] if shutil.which("taskset") else []


def environment(target: str) -> dict[str, str]:
    """One thread below the library, pages as small as everybody's, and the OpenBLAS of a forced instruction set."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLOSC_NTHREADS", "MKL_NUM_THREADS")
    made = dict(os.environ, **dict.fromkeys(names, "1"), NUMPY_MADVISE_HUGEPAGE="0")
    if target == AVX2:
        made["OPENBLAS_CORETYPE"] = "Haswell"
    return made


def processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")


def has_avx2() -> bool:
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        return any({"avx2", "fma"} <= set(line.split()) for line in lines if line.startswith("flags"))


def show(text: str) -> None:
    """Says on a terminal what goes on now, in one line that the next one replaces."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text[:110]}", end="", file=sys.stderr, flush=True)


def write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def aligned(lines: list[list[str]], left: int = 1) -> str:
    """Rows of cells in columns, the first `left` to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) if i < left else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in lines)


def markdown(lines: list[list[str]], left: int = 1) -> str:
    """The same as a table of Markdown, whose first line is the head."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    rule = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join("| " + " | ".join(cell.ljust(width) if i < left else cell.rjust(width)
                                       for i, (cell, width) in enumerate(zip(line, widths))) + " |"
                     for line in [lines[0], rule, *lines[1:]])


def whole_number(text: str) -> int:
    """A type for argparse: 1 or more."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def seconds(text: str) -> float:
    """A type for argparse: a finite number above 0."""
    value = float(text)
    if not 0 < value < 1e6:
        raise ValueError(text)
    return value
