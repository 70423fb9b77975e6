# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle verify --gate-layouts`: which layout a gated draft was published in, by acceptance."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any, get_args

from vllm_eagle_ext.checkpoint import Inspection
from vllm_eagle_ext.checkpoint.gate import GateLayout
from vllm_eagle_ext.errors import EagleExtError, SpeculativeConfigError, UnsupportedDraftError
from vllm_eagle_ext.options import KEY

LAYOUTS: tuple[GateLayout, ...] = get_args(GateLayout)
_CERTAIN = 4.0  # standard errors between the acceptance rates of the first position
# Below this the better layout drafts badly too, for another reason.
LEAST_RATE = 0.2
# What these would say is the command's to say.
_RESERVED = ("model", "speculative_config", "additional_config")


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
    options: Mapping[str, Any] = field(default_factory=dict)  # that were given beside the layout

    @property
    def is_low(self) -> bool:
        return max(row.rates[0] for row in self.measured) < LEAST_RATE

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(a), "rates": a.rates, "tau": a.tau} for a in self.measured]
        return {"measured": rows, "winner": self.winner}


def engine_arguments(
    given: Mapping[str, Any], *, target: str, draft: str, k: int, revision: str | None = None
) -> dict[str, Any]:
    """Keywords of LLM(); given: the user's own, as JSON.

    Raises:
        SpeculativeConfigError: one that the command's other options decide.
    """
    if taken := [name for name in _RESERVED if name in given]:
        raise SpeculativeConfigError(
            field="--engine",
            value=taken,
            allowed="other arguments of LLM() than " + ", ".join(_RESERVED),
            remedy="use --target, the draft, -k, --revision and --eagle-ext",
        )
    speculative: dict[str, Any] = {"method": "eagle3", "model": draft, "num_speculative_tokens": k}
    if revision is not None:
        speculative["revision"] = revision
    return {**given, "model": target, "speculative_config": speculative}


def require_gate(inspection: Inspection, draft: str) -> None:
    """Raises:
    UnsupportedDraftError: the draft has no gate in q_proj, so that there is no layout to tell.
    """
    gate = inspection.spec.gate if inspection.spec else None
    if gate is None or gate.module != "q_proj":
        raise UnsupportedDraftError(
            field=f"gate of the draft {draft!r}",
            value=gate and str(gate),
            allowed="one whose rows are in q_proj",
            remedy="nothing: other drafts have no gate_layout; `vllm-eagle check` says what it is",
        )


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
    return Verdict(measured, winner(measured), options)


def winner(measured: Sequence[Acceptance]) -> str | None:
    """The layout whose first drafted token is accepted more often, by more than chance explains.

    Drafts are taken for independent, which those of one prompt are not quite: hence _CERTAIN.
    """
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
