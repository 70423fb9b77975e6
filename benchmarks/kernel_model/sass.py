# SPDX-License-Identifier: Apache-2.0
"""Reads disassembled machine code: instructions, basic blocks, loops, and how often each runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

_LINE = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P\w+)\s+)?(?P<code>[A-Z][^;]*?)\s*;"
)
_LABEL = re.compile(r"^\s*(?P<label>\.\w+):")
_TARGET = re.compile(r"`\((?P<label>\.\w+)\)|(?P<address>0x[0-9a-f]+)\s*$")
# `BRA.DIV` and `BRA.CONV` leave for warps that have diverged: none has in these kernels. A call is a far
# jump where nothing returns.
_JUMPS = ("BRA", "JMP", "CALL")
_ENDS = ("EXIT", "RET")
_WAITING = 8  # instructions of a loop at most that waits for a barrier in memory

Trips = float | Sequence[float] | Callable[["Loop"], float]


@dataclass(frozen=True, slots=True)
class Instruction:
    address: int
    guard: str  # a predicate, or ""
    opcode: str  # with its modifiers: LDG.E.128
    operands: str
    target: int | None

    @property
    def name(self) -> str:
        return self.opcode.partition(".")[0]

    @property
    def kind(self) -> str:
        return kind(self.opcode)


@dataclass(frozen=True, slots=True)
class Block:
    """Instructions that run together; `after` are the addresses at which the next block starts."""

    start: int
    instructions: tuple[Instruction, ...]
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    header: int
    blocks: tuple[Block, ...]
    latches: frozenset[int]
    inner: int  # loops inside it that do not just wait

    @property
    def waits(self) -> bool:
        return self.instructions <= _WAITING

    def counts(self) -> Counter[str]:
        return Counter(i.kind for block in self.blocks for i in block.instructions)

    @property
    def instructions(self) -> int:
        return sum(len(block.instructions) for block in self.blocks)


_FP32 = frozenset(["FADD", "FMUL", "FFMA", "FFMA32I", "FADD32I", "FMUL32I", "FADD2", "FMUL2", "FFMA2"])
_HALF = frozenset(["HADD2", "HMUL2", "HFMA2", "HFMA"])
_KINDS = {
    "shuffle": ("SHFL", "REDUX", "CREDUX"),
    "barrier": ("BAR",),
    "special": ("MUFU", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO"),
    "shared": ("LDS", "STS", "LDSM", "STSM", "ATOMS", "MOVM"),
    "global": ("LDG", "STG", "LDGSTS", "ATOM", "ATOMG", "RED", "REDG", "LD", "ST", "UBLKCP", "UTMALDG"),
    "local": ("LDL", "STL"),
    "integer multiply": ("IMAD", "IDP", "IDP4A"),
    "control": ("BRA", "EXIT", "RET", "CALL", "BSSY", "BSYNC", "BREAK", "BMOV", "WARPSYNC", "WARPGROUP",
                "NOP", "YIELD", "DEPBAR", "LDGDEPBAR", "ERRBAR", "MEMBAR", "CCTL", "BRX", "JMP",
                "ACQBULK", "SYNCS"),
}  # fmt: skip
_KIND_OF = {name: known for known, names in _KINDS.items() for name in names}
_MMA = re.compile(r"^(?:UTC)?[HIBQOD]G?MMA")


def kind(opcode: str) -> str:
    """What executes it: a kind of `_KINDS`, "mma", "fp32", "uniform", or "alu" for all others."""
    name = opcode.partition(".")[0]
    if _MMA.match(name):
        return "mma"
    if name in _FP32 or name in _HALF:
        return "fp32"
    if name in _KIND_OF:
        return _KIND_OF[name]
    uniform = name.startswith("U") or name in ("R2UR", "S2UR", "S2R", "CS2R", "LDC", "LDCU", "VOTEU")
    return "uniform" if uniform else "alu"


def parse(text: str) -> list[Instruction]:
    """The instructions of one function, as nvdisasm or cuobjdump prints it."""
    rows: list[tuple[re.Match[str], str]] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            waiting.append(label["label"])
        elif row := _LINE.match(line):
            labels |= dict.fromkeys(waiting, int(row["address"], 16))
            waiting = []
            rows.append((row, row["code"]))
    found = []
    returns = any(code.startswith("RET") for _, code in rows)
    for row, code in rows:
        opcode, _, operands = code.partition(" ")
        target = None
        if opcode.startswith("CALL") and returns:
            pass
        elif opcode.split(".")[0] in _JUMPS and not opcode.startswith(("BRA.DIV", "BRA.CONV")):
            at = _TARGET.search(operands)
            if at is None:
                raise ValueError(f"no target in {code!r}")
            target = labels[at["label"]] if at["label"] else int(at["address"], 16)
        found.append(Instruction(int(row["address"], 16), row["guard"] or "", opcode, operands, target))
    return found


class Flow:
    """The basic blocks that can be reached, in the order of their addresses, and their loops."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._all = {block.start: block for block in _blocks(instructions)}
        self._dominators = self._find_dominators(instructions[0].address)
        self.blocks = tuple(self._all[start] for start in sorted(self._dominators))

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """In the order of their addresses, an outer one before those inside it."""
        latches: dict[int, set[int]] = {}
        for block in self.blocks:
            for after in block.after:
                if after in self._dominators[block.start]:
                    latches.setdefault(after, set()).add(block.start)
        bodies = {header: self._body(header, of) for header, of in latches.items()}
        found = [
            Loop(header, bodies[header], frozenset(of), _inside(header, bodies))
            for header, of in latches.items()
        ]
        return tuple(sorted(found, key=lambda loop: (loop.header, -len(loop.blocks))))

    def weights(self, trips: Trips, conditional: float = 1.0) -> dict[int, float]:
        """How often each block runs, by its start.

        trips: iterations of each loop: one number for all, one per loop in the order of `loops`, or a
        function of the loop. conditional: how often a block of a loop runs that some iterations skip.
        """
        counts = self.trip_counts(trips)
        found = dict.fromkeys(self._dominators, 1.0)
        for loop, count in zip(self.loops, counts, strict=True):
            for block in loop.blocks:
                found[block.start] *= count
        for block in self.blocks:
            inside = [loop for loop in self.loops if block in loop.blocks]
            if inside and any(
                block.start not in self._dominators[latch] for latch in inside[-1].latches
            ):
                found[block.start] *= conditional
        return found

    def trip_counts(self, trips: Trips) -> list[float]:
        if callable(trips):
            return [1.0 if loop.waits else trips(loop) for loop in self.loops]
        if isinstance(trips, int | float):
            return [1.0 if loop.waits else float(trips) for loop in self.loops]
        if len(trips) != len(self.loops):
            sizes = [loop.instructions for loop in self.loops]
            raise ValueError(
                f"{len(trips)} trip counts for {len(self.loops)} loops of {sizes} instructions"
            )
        return [float(trip) for trip in trips]

    def _find_dominators(self, entry: int) -> dict[int, set[int]]:
        order = self._reachable(entry)
        before: dict[int, set[int]] = {start: set() for start in order}
        for start in order:
            for after in self._all[start].after:
                before[after].add(start)
        found = {start: set(order) for start in order} | {entry: {entry}}
        changed = True
        while changed:
            changed = False
            for start in order[1:]:
                new = {start} | set.intersection(*(found[b] for b in before[start]))
                changed |= new != found[start]
                found[start] = new
        return found

    def _reachable(self, entry: int) -> list[int]:
        seen, waiting = [entry], [entry]
        while waiting:
            for after in self._all[waiting.pop()].after:
                if after not in seen:
                    seen.append(after)
                    waiting.append(after)
        return seen

    def _body(self, header: int, latches: set[int]) -> tuple[Block, ...]:
        inside, waiting = {header}, [latch for latch in latches if latch != header]
        while waiting:
            here = waiting.pop()
            if here not in inside:
                inside.add(here)
                waiting += [b.start for b in self.blocks if here in b.after]
        return tuple(block for block in self.blocks if block.start in inside)


def _inside(header: int, bodies: dict[int, tuple[Block, ...]]) -> int:
    starts = {block.start for block in bodies[header]}
    return sum(
        other in starts and sum(len(block.instructions) for block in body) > _WAITING
        for other, body in bodies.items()
        if other != header
    )


def _blocks(instructions: Sequence[Instruction]) -> list[Block]:
    starts = {instructions[0].address} | {i.target for i in instructions if i.target is not None}
    ends = {i.address for i in instructions if i.target is not None or i.name in _ENDS}
    starts |= {
        b.address for a, b in zip(instructions, instructions[1:], strict=False) if a.address in ends
    }
    found: list[Block] = []
    current: list[Instruction] = []
    for here, following in zip(instructions, [*instructions[1:], None], strict=True):
        current.append(here)
        if following is None or following.address in starts:
            after = set() if here.target is None else {here.target}
            always = not here.guard and "UP" not in here.operands.split(",")[0]
            if following is not None and not (here.address in ends and always):
                after.add(following.address)
            found.append(Block(current[0].address, tuple(current), tuple(sorted(after))))
            current = []
    return found
