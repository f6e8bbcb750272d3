# SPDX-License-Identifier: Apache-2.0
"""What a warp executes of a kernel: one way through its blocks, loops as often as a description says.

Where the way parts, the one is taken that moves the most bytes, of equal ones the shortest: tensors are f32 and aligned, so
that reads of halves and stores of single bytes are left aside, and so are refusals of damaged messages. A description
(tools/gpu_model/kernels.toml) says how many entries a loop handles, and names what is not taken where this rule errs.
"""
import collections
import re

_PREFERRED = 10**4  # bytes that an instruction counts as which the description looks for
_NARROW = r"^(LD|LDG|ST|STG)\.E\.[US](8|16)$"  # single bytes and halves: never of f32 that are aligned


class Cost:
    """Instructions of each class that a warp issues, and the cycles that one warp alone needs for them."""

    def __init__(self, counts=(), cycles=0.0):
        self.counts, self.cycles = collections.Counter(counts), cycles

    def add(self, other, times=1.0):
        for kind, count in other.counts.items():
            self.counts[kind] += count * times
        self.cycles += other.cycles * times

    @property
    def instructions(self):
        return sum(self.counts.values())


class Iteration:
    """A way through a loop's body, or through a whole kernel: instructions and inner loops, in order."""

    def __init__(self, parts, score, cost, steps):
        self.parts, self.score, self.cost, self.steps = parts, score, cost, steps
        self.entries = self.trips = None  # of a loop that the description knows
        self.rule = None

    def own(self):
        return [part for part in self.parts if not isinstance(part, tuple)]


def _score(instruction, avoided, preferred, spared):
    opcode = instruction.opcode
    if spared and re.search(spared, opcode):
        return -_PREFERRED
    if re.search(_NARROW, opcode) or (avoided and re.search(avoided, opcode)):
        return 0
    return instruction.bytes + (_PREFERRED if preferred and re.search(preferred, opcode) else 0)


def _chain(instructions, cycles, steps, latencies):
    """Runs instructions in order; `cycles` and `steps` say when each register is there, after how many instructions."""
    now, longest = 0.0, 0
    for part in instructions:
        if isinstance(part, tuple):  # an inner loop: nothing overlaps with it
            now = max([now, *cycles.values()]) + part[1]
            continue
        depth = 1 + max((steps.get(register, 0) for register in part.reads), default=0)
        now = max([now + 1, *(cycles.get(register, 0.0) for register in part.reads)])
        latency = latencies.get(part.name, part.latency)
        for register in part.writes:
            cycles[register], steps[register] = now + latency, depth
        if part.name in ("BAR", "MEMBAR", "CCTL"):
            now += part.latency
        longest = max(longest, depth)
    return now, longest


