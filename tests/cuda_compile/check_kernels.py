#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles CUDA files for every architecture and checks what nvcc made of them; no GPU is needed.

usage: check_kernels.py [options] FILE.cu... -- NVCC_FLAGS...
       check_kernels.py --tables FILE.cu...

A file passes when
  - it compiles for every architecture without a warning, and does not ask for which one;
  - no kernel spills registers, and none keeps a stack in local memory;
  - its PTX has no instruction whose result the CPU would not reproduce (ptx.py lists them);
  - its kernels take the registers, the memory and the barriers that resources.txt says (`--write` rewrites it);
  - a warp executes what instructions.txt says of them, within 5 % (`--write` likewise), where there is a disassembler.
Exceptions to the second and third stand in allowed.txt, each with its reason. PTX is made for the oldest architecture,
of which all but the newest are assembled, and for the newest; with --kernels-alone, for the oldest alone. One call of nvcc a file; what it made
stays in the work folder (DIR/STEM/STEM.o too) and is used again while neither a source nor a flag changes.

With --tables, checks that both tables speak of these files, all of them (resources.txt) and no others.
"""
import argparse
import collections
import fcntl
import hashlib
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time

import instructions
import ptx
import report
import tables

HERE = os.path.dirname(os.path.abspath(__file__))
Allowance = collections.namedtuple("Allowance", "file kernel rule count reason line")


def parse_arguments(arguments):
    flags = []
    if "--" in arguments:
        split = arguments.index("--")
        arguments, flags = arguments[:split], arguments[split + 1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.cu")
    parser.add_argument("--nvcc", default=shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    parser.add_argument("--work", default="build/cuda_compile", metavar="DIR")
    parser.add_argument("--architectures", default="80,90,100", help="the newest is embedded as PTX too")
    parser.add_argument("--kernels-alone", action="store_true",
                        help="without what calls them on the host and all of one PTX: no object, and half of the time")
    parser.add_argument("--allowed", default=os.path.join(HERE, "allowed.txt"), metavar="TABLE")
    parser.add_argument("--resources", default=os.path.join(HERE, "resources.txt"), metavar="TABLE")
    parser.add_argument("--instructions", default=os.path.join(HERE, "instructions.txt"), metavar="TABLE")
    parser.add_argument("--nvdisasm", metavar="PROGRAM", help="the disassembler; looked for when left out")
    parser.add_argument("--write", action="store_true", help="rewrite the files' rows of resources.txt and instructions.txt")
    parser.add_argument("--tables", action="store_true", help="check the tables alone")
    options = parser.parse_args(arguments)
    options.flags = flags
    options.nvdisasm = options.nvdisasm or instructions.find_nvdisasm(options.nvcc)
    return options


# --- compiling

def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def dependencies(path):
    """Returns the files named in a make rule that nvcc wrote."""
    with open(path, encoding="utf-8") as file:
        words = file.read().replace("\\\n", " ").split(":", 1)[1]
    return sorted({os.path.normpath(word) for word in words.split()})


def nvcc_version(nvcc):
    text = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True).stdout
    return re.search(r"\bV(\d+\.\d+\.\d+)", text)[1]


def processor_seconds(before):
    """Returns what the children that ended since `before` used."""
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return now.ru_utime - before.ru_utime + now.ru_stime - before.ru_stime


def machines_of(options):
    """Returns {architecture of a PTX: those whose machine code is made of it}."""
    oldest, *newer = options.architectures.split(",")
    if options.kernels_alone or not newer:
        return {oldest: [oldest, *newer]}
    return {oldest: [oldest, *newer[:-1]], newer[-1]: newer[-1:]}


class Compilation:
    """One file, compiled for every architecture in a folder of its own."""

    def __init__(self, options, source):
        stem = os.path.splitext(os.path.basename(source))[0]
        self.folder = os.path.join(options.work, stem)
        self.rule = os.path.join(self.folder, "rule.d")
        self.stamp = os.path.join(self.folder, "stamp.json")
        code = {ptx: [f"sm_{number}" for number in machines] for ptx, machines in machines_of(options).items()}
        last = [*code][-1]
        code[last].append(f"compute_{last}")
        generated = [f"-gencode=arch=compute_{ptx},code=[{','.join(made)}]" for ptx, made in code.items()]
        made = ["-fatbin", "-o", os.path.join(self.folder, stem + ".fatbin")]
        if not options.kernels_alone:
            made = ["-c", "-o", os.path.join(self.folder, stem + ".o")]
        self.command = [options.nvcc, "-std=c++20", "-O3", *options.flags, "-Xptxas=-v,-Werror", "--keep",
                        f"--keep-dir={self.folder}", "-MD", f"-MF={self.rule}", *made, source, *generated]
        self.version = nvcc_version(options.nvcc)

    def run(self):
        """Compiles where something changed; returns (exit status, nvcc's output, seconds on the clock and of the
        processor, or None)."""
        text = self._unchanged()
        if text is not None:
            return 0, text, None
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        started, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        made = subprocess.run(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        seconds = time.monotonic() - started, processor_seconds(used)
        if made.returncode == 0:
            state = {"command": self.command, "version": self.version, "output": made.stdout,
                     "files": {path: digest(path) for path in dependencies(self.rule)}}
            with open(self.stamp, "w", encoding="utf-8") as file:
                json.dump(state, file)
        return made.returncode, made.stdout, seconds

    def _unchanged(self):
        try:
            with open(self.stamp, encoding="utf-8") as file:
                state = json.load(file)
            same = state["command"] == self.command and state["version"] == self.version
            same = same and all(digest(path) == old for path, old in state["files"].items())
        except (OSError, ValueError, KeyError):
            return None
        return state["output"] if same else None

    def cubins(self):
        """Returns {architecture: path} of the machine code."""
        paths = [os.path.join(self.folder, name) for name in os.listdir(self.folder) if name.endswith(".cubin")]
        return {instructions.arch_of(path): path for path in paths}

    def instructions(self, file, nvdisasm):
        """Returns the rows of what a warp executes; kept beside the code while nothing that they follow from changes."""
        kept = os.path.join(self.folder, "instructions.json")
        key = {path: digest(path) for path in (*instructions.SOURCES, nvdisasm)}
        try:
            with open(kept, encoding="utf-8") as text:
                state = json.load(text)
            if state["key"] == key:
                return [instructions.Row(*row) for row in state["rows"]]
        except (OSError, ValueError, KeyError):
            pass
        rows = instructions.rows_of(file, self.cubins(), nvdisasm, instructions.descriptions())
        with open(kept, "w", encoding="utf-8") as text:
            json.dump({"key": key, "rows": rows}, text)
        return rows

    def ptx(self):
        """Returns the PTX texts, one or two."""
        texts = []
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".ptx"):
                with open(os.path.join(self.folder, name), encoding="utf-8") as file:
                    texts.append(file.read())
        return texts


# --- checking

def read_allowed(path):
    """Returns the exceptions in a table: file, kernel (a regular expression), rule, count, reason."""
    found = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip() or line.startswith("#"):
                continue
            cells = line.split(maxsplit=4)
            rules = {*ptx.RULES, "stack", "*"}
            if len(cells) < 5 or cells[2] not in rules or not re.fullmatch(r"\d+|\*", cells[3]):
                raise SystemExit(f"{path}:{number}: 'file.cu kernel rule count reason' is wanted, a rule is one of "
                                 f"{', '.join(sorted(rules))}, a count a number or *")
            found.append(Allowance(*cells[:4], cells[4].strip(), number))
    return found


def judge(file, found, allowed, opcodes):
    """Yields what is wrong with {(kernel, rule): count}; `opcodes` says what was counted. Counts allowed are exact."""
    most = collections.Counter()
    for (kernel, rule), count in sorted(found.items()):
        entry = next((entry for entry in allowed if entry.file == file and entry.rule in (rule, "*")
                      and not (entry.rule == "*" and rule == "stack") and re.fullmatch(entry.kernel, kernel)), None)
        why = ptx.RULES[rule][1] if rule in ptx.RULES else "keeps a stack in local memory"
        what = f"{file}: {kernel}: {rule}: {opcodes[kernel, rule]} {why}"
        if entry is None:
            yield what
        elif entry.count != "*" and count > int(entry.count):
            yield f"{what}; allowed.txt allows {entry.count}, not {count}"
        if entry:
            most[entry] = max(most[entry], count)
    for entry in allowed:
        if entry.file == file and entry.count != "*" and most[entry] < int(entry.count):
            yield (f"allowed.txt:{entry.line}: {file} {entry.kernel} may have {entry.count} '{entry.rule}', "
                   f"the most found is {most[entry]}: write that")


def forbidden_instructions(file, texts, names, allowed):
    """Yields the instructions that break the promise of equal bytes, counted where they are most over the texts."""
    counts, opcodes = {}, {}
    for text in texts:
        for function, rules in ptx.forbidden(text).items():
            for rule, words in rules.items():
                key = names[function] if function else "(file)", rule
                if words.total() > counts.get(key, 0):
                    counts[key] = words.total()
                    opcodes[key] = ", ".join(f"{count} {word}" for word, count in sorted(words.items()))
    yield from judge(file, counts, [entry for entry in allowed if entry.rule != "stack"], opcodes)


def local_memory(file, output, names, allowed):
    """Yields spills, and stacks that are not allowed (a spill has one too, and is named for itself)."""
    counts, opcodes = {}, {}
    for (function, arch), (stack, spills) in sorted(report.parse_ptxas(output)[1].items()):
        name = names.get(function, function)
        if spills:
            yield f"{file}: {name}: {spills} bytes spilled on {arch}"
        elif stack > counts.get((name, "stack"), 0):
            counts[name, "stack"] = stack
            opcodes[name, "stack"] = f"{stack} bytes on {arch}"
    yield from judge(file, counts, [entry for entry in allowed if entry.rule == "stack"], opcodes)


def architecture_asked_for(file, sources):
    """Yields the files of the project that a file is compiled from and that depend on the architecture."""
    root = os.path.dirname(os.path.dirname(HERE))
    for path in sources:
        if os.path.abspath(path).startswith(root + os.sep):
            with open(path, encoding="utf-8") as text:
                # Whether a kernel is compiled, or the host, all architectures answer alike.
                if "__CUDA_ARCH__" in re.sub(r"^#ifn?def __CUDA_ARCH__$", "", text.read(), flags=re.MULTILINE):
                    yield f"{file}: {os.path.basename(path)} asks for __CUDA_ARCH__, which not every architecture answers here"


def compare(file, version, machines, rows, path, command):
    """Yields the differences between a file's rows and the committed ones of the same machines."""
    old_version, old = report.read(path)
    if old and old_version != version:
        print(f"{os.path.basename(path)} was written with nvcc {old_version}, this is {version}: not compared")
        return
    gone = {row for row in old if row.file == file and row.arch in machines} - {*rows}
    come = {*rows} - {*old}
    if gone or come:
        changed = sorted([*gone, *come], key=lambda row: (tables.order(row), row in come))
        title, *lines = report.aligned(changed)
        yield f"{file}: its kernels are not what {os.path.basename(path)} says (-), but (+)"
        yield f"    {title}"
        yield from (f"  {'+' if row in come else '-'} {line}" for row, line in zip(changed, lines))
        yield f"    to take it as it is: {command}"


