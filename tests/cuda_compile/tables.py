# SPDX-License-Identifier: Apache-2.0
"""Committed tables of kernels: a comment that names nvcc's version, then aligned columns, of which the first three, the
file, the kernel and the architecture, are text and the others numbers."""
import re

WORDS = 3


def order(row):
    return row.file, row.kernel, int(re.sub(r"\D", "", row.arch) or 0), row.arch


def read(path, make, number):
    """Returns (nvcc's version, rows of `make`, a named tuple, its numbers by `number`); ("", []) where there is none yet."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return "", []
    version = next((match[1] for line in lines if (match := re.match(r"# .*\bnvcc (\S+?)[.,:;]?$", line))), "")
    cells = [line.split() for line in lines if line and not line.startswith("#")]
    return version, [make(*row[:WORDS], *map(number, row[WORDS:])) for row in cells if row != list(make._fields)]


def aligned(rows, make):
    """Returns the lines of a table: text to the left, numbers to the right, and the columns' names first."""
    cells = [make._fields] + [tuple(f"{cell:.10g}" if isinstance(cell, (int, float)) else cell for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(make._fields))]
    return ["  ".join(cell.ljust(width) if column < WORDS else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in cells]


def write(path, head, version, rows, make):
    """Writes a table; `head` is its comment."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{head}# Written by check_kernels.py --write with nvcc {version}\n")
        file.write("\n".join(aligned(sorted(rows, key=order), make)) + "\n")
