#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the kernels' files that compile as they did at a commit, one name without .cu a line.

usage: unaffected.py COMMIT

A file is affected where it, a header that it includes, one through another, its rows in a table or what kernels.toml says
of its kernels differs from the commit, but for comments; all are where the flags or the checks differ.
"""
import os
import re
import subprocess
import sys
import tomllib

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
# Where one of these differs, so may each file's compilation or what is said of it.
ALL = re.compile(r"tests/cuda_compile/((check_kernels|instructions|paths|ptx|report|sass|tables)[.]py|CMakeLists.txt)|cmake/cuda[.]cmake")
TABLES = [f"tests/cuda_compile/{name}.txt" for name in ("allowed", "instructions", "resources")]
DESCRIPTIONS = "tools/gpu_model/kernels.toml"
# A string or the character of a quotation mark, which may hold what looks like a comment, or a comment.
COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*"|\'\\?"\')|//[^\n]*|/[*].*?[*]/', re.DOTALL)
INCLUDE = re.compile(r'^ *# *include +["<]([^">]+)[">]', re.MULTILINE)


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True).stdout


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def code(text):
    """Returns the lines of a source without comments and without what is empty then."""
    lines = COMMENT.sub(lambda found: found[1] or " ", text).splitlines()
    return [line.strip() for line in lines if line.strip()]


def differs(path, commit):
    """Says whether the code of a file differs from the commit's; one that either has not does."""
    before = subprocess.run(["git", "-C", ROOT, "show", f"{commit}:{path}"], capture_output=True, text=True)
    here = os.path.isfile(os.path.join(ROOT, path))
    return before.returncode != 0 or not here or code(before.stdout) != code(read(path))


def includes(path):
    """Returns the repository's files that a file takes, itself among them."""
    wanted, seen = [path], set()
    while wanted:
        path = wanted.pop()
        if path not in seen and os.path.isfile(os.path.join(ROOT, path)):
            seen.add(path)
            folders = ("src", "include", os.path.dirname(path))
            wanted += [os.path.normpath(f"{folder}/{name}") for name in INCLUDE.findall(read(path)) for folder in folders]
    return seen


def told_of(commit):
    """Returns the names of files of which a table, or the description of a kernel, differs."""
    lines = git("diff", "-U0", commit, "--", *TABLES)
    files = set(re.findall(r"^[-+](\w+)[.]cu ", lines, re.MULTILINE))
    now, before = tomllib.loads(read(DESCRIPTIONS)), tomllib.loads(git("show", f"{commit}:{DESCRIPTIONS}"))
    kernels = {name for name in {*now, *before} if now.get(name) != before.get(name)}
    rows = re.findall(r"^(\w+)[.]cu +(\S+)", read(TABLES[1]), re.MULTILINE)
    return files | {file for file, kernel in rows if kernel in kernels}


def main():
    commit = sys.argv[1]
    changed = {*git("diff", "--name-only", commit).split(), *git("ls-files", "--others", "--exclude-standard").split()}
    if any(ALL.fullmatch(path) for path in changed):
        return
    changed = {path for path in changed if path.startswith(("src/", "include/")) and differs(path, commit)}
    told = told_of(commit)
    for name in sorted(os.listdir(os.path.join(ROOT, "src", "cuda"))):
        stem, kind = os.path.splitext(name)
        if kind == ".cu" and stem not in told and not changed & includes(f"src/cuda/{name}"):
            print(stem)


if __name__ == "__main__":
    main()
