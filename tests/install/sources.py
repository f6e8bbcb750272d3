#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads every source file for the habits that a compiler does not check.

usage: sources.py REPOSITORY
"""
import os
import re
import subprocess
import sys

CODE = (".cpp", ".hpp", ".h", ".cu", ".cuh", ".py", ".sh", ".cmake")
LICENCE = "SPDX-License-Identifier: Apache-2.0"
OPENED = ("src/", "programs/", "bindings/", "examples/")
MAX_LINES = 500
# In kernels these become constants, without a word: core/bit_counts.hpp has those for them. Folders and files for the host alone.
HOST_BITS = re.compile(r"\bstd::(bit_ceil|bit_floor|bit_width|count[lr]_(?:one|zero)|has_single_bit|popcount)\b")
HOST_ALONE = ("src/cpu/", "src/catalogue/", "src/patch/", "src/core/bit_counts.hpp")


def tracked(root):
    """Returns the repository's files, or every file below it where there is no git."""
    try:
        text = subprocess.run(["git", "-C", root, "ls-files"], check=True, capture_output=True, text=True).stdout
        return text.splitlines()
    except (OSError, subprocess.CalledProcessError):
        found = []
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name != "build" and not name.startswith(".")]
            found += [os.path.relpath(os.path.join(folder, name), root) for name in files]
        return found


def faults(path, lines, names):
    """Yields what is wrong with one file; `names` are those of all files."""
    # A script's first line is its interpreter.
    if not any(LICENCE in line for line in lines[:2]):
        yield f"no '{LICENCE}' at its top"
    # Whoever opens a file first is told what it does; a test or benchmark says that in its name.
    if path.startswith(OPENED) and path.endswith((".cpp", ".cu")) and not "".join(lines[1:2]).startswith("//"):
        yield "no comment behind its licence line that says what it does"
    # A `-inl.hpp` is read once for every processor it is compiled for, a C header has a guard for old compilers.
    guarded = path.endswith("-inl.hpp") or any("#ifndef ATOMO_" in line for line in lines)
    if path.endswith((".hpp", ".h", ".cuh")) and "#pragma once\n" not in lines and not guarded:
        yield "no '#pragma once'"
    # Tables are data: nobody reads them from top to bottom.
    if len(lines) >= MAX_LINES and not path.endswith("_tables.hpp"):
        yield f"{len(lines)} lines, under {MAX_LINES} are wanted"
    kernels = path.startswith("src/") and path.endswith((".hpp", ".cu", ".cuh")) and not path.startswith(HOST_ALONE)
    for number, line in enumerate(lines, 1):
        for name in HOST_BITS.findall(line) if kernels else ():
            yield f"line {number}: std::{name} does not work in a kernel, core::{name} does"
        # A comment that sends its reader to a file sends to one that is there.
        if path.startswith(("src/", "include/")) and "//" in line:
            for name in re.findall(r"[\w-]+\.(?:hpp|cuh|cpp|cu)\b", line.partition("//")[2]):
                if name not in names:
                    yield f"line {number}: no file is called {name}"
        if "TO" + "DO" in line or "FIX" + "ME" in line:
            yield f"line {number}: unfinished work"


def main():
    root = sys.argv[1]
    wrong = []
    paths = tracked(root)
    names = {os.path.basename(path) for path in paths}
    for path in paths:
        whole = os.path.join(root, path)
        if not os.path.isfile(whole) or not (path.endswith(CODE) or os.path.basename(path) == "CMakeLists.txt"):
            continue
        with open(whole, encoding="utf-8") as file:
            wrong += [f"{path}: {fault}" for fault in faults(path, file.readlines(), names)]
    print("\n".join(wrong) or "nothing to object to")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
