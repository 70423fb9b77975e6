# SPDX-License-Identifier: Apache-2.0
"""The tiny pairs, and their prompts of each load: every second one is sampled at temperature 1.

The tiny drafts guess greedy texts of any kind, random words included; sampled ones they do not. How many
tokens are accepted of either stands beside the figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    over_none: float  # least of "auto" over no draft that issue 17 asks for


PAIRS = {
    "dense": TinyPair("examples/tiny/target", "examples/tiny/postnorm", 4, (0, 1, 2, 3, 4), {}, 0.97),
    "hybrid": TinyPair("examples/tiny/hybrid_target", "examples/tiny/dflash", 7, (0, 1, 3, 7),
                       {"hybrid_state": "replay"}, 0.95),
}  # fmt: skip
OVER_BEST = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much is measured."""

    requests: Sequence[int] = (1, 4, 16, 32)
    contexts: Sequence[int] = (64, 512)
    rounds: int = 5
    starts: int = 2
    tokens: int = 32
    texts: int = 8  # of a cell, at least: sampled ones differ from variant to variant
    first_steps: int = 240


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
        pair=name, starts=amount.starts, tokens=amount.tokens, texts=amount.texts,
        first_steps=amount.first_steps,
        **{field: getattr(tune, field) for field in same},
    )  # fmt: skip
    return settings, tune, prompts


def waves(load: LoadShape, texts: int) -> int:
    """Loads of one cell, behind each other, so that it has as many texts."""
    return math.ceil(texts / load.requests)


def loads_of_cell(
    load: LoadShape,
    number: int,
    prompts: Sequence[list[int]],
    draft_length: int | None,
    *,
    tokens: int,
    texts: int,
) -> list[PhasedLoad]:
    """Make the waves of a cell: other prompts in each round, the same for all that take turns.

    Args:
        number: of the round.
        tokens: of a request and phase.
        texts: of the cell, at least.
    """
    found, count = [], waves(load, texts)
    texts = load.requests * count
    for wave in range(count):
        places = range(wave * load.requests, (wave + 1) * load.requests)
        chosen = [prompts[(number * texts + place) % len(prompts)] for place in places]
        temperatures = [float(place % 2) for place in places]
        found.append(PhasedLoad(chosen, temperatures, load.phases, tokens, draft_length))
    return found
