# SPDX-License-Identifier: Apache-2.0
"""Reads what only `vllm-eagle tune` is asked: which K, at which numbers of requests and contexts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vllm_eagle_ext.engine_rules.cache_groups import has_fixed_blocks
from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.bench.engines import most_steps
from vllm_eagle_ext.measure.bench.request import (
    BenchRequest,
    Prompts,
    require_room,
    require_served,
    same_of,
)
from vllm_eagle_ext.measure.bench.results import ADAPTIVE_KEY, SCHEDULE_KEY, Settings
from vllm_eagle_ext.measure.engine.client import refuse_reserved
from vllm_eagle_ext.measure.prompts import PromptSet, read_texts, token_ids, tokenizer_keywords
from vllm_eagle_ext.measure.tokenizer import Tokenizer
from vllm_eagle_ext.preflight.check import CheckRequest, CheckResult, run_check
from vllm_eagle_ext.preflight.platforms import usual_k

USUAL_REQUESTS = (1, 2, 4, 8, 16, 32)
_DENSE, _SPREAD = 4, 1.5  # every K up to the first; further ones so many times as long
# Keys of speculative_config that choose how much is drafted or verified, as this command does.
_CHOSEN = (SCHEDULE_KEY, ADAPTIVE_KEY)


def resolve_tune(request: BenchRequest) -> tuple[Settings, Prompts]:
    """Return settings with nothing left open, and the token ids of the prompts by context.

    Raises:
        EagleExtError: a draft that would be refused, or an option with a value that cannot be used.
    """
    # The draft at each K, as `check` sees it.
    refuse_reserved(request.engine)
    _refuse_chosen(request)
    asked, checked = _checked_draft(request)
    ks = _lengths(request, asked.k or 0, checked)
    if request.adaptive:
        _refuse_adaptive(checked)
    # The prompts, and room for the steps.
    levels = _levels(request)
    found, read = _prompts_by_context(request, max(levels))
    limit = request.engine.get("max_model_len") or checked.target.max_position_embeddings
    require_room(  # for texts that go on until enough steps of the busiest load were timed
        max(len(ids) for prompts in found.values() for ids in prompts),
        most_steps(request.steps, max(levels)) * (max(ks) + 1), limit,
        f"and {request.steps} steps of up to {max(ks) + 1} tokens, next to those in which other prompts "
        "are read", "--context or --steps",
    )  # fmt: skip
    return Settings(
        **same_of(request, read, found, {asked.draft: checked}),
        command="tune",
        kinds=["none", "ours"],
        ks=ks,
        concurrency=levels,
        contexts=sorted(found),
        together=_runs_on_cpu() if request.together is None else request.together,
        steps=request.steps,
        surface_only=request.surface_only,
        adaptive=request.adaptive,
        ignore_eos=True,
    ), found


def usual_lengths(k: int) -> list[int]:
    """Return 0, each K up to four, then further apart, and K."""
    found = list(range(min(k, _DENSE) + 1))
    while (longer := int(found[-1] * _SPREAD)) < k:
        found.append(longer)
    return sorted({*found, k})


def with_context(texts: Sequence[str], tokens: Sequence[int], least: int) -> list[str]:
    """Put the texts that come before each one in front of it, until there are enough tokens.

    What is to be answered stays last. Texts of one list begin differently, so that no request finds the
    prefix of another in the cache.

    Args:
        tokens: of each text.
        least: tokens that each result has at least, by that count.
    """
    return [_extended(texts, tokens, place, least) for place in range(len(texts))]


def _extended(texts: Sequence[str], tokens: Sequence[int], place: int, least: int) -> str:
    parts, have = [texts[place]], tokens[place]
    while have < least:
        place = (place - 1) % len(texts)
        parts.append(texts[place])
        have += max(1, tokens[place])
    return "\n\n".join(reversed(parts))


def _lengths(request: BenchRequest, k: int, checked: CheckResult) -> list[int]:
    spec = checked.inspection.spec
    asked = checked.draft_request
    has_blocks = spec is not None and has_fixed_blocks(
        asked.method, asked.runner, is_parallel=asked.parallel_drafting
    )
    if request.ks is None:
        return [0, k] if has_blocks else usual_lengths(k)
    found = sorted({0, *request.ks})
    if found[-1] != k:
        raise SpeculativeConfigError(
            field="--lengths", value=list(request.ks), allowed=f"lengths from 0 to {k}, with {k} among "
            "them", remedy=f"name lengths up to {k}, or another -k, or leave the option out",
        )  # fmt: skip
    if has_blocks and len(found) > 2:
        raise SpeculativeConfigError(
            field="--lengths", value=list(request.ks),
            allowed=f"0 and {k}: one engine holds every K, and vLLM's V1 runner always makes {k} tokens "
            "of an EAGLE-3 draft with parallel_drafting",
            remedy="leave the option out, or tune again with another -k",
        )  # fmt: skip
    return found


def _levels(request: BenchRequest) -> list[int]:
    """List the numbers of requests; the usual ones end at max_num_seqs, or at the number of prompts."""
    seats = request.engine.get("max_num_seqs")
    if request.concurrency is None:
        most = min(seats or max(USUAL_REQUESTS), request.num_prompts or max(USUAL_REQUESTS))
        return [level for level in USUAL_REQUESTS if level <= most]
    if seats and max(request.concurrency) > seats:
        raise SpeculativeConfigError(
            field="--concurrency", value=max(request.concurrency),
            allowed=f"at most max_num_seqs, {seats}",
            remedy="leave the larger ones out, or raise max_num_seqs in --engine",
        )  # fmt: skip
    return sorted(set(request.concurrency))


def _refuse_chosen(request: BenchRequest) -> None:
    if taken := [key for key in _CHOSEN if key in request.speculative]:
        raise SpeculativeConfigError(
            field="--speculative", value=taken, allowed="keys that do not choose how much is drafted",
            remedy="leave them out: this command finds the schedule, and --adaptive measures vLLM's "
            "adaptive verification",
        )  # fmt: skip
    if request.eagle_ext.get("enabled") is False:
        raise SpeculativeConfigError(
            field="--eagle-ext: enabled", value=False, allowed="true",
            remedy="leave it out: what is measured is this package",
        )  # fmt: skip


def _checked_draft(request: BenchRequest) -> tuple[CheckRequest, CheckResult]:
    """Return the check of the largest K, and what was asked for it."""
    asked = CheckRequest(
        engine=request.engine, draft=request.drafts[0], draft_field="DRAFT", target=request.target,
        k=request.k, method=request.method, options=request.eagle_ext,
    )  # fmt: skip
    result = run_check(asked)
    if request.k is None:
        asked = replace(asked, k=usual_k(result.inspection.spec))
        result = run_check(asked)
    require_served(result, f"{asked.draft}, K={asked.k}")
    return asked, result


def _refuse_adaptive(checked: CheckResult) -> None:
    """Refuse --adaptive where vLLM cannot trim drafts.

    It can only on the V2 runner and a GPU, by the graphs that it captures there.

    Raises:
        SpeculativeConfigError: it cannot be had here.
    """
    platform, runner = checked.platform, checked.draft_request.runner or "v2"
    if (platform, runner) != ("cuda", "v2"):
        raise SpeculativeConfigError(
            field="--adaptive", value=True,
            allowed=f"on a GPU and the V2 runner, whose CUDA graphs take drafts of any length; here are "
            f"{platform} and {runner.upper()}",
            remedy="leave it out; a schedule of K is found on either runner",
        )  # fmt: skip


def _prompts_by_context(request: BenchRequest, most: int) -> tuple[Prompts, PromptSet]:
    texts = read_texts(request.prompts, count=request.num_prompts)
    if most > len(texts):
        raise SpeculativeConfigError(
            field="--concurrency", value=most, allowed=f"at most the {len(texts)} prompts",
            remedy="give more --prompts: repeated ones would be found in the prefix cache",
        )  # fmt: skip
    keywords = tokenizer_keywords(request.engine)
    with Tokenizer(request.target, **keywords) as tokenizer:
        tokens = [len(ids) for ids in tokenizer.ids(texts)]
    found = {}
    for context in sorted(set(request.contexts)):
        read = token_ids(
            with_context(texts, tokens, context), request.target, source=request.prompts,
            chat_template=request.chat_template, thinking=request.thinking, **keywords,
        )  # fmt: skip
        found[context] = read.ids
    return found, read


def _runs_on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
