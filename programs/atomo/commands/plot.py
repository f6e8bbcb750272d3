# SPDX-License-Identifier: Apache-2.0
"""Draws a report: reads the JSON of `atomo measure --json` or `atomo verify --json`, writes a PNG to standard output.

    atomo measure --json --codec sign g.npy | python3 plot.py > plot.png

Of `measure` error against size, or with magnitudes the error of each and a histogram a layer. Of `verify` the bias by
magnitude with its band, for the tensors that show most.

`--check` only says whether the plot could be drawn. Failures end with one line on standard error.
"""
import importlib.util
import json
import re
import sys

SIZE_KEYS = re.compile(r"[:,](bits|ratio|price|keep|delta|level)=[^,+]*")


def family(canonical: str) -> str:
    """A codec's spec without the keys that set its size: the points of one family make one curve."""
    text = SIZE_KEYS.sub(lambda m: m.group(0)[0], canonical)
    return re.sub(r":?,*(?=\+|$)", "", re.sub(r"([:,]),+", r"\1", text))


def curves(codecs: list) -> dict:
    by_family: dict = {}
    for codec in codecs:
        if codec["nmse"] is not None:
            by_family.setdefault(family(codec["canonical"]), []).append(codec)
    return {name: sorted(rows, key=lambda r: r["bits_per_parameter"]) for name, rows in by_family.items()}


MOST_TENSORS = 6


def tensors_that_show_most(classes: list) -> dict:
    """Classes by tensor: those with a bias beyond its band first, then those with most classes."""
    by_tensor: dict = {}
    for row in classes:
        by_tensor.setdefault(row["input"], []).append(row)

    def interest(item):
        rows = item[1]
        return -max(abs(row["bias"]) / row["band"] if row["band"] else 0 for row in rows) > -1, -len(rows)

    return dict(sorted(by_tensor.items(), key=interest)[:MOST_TENSORS])


def bias_figure(report: dict):
    """Biases of magnitude classes, a panel a tensor."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), dpi=130, layout="constrained")
    panels = figure.subplots(2, 3, sharey=True).ravel()
    chosen = tensors_that_show_most(report["classes"])
    for axes, (name, rows) in zip(panels, chosen.items()):
        octaves, band = [row["octave"] for row in rows], [row["band"] for row in rows]
        axes.bar(octaves, [2 * b for b in band], bottom=[-b for b in band], width=0.9, color="0.85",
                 label="band of no bias")
        beyond = ["C3" if abs(row["bias"]) > row["band"] else "C0" for row in rows]
        axes.scatter(octaves, [row["bias"] for row in rows], c=beyond, s=22, zorder=3, label="bias found")
        axes.axhline(0, color="0.4", linewidth=0.8)
        axes.set_yscale("symlog", linthresh=1e-2)
        axes.set_title(name, fontsize="medium")
        axes.grid(True, alpha=0.25)
    for axes in panels[len(chosen):]:
        axes.set_axis_off()
    if chosen:
        panels[0].legend(fontsize="small")
    figure.supxlabel("magnitude, octaves of the tensor's rms")
    figure.supylabel("bias, of the class's magnitudes")
    verdict = "every claim holds" if report["holds"] else "a claim does not hold"
    figure.suptitle(f"{report['subject'][:80]}: {verdict}")
    return figure


MOST_LAYERS = 11


def magnitude_figure(report: dict):
    """The error of each class of magnitudes, a curve a codec, and a histogram a layer, of those with most entries."""
    from matplotlib.figure import Figure

    layers = sorted(report["histograms"], key=lambda layer: -sum(layer["counts"]))[:MOST_LAYERS]
    layers = [layer for layer in report["histograms"] if layer in layers]  # in the model's order
    columns = min(4, 1 + len(layers))
    rows = -(-(1 + len(layers)) // columns)
    figure = Figure(figsize=(4 * columns, 3 * rows), dpi=110, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for number, codec in enumerate(report["codecs"]):
        classes = [c for c in codec["magnitudes"]["octaves"] if c["nmse"]]
        panels[0].plot([c["octave"] for c in classes], [c["nmse"] for c in classes], marker="osD^Pp*hX"[number % 9],
                       markersize=4, color=f"C{number % 10}", label=codec["spec"][:40])
    panels[0].set_yscale("log")
    panels[0].set_title("NMSE by magnitude", fontsize="medium")
    panels[0].set_xlabel("octaves of the layer's rms")
    if panels[0].lines:
        panels[0].legend(fontsize="x-small")
    for axes, layer in zip(panels[1:], layers):
        inner = len(layer["counts"]) - 2
        places = [8 * (k - 0.5) / inner - 4 for k in range(inner + 2)]
        axes.bar(places, layer["counts"], width=8 / inner, color="C0")
        axes.set_yscale("log")
        axes.set_xlim(-4.2, 4.2)
        axes.set_title(layer["layer"][-32:], fontsize="medium")
        axes.text(0.02, 0.97, f"{layer['most_negative']:.3g} to {layer['largest']:.3g}" if layer["largest"] is not None else "",
                  transform=axes.transAxes, va="top", fontsize="x-small")
    for axes in panels[1:1 + len(layers)]:
        axes.set_xlabel("in units of the layer's rms", fontsize="small")
    for axes in panels[1 + len(layers):]:
        axes.set_axis_off()
    for axes in panels[:1 + len(layers)]:
        axes.grid(True, alpha=0.25)
    return figure


def figure_of(report: dict):
    """A figure of its own: pyplot, whose backend is the caller's affair, is not asked."""
    if "histograms" in report:
        return magnitude_figure(report)
    if "classes" in report:
        return bias_figure(report)
    return error_figure(report)


def error_figure(report: dict):
    """Error against size, a curve a family of codecs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(8, 5), dpi=130, layout="constrained")
    axes = figure.subplots()
    groups = curves(report["codecs"])
    positive = [row["nmse"] for rows in groups.values() for row in rows if row["nmse"] > 0]
    bottom = min(positive, default=1.0) / 4  # where an exact codec, whose error has no logarithm, is shown
    for number, (name, rows) in enumerate(groups.items()):
        bits = [row["bits_per_parameter"] for row in rows]
        nmse = [row["nmse"] if row["nmse"] > 0 else bottom for row in rows]
        spread = [2 * (row["nmse_stderr"] or 0) if row["nmse"] > 0 else 0 for row in rows]
        exact = all(row["nmse"] == 0 for row in rows)
        axes.errorbar(bits, nmse, yerr=spread, marker="v" if exact else "osD^Pp*hX"[number % 9], capsize=3,
                      linewidth=1.5, color=f"C{number % 10}", label=name + (" (exact)" if exact else ""))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.6g}"))
    axes.set_xlabel("bits a parameter (whole container)")
    axes.set_ylabel("NMSE, mean |decode − g|² / |g|²")
    elements, tensors = report["input"]["elements"], report["input"]["tensors"]
    axes.set_title(f"{elements:,} parameters in {tensors} tensor{'s' if tensors != 1 else ''}")
    axes.grid(True, which="both", alpha=0.25)
    if groups:
        axes.legend(fontsize="small")
    else:
        axes.text(0.5, 0.5, "no codec has a finite error here", ha="center", transform=axes.transAxes)
    return figure


def main() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit("matplotlib is missing: install python3-matplotlib")
    if "--check" not in sys.argv[1:]:
        figure_of(json.load(sys.stdin)).savefig(sys.stdout.buffer, format="png")


if __name__ == "__main__":
    main()
