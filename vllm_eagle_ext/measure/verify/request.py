# SPDX-License-Identifier: Apache-2.0
"""What a verification was asked, the engines that it needs, and what it found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from vllm_eagle_ext.draft import Severity
from vllm_eagle_ext.draft.inspection import consequences
from vllm_eagle_ext.errors import sentence
from vllm_eagle_ext.measure.engine.client import refuse_reserved
from vllm_eagle_ext.measure.prompts import PromptSet, read_prompts, token_ids, tokenizer_keywords
from vllm_eagle_ext.options import KEY
from vllm_eagle_ext.start.check import CheckRequest, CheckResult, run_check, usual_k
from vllm_eagle_ext.start.serve import speculative_config

PREFLIGHT = "preflight"
# How much is measured, usually and with --quick.
USUAL: Mapping[str, int] = {"num_prompts": 20, "max_tokens": 64, "samples": 1000}
QUICK: Mapping[str, int] = {"num_prompts": 6, "max_tokens": 48, "samples": 300}
QUICK_ENGINE: Mapping[str, Any] = {"enforce_eager": True}  # no compilation, no CUDA graphs
# Options by which an engine reads a checkpoint otherwise than it says of itself.
OVERRIDES = ("aux_layers", "norm_output", "gate_layout")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    check: CheckRequest  # with target and K
    engine: Mapping[str, Any]  # further keywords of LLM()
    prompts: PromptSet
    max_tokens: int = USUAL["max_tokens"]
    concurrency: int = 1
    samples: int = USUAL["samples"]
    tie_gap: float | None = None  # None: by the target's dtype
    reference: bool | None = None  # None: where the target is small enough

    @property
    def k(self) -> int:
        assert self.check.k is not None
        return self.check.k

    @property
    def target(self) -> str:
        assert self.check.target is not None
        return self.check.target

    @property
    def options(self) -> Mapping[str, Any]:
        return self.check.options

    def overrides(self) -> list[str]:
        return [name for name in OVERRIDES if name in self.options]


def read_verify_request(given: Mapping[str, Any]) -> VerifyRequest:
    """Return the request of the command's options, by name; amounts that are None are the usual ones.

    Raises:
        EagleExtError: draft, target, prompts or a value cannot be used.
    """
    # Amounts and the engine's keywords: what is typed wins over --quick.
    source, quick = given["prompts"], given["quick"]
    refuse_reserved(given["engine"])
    engine = {**(QUICK_ENGINE if quick else {}), **given["engine"]}
    if given["target_revision"]:
        engine["revision"] = given["target_revision"]
    usual = QUICK if quick else USUAL
    amounts: dict[str, Any] = {
        name: usual[name] if given[name] is None else given[name] for name in USUAL
    }
    # Draft and target are checked before the tokenizer loads: a missing folder ends it at once.
    check = CheckRequest(
        engine=engine, options=given["eagle_ext"],
        **{name: given[name] for name in ("draft", "target", "k", "method", "revision")},
    )  # fmt: skip
    checked = run_check(check)
    texts, categories = zip(*read_prompts(source, count=amounts.pop("num_prompts")), strict=True)
    prompts = token_ids(
        texts, checked.target_name, source=source, chat_template=given["chat_template"],
        thinking=given["thinking"], categories=categories, **tokenizer_keywords(engine),
    )  # fmt: skip
    same = ("concurrency", "tie_gap", "reference")
    return VerifyRequest(
        check=replace(
            check, target=checked.target_name, k=check.k or usual_k(checked.inspection.spec)
        ),
        engine=engine, prompts=prompts, **amounts,
        **{name: given[name] for name in same},
    )  # fmt: skip


def plain_arguments(request: VerifyRequest) -> dict[str, Any]:
    """Return the keywords of LLM() without the draft."""
    return {**request.engine, "model": request.target}


def drafted_arguments(request: VerifyRequest, checked: CheckResult, **options: Any) -> dict[str, Any]:
    return {
        **plain_arguments(request),
        "speculative_config": speculative_config(checked),
        "additional_config": {
            **(request.engine.get("additional_config") or {}),
            KEY: {**request.options, **options},
        },
    }


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "FAILED"
    WARNING = "warning"  # worth a look; the exit status does not count it
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    verdict: Verdict
    said: str  # one sentence: the numbers that decided, or the reason
    details: tuple[str, ...] = ()  # further lines
    figures: Mapping[str, Any] = field(default_factory=dict)  # plain JSON


@dataclass(frozen=True, slots=True)
class VerifyReport:
    draft: str
    target: str
    k: int
    checks: tuple[Check, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return int(any(check.verdict is Verdict.FAILED for check in self.checks))


def not_applicable(name: str, reason: str) -> Check:
    return Check(name, Verdict.NOT_APPLICABLE, reason)


def judge_preflight(checked: CheckResult) -> Check:
    inspection, spec = checked.inspection, checked.inspection.spec
    if spec is None and inspection.is_passed_through:
        return not_applicable(PREFLIGHT, "not one of this package's drafts: vLLM serves it unchecked")
    lines: list[str] = []
    for finding in inspection.findings:
        if finding.follows_from is None and finding.severity is not Severity.NOTE:
            problem = finding.problem
            head = f"{finding.severity.value} {finding.rule}: "
            lines.append(head + sentence(problem.field, problem.value))
            lines += [f"  {line}" for line in problem.details]
    if inspection.errors or spec is None:
        count, follow = len(inspection.causes), consequences(inspection.errors)
        errors = f"{count} error{'s' * (count > 1)}" + (f", {follow}" if follow else "")
        said = f"The draft would be refused: {errors}."
    else:
        layer_ids = spec.aux_layers.by_block
        inputs = f", inputs of layers {layer_ids} of {checked.target.num_layers}."
        said = spec.title + inputs * bool(layer_ids)
    verdict = Verdict.FAILED if inspection.errors else Verdict.PASSED
    findings = [{"rule": each.rule, "severity": each.severity.value} for each in inspection.findings]
    return Check(PREFLIGHT, verdict, said, tuple(lines), {"findings": findings})
