# SPDX-License-Identifier: Apache-2.0
"""From profiles to times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.kernel_model.case import Case, Target
from benchmarks.kernel_model.facts import Facts, eager_floor, facts_of, floor
from benchmarks.kernel_model.machine import Device, occupancy
from benchmarks.kernel_model.profile import Profile

# What kernels of this kind usually reach of a resource's peak: schemes that different resources bind are
# compared with it.
USUALLY = {"bytes": 0.9, "second-level cache": 0.9, "latency": 1.0}
USUALLY_ISSUED = 0.75


@dataclass(frozen=True, slots=True)
class Modelled:
    """Seconds of one layer's share of a step, all requests, by resource."""

    parts: dict[str, float]

    @property
    def binds(self) -> str:
        return max(self.parts, key=lambda part: self.parts[part])

    @property
    def seconds(self) -> float:
        """The least that the machine code and the bytes allow."""
        return self.parts[self.binds]

    @property
    def likely(self) -> float:
        """With each resource used as well as is usual."""
        return max(value / USUALLY.get(part, USUALLY_ISSUED) for part, value in self.parts.items())


def kernel_time(
    facts: Facts, profile: Profile, case: Case, device: Device, *, requests: int, layers: int
) -> Modelled:
    """One layer's share of a kernel: the largest of what each resource needs on the busiest
    multiprocessor."""
    together = layers if facts.launched == "all layers" else 1
    ctas = profile.ctas * together
    busiest = math.ceil(ctas / device.multiprocessors)
    fits = occupancy(
        device.arch, registers=profile.registers, shared=profile.shared, warps=profile.warps
    )
    if not fits.ctas:
        raise ValueError(f"a kernel does not fit on {device.name}: {profile}")
    clocks = {part: busiest * profile.warps * value for part, value in profile.clocks.items()}
    clocks["latency"] = math.ceil(busiest / fits.ctas) * profile.one_warp
    parts = {part: value / device.clock for part, value in clocks.items()}
    moved, cached = (of(case) * requests * together for of in (facts.moved, facts.cached))
    parts |= {"bytes": moved / device.bandwidth, "second-level cache": (moved + cached) / device.cache}
    share = layers if facts.launched == "once" else together
    return Modelled({part: value / share for part, value in parts.items()})


def scheme_time(
    scheme: str,
    profiles: Mapping[str, Profile],
    case: Case,
    target: Target,
    device: Device,
    requests: int,
) -> dict[str, Modelled]:
    """By kernel. Kernels run one after the other."""
    return {
        name: kernel_time(
            facts_of(scheme, name), profile, case, device, requests=requests, layers=target.layers
        )
        for name, profile in profiles.items()
    }


def floors(case: Case, device: Device) -> dict[str, float]:
    """Seconds per request and layer that the bytes of states take at the least."""
    return {
        "1R+1W": floor(case) / device.bandwidth,
        "2R+1W": eager_floor(case) / device.bandwidth,
        "per token": (1 + case.rows) * case.state_bytes / device.bandwidth,
    }
