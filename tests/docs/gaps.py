#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the tables of docs/language-models.md, and the gaps that its text names, with the trainings that they are of.

usage: gaps.py DOCS_FOLDER RESULTS_FOLDER            fails where the page says something else than the committed results
       gaps.py --prove DOCS_FOLDER RESULTS_FOLDER    fails unless each planted mistake is found

A row of a table is the training of as many bytes a step; of local steps it has a name, and a column a length of rounds. A gap
is the mean over the seeds of bits a character, less that without compression. The summary has figures of these tables alone,
and README.md figures of this page.
"""
import json
import re
import statistics
import sys
from pathlib import Path

SECTION, LONGER_SECTION = r"^## Gradients as they are\n(.*?)^## ", r"^## Longer\n(.*?)^## "
FIRST, LONGER = "memories-300-steps-simulated.json", "memories-1500-steps-simulated.json"
NONE = ("uncompressed", "")
# Tables of bytes a step and gaps: where they are, and what they are of.
OTHER_GAPS = {r"^## Clipped gradients\n(.*?)^## ": ("memories-300-steps-clipped.json", "memories-300-steps-clipped-demo-factored.json",
                                                   "memories-300-steps-clipped-rates.json"),
              r"^## Rates that stay high\n(.*?)^## ": ("memories-300-steps-trapezoid.json",),
              r"^### From half a bit to a sixteenth\n(.*?)^### ": ("second-moment-bits.json",)}
SUMMARY = r"^## At a glance\n(.*?)^## "
FIGURE = r"\d\.\d{3} ± \d\.\d{3}"
LOCAL_SECTION = r"^## Local steps\n(.*)"
# Tables of local steps: files that they are of, rows and their arms, and the inner optimiser. Those of BEST have the best rates.
ROTATED = "outer-muon-rotated.json outer-muon-trellis.json outer-muon-first-block.json"
MUON_MEMORIES = "outer-muon-memories.json outer-muon-rates-simulated.json"
DILOCO = {"DiLoCo, uncompressed": "diloco"}
LOCAL_TABLES = [
    ("outer-rates-simulated.json",
     DILOCO | {"plain average, uncompressed": "average", "plain average, `atomo:bits=0.148`": "atomo-average",
               "SparseLoCo, `ef:decay=0.95+topk:chunk=4096,k=64,values=2`": "sparseloco"}, "adamw"),
    ("outer-600-steps-simulated.json",
     DILOCO | {"`atomo:bits=1`": "atomo, 1 bits", "`atomo:bits=0.25`": "atomo, 0.25 bits",
               "`ef+atomo:bits=1,content=nearest`": "ef-atomo, 1 bits",
               "`ef+atomo:bits=0.25,content=nearest`": "ef-atomo, 0.25 bits"}, "adamw"),
    ("outer-memories.json",
     {"none, drawn atoms": "atomo-average", "`ef`": "ef-average", "`ef:decay=0.95`": "decay-average", "`dgc:momentum=0.9`": "dgc"}, "adamw"),
    ("outer-muon-rates-simulated.json",
     {"DiLoCo with Muon, uncompressed": "diloco", "plain average with Muon, uncompressed": "average",
      "plain average with Muon, `atomo:bits=0.148`": "atomo-average", "SparseLoCo with Muon": "sparseloco"}, "muon"),
    (MUON_MEMORIES,
     {"none, drawn atoms, Muon inside": "atomo-average", "`ef`, Muon inside": "ef-average", "`ef:decay=0.95`, Muon inside": "decay-average",
      "`dgc:momentum=0.9`, Muon inside": "dgc"}, "muon"),
    (ROTATED,
     {"`eden:bits=0.21`": "eden-in-bits, 0.21 bits", "`trellis:bits=0.2,states=4096`": "trellis-in-bits, 0.2 bits",
      "`trellis:bits=0.126,states=4096` in the mean, more for the first block": "first-block-in-bits, 0.126 bits"}, "muon"),
]
BEST = ("outer-rates-simulated.json", "outer-memories.json", "outer-muon-rates-simulated.json", MUON_MEMORIES, ROTATED)
OTHERS_SECTION, OTHERS = r"^## Adafactor and Muon\n(.*?)^## ", "second-moment-others.json"
ROUNDS, ROTATED_ROUNDS = "rounds-muon-300-steps.json", "rounds-muon-trellis-300-steps.json"
IN_ROUNDS = r"rounds of two end at (\S+ ± \S+) at 1/128 and at (\S+ ± \S+) at 1/256, (\S+) and (\S+) behind"
IN_ROTATED_ROUNDS = r"In rotated blocks rounds of two end at (\S+ ± \S+) at 1/256, (\S+) behind"
# What noise costs, a round a column: the rows, and the layers that each adds up.
NOISE_SECTION, NOISE = r"^### Where noise costs\n(.*?)^### ", "noise-by-layer.json"
NOISE_ROWS = {"`blocks.0.qkv`": r"blocks\.0\.qkv", "`blocks.0.attended`": r"blocks\.0\.attended", "`blocks.0.mlp1`, `mlp2`": r"blocks\.0\.mlp.",
              "the other three blocks": r"blocks\.[123]\..*", "`positions`, `characters`, norms": "positions|characters|all norms",
              "`head`": "head", "all at once": "all layers"}
# The table of both second moments: where its trainings are, and the arms of its rows; a cell is the best of three seeds.
MOMENTS_SECTION = r"^### Adam's own second moment and the factored one\n(.*?)^##"
MOMENTS = ("memories-300-steps-simulated.json", "memories-300-steps-demo-factored.json", "second-moment-bits.json")
ALSO_CALLED = {"factored": "atomo-factored", "own": "atomo"}  # in the last of these
MOMENT_ROWS = {"atomo": "atomo", "atomo, a memory, nearest content": "ef-atomo", "top-k, a memory": "ef-topk",
               "SparseLoCo's messages": "ef-chunks", "DeMo's messages": "demo"}
# Sentences, and the trainings whose gaps they name in turn: arm, setting and a rate, or the best rate.
SENTENCES = [
    (r"At one rate of \.002 it is (\S+) behind", [("atomo", "0.5 bits", 0.002)]),
    (r"At 1/128 the gap is (\S+) without a memory, (\S+) with the factored second moment \(at 1/125\) and (\S+) with a memory",
     [("atomo", "0.25 bits", None), ("atomo-factored", "0.25 bits", None), ("ef-atomo", "0.25 bits", None)]),
    (r"At 1/256 it is (\S+), without a memory", [("atomo", "0.125 bits", None)]),
]
EVEN = r"\*\*At 1/64 the default, which has no memory, ends where no compression does\*\*: (\S+ ± \S+) beside (\S+ ± [0-9.]+\d)"


class Trainings:
    """The results of files, by arm, setting and rate; the best rate's by None too."""

    def __init__(self, *paths):
        self.of = {}
        for result in (result for path in paths for result in json.loads(path.read_text())["results"]):
            if result["failed"]:
                continue
            ends = [run[-1] for run in result["runs"]]
            scores = [end["bits_per_character"] for end in ends]
            figures = {"bytes": statistics.mean(end["bytes_per_step"] for end in ends), "rate": result["rate"],
                       "ratio": statistics.mean(end["ratio"] for end in ends), "score": statistics.mean(scores),
                       "spread": statistics.stdev(scores)}
            for rate in [result["rate"]] + [None] * result["best"]:
                self.of[result["arm"], result["setting"], rate] = figures

    def gap(self, arm, setting, rate=None, none=NONE):
        return self.of[arm, setting, rate]["score"] - self.of[*none, rate]["score"]

    def score(self, arm, setting):
        """None where it was not trained."""
        of = self.of.get((arm, setting, None))
        return of and f"{of['score']:.3f} ± {of['spread']:.3f}"

    def best_of(self, bytes_a_step):
        """Arm and setting."""
        return [key[:2] for key, of in self.of.items() if key[2] is None and f"{of['bytes']:,.0f}" == bytes_a_step]


