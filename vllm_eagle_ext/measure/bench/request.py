# SPDX-License-Identifier: Apache-2.0
"""What was asked of `vllm-eagle bench`, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
# The command's options by name, but for drafts, ks and kinds; what is None has its usual value.
Given = Mapping[str, Any]
_AS_GIVEN = (
    "target", "repeats", "surface_only", "adaptive", "temperature", "seed", "eagle_ext", "dummy",
)  # fmt: skip


def resolve(given: Given) -> tuple[Settings, Prompts]:
    """Return settings with nothing left open, and the token ids of the prompts by context.

    Raises:
        EagleExtError: a draft that would be refused, or an option with a value that cannot be used.
    """
    is_schedule = given["schedule"]
    # The drafts at each K, as `check` sees them.
    refuse_reserved(given["engine"])
    _require_drafts(given)
    ks = sorted(set(given["ks"] or (() if is_schedule or not given["drafts"] else (3,))))
    # Of --schedule one engine serves every K, with the largest as its own.
    own_ks = ks[-1:] if is_schedule else ks
    checked = {draft: _checked(draft, given, own_ks) for draft in dict.fromkeys(given["drafts"])}
    if is_schedule:
        (result,) = checked.values()
        ks = _swept_ks(ks, result)
        if given["adaptive"]:
            _require_adaptive(result)
    # The prompts, and room for their texts.
    levels = _levels(given)
    prompts, read = _prompts(given, levels)
    _require_prompts(given, len(read.ids), max(levels))
    _require_room(given, checked, prompts, max(ks, default=0), max(levels))
    served = {
        draft: {**given["speculative"], **speculative_config(result)}
        for draft, result in checked.items()
    }
    for config in served.values():
        config.pop("num_speculative_tokens", None)
    texts = [ids for context in sorted(prompts) for ids in prompts[context]]
    kinds: list[ComparedKind] = [kind for kind in KINDS if kind in given["kinds"]]
    on_cpu = is_schedule and bool(nodes())
    return Settings(
        **{name: given[name] for name in _AS_GIVEN},
        drafts=list(checked),
        served=served,
        kinds=["none", "ours"] if is_schedule else kinds,
        ks=ks,
        concurrency=levels,
        contexts=sorted(prompts),
        rounds=given["rounds"] or (6 if is_schedule else 3),
        together=on_cpu if given["together"] is None else given["together"],
        max_tokens=0 if is_schedule else given["max_tokens"],
        steps=given["steps"] if is_schedule else 0,
        ignore_eos=is_schedule or given["ignore_eos"] or given["dummy"],
        prompts=read.source,
        num_prompts=len(read.ids),
        prompts_sha256=sha256_of(texts),
        categories=[] if is_schedule else read.categories,
        chat_template=read.chat_template,
        thinking=read.thinking,
        engine=as_decided(given["engine"], checked.values()),
        synthetic_acceptance=_synthetic(given, max(ks, default=0)),
    ), prompts


def _require_drafts(given: Given) -> None:
    chosen = [key for key in (SCHEDULE_KEY, ADAPTIVE_KEY) if key in given["speculative"]]
    refusals: list[tuple[bool, str, object, str, str]] = [
        (given["schedule"] and len(given["drafts"]) != 1, "DRAFT", list(given["drafts"]),
         "one, with --schedule", "find the schedule of each draft by itself"),
        (not given["drafts"] and set(given["kinds"]) != {"none"}, "DRAFT", None,
         "at least one, for the variants stock and ours",
         "name a draft, or measure the target without one with --variants none"),
        (given["eagle_ext"].get("enabled") is False, "--eagle-ext: enabled", False,
         "true: ours is with this package", "use --variants none,stock to measure vLLM without it"),
        (given["schedule"] and bool(chosen), "--speculative", chosen,
         "keys that do not choose how much is drafted",
         "leave them out: --schedule finds the schedule, --adaptive measures adaptive verification"),
    ]  # fmt: skip
    for is_wrong, field_, value, allowed, remedy in refusals:
        if is_wrong:
            raise SpeculativeConfigError(field=field_, value=value, allowed=allowed, remedy=remedy)


def _checked(draft: str, given: Given, ks: Sequence[int]) -> CheckResult:
    """Check each K, or the usual one, as a start would, and return what was found for the largest."""
    check = CheckRequest(
        engine=given["engine"], draft=draft, target=given["target"], revision=given.get("revision"),
        method=given["method"], options=given["eagle_ext"], speculative=given["speculative"],
    )  # fmt: skip
    for k in ks or [usual_k(run_check(check).inspection.spec)]:
        result = run_check(replace(check, k=k))
        if "ours" in given["kinds"] and (errors := result.inspection.errors):
            first = errors[0].problem
            raise UnsupportedDraftError(
                field=f"DRAFT {draft}, K={k}: {first.field}", value=first.value, allowed=first.allowed,
                remedy=first.remedy,
            )  # fmt: skip
    return result


def _swept_ks(ks: Sequence[int], checked: CheckResult) -> list[int]:
    """List the K that one engine tries: 0, and those named, or the usual ones up to a single K."""
    most, draft = checked.request.k or 0, checked.draft_request
    only_k = checked.inspection.spec is not None and has_fixed_blocks(
        draft.method, draft.runner, is_parallel=draft.parallel_drafting
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
    """Refuse --adaptive where vLLM cannot trim drafts, which it does by CUDA graphs of the V2 runner."""
    platform, runner = checked.platform, checked.draft_request.runner or "v2"
    if (platform, runner) != ("cuda", "v2"):
        raise SpeculativeConfigError(
            field="--adaptive", value=True,
            allowed=f"on a GPU and the V2 runner, whose CUDA graphs take drafts of any length; here are "
            f"{platform} and {runner.upper()}",
            remedy="leave it out; a schedule of K is found on either runner",
        )  # fmt: skip


def _levels(given: Given) -> list[int]:
    """List the numbers of requests; the usual ones end at max_num_seqs, or at the number of prompts."""
    if given["concurrency"] is not None:
        return sorted(set(given["concurrency"]))
    if not given["schedule"]:
        return [1]
    most = max(USUAL_REQUESTS)
    most = min(given["engine"].get("max_num_seqs") or most, given["num_prompts"] or most)
    return [level for level in USUAL_REQUESTS if level <= most]


def _require_prompts(given: Given, prompts: int, most: int) -> None:
    seats = given["engine"].get("max_num_seqs")
    if most > prompts or (seats and most > seats):
        raise SpeculativeConfigError(
            field="--concurrency", value=most,
            allowed=f"at most the {prompts} prompts, and max_num_seqs ({seats or 'not given'})",
            remedy="give more --prompts or --num-prompts: repeated ones would be too easy to draft",
        )  # fmt: skip


def _require_room(
    given: Given, checked: Mapping[str, CheckResult], prompts: Prompts, k: int, most: int
) -> None:
    """Require room for the longest text, and for the drafts of its last step.

    Past the end stock stops drafting for a whole batch, and a low acceptance would be the draft's fault.
    """
    targets = [result.target.max_position_embeddings for result in checked.values()]
    limit = given["engine"].get("max_model_len") or next(iter(targets), None)
    longest = max(len(ids) for own in prompts.values() for ids in own)
    if given["schedule"]:
        # The first request goes on while the prompts of the others are read.
        beyond = (given["steps"] + 4 + most // 2) * (k + 1)
        what = f"and {given['steps']} steps of up to {k + 1} tokens, next to those that read prompts"
        shorten = "--context or --steps"
    else:
        beyond = given["max_tokens"] + 2 * (k + 1)
        what = f"--max-tokens {given['max_tokens']}, and room for drafts beyond"
        shorten = "the prompts or --max-tokens"
    if limit is not None and longest + beyond > limit:
        raise SpeculativeConfigError(
            field="max_model_len", value=limit,
            allowed=f"at least {longest + beyond}: {longest} tokens of the longest prompt, {what}",
            remedy=f"shorten {shorten}, or raise max_model_len in --engine",
        )  # fmt: skip


def _prompts(given: Given, levels: Sequence[int]) -> tuple[Prompts, PromptSet]:
    """Return token ids by context, and how they were read."""
    if given["prompt_tokens"] is not None:
        read = _random_prompts(given, given["prompt_tokens"], 2 * max(levels))
        return {0: read.ids}, read
    # Enough texts to tell a good from a broken draft; of a file, and for steps, all are taken.
    count = given["num_prompts"]
    if given["prompts"] in (None, BUILT_IN) and count is None and not given["schedule"]:
        count = max(_USUAL_PROMPTS, *levels)
    texts, categories = zip(*read_prompts(given["prompts"], count=count), strict=True)
    # Token ids as they are, or put together to each context.
    keywords = tokenizer_keywords(given["engine"])
    tokens = [0] * len(texts)
    if given["schedule"]:
        with Tokenizer(given["target"], **keywords) as tokenizer:
            tokens = [len(ids) for ids in tokenizer.ids(texts)]
    prompts = {}
    for context in sorted(set(given["contexts"])) if given["schedule"] else [0]:
        read = token_ids(
            with_context(texts, tokens, context), given["target"], source=given["prompts"],
            chat_template=given["chat_template"], thinking=given["thinking"],
            categories=categories, **keywords,
        )  # fmt: skip
        prompts[context] = read.ids
    return prompts, read


def with_context(texts: Sequence[str], tokens: Sequence[int], least: int) -> list[str]:
    """Put the texts that come before each one in front of it, until there are `least` tokens.

    What is to be answered stays last. Texts of one list begin differently, so that no request finds the
    prefix of another in the cache. `tokens` counts those of each text.
    """
    extended = []
    for place in range(len(texts)):
        places, count = [place], tokens[place]
        while count < least:
            places.insert(0, (places[0] - 1) % len(texts))
            count += max(1, tokens[places[0]])
        extended.append("\n\n".join(texts[at] for at in places))
    return extended


def _random_prompts(given: Given, length: int, usual: int) -> PromptSet:
    from vllm_eagle_ext.draft import read_config
    from vllm_eagle_ext.draft.target_facts import text_config

    if not given["dummy"]:
        raise SpeculativeConfigError(
            field="--prompt-tokens", value=length, allowed="only with --dummy",
            remedy="give --prompts: drafts of random tokens are accepted as those of no text",
        )  # fmt: skip
    config = read_config(given["target"], revision=given["engine"].get("revision"))
    vocabulary = config.get("vocab_size") or text_config(config).get("vocab_size")
    if vocabulary is None:
        raise SpeculativeConfigError(
            field="vocab_size of the target", value=None,
            allowed="a number, in config.json or its language model's block",
            remedy="use a target whose config.json has one",
        )  # fmt: skip
    return random_ids(given["num_prompts"] or usual, length, int(vocabulary), given["seed"])


def _synthetic(given: Given, k: int) -> list[float] | None:
    """Return an acceptance length, or a rate per position of the largest K."""
    values: list[float] = list(given["synthetic_acceptance"])
    if not values:
        return None
    are_rates = all(0 <= rate <= 1 for rate in values) and values == sorted(values, reverse=True)
    if (len(values) == 1 and 1 < values[0] <= k + 1) or (len(values) == k and are_rates):
        return values
    raise SpeculativeConfigError(
        field="--synthetic-acceptance", value=values,
        allowed=f"one acceptance length above 1 and up to {k + 1}, or {k} falling rates of 0 to 1",
        remedy="give one of them; a smaller K uses the first rates",
    )  # fmt: skip
