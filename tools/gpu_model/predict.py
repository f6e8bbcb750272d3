#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Predicts how long calls take on GPUs, from counts of the machine code; nothing is run.

The instructions a warp executes (tests/cuda_compile/instructions.txt), the launches of a call
(launches.txt), bytes and shares of kept entries (kernels.toml, codecs.toml) and constants of each GPU (gpus.toml) go into
the four times of model.py. docs/kernels.md says how far an H200 was from them: trust the order of figures more than their digits.
"""
import argparse
import json
import os
import re
import sys

import model

ROOT = os.path.dirname(os.path.dirname(model.HERE))
PAGE = os.path.join(ROOT, "docs", "kernels.md")
PREDICTIONS = os.path.join(ROOT, "tests", "gpu", "predictions.json")
REPORTED = ("h100", "h200")  # beside whose predictions tests/gpu/report.py puts what it measures
MOST_APART = 2.5
LARGE = 1000  # blocks of a grid that has a share of the tensor, most likely
CALLS = ("encode", "decode", "decode_add_8")
VOTE = "vote_8"  # of sign alone
SOURCE = ("tools/gpu_model: instructions of {arch}, launches and bytes counted; an {name} of {copy} TB/s, {multiprocessors} "
          "multiprocessors at {clock} GHz, {issue:.0%} of the issue rate, {gap} us a launch; microseconds, not measured")
BEGIN, END = "<!-- predictions -->\n", "<!-- /predictions -->\n"


def arguments(tables):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="example: python3 tools/gpu_model/predict.py --codec qsgd:bits=4 --launches")
    parser.add_argument("--gpu", choices=tables.gpus, help="h100 when left out; all of them with --json")
    parser.add_argument("--model", choices=tables.models, help="this one alone")
    parser.add_argument("--codec", metavar="SPEC", help="this one alone")
    parser.add_argument("--call", choices=(*CALLS, VOTE), help="this one alone")
    parser.add_argument("--launches", action="store_true", help="each launch, and which of its four times is the longest")
    parser.add_argument("--json", action="store_true", help="print JSON: the times, or the launches with --launches")
    last = parser.add_mutually_exclusive_group()
    last.add_argument("--targets", action="store_true", help="the codecs with a target, and what each comes to")
    last.add_argument("--write", action="store_true", help="write the tables of docs/kernels.md and tests/gpu/predictions.json")
    last.add_argument("--check", action="store_true", help="exit 1 where these are not what is predicted now")
    options = parser.parse_args()
    if options.codec and options.codec not in tables.codecs:
        parser.error(f"--codec is '{options.codec}'; one of {', '.join(tables.codecs)} is wanted")
    fixed = next((name for name in ("targets", "write", "check") if getattr(options, name)), None)
    chosen_too = [name for name in ("gpu", "model", "codec", "call", "launches", "json") if getattr(options, name)]
    if fixed and chosen_too:
        parser.error(f"--{fixed} does not go with --{chosen_too[0]}: its figures are an H100's, of what has a target or of all")
    options.gpus = [options.gpu] if options.gpu else list(tables.gpus)
    options.gpu = options.gpu or "h100"
    return options


def aligned(rows, text=1):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) if i < text else cell.rjust(width)
                               for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows)


def chosen(tables, options):
    """Yields (model, codec) in the order of the tables."""
    for name in tables.models:
        for codec in tables.codecs:
            if options.call and (name, codec, options.call) not in tables.calls:
                continue
            if options.model in (None, name) and options.codec in (None, codec):
                yield name, codec


def calls_of(options):
    return [options.call] if options.call else CALLS


def predictions(tables, gpu, pairs, calls=CALLS):
    """Returns {model: {codec: {call: us}}}."""
    found = {}
    for name, codec in pairs:
        row = found.setdefault(name, {}).setdefault(codec, {})
        for call in calls:
            row[call] = round(model.time_call(tables, gpu, name, codec, call)[0], 1)
    return found


def table(tables, options):
    calls = calls_of(options)
    rows = [("model", "codec", *(f"{call} {unit}" for call in calls for unit in ("us", "of limit", "launches")))]
    for name, codec in chosen(tables, options):
        cells = []
        for call in calls:
            us, share, launches, _ = model.time_call(tables, options.gpu, name, codec, call)
            cells += [f"{us:.0f}", f"{100 * share:.0f}%", str(launches)]
        rows.append((name, codec, *cells))
    return aligned(rows, 2)


def launch_rows(tables, options):
    """Yields (model, codec, call, Timed) of every launch that was asked for."""
    for name, codec in chosen(tables, options):
        for call in calls_of(options):
            for timed in model.time_call(tables, options.gpu, name, codec, call)[3]:
                yield name, codec, call, timed


def launch_table(tables, options):
    rows = [("model", "codec", "call", "kernel", "blocks", "threads", "us", "bound", "bytes", "issue", "unit", "alone")]
    for name, codec, call, timed in launch_rows(tables, options):
        launch = timed.launch
        rows.append((name, codec, call, launch.kernel, str(launch.blocks), str(launch.threads), f"{timed.us:.1f}", timed.bound,
                     *(f"{timed.times[kind]:.1f}" for kind in ("bytes", "issue", "unit", "alone"))))
    return aligned(rows, 4)


def slowest(timed):
    """The launch that takes the longest, and why."""
    longest = max(timed, key=lambda launch: launch.us)
    return f"`{longest.launch.kernel}` {longest.us:.0f}, {longest.bound}"


def target_rows(tables):
    """Yields the lines of the targets' table."""
    yield ("codec", "model", "call", "target", "predicted", "of limit", "launches", "verdict", "slowest launch")
    for target in tables.targets:
        name, codec = target.get("model", "25M"), target["codec"]
        for call in CALLS:
            if call not in target:
                continue
            us, share, launches, timed = model.time_call(tables, "h100", name, codec, call)
            verdict = "met" if us <= target[call] else f"missed {us / target[call]:.1f}x"
            most = target.get("launches")
            if call == "encode" and most:
                verdict += f", {launches} launches of {most}" if launches > most else f", {launches} launches"
            yield (f"`{codec}`", name, call, f"{target[call]}", f"{us:.0f}", f"{100 * share:.0f} %", str(launches), verdict,
                   slowest(timed))


