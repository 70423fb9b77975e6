# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/dev/gpu.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.kernel_model import ROOT
from benchmarks.kernel_model.case import TARGETS
from benchmarks.kernel_model.kernel_times import shares_of_vllms
from benchmarks.kernel_model.machine import ARCHS, DEVICES
from benchmarks.kernel_model.results import Data

PAGE = ROOT / "docs/dev/gpu.md"
Row = dict[str, Any]
MOST_K, MANY, ONE = 15, "32", "1"
EVEN = 1.1  # within the model's own error
SHORT = {"shuffles and memory": "MIO"}  # NVIDIA's name of the pipe


def parts(data: Data) -> Iterator[tuple[str, str]]:
    """Name of the markers in the page, and what stands between them."""
    yield "times", times(data, "fp32")
    yield "bf16", times(data, "bf16", ks=(MOST_K,))
    yield "shares", shares()


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    shown = [f"|{'|'.join(head)}|", "|" + "---|" * len(head)]
    return "\n".join(shown + [f"|{'|'.join(map(str, line))}|" for line in lines])


def rows_of(data: Data, **wanted: object) -> list[Row]:
    return [row for row in data["times"] if all(row[name] == value for name, value in wanted.items())]


def schemes(data: Data) -> list[str]:
    found = {scheme: None for row in data["times"] for scheme in row["schemes"]}
    order = ("chunked", "sequential", "per_token", "per_token, fused")
    return [scheme for scheme in order if scheme in found]


def times(data: Data, state: str, ks: Sequence[int] = (7, 15)) -> str:
    rows = [row for row in rows_of(data, target=TARGETS[0].name, tp=1, state=state) if row["k"] in ks]
    names = [name for name in schemes(data) if any(name in row["schemes"] for row in rows)]
    head = ["GPU", "K", "1R+1W", "2R+1W", *names]
    lines = [
        [row["device"], row["k"], f"{row['floors']['1R+1W']:.2f}", f"{row['floors']['2R+1W']:.2f}"]
        + [time_cell(row, name) for name in names]
        for device in DEVICES
        for row in rows
        if row["device"] == device.name
    ]
    return table(head, lines)


def time_cell(row: Row, scheme: str) -> str:
    """Time at many requests, that over 2R+1W, what binds its longest kernel, and time at one."""
    found = row["schemes"].get(scheme)
    if not found:
        return "-"
    many = found[MANY]
    _, binds = max(many["kernels"].values(), key=lambda kernel: kernel[0])
    share = many["us"] / row["floors"]["2R+1W"]
    return f"{many['us']:.2f} ({share:.2f}x, {SHORT.get(binds, binds)}), {found[ONE]['us']:.1f}"


def shares() -> str:
    """Replay's time over vLLM's."""
    ks = (1, 2, 3, 5, 7, 8, 15)
    head = ["GPU", "state", *(f"K={k}" for k in ks)]
    lines = [
        [f"sm_{capability}", state, *(share_cell(capability, k, width) for k in ks)]
        for capability in ARCHS
        for state, width in (("fp32", 4), ("bf16", 2))
    ]
    return table(head, lines)


def share_cell(capability: int, k: int, width: int) -> str:
    found = shares_of_vllms(capability, k=k, state_width=width)
    if found is None:
        return "-"
    low, high = (f"{share:.2f}" for share in found)
    both = low if low == high else f"{low}-{high}"
    return f"**{both}**" if found[1] <= EVEN else both


def written(name: str) -> str:
    """What the page has between the markers of this name."""
    found = _between(name).search(PAGE.read_text(encoding="utf-8"))
    return found[0].strip("\n") if found else ""


def _between(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<=<!-- {name}:begin -->\n).*?(?=<!-- {name}:end -->)", re.DOTALL)


def write_page(data: Data) -> None:
    for name, text in parts(data):
        old = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_between(name).sub(lambda _, new=text: f"{new}\n", old), encoding="utf-8")
