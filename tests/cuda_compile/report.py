# SPDX-License-Identifier: Apache-2.0
"""What ptxas says a kernel needs, and the committed table of it."""
import collections
import re

COLUMNS = ("file", "kernel", "arch", "registers", "shared", "stack", "spills", "barriers")
Row = collections.namedtuple("Row", COLUMNS)

_ENTRY = re.compile(r"Compiling entry function '([^']+)' for '([^']+)'")
_FUNCTION = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_ptxas(text):
    """Returns ({(kernel, arch): (registers, shared, barriers)}, {(function, arch): (stack, spills)}), mangled names.

    The frames hold device functions that were not inlined too: they may spill like any kernel.
    """
    used, frames = {}, {}
    kernel = arch = function = None
    for line in text.splitlines():
        if match := _ENTRY.search(line):
            kernel, arch = match.groups()
        elif match := _FUNCTION.search(line):
            function = match[1]
        elif match := _FRAME.search(line):
            frames[function, arch] = int(match[1]), int(match[2]) + int(match[3])
        elif match := _USED.search(line):
            barriers, shared = _BARRIERS.search(line), _SHARED.search(line)
            used[kernel, arch] = int(match[1]), int(shared[1]) if shared else 0, int(barriers[1]) if barriers else 0
    return used, frames


def rows_of(file, text, kernels, names):
    """Returns the rows of one file, sorted, from ptxas' text; `kernels` are the (mangled name, arch) that must be there."""
    used, frames = parse_ptxas(text)
    lost = sorted(f"{names[kernel]} for {arch}" for kernel, arch in kernels
                  if (kernel, arch) not in used or (kernel, arch) not in frames)
    if lost:
        raise ValueError(f"nvcc's output says nothing of {', '.join(lost)}: has its format changed?")
    rows = []
    for kernel, arch in kernels:
        registers, shared, barriers = used[kernel, arch]
        stack, spills = frames[kernel, arch]
        rows.append(Row(file, names[kernel], arch, registers, shared, stack, spills, barriers))
    return sorted(rows, key=order)


def order(row):
    return row.file, row.kernel, int(re.sub(r"\D", "", row.arch) or 0), row.arch


def read(path):
    """Returns (nvcc's version, rows) of a table; ("", []) where there is none yet."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return "", []
    version = next((match[1] for line in lines if (match := re.match(r"# .*\bnvcc (\S+?)[.,:;]?$", line))), "")
    cells = [line.split() for line in lines if line and not line.startswith("#")]
    return version, [Row(*row[:3], *map(int, row[3:])) for row in cells if row != list(COLUMNS)]


def aligned(rows):
    """Returns the lines of a table: text to the left, numbers to the right, and the columns' names first."""
    cells = [COLUMNS] + [tuple(map(str, row)) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(COLUMNS))]
    return ["  ".join(cell.ljust(width) if column < 3 else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(row, widths))) for row in cells]


def write(path, version, rows):
    """Writes a table."""
    with open(path, "w", encoding="utf-8") as file:
        file.write("# SPDX-License-Identifier: Apache-2.0\n"
                   "# What each kernel takes of a multiprocessor: registers a thread and barriers a block; shared memory a\n"
                   "# block (what a launch adds is not in it), stack and spills a thread in bytes.\n"
                   f"# Written by check_kernels.py --write with nvcc {version}\n")
        file.write("\n".join(aligned(sorted(rows, key=order))) + "\n")