def gpu_rows(tables):
    """Yields the lines of all codecs on all GPUs, encode and decode of 25 M entries, ResNet-50 and GPT-2 small."""
    yield ("codec", *(f"{name} {call}" for name in tables.models for call in ("encode", "decode")))
    for codec in tables.codecs:
        cells = []
        for name in tables.models:
            for call in ("encode", "decode"):
                cells.append(" / ".join(f"{model.time_call(tables, gpu, name, codec, call)[0]:.0f}" for gpu in tables.gpus))
        yield (f"`{codec}`" + (", own kernels" if tables.codecs[codec].get("library") else ""), *cells)


def markdown(rows, text):
    rows = [tuple(row) for row in rows]
    rule = tuple("---" if i < text else "---:" for i in range(len(rows[0])))
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rule, *rows[1:])) + "\n"


def section(tables):
    """What stands between the marks of docs/kernels.md."""
    names = ", ".join(gpu["name"] for gpu in tables.gpus.values())
    return (f"Targets and predictions for an {tables.gpus['h100']['name']}, in microseconds:\n\n"
            f"{markdown(target_rows(tables), 3)}\n"
            f"Every codec, predicted for {names}, in microseconds:\n\n{markdown(gpu_rows(tables), 1)}")


def written(tables):
    """Returns {path: text} of what is made of the predictions."""
    with open(PAGE, encoding="utf-8") as file:
        page = file.read()
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise model.Unknown(f"{PAGE} has no lines {BEGIN.strip()} and {END.strip()}")
    # What is measured has a library's launches too.
    pairs = [(name, codec) for name in tables.models for codec, told in tables.codecs.items() if not told.get("library")]
    data = {gpu: {"source": SOURCE.format(**tables.gpus[gpu]), **predictions(tables, gpu, pairs)} for gpu in REPORTED}
    return {PAGE: before + BEGIN + section(tables) + END + after, PREDICTIONS: json.dumps(data, indent=1) + "\n"}


def apart(tables):
    """Yields the kernels whose ways differ much between architectures: there a rule of kernels.toml misses a loop."""
    for kernel in (kernel for kernel, told in tables.kernels.items() if "loops" in told):
        ways = {arch: row.way for (name, arch), row in tables.counted.items() if name == kernel}
        if ways and max(ways.values()) > MOST_APART * min(ways.values()):
            counts = ", ".join(f"{way:.0f} instructions on {arch}" for arch, way in ways.items())
            yield f"kernels.toml: the rules of '{kernel}' do not fit all architectures: {counts}"


def check(tables):
    """Returns a line for each file that is not what would be written."""
    wrong = []
    for path, text in written(tables).items():
        with open(path, encoding="utf-8") as file:
            if file.read() != text:
                wrong.append(f"{os.path.relpath(path, ROOT)} is not what is predicted now: "
                             "python3 tools/gpu_model/predict.py --write")
    wrong += apart(tables)
    launched = {launch.kernel for _, launches in tables.calls.values() for launch in launches}
    large = {launch.kernel for _, launches in tables.calls.values() for launch in launches if launch.blocks >= LARGE}
    wrong += [f"kernels.toml does not describe '{kernel}', of which {LARGE} blocks and more are launched; an empty section "
              "says that a warp does all of its way once" for kernel in sorted(large - set(tables.kernels))]
    known = {kernel for kernel, _ in tables.counted}
    wrong += [f"kernels.toml describes '{kernel}', which no call launches" for kernel in sorted(set(tables.kernels) - launched)]
    wrong += [f"launches.txt has '{kernel}', which instructions.txt has not" for kernel in sorted(launched - known)]
    missing = {(name, codec) for name in tables.models for codec in tables.codecs} ^ {call[:2] for call in tables.calls}
    wrong += [f"codecs.toml and launches.txt disagree about '{codec}' of {name}" for name, codec in sorted(missing)]
    return wrong


def main():
    tables = model.Tables()
    options = arguments(tables)
    try:
        if options.check:
            wrong = check(tables)
            print("\n".join(wrong) or "the predictions are what the counts give")
            return 1 if wrong else 0
        if options.write:
            for path, text in written(tables).items():
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                print(f"written: {os.path.relpath(path, ROOT)}")
        elif options.targets:
            print(aligned([[re.sub("`", "", cell) for cell in row] for row in target_rows(tables)], 3))
        elif options.launches and options.json:
            print(json.dumps([{"model": name, "codec": codec, "call": call, **timed.launch._asdict(), "us": timed.us,
                               "bound": timed.bound, "times": timed.times}
                              for name, codec, call, timed in launch_rows(tables, options)], indent=1))
        elif options.launches:
            print(launch_table(tables, options))
        elif options.json:
            pairs = list(chosen(tables, options))
            print(json.dumps({gpu: predictions(tables, gpu, pairs, calls_of(options)) for gpu in options.gpus}, indent=1))
        else:
            print(table(tables, options))
    except model.Unknown as unknown:
        print(f"predict.py: {unknown}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