def short(value):
    """.015, as the page writes it."""
    return f"{value:.3f}".replace("0.", ".", 1)


def tables_of(text):
    """Lists of rows, each by its column."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        yield [dict(zip(header, row)) for row in rows]


def wrong_rows(rows, trainings):
    for row in rows:
        found = trainings.best_of(row["bytes a step"])
        if len(found) != 1:
            yield f"{len(found)} trainings took {row['bytes a step']} bytes a step at their best rate, the row is {row['codec']}"
            continue
        of = trainings.of[*found[0], None]
        true = {"ratio": (f"{of['ratio']:.1f}", f"{of['ratio']:.0f}"), "best rate": (f"{of['rate']:g}".replace("0.", ".", 1),),
                "test bits a character": (trainings.score(*found[0]),),
                "behind": ("",) if found[0] == NONE else (short(trainings.gap(*found[0])),)}
        for column in row.keys() & true:
            if row[column] not in true[column]:
                yield f"{' '.join(found[0])}: {column} is {row[column]}, the trainings have {true[column][0]}"


def wrong_local_rows(text, results):
    section = re.search(LOCAL_SECTION, text, re.MULTILINE | re.DOTALL)
    tables = list(tables_of(section[1])) if section else []
    for names, arms, inner in LOCAL_TABLES:
        rows = next((rows for rows in tables if {next(iter(row.values())) for row in rows} == set(arms)), None)
        if rows is None:
            yield f"there is no table of local steps with the rows of {names}"
            continue
        trainings = Trainings(*(results / name for name in names.split()))
        for row in rows:
            for column in [each for each in row if each.startswith("rounds of ")]:
                key = arms[next(iter(row.values()))], f"{inner}, {column}"
                true = trainings.score(*key) or ""
                if true and names in BEST:
                    true += f" ({trainings.of[*key, None]['rate']:g})".replace("(0.", "(.")
                if row[column] != true:
                    yield f"{next(iter(row.values()))}, {column}: {row[column]}, the trainings have {true}"


def wrong_others(text, trainings):
    """Of optimisers that divide otherwise than Adam: each has its own row without compression."""
    section = re.search(OTHERS_SECTION, text, re.MULTILINE | re.DOTALL)
    rows = next(tables_of(section[1]), []) if section else []
    said = {}
    for row in rows:
        bits = re.fullmatch(r"`atomo:bits=(.*)`", row["codec"])
        optimiser, none = row["optimiser"].lower(), (f"uncompressed-{row['optimiser'].lower()}", "")
        key = (optimiser, f"{bits[1]} bits") if bits else none
        said[key] = (row["bytes a step"], row["rate"], row["test bits a character"], row["behind"])
        if (*key, None) in trainings.of:
            of = trainings.of[*key, None]
            true = (f"{of['bytes']:,.0f}", short(of["rate"]), trainings.score(*key),
                    "" if key == none else short(trainings.gap(*key, none=none)))
            if said[key] != true:
                yield f"{' '.join(key)}: {said[key]}, the trainings have {true}"
    if said.keys() != {key[:2] for key in trainings.of}:
        yield f"the table of other optimisers has {sorted(said)}"


def wrong_rounds(text, results, others):
    """Of the sentences on Muon's rounds of two steps, behind no compression at every step."""
    none = others.of["uncompressed-muon", "", None]["score"]
    for sentence, name, arm, bits in ((IN_ROUNDS, ROUNDS, "atomo", (0.25, 0.125)), (IN_ROTATED_ROUNDS, ROTATED_ROUNDS, "trellis", (0.117,))):
        rounds, keys = Trainings(results / name), [(f"{arm}, rounds of 2", f"{each} bits a step") for each in bits]
        true = (*(rounds.score(*key) for key in keys), *(short(rounds.of[*key, None]["score"] - none) for key in keys))
        found = re.search(sentence, text)
        if not found or found.groups() != true:
            yield f"the sentence '{sentence}' has {found and found.groups()}, the trainings {true}"


