# SPDX-License-Identifier: Apache-2.0
"""What ptxas says a kernel needs, and the committed table of it."""
import collections
import re

import tables

COLUMNS = ("file", "kernel", "arch", "registers", "shared", "stack", "spills", "barriers")
Row = collections.namedtuple("Row", COLUMNS)
HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# What each kernel takes of a multiprocessor: registers a thread and barriers a block; shared memory a
# block (what a launch adds is not in it), stack and spills a thread in bytes.
"""

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
    return sorted(rows, key=tables.order)


def read(path):
    """Returns (nvcc's version, rows) of a table; ("", []) where there is none yet."""
    return tables.read(path, Row, int)


def aligned(rows):
    """Returns the lines of a table, the columns' names first."""
    return tables.aligned(rows, Row)


def write(path, version, rows):
    """Writes a table."""
    tables.write(path, HEAD, version, rows, Row)
