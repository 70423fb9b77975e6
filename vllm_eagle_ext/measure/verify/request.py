# SPDX-License-Identifier: Apache-2.0
"""What a verification was asked, and the engines that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm_eagle_ext.measure.engine.client import refuse_reserved
from vllm_eagle_ext.measure.prompts import PromptSet, read_prompts, token_ids, tokenizer_keywords
from vllm_eagle_ext.measure.verify.texts import TIE_GAP, TIE_GAP_FLOAT32
from vllm_eagle_ext.memory.state_blocks import REPLAYING_TARGETS
from vllm_eagle_ext.options import KEY
from vllm_eagle_ext.start.check import CheckRequest, CheckResult, run_check, usual_k
from vllm_eagle_ext.start.serve import speculative_config

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
    texts = read_prompts(source, count=amounts.pop("num_prompts"))
    prompts = token_ids(
        [text for text, _ in texts], checked.target_name, source=source,
        chat_template=given["chat_template"], thinking=given["thinking"], **tokenizer_keywords(engine),
    )  # fmt: skip
    prompts = replace(prompts, categories=[category for _, category in texts])
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


def tie_bound(request: VerifyRequest) -> float:
    """Return the gap up to which logits are tied.

    vLLM serves a float32 checkpoint in 16 bit, unless told otherwise.
    """
    if request.tie_gap is not None:
        return request.tie_gap
    return TIE_GAP_FLOAT32 if request.engine.get("dtype") in ("float32", "float") else TIE_GAP


def has_recurrent_state(target: Mapping[str, Any]) -> bool:
    """Say whether a config.json names a target whose recurrent state this package knows."""
    return any(name in REPLAYING_TARGETS for name in target.get("architectures") or ())