def wrong_moments(text, results):
    """Of the table with a column for each size and second moment, `1/64, own` and the like, and a row for each kind of message."""
    ends = {}
    for name in MOMENTS:
        for result in json.loads((results / name).read_text())["results"]:
            if not result["failed"] and len(result["runs"]) == 3:
                scores = [run[-1]["bits_per_character"] for run in result["runs"]]
                key = ALSO_CALLED.get(result["arm"], result["arm"]), result["setting"]
                ends[key] = min(ends.get(key, (9,)), (statistics.mean(scores), statistics.stdev(scores), result["rate"]))
    section = re.search(MOMENTS_SECTION, text, re.MULTILINE | re.DOTALL)
    rows = next(tables_of(section[1]), []) if section else []
    if {row[""] for row in rows} != MOMENT_ROWS.keys():
        yield f"the table of both second moments has the rows {[row[''] for row in rows]}"
        return
    for row in rows:
        for size, bits in ((64, 0.5), (128, 0.25), (256, 0.125)):
            for moment, suffix in (("own", ""), ("factored", "-factored")):
                of = ends.get((MOMENT_ROWS[row[""]] + suffix, f"{bits} bits"))
                true = f"{of[0]:.3f} ± {of[1]:.3f} ({of[2]:g})".replace("(0.", "(.") if of else ""
                if row.get(f"1/{size}, {moment}") != true:
                    yield f"{row['']}, 1/{size}, {moment}: {row.get(f'1/{size}, {moment}')}, the trainings have {true}"


