# SPDX-License-Identifier: Apache-2.0
"""What nvcc's PTX says of a kernel: its readable name, and instructions whose result another machine would not give.

A kernel's bytes must be the CPU's. Each rule below names instructions that break this promise, or may; PTX is where
they can be seen, since ptxas contracts or approximates nothing that is written out with `.rn`.
"""
import collections
import re
import subprocess

_FLOAT = r"(f16|f16x2|bf16|bf16x2|tf32|f32|f32x2|f64)"
_PART = r"(\.[\w:]+)*"

# Rule: (opcodes, why), in the order they are tried; the first that matches an opcode counts it.
RULES = {
    "approximate": (
        rf"(ex2|lg2|sin|cos|tanh|rsqrt)\..*|[a-z]\w*{_PART}\.(approx|ftz|full){_PART}",
        "approximates, or flushes subnormals to zero",
    ),
    "fused": (rf"(fma|mad){_PART}\.{_FLOAT}", "rounds a product and a sum once"),
    "contractable": (
        rf"(add|sub|mul)(?!{_PART}\.r[nzmp]\.){_PART}\.{_FLOAT}",
        "may be contracted: it has no rounding mode",
    ),
    "rounding": (
        rf"(add|sub|mul|div|rcp|sqrt){_PART}\.r[zmp]{_PART}\.{_FLOAT}|cvt\.(rz|rm|rp|rna|rs){_PART}\.{_FLOAT}\.\w+",
        "does not round to nearest",
    ),
    "atomic": (rf"(atom|red|multimem){_PART}\.{_FLOAT}", "adds or compares floats in an order of its own"),
    "minmax": (rf"(min|max){_PART}\.{_FLOAT}|redux{_PART}\.{_FLOAT}|\w+{_PART}\.sat{_PART}\.{_FLOAT}",
               "treats NaN and signed zeros unlike the CPU"),
    "matrix": (r"(wmma|mma|wgmma|tcgen05)\..*", "adds products in an order of its own"),
    "trap": (r"trap|brkpt", "ends the program: what nvcc makes of a reference to a host's constant, or of a host's builtin, in a constexpr "
             "function"),
    "call": (r"call (vprintf|malloc|free|__assertfail|__cuda_syscall.*)", "prints, allocates or ends the program"),
}
_RULES = {rule: re.compile(opcodes) for rule, (opcodes, _) in RULES.items()}

_FUNCTION = re.compile(r"\.(entry|func)\s+(?:\([^)]*\)\s*)?([\w$.]+)")
_OPCODE = re.compile(r"(?:[\w$]+:\s*)*(?:@!?%?\w+\s+)?([a-z]\w*(?:\.[\w:]+)*)\b")
_CALL = re.compile(r"\bcall[\w.]*[^;]*?\b(vprintf|malloc|free|__assertfail|__cuda_syscall\w*)\b")


def target(text):
    """Returns the architecture that a PTX text was made for, e.g. "sm_90"."""
    return re.search(r"^\.target\s+(\w+)", text, re.MULTILINE)[1]


def entries(text):
    """Returns the mangled names of the kernels in a PTX text."""
    return [match[1] for match in re.finditer(r"\.entry\s+([\w$.]+)", text)]


def rule_of(opcode):
    """Returns the name of the first rule that forbids an opcode, or None."""
    return next((rule for rule, opcodes in _RULES.items() if opcodes.fullmatch(opcode)), None)


def forbidden(text):
    """Returns {mangled function: {rule: Counter of opcodes}} of a PTX text."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/|^\s*\.(loc|file)\b[^\n]*", "", text, flags=re.DOTALL | re.MULTILINE)
    found = {}
    function = None
    for statement in re.split(r"[;{}]", text):
        for match in _FUNCTION.finditer(statement):
            function = match[2]
        call = _CALL.search(statement)
        opcode = re.match(r"\s*" + _OPCODE.pattern, statement)
        words = [f"call {call[1]}"] if call else [opcode[1]] if opcode else []
        for word in words:
            rule = rule_of(word)
            if rule:
                found.setdefault(function, {}).setdefault(rule, collections.Counter())[word] += 1
    return found


def readable_names(mangled):
    """Returns {mangled: name} with neither namespaces, parameters nor spaces, which is what the tables are written in."""
    mangled = sorted(set(mangled))
    text = subprocess.run(["c++filt"], input="\n".join(mangled), check=True, capture_output=True, text=True).stdout
    whole = dict(zip(mangled, text.splitlines()))
    short = {name: _shorten(_without_parameters(demangled)) for name, demangled in whole.items()}
    times = collections.Counter(short.values())
    # Overloads keep their parameters: one name, one kernel.
    return {name: short[name] if times[short[name]] == 1 else _shorten(whole[name]) for name in mangled}


def _without_parameters(name):
    """Cuts the parenthesis a demangled function ends in."""
    depth = 0
    for position in range(len(name) - 1, -1, -1) if name.endswith(")") else ():
        depth += {")": 1, "(": -1}.get(name[position], 0)
        if depth == 0:
            return name[:position]
    return name


def _shorten(name):
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    name = re.sub(r"\([\w: ]+\)(?=-?\d)", "", name)  # (bool)1
    name = re.sub(r"(?<=\d)(ul|u|l)\b", "", name)
    name = re.sub(r"\b(?:\w+::)+", "", name)
    for long, brief in (("unsigned long", "u64"), ("unsigned int", "u32"), ("unsigned short", "u16"),
                        ("unsigned char", "u8")):
        name = name.replace(long, brief)
    return name.replace(" ", "")
