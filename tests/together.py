#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes sources of tests into one, which takes a compiler less time than all of them.

usage: together.py OUT.cpp FILE.cpp...

What a file has in its unnamed namespace gets a namespace with the file's name, so that two files may use a name. What
stands outside must be directives, `using` and the namespaces around: a file with more is refused.
"""
import os
import re
import sys

OUTSIDE = re.compile(r"\s*|//.*|#(include|if|endif).*|using .*;|namespace [\w:]+ \{|\}  // namespace [\w:]+")


def together(path):
    """Returns the text of a file with a name for its unnamed namespace."""
    with open(path, encoding="utf-8") as file:
        lines = file.read().splitlines()
    name = f"of_{os.path.splitext(os.path.basename(path))[0]}"
    written, inside, found = [f'#line 1 "{path}"'], False, False
    for number, line in enumerate(lines, 1):
        if line == "namespace {":
            inside = found = True
            line = f"namespace {name} {{"
        elif line == "}  // namespace":
            inside = False
        elif not inside and not OUTSIDE.fullmatch(line):
            raise SystemExit(f"{path}:{number}: stands outside the unnamed namespace, so the file is compiled ALONE: {line}")
        written.append(line)
    if not found:
        raise SystemExit(f"{path}: has no unnamed namespace, so the file is compiled ALONE")
    return "\n".join(written) + "\n"


def main():
    out, *paths = sys.argv[1:]
    text = "".join(map(together, paths))
    with open(out, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
