# SPDX-License-Identifier: Apache-2.0
"""What a self-test found, and the JSON that a user may send in: no host names, no paths."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from vllm_eagle_ext.replay.self_check.results import KernelCheck

FORMAT = 2  # of the JSON; raised when a key changes its meaning
_PATH = re.compile(r"(?<![\w.])~?(?:/[\w.+@-]+){2,}/?")


@dataclass(frozen=True, slots=True)
class Checked:
    """One check and its case: "Qwen3.6-27B, TP 1, K 15, float32 state"."""

    case: str
    result: KernelCheck


@dataclass(slots=True)
class SelfTest:
    """Collects what a self-test finds."""

    device: dict[str, Any]
    versions: dict[str, str]
    quick: bool
    checks: list[Checked] = field(default_factory=list)
    times: list[dict[str, Any]] = field(default_factory=list)
    bandwidth: float | None = None  # bytes a second of a copy on the device
    left_out: list[str] = field(default_factory=list)  # and why

    @property
    def failed(self) -> list[Checked]:
        return [checked for checked in self.checks if not checked.result.ok]

    @property
    def exit_code(self) -> int:
        """Return 0: all is right; 1: something is not; 2: nothing could be checked."""
        if not self.checks:
            return 2
        return 1 if self.failed else 0

    def to_json(self) -> dict[str, Any]:
        found = {
            "selftest": FORMAT,
            "exit_code": self.exit_code,
            "quick": self.quick,
            "device": self.device,
            "versions": self.versions,
            "checks": [_to_json(checked) for checked in self.checks],
            "copy_bandwidth": self.bandwidth,
            "times": self.times,
            "left_out": self.left_out,
        }
        return {key: without_paths(value) for key, value in found.items()}


def without_paths(value: Any) -> Any:
    """Replace the paths in all texts: a compiler's message may name folders of the user's."""
    if isinstance(value, str):
        return _PATH.sub("<path>", value)
    if isinstance(value, dict):
        return {key: without_paths(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_paths(part) for part in value]
    return value


def _to_json(checked: Checked) -> dict[str, Any]:
    """Return a check as JSON, without the values of parts that are equal in all bits."""
    result = checked.result
    found: dict[str, Any] = {
        "case": checked.case,
        "kernels": result.kernels,
        "shapes": result.shapes,
        "ok": result.ok,
        "milliseconds": round(result.milliseconds, 1),
        "compile_milliseconds": round(result.compile_milliseconds, 1),
    }
    if result.error is not None:
        found["error"] = result.error
    equal = [part.name for part in result.parts if part.ok and part.limit is None]
    found["equal"] = sorted(set(equal))
    found["parts"] = [asdict(part) for part in result.parts if not part.ok or part.limit is not None]
    return found
