# SPDX-License-Identifier: Apache-2.0
"""Machine code as nvdisasm prints it: a kernel's instructions, blocks and natural loops."""
import collections
import re
import subprocess

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^\s,]+),")
_LABEL = re.compile(r"^(\S+):\s*$")
_LINE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P[0-9T]+)\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?)\s*;")
_TARGET = re.compile(r"`?\(?(\.L_x_\d+|\$[^\s)`]+)\)?")
_REGISTER = re.compile(r"\b(U?R|U?P)(\d+)\b")

# The class of an instruction by the first part of its name; what is not here is integer arithmetic.
CLASSES = ("fp32", "fp64", "dmma", "integer", "imad", "memory", "shared", "control", "mufu")
_CLASS_OF = {
    "fp32": "FADD FMUL FFMA FSETP FMNMX FMNMX3 FSEL FSET FCHK FADD2 FMUL2 FFMA2 FSWZADD HADD2 HMUL2 HFMA2 HSETP2",
    "fp64": "DADD DMUL DFMA DSETP DMNMX",
    "dmma": "DMMA",
    "imad": "IMAD",
    "memory": "LD LDG ST STG LDL STL RED REDG ATOM ATOMG LDC CCTL CCTLL MEMBAR ERRBAR FENCE",
    "shared": "LDS STS ATOMS SHFL LDSM STSM",
    "control": "BRA BRX JMP BSSY BSYNC BREAK EXIT BAR WARPSYNC CALL RET NOP YIELD VOTE VOTEU BMOV DEPBAR NANOSLEEP "
               "WARPSYNC ENDCOLLECTIVE KILL BPT ACQBULK UCGABAR_ARV UCGABAR_WAIT PREEXIT ELECT",
    "mufu": "MUFU I2F I2FP F2I F2F F2FP FRND POPC FLO BREV UFLO UPOPC I2I S2R S2UR CS2R",
}
_CLASS = {name: kind for kind, names in _CLASS_OF.items() for name in names.split()}
# Cycles until a result may be used: arithmetic and shared memory as measured by others on these architectures, memory
# between a hit in the L2 cache and a read of DRAM.
_LATENCY = {"fp32": 4, "fp64": 16, "dmma": 24, "integer": 4, "imad": 4, "memory": 500, "shared": 28, "control": 1, "mufu": 20}
_LATENCY_OF = {"LDG": 120, "LDC": 40, "ULDC": 8, "LDCU": 30, "BAR": 25, "VOTE": 12, "VOTEU": 12, "MEMBAR": 500, "CCTL": 100,
               "STG": 1, "ST": 1, "STS": 1, "RED": 1, "REDG": 1, "CS2R": 8}


class Instruction:
    """One of a kernel; `reads` and `writes` are names of registers."""

    __slots__ = ("guard", "opcode", "name", "operands", "targets", "kind", "reads", "writes")

    def __init__(self, guard, opcode, operands):
        self.guard, self.opcode, self.operands = guard, opcode, operands
        self.name = opcode.split(".", 1)[0]
        self.targets = _TARGET.findall(operands)
        self.kind = _CLASS.get(self.name, "integer")
        self.reads, self.writes = self._registers()

    def _registers(self):
        parts = re.sub(r"`\([^)]*\)", "", self.operands).split(",")
        found = [[a + b for a, b in _REGISTER.findall(part)] for part in parts]
        stores = self.name in ("ST", "STG", "STS", "STL", "RED", "REDG", "BRA", "EXIT", "BAR", "RET", "CALL", "WARPSYNC")
        writes, reads = [], []
        first = True
        for part, registers in zip(parts, found):
            plain = bool(registers) and not re.search(r"[\[\]!~|-]", part)
            # The results come first: a register, and of comparisons, shuffles and carries predicates beside it.
            result = not stores and plain and (first or (registers[0].lstrip("U")[0] == "P" and not reads))
            (writes if result else reads).extend(registers)
            if not (first and not registers and part.strip() in ("PT", "UPT")):
                first = False
        if self.guard:
            reads.append(self.guard.lstrip("@!"))
        count = self.result_registers()
        for register in list(writes[:1]):
            match = re.match(r"(U?R)(\d+)", register)
            if match:
                writes += [f"{match[1]}{int(match[2]) + more}" for more in range(1, count)]
        return reads, writes

    def result_registers(self):
        """How many registers the result takes."""
        for width in ("128", "64"):
            if f".{width}" in self.opcode and (self.kind in ("memory", "shared") or self.name in ("ULDC", "LDCU")):
                return int(width) // 32
        if self.kind == "dmma":
            return 4
        return 2 if self.kind == "fp64" or ".WIDE" in self.opcode or self.name == "CS2R" else 1

    @property
    def latency(self):
        return _LATENCY_OF.get(self.name, _LATENCY[self.kind])

    @property
    def bytes(self):
        """Bytes a lane loads or stores."""
        if self.name not in ("LD", "LDG", "ST", "STG", "LDS", "STS"):
            return 0
        for width, size in ((".128", 16), (".64", 8), ("8", 1), ("16", 2)):
            if re.search(rf"\.(?:[US])?{width.lstrip('.')}(?:\.|$)", self.opcode):
                return size
        return 4

    @property
    def ends(self):
        return self.name in ("EXIT", "RET", "KILL") and not self.guard

    @property
    def is_branch(self):
        """Somewhere else in the kernel; not to where threads that parted by chance meet again."""
        if self.name == "CALL":  # to a place of the kernel's own it never comes back: sm_80 leaves loops so
            return any(target.startswith(".L") for target in self.targets)
        return self.name in ("BRA", "BRX", "JMP") and ".DIV" not in self.opcode

    @property
    def is_conditional(self):
        return bool(self.guard) or bool(re.search(r"(^|[\s!])U?P\d", self.operands.split("`")[0])) or ".CONV" in self.opcode


