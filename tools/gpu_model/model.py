# SPDX-License-Identifier: Apache-2.0
"""Predicted times of kernels and calls on GPUs, from counts alone.

A launch takes the longest of four times:
  bytes   what it moves, at the speed of a copy;
  issue   the instructions of all its warps, at the share of the schedulers' rate that such kernels reach;
  unit    the instructions of its busiest kind, at the rate of the unit that executes them;
  alone   what one warp needs by itself, its dependent instructions one after the other, times the turns in which the
          multiprocessors take the grid's warps; or what the first block's warps need, where that has work of its own. This is all there is to a search, a scan by one block, an elimination.
A call is its launches one after the other, with a gap before each.
"""
import collections
import math
import os
import sys
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
TABLES = os.path.join(os.path.dirname(os.path.dirname(HERE)), "tests", "cuda_compile")
sys.path.insert(0, TABLES)
import instructions  # noqa: E402
import report  # noqa: E402
import sass  # noqa: E402

SCHEDULERS = 4  # of a multiprocessor
REGISTERS, MOST_WARPS, MOST_BLOCKS = 65536, 64, 32  # of a multiprocessor
RESERVED_SHARED = 1024  # bytes of each block
IDLE = 30  # instructions of a warp that finds nothing to do

Launch = collections.namedtuple("Launch", "kernel blocks threads shared parts", defaults=(1,))  # `blocks` of each part
# Microseconds, and which of the four times that is; `times` has all of them.
Timed = collections.namedtuple("Timed", "launch us bound times")


class Unknown(Exception):
    """Something that a table does not have."""


def load(name):
    with open(os.path.join(HERE, name), "rb") as file:
        return tomllib.load(file)


def parse_launch(text):
    kernel, _, size = text.rpartition(" ")
    grid, _, shared = size.partition("+")
    *blocks, threads = grid.split("x")
    return Launch(kernel, int(blocks[0]), int(threads), int(shared or 0), *map(int, blocks[1:]))


def read_launches(path):
    """Returns {(model, codec, call): (times, [Launch])}, `times` the messages of which each takes these launches."""
    calls = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.startswith("#"):
                continue
            head, _, rest = line.rstrip("\n").partition(":  ")
            times = 1
            if head.endswith(": 8 times"):
                head, times = head.removesuffix(": 8 times"), 8
            elif ": 8 times" in line:
                head, _, rest = line.rstrip("\n").partition(": 8 times  ")
                times = 8
            model, codec, call = head.split(" ")
            calls[model, codec, call] = times, [parse_launch(text) for text in rest.split("  ")]
    return calls


class Tables:
    """All that is counted: instructions, resources, descriptions, quantities, launches, GPUs."""

    def __init__(self, counted=None, resources=None, kernels=None, codecs=None, calls=None, gpus=None):
        counted = counted if counted is not None else instructions.read(os.path.join(TABLES, "instructions.txt"))[1]
        resources = resources if resources is not None else report.read(os.path.join(TABLES, "resources.txt"))[1]
        self.counted = {(row.kernel, row.arch): row for row in counted}
        used = {(row.file, row.kernel, row.arch): row for row in resources}
        self.resources = {(row.kernel, row.arch): used.get((row.file, row.kernel.rpartition("::")[2], row.arch))
                          for row in counted}
        self.kernels = kernels if kernels is not None else load("kernels.toml")
        data = codecs if codecs is not None else load("codecs.toml")
        self.models, self.codecs, self.targets = data["models"], data["codecs"], data.get("targets", [])
        self.calls = calls if calls is not None else read_launches(os.path.join(HERE, "launches.txt"))
        self.gpus = gpus if gpus is not None else load("gpus.toml")

    def quantities(self, model, codec):
        if codec not in self.codecs:
            raise Unknown(f"codecs.toml has no codec '{codec}'; it has {', '.join(self.codecs)}")
        found = {"kept": 1.0, "atom": 256.0, "rank": 64.0, "tile": 1.0, "grid": 1.0, "measured": 0.0, **self.models[model], **self.codecs[codec]}
        found["message"] = found["bits"] * found["entries"] / 8
        found["atoms"] = found["entries"] / found["atom"]
        return found


