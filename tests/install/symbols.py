#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at the library's symbols: it must neither print nor end the program, and a shared one shows its public face.

usage: symbols.py LIBRARY                   fails when LIBRARY refers to anything that prints, aborts or exits
       symbols.py --prove COMPILER          fails unless each kind of offence, compiled on the spot, is found
       symbols.py --face SONAME_VERSION SO  fails on a wrong soname or on a name from inside the library
"""
import os
import re
import subprocess
import sys
import tempfile

# Whole names, demangled. `std::terminate` and the `__cxa_*` calls of the compiler's exception code are allowed: every
# noexcept function refers to them, and none of them runs unless the library breaks its own promise.
ENDS_THE_PROGRAM = r"""
    abort | exit | _exit | _Exit | quick_exit | raise | kill | __assert_fail | __assert | std::__glibcxx_assert_fail .*
    | hwy::Abort .* | longjmp | __stack_chk_fail_local
"""
PRINTS = r"""
    (__)? v? (f|d)? (w)? printf (_chk)? | puts | fputs | putchar | putc | fputc | _IO_putc | fwrite | write | writev
    | perror | psignal | syslog | stdout | stderr | std::w?(cout|cerr|clog) .* | std::ios_base::Init::.*
    | std::basic_ostream .* | std::basic_filebuf .*
"""
OFFENCES = re.compile(rf"^({ENDS_THE_PROGRAM}|{PRINTS})$", re.VERBOSE)

PROOFS = {
    "abort": "#include <cstdlib>\nvoid f() { std::abort(); }",
    "exit": "#include <cstdlib>\nvoid f() { std::exit(3); }",
    "assert": "#undef NDEBUG\n#include <cassert>\nvoid f(int x) { assert(x); }",
    "printf": '#include <cstdio>\nvoid f(int x) { std::printf("%d", x); }',
    "fprintf": '#include <cstdio>\nvoid f(int x) { std::fprintf(stderr, "%d", x); }',
    "puts": '#include <cstdio>\nvoid f() { std::puts("x"); }',
    "cout": '#include <iostream>\nvoid f(int x) { std::cout << x; }',
    "cerr": '#include <iostream>\nvoid f() { std::cerr << "x"; }',
    "iostream": "#include <iostream>\nvoid f() {}",
    "ofstream": '#include <fstream>\nvoid f() { std::ofstream("x") << 1; }',
}


def names(library, *options):
    """Returns the demangled symbol names that nm gives for a library or object."""
    text = subprocess.run(["nm", "-C", "-P", *options, library], check=True, capture_output=True, text=True).stdout
    # Portable format: name, one letter for the type, value, size; a demangled name may hold spaces.
    found = (re.match(r"(.+?) [A-Za-z?-]( +[0-9a-f]*)*$", line) for line in text.splitlines())
    return {match[1].split("@")[0] for match in found if match}


def offences(library):
    """Returns what the library refers to and must not."""
    dynamic = ["-D"] if library.endswith(".so") else []
    return sorted(name for name in names(library, "-u", *dynamic) if OFFENCES.match(name))


def prove(compiler):
    """Compiles each offence and returns those that would go unnoticed."""
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        source, built = os.path.join(folder, "a.cpp"), os.path.join(folder, "a.o")
        for kind, code in PROOFS.items():
            with open(source, "w", encoding="utf-8") as file:
                file.write(code + "\n")
            subprocess.run([compiler, "-std=c++20", "-O2", "-c", source, "-o", built], check=True)
            if not offences(built):
                missed.append(kind)
    return [f"not noticed: {kind}" for kind in missed]


def face(version, library):
    """Returns what is wrong with the names a shared library shows."""
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    wrong = []
    if f"Library soname: [libatomo.so.{version}]" not in dynamic:
        wrong.append(f"the soname is not libatomo.so.{version}")
    shown = {name for name in names(library, "-D", "--defined-only") if name.startswith("atomo::")}
    if not any(name.startswith("atomo::Codec::parse(") for name in shown):
        wrong.append("atomo::Codec::parse is not shown")
    # The public Codec names detail::Method, so what describes that type to the run-time system is shown with it.
    inside = [name for name in shown if name.startswith("atomo::detail::") and "atomo::detail::Method::" not in name]
    return wrong + [f"shown, but not public: {name}" for name in sorted(inside)]


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--prove"]:
        wrong = prove(arguments[1])
    elif arguments[:1] == ["--face"]:
        wrong = face(arguments[1], arguments[2])
    else:
        wrong = [f"refers to {name}" for name in offences(arguments[0])]
    print("\n".join(wrong) or "nothing to object to")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
