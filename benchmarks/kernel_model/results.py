# SPDX-License-Identifier: Apache-2.0
"""What a run found, as plain data: a row per kernel and architecture, a row per shape and device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kernel_model.case import Case, Target
from benchmarks.kernel_model.facts import ANY_ROWS, FACTS, FUSED
from benchmarks.kernel_model.machine import Arch, Device, occupancy
from benchmarks.kernel_model.profile import Profile
from benchmarks.kernel_model.times import Modelled, floors

if TYPE_CHECKING:
    from benchmarks.kernel_model.fused import FusedKernels

RESULTS = Path(__file__).parents[1] / "results/kernel_model.json"
REQUESTS = (1, 32)
Data = dict[str, list[dict[str, Any]]]


def read_results() -> Data:
    found: Data = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


class Results:
    """The rows of a run, and those of the one before for the kernel that cannot be read anew."""

    def __init__(self, fused: FusedKernels | None, before: Data | None) -> None:
        self.fused = fused
        self._kernels: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._times: dict[tuple[Any, ...], dict[str, Any]] = {}
        rows = before["kernels"] if before else []
        self._before = {
            (row["arch"], row["state"], row["k"], row["ratio"]): row
            for row in rows
            if row["kernel"] == FUSED
        }

    @property
    def data(self) -> Data:
        return {"kernels": [*self._kernels.values()], "times": [*self._times.values()]}

    def kept(self, case: Case, arch: Arch) -> dict[str, Profile]:
        """The profile of vLLM's fused kernel as it was found before; nothing if it never was."""
        row = self._before.get((arch.name, case.state, case.rows - 1, _ratio(case)))
        if row is None:
            return {}
        known = {name: row[name] for name in Profile.__dataclass_fields__}
        return {FUSED: Profile(**known | {"ctas": case.value_heads})}

    def add_kernel(self, scheme: str, name: str, case: Case, arch: Arch, profile: Profile) -> None:
        """One row for all shapes: figures of the first, and the largest of those that can differ."""
        rows = case.rows if name == FUSED or FACTS[name].rows_in_code else ANY_ROWS
        if rows != case.rows:
            return
        key = (scheme, name, arch.name, case.state, rows, _ratio(case) if name == FUSED else 0)
        fits = occupancy(arch, registers=profile.registers, shared=profile.shared, warps=profile.warps)
        row = self._kernels.setdefault(
            key,
            {"scheme": scheme, "kernel": name, "arch": arch.name, "state": case.state, "k": rows - 1}
            | {"ratio": _ratio(case), "shape": [case.key_heads, case.value_heads]}
            | asdict(profile)
            | {"occupancy": asdict(fits), "most": {"registers": 0, "local": 0, "instructions": 0}},
        )
        most = row["most"]
        for what in most:
            most[what] = max(most[what], round(getattr(profile, what)))

    def add_time(
        self, scheme: str, target: Target, parallel: int, case: Case, device: Device, requests: int,
        times: Mapping[str, Modelled],
    ) -> None:  # fmt: skip
        """Microseconds per request and layer: of the scheme, and of each kernel with what binds it."""
        scale = 1e6 / requests
        key = (device.name, target.name, parallel, case.state, case.rows)
        row = self._times.setdefault(
            key,
            {"device": device.name, "target": target.name, "tp": parallel, "state": case.state}
            | {"k": case.rows - 1, "layers": target.layers}
            | {"floors": {name: round(1e6 * s, 3) for name, s in floors(case, device).items()}}
            | {"schemes": {}},
        )
        least = round(scale * sum(item.seconds for item in times.values()), 3)
        likely = round(scale * sum(item.likely for item in times.values()), 3)
        kernels = {name: [round(scale * item.seconds, 3), item.binds] for name, item in times.items()}
        found = {"us": least, "likely_us": likely, "kernels": kernels}
        row["schemes"].setdefault(scheme, {})[str(requests)] = found

    def write(self) -> None:
        parts = [
            f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]"
            for name, rows in self.data.items()
        ]
        RESULTS.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


def _ratio(case: Case) -> int:
    return case.value_heads // case.key_heads