def value(expression, quantities):
    """An expression of kernels.toml: numbers, quantities, arithmetic."""
    return float(eval(expression, {"__builtins__": {}}, quantities))  # pylint: disable=eval-used


def resident_warps(gpu, used, launch):
    """Warps that a multiprocessor holds of a launch."""
    warps = math.ceil(launch.threads / 32)
    registers = math.ceil(used.registers / 8) * 8 * 32 if used else 64 * 32
    shared = (used.shared if used else 0) + launch.shared + RESERVED_SHARED
    blocks = min(MOST_WARPS // warps, MOST_BLOCKS, REGISTERS // (registers * warps), int(gpu["shared"] // shared))
    return max(1, blocks) * warps


def time_launch(tables, gpu, launch, quantities, adds=False, messages=1):
    key = launch.kernel, gpu["arch"]
    if key not in tables.counted:
        raise Unknown(f"instructions.txt has no kernel '{launch.kernel}' for {gpu['arch']}")
    row, told = tables.counted[key], tables.kernels.get(launch.kernel, {})
    warps = launch.blocks * math.ceil(launch.threads / 32)
    active = warps
    if "warps" in told:
        active = min(warps, max(1.0, value(told["warps"], quantities)))
    items = 0.0
    if "each" in told:
        items = value(told["each"], quantities)
    elif row.unit:
        items = value(told.get("items", "entries"), quantities) / active
    way = row.warp + row.item * items / 32
    together = messages if told.get("messages") else 1
    issued = launch.parts * (together * active * way + (warps - active) * IDLE)
    rate = gpu["multiprocessors"] * SCHEDULERS * gpu["clock"] * 1e3  # instructions a microsecond
    busiest = max((getattr(row, kind) / max(row.way, 1) * gpu["pipes"][kind] for kind in sass.CLASSES), default=0)
    resident = resident_warps(gpu, tables.resources[key], launch) * gpu["multiprocessors"]
    turns = max(told.get("rounds", 1.0), launch.parts * active / resident)
    moved = launch.parts * value(told.get("bytes", "0"), quantities)
    if adds:
        moved += value(told.get("adds", "0"), quantities) + (together - 1) * quantities["message"]
    times = {"bytes": moved / gpu["copy"] / 1e6, "issue": issued / rate / gpu["issue"], "unit": issued * busiest / rate,
             "alone": max(together * turns * (row.alone + row.alone_item * items), row.first) / gpu["clock"] / 1e3}
    bound = max(times, key=times.get)
    return Timed(launch, times[bound], bound, times)


def time_call(tables, gpu_name, model, codec, call):
    """Returns (microseconds, share of the byte limit, launches, [Timed of one message])."""
    gpu = tables.gpus[gpu_name]
    if (model, codec, call) not in tables.calls:
        raise Unknown(f"launches.txt has no call '{model} {codec} {call}'")
    times, launches = tables.calls[model, codec, call]
    quantities = tables.quantities(model, codec)
    adds = call.startswith("decode_add")
    messages = 8 if call == "decode_add_8" else 1
    launched = collections.Counter(launch.kernel for launch in launches)
    earlier, timed = collections.Counter(), []
    for launch in launches:
        known = {**quantities, "times": launched[launch.kernel], "number": earlier[launch.kernel]}
        timed.append(time_launch(tables, gpu, launch, known, adds, messages // times))
        earlier[launch.kernel] += 1
    us = times * sum(launch.us + gpu["gap"] for launch in timed)
    least = (8 if adds else 4) * quantities["entries"] + messages * quantities["message"]
    return us, least / gpu["copy"] / 1e6 / us, times * len(launches), timed
