# SPDX-License-Identifier: Apache-2.0
"""Writes the part of the figures that models of whole steps read: modelled_times.py."""

from __future__ import annotations

from typing import Any

from benchmarks.kernel_model import ROOT
from benchmarks.kernel_model.case import TARGETS
from benchmarks.kernel_model.machine import DEVICES
from benchmarks.kernel_model.results import Data

MODULE = ROOT / "benchmarks/kernel_model/modelled_times.py"
REQUESTS = "32"
_SCHEMES = {"per_token, fused": "per_token"}  # what vLLM runs where it has it
_HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""Modelled times of keeping recurrent states, by GPU. Written by `python -m benchmarks.kernel_model
--write`: docs/dev/gpu.md has the model and its assumptions.

Microseconds per request and layer that are likely at {requests} requests, of {target}'s layers on one
rank. `per_token` is vLLM's own kernel for that K, the others are this package's, verify and commit.
"""

from __future__ import annotations

# Compute capability -> device -> bytes of a state's element -> scheme -> K -> time.
LIKELY_US: dict[int, dict[str, dict[int, dict[str, dict[int, float]]]]] = {{
{rows}
}}
'''


def module_text(data: Data) -> str:
    capability = {device.name: device.capability for device in DEVICES}
    found: dict[int, Any] = {}
    for row in data["times"]:
        if (row["target"], row["tp"]) != (TARGETS[0].name, 1):
            continue
        width = {"fp32": 4, "bf16": 2}[row["state"]]
        devices = found.setdefault(capability[row["device"]], {})
        times = devices.setdefault(row["device"], {}).setdefault(width, {})
        for scheme, by_requests in row["schemes"].items():
            if scheme != "per_token" or "per_token, fused" not in row["schemes"]:
                by_k = times.setdefault(_SCHEMES.get(scheme, scheme), {})
                by_k[row["k"]] = round(by_requests[REQUESTS]["likely_us"], 2)
    return _HEAD.format(requests=REQUESTS, target=TARGETS[0].name, rows="\n".join(_lines(found)))


def _lines(found: dict[int, Any]) -> list[str]:
    """As the formatter lays it out."""
    lines = []
    for capability, devices in sorted(found.items()):
        lines.append(f"    {capability}: {{")
        for device, widths in devices.items():
            lines.append(f'        "{device}": {{')
            for width, schemes in widths.items():
                lines.append(f"            {width}: {{")
                for scheme, times in schemes.items():
                    pairs = ", ".join(f"{k}: {us}" for k, us in times.items())
                    lines.append(f'                "{scheme}": {{{pairs}}},')
                lines.append("            },")
            lines.append("        },")
        lines.append("    },")
    return lines


def write_module(data: Data) -> None:
    MODULE.write_text(module_text(data), encoding="utf-8")