def wrong_noise(text, results):
    section = re.search(NOISE_SECTION, text, re.MULTILINE | re.DOTALL)
    rows = next(tables_of(section[1]), []) if section else []
    if [row["layers"] for row in rows] != list(NOISE_ROWS):
        yield f"the table of what noise costs has the rows {[row['layers'] for row in rows]}"
        return
    rounds = [each["layers"] for each in json.loads((results / NOISE).read_text())["rounds"]]
    for row in rows:
        of = [[layer for layer in layers if re.fullmatch(NOISE_ROWS[row["layers"]], layer["layer"])] for layers in rounds]
        noise, mean = (sum(layer[energy] for layers in of for layer in layers) for energy in ("energy_of_noise", "energy_of_mean"))
        costs = (short(round(sum(layer["cost"] for layer in layers), 3) + 0.0) for layers in of)
        true = [row["layers"], f"{sum(layer['entries'] for layer in of[0]):,}", f"{noise / mean:.2f}", *costs]
        if list(row.values()) != true:
            yield f"what noise costs: {list(row.values())}, the training has {true}"


def wrong_summary(text):
    summary = re.search(SUMMARY, text, re.MULTILINE | re.DOTALL)
    if not summary:
        yield "the summary of language models is not there"
        return
    rest = text.replace(summary[1], "")
    for said in re.findall(FIGURE, summary[1]):
        if said not in rest:
            yield f"the summary has {said}, no table below has"
    for row in next(tables_of(summary[1]), []):
        none = row["no compression"] or none
        gap = float(row["atomo"][:5]) - float(none[:5])
        if abs(float(row["gap"]) - gap) > 0.0015:  # of figures that were rounded
            yield f"the summary has a gap of {row['gap']} between {row['atomo']} and {none}"


def wrong_readme(readme, text):
    """Of the table of language models in README.md, whose figures are those of the summary, atomo's at the same size."""
    summary = next(tables_of(re.search(SUMMARY, text, re.MULTILINE | re.DOTALL)[1]))
    rows = next((rows for rows in tables_of(readme) if "no compression" in rows[0]), [])
    if not rows:
        yield "README.md has no table of language models"
    for row in rows:
        for said in re.findall(FIGURE, " ".join(row.values())):
            if not any(said in other for of in summary for other in of.values()):
                yield f"README.md has {said}, the summary has not"
        if not any(of["bytes"] == row["bytes"] and of["atomo"].startswith(row["atomo"]) for of in summary):
            yield f"README.md has {row['atomo']} at {row['bytes']}, the summary has not"


def wrong_gaps(text, pattern, trainings):
    """A row for each arm."""
    section = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    rows = next(tables_of(section[1]), []) if section else []
    arms = {key[:2] for key in trainings.of}
    if len(rows) != len(arms) or "behind" not in rows[0]:
        yield f"the table at '{pattern}' has {len(rows)} rows, {len(arms)} arms were trained"
        return
    yield from wrong_rows(rows, trainings)


