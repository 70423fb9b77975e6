# SPDX-License-Identifier: Apache-2.0
"""Which reading of a checkpoint is right where its files leave it open, by acceptance.

`vllm-eagle verify --gate-layouts`: the layout of a gated draft's q_proj, which decides every drafted
token. `--feedback`: the state that a draft feeds back to itself, normalised or raw, on which the second
and later tokens hang: the first is drafted alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from vllm_eagle_ext.draft import DraftSpec, Inspection
from vllm_eagle_ext.draft.attention import GateLayout
from vllm_eagle_ext.errors import SpeculativeConfigError, UnsupportedDraftError
from vllm_eagle_ext.measure.engine.load import Load
from vllm_eagle_ext.measure.verify import run
from vllm_eagle_ext.measure.verify.acceptance import CERTAIN, is_enough
from vllm_eagle_ext.measure.verify.request import VerifyRequest, drafted_arguments
from vllm_eagle_ext.start.serve import as_decided

if TYPE_CHECKING:
    from vllm_eagle_ext.start.check import CheckResult


@dataclass(frozen=True, slots=True)
class Question:
    """What a checkpoint can leave open, and the option that answers it."""

    option: str  # of eagle_ext
    values: tuple[str | bool, ...]
    position: int  # drafted token, from 0, that is the first to hang on the answer
    allowed: str
    remedy: str
    is_open: Callable[[DraftSpec], bool]


GATE_LAYOUT = Question(
    option="gate_layout", values=get_args(GateLayout), position=0,
    allowed="one whose rows are in q_proj",
    remedy="nothing: other drafts have no gate_layout; `vllm-eagle check` says what it is",
    is_open=lambda spec: spec.gate is not None and spec.gate.module == "q_proj",
)  # fmt: skip
FEEDBACK = Question(
    option="norm_output", values=(True, False), position=1,
    allowed="EAGLE-3, whose drafts feed a state back to themselves from token to token",
    remedy="nothing: other drafts make all tokens in one pass, and norm_output changes none of them",
    is_open=lambda spec: spec.family.has_flags and not spec.family.drafts_in_parallel,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Acceptance:
    value: str | bool  # of the option
    drafts: int
    accepted: tuple[int, ...]  # per position

    @property
    def rates(self) -> list[float]:
        return [count / self.drafts for count in self.accepted]

    @property
    def acceptance_length(self) -> float:
        """Return the tokens per step of the target, the bonus token included."""
        return 1 + sum(self.rates)

    def tried(self, position: int) -> int:
        """Count the drafts whose token at a position was looked at: all before it were accepted."""
        return self.accepted[position - 1] if position else self.drafts

    def share(self, position: int) -> float:
        """Compute how many of the drafts tried at a position were accepted."""
        tried = self.tried(position)
        return self.accepted[position] / tried if tried else 0.0

    def error(self, position: int) -> float:
        """Return the share's standard error; a success and a failure are added, so it is never 0."""
        tried = self.tried(position)
        rate = (self.accepted[position] + 1) / (tried + 2)
        return sqrt(rate * (1 - rate) / max(tried, 1))


@dataclass(frozen=True, slots=True)
class Comparison:
    question: Question
    measured: tuple[Acceptance, ...]
    options: Mapping[str, Any] = field(default_factory=dict)  # that were given with it

    @property
    def best(self) -> Acceptance | None:
        """Return the reading whose token at the position that hangs on it is accepted more often.

        It must be more than chance explains; None: too close to tell. Tokens are taken for independent,
        which those of one prompt are not quite: hence CERTAIN.
        """
        at = self.question.position
        first, second = sorted(self.measured, key=lambda reading: reading.share(at), reverse=True)[:2]
        error = sqrt(first.error(at) ** 2 + second.error(at) ** 2)
        return first if first.share(at) - second.share(at) > CERTAIN * error else None

    @property
    def is_low(self) -> bool:
        """Return whether even the better reading drafts badly, for another reason."""
        return not any(is_enough(reading.rates) for reading in self.measured)

    def to_json(self) -> dict[str, Any]:
        at, best = self.question.position, self.best
        rows = [
            {
                "value": each.value, "drafts": each.drafts, "accepted": list(each.accepted),
                "rates": each.rates, "acceptance_length": each.acceptance_length,
                "share": each.share(at), "error": each.error(at),
            }
            for each in self.measured
        ]  # fmt: skip
        return {
            "option": self.question.option, "position": at + 1, "measured": rows,
            "winner": best.value if best else None,
        }  # fmt: skip


def require_open(question: Question, inspection: Inspection, request: VerifyRequest) -> None:
    """Refuse a draft that leaves nothing open.

    Raises:
        UnsupportedDraftError: the draft would be refused, or does not leave the question open.
        SpeculativeConfigError: K is too small for the readings to differ.
    """
    if inspection.errors:
        problem = inspection.errors[0].problem
        raise UnsupportedDraftError(
            field=problem.field, value=problem.value, allowed=problem.allowed, remedy=problem.remedy
        )
    spec, draft = inspection.spec, request.check.draft
    if spec is None or not question.is_open(spec):
        raise UnsupportedDraftError(
            field=f"{question.option} of the draft {draft!r}", value=spec and (spec.gate or spec.title),
            allowed=question.allowed, remedy=question.remedy,
        )  # fmt: skip
    if request.k <= question.position:
        raise SpeculativeConfigError(
            field="num_speculative_tokens", value=request.k,
            allowed=f"at least {question.position + 1}: before, {question.option} changes no token",
            remedy=f"use -k {question.position + 1} or more",
        )  # fmt: skip


def measure(
    question: Question, request: VerifyRequest, checked: CheckResult, folder: Path, stage: run.Stage
) -> Comparison:
    """Run the same prompts under each reading, each in an engine of its own.

    Raises:
        EngineFailedError: an engine stopped; its last lines are the message.
        SpeculativeConfigError: nothing was drafted.
    """
    option = question.option
    request = run.fitted(replace(request, engine=as_decided(request.engine, [checked])), stage)
    load = Load(request.prompts.ids, request.concurrency, request.max_tokens, ignore_eos=True)
    accepted = []
    for value in question.values:
        reading = f"{option} {json.dumps(value)}"
        log = folder / f"{option}_{str(value).lower()}.log"
        arguments = drafted_arguments(request, checked, **{option: value})
        with run.start(f"the engine with {reading}", arguments, log, stage) as engine:
            measured = run.load_in(engine, load, f"Texts with {reading}", stage)
        if not measured.drafts:
            raise SpeculativeConfigError(
                field="drafts of the engine", value=0, allowed="at least one",
                remedy="use longer outputs or more prompts",
            )  # fmt: skip
        accepted.append(Acceptance(value, measured.drafts, tuple(measured.accepted)))
    others = {name: value for name, value in request.options.items() if name != option}
    return Comparison(question, tuple(accepted), others)
