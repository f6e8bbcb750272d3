#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads src/ for its one direction: a folder includes itself and the folders to its left (docs/architecture.md).

usage: folders.py REPOSITORY | folders.py --prove
"""
import pathlib
import re
import sys
import tempfile

CHAIN = ["core", "math", "coding", "format", "patch price", "backend", "cpu cuda", "codec", "model", "verify", "catalogue"]  # siblings share a place
ALONE = {"catalogue"}  # written against the public headers, as a user's codecs are
PLACE = {folder: place for place, folders in enumerate(CHAIN) for folder in folders.split()}
CODE = {".hpp", ".cpp", ".cuh", ".cu"}


def faults(src):
    """Yields what breaks the rules in a src/ folder."""
    names = {}
    for path in sorted(path for path in src.rglob("*") if path.suffix in CODE):
        where, text = path.relative_to(src), path.read_text()
        folder = where.parts[0]
        if folder not in PLACE:
            yield f"{where}: stands in none of the folders {', '.join(PLACE)}"
            continue
        if path.name in names:
            yield f"{where}: {names[path.name]} has the same name"
        names[path.name] = where
        for include in re.findall(r'#include "([^"]+)"', text):
            to = include.split("/")[0]
            if to == "atomo":
                continue
            if to not in PLACE:
                yield f'{where}: "{include}" does not start with a folder of src/'
            elif to != folder and PLACE[to] >= PLACE[folder]:
                yield f'{where}: "{include}" is not to the left of {folder}/'
            elif to != folder and folder in ALONE:
                yield f'{where}: "{include}" is inside the library, {folder}/ has the public headers alone'
        text = re.sub(r"^namespace atomo::\w+ \{\n((struct|class) \w+;\n)+\}", "", text, flags=re.M)  # named in advance
        for namespace in re.findall(r"^namespace atomo::(\w+)", text, re.M):
            # A backend defines what backend/ declares.
            own = namespace == folder or (path.suffix == ".cu" and namespace == "backend")
            if not own and path.name != "namespaces.hpp":
                yield f"{where}: namespace atomo::{namespace} is that of another folder"


def prove():
    """Plants one breach of each rule and sees it."""
    planted = {
        "math/up.hpp": '#include "codec/layer.hpp"\n',
        "cuda/sibling.cu": '#include "cpu/sign.hpp"\n',
        "price/bare.hpp": '#include "bits.hpp"\n',
        "catalogue/inside.cpp": '#include "core/bits.hpp"\n',
        "core/away.hpp": "namespace atomo::price {\n",
        "lost/file.hpp": "",
        "cpu/twice.cpp": "",
        "codec/twice.cpp": "",
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, text in planted.items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        found = list(faults(pathlib.Path(folder)))
    missing = [name for name in planted if name != "cpu/twice.cpp" and not any(name in fault for fault in found)]
    return [f"a planted breach was not seen: {name}" for name in missing]


def main():
    wrong = prove() if sys.argv[1] == "--prove" else list(faults(pathlib.Path(sys.argv[1], "src")))
    print("\n".join(wrong) or "every include of src/ points to the left")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