class Block:
    """Instructions that run one after another, and the numbers of the blocks that may follow."""

    def __init__(self, instructions):
        self.instructions = instructions
        self.next = []


class Loop:
    """A natural loop: its header, all its blocks (those of inner loops too), the sources of its back edges."""

    def __init__(self, header):
        self.header, self.blocks, self.latches = header, {header}, set()
        self.inner, self.parent = [], None


class Kernel:
    """The blocks of one kernel and of what it calls, which are entered at `calls[label]`."""

    def __init__(self, name, lines):
        self.name = name
        self.instructions = [line for line in lines if isinstance(line, Instruction)]
        self.blocks, self.calls = [], {}
        self._cut(lines)
        self.loops = self._find_loops()

    def _cut(self, lines):
        starts, pending = {}, []
        block = Block([])
        self.blocks.append(block)
        for line in lines:
            if isinstance(line, str):
                if block.instructions:
                    self.blocks.append(following := Block([]))
                    block.next.append(len(self.blocks) - 1)
                    block = following
                starts[line] = len(self.blocks) - 1
                continue
            block.instructions.append(line)
            if line.is_branch or line.ends:
                pending.append((len(self.blocks) - 1, line))
                self.blocks.append(following := Block([]))
                if not line.ends and not (line.is_branch and not line.is_conditional):
                    block.next.append(len(self.blocks) - 1)
                block = following
        for number, line in pending:
            if line.is_branch:
                self.blocks[number].next += [starts[target] for target in line.targets if target in starts]
        for line in self.instructions:
            if line.name == "CALL" and not line.is_branch:
                self.calls.update({target: starts[target] for target in line.targets if target in starts})

    def reachable(self, entry):
        """Returns the blocks that follow `entry`, in reverse postorder."""
        order, seen, stack = [], {entry}, [(entry, iter(self.blocks[entry].next))]
        while stack:
            number, rest = stack[-1]
            following = next((block for block in rest if block not in seen), None)
            if following is None:
                order.append(number)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(self.blocks[following].next)))
        return order[::-1]

    def _find_loops(self):
        loops = {}
        for entry in [0, *self.calls.values()]:
            order = self.reachable(entry)
            place = {number: i for i, number in enumerate(order)}
            before = collections.defaultdict(list)
            for number in order:
                for following in self.blocks[number].next:
                    before[following].append(number)
            above = self._dominators(entry, order, place, before)
            for number in order:
                for header in self.blocks[number].next:
                    if place[header] <= place[number] and dominates(above, header, number, entry):
                        loop = loops.setdefault(header, Loop(header))
                        loop.latches.add(number)
                        stack = [number]
                        while stack:
                            if (block := stack.pop()) not in loop.blocks:
                                loop.blocks.add(block)
                                stack += before[block]
        found = sorted(loops.values(), key=lambda loop: (len(loop.blocks), loop.header))
        for i, loop in enumerate(found):
            loop.parent = next((outer for outer in found[i + 1:] if loop.header in outer.blocks), None)
            if loop.parent:
                loop.parent.inner.append(loop)
        return found

    def _dominators(self, entry, order, place, before):
        above = {entry: entry}
        changed = True
        while changed:
            changed = False
            for number in order[1:]:
                nearest = None
                for block in before[number]:
                    if block not in above:
                        continue
                    if nearest is None:
                        nearest = block
                    while nearest != block:
                        while place[nearest] > place[block]:
                            nearest = above[nearest]
                        while place[block] > place[nearest]:
                            block = above[block]
                if above.get(number) != nearest:
                    above[number] = nearest
                    changed = True
        return above


def dominates(above, header, number, entry):
    while number != header and number != entry:
        number = above[number]
    return number == header


def kernels_of(text):
    """Returns {mangled name: Kernel} of what nvdisasm printed."""
    found, lines = {}, None
    for line in text.splitlines():
        if match := _SECTION.match(line):
            lines = found.setdefault(match[1], [])
        elif lines is not None and (match := _LABEL.match(line)):
            lines.append(match[1])
        elif lines is not None and (match := _LINE.match(line)):
            lines.append(Instruction(*match.groups()))
    return {name: Kernel(name, lines) for name, lines in found.items()}


def disassemble(program, cubin):
    made = subprocess.run([program, "-c", cubin], capture_output=True, text=True, check=False)
    if made.returncode:
        raise RuntimeError(f"{program} -c {cubin}: {made.stderr.strip()}")
    return kernels_of(made.stdout)
