# SPDX-License-Identifier: Apache-2.0
"""What was asked of `vllm-eagle bench`, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vllm_eagle_ext.errors import SpeculativeConfigError, UnsupportedDraftError
from vllm_eagle_ext.measure.bench.results import (
    ADAPTIVE_KEY,
    KINDS,
    SCHEDULE_KEY,
    ComparedKind,
    Settings,
    sha256_of,
)
from vllm_eagle_ext.measure.engine.client import refuse_reserved
from vllm_eagle_ext.measure.engine.machine import nodes
from vllm_eagle_ext.measure.prompts import (
    BUILT_IN,
    PromptSet,
    random_ids,
    read_prompts,
    token_ids,
    tokenizer_keywords,
)
from vllm_eagle_ext.measure.tokenizer import Tokenizer
from vllm_eagle_ext.start.check import CheckRequest, CheckResult, run_check, usual_k
from vllm_eagle_ext.start.rules.cache_groups import has_fixed_blocks
from vllm_eagle_ext.start.serve import as_decided, speculative_config

USUAL_REQUESTS = (1, 2, 4, 8, 16, 32)  # of --schedule
_USUAL_PROMPTS = 20
_DENSE, _SPREAD = 4, 1.5  # every K up to the first; further ones so many times as long
Prompts = Mapping[int, list[list[int]]]  # by context


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """What the command takes."""

    target: str
    drafts: Sequence[str]
    schedule: bool = False  # time steps of every K, and find the schedule that pays
    ks: Sequence[int] | None = None  # None: 3; of --schedule those that are usual for the draft
    concurrency: Sequence[int] | None = None  # None: 1; of --schedule USUAL_REQUESTS
    rounds: int | None = None  # None: 3; of --schedule 6
    together: bool | None = None  # None: of --schedule on a CPU
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
    # Of whole texts.
    repeats: int = 1
    prompt_tokens: int | None = None  # random ids of this length, with dummy weights
    max_tokens: int = 128
    ignore_eos: bool = False
    synthetic_acceptance: Sequence[float] = ()
    dummy: bool = False
    kinds: Sequence[ComparedKind] = KINDS
    # Of --schedule, which times steps of decoding.
    contexts: Sequence[int] = (64, 512)
    steps: int = 24
    surface_only: bool = False
    adaptive: bool = False


def resolve(request: BenchRequest) -> tuple[Settings, Prompts]:
    """Return settings with nothing left open, and the token ids of the prompts by context.

    Raises:
        EagleExtError: a draft that would be refused, or an option with a value that cannot be used.
    """
    is_schedule = request.schedule
    # The drafts at each K, as `check` sees them.
    refuse_reserved(request.engine)
    _require_drafts(request)
    ks = sorted(set(request.ks or (() if is_schedule or not request.drafts else (3,))))
    # Of --schedule one engine serves every K, with the largest as its own.
    asked = ks[-1:] if is_schedule else ks
    checked = {draft: _checked(draft, request, asked) for draft in dict.fromkeys(request.drafts)}
    if is_schedule:
        (result,) = checked.values()
        ks = _swept_ks(ks, result)
        if request.adaptive:
            _require_adaptive(result)
    # The prompts, and room for their texts.
    levels = _levels(request)
    prompts, read = _prompts(request, levels)
    _require_prompts(request, len(read.ids), max(levels))
    _require_room(request, checked, prompts, max(ks, default=0), max(levels))
    served = {
        draft: {**request.speculative, **speculative_config(result)} for draft, result in checked.items()
    }
    for config in served.values():
        config.pop("num_speculative_tokens", None)
    texts = [ids for context in sorted(prompts) for ids in prompts[context]]
    kinds: list[ComparedKind] = [kind for kind in KINDS if kind in request.kinds]
    on_cpu = is_schedule and bool(nodes())
    return Settings(
        target=request.target,
        drafts=list(checked),
        served=served,
        kinds=["none", "ours"] if is_schedule else kinds,
        ks=ks,
        concurrency=levels,
        contexts=sorted(prompts),
        repeats=request.repeats,
        rounds=request.rounds or (6 if is_schedule else 3),
        together=on_cpu if request.together is None else request.together,
        max_tokens=0 if is_schedule else request.max_tokens,
        steps=request.steps if is_schedule else 0,
        surface_only=request.surface_only,
        adaptive=request.adaptive,
        temperature=request.temperature,
        seed=request.seed,
        ignore_eos=is_schedule or request.ignore_eos or request.dummy,
        prompts=read.source,
        num_prompts=len(read.ids),
        prompts_sha256=sha256_of(texts),
        categories=[] if is_schedule else read.categories,
        chat_template=read.chat_template,
        thinking=read.thinking,
        engine=as_decided(request.engine, checked.values()),
        eagle_ext=dict(request.eagle_ext),
        synthetic_acceptance=_synthetic(request, max(ks, default=0)),
        dummy=request.dummy,
    ), prompts


def _require_drafts(request: BenchRequest) -> None:
    if request.schedule and len(request.drafts) != 1:
        raise SpeculativeConfigError(
            field="DRAFT", value=list(request.drafts), allowed="one, with --schedule",
            remedy="find the schedule of each draft by itself",
        )  # fmt: skip
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
    chosen = [key for key in (SCHEDULE_KEY, ADAPTIVE_KEY) if key in request.speculative]
    if request.schedule and chosen:
        raise SpeculativeConfigError(
            field="--speculative", value=chosen, allowed="keys that do not choose how much is drafted",
            remedy="leave them out: --schedule finds the schedule, and --adaptive measures vLLM's "
            "adaptive verification",
        )  # fmt: skip


def _checked(draft: str, request: BenchRequest, ks: Sequence[int]) -> CheckResult:
    """Make the preflight's check of each K, and return what is found for the largest.

    Without a K it is the usual one of the draft.

    Raises:
        UnsupportedDraftError: with the first error that an engine's start would end with, where this
            package was to serve the draft.
    """
    asked = CheckRequest(
        engine=request.engine, draft=draft, target=request.target,
        method=request.method, options=request.eagle_ext, speculative=request.speculative,
    )  # fmt: skip
    for k in ks or [usual_k(run_check(asked).inspection.spec)]:
        result = run_check(replace(asked, k=k))
        if "ours" in request.kinds and (errors := result.inspection.errors):
            first = errors[0].problem
            raise UnsupportedDraftError(
                field=f"DRAFT {draft}, K={k}: {first.field}", value=first.value, allowed=first.allowed,
                remedy=first.remedy,
            )  # fmt: skip
    return result


def _swept_ks(ks: Sequence[int], checked: CheckResult) -> list[int]:
    """List the K that one engine tries, with 0: all that were named, or the usual ones up to a single K.

    Raises:
        SpeculativeConfigError: vLLM's V1 runner makes no number of tokens but K of this draft.
    """
    most, asked = checked.request.k or 0, checked.draft_request
    only_k = checked.inspection.spec is not None and has_fixed_blocks(
        asked.method, asked.runner, is_parallel=asked.parallel_drafting
    )
    if only_k and len(ks) > 1:
        raise SpeculativeConfigError(
            field="-k", value=list(ks),
            allowed="one number: vLLM's V1 runner always makes all tokens of an EAGLE-3 draft with "
            "parallel_drafting",
            remedy="measure each K by itself",
        )  # fmt: skip
    if only_k:
        return [0, most]
    return [0, *ks] if len(ks) > 1 else usual_lengths(most)


def usual_lengths(k: int) -> list[int]:
    """Return 0, each K up to four, then further apart, and K."""
    lengths = list(range(min(k, _DENSE) + 1))
    while (longer := int(lengths[-1] * _SPREAD)) < k:
        lengths.append(longer)
    return sorted({*lengths, k})


def _require_adaptive(checked: CheckResult) -> None:
    """Refuse --adaptive where vLLM cannot trim drafts, which it does by CUDA graphs of the V2 runner.

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