class Walk:
    """The ways through one kernel."""

    def __init__(self, kernel, description):
        self.kernel = kernel
        self.rules = description.get("loops", [])
        self.unit = description.get("unit")
        self.avoided, self.preferred = description.get("avoid"), description.get("prefer")
        self.spared = description.get("spare")
        self.ticket = description.get("ends") or description.get("last")
        self.latencies = description.get("latency", {})
        self.iterations = {}
        self._called = {}
        for loop in kernel.loops:
            self._weigh(loop)
        self._drop_remainders()
        self.whole = self._function(0)

    def _weigh(self, loop):
        if loop.header in self.iterations:
            return
        for inner in loop.inner:
            self._weigh(inner)
        self.iterations[loop.header] = self._way(loop.blocks, loop.header, loop.latches, loop.inner)
        self._describe(loop)

    def _function(self, entry):
        blocks = self.kernel.reachable(entry)
        ends = {number for number in blocks if not self.kernel.blocks[number].next or
                any(line.ends for line in self.kernel.blocks[number].instructions)}
        inner = [loop for loop in self.kernel.loops if loop.parent is None and loop.header in blocks]
        for loop in inner:
            self._weigh(loop)
            if all(target in loop.blocks for block in loop.blocks for target in self.kernel.blocks[block].next):
                ends.add(loop.header)  # its threads end within, one by one
        return self._way(set(blocks), entry, ends, inner)

    def _callee(self, target):
        if target not in self._called:
            self._called[target] = Cost()  # no recursion
            if target in self.kernel.calls:
                self._called[target] = self._function(self.kernel.calls[target]).cost
        return self._called[target]

    def _way(self, blocks, entry, ends, inner):
        """Returns the best way from `entry` to one of `ends` within `blocks`, `inner` loops as one step each."""
        inside = {number: loop for loop in inner for number in loop.blocks if loop.header != entry}
        best, came = {}, {}
        for number in [number for number in self.kernel.reachable(entry) if number in blocks]:
            loop = inside.get(number)
            if loop and number != loop.header:
                continue
            if number != entry and number not in came:
                continue  # behind what is never left
            score, length = best.get(number, (0, 0))
            if loop:
                iteration = self.iterations[number]
                trips = 1.0 if iteration.trips is None else iteration.trips
                score, length = score + trips * iteration.score, length - trips * iteration.cost.instructions
                following = [target for block in loop.blocks for target in self.kernel.blocks[block].next
                             if target not in loop.blocks]
            else:
                instructions = self.kernel.blocks[number].instructions
                score += sum(_score(line, self.avoided, self.preferred, self.spared) for line in instructions)
                length -= len(instructions) + sum(self._callee(target).instructions for line in instructions
                                                  if line.name == "CALL" for target in line.targets)
                following = self.kernel.blocks[number].next
            best[number] = score, length
            for target in following:
                if target in blocks and target != entry and (target not in came or best[target] < (score, length)):
                    if target not in came or self._is_later(target, number, came):
                        best[target], came[target] = (score, length), number
        ends = [self._step_of(number, inside) for number in ends]
        reached = [number for number in ends if number == entry or number in came]
        if not reached:
            return Iteration([], 0, Cost(), 0)
        number = max(reached, key=lambda number: best[number])
        score, way = best[number][0], [number]
        while number != entry:
            number = came[number]
            way.append(number)
        parts = []
        for number in reversed(way):
            parts += [(inside[number], number)] if number in inside else self.kernel.blocks[number].instructions
        return self._weighed(self._up_to_ticket(parts) if entry == 0 and self.ticket else parts, score)

    def _up_to_ticket(self, parts):
        """The parts up to the first end, conditional or not, behind a ticket or what else threads end at."""
        taken = False
        for number, part in enumerate(parts):
            if not isinstance(part, tuple):
                taken = taken or bool(re.search(self.ticket, part.opcode))
                if taken and part.name == "EXIT":
                    return parts[:number + 1]
        return parts

    @staticmethod
    def _step_of(number, inside):
        return inside[number].header if number in inside else number

    @staticmethod
    def _is_later(target, number, came):
        """Whether `target` does not come before `number`: edges that go back between loops of one level are left aside."""
        while number in came:
            number = came[number]
            if number == target:
                return False
        return True

    def _weighed(self, parts, score):
        cost = Cost()
        flat = []
        for part in parts:
            if isinstance(part, tuple):
                inner = self.iterations[part[1]]
                trips = 1.0 if inner.trips is None else inner.trips
                cost.add(Cost(inner.cost.counts), trips)
                flat.append((None, trips * inner.cost.cycles))
            else:
                cost.counts[part.kind] += 1
                flat.append(part)
                if part.name == "CALL":
                    for target in part.targets:
                        cost.add(Cost(self._callee(target).counts))
                        flat.append((None, self._callee(target).cycles))
        cycles, steps = {}, {}
        first, longest = _chain(flat, cycles, steps, self.latencies)
        later, _ = _chain(flat, {register: at - first for register, at in cycles.items()}, {}, self.latencies)
        cost.cycles = later if parts else 0.0
        return Iteration(parts, score, cost, longest)

    def _describe(self, loop):
        iteration = self.iterations[loop.header]
        for number, rule in enumerate(self.rules):
            if "holds" in rule:
                matches = sum(bool(re.search(rule["holds"], line.opcode)) for inner in loop.inner
                              for line in self.iterations[inner.header].own())
            else:
                matches = sum(bool(re.search(rule["has"], line.opcode)) for line in iteration.own())
            if matches < rule.get("least", 1):
                continue
            iteration.rule = number
            if "trips" in rule:
                iteration.trips = float(rule["trips"])
            else:
                iteration.entries = rule["each"] * (1 if rule.get("whole") else matches)
                iteration.trips = rule.get("of", self.unit) / iteration.entries
            break

    def _drop_remainders(self):
        """Of loops that take turns at the same entries, such as an unrolled one and its rest, the widest handles all."""
        described = [loop for loop in self.kernel.loops if self.iterations[loop.header].entries]
        for loop in described:
            mine = self.iterations[loop.header]
            for other in described:
                theirs = self.iterations[other.header]
                if (other is loop or other.parent is not loop.parent or mine.rule != theirs.rule or self.rules[mine.rule].get("every")
                        or theirs.trips == 0 or (theirs.entries, -other.header) <= (mine.entries, -loop.header)):
                    continue
                after, before = self.kernel.reachable(other.header), self.kernel.reachable(loop.header)
                if loop.header in after or other.header in before:
                    mine.trips = 0.0
        if any(self.iterations[loop.header].trips == 0 for loop in described):
            for loop in self.kernel.loops:  # what holds them is weighed anew
                if any(self.iterations[inner.header].trips == 0 for inner in loop.inner):
                    old = self.iterations[loop.header]
                    new = self._way(loop.blocks, loop.header, loop.latches, loop.inner)
                    new.entries, new.trips, new.rule = old.entries, old.trips, old.rule
                    self.iterations[loop.header] = new

    def shares(self):
        """Returns (cost of a warp whatever its entries, cost of one entry of a warp): that of the loops of the whole way, and of
        those in a loop that passes all entries each time."""
        fixed, entry = Cost(self.whole.cost.counts, self.whole.cost.cycles), Cost()

        def share(parts, times):
            for part in parts:
                iteration = self.iterations[part[1]] if isinstance(part, tuple) else None
                if iteration and iteration.entries and self.unit:
                    fixed.add(iteration.cost, -times * iteration.trips)
                    entry.add(iteration.cost, times * iteration.trips / self.unit)
                elif iteration and iteration.trips and self.rules[iteration.rule].get("inside"):
                    share(iteration.parts, times * iteration.trips)

        share(self.whole.parts, 1.0)
        return fixed, entry

    def hot_loop(self):
        """Returns (loop, iteration) of the loop in which a warp spends the most instructions, innermost of equal ones."""
        def weight(loop):
            iteration, times = self.iterations[loop.header], 1.0
            while loop is not None:
                trips = self.iterations[loop.header].trips
                times *= 1.0 if trips is None else trips
                loop = loop.parent
            own = collections.Counter(line.kind for line in iteration.own())
            return times * sum(own.values()), iteration.score
        loops = [loop for loop in self.kernel.loops if self.iterations[loop.header].parts]
        loop = max(loops, key=weight, default=None)
        return (loop, self.iterations[loop.header]) if loop else (None, None)
