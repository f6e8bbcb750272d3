#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that no code on the pages of docs/ is left untested.

usage: blocks.py DOCS_FOLDER      fails on a block of code that no test compiles, runs or reads
       blocks.py --prove          fails unless such blocks are found

A block of C++ stands between `<!-- example -->` and `<!-- /example -->` and is a program, or a source without a main:
tests/docs compiles it. Blocks of Python are programs that tests/bindings/test_ways_in.py runs; the pages of whole programs
(ways-in.md) are its own.
"""
import re
import sys
from pathlib import Path

WHOLE_PROGRAMS = "ways-in.md"
# Languages that a test reads (specs.py), or that hold commands, grammar and drawings.
OTHERS = {"ebnf", "text", "errors", "policy", "sh", "specs", "cmake", "{include}", "{toctree}"}


def untested(name, text):
    """What is wrong with a page, a line each."""
    if name == WHOLE_PROGRAMS:
        return []
    wrong = []
    examples = re.findall(r"<!-- example -->\n```cpp\n.*?^```\n<!-- /example -->", text, re.MULTILINE | re.DOTALL)
    if len(examples) > 1:
        wrong.append(f"{name}: {len(examples)} examples of C++; one a page is compiled")
    rest = re.sub(r"<!-- example -->\n```cpp\n.*?^```\n<!-- /example -->", "", text, flags=re.MULTILINE | re.DOTALL)
    opened = False
    for number, line in enumerate(rest.splitlines(), start=1):
        if not line.startswith("```"):
            continue
        language = line[3:].split(" ")[0]
        if not opened and language not in OTHERS | {"python"}:
            wrong.append(f"{name}: a block of '{language}' that no test reads (line {number}, examples left out)")
        opened = not opened
    if re.search(r"^([ >]+```|~~~)", rest, re.MULTILINE):
        wrong.append(f"{name}: a block that does not begin at the start of a line with ```")
    return wrong


PLANTED = {
    "C++ without markers": "```cpp\nint x;\n```\n",
    "two examples": 2 * "<!-- example -->\n```cpp\nint x;\n```\n<!-- /example -->\n",
    "another language": "```rust\nfn main() {}\n```\n",
    "no language": "```\nx\n```\n",
    "indented Python": "- x\n\n  ```python\n  x\n  ```\n",
}
GOOD = "```sh\nls\n```\n\n```python\nprint()\n```\n<!-- example -->\n```cpp\nint main() {}\n```\n<!-- /example -->\n"


def main():
    if sys.argv[1] == "--prove":
        wrong = [f"not noticed: {kind}" for kind, text in PLANTED.items() if not untested("a.md", text)]
        wrong += [f"wrongly refused: {line}" for line in untested("a.md", GOOD)]
    else:
        wrong = [line for path in sorted(Path(sys.argv[1]).glob("*.md"))
                 for line in untested(path.name, path.read_text(encoding="utf-8"))]
    print("\n".join(wrong) or "all code is tested")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
