#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the examples out of the public headers' comments, so that they are compiled as they stand there.

usage: header_examples.py INCLUDE_FOLDER OUT.cpp

Each ```cpp block becomes a function; what it takes for granted is declared above all of them.
"""
import pathlib
import re
import sys

GIVEN = """#include <atomo/atomo.hpp>
#include <atomo/cuda.hpp>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

// MPI, as far as the examples call it.
#define MPI_IN_PLACE nullptr
enum { MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD };
void MPI_Allreduce(const void*, void*, int, int, int, int);

extern std::vector<float> gradient;
extern std::vector<atomo::ConstTensorView> gradients;
extern std::vector<atomo::ConstBytes> messages;
extern std::vector<std::byte> workspace;
extern atomo::Compressor compressor;
extern atomo::Context context;
extern atomo::Key key;
extern std::uint32_t step;
extern std::uint16_t rank;
"""


def main():
    folder, out = map(pathlib.Path, sys.argv[1:])
    examples = []
    for header in sorted(folder.rglob("*.hpp")):
        for block in re.findall(r"^ *///? ```cpp\n(.*?)^ *///? ```$", header.read_text(), re.MULTILINE | re.DOTALL):
            lines = [re.sub(r"^ *///? ?", "", line) for line in block.splitlines()]
            examples.append((header.name, "\n".join("  " + line.replace("...", "") for line in lines)))
    if not examples:
        sys.exit(f"{folder}: no example in any header")
    functions = [f"// {name}\nvoid example_{i}() {{\n{body}\n}}\n" for i, (name, body) in enumerate(examples)]
    out.write_text(GIVEN + "\n" + "\n".join(functions))


if __name__ == "__main__":
    main()
