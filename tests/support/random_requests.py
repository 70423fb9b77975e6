"""Requests drawn by chance, for an engine without a draft and others with drafts.

Budgets of thinking, default sampling, grammars, texts that end with the model's context, and plain ones
join each other at steps drawn by chance too, with prompts in chunks.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.batches import Batch, Engine, run_engines
from tests.support.kinds import COMPACT, SCHEMA, THINKING, THINKS, UNREACHED, with_eos

LENGTH = 160  # max_model_len
NARROW = {
    "max_model_len": LENGTH,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 48,  # prompts in chunks, and rows that the step's budget cuts
    "structured_outputs_config": COMPACT,
    "reasoning_config": THINKING,
}
BY_CHANCE = "default sampling"  # its texts are not compared: drafts change what is drawn
ONE_TOKEN = "default sampling of one token"  # nothing is left to chance
KINDS = ("greedy", "budget", ONE_TOKEN, BY_CHANCE, "json", "length", "budget, length")
EOS = "("
# Triton's interpreter has no kernel of vLLM's for top-k and top-p.
NO_KERNEL = {"v1": {}, "v2": {"top_k": 0, "top_p": 1.0}}


def kinds_on(runner: str) -> list[str]:
    return [kind for kind in KINDS if runner == "v1" or kind != ONE_TOKEN]


@dataclass(frozen=True)
class Drawn:
    kind: str
    prompt: list[int]
    params: dict[str, Any]
    joins: int


def drawn(
    seed: int, count: int, prompts: Sequence[list[int]], think: list[int], runner: str, most: int
) -> list[Drawn]:
    """`most` tokens of an answer, but for those that go on to the end of the context."""
    chance, kinds = random.Random(seed), kinds_on(runner)
    asked = [_drawn(chance, kinds[i % len(kinds)], count, prompts, think, most) for i in range(count)]
    for request in asked:
        if request.kind == BY_CHANCE:
            request.params.update(NO_KERNEL[runner])
    return asked


def _drawn(
    chance: random.Random,
    kind: str,
    count: int,
    prompts: Sequence[list[int]],
    think: list[int],
    most: int,
) -> Drawn:
    flat = [token for prompt in chance.sample(prompts, 6) for token in prompt]
    to_the_end = "length" in kind
    room = chance.randint(2, most)
    prompt = flat[: LENGTH - room if to_the_end else chance.randint(2, 90)]
    params: dict[str, Any] = {"max_tokens": room, "logprobs": 5, THINKS: UNREACHED}
    if "budget" in kind:
        prompt = prompt[: -len(think)] + think if len(prompt) > len(think) else think
        params[THINKS] = chance.choice([1, 2, 3, 5, 8])
    if "default" in kind:
        params |= {"defaults": True} | ({"top_k": 1} if kind == ONE_TOKEN else {})
    if kind == "json":
        params |= {"json": SCHEMA, "max_tokens": 2 * most, "ignore_eos": False}
    return Drawn(kind, prompt, params, chance.randint(0, 3 * count))


@dataclass(frozen=True)
class Pair:
    """A target, and what drafts for it: name -> speculative config."""

    target: Path
    drafts: dict[str, dict[str, Any]]
    engine_args: dict[str, Any] = field(default_factory=dict)


def run_drawn(
    pair: Pair, seeds: dict[str, int], count: int, prompts: Sequence[list[int]], runner: str, most: int
) -> dict[str, Any]:
    """By the name of a draft: "asked", and what was found with it ("drafted") and without ("plain")."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        target = with_eos(pair.target, EOS, Path(folder, "target"))
        encode = AutoTokenizer.from_pretrained(target).encode
        think, end = (encode(mark, add_special_tokens=False) for mark in THINKING.values())
        asked = {name: drawn(seeds[name], count, prompts, think, runner, most) for name in pair.drafts}
        batches = {
            name: Batch(
                name, [r.prompt for r in own], asked=[r.params for r in own],
                joins=[r.joins for r in own],
            )
            for name, own in asked.items()
        }  # fmt: skip
        arguments = NARROW | {"logprobs_mode": "processed_logprobs"} | pair.engine_args
        plain = Engine("plain", list(batches.values()), None, arguments, target=target, drafts=None)
        engines = [
            replace(plain, name=name, batches=[batches[name]], speculative=speculative)
            for name, speculative in pair.drafts.items()
        ]
        runs = run_engines([plain, *engines], runner)
    return {
        name: {
            "runner": runner,
            "asked": own,
            "end": end,
            "plain": runs["plain"][name],
            "drafted": runs[name][name],
        }
        for name, own in asked.items()
    }
