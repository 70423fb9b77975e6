# SPDX-License-Identifier: Apache-2.0
"""`vllm-eagle verify --gate-layouts`: which layout a gated draft was published in, by acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from vllm_eagle_ext.checkpoint import Inspection
from vllm_eagle_ext.checkpoint.gate import GateLayout
from vllm_eagle_ext.cli.engine.load import Load
from vllm_eagle_ext.cli.verify.request import VerifyRequest, drafted_arguments
from vllm_eagle_ext.errors import SpeculativeConfigError, UnsupportedDraftError

if TYPE_CHECKING:
    from vllm_eagle_ext.cli.check import CheckResult
    from vllm_eagle_ext.cli.verify.run import Stage

LAYOUTS: tuple[GateLayout, ...] = get_args(GateLayout)
_CERTAIN = 4.0  # standard errors between the acceptance rates of the first position
# Below this the better layout drafts badly too, for another reason.
LEAST_RATE = 0.2


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
class LayoutVerdict:
    measured: tuple[Acceptance, ...]
    winner: str | None  # None: too close to tell
    options: Mapping[str, Any] = field(default_factory=dict)  # that were given beside the layout

    @property
    def is_low(self) -> bool:
        return max(row.rates[0] for row in self.measured) < LEAST_RATE

    def to_json(self) -> dict[str, Any]:
        rows = [{**asdict(a), "rates": a.rates, "tau": a.tau} for a in self.measured]
        return {"measured": rows, "winner": self.winner}


def require_gate(inspection: Inspection, draft: str) -> None:
    """Raises:
    UnsupportedDraftError: the draft would be refused, or has no gate in q_proj, so that there is no
        layout to tell.
    """
    if inspection.errors:
        problem = inspection.errors[0].problem
        raise UnsupportedDraftError(
            field=problem.field, value=problem.value, allowed=problem.allowed, remedy=problem.remedy
        )
    gate = inspection.spec.gate if inspection.spec else None
    if gate is None or gate.module != "q_proj":
        raise UnsupportedDraftError(
            field=f"gate of the draft {draft!r}",
            value=gate and str(gate),
            allowed="one whose rows are in q_proj",
            remedy="nothing: other drafts have no gate_layout; `vllm-eagle check` says what it is",
        )


def verify_gate_layouts(
    request: VerifyRequest, checked: CheckResult, folder: Path, stage: Stage
) -> LayoutVerdict:
    """Run the same prompts under each layout, each in an engine of its own.

    Raises:
        EngineFailedError: an engine stopped; its last lines are the message.
        SpeculativeConfigError: nothing was drafted.
    """
    from vllm_eagle_ext.cli.verify.run import fitted

    request = fitted(request, stage)
    measured = tuple(_measure(layout, request, checked, folder, stage) for layout in LAYOUTS)
    return LayoutVerdict(measured, winner(measured), request.options)


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
    layout: GateLayout, request: VerifyRequest, checked: CheckResult, folder: Path, stage: Stage
) -> Acceptance:
    from vllm_eagle_ext.cli.verify.run import load_in, start

    arguments = drafted_arguments(request, checked, gate_layout=layout)
    load = Load(request.prompts.ids, request.concurrency, request.max_tokens, ignore_eos=True)
    name = f"the engine with gate_layout {layout!r}"
    with start(name, arguments, folder / f"{layout}.log", stage) as engine:
        found = load_in(engine, load, f"Texts with {layout}", stage)
    if not found.drafts:
        raise SpeculativeConfigError(
            field="drafts of the engine", value=0, allowed="at least one",
            remedy="use longer outputs or more prompts",
        )  # fmt: skip
    return Acceptance(layout, found.drafts, tuple(found.accepted))
