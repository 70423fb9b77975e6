# SPDX-License-Identifier: Apache-2.0
"""How long one warp takes that has its scheduler for itself: instructions in order, each waiting for
what it reads.

Clocks until a result can be read are about those that microbenchmarks of sm_80 and sm_90 find, the same
for all architectures. A load outside of loops comes from memory, one inside from the second-level cache:
the step before has just written it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from benchmarks.kernel_model.sass import Flow, Instruction, Loop, Trips

CLOCKS = {
    "fp32": 4, "alu": 5, "integer multiply": 5, "uniform": 8, "special": 20, "shuffle": 24, "shared": 30,
    "barrier": 25, "mma": 33, "control": 5, "global": 600, "local": 100,
}  # fmt: skip
FROM_CACHE = 280
OF_MANY_WARPS = 128  # a product of four warps or a CTA
_NAMES = re.compile(r"(?<![\w.])(U?R\d+|U?P\d+)(?:\.(64|reuse))?")
_STORES = ("ST", "RED")


class Scoreboard:
    """The clock of one warp, and when each register can be read."""

    def __init__(self) -> None:
        self.now = 0.0
        self._ready: dict[str, float] = {}
        self._copies: list[float] = []  # when each group of asynchronous copies is there
        self._product = 0.0  # when the last product of many warps is

    def issue(self, instruction: Instruction, *, in_loop: bool) -> None:
        written, read = _operands(instruction)
        self.now = max([self.now + 1, *(self._ready.get(name, 0.0) for name in read)])
        self._wait(instruction)
        known = instruction.kind
        if known == "mma" and instruction.name != "HMMA":
            self._product = self.now + OF_MANY_WARPS
        clocks = FROM_CACHE if known == "global" and in_loop else CLOCKS[known]
        if known == "barrier":  # all warps arrive at the same time
            self.now += clocks
        for name in written:
            self._ready[name] = self.now + clocks

    def _wait(self, instruction: Instruction) -> None:
        """For copies and products that write no register which is read."""
        if instruction.name == "LDGDEPBAR":  # a group of copies, all from memory, has been started
            self._copies.append(self.now + CLOCKS["global"])
        elif instruction.opcode.startswith("DEPBAR.LE"):
            under_way = int(instruction.operands.split(",")[1].strip(), 0)
            done = self._copies[: len(self._copies) - under_way]
            self.now = max([self.now, *done])
        elif instruction.name == "SYNCS" or instruction.opcode.startswith("WARPGROUP.DEPBAR"):
            self.now = max(self.now, self._product)

    def skip(self, clocks: float) -> None:
        """Let so much time pass for everything under way, too."""
        self.now += clocks
        self._product += clocks
        self._copies = [at + clocks for at in self._copies]
        self._ready = {name: at + clocks for name, at in self._ready.items()}


def warp_clocks(flow: Flow, trips: Trips, conditional: float = 1.0) -> float:
    """Clocks of one warp from its first instruction to its last."""
    board, counts = Scoreboard(), dict(zip(flow.loops, flow.trip_counts(trips), strict=True))
    weights = flow.weights(1.0, conditional)
    starts = [block.start for block in flow.blocks]

    def run(inside: Sequence[int], around: Loop | None) -> None:
        done: set[int] = set()
        for start in inside:
            if start in done:
                continue
            loop = next(
                (item for item in flow.loops if item.header == start and item is not around), None
            )
            if loop is not None:
                body = [block.start for block in loop.blocks]
                _repeat(board, counts[loop], lambda body=body, loop=loop: run(body, loop))
                done.update(body)
            elif weights[start]:
                block = flow.blocks[starts.index(start)]
                for instruction in block.instructions:
                    board.issue(instruction, in_loop=around is not None)

    run(starts, None)
    return board.now


def _repeat(board: Scoreboard, count: float, once: Callable[[], None]) -> None:
    """Two iterations are run; all further ones take as long as the second."""
    if count <= 0:
        return
    once()
    if count > 1:
        before = board.now
        once()
        board.skip((board.now - before) * (count - 2))


def _operands(instruction: Instruction) -> tuple[list[str], list[str]]:
    """Registers and predicates written, and those read."""
    parts = instruction.operands.split(",")
    read = [instruction.guard.lstrip("!")] if instruction.guard else []
    written: list[str] = []
    if instruction.name.startswith(_STORES) or instruction.kind in ("control", "barrier"):
        parts = ["", *parts]
    first = _NAMES.match(parts[0].strip())
    if first:
        written = _wide(first[1], _width(instruction))
    rest = parts[1:]
    while rest and (predicate := re.fullmatch(r"\s*(U?P\d)\s*", rest[0])) and len(rest) > 2:
        written.append(predicate[1])  # a carry or the second result of a comparison
        rest = rest[1:]
    for found in _NAMES.finditer(",".join(rest)):
        read += _wide(found[1], 2 if found[2] == "64" else 1)
    return written, read


def _width(instruction: Instruction) -> int:
    opcode = instruction.opcode
    if instruction.kind == "mma":
        return 4
    if ".128" in opcode:
        return 4
    return 2 if ".64" in opcode or ".WIDE" in opcode or instruction.name.endswith("2") else 1


def _wide(name: str, width: int) -> list[str]:
    letters, number = re.fullmatch(r"(\D+)(\d+)", name).groups()  # type: ignore[union-attr]
    return [f"{letters}{int(number) + offset}" for offset in range(width)]
