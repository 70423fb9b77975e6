# SPDX-License-Identifier: Apache-2.0
"""What a run found, as plain data: a row per kernel and architecture, a row per shape and device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.kernel_model.case import Case, Target
from benchmarks.kernel_model.facts import ANY_ROWS, FUSED, facts_of
from benchmarks.kernel_model.machine import Arch, Device, occupancy
from benchmarks.kernel_model.profile import Profile
from benchmarks.kernel_model.times import Modelled, floors

RESULTS = Path(__file__).parents[1] / "results/kernel_model.json"
REQUESTS = (1, 32)
LEAST_SHARE = 0.02  # of a scheme's time, below which a kernel is left out
Data = dict[str, list[dict[str, Any]]]


def read_results() -> Data:
    found: Data = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


class Results:
    """The rows of a run, and those of the one before for what it leaves out."""

    def __init__(self, before: Data | None, *, everything: bool) -> None:
        """before: what was found earlier; a run over everything keeps only vLLM's fused kernel."""
        rows = before or {"kernels": [], "times": []}
        self._before = {_kernel_key(row): row for row in rows["kernels"]}
        self._kernels = {} if everything else dict(self._before)
        self._times = {} if everything else {_time_key(row): row for row in rows["times"]}
        self._new: set[tuple[Any, ...]] = set()

    @property
    def data(self) -> Data:
        kernels = (self._kernels[key] for key in sorted(self._kernels))
        return {"kernels": [*kernels], "times": [self._times[key] for key in sorted(self._times)]}

    def kept(self, case: Case, arch: Arch, requests: int) -> dict[str, Profile]:
        """The profile of vLLM's fused kernel as it was found before; nothing if it never was."""
        row = next(
            (
                row
                for row in self._before.values()
                if (row["kernel"], row["arch"], row["state"]) == (FUSED, arch.name, case.state)
                and (row["k"], row["ratio"]) == (case.rows - 1, _ratio(case))
            ),
            None,
        )
        if row is None:
            return {}
        known = {name: row[name] for name in Profile.__dataclass_fields__}
        return {FUSED: Profile(**known | {"ctas": requests * case.value_heads})}

    def add_kernel(
        self, scheme: str, name: str, case: Case, arch: Arch, requests: int, profile: Profile
    ) -> None:
        """One row for all shapes: the figures of the first."""
        rows = case.rows if name == FUSED or facts_of(scheme, name).rows_in_code else ANY_ROWS
        if rows != case.rows:
            return
        fits = occupancy(arch, registers=profile.registers, shared=profile.shared, warps=profile.warps)
        row = {
            "scheme": scheme, "kernel": name, "arch": arch.name, "state": case.state, "k": rows - 1,
            "ratio": _ratio(case), "shape": [case.key_heads, case.value_heads], "requests": requests,
            # Another tile is another kernel.
            "tiles": profile.ctas // requests // case.value_heads,
        }  # fmt: skip
        row |= asdict(profile) | {"occupancy": asdict(fits)}
        key = _kernel_key(row)
        if key not in self._new:
            self._new.add(key)
            self._kernels[key] = row

    def add_time(
        self, scheme: str, target: Target, parallel: int, case: Case, device: Device, requests: int,
        times: Mapping[str, Modelled],
    ) -> None:  # fmt: skip
        """Microseconds per request and layer: of the scheme, and of its longer kernels by resource."""
        scale = 1e6 / requests
        row: dict[str, Any] = {
            "device": device.name, "target": target.name, "tp": parallel, "state": case.state,
            "k": case.rows - 1, "layers": target.layers,
            "floors": {name: round(1e6 * s, 3) for name, s in floors(case, device).items()},
            "schemes": {},
        }  # fmt: skip
        key = _time_key(row)
        if key not in self._new:
            self._new.add(key)
            self._times[key] = row
        found: dict[str, Any] = {
            "us": round(scale * sum(item.seconds for item in times.values()), 3),
            "likely_us": round(scale * sum(item.likely for item in times.values()), 3),
        }
        found["kernels"] = {
            name: [round(scale * item.seconds, 3), item.binds]
            for name, item in times.items()
            if scale * item.seconds >= found["us"] * LEAST_SHARE
        }
        self._times[key]["schemes"].setdefault(scheme, {})[str(requests)] = found

    def write(self) -> None:
        parts = [
            f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]"
            for name, rows in self.data.items()
        ]
        RESULTS.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


def _kernel_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("scheme", "kernel", "arch", "state", "k", "tiles")
    return (*(row[name] for name in names), row["ratio"] if row["kernel"] == FUSED else 0)


def _time_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("device", "target", "tp", "state", "k"))


def _ratio(case: Case) -> int:
    return case.value_heads // case.key_heads
