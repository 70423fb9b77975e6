# SPDX-License-Identifier: Apache-2.0
"""What was asked of `vllm-eagle bench` or `tune`, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_eagle_ext.errors import SpeculativeConfigError, UnsupportedDraftError
from vllm_eagle_ext.measure.bench.results import KINDS, ComparedKind, Settings, sha256_of
from vllm_eagle_ext.measure.engine.client import refuse_reserved
from vllm_eagle_ext.measure.prompts import (
    BUILT_IN,
    PromptSet,
    random_ids,
    read_prompts,
    token_ids,
    tokenizer_keywords,
)
from vllm_eagle_ext.preflight.check import CheckRequest, CheckResult, run_check
from vllm_eagle_ext.preflight.serve import as_decided, speculative_config

_USUAL_PROMPTS = 20
Prompts = Mapping[int, list[list[int]]]  # by context


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What both commands take."""

    target: str
    drafts: Sequence[str]
    ks: Sequence[int] | None = None  # None: as usual for the draft
    concurrency: Sequence[int] | None = None  # None: as usual for the engine
    rounds: int = 3
    prompts: str | None = None
    num_prompts: int | None = None
    temperature: float = 0.0
    seed: int = 0
    chat_template: bool | None = None
    thinking: bool | None = None
    method: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    speculative: Mapping[str, Any] = field(default_factory=dict)
    eagle_ext: Mapping[str, Any] = field(default_factory=dict)
    # Of `bench`, which decodes whole texts.
    repeats: int = 1
    together: bool | None = False  # None: on a CPU
    prompt_tokens: int | None = None  # random ids of this length, with dummy weights
    max_tokens: int = 128
    ignore_eos: bool = False
    synthetic_acceptance: Sequence[float] = ()
    dummy: bool = False
    kinds: Sequence[ComparedKind] = KINDS
    # Of `tune`, which times steps of decoding.
    k: int | None = None
    contexts: Sequence[int] = (64, 512)
    steps: int = 24
    surface_only: bool = False
    adaptive: bool = False


def resolve_bench(request: BenchRequest) -> tuple[Settings, Prompts]:
    """Return settings with nothing left open, and the token ids of the prompts.

    Raises:
        EagleExtError: a draft that would be refused, or an option with a value that cannot be used.
    """
    # The drafts at each K, as `check` sees them.
    refuse_reserved(request.engine)
    _require_drafts(request)
    ks, levels = sorted(set(request.ks or ())), sorted(set(request.concurrency or (1,)))
    checked = {draft: _checked(draft, request, ks) for draft in dict.fromkeys(request.drafts)}
    # The prompts, and room for their texts.
    found = _prompts(request, levels)
    limits = [result.target.max_position_embeddings for result in checked.values()]
    limit = request.engine.get("max_model_len") or next(iter(limits), None)
    _require_prompts(request, found, max(levels))
    require_room(
        max(map(len, found.ids)), request.max_tokens + 2 * (max(ks, default=0) + 1), limit,
        f"--max-tokens {request.max_tokens}, and room for drafts beyond", "the prompts or --max-tokens",
    )  # fmt: skip
    settings = Settings(
        **same_of(request, found, {0: found.ids}, checked),
        command="bench",
        kinds=[kind for kind in KINDS if kind in request.kinds],
        ks=ks,
        concurrency=levels,
        repeats=request.repeats,
        together=bool(request.together),
        max_tokens=request.max_tokens,
        ignore_eos=request.ignore_eos or request.dummy,
        synthetic_acceptance=_synthetic(request, max(ks, default=0)),
        dummy=request.dummy,
    )
    return settings, {0: found.ids}


def same_of(
    request: BenchRequest, read: PromptSet, prompts: Prompts, checked: Mapping[str, CheckResult]
) -> dict[str, Any]:
    """Give the settings that both commands find alike."""
    names = ("target", "rounds", "temperature", "seed")
    served = {d: {**request.speculative, **speculative_config(found)} for d, found in checked.items()}
    for config in served.values():
        config.pop("num_speculative_tokens", None)
    return {name: getattr(request, name) for name in names} | {
        "drafts": list(checked),
        "served": served,
        "prompts": read.source,
        "num_prompts": len(read.ids),
        "prompts_sha256": sha256_of([ids for context in sorted(prompts) for ids in prompts[context]]),
        "chat_template": read.chat_template,
        "thinking": read.thinking,
        "categories": read.categories,
        "engine": as_decided(request.engine, checked.values()),
        "eagle_ext": dict(request.eagle_ext),
    }


def _require_drafts(request: BenchRequest) -> None:
    if not request.drafts and set(request.kinds) != {"none"}:
        raise SpeculativeConfigError(
            field="DRAFT", value=None, allowed="at least one, for the variants stock and ours",
            remedy="name a draft, or measure the target without one with --variants none",
        )  # fmt: skip
    if request.eagle_ext.get("enabled") is False:
        raise SpeculativeConfigError(
            field="--eagle-ext: enabled", value=False, allowed="true: ours is with this package",
            remedy="use --variants none,stock to measure vLLM without it",
        )  # fmt: skip


