# SPDX-License-Identifier: Apache-2.0
"""What a step costs outside the model, by the number of KV-cache groups: launches, and time of the host.

    python -m benchmarks.step_launches [--also PYTHON]

vLLM makes groups as large as its smallest kind of layers. A draft with one layer of a kind of its own
cuts a target's 48 gated delta nets into 48 groups. `--also` runs the same under another interpreter,
with another release of vLLM, and writes both into one result.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.machine import machine
from benchmarks.step_metadata import Delta, Setting, host_times, launches
from vllm_eagle_ext import compat
from vllm_eagle_ext.memory.footprint import group_size

RESULT = Path(__file__).parent / "results" / "step_launches.json"
LAUNCHES_MORE, TIMES_AS_LONG = 24, 1.3  # than stock vLLM, at most
QWEN_27B, QWEN_35B_A3B = Delta(48, 16, 48), Delta(30, 16, 32)
# Numbers of like layers: gated delta nets, attention, and the draft's.
PAIRS = {
    "27B without a draft": (QWEN_27B, (48, 16)),
    "27B with a DFlash draft of 4 windowed layers and 1 full one": (QWEN_27B, (48, 16, 4, 1)),
    "35B-A3B with a DFlash draft of 8 full layers": (QWEN_35B_A3B, (30, 10, 8)),
    "35B-A3B with a draft of one layer of another shape": (QWEN_35B_A3B, (30, 10, 1)),
}
STEPS: dict[str, dict[str, Any]] = {
    "verify, full graph": {},
    "verify, no full graph": {"graphs": False},
    "verify, without prefix caching": {"mode": "none"},
    "two prompts among them": {"graphs": False, "prompts": 2},
}


def settings() -> dict[str, Setting]:
    by_pair = {}
    for name, (delta, counts) in PAIRS.items():
        groups = -(-delta.layers // group_size(counts))
        by_pair[name] = Setting(delta, groups, k=15, requests=32)
    return by_pair


def row(pair: str, step: str, setting: Setting, repeats: int) -> dict[str, Any]:
    counts = {name: launches(setting, replays=name == "replay") for name in ("per_token", "replay")}
    seconds = host_times(replace(setting, device="cpu"), repeats)
    return {
        "pair": pair,
        "step": step,
        "groups": setting.groups,
        "launches": {name: sum(tally.values()) for name, tally in counts.items()},
        "by name": {name: dict(sorted(tally.items())) for name, tally in counts.items()},
        "host_us": {name: round(value * 1e6, 1) for name, value in seconds.items()},
    }


def measured(repeats: int) -> dict[str, Any]:
    rows = [
        row(pair, step, replace(setting, **changes), repeats)
        for pair, setting in settings().items()
        for step, changes in STEPS.items()
    ]
    shape = dict(vars(Setting(QWEN_27B, 1, 15, 32)))
    for name in ("delta", "groups", "device", "kernels"):
        del shape[name]
    return {"vllm": compat.vllm_version(), "setting": shape, "rows": rows}


def missed(costs: dict[str, Any]) -> list[str]:
    """Rows in which a step costs more than it may."""
    lines = []
    for cost in costs["rows"]:
        counts, times = cost["launches"], cost["host_us"]
        if counts["replay"] > counts["per_token"] + LAUNCHES_MORE:
            lines.append(f"{cost['pair']}, {cost['step']}: {counts} launches")
        if times["replay"] > times["per_token"] * TIMES_AS_LONG:
            lines.append(f"{cost['pair']}, {cost['step']}: {times} us")
    return lines


def table(costs: dict[str, Any]) -> str:
    title = f"vLLM {costs['vllm']}: launches per step, and microseconds of the host for its metadata"
    lines = [title, "groups  stock ours    stock    ours  commit"]
    for cost in costs["rows"]:
        counts, times = cost["launches"], cost["host_us"]
        numbers = (cost["groups"], *counts.values(), *(round(time) for time in times.values()))
        lines.append(
            "{:6} {:6} {:4} {:8} {:7} {:7}".format(*numbers) + f"  {cost['step']}; {cost['pair']}"
        )
    return "\n".join(lines)


def main(
    also: Annotated[Path | None, typer.Option(help="Python with another release of vLLM.")] = None,
    repeats: Annotated[int, typer.Option(help="Steps that are timed.")] = 300,
    out: Annotated[Path, typer.Option(help="Result.")] = RESULT,
    only_print: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    costs = measured(repeats)
    if only_print:
        print(json.dumps(costs))
        return
    releases = [costs]
    if also is not None:
        command = [also, "-m", "benchmarks.step_launches", "--only-print", "--repeats", str(repeats)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        releases.append(json.loads(printed.splitlines()[-1]))
    out.write_text(json.dumps({"machine": machine(), "releases": releases}, indent=1) + "\n")
    for each in releases:
        print(table(each))
        print("\n".join(missed(each)) or "  All within what was asked.")


if __name__ == "__main__":
    typer.run(main)
