#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares docs/specs.md with the library, and the specs that other pages name.

usage: specs.py LIBATOMO_C DOCS_FOLDER            fails where a page says something else than the library does
       specs.py --prove LIBATOMO_C DOCS_FOLDER    fails unless each planted mistake is found

Of each row of the tables: the example is read, every value that the key takes is accepted in it, values beyond the ends are
refused, and leaving the key out is the same as its default. The keys and the words they take are those of the list of
codecs. Errors are compared as they stand.
"""
import ctypes
import re
import sys
from pathlib import Path

SPEC = re.compile(r"((ef|momentum|dgc|ef21)(:[a-z0-9=.,]+)?\+)?(identity|atomo|qsgd|minmax|terngrad|sign|topk|randomk)"
                  r"(:[a-z0-9=.,+-]+)?(\+blosc(:[a-z0-9=,]+)?)?")


class Row(ctypes.Structure):
    """atomo_codec_row of atomo.h."""

    _fields_ = [(name, ctypes.c_char_p) for name in ("name", "keys", "summary", "example")]


class Library:
    """What the pages are compared with, through the C interface."""

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.atomo_last_error.restype = ctypes.c_char_p

    def error(self):
        return self.c.atomo_last_error().decode()

    def canonical(self, spec):
        """(canonical spec, None), or (None, what is wrong)."""
        codec, text = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
        if self.c.atomo_codec_create(spec.encode(), ctypes.byref(codec)):
            return None, self.error()
        failed = self.c.atomo_codec_spec(codec, text, ctypes.c_size_t(len(text)), None)
        self.c.atomo_codec_destroy(codec)
        return (None, self.error()) if failed else (text.value.decode(), None)

    def policy(self, policy):
        text = ctypes.create_string_buffer(65536)
        failed = self.c.atomo_policy_text(policy.encode(), 0, text, ctypes.c_size_t(len(text)), None)
        return (None, self.error()) if failed else (text.value.decode(), None)

    def rows(self):
        """{codec: {key: the words it takes, None where it takes numbers}}"""
        count, found = ctypes.c_size_t(), {}
        self.c.atomo_codec_rows(ctypes.byref(count))
        for i in range(count.value):
            row = Row()
            self.c.atomo_codec_row_at(ctypes.c_size_t(i), ctypes.byref(row))
            keys, key = {}, None
            for part in re.split(r", |\|", row.keys.decode()):
                if "=" in part:
                    key, part = part.split("=")
                    keys[key] = set()
                if key:
                    keys[key].add(part)
            found[row.name.decode()] = {
                key: words if all(re.fullmatch("[a-z][a-z0-9]*", word) for word in words) and len(words) > 1 else None
                for key, words in keys.items()}
        return found


def with_value(spec, key, value):
    """The spec with another value of a key; None leaves the key out."""
    pairs = r"(?<=[:,])" + key + "=[^,+]*"
    if value is not None:
        return re.sub(pairs, f"{key}={value}", spec)
    return re.sub(r"[:,](?=\+|$)", "", re.sub(pairs + ",?", "", spec))


def values(takes, example):
    """(accepted, refused) values of the column "takes"."""
    accepted, refused = [], ["no-such-word"]
    for one in takes.split(" or "):
        word = re.fullmatch("`([a-z0-9]+)`", one)
        ends = re.fullmatch(r"(whole |fraction above )?(\S+) to (\S+)", one)
        if word:
            accepted.append(word[1])
        elif ends:
            kind, low, high = ends.groups()
            if low.startswith("`"):
                low = re.search(low.strip("`") + "=([^,]*)", example)[1]
            if kind == "whole ":
                accepted += [low, high]
                refused += [str(int(low) - 1), str(int(high) + 1)]
            else:
                accepted += [high] if kind else [low, high]
                refused += [low if kind else repr(float(low) * 0.99), repr(float(high) * 1.01)]
        else:
            raise ValueError(f"what does it take? {one}")
    if "fraction" in takes:
        refused = [value for value in refused if value != "0"]
    return accepted, refused


def check_row(library, codec, cells):
    """What is wrong with a row of a table."""
    key, takes, default, example = cells[0].strip("`"), cells[1], cells[2].strip("`"), cells[3].strip("`")
    if library.canonical(example)[0] is None:
        return [f"{codec}: {library.canonical(example)[1]}"]
    if f"{codec}:" not in example or f"{key}=" not in example:
        return [f"{codec}: {example} is no example of {key}="]
    accepted, refused = values(takes, example)
    wrong = [f"{codec}: {key}={value} is refused: {library.canonical(with_value(example, key, value))[1]}"
             for value in accepted if library.canonical(with_value(example, key, value))[0] is None]
    wrong += [f"{codec}: {key}={value} is accepted in {example}"
              for value in refused if library.canonical(with_value(example, key, value))[0] is not None]
    left_out = library.canonical(with_value(example, key, None))[0]
    if default and left_out != library.canonical(with_value(example, key, default))[0]:
        wrong.append(f"{codec}: {key}={default} is not its default")
    if not default and left_out is not None and any(
            left_out == library.canonical(with_value(example, key, value))[0] for value in accepted):
        wrong.append(f"{codec}: {key}= has a default, which is missing")
    return wrong


def check_tables(library, page):
    wrong, listed = [], {}
    for section in re.split(r"^### ", page.partition("\n## Codecs\n")[2].partition("\n## ")[0], flags=re.MULTILINE)[1:]:
        codec, keys = section.splitlines()[0], listed.setdefault(section.splitlines()[0], {})
        for line in re.findall(r"^\| (`.*) \|$", section, flags=re.MULTILINE):
            cells = [cell.strip() for cell in line.split("|")]
            wrong += check_row(library, codec, cells) if len(cells) == 5 else [f"{codec}: a row of {len(cells)} cells"]
            words = re.findall("`([a-z0-9]+)`", cells[1]) if not re.search(r"\d to ", cells[1]) else []
            keys.setdefault(cells[0].strip("`"), set()).update(words)
    for codec, keys in library.rows().items():
        there = listed.pop(codec, {})
        wrong += [f"{codec}: {key}= is not on the page" for key in keys if key not in there]
        wrong += [f"{codec}: {key}= is on the page, and not in the list of codecs" for key in there if key not in keys]
        wrong += [f"{codec}: {key}= takes {sorted(words)}, the page has {sorted(there[key])}"
                  for key, words in keys.items() if words and key in there and words != there[key]]
    return wrong + [f"{codec} is on the page, and not in the list of codecs" for codec in listed]


def check_memories(library, page):
    """Each key of a stage is accepted and refused as the table has it, in front of a codec whose variance is known."""
    wrong, listed = [], set()
    rows = re.findall(r"^\| (`.*) \|$", page.partition("\n## Memories\n")[2].partition("\n## ")[0], flags=re.MULTILINE)
    for stages, key, takes, default, _ in ([cell.strip() for cell in row.split("|")] for row in rows):
        key, default, (accepted, refused) = key.strip("`"), default.strip("`"), values(takes, "")
        for stage in re.findall("`([a-z0-9]+)`", stages):
            listed.add((stage, key))
            told = {value: library.canonical(f"{stage}:{key}={value}+qsgd:bits=2") for value in {*accepted, *refused, default}}
            wrong += [f"{stage}: {told[value][1]}" for value in accepted if told[value][0] is None]
            wrong += [f"{stage}: {key}={value} is accepted" for value in refused
                      if told[value][0] is not None and value not in ("0.0", *accepted)]
            there, asked = re.findall("`([a-z0-9]+)`", takes), told["no-such-word"][1].partition("expected ")[2].partition(";")[0]
            if there and sorted(re.split(", | or ", asked)) != sorted(there):
                wrong.append(f"{stage}: {key}= takes {asked}, the page has {there}")
            if told[default][0] != library.canonical(f"{stage}+qsgd:bits=2")[0]:
                wrong.append(f"{stage}: {key}={default} is not its default")
    stages = sorted({stage for stage, _ in listed})
    for stage in stages:
        keys = re.findall("([a-z]+)=", library.canonical(f"{stage}+qsgd:bits=2")[0].partition("+")[0])
        wrong += [f"{stage}: {key}= is not on the page" for key in keys if (stage, key) not in listed]
    return wrong + ([] if stages == ["dgc", "ef", "ef21", "momentum"] else [f"memories on the page: {stages}"])


def blocks(page, language):
    found = re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return found or [f"no block of {language}"]


def check_examples(library, page):
    wrong = []
    for line in "".join(blocks(page, "specs")).splitlines():
        spec, _, canonical = line.partition(" = ")
        if library.canonical(spec)[0] != canonical:
            wrong.append(f"{spec} is {library.canonical(spec)[0] or library.canonical(spec)[1]}, not {canonical}")
    for policy in blocks(page, "policy"):
        if library.policy(policy)[0] is None:
            wrong.append(library.policy(policy)[1])
    lines = "".join(blocks(page, "errors")).splitlines()
    for text, error in zip(lines[::2], lines[1::2]):
        told = library.policy(text)[1] if "=" in text.split(":")[0] or " " in text.split(":")[0] else library.canonical(text)[1]
        if told != error.strip():
            wrong.append(f"{text}\n  gives {told}\n  not   {error.strip()}")
    return wrong


def check_named(library, name, text):
    """Specs and policies that a page names in passing; those with a capital letter are patterns."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    wrong = []
    for code in re.findall("`([^`\n]+)`", text):
        if SPEC.fullmatch(code) and ("=" in code or "+" in code) and ".." not in code and not code.endswith("="):
            told = library.canonical(code)[1]
        elif re.fullmatch(r"\*[^`]*=[^`]*; ?\*[^`]*", code):
            told = library.policy(code)[1]
        else:
            continue
        if told:
            wrong.append(f"{name}: {told}")
    return wrong


