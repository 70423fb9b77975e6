"""`draft_length: "auto"` on the V2 runner: few tokens, Triton's interpreter is slow.

A dense pair with a chain of drafts, and a hybrid pair with a parallel drafter and replay. Batches whose
name begins with `cycled` get a random length of the menu in each step.
"""

from __future__ import annotations

import pytest

from tests.e2e.test_draft_length import COMMON, MENUS, TIES
from tests.e2e.test_hybrid_dflash import dflash
from tests.e2e.test_scheduling import PER_POSITION
from tests.support.batches import Batch, Engine, eagle3
from tests.support.draft_lengths import auto, run_auto
from tests.support.hybrid import TARGET as HYBRID
from tests.support.near_ties import near_tie_gaps

pytestmark = [pytest.mark.e2e, pytest.mark.v2, pytest.mark.long]

LENGTHS = (9, 17, 33, 40, 24, 12, 50)
SMALL = COMMON | {"max_model_len": 160}
DENSE = SMALL | {"dtype": "float32", "max_num_batched_tokens": 32, "enable_chunked_prefill": True}
BATCHES = ["cycled", "chosen"]


def batches(prompts):
    texts = [prompt[:length] for prompt, length in zip(prompts, LENGTHS, strict=False)]
    return [
        Batch("cycled", texts, max_tokens=24, logprobs=5),
        Batch("chosen", texts[:2], max_tokens=40, logprobs=5),
    ]


@pytest.fixture(scope="module")
def plain(prompts):
    """On V1, where vLLM's kernels are compiled."""
    common = batches(prompts)
    engines = [
        Engine("dense", common, engine_args=DENSE),
        Engine("hybrid", common, engine_args=SMALL, target=HYBRID),
    ]
    return run_auto(engines)[0]


@pytest.fixture(scope="module")
def v2(prompts):
    common = batches(prompts)
    replay = auto(MENUS["hybrid"]) | {"hybrid_state": "replay"}
    engines = [
        Engine("dense", common, eagle3("postnorm", 4), DENSE, auto(MENUS["dense"])),
        Engine("hybrid", common, dflash(7), SMALL, replay, target=HYBRID),
    ]
    return run_auto(engines, "v2")[0]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("pair", MENUS)
def test_texts_are_those_without_a_draft(plain, v2, pair, batch):
    left, right = plain[pair][batch], v2[pair][batch]
    gaps = near_tie_gaps(left["tokens"], left["logprobs"], right["tokens"])
    print(f"\n{len(gaps)} of {len(left['tokens'])} texts diverge, at gaps {gaps}")
    assert max(gaps, default=0) <= TIES[pair]


@pytest.mark.parametrize("pair", MENUS)
def test_every_length_was_in_force(v2, pair):
    lengths = v2[pair]["cycled"]["lengths"]
    assert set(lengths) == set(MENUS[pair])
    assert sum(a != b for a, b in zip(lengths, lengths[1:], strict=False)) >= 6
    assert set(v2[pair]["chosen"]["lengths"]) <= set(MENUS[pair])


@pytest.mark.parametrize("pair", MENUS)
def test_drafts_have_the_length_of_their_step(v2, pair):
    found = {len(row) for one in v2[pair]["cycled"]["placed"] for row in one.values()}
    assert found == set(MENUS[pair])


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("pair", MENUS)
def test_counters_are_those_of_the_lengths(v2, pair, batch):
    counters, longest = v2[pair][batch]["counters"], max(MENUS[pair])
    drafts, tokens = counters["spec_decode_num_drafts"], counters["spec_decode_num_draft_tokens"]
    per_position = counters[PER_POSITION]
    assert 0 < drafts < tokens <= drafts * longest
    assert tokens < drafts * longest or batch == "chosen"
    assert len(per_position) == longest
    assert per_position == sorted(per_position, reverse=True)
    assert 0 < sum(per_position) == counters["spec_decode_num_accepted_tokens"] <= tokens
