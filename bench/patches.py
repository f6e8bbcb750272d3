#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures patches of weights: their size and speed, beside what a copy takes and what zstd makes of the difference.

Weights are normal numbers of the type; a share of them moves to a neighbour, or by a normal step of a hundredth. Times are of one
thread and in memory, medians of the rounds; GB/s count the bytes of the tensors. Needs build/venv (bash scripts/python.sh).
"""
import argparse
import datetime
import json
import pathlib
import statistics
import sys
import time

import numpy

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import programs  # noqa: E402

COLUMNS = ("type", "changed", "by", "smaller", "make GB/s", "apply GB/s", "copy GB/s", "zstd -1 of xor smaller", "zstd GB/s")


def weights(type_, entries, rng):
    x = (rng.standard_normal(entries, dtype=numpy.float32) * 0.02)
    return (x.view(numpy.uint32) >> 16).astype(numpy.uint16) if type_ == "bf16" else x.astype({"f16": "f2", "f32": "f4"}[type_])


def changed(x, type_, share, by, rng):
    new = x.copy()
    where = numpy.flatnonzero(rng.random(x.size) < share)
    if by == "neighbour":
        bits = new.view(f"u{new.itemsize}")
        bits[where] += rng.choice(numpy.array([1, -1]).astype(bits.dtype), where.size)
        return new
    step = 1 + 0.01 * rng.standard_normal(where.size, dtype=numpy.float32)
    if type_ == "bf16":
        values = (new[where].astype(numpy.uint32) << 16).view(numpy.float32) * step
        new[where] = (values.view(numpy.uint32) >> 16).astype(numpy.uint16)
    else:
        new[where] = new[where] * step.astype(new.dtype)
    return new


def clock(call, rounds):
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        result = call()
        times.append(time.process_time() - begin)
    return statistics.median(times), (max(times) - min(times)) / statistics.median(times), result


def row(type_, share, by, entries, rounds):
    import atomo
    import zstandard
    rng = numpy.random.default_rng(1)
    old = weights(type_, entries, rng)
    new = changed(old, type_, share, by, rng)
    before, after, out = {"w": old}, {"w": new}, {"w": numpy.empty_like(old)}
    make, make_spread, patch = clock(lambda: atomo.make_patch(before, after), rounds)
    apply, apply_spread, made = clock(lambda: atomo.apply_patch(patch, before, out=out), rounds)
    if made["w"].tobytes() != new.tobytes():
        raise SystemExit(f"patches.py: {type_}, {share}: the tensor did not come back")
    copy, _, _ = clock(lambda: numpy.copyto(out["w"], new), rounds)
    bits = f"u{old.itemsize}"
    packer = zstandard.ZstdCompressor(level=1)
    zstd, _, packed = clock(lambda: packer.compress(old.view(bits) ^ new.view(bits)), 1)
    speed = [new.nbytes / seconds / 1e9 for seconds in (make, apply, copy)]
    return {"type": type_, "share": share, "by": by, "smaller": new.nbytes / len(patch), "make": speed[0], "apply": speed[1],
            "copy": speed[2], "zstd": new.nbytes / len(packed), "zstd_speed": new.nbytes / zstd / 1e9,
            "spread": max(make_spread, apply_spread)}


def table(rows):
    cells = [[r["type"], f"{100 * r['share']:g} %", r["by"], f"{r['smaller']:.1f}", f"{r['make']:.2f}", f"{r['apply']:.2f}",
              f"{r['copy']:.2f}", f"{r['zstd']:.1f}", f"{r['zstd_speed']:.2f}"] for r in rows]
    lines = [list(COLUMNS), ["---"] * 3 + ["---:"] * (len(COLUMNS) - 3), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="example: build/venv/bin/python bench/patches.py --entries 10000000")
    parser.add_argument("--entries", type=int, default=1 << 25, help="of a tensor (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each call (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, help="PATH.md and PATH.json are written")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    rows = []
    for type_ in ("bf16", "f16", "f32"):
        for share, by in ((0.001, "neighbour"), (0.01, "neighbour"), (0.01, "step"), (0.1, "step"), (1.0, "step")):
            programs.show(f"{type_}, {100 * share:g} % changed")
            rows.append(row(type_, share, by, arguments.entries, arguments.rounds))
    programs.show("")
    facts = {"date": datetime.date.today().isoformat(), "processor": programs.processor(), "entries": arguments.entries,
             "rounds": arguments.rounds, "rows": rows}
    text = (f"{table(rows)}\n\n`build/venv/bin/python bench/patches.py`: tensors of {arguments.entries:,} entries, one thread of an "
            f"{facts['processor']}, {facts['date']}; rounds of a call differ by up to "
            f"{100 * max(r['spread'] for r in rows):.0f} %.\n")
    print(json.dumps(facts, indent=1) if arguments.json else text, end="\n" if arguments.json else "")
    if arguments.out:
        programs.write(arguments.out.with_suffix(".md"), text)
        programs.write(arguments.out.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