def _checked(draft: str, request: BenchRequest, ks: Sequence[int]) -> CheckResult:
    """Make the preflight's check of each K, and return what is found for the largest.

    Raises:
        UnsupportedDraftError: ours was asked for, and would refuse it.
    """
    for k in ks:
        asked = CheckRequest(
            engine=request.engine, draft=draft, draft_field="DRAFT", target=request.target, k=k,
            method=request.method, options=request.eagle_ext, speculative=request.speculative,
        )  # fmt: skip
        result = run_check(asked)
        if "ours" in request.kinds:
            require_served(result, f"DRAFT {draft}, K={k}")
    return result


def require_served(result: CheckResult, field: str) -> None:
    """Refuse a draft that this package would not serve.

    Args:
        field: what the user typed, for the message.

    Raises:
        UnsupportedDraftError: with the first error that an engine's start would end with.
    """
    if errors := result.inspection.errors:
        first = errors[0].problem
        raise UnsupportedDraftError(
            field=f"{field}: {first.field}", value=first.value, allowed=first.allowed,
            remedy=first.remedy,
        )  # fmt: skip


def _require_prompts(request: BenchRequest, found: PromptSet, most: int) -> None:
    seats = request.engine.get("max_num_seqs")
    if most > len(found.ids) or (seats and most > seats):
        raise SpeculativeConfigError(
            field="--concurrency", value=most,
            allowed=f"at most the {len(found.ids)} prompts, and max_num_seqs ({seats or 'not given'})",
            remedy="give more --prompts or --num-prompts: repeated ones would be too easy to draft",
        )  # fmt: skip


def require_room(longest: int, beyond: int, limit: int | None, what: str, shorten: str) -> None:
    """Require room for the longest text, and for the drafts of its last step; past the end stock stops
    drafting for a whole batch, and a low acceptance would be the draft's fault.

    Args:
        beyond: tokens after the longest prompt, which `what` explains.
        shorten: what the user may shorten.
    """
    if limit is not None and longest + beyond > limit:
        raise SpeculativeConfigError(
            field="max_model_len", value=limit,
            allowed=f"at least {longest + beyond}: {longest} tokens of the longest prompt, {what}",
            remedy=f"shorten {shorten}, or raise max_model_len in --engine",
        )  # fmt: skip


def _prompts(request: BenchRequest, levels: Sequence[int]) -> PromptSet:
    if request.prompt_tokens is not None:
        return _random_prompts(request, request.prompt_tokens, 2 * max(levels))
    count = request.num_prompts
    if request.prompts in (None, BUILT_IN) and count is None:
        # Enough to tell a good from a broken draft; of a file all are taken.
        count = max(_USUAL_PROMPTS, *levels)
    prompts = read_prompts(request.prompts, count=count)
    found = token_ids(
        [text for text, _ in prompts], request.target, source=request.prompts,
        chat_template=request.chat_template, thinking=request.thinking,
        **tokenizer_keywords(request.engine),
    )  # fmt: skip
    return replace(found, categories=[category for _, category in prompts])


def _random_prompts(request: BenchRequest, length: int, usual: int) -> PromptSet:
    from vllm_eagle_ext.checkpoint import read_config
    from vllm_eagle_ext.checkpoint.target_facts import text_config

    if not request.dummy:
        raise SpeculativeConfigError(
            field="--prompt-tokens", value=length, allowed="only with --dummy",
            remedy="give --prompts: drafts of random tokens are accepted as those of no text",
        )  # fmt: skip
    config = read_config(request.target, revision=request.engine.get("revision"))
    vocabulary = config.get("vocab_size") or text_config(config).get("vocab_size")
    if vocabulary is None:
        raise SpeculativeConfigError(
            field="vocab_size of the target", value=None,
            allowed="a number, in config.json or its language model's block",
            remedy="use a target whose config.json has one",
        )  # fmt: skip
    return random_ids(request.num_prompts or usual, length, int(vocabulary), request.seed)


def _synthetic(request: BenchRequest, k: int) -> list[float] | None:
    """Return an acceptance length, or a rate per position of the largest K.

    Raises:
        SpeculativeConfigError: it is neither.
    """
    given = list(request.synthetic_acceptance)
    if not given:
        return None
    rates = all(0 <= rate <= 1 for rate in given) and given == sorted(given, reverse=True)
    if (len(given) == 1 and 1 < given[0] <= k + 1) or (len(given) == k and rates):
        return given
    raise SpeculativeConfigError(
        field="--synthetic-acceptance", value=given,
        allowed=f"one acceptance length above 1 and up to {k + 1}, or {k} falling rates of 0 to 1",
        remedy="give one of them; a smaller K uses the first rates",
    )  # fmt: skip
