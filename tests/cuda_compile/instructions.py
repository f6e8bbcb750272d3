# SPDX-License-Identifier: Apache-2.0
"""What a warp executes of each kernel, counted in the machine code, and the committed table of it."""
import collections
import glob
import os
import re
import shutil
import subprocess
import tomllib

import paths
import sass
import tables

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
DESCRIPTIONS = os.path.join(ROOT, "tools", "gpu_model", "kernels.toml")
SOURCES = (DESCRIPTIONS, *(os.path.join(HERE, name) for name in ("instructions.py", "paths.py", "sass.py")))
TOLERANCE = 0.05

COLUMNS = ("file", "kernel", "arch", "code", "loops", "way", *sass.CLASSES, "unit", "warp", "item", "alone", "alone_item",
           "first", "hot", "items", "steps", "cycles", "generic", "fences", "spins")
Row = collections.namedtuple("Row", COLUMNS)
# What a change is noticed in, within the tolerance; the rest follows from it.
COMPARED = ("code", "way", "warp", "item", "hot", "items", "steps", "cycles")
EXACT = ("unit", "generic", "fences", "spins")

HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# The machine code of each kernel. code: instructions; loops: natural loops; way: instructions that a warp issues for its
# `unit` of items (entries mostly), and those of each class, conversions and bit counts with mufu; warp, item: of the way
# that of a warp whatever its items, and that of 32 items; alone, alone_item: the cycles of one warp by itself, fixed and an
# item; first: those of the first block's warps, where they have a way of their own. Of the loop in which a warp spends
# most: hot: instructions of an iteration, items: that it handles, steps: the longest chain of dependent ones, cycles: of
# one warp alone. generic: loads and stores that do not know their memory, fences: MEMBAR, CCTL, ERRBAR, spins: shared
# atomics made of a loop. Which way, which loops: paths.py, and tools/gpu_model/kernels.toml.
"""


def find_nvdisasm(nvcc):
    """Returns the disassembler: on the path, beside nvcc, or where scripts/python.sh puts it; None where there is none."""
    beside = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "nvdisasm")
    installed = glob.glob(os.path.join(ROOT, "build", "venv", "lib", "python3*", "site-packages", "nvidia", "cu*", "bin",
                                       "nvdisasm"))
    return next((path for path in (shutil.which("nvdisasm"), beside, *installed) if path and os.access(path, os.X_OK)), None)


def descriptions():
    with open(DESCRIPTIONS, "rb") as file:
        return tomllib.load(file)


def launched_names(mangled):
    """Returns {mangled: name} as launches have it: with the namespaces below atomo::cuda, without parameters."""
    mangled = sorted(mangled)
    text = subprocess.run(["c++filt"], input="\n".join(mangled), check=True, capture_output=True, text=True).stdout
    names = {}
    for name, whole in zip(mangled, text.splitlines()):
        whole = whole.replace("(anonymous namespace)::", "").replace("atomo::cuda::", "").removeprefix("void ")
        names[name] = re.sub(r"(?<=\d)ul?\b", "", whole.split("(", 1)[0])
    return names


def arch_of(cubin):
    with open(cubin, "rb") as file:
        head = file.read(64)
    flags = int.from_bytes(head[48:52], "little")
    return f"sm_{flags >> 8 & 0xFFFF}" if head[7] == 65 else f"sm_{flags & 0xFF}"


def rows_of(file, cubins, program, described):
    """Returns the rows of one file from its cubins, {arch: path}."""
    rows = []
    for arch, cubin in cubins.items():
        kernels = sass.disassemble(program, cubin)
        names = launched_names(kernels)
        for mangled, kernel in kernels.items():
            rows.append(row_of(file, names[mangled], arch, kernel, described.get(names[mangled], {})))
    return sorted(rows, key=tables.order)


class Unfit(ValueError):
    """A description that says how many entries a loop handles, and no loop is the one that it means."""


def row_of(file, name, arch, kernel, description):
    walk = paths.Walk(kernel, description)
    if any("each" in rule for rule in walk.rules) and not any(way.entries for way in walk.iterations.values()):
        raise Unfit(f"no loop of {name} for {arch} is what the rules with `each` of kernels.toml look for")
    fixed, item = walk.shares()
    to_the_end = {**description, "last": None}
    one_fixed, one_item = (paths.Walk(kernel, to_the_end) if description.get("last") else walk).shares()
    first = paths.Walk(kernel, {**to_the_end, **description["first"]}).whole.cost.cycles if "first" in description else 0
    way = walk.whole.cost
    loop, hot = walk.hot_loop()
    opcodes = collections.Counter(line.name for line in kernel.instructions)
    return Row(
        file, name, arch, len(kernel.instructions), len(kernel.loops), round(way.instructions),
        *(round(way.counts[kind]) for kind in sass.CLASSES), walk.unit or 0, round(fixed.instructions),
        round(32 * item.instructions, 1), round(one_fixed.cycles), round(one_item.cycles, 2), round(first),
        round(hot.cost.instructions) if loop else 0, round(hot.entries or 0) if loop else 0, hot.steps if loop else 0,
        round(hot.cost.cycles) if loop else 0, opcodes["LD"] + opcodes["ST"],
        sum(opcodes[name] for name in ("MEMBAR", "CCTL", "ERRBAR")),
        sum("CAST.SPIN" in line.opcode for line in kernel.instructions))


def read(path):
    """Returns (nvcc's version, rows) of a table; ("", []) where there is none yet."""
    return tables.read(path, Row, float)


def write(path, version, rows):
    tables.write(path, HEAD, version, rows, Row)


def differs(old, new, slack):
    return abs(new - old) > max(TOLERANCE * abs(old), slack)


def compare(old, new):
    """Yields a line for each kernel that is not what its committed row says."""
    before = {row[:tables.WORDS]: row for row in old}
    for row in new:
        was = before.pop(row[:tables.WORDS], None)
        name = f"{row.kernel} for {row.arch}"
        if was is None:
            yield f"{name}: is new, {row.code} instructions"
            continue
        changed = [f"{column} {getattr(was, column):g} -> {getattr(row, column):g}"
                   for column in COMPARED + EXACT
                   if differs(getattr(was, column), getattr(row, column), 0.5 if column == "item" else 1)
                   or (column in EXACT and getattr(was, column) != getattr(row, column))]
        if changed:
            yield f"{name}: {', '.join(changed)}"
    for row in before.values():
        yield f"{row.kernel} for {row.arch}: is gone"