def _levels(request: BenchRequest) -> list[int]:
    """List the numbers of requests; the usual ones end at max_num_seqs, or at the number of prompts."""
    if request.concurrency is not None:
        return sorted(set(request.concurrency))
    if not request.schedule:
        return [1]
    most = max(USUAL_REQUESTS)
    most = min(request.engine.get("max_num_seqs") or most, request.num_prompts or most)
    return [level for level in USUAL_REQUESTS if level <= most]


def _require_prompts(request: BenchRequest, prompts: int, most: int) -> None:
    seats = request.engine.get("max_num_seqs")
    if most > prompts or (seats and most > seats):
        raise SpeculativeConfigError(
            field="--concurrency", value=most,
            allowed=f"at most the {prompts} prompts, and max_num_seqs ({seats or 'not given'})",
            remedy="give more --prompts or --num-prompts: repeated ones would be too easy to draft",
        )  # fmt: skip


def _require_room(
    request: BenchRequest, checked: Mapping[str, CheckResult], prompts: Prompts, k: int, most: int
) -> None:
    """Require room for the longest text, and for the drafts of its last step.

    Past the end stock stops drafting for a whole batch, and a low acceptance would be the draft's fault.
    """
    targets = [result.target.max_position_embeddings for result in checked.values()]
    limit = request.engine.get("max_model_len") or next(iter(targets), None)
    longest = max(len(ids) for own in prompts.values() for ids in own)
    if request.schedule:
        # The first request goes on while the prompts of the others are read.
        beyond = (request.steps + 4 + most // 2) * (k + 1)
        what = f"and {request.steps} steps of up to {k + 1} tokens, next to those that read prompts"
        shorten = "--context or --steps"
    else:
        beyond = request.max_tokens + 2 * (k + 1)
        what = f"--max-tokens {request.max_tokens}, and room for drafts beyond"
        shorten = "the prompts or --max-tokens"
    if limit is not None and longest + beyond > limit:
        raise SpeculativeConfigError(
            field="max_model_len", value=limit,
            allowed=f"at least {longest + beyond}: {longest} tokens of the longest prompt, {what}",
            remedy=f"shorten {shorten}, or raise max_model_len in --engine",
        )  # fmt: skip


def _prompts(request: BenchRequest, levels: Sequence[int]) -> tuple[Prompts, PromptSet]:
    """Return token ids by context, and how they were read."""
    if request.prompt_tokens is not None:
        read = _random_prompts(request, request.prompt_tokens, 2 * max(levels))
        return {0: read.ids}, read
    # Enough texts to tell a good from a broken draft; of a file, and for steps, all are taken.
    count = request.num_prompts
    if request.prompts in (None, BUILT_IN) and count is None and not request.schedule:
        count = max(_USUAL_PROMPTS, *levels)
    texts, categories = zip(*read_prompts(request.prompts, count=count), strict=True)
    # Token ids as they are, or put together to each context.
    keywords = tokenizer_keywords(request.engine)
    tokens = [0] * len(texts)
    if request.schedule:
        with Tokenizer(request.target, **keywords) as tokenizer:
            tokens = [len(ids) for ids in tokenizer.ids(texts)]
    prompts = {}
    for context in sorted(set(request.contexts)) if request.schedule else [0]:
        read = token_ids(
            with_context(texts, tokens, context), request.target, source=request.prompts,
            chat_template=request.chat_template, thinking=request.thinking, **keywords,
        )  # fmt: skip
        prompts[context] = read.ids
    return prompts, replace(read, categories=list(categories))


def with_context(texts: Sequence[str], tokens: Sequence[int], least: int) -> list[str]:
    """Put the texts that come before each one in front of it, until there are enough tokens.

    What is to be answered stays last. Texts of one list begin differently, so that no request finds the
    prefix of another in the cache.

    Args:
        tokens: of each text.
        least: tokens that each result has at least, by that count.
    """
    extended = []
    for place, text in enumerate(texts):
        parts, count = [text], tokens[place]
        before = place
        while count < least:
            before = (before - 1) % len(texts)
            parts.append(texts[before])
            count += max(1, tokens[before])
        extended.append("\n\n".join(reversed(parts)))
    return extended


def _random_prompts(request: BenchRequest, length: int, usual: int) -> PromptSet:
    from vllm_eagle_ext.draft import read_config
    from vllm_eagle_ext.draft.target_facts import text_config

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
