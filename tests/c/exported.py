#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what the C library shows with the list it is meant to show, with its header and with its tests.

usage: exported.py LIBRARY SYMBOLS HEADER SONAME TEST...   fails on any difference
       exported.py --prove COMPILER                        fails unless each kind of difference, made here, is found
"""
import os
import re
import subprocess
import sys
import tempfile


def output(*command):
    """Returns what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read(path):
    """Returns a file's text."""
    with open(path, encoding="utf-8") as file:
        return file.read()


def exported(library):
    """Returns every name that the dynamic linker finds in a library, whatever kind of symbol it is."""
    return {line.split()[0].split("@")[0] for line in output("nm", "-D", "-P", "--defined-only", library).splitlines()}


def declared(header):
    """Returns the functions that a header declares."""
    code = re.sub(r"//.*|/\*.*?\*/", "", read(header))
    return set(re.findall(r"^ATOMO_API\s[^;(]*?\b(\w+)\(", code, re.MULTILINE))


def differences(library, symbols, header, soname, tests):
    """Returns what is wrong, a line each."""
    lines = read(symbols).splitlines()
    listed, shown, promised = set(lines), exported(library), declared(header)
    called = set(re.findall(r"\b(atomo_\w+)\(", "".join(read(test) for test in tests)))
    wrong = [] if lines == sorted(listed) else [f"{symbols} is not sorted, or names one twice"]
    wrong += [f"shown, but not listed: {name}" for name in sorted(shown - listed)]
    wrong += [f"listed, but not shown: {name}" for name in sorted(listed - shown)]
    wrong += [f"declared, but not listed: {name}" for name in sorted(promised - listed)]
    wrong += [f"listed, but not declared: {name}" for name in sorted(listed - promised)]
    wrong += [f"never called by a test: {name}" for name in sorted(listed - called)]
    if f"Library soname: [{soname}]" not in output("readelf", "-d", library):
        wrong.append(f"the soname is not {soname}")
    return wrong


def prove(compiler):
    """Makes a small library with each kind of difference and returns those that went unnoticed."""
    missed = []
    right = {
        "code": "int one(void) { return 1; }",
        "symbols": "one\n",
        "header": "ATOMO_API int\n    one(void);\n",
        "test": "one(); atomo_two();",
        "soname": "libx.so.1",
    }
    kinds = {
        "": {},
        "shown, but not listed: planted": {"code": "int one(void) { return 1; }\nint planted = 3;"},
        "listed, but not shown: atomo_two": {"symbols": "atomo_two\none\n"},
        "declared, but not listed: two": {"header": "ATOMO_API int one(void);\nATOMO_API int two(void);\n"},
        "listed, but not declared: one": {"header": "// ATOMO_API int one(void);\n"},
        "never called by a test: one": {"test": "two();"},
        "the soname is not libx.so.1": {"soname": "libx.so.2"},
        "is not sorted": {"symbols": "one\none\n"},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = {name: os.path.join(folder, name) for name in ("code.c", "symbols", "header", "test", "x.so")}
        for kind, change in kinds.items():
            made = {**right, **change}
            for name in ("code", "symbols", "header", "test"):
                with open(path["code.c" if name == "code" else name], "w", encoding="utf-8") as file:
                    # The names of the real interface all begin alike.
                    file.write(re.sub(r"\b(one|two|planted)\b", r"atomo_\1", made[name]))
            subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{made['soname']}", path["code.c"], "-o",
                            path["x.so"]], check=True)
            found = differences(path["x.so"], path["symbols"], path["header"], "libx.so.1", [path["test"]])
            wanted = re.sub(r": (one|two|planted)$", r": atomo_\1", kind)
            if not any(wanted in line for line in found) if kind else found:
                missed.append(f"not noticed: {kind}" if kind else f"wrongly noticed: {found}")
    return missed


def main():
    arguments = sys.argv[1:]
    wrong = prove(arguments[1]) if arguments[0] == "--prove" else differences(*arguments[:4], arguments[4:])
    print("\n".join(wrong) or "nothing to object to")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
