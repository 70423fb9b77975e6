# SPDX-License-Identifier: Apache-2.0
"""What was asked of `vllm-eagle tune`, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from vllm_eagle_ext.errors import SpeculativeConfigError
from vllm_eagle_ext.measure.bench.results import sha256_of
from vllm_eagle_ext.measure.engine.arguments import refuse_reserved, require_served
from vllm_eagle_ext.measure.engine.held_length import schedule_of
from vllm_eagle_ext.measure.prompts import load_tokenizer, read_texts, token_ids
from vllm_eagle_ext.measure.tune.context_prompts import with_context
from vllm_eagle_ext.measure.tune.results import ADAPTIVE_KEY, SCHEDULE_KEY, TuneSettings
from vllm_eagle_ext.preflight.fixed_blocks import has_fixed_blocks
from vllm_eagle_ext.preflight.offline.run import CheckRequest, CheckResult, run_check
from vllm_eagle_ext.preflight.offline.serve import as_decided, speculative_config, usual_k

USUAL_REQUESTS = (1, 2, 4, 8, 16, 32)
_DENSE, _SPREAD = 4, 1.5  # every K up to the first; further ones so many times as long
# Keys of speculative_config that choose how much is drafted or verified, as this command does.
_CHOSEN = (SCHEDULE_KEY, ADAPTIVE_KEY)
Prompts = Mapping[int, list[list[int]]]  # by context


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    draft: str
    target: str
    k: int | None = None
    lengths: Sequence[int] | None = None
    requests: Sequence[int] | None = None
    contexts: Sequence[int] = (64, 512)
    rounds: int = 6
    steps: int = 24
    together: bool | None = None  # None: on a CPU
    surface_only: bool = False
    adaptive: bool = False
    prompts: str | None = None
    dataset_path: str | None = None
    num_prompts: int | None = None
    chat_template: bool | None = None
    thinking: bool | None = None
    temperature: float = 0.0
    seed: int = 0
    method: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    speculative: Mapping[str, Any] = field(default_factory=dict)
    eagle_ext: Mapping[str, Any] = field(default_factory=dict)


def settle_tune(request: TuneRequest) -> tuple[TuneSettings, Prompts]:
    """Settings with nothing left open, and the token ids of the prompts by context.

    Raises:
        EagleExtError: a draft that would be refused, or an option with a value that cannot be used.
    """
    refuse_reserved(request.engine)
    _refuse_chosen(request)
    checked = _checked_draft(request)
    served = speculative_config(checked)
    lengths = _lengths(request, served["num_speculative_tokens"], checked)
    _check_as_started(request, lengths, checked)
    levels = _levels(request)
    found, read = _prompts_by_context(request, max(levels))
    limit = request.engine.get("max_model_len") or checked.target.max_position_embeddings
    _require_room_for_steps(request, found, max(lengths), max(levels), limit)
    same = (
        "target",
        "draft",
        "rounds",
        "steps",
        "surface_only",
        "adaptive",
        "temperature",
        "seed",
    )
    return TuneSettings(
        **{name: getattr(request, name) for name in same},
        speculative={**request.speculative, **served, "num_speculative_tokens": max(lengths)},
        lengths=lengths,
        requests=levels,
        contexts=sorted(found),
        together=_runs_on_cpu() if request.together is None else request.together,
        prompts=read.source,
        num_prompts=len(read.ids),
        prompts_sha256=sha256_of([ids for context in sorted(found) for ids in found[context]]),
        prompt_tokens={context: median(map(len, ids)) for context, ids in found.items()},
        chat_template=read.chat_template,
        thinking=read.thinking,
        engine=as_decided(request.engine, [checked]),
        eagle_ext=dict(request.eagle_ext),
    ), found


def usual_lengths(k: int) -> list[int]:
    """Return 0, each K up to four, then further apart, and K."""
    found = list(range(min(k, _DENSE) + 1))
    while (longer := int(found[-1] * _SPREAD)) < k:
        found.append(longer)
    return sorted({*found, k})


def _lengths(request: TuneRequest, k: int, checked: CheckResult) -> list[int]:
    has_blocks = _has_fixed_blocks(checked)
    if request.lengths is None:
        return [0, k] if has_blocks else usual_lengths(k)
    found = sorted({0, *request.lengths})
    if found[0] < 0 or found[-1] != k:
        raise SpeculativeConfigError(
            field="--lengths", value=list(request.lengths),
            allowed=f"lengths from 0 to {k}, with {k} among them",
            remedy=f"name lengths up to {k}, or another -k, or leave the option out",
        )  # fmt: skip
    if has_blocks and len(found) > 2:
        raise SpeculativeConfigError(
            field="--lengths", value=list(request.lengths),
            allowed=f"0 and {k}: one engine holds every K, and vLLM's V1 runner always makes {k} tokens "
            "of an EAGLE-3 draft with parallel_drafting",
            remedy="leave the option out, or tune again with another -k",
        )  # fmt: skip
    return found


def _has_fixed_blocks(checked: CheckResult) -> bool:
    spec = checked.inspection.spec
    return spec is not None and has_fixed_blocks(
        spec.method, in_parallel=spec.record.asks_for_parallel_drafting, runner=checked.start.runner
    )


def _levels(request: TuneRequest) -> list[int]:
    """Numbers of requests; the usual ones end at max_num_seqs, or at the number of prompts."""
    seats = request.engine.get("max_num_seqs")
    if request.requests is None:
        most = min(seats or max(USUAL_REQUESTS), request.num_prompts or max(USUAL_REQUESTS))
        return [level for level in USUAL_REQUESTS if level <= most]
    if seats and max(request.requests) > seats:
        raise SpeculativeConfigError(
            field="--concurrency", value=max(request.requests), allowed=f"at most max_num_seqs, {seats}",
            remedy="leave the larger ones out, or raise max_num_seqs in --engine",
        )  # fmt: skip
    return sorted(set(request.requests))


def _refuse_chosen(request: TuneRequest) -> None:
    if taken := [key for key in _CHOSEN if key in request.speculative]:
        raise SpeculativeConfigError(
            field="--speculative", value=taken, allowed="keys that do not choose how much is drafted",
            remedy="leave them out: this command finds the schedule, and --adaptive measures vLLM's "
            "adaptive verification",
        )  # fmt: skip
    if not request.eagle_ext.get("enabled", True):
        raise SpeculativeConfigError(
            field="--eagle-ext: enabled", value=False, allowed="true",
            remedy="leave it out: what is measured is this package",
        )  # fmt: skip


def _checked_draft(request: TuneRequest) -> CheckResult:
    asked = CheckRequest.for_engine(
        request.engine, draft=request.draft, draft_field="DRAFT", target=request.target, k=request.k,
        method=request.method, options=request.eagle_ext,
    )  # fmt: skip
    result = run_check(asked)
    if request.k is None:
        result = run_check(replace(asked, k=usual_k(result.inspection.spec)))
    require_served(result, f"{request.draft}, K={result.request.k}")
    return result


def _check_as_started(request: TuneRequest, lengths: list[int], checked: CheckResult) -> None:
    """Check what is started beyond one K: engines that hold every length, and of --adaptive.

    Raises:
        UnsupportedDraftError: a start would refuse it.
    """
    asked = CheckRequest.for_engine(
        request.engine, draft=request.draft, draft_field="DRAFT", target=request.target, k=max(lengths),
        method=request.method, options=request.eagle_ext,
        speculative={**request.speculative, SCHEDULE_KEY: list(map(list, schedule_of(lengths)))},
    )  # fmt: skip
    require_served(run_check(asked), f"--lengths {','.join(map(str, lengths))}")
    if request.adaptive:
        _refuse_adaptive(checked)
        key = {**request.speculative, ADAPTIVE_KEY: True}
        require_served(run_check(replace(asked, speculative=key)), "--adaptive")


def _refuse_adaptive(checked: CheckResult) -> None:
    """Refuse what vLLM can trim on the V2 runner and a GPU alone, by the graphs that it captures there.

    Raises:
        SpeculativeConfigError: it cannot be had here.
    """
    platform, runner = checked.start.platform.name, checked.start.runner
    if (platform, runner) != ("cuda", "v2"):
        raise SpeculativeConfigError(
            field="--adaptive", value=True,
            allowed=f"on a GPU and the V2 runner, whose CUDA graphs take drafts of any length; here are "
            f"{platform} and {runner.upper()}",
            remedy="leave it out; a schedule of K is found on either runner",
        )  # fmt: skip


def _prompts_by_context(request: TuneRequest, most: int) -> tuple[dict[int, list[list[int]]], Any]:
    texts = read_texts(
        request.prompts, count=request.num_prompts, dataset_path=request.dataset_path,
        target=request.target, seed=request.seed,
    )  # fmt: skip
    if most > len(texts):
        raise SpeculativeConfigError(
            field="--concurrency", value=most, allowed=f"at most the {len(texts)} prompts",
            remedy="give more --prompts: repeated ones would be found in the prefix cache",
        )  # fmt: skip
    trust = bool(request.engine.get("trust_remote_code"))
    tokenizer = load_tokenizer(request.target, trust)
    tokens = [len(tokenizer(text)["input_ids"]) for text in texts]
    found = {}
    for context in sorted(set(request.contexts)):
        read = token_ids(
            with_context(texts, tokens, context), request.target, source=request.prompts,
            chat_template=request.chat_template, thinking=request.thinking, trust_remote_code=trust,
        )  # fmt: skip
        found[context] = read.ids
    return found, read


def _require_room_for_steps(
    request: TuneRequest, found: Prompts, k: int, most: int, limit: int | None
) -> None:
    """Require room for texts that go on until enough steps of the busiest load were timed."""
    longest = max(len(ids) for prompts in found.values() for ids in prompts)
    needed = longest + most_steps(request.steps, most) * (k + 1)
    if limit is not None and needed > limit:
        raise SpeculativeConfigError(
            field="max_model_len", value=limit,
            allowed=f"at least {needed}: {longest} tokens of the longest prompt, and {request.steps} "
            f"steps of up to {k + 1} tokens beside those in which other prompts are read",
            remedy="shorten --context or --steps, or raise max_model_len in --engine",
        )  # fmt: skip


def most_steps(timed: int, requests: int) -> int:
    """Steps that the first of these requests may go on for: others' prompts may be read meanwhile."""
    return timed + 4 + requests // 2


def _runs_on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
