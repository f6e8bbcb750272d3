# SPDX-License-Identifier: Apache-2.0
"""The speeds that codecs keep: for each instruction set, codec and operation at 25 M cold entries a ratio to a memcpy."""
import json
import pathlib
import statistics

from programs import ROOT, write

FILE = ROOT / "bench" / "results" / "floors.json"
SIZE = "25M_cold"
SHARE = 0.85  # of what was reached


def reached(document: dict) -> dict[str, float]:
    """{SPEC/OPERATION: median of its ratio to memcpy} of atomo's codecs on one thread, of single messages."""
    ratios: dict[str, list[float]] = {}
    for run in document["benchmarks"]:
        size, rest = run["name"].split("/", 1)
        if size == SIZE and run["threads"] == 1 and not run.get("peer") and not rest.endswith("/decode_add_8"):
            ratios.setdefault(rest, []).append(run["of_memcpy"])
    return {name: statistics.median(values) for name, values in ratios.items()}


def read(path: pathlib.Path) -> dict[str, dict[str, float]]:
    if not path.exists():
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def faults(document: dict, path: pathlib.Path) -> list[str]:
    """A line for everything that is slower than its floor, or that has none."""
    target = document["context"]["target"]
    floors = read(path).get(target, {})
    found = []
    for name, ratio in reached(document).items():
        floor = floors.get(name)
        if floor is None:
            found.append(f"no floor: {SIZE} {name} (target {target}); 'bash bench/run.sh --update-floors' sets it")
        elif ratio < floor:
            found.append(f"below its floor: {SIZE} {name} at {ratio:.4g} of memcpy, {floor:.4g} is wanted (target {target})")
    return found


def update(document: dict, path: pathlib.Path) -> int:
    """Sets the floors of what was measured; a run without a filter drops those of codecs that are gone. Returns how many."""
    target, now = document["context"]["target"], reached(document)
    floors = read(path)
    kept = floors.get(target, {}) if document["context"]["filter"] != "." else {}
    floors[target] = dict(sorted({**kept, **{name: float(f"{SHARE * ratio:.3g}") for name, ratio in now.items()}}.items()))
    write(path, json.dumps(dict(sorted(floors.items())), indent=1) + "\n")
    return len(now)