def untrue(text, results):
    """What is wrong with a page, a line each."""
    section, long_section = (re.search(pattern, text, re.MULTILINE | re.DOTALL) for pattern in (SECTION, LONGER_SECTION))
    tables = [next(tables_of(found[1]), [{}]) for found in (section, long_section) if found]
    if len(tables) < 2 or "ratio" not in tables[0][0] or "behind" not in tables[1][0]:
        return ["the tables of trainings of 300 and of 1,500 steps are not there"]
    first, longer = (Trainings(results / name) for name in (FIRST, LONGER))
    wrong = [*wrong_rows(tables[0], first), *wrong_rows(tables[1], longer)]
    for sentence, arms in SENTENCES:
        found = re.search(sentence, section[1])
        said, true = found and list(found.groups()), [short(first.gap(*arm)) for arm in arms]
        if said != true:
            wrong.append(f"the sentence '{sentence}' has the gaps {said}, the trainings {true}")
    even, found = (first.score("atomo", "0.5 bits"), first.score(*NONE)), re.search(EVEN, section[1])
    if not found or found.groups() != even:
        wrong.append(f"the sentence '{EVEN}' has {found and found.groups()}, the trainings {even}")
    if first.gap("atomo", "0.5 bits") > first.of[*NONE, None]["spread"]:
        wrong.append("at 1/64 no compression is ahead by more than its seeds' spread")
    others = Trainings(results / OTHERS)
    for pattern, names in OTHER_GAPS.items():
        wrong += wrong_gaps(text, pattern, Trainings(*(results / name for name in names)))
    return [*wrong, *wrong_local_rows(text, results),
            *wrong_others(text, others), *wrong_rounds(text, results, others), *wrong_moments(text, results),
            *wrong_noise(text, results), *wrong_summary(text)]


