# SPDX-License-Identifier: Apache-2.0
"""The tiny pairs, and their prompts of each load: all greedy, or every second one sampled.

The tiny drafts guess greedy texts of any kind, random words included; sampled ones they do not. How many
tokens are accepted of either stands beside the figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.draft_lengths.lengths_result import LengthsSettings, LoadShape
from benchmarks.draft_lengths.phased_load import PhasedLoad
from benchmarks.performance import ENGINE, SHORT
from vllm_eagle_ext.measure.tune.request import Prompts, TuneRequest, settle_tune
from vllm_eagle_ext.measure.tune.results import TuneSettings


@dataclass(frozen=True, slots=True)
class TinyPair:
    target: str
    draft: str
    k: int
    lengths: tuple[int, ...]
    eagle_ext: dict[str, Any]
    over_none: float  # least of "auto" over no draft that is aimed at


PAIRS = {
    "dense": TinyPair("examples/tiny/target", "examples/tiny/postnorm", 4, (0, 1, 2, 3, 4), {}, 0.97),
    "hybrid": TinyPair("examples/tiny/hybrid_target", "examples/tiny/dflash", 7, (0, 1, 3, 7),
                       {"hybrid_state": "replay"}, 0.95),
}  # fmt: skip
OVER_BEST = 0.97
MIXES = {0.0: "greedy", 0.5: "half_sampled"}  # share of sampled requests: name
SETTLING = 8  # tokens of a request before its steps count: K has just changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much is measured."""

    requests: Sequence[int] = (1, 4, 16, 32)
    contexts: Sequence[int] = (64, 512)
    sampled: float = 0.0  # one of MIXES
    starts: int = 6
    rounds: int = 4
    tokens: int = 96
    texts: int = 8
    first_steps: int = 160


def settle_pair(name: str, amount: Amount) -> tuple[LengthsSettings, TuneSettings, Prompts]:
    """Settings as `vllm-eagle tune` would have them, and the token ids of the prompts by context.

    Raises:
        EagleExtError: an amount that cannot be used, such as more requests than max_num_seqs.
    """
    pair = PAIRS[name]
    request = TuneRequest(
        target=pair.target, draft=pair.draft, k=pair.k, lengths=pair.lengths, eagle_ext=pair.eagle_ext,
        requests=amount.requests, contexts=amount.contexts, rounds=amount.rounds, steps=amount.tokens,
        prompts=SHORT, chat_template=False, auto=True, together=True,
        engine=ENGINE | {"enable_prefix_caching": False},
    )  # fmt: skip
    tune, prompts = settle_tune(request)
    same = ("target", "draft", "k", "lengths", "eagle_ext", "engine", "prompts", "prompt_tokens",
            "requests", "contexts", "rounds")  # fmt: skip
    settings = LengthsSettings(
        pair=name, sampled=amount.sampled, starts=amount.starts, tokens=amount.tokens,
        texts=amount.texts, first_steps=amount.first_steps,
        **{field: getattr(tune, field) for field in same},
    )  # fmt: skip
    return settings, tune, prompts


def load_of_turn(
    settings: LengthsSettings,
    load: LoadShape,
    number: int,
    prompts: Sequence[list[int]],
    draft_length: int | None,
) -> PhasedLoad:
    """Make what all decode that take a turn: other prompts in each.

    Args:
        number: of the turn at this load, all starts together.
        draft_length: K that is held; None: the engine's own.
    """
    places = range(number * load.requests, (number + 1) * load.requests)
    return PhasedLoad(
        [prompts[place % len(prompts)] for place in places],
        [float(settings.sampled > 0 and place % 2) for place in places],
        load.phases,
        settings.tokens_of(load),
        draft_length,
        SETTLING,
    )


def load_to_learn(
    settings: LengthsSettings, load: LoadShape, number: int, prompts: Sequence[list[int]]
) -> PhasedLoad:
    """Make what "auto" decodes before it is measured, of prompts that no turn of the start has.

    Few of long prompts: their texts go on until they are three times as long.
    """
    own = load_of_turn(settings, load, number, prompts, None)
    if load.ramp:
        return own
    return replace(own, tokens=2 * load.context, most_steps=settings.first_steps)
