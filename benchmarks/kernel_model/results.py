# SPDX-License-Identifier: Apache-2.0
"""What a run found, as plain data: one row per kernel and architecture, one per time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.kernel_model.case import Case, Target
from benchmarks.kernel_model.facts import FUSED
from benchmarks.kernel_model.fused import FusedKernels
from benchmarks.kernel_model.machine import Device, occupancy
from benchmarks.kernel_model.profile import Profile
from benchmarks.kernel_model.times import Modelled, floors

RESULTS = Path(__file__).parents[1] / "results/kernel_model.json"
REQUESTS = (1, 32)
Data = dict[str, list[dict[str, Any]]]
_KEY = ("kernel", "arch", "state", "k", "key_heads", "value_heads")


def read_results() -> Data:
    found: Data = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


class Results:
    """The rows of a run, and those of the one before for kernels that cannot be read anew."""

    def __init__(self, fused: FusedKernels | None, before: Data | None) -> None:
        self.fused = fused
        self.data: Data = {"kernels": [], "times": []}
        rows = before["kernels"] if before else []
        self._before = {tuple(row[name] for name in _KEY): row for row in rows}
        self._seen: set[tuple[Any, ...]] = set()

    def kept(self, case: Case, device: Device) -> dict[str, Profile]:
        """The profile of vLLM's fused kernel as it was found before; nothing if it never was."""
        row = self._before.get(_key(FUSED, case, device))
        if row is None:
            return {}
        names = Profile.__dataclass_fields__
        return {FUSED: Profile(**{name: row[name] for name in names})}

    def add_kernels(
        self, scheme: str, target: Target, parallel: int, case: Case, device: Device,
        made: Mapping[str, Profile],
    ) -> None:  # fmt: skip
        for name, profile in made.items():
            key = _key(name, case, device)
            if (scheme, *key) in self._seen:  # devices of one architecture
                continue
            self._seen.add((scheme, *key))
            fits = occupancy(
                device.arch, registers=profile.registers, shared=profile.shared, warps=profile.warps
            )
            row = {"scheme": scheme, "target": target.name, "tp": parallel}
            row |= dict(zip(_KEY, key, strict=True)) | asdict(profile)
            self.data["kernels"].append(row | {"occupancy": asdict(fits)})

    def add_time(
        self, scheme: str, target: Target, parallel: int, case: Case, device: Device, requests: int,
        times: Mapping[str, Modelled],
    ) -> None:  # fmt: skip
        """Microseconds per request and layer."""
        if not times:
            return
        least = {name: round(1e6 * value, 3) for name, value in floors(case, device).items()}
        scale = 1e6 / requests
        self.data["times"].append({
            "device": device.name, "target": target.name, "tp": parallel, "state": case.state,
            "k": case.rows - 1, "requests": requests, "scheme": scheme, "layers": target.layers,
            "us": round(scale * sum(item.seconds for item in times.values()), 3),
            "kernels": {
                name: [round(scale * item.seconds, 3), item.binds] for name, item in times.items()
            },
            "floors": least,
        })  # fmt: skip

    def write(self) -> None:
        parts = [
            f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]"
            for name, rows in self.data.items()
        ]
        RESULTS.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


def _key(name: str, case: Case, device: Device) -> tuple[Any, ...]:
    heads = case.key_heads, case.value_heads
    return (name, device.arch.name, case.state, case.rows - 1, *heads)