PLANTED = {
    "a score": ("2.643 ± 0.006", "2.633 ± 0.006"),
    "a spread": ("2.726 ± 0.018", "2.726 ± 0.008"),
    "a number of bytes": ("| 103,445 |", "| 103,446 |"),
    "a ratio": ("| 127.6 | .002 |", "| 172.6 | .002 |"),
    "a rate": ("| 103,706 | 127.6 | .002 |", "| 103,706 | 127.6 | .001 |"),
    "a gap of the table": ("| 1.636 ± 0.003 | .074 |", "| 1.636 ± 0.003 | .047 |"),
    "a gap of the text": ("the gap is .100 without", "the gap is .010 without"),
    "a gap of an eighth": ("At 1/256 it is .183", "At 1/256 it is .138"),
    "a gap at one rate": ("it is .048 behind", "it is .038 behind"),
    "the claim": ("2.510 ± 0.028 beside", "2.543 ± 0.028 beside"),
    "a lost sentence": ("At 1/128 the gap", "There the gap"),
    "a lost table": ("| ratio | test bits a character | behind |", "| ratio | test bits a character | after |"),
    "a score of local steps": ("2.572 ± 0.005 (.002) | 2.822", "2.575 ± 0.005 (.002) | 2.822"),
    "a rate of local steps": ("2.572 ± 0.005 (.002) | 2.822", "2.572 ± 0.005 (.003) | 2.822"),
    "a score of Nesterov's step": ("2.678 ± 0.017 | 2.888", "2.687 ± 0.017 | 2.888"),
    "a score of a memory's rounds": ("2.813 ± 0.002 (.002) | 3.078", "2.831 ± 0.002 (.002) | 3.078"),
    "a score of a memory of Muon's rounds": ("3.180 ± 0.029 (.004) | 3.852", "3.108 ± 0.029 (.004) | 3.852"),
    "a score of Muon's local steps": ("| 1.869 ± 0.008 (.004) | 2.192 ± 0.023 (.004) |", "| 1.896 ± 0.008 (.004) | 2.192 ± 0.023 (.004) |"),
    "a score of Muon's rounds of 100": ("| 2.623 ± 0.011 (.002) |", "| 2.632 ± 0.011 (.002) |"),
    "a lost row of Muon's local steps": ("| SparseLoCo with Muon |", "| SparseLoCo |"),
    "a score of rotated blocks": ("| .218 | 1.949 ± 0.007 (.004) |", "| .218 | 1.994 ± 0.007 (.004) |"),
    "a score with more bits for the first block": ("| .148 | 1.908 ± 0.017 (.004) |", "| .148 | 1.899 ± 0.017 (.004) |"),
    "a score along a trellis": ("| 2.143 ± 0.007 (.004) |", "| 2.134 ± 0.007 (.004) |"),
    "a lost row of local steps": ("| plain average, uncompressed |", "| plain average |"),
    "a gap of clipped gradients": ("2.501 ± 0.016 | .032", "2.501 ± 0.016 | .023"),
    "a gap of another table's": ("2.521 ± 0.022 | .052 |\n", "2.521 ± 0.022 | .025 |\n"),
    "a gap along a trapezoid": ("2.299 ± 0.006 | -.052 |\n", "2.299 ± 0.006 | .052 |\n"),
    "a lost row of clipped gradients": ("| `atomo:bits=0.125` | 51,885 |", "`atomo:bits=0.125` 51,885"),
    "a gap of a factored moment": ("| .156 | 2.700 ± 0.027", "| .175 | 2.700 ± 0.027"),
    "a lost row of a factored moment": ("| factored | `atomo:bits=0.0625` |", "factored `atomo:bits=0.0625`"),
    "a gap of Muon's rounds": (".094 and .132 behind", ".094 and .123 behind"),
    "a gap of rotated rounds": (" at 1/256, .087 behind**", " at 1/256, .008 behind**"),
    "a score with Muon": ("| 2.264 ± 0.009 | .399", "| 2.246 ± 0.009 | .399"),
    "a gap with Adafactor": (".004 | 2.509 ± 0.027 | .010", ".004 | 2.509 ± 0.027 | .001"),
    "a lost row of Muon": ("| Muon | `atomo:bits=0.125` |", "Muon `atomo:bits=0.125`"),
    "a gap of the summary": ("#units-of-the-second-moment) | .048", "#units-of-the-second-moment) | .084"),
    "a score of a factored moment": ("| 2.689 ± 0.023 (.002) |", "| 2.698 ± 0.023 (.002) |"),
    "a lost row of both moments": ("| DeMo's messages | 3.015", "| DeMo | 3.015"),
    "what a layer's noise costs": ("| .007 | .050 | .052 |", "| .007 | .050 | .025 |"),
    "a lost row of what noise costs": ("| `head` | 65,792", "| the head | 65,792"),
    "a figure of the summary": ("| 2.682 ± 0.026, the same", "| 2.628 ± 0.026, the same"),
}
PLANTED_IN_README = {
    "a score": ("| 2.482 ± 0.026 |", "| 2.428 ± 0.026 |"),
    "a size": ("| 1/6,450 |", "| 1/4,650 |"),
    "a score of another's": ("SparseLoCo 2.639", "SparseLoCo 2.693"),
    "a lost table": ("| no compression |", "| nothing |"),
}


def main():
    docs, results = map(Path, sys.argv[-2:])
    text, readme = (path.read_text(encoding="utf-8") for path in (docs / "language-models.md", docs.parent / "README.md"))
    if sys.argv[1] == "--prove":
        wrong = [f"not on the page, so not planted: {old}" for old, _ in PLANTED.values() if old not in text]
        wrong += [f"not noticed: {kind}" for kind, (old, new) in PLANTED.items() if not untrue(text.replace(old, new, 1), results)]
        wrong += [f"not in README.md, so not planted: {old}" for old, _ in PLANTED_IN_README.values() if old not in readme]
        wrong += [f"not noticed in README.md: {kind}" for kind, (old, new) in PLANTED_IN_README.items()
                  if not [*wrong_readme(readme.replace(old, new), text)]]
    else:
        wrong = [*untrue(text, results), *wrong_readme(readme, text)]
    print("\n".join(wrong) or "the page says what the trainings have")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
