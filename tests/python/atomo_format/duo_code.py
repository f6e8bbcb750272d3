# SPDX-License-Identifier: Apache-2.0
"""The code for pairs of numbers and the numbers it is built from (FORMAT.md, "Numbers" and "Duo code")."""
import functools
import json
import math
import pathlib

from .bits import require

NUMBERS = json.loads((pathlib.Path(__file__).parent.parent / "duo_code_tables.json").read_text())
ESCAPE = None


@functools.cache
def _words(table, level_string):
    """{(length, word as a number, highest bit first): cell or ESCAPE} and the longest length."""
    width = NUMBERS["tables"][table]["width"]
    lengths = [int(c, 16) for c in NUMBERS["tables"][table]["lengths"][level_string]]
    side, half = 1 << width, 1 << (width - 1)
    code, word, previous = {}, -1, 0
    for length, number in sorted((length, number) for number, length in enumerate(lengths) if length):
        word = (word + 1) << (length - previous)
        previous = length
        cell = ESCAPE if number == side * side else (number // side - half, number % side - half)
        code[length, word] = cell
    return code, previous


def _cell(stream, table, level):
    """The cell of the next word, or ESCAPE."""
    several = len(NUMBERS["tables"][table]["lengths"]) == 8
    code, longest = _words(table, level % 8 if several else 0)
    word = 0
    for length in range(1, longest + 1):
        word = word << 1 | stream.field(1)
        if (length, word) in code:
            cell = code[length, word]
            return cell[::-1] if several and level >= 8 and cell is not ESCAPE else cell
    require(False, "no such word")


def escape_bits(entries, reach):
    """Bits of each number behind an escape word, for a vector of so many entries."""
    needed = 2 * (math.sqrt(entries) * reach) + 6
    return next((e for e in range(3, 27) if 2**e >= needed), 26)


def read_pair(stream, step, escape, level):
    """(q0, q1), with the coding step's number and the level of the pair's first entry, None in a centred layer."""
    raw = NUMBERS["steps"][step]["raw"]
    cell = (_cell(stream, NUMBERS["steps"][step]["centred"], 0) if level is None else
            _cell(stream, NUMBERS["steps"][step]["table"], level))
    if cell is ESCAPE:
        return stream.signed(escape), stream.signed(escape)
    if raw == 0:
        return cell
    return tuple((h << raw) + stream.field(raw) - (1 << (raw - 1)) for h in cell)
