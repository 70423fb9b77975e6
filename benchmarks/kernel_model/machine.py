# SPDX-License-Identifier: Apache-2.0
"""What the model takes for granted of each GPU.

Limits of a multiprocessor are those of the CUDA C++ programming guide's table of compute capabilities;
clocks, numbers of multiprocessors and bandwidths are the vendor's peak figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WARP = 32
REGISTERS = 65_536  # of 32 bits, per multiprocessor
SCHEDULERS = 4  # each issues one instruction of one warp per clock
RESERVED_SHARED = 1024  # bytes that the system keeps per CTA


@dataclass(frozen=True, slots=True)
class Arch:
    """Limits of a multiprocessor, and its throughput in instructions of a warp per clock."""

    capability: int
    warps: int
    ctas: int
    shared: int  # bytes
    fp32: float
    special: float
    mma: float  # bf16 multiply-adds per clock by mma.sync, accumulated in fp32
    mma_of_many: float = 0.0  # by wgmma or tcgen05
    alu: float = 2.0
    integer_multiply: float = 2.0
    memory: float = 1.0  # shuffles, loads and stores; each moves 128 bytes at most

    @property
    def name(self) -> str:
        return f"sm_{self.capability}"


# mma.sync reaches about 0.62 of the peak of sm_90, which is stated for wgmma; sm_100 has no stated rate
# for it: that of sm_80 is assumed.
ARCHS = {
    80: Arch(80, warps=64, ctas=32, shared=164 * 1024, fp32=2.0, special=0.5, mma=1024),
    90: Arch(
        90, warps=64, ctas=32, shared=228 * 1024, fp32=4.0, special=0.5, mma=1280, mma_of_many=2048
    ),
    100: Arch(
        100, warps=64, ctas=32, shared=228 * 1024, fp32=4.0, special=0.5, mma=1024, mma_of_many=4096
    ),
    120: Arch(120, warps=48, ctas=24, shared=100 * 1024, fp32=4.0, special=0.5, mma=512),
}


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    capability: int
    multiprocessors: int
    clock: float  # Hz, boost
    bandwidth: float  # bytes/s, peak
    cache: float  # bytes/s of the second-level cache; an assumption

    @property
    def arch(self) -> Arch:
        return ARCHS[self.capability]


DEVICES = (
    Device("A100", 80, 108, 1.41e9, 2.039e12, 4.5e12),
    Device("H100", 90, 132, 1.83e9, 3.35e12, 6.5e12),
    Device("H200", 90, 132, 1.83e9, 4.8e12, 6.5e12),
    Device("B200", 100, 148, 1.85e9, 7.7e12, 9e12),
    Device("RTX PRO 6000", 120, 188, 2.6e9, 1.792e12, 8e12),
)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """What of a kernel fits on one multiprocessor at a time, and what limits it."""

    ctas: int
    warps: int
    limit: str


def occupancy(arch: Arch, *, registers: int, shared: int, warps: int) -> Occupancy:
    """registers per thread; shared bytes per CTA, the reserved ones left out."""
    per_warp = math.ceil(max(registers, 1) * WARP / 256) * 256
    by_registers = REGISTERS // SCHEDULERS // per_warp * SCHEDULERS
    fits = {
        "registers": by_registers // warps,
        "shared memory": arch.shared // (shared + RESERVED_SHARED),
        "warps": arch.warps // warps,
        "CTAs": arch.ctas,
    }
    limit = min(fits, key=lambda name: fits[name])
    return Occupancy(fits[limit], fits[limit] * warps, limit)
