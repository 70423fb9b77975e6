# SPDX-License-Identifier: Apache-2.0
"""Compares second turns of conversations: after hits in the prefix cache, and computed anew."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_eagle_ext.measure.engine.load import Load, Measured
from vllm_eagle_ext.measure.verify.acceptance import CERTAIN
from vllm_eagle_ext.measure.verify.texts import Divergence, judge_texts
from vllm_eagle_ext.measure.verify.verdicts import Check, Verdict, not_applicable

NAME = "prefix hits"
CONVERSATIONS = 6
_WHOLE_BLOCKS = 2  # of a first turn, at least: vLLM may compute the last one anew
_FOLLOW_UP = 8  # tokens that a user adds

# What an engine makes of a load, shown under a title.
Decode = Callable[[Load, str], Measured]

NO_HITS = (
    "The cache keeps nothing that a second turn finds: see prefix_cache_retention_interval for hybrid",
    "targets, and whether the cache holds the conversations (kv_cache_memory_bytes).",
)
NOT_ANEW = (
    "Turns that were to be computed anew were found in a cache as well: texts say nothing here.",
    "Serve without the KV connector, whose blocks outlast the emptied cache.",
)
FEWER_ACCEPTED = (
    "After hits less is accepted: keys and values of the draft's cache may be missing there.",
    "--engine '{\"enable_prefix_caching\": false}' shows the draft without them.",
)


@dataclass(frozen=True, slots=True)
class SecondTurns:
    """The same prompts twice, from the same engine."""

    block: int  # tokens; a hit is a multiple of it
    prompts: list[list[int]]
    warm: Measured  # after the first turns
    anew: Measured  # from an empty cache


def measure_turns(
    cache: dict[str, Any] | None, prompts: Sequence[list[int]], decode: Decode, *, tokens: int, k: int
) -> SecondTurns | Check:
    """Decode first and second turns.

    Args:
        cache: what a worker says of its prefix cache; None: there is none.
        tokens: of an answer.
        k: tokens of a draft, for which vLLM's V1 runner keeps room at the end of a context.
    """
    if cache is None:
        return not_applicable(NAME, "the engine runs without prefix caching")
    block, most = cache["block_size"], cache["max_model_len"]
    first = conversations(prompts, _WHOLE_BLOCKS * block)
    needed = max(map(len, first)) + _FOLLOW_UP + 2 * tokens + k + 1
    if needed > most:
        return not_applicable(
            NAME, f"conversations of {_WHOLE_BLOCKS} blocks of {block} tokens and two answers need a "
            f"max_model_len of {needed}, and it is {most}",
        )  # fmt: skip
    load = Load(first, 1, tokens, ignore_eos=True)
    answers = decode(load, "First turns").texts
    follow_ups = [prompt[-_FOLLOW_UP:] for prompt in prompts]
    second = [
        [*prompt, *answer, *follow_ups[(number + 1) % len(follow_ups)]]
        for number, (prompt, answer) in enumerate(zip(first, answers, strict=True))
    ]
    load = replace(load, prompts=second)
    warm = decode(replace(load, keeps_cache=True), "Second turns")
    return SecondTurns(block, second, warm, decode(load, "Second turns, computed anew"))


def conversations(prompts: Sequence[list[int]], least: int) -> list[list[int]]:
    """Put prompts after each other until each has as many tokens; no two begin alike."""
    found = []
    for start in range(min(CONVERSATIONS, len(prompts))):
        tokens, place = list(prompts[start]), start
        while len(tokens) < least:
            place = (place + 1) % len(prompts)
            tokens += prompts[place]
        found.append(tokens)
    return found


def judge_turns(turns: SecondTurns, found: Sequence[Divergence], *, bound: float) -> Check:
    """Require the same texts either way, hits, and as many tokens accepted after them.

    Args:
        found: where the texts after hits diverge from those computed anew, with the target's gaps.
    """
    # Texts, hits and steps of both.
    check = judge_texts(NAME, found, turns.warm.texts, bound=bound, without="computed anew")
    hits = sum(answer.cached for answer in turns.warm.answers)
    lengths = [len(prompt) for prompt in turns.prompts]
    # vLLM computes a prompt's last token in any case.
    whole = sum((length - 1) // turns.block * turns.block for length in lengths)
    warm, anew = _steps(turns.warm), _steps(turns.anew)
    means = statistics.fmean(warm), statistics.fmean(anew)
    said = (
        f"{hits} of {sum(lengths)} tokens of {len(lengths)} second turns were hits ({whole} in whole "
        f"blocks of {turns.block}); {means[0]:.2f} tokens per step after them, {means[1]:.2f} anew. "
    )
    # What is worth a look.
    details = [*check.details]
    if not hits:
        details += NO_HITS
    if stayed := sum(answer.cached for answer in turns.anew.answers):
        details += NOT_ANEW
    if fewer := means[1] - means[0] > CERTAIN * _error(warm, anew):
        details += FEWER_ACCEPTED
    warned = (not hits or stayed or fewer) and check.verdict is Verdict.PASSED
    figures = {
        **check.figures, "hits": hits, "prompt_tokens": sum(lengths), "whole_blocks": whole,
        "block_size": turns.block, "tokens_per_step": means[0], "tokens_per_step_anew": means[1],
    }  # fmt: skip
    judged = Verdict.WARNING if warned else check.verdict
    return Check(NAME, judged, said + check.said, tuple(details), figures)


def _steps(measured: Measured) -> list[int]:
    """Return the tokens of each step after a prompt's own."""
    return [tokens for answer in measured.answers for tokens in answer.steps[1:]] or [0]


def _error(*samples: Sequence[int]) -> float:
    """Return the standard error of the difference of two means."""
    return sum(statistics.pvariance(one) / len(one) for one in samples) ** 0.5
