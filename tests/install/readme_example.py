#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the C++ example out of the README, so that it is compiled and run as it stands there.

usage: readme_example.py README.md OUT.cpp

The example is the one ```cpp block between the lines `<!-- example -->` and `<!-- /example -->`.
"""
import re
import sys


def main():
    readme, out = sys.argv[1:]
    with open(readme, encoding="utf-8") as file:
        text = file.read()
    found = re.findall(r"<!-- example -->\s*```cpp\n(.*?)```\s*<!-- /example -->", text, re.DOTALL)
    if len(found) != 1:
        sys.exit(f"{readme}: {len(found)} examples between their markers, one is wanted")
    with open(out, "w", encoding="utf-8") as file:
        file.write(found[0])


if __name__ == "__main__":
    main()