def check(library, docs, page=None):
    page = page or (docs / "specs.md").read_text(encoding="utf-8")
    wrong = check_tables(library, page) + check_memories(library, page) + check_examples(library, page)
    for path in sorted(docs.glob("*.md")):
        wrong += check_named(library, path.name, path.read_text(encoding="utf-8"))
    return wrong


PLANTED = {
    "an end": ("whole 1 to 8 | `4`", "whole 1 to 9 | `4`"),
    "a narrower end": ("whole 1 to 256", "whole 1 to 255"),
    "a default": ("| `4` | `qsgd:bits=2`", "| `3` | `qsgd:bits=2`"),
    "a default left out": ("| `none` | `sign:scale=mean`", "| | `sign:scale=mean`"),
    "a word": ("`none` or `byte` or `bit`", "`none` or `byte`"),
    "a word too many": ("`max` or `l2`", "`max` or `l2` or `l1`"),
    "a key left out": ("| `ratio` | 1 to 32000 |", "| `bits` | 1 to 32 |"),
    "a key too many": ("| `clip` | `none`", "| `clap` | `none`"),
    "a codec left out": ("### topk", "### randomk"),
    "an example": ("`qsgd:bucket=128`", "`qsgd:bucket=0`"),
    "an end of a memory": ("| `decay` | 0 to 1 | 1 |", "| `decay` | 0 to 2 | 1 |"),
    "a default of a memory": ("0 to 1 | 0.999", "0 to 1 | 0.99"),
    "a memory's word": ("`f32` or `bf16` or `int8`", "`f32` or `bf16`"),
    "a memory's key left out": ("| `dgc` | `momentum` |", "| `ef` | `decay` |"),
    "a memory too many": ("`ef`, `momentum`, `dgc` | `memory`", "`ef`, `momentum`, `dgc`, `ef21` | `memory`"),
    "a canonical spec": ("bucket=512,norm=max\natomo", "bucket=256,norm=max\natomo"),
    "an error": ("position 6: unknown key", "position 5: unknown key"),
    "an error of a policy": ("found '*.bias identity'", "found '*.bias'"),
    "a policy": ("fc?.weight = atomo", "fc?.weight = atoms"),
}


def prove(library, docs):
    """Plants each mistake in the page and returns those that go unnoticed."""
    page = (docs / "specs.md").read_text(encoding="utf-8")
    missed = []
    for kind, (right, planted) in PLANTED.items():
        if right not in page:
            missed.append(f"cannot be planted: {kind}")
            continue
        wrong_page = page.replace(right, planted, 1)
        if not check_tables(library, wrong_page) + check_memories(library, wrong_page) + check_examples(library, wrong_page):
            missed.append(f"not noticed: {kind}")
    if not check_named(library, "a page", "take `qsgd:bits=9`") or not check_named(library, "a page", "`*.bias=sgn; *=sign`"):
        missed.append("not noticed: a spec in passing")
    return missed


def main():
    arguments = sys.argv[1:]
    proves = arguments[0] == "--prove"
    library, docs = Library(arguments[proves]), Path(arguments[proves + 1])
    wrong = prove(library, docs) if proves else check(library, docs)
    print("\n".join(wrong) or ("each planted mistake was noticed" if proves else "the pages say what the library does"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