def rewrite(table, file, version, rows, path):
    """Puts the rows of one file into a table of the module `table`."""
    with open(path + ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        old_version, old = table.read(path)
        if old and old_version != version:
            print(f"{os.path.basename(path)} was written with nvcc {old_version}: its rows are left out")
            old = []
        table.write(path, version, [row for row in old if row.file != file] + rows)
    os.remove(path + ".lock")


def count_instructions(options, file, compilation, machines):
    """Counts what the machine code executes; writes it down or returns what differs from the committed table."""
    if not options.nvdisasm:
        print(f"{file}: its instructions are not counted: there is no nvdisasm; 'bash scripts/python.sh' installs it")
        return []
    try:
        rows = compilation.instructions(file, options.nvdisasm)
    except instructions.Unfit as error:
        return [f"{file}: {error}"]
    name = os.path.basename(options.instructions)
    if options.write:
        rewrite(instructions, file, compilation.version, rows, options.instructions)
        return []
    version, old = instructions.read(options.instructions)
    if old and version != compilation.version:
        print(f"{name} was written with nvcc {version}, this is {compilation.version}: not compared")
        return []
    changed = list(instructions.compare([row for row in old if row.file == file and row.arch in machines], rows))
    if not changed:
        return []
    return [f"{file}: a warp does not execute what {name} says, within {instructions.TOLERANCE:.0%}:",
            *(f"    {line}" for line in changed),
            "    to take it as it is: cmake --build build/release --target cuda_resources, and then, for the predicted times,",
            "    python3 tools/gpu_model/predict.py --write"]


def check(options, source):
    """Returns what is wrong with one file."""
    file = os.path.basename(source)
    compilation = Compilation(options, source)
    status, output, seconds = compilation.run()
    if status:
        said = [line for line in output.splitlines() if not re.match(r"ptxas info|    \d+ bytes stack frame", line)]
        return [f"{file}: does not compile", *said]
    texts = compilation.ptx()
    made_of = {f"sm_{ptx}": [f"sm_{number}" for number in machines] for ptx, machines in machines_of(options).items()}
    machines = {machine for made in made_of.values() for machine in made}
    if {ptx.target(text) for text in texts} != {*made_of}:
        return [f"{file}: nvcc left PTX for {sorted(map(ptx.target, texts))}, not for {sorted(made_of)}"]
    kernels = [(name, machine) for text in texts for name in ptx.entries(text) for machine in made_of[ptx.target(text)]]
    functions = {function for text in texts for function in ptx.forbidden(text) if function}
    functions |= {function for function, _ in report.parse_ptxas(output)[1]}
    names = ptx.readable_names({name for name, _ in kernels} | functions)
    allowed = read_allowed(options.allowed)
    wrong = [*forbidden_instructions(file, texts, names, allowed), *local_memory(file, output, names, allowed),
             *architecture_asked_for(file, dependencies(compilation.rule))]
    try:
        rows = report.rows_of(file, output, kernels, names)
    except ValueError as error:
        return wrong + [f"{file}: {error}"]
    command = shlex.join([sys.executable, *sys.argv[:1], "--write", *sys.argv[1:]])
    if options.write and not wrong:
        rewrite(report, file, compilation.version, rows, options.resources)
    elif not options.write:
        wrong += compare(file, compilation.version, machines, rows, options.resources, command)
    if not options.write or not wrong:
        wrong += count_instructions(options, file, compilation, machines)
    spent = "compiled in {:.1f} s ({:.1f} s of the processor)".format(*seconds) if seconds else "unchanged since it was last compiled"
    print(f"{file}: {len({name for name, _ in kernels})} kernels for {options.architectures}, {spent}")
    return wrong


def check_tables(options):
    """Returns what the tables say of files that are not there, or leave unsaid."""
    there = {os.path.basename(path) for path in options.files}
    listed = {row.file for row in report.read(options.resources)[1]}
    counted = {row.file for row in instructions.read(options.instructions)[1]}
    empty = {os.path.basename(path) for path in options.files if not has_kernels(path)}
    excepted = {entry.file for entry in read_allowed(options.allowed)}
    return ([f"resources.txt has rows of {name}, which is not compiled" for name in sorted(listed - there)] +
            [f"resources.txt has no row of {name}" for name in sorted(there - listed - empty)] +
            [f"instructions.txt and resources.txt disagree about {name}" for name in sorted(counted ^ listed) if counted] +
            [f"allowed.txt speaks of {name}, which is not compiled" for name in sorted(excepted - there)])


def has_kernels(path):
    with open(path, encoding="utf-8") as file:
        return "__global__" in file.read()


def main():
    options = parse_arguments(sys.argv[1:])
    if options.tables:
        wrong = check_tables(options)
    else:
        wrong = [fault for source in options.files for fault in check(options, source)]
    print("\n".join(wrong) or "nothing to object to")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
