# SPDX-License-Identifier: Apache-2.0
"""A kernel's machine code, weighted by how often each part runs."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from benchmarks.kernel_model.latency import warp_clocks
from benchmarks.kernel_model.machine import SCHEDULERS, WARP, Arch
from benchmarks.kernel_model.sass import Flow, Instruction, Trips, parse

_SHAPE = re.compile(r"HMMA\.168(?P<depth>16|8|4)\b")
_SHAPE_OF_FOUR_WARPS = re.compile(r"HGMMA\.(\d+)x(\d+)x(\d+)\b")
_PACKED = ("FFMA2", "FMUL2", "FADD2")  # two results of a lane
LINE_BYTES = 128  # that a multiprocessor's shared memory or first-level cache moves per clock


@dataclass(frozen=True, slots=True)
class Profile:
    """Of one kernel for one architecture: what it takes, and what a warp executes in a step."""

    registers: int
    local: int
    shared: int
    warps: int
    ctas: int  # of one layer, all requests
    code: int  # instructions that can be reached
    loops: tuple[dict[str, int], ...]  # of each loop one iteration: all, and some kinds
    counts: dict[str, float]  # executed per warp, by kind
    clocks: dict[str, float]  # that one warp's instructions take of each part of a multiprocessor
    one_warp: float  # clocks of a warp that waits for nobody else

    @classmethod
    def of(cls, machine: Any, ctas: int, arch: Arch, trips: Trips, conditional: float) -> Profile:
        flow = _flow(machine.text)
        counts, clocks = _executed(flow, trips, conditional, arch, machine.warps)
        return cls(
            registers=machine.registers,
            local=machine.local,
            shared=machine.shared,
            warps=machine.warps,
            ctas=ctas,
            code=sum(len(block.instructions) for block in flow.blocks),
            loops=tuple(_iteration(loop.counts()) for loop in flow.loops),
            counts={name: round(value, 1) for name, value in sorted(counts.items())},
            clocks={name: round(value, 1) for name, value in clocks.items()},
            one_warp=round(warp_clocks(flow, trips, conditional)),
        )

    @property
    def instructions(self) -> float:
        return sum(self.counts.values())


@lru_cache(maxsize=256)
def _flow(text: str) -> Flow:
    return Flow(parse(text))


def _iteration(counts: Counter[str]) -> dict[str, int]:
    shown = ("shuffle", "barrier", "mma", "special", "shared", "global")
    return {"instructions": counts.total()} | {name: counts[name] for name in shown}


def _executed(
    flow: Flow, trips: Trips, conditional: float, arch: Arch, warps: int
) -> tuple[Counter[str], dict[str, float]]:
    weights = flow.weights(trips, conditional)
    counts: Counter[str] = Counter()
    memory = mma = packed = 0.0
    for block in flow.blocks:
        weight = weights[block.start]
        for instruction in block.instructions:
            counts[instruction.kind] += weight  # type: ignore[assignment]
            memory += weight * memory_clocks(instruction)
            mma += weight * mma_clocks(instruction, arch, warps)
            packed += weight * (
                instruction.kind == "fp32" and instruction.name in ("FFMA2", "FMUL2", "FADD2")
            )
    fp32 = counts["fp32"] + packed
    if arch.capability == 80:  # integer products run where the others are
        fp32 += counts["integer multiply"]
    return counts, {
        "issue": counts.total() / SCHEDULERS,
        "fp32": fp32 / arch.fp32,
        "integer multiply": counts["integer multiply"] / arch.integer_multiply,
        "integer and logic": counts["alu"] / arch.alu,
        "special functions": counts["special"] / arch.special,
        "shuffles and memory": memory / arch.memory,
        "tensor cores": mma,
    }


def memory_clocks(instruction: Instruction) -> float:
    """Clocks of the unit that shuffles and moves data: a warp's bytes over 128, at least one."""
    if instruction.kind not in ("shuffle", "shared", "global", "local"):
        return 0
    if instruction.name in ("LDSM", "STSM"):
        return 4 if ".4" in instruction.opcode else 2 if ".2" in instruction.opcode else 1
    width = 16 if ".128" in instruction.opcode else 8 if ".64" in instruction.opcode else 4
    return max(1, WARP * width / LINE_BYTES)


def mma_clocks(instruction: Instruction, arch: Arch, warps: int) -> float:
    """Clocks of the tensor cores for one warp's part of an instruction.

    Products of four warps (wgmma) reach the peak from 64 columns on and take as long for fewer; those of
    a whole CTA (tcgen05) have their shape in a register: 128 by 32 by 16 is assumed.
    """
    if instruction.kind != "mma":
        return 0
    if instruction.name.startswith("UTC"):
        return 128 * 32 * 16 / arch.mma_of_many / warps
    if shape := _SHAPE_OF_FOUR_WARPS.search(instruction.opcode):
        m, n, k = map(int, shape.groups())
        return m * max(n, 64) * k / arch.mma_of_many / 4
    shape = _SHAPE.search(instruction.opcode)
    if shape is None:
        raise ValueError(f"the shape of {instruction.opcode} is not known")
    return 16 * 8 * int(shape["depth"]) / arch.mma * (2 if ".TF32" in instruction.opcode else 1)
