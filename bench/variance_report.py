# SPDX-License-Identifier: Apache-2.0
"""Writes what variance.py measured: an aligned text, Markdown, JSON and a plot."""
import json
import os
import pathlib

NEAREST = ", nearest"  # behind the name of a codec: the same atoms, kept by their size (content=nearest)


def short(value):
    """Three digits, without the zero before the point or an exponent's padding."""
    text = f"{value:.3g}"
    mantissa, e, exponent = text.partition("e")
    mantissa = mantissa.replace("0.", ".", 1) if mantissa.startswith("0.") else mantissa
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def error_of(row):
    return row["nmse"] if "nmse" in row else row["predicted_nmse"]


def line(model, codec, rows):
    """One codec on one model, as it is measured."""
    figures = [f"{row['rate']:g} b {short(error_of(row))} ({short(row['predicted_nmse'])})" if "nmse" in row
               else f"{row['rate']:g} b {short(row['predicted_nmse'])} predicted" for row in rows]
    return f"{model:12} {codec:20} " + ("   ".join(figures) or "-")


def aligned(header, body, left=1, rule=False):
    """Rows of cells as lines of equal width; with `rule` as a Markdown table."""
    widths = [max(len(row[i]) for row in [header, *body]) for i in range(len(header))]
    edge, between = ("| ", " | ") if rule else ("", "  ")
    def draw(row):
        cells = [cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]
        return (edge + between.join(cells) + edge[::-1]).rstrip()
    lines = [draw(row) for row in [header, *body]]
    if rule:
        lines.insert(1, "|" + "|".join("-" * (w + 2) if i < left else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|")
    return "\n".join(lines)


def note(report):
    host = report["machine"]
    captures = ", ".join(f"{c['model']} ({c['parameters']:,} parameters)" for c in report["captures"])
    return ("NMSE, E |decoded - g|^2 / |g|^2, by bits a parameter of the whole message: "
            f"mean of {report['draws']} drawn messages; in brackets what bench/reference predicts. Gradients of {captures}. "
            f"{host['cores']} cores, {host['processor']}, load {host['load']:g} at its end, {report['date'][:10]}.")


def costs_note(report):
    host = report["machine"]
    captures = ", ".join(f"{c['model']} ({c['parameters']:,} parameters)" for c in report["captures"])
    return (f"Milliseconds of an encode of all layers, one thread: medians of {report['rounds']} rounds. NMSE: means of "
            f"{4 * report['draws']} drawn messages. Gradients of {captures}. "
            f"{host['cores']} cores, {host['processor']}, load {host['load']:g} at its end, {report['date'][:10]}.")


def matrix(report, model, codecs):
    """Header and body of the table of one model: codecs by rates."""
    rates = sorted({row["rate"] for row in report["rows"]}, reverse=True)
    found = {(row["codec"], row["rate"]): row for row in report["rows"] if row["model"] == model}
    body = []
    for codec in codecs:
        cells = []
        for rate in rates:
            row = found.get((codec, rate))
            cells.append("-" if row is None else f"{short(row['nmse'])} ({short(row['predicted_nmse'])})" if "nmse" in row
                         else f"({short(row['predicted_nmse'])})")
        if any(cell != "-" for cell in cells):
            body.append([codec, *cells])
    return [model, *(f"{rate:g} b" for rate in rates)], body


def nearest_table(report, model):
    """What kinds of atoms leave with draws and by their size, at equal bits: E |decoded - g|^2 / |g|^2 = 1 - contraction."""
    found = {(row["codec"], row["rate"]): row for row in report["rows"] if row["model"] == model}
    body = []
    for (codec, rate), row in found.items():
        drawn = found.get((codec.removesuffix(NEAREST), rate))
        if codec.endswith(NEAREST) and drawn is not None:
            left = error_of(row)
            body.append([codec.removesuffix(NEAREST), f"{rate:g}", short(error_of(drawn)), short(left), short(1 - left),
                         f"{error_of(drawn) / left:.2f}" if left else "-"])
    return [f"{model}: atoms", "bits", "left, drawn", "left, nearest", "contraction", "drawn / nearest"], body


def every_figure(report):
    """One line for each figure, with spreads."""
    header = ["model", "codec", "spec", "bits", "predicted", "off", "NMSE", "sd of a draw", "predicted", "off", "+-"]
    body = []
    for row in report["rows"]:
        cells = [row["model"], row["codec"], row.get("canonical", row["spec"])]
        if "nmse" in row:
            error = row["nmse_stderr"] or 0.0
            cells += [f"{row['bits']:.4f}", f"{row['predicted_bits']:.4f}", f"{row['bits'] / row['predicted_bits'] - 1:+.1%}",
                      f"{row['nmse']:.4g}", f"{error * row['draws']**0.5:.2g}", f"{row['predicted_nmse']:.4g}",
                      f"{row['nmse'] / row['predicted_nmse'] - 1:+.1%}" if row["predicted_nmse"] else "-",
                      f"{error / row['nmse']:.1%}" if row["nmse"] else "-"]
        else:
            cells += ["-", f"{row['predicted_bits']:.4f}", "-", "-", "-", f"{row['predicted_nmse']:.4g}", "-", "-"]
        body.append(cells)
    return header, body


def cost_table(report, model):
    header = [f"encode of {model}, one thread", "ms", "least", "most", "x exact SVD", "x PowerSGD"]
    body = [[row["what"], *(f"{row[key]:.3g}" for key in ("ms", "least", "most", "of_svd", "of_powersgd"))]
            for row in report["costs"] if row["model"] == model]
    return header, body


def history_table(report, model):
    header = [f"{model}: ranks from earlier steps", "NMSE, first messages", "later ones", "ratio", "ms, first", "later", "ratio"]
    body = [[row["spec"], short(row["first_nmse"]), short(row["later_nmse"]), f"{row['later_nmse'] / row['first_nmse']:.3f}",
             f"{row['first_ms']:.3g}", f"{row['later_ms']:.3g}", f"{row['later_ms'] / row['first_ms']:.2f}"]
            for row in report["history"] if row["model"] == model]
    return header, body


def plot(report, codecs, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    models = [capture["model"] for capture in report["captures"]]
    figure, axes = pyplot.subplots(1, len(models), figsize=(6.5 * len(models), 5.5), squeeze=False, layout="constrained")
    for model, ax in zip(models, axes[0]):
        for number, codec in enumerate(codecs):
            rows = [row for row in report["rows"] if (row["model"], row["codec"]) == (model, codec) and error_of(row) > 0]
            style = {"color": f"C{number % 10}", "linestyle": "--" if any(r["biased"] for r in rows) else "-"}
            drawn = [row for row in rows if "nmse" in row]
            ax.errorbar([r["bits"] for r in drawn], [r["nmse"] for r in drawn], markersize=5,
                        yerr=[2 * (r["nmse_stderr"] or 0) for r in drawn], marker="osD^vP*hXp<>d"[number % 13],
                        label=codec if drawn else None, **style)
            if not drawn and rows:
                ax.plot([r["predicted_bits"] for r in rows], [r["predicted_nmse"] for r in rows], marker="x",
                        label=f"{codec} (predicted)", color=style["color"], linestyle=":")
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda x, _: f"{x:g}"))
        ax.set_xlabel("bits a parameter, whole message")
        ax.set_ylabel("NMSE of one message")
        ax.set_title(model)
        ax.grid(True, which="both", alpha=0.25)
    axes[0][-1].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1))
    partial = f"{path}.part.png"
    figure.savefig(partial, dpi=130)
    os.replace(partial, path)


def write(report, codecs, out):
    models = [capture["model"] for capture in report["captures"]]
    pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
    costs = [model for model in models if any(row["model"] == model for row in report["costs"])]
    tables = [(of(report, model), 1) for model in models if report["rows"]
              for of in (lambda report, model: matrix(report, model, codecs), nearest_table)]
    tables += [(cost_table(report, model), 1) for model in costs]
    tables += [(history_table(report, model), 1) for model in costs]
    said = note(report) if report["rows"] else costs_note(report)
    plain = [said, *(aligned(*table, left) for table, left in tables)]
    if report["rows"]:
        plain.append(aligned(*every_figure(report), 3))
    marked = [said, *(aligned(*table, left, rule=True) for table, left in tables)]
    for suffix, text in ((".txt", "\n\n".join(plain) + "\n"), (".md", "\n\n".join(marked) + "\n"),
                         (".json", json.dumps(report, indent=1) + "\n")):
        partial = pathlib.Path(out + suffix + ".part")
        partial.write_text(text)
        partial.replace(out + suffix)
    if report["rows"]:
        plot(report, codecs, out + ".png")
