# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle verify --gate-layouts`: which layout a gated draft was published in, by acceptance."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from typing import Any, get_args

from vllm_eagle_ext.checkpoint.gate import GateLayout
from vllm_eagle_ext.errors import EagleExtError, SpeculativeConfigError
from vllm_eagle_ext.options import KEY

LAYOUTS: tuple[GateLayout, ...] = get_args(GateLayout)
_CERTAIN = 4.0  # standard errors between the acceptance rates of the first position


class EngineFailedError(EagleExtError):
    """An engine of a measurement did not reach its end."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    layout: str
    drafts: int
    accepted: tuple[int, ...]  # per position

    @property
    def rates(self) -> list[float]:
        return [count / self.drafts for count in self.accepted]

    @property
    def tau(self) -> float:
        """Tokens per step of the target, the bonus token included."""
        return 1 + sum(self.rates)


@dataclass(frozen=True, slots=True)
class Verdict:
    measured: tuple[Acceptance, ...]
    winner: str | None  # None: too close to tell

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(a), "rates": a.rates, "tau": a.tau} for a in self.measured]
        return {"measured": rows, "winner": self.winner}


def verify_gate_layouts(
    engine: Mapping[str, Any], prompts: Sequence[str], *, max_tokens: int, options: Mapping[str, Any]
) -> Verdict:
    """Run the same prompts under each layout, each in an engine of its own.

    Args:
        engine: keywords of vLLM's LLM, the speculative_config included.
        options: of additional_config.eagle_ext, without the layout.

    Raises:
        EngineFailedError: an engine stopped; its last lines are the message.
        SpeculativeConfigError: nothing was drafted.
    """
    measured = tuple(
        _measure(layout, engine, prompts, max_tokens, {**options, "gate_layout": layout})
        for layout in LAYOUTS
    )
    return Verdict(measured, winner(measured))


def winner(measured: Sequence[Acceptance]) -> str | None:
    """The layout whose first drafted token is accepted more often, by more than chance explains."""
    best, other = sorted(measured, key=lambda a: a.rates[0], reverse=True)[:2]
    error = sqrt(sum(_variance(a) for a in (best, other)))
    return best.layout if best.rates[0] - other.rates[0] > _CERTAIN * error else None


def _variance(acceptance: Acceptance) -> float:
    """Of a rate; one success and one failure are added, so that it is never 0."""
    rate = (acceptance.accepted[0] + 1) / (acceptance.drafts + 2)
    return rate * (1 - rate) / acceptance.drafts


def _measure(
    layout: str,
    engine: Mapping[str, Any],
    prompts: Sequence[str],
    max_tokens: int,
    options: Mapping[str, Any],
) -> Acceptance:
    job = {
        "engine": {**engine, "additional_config": {KEY: dict(options)}},
        "prompts": list(prompts),
        "max_tokens": max_tokens,
    }
    with tempfile.TemporaryDirectory() as folder:
        job_file, result = Path(folder, "job.json"), Path(folder, "result.json")
        job_file.write_text(json.dumps(job))
        command = [sys.executable, "-m", "vllm_eagle_ext.cli.acceptance_run", str(job_file), str(result)]
        process = subprocess.run(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if process.returncode or not result.exists():
            raise EngineFailedError(
                field=f"the engine with gate_layout {layout!r}",
                value=process.returncode,
                allowed="an engine that starts and decodes the prompts",
                remedy="see its last lines:\n" + "\n".join(process.stdout.splitlines()[-15:]),
            )
        found = json.loads(result.read_text())
    if not found["drafts"]:
        raise SpeculativeConfigError(
            field="drafts of the engine", value=0, allowed="at least one",
            remedy="use longer outputs or more prompts",
        )  # fmt: skip
    return Acceptance(layout, found["drafts"], tuple(found["accepted"]))
