# SPDX-License-Identifier: Apache-2.0
"""Writes a check as JSON, for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

from vllm_eagle_ext.preflight.offline.run import CheckResult
from vllm_eagle_ext.preflight.offline.serve import download_line, not_looked_at, serve_command


def to_json(result: CheckResult) -> str:
    """Write valid JSON whatever the config held: values that JSON has no word for become text."""
    return json.dumps(_plain_json(as_json(result)), indent=1)


def _plain_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_json(inner) for inner in value]
    is_plain = value is None or isinstance(value, bool | int | str)
    return value if is_plain or (isinstance(value, float) and isfinite(value)) else str(value)


def as_json(result: CheckResult) -> dict[str, Any]:
    """Give the parts; `spec` is null for a draft that is passed through or cannot be made out."""
    inspection, start = result.inspection, result.start
    is_served = inspection.spec is not None and not result.exit_code
    return {
        "draft": result.request.draft,
        "target": result.request.target,
        "spec": asdict(inspection.spec) if inspection.spec else None,
        "left_to_vllm": inspection.is_passed_through,
        "findings": [
            {
                "rule": f.rule,
                "severity": f.severity,
                "can_run": f.can_run,
                "follows_from": f.follows_from,
                **asdict(f.problem),
            }
            for f in inspection.findings
        ],
        "platform": {"name": start.platform.name, "why": start.platform.why},
        "recurrent_state": start.state,
        "not_looked_at": not_looked_at(result),
        "download": download_line(result) if is_served else None,
        "command": serve_command(result) if is_served else None,
        "exit_code": result.exit_code,
    }
