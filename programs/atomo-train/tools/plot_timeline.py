#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what one worker did in one step, from the trace that `atomo-train --timeline TRACE.json` writes.

Above, three lanes: when the worker computed, when it encoded, when a payload was handed to MPI. Below, a row for every
layer: back-propagation up to its gradient, its encoding, its departure. Layers that leave before the
last gradient is there travel while the rest is computed.

    mpirun -n 3 atomo-train --model resnet18 --steps 4 --budget 1bit --timeline trace.json
    python3 programs/atomo-train/tools/plot_timeline.py trace.json --out timeline.png
"""

import argparse
import json
import pathlib
import sys

from experiments.reports import figure, save_figure

COMPUTE, ENCODE, SENT = "C0", "C1", "C2"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("trace", help="written by --timeline")
    parser.add_argument("--rank", type=int, default=1, help="of the worker")
    parser.add_argument("--out", default="timeline.png")
    return parser.parse_args()


def layers_of(events):
    """(name, gradient there, encode begins, encode ends, sent) in milliseconds, in the order of back-propagation."""
    found = {}
    for event in events:
        kind, layer = event.get("cat"), event.get("args", {}).get("layer")
        if kind in ("gradient", "encode", "send") and layer:
            begin = event["ts"] / 1000
            found.setdefault(layer, {})[kind] = (begin, begin + event.get("dur", 0) / 1000)
    whole = [(name, at["gradient"][0], *at["encode"], at["send"][0]) for name, at in found.items() if len(at) == 3]
    return sorted(whole, key=lambda layer: layer[1])


def span(events, kind):
    (event,) = [event for event in events if event.get("cat") == kind]
    return event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000


def beside(events):
    """Whether another thread encodes than the one that computes."""
    return any(event.get("cat") == "encode" and event["tid"] != 0 for event in events)


def draw(lanes, rows, forward, backward, layers, is_beside):
    start, last = forward[0], layers[-1][1]
    lanes.broken_barh([(0, forward[1] - start)], (1.7, 0.6), color=COMPUTE, alpha=0.4)
    since = backward[0]
    for row, (_, ready, begin, end, _sent) in enumerate(layers):
        lanes.broken_barh([(since - start, ready - since)], (1.7, 0.6), color=COMPUTE)
        lanes.broken_barh([(begin - start, end - begin)], (0.7, 0.6), color=ENCODE)
        rows.broken_barh([(since - start, ready - since)], (row - 0.4, 0.8), color=COMPUTE)
        rows.broken_barh([(begin - start, end - begin)], (row - 0.4, 0.8), color=ENCODE)
        since = ready if is_beside else end
    sent = [sent - start for *_, sent in layers]
    lanes.plot(sent, [0] * len(sent), "|", color=SENT, markersize=14)
    rows.plot(sent, range(len(sent)), ">", color=SENT, markersize=4)
    lanes.set_yticks([2, 1, 0], ["compute", "encode", "sent"])
    lanes.set_ylim(-0.6, 2.6)
    rows.set_yticks(range(len(layers)), [layer[0] for layer in layers], fontsize=5 if len(layers) > 30 else 8)
    rows.set_ylim(len(layers) - 0.4, -0.6)
    rows.set_xlabel("milliseconds since the forward pass began")
    for axes in (lanes, rows):
        axes.axvline(last - start, color="black", linewidth=0.8, linestyle=":")
        axes.grid(True, axis="x", alpha=0.3)


def main():
    options = arguments()
    trace = json.loads(pathlib.Path(options.trace).read_text())["traceEvents"]
    events = [event for event in trace if event["pid"] == options.rank]
    layers = layers_of(events)
    if not layers:
        sys.exit(f"plot_timeline.py: rank {options.rank} sends no layers in '{options.trace}': take a run with "
                 "--algorithm ps and one of its workers")
    forward, backward = span(events, "forward"), span(events, "backward")
    drawn, axes = figure(2, 1, sharex=True, figsize=(10, 3 + 0.11 * max(len(layers), 20)),
                         height_ratios=[1, 0.09 * max(len(layers), 20)])
    draw(*axes, forward, backward, layers, beside(events))
    early = sum(sent < layers[-1][1] for *_, sent in layers)
    axes[0].set_title(f"rank {options.rank}: {early} of {len(layers)} layers left before the last gradient was there (dotted)")
    save_figure(drawn, options.out)
    encode = sum(end - begin for _, _, begin, end, _ in layers)
    print(f"{early} of {len(layers)} layers left before the last gradient was there; forward "
          f"{forward[1] - forward[0]:.1f} ms, backward {backward[1] - backward[0]:.1f} ms, {encode:.1f} ms "
          f"{'beside it' if beside(events) else 'of it'} encoding; plot {options.out}")


if __name__ == "__main__":
    main()
